"""The bed of one test: a queue, a consumer, an application with its ledger, and any number of sidecars."""

import copy
import os
import re
import uuid

import psycopg2.extras

from . import schema
from .application import Application, Gate
from .proxy import Proxy
from .queue import Queue
from .sidecar import Sidecar
from .wait import wait_until

# Shorter waits in a program that knows them (include/onceward/base/failpoint.def); a test of one of them sets its own.
SHORT_TIMES = ("redial_last_ms=500", "consume_last_ms=500", "refused_ms=500", "presence_ms=1000", "walk_ms=1000", "house_failed_ms=1000")
# Short windows and backoffs, so that tests are quick.
QUEUE_DEFAULTS = {
    "completion": "transaction",
    "token_window": "5s",
    "commit_grace": "300ms",
    "retry": {"max_attempts": 3, "backoff": "50ms", "max_backoff": "200ms"},
    "ready": {"interval": "100ms"},
}


def merge(base, more):
    """Objects key by key; a key whose value is None is removed."""
    out = copy.deepcopy(base)
    for key, value in more.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, dict) and isinstance(out.get(key), dict):
            out[key] = merge(out[key], value)
        else:
            out[key] = copy.deepcopy(value)
    return out


class Bed:
    DATABASE = {"sslmode": "disable"}  # TLS costs half as much again

    def __init__(self, title, folder, postgres, rabbitmq):
        self.name = re.sub(r"[^a-z0-9]+", "-", title.lower())[:40].strip("-") + "-" + uuid.uuid4().hex[:6]
        self.folder = str(folder)
        self.postgres = postgres
        self.rabbitmq = rabbitmq
        self.sidecars = []
        self.applications = []
        self.queues = []
        self.proxies = []
        self.expects_errors = False  # the test itself looks at what handlers raised
        self.queue = self.new_queue()
        self.app = self.new_application()

    # parts

    def new_queue(self, suffix="", **options):
        queue = Queue(self.rabbitmq, self.name + suffix, **options).declare()
        self.queues.append(queue)
        return queue

    def new_application(self, suffix="", **options):
        application = Application(self.name + suffix, self.postgres, **options).start()
        self.applications.append(application)
        return application

    def new_proxy(self, port):
        proxy = Proxy(port).start()
        self.proxies.append(proxy)
        return proxy

    def config(self, top=None, queue=None, app=None, **keys):
        """A configuration for this bed's queue; keys are those of the queue, top those of the file."""
        queue = queue or self.queue
        app = app or self.app
        forward = {"url": app.url}
        if app.unix_socket:
            forward["unix_socket"] = app.unix_socket
        base = {
            "broker": {"url": self.rabbitmq.url()},
            "database": {"url": self.postgres.dsn(user="sidecar_login", **self.DATABASE)},
            "log": {"level": "info", "messages": "all", "stats_interval": "250ms"},
            "shutdown_grace": "5s",
            "queues": {queue.name: merge(merge(QUEUE_DEFAULTS, {"forward": forward}), keys)},
        }
        return merge(base, top or {})

    def sidecar(self, name=None, start=True, wait=True, config=None, top=None, environment=None, binary=None, **keys):
        """A sidecar on this bed's queue, consuming when this returns."""
        name = name or f"sidecar{len(self.sidecars) + 1}"
        config = config or self.config(top, **keys)
        config.setdefault("state_file", os.path.join(self.folder, name + ".state"))
        environment = {"ONCEWARD_FAILPOINT": ",".join(SHORT_TIMES), **(environment or {})}
        sidecar = Sidecar(binary or schema.require_binary(), self.folder, config, name, environment)
        self.sidecars.append(sidecar)
        if start:
            sidecar.start()
            if wait:
                sidecar.wait_for("consuming")
        return sidecar

    # looking at the database

    def leave_locked(self, message_id, body=b"{}", **keys):
        """The application is in the middle of its commit, so it has the message's row locked; the sidecar that sent the message is dead.
        Answers the gate that lets it commit."""
        gate = Gate()
        self.app.handler = lambda request, reply: self.app.commit(request, before_commit=gate.wait) and 200
        first = self.sidecar(**keys)
        self.queue.publish(message_id, body)
        gate.wait_for_waiting()
        first.kill()
        return gate

    def rows(self, sql, *parameters):
        return self.postgres.query(sql, parameters, cursor_factory=psycopg2.extras.RealDictCursor) or []

    def row(self, message_id, consumer=None):
        """The inbox row of a message, or None."""
        found = self.rows("SELECT *, token_expires_at - clock_timestamp() AS left FROM onceward.inbox WHERE consumer = %s "
                          "AND message_id = %s", consumer or self.queue.name, message_id)
        return found[0] if found else None

    def status(self, message_id, consumer=None):
        row = self.row(message_id, consumer)
        return row["status"] if row else None

    def statuses(self, consumer=None):
        return {r["status"]: r["n"] for r in
                self.rows("SELECT status::text, count(*)::int AS n FROM onceward.inbox WHERE consumer = %s GROUP BY 1",
                          consumer or self.queue.name)}

    def letters(self, message_id=None, consumer=None):
        rows = self.rows("SELECT * FROM onceward.dead_letter WHERE consumer = %s ORDER BY id", consumer or self.queue.name)
        return [r for r in rows if message_id is None or r["message_id"] == message_id]

    def wait_for_status(self, message_id, status, deadline=120.0, consumer=None):
        wait_until(lambda: self.status(message_id, consumer) == status,
                   lambda: f"{message_id} is {status}; it is {self.status(message_id, consumer)}", deadline, 0.03)
        return self.row(message_id, consumer)

    def wait_for_effects(self, ids, deadline=120.0):
        wanted = set(ids)
        wait_until(lambda: wanted <= set(self.app.effects()),
                   lambda: f"effects of {len(wanted)} messages; missing {sorted(wanted - set(self.app.effects()))[:5]}",
                   deadline, 0.1)

    # the promises that end most tests

    def assert_once(self, *ids):
        """Each has its one effect, and its row says completed."""
        effects = self.app.effects()
        for message_id in ids:
            assert effects.get(message_id, 0) == 1, f"{message_id} has {effects.get(message_id, 0)} effects"
            assert self.status(message_id) == "completed"

    def assert_acked(self):
        """Nothing is left at the broker: killed without a word, a sidecar gives back what it did not ack. Before that each says
        that it holds nothing any more, since the kernel may throw away what a killed process sent last."""
        for sidecar in self.sidecars:
            if sidecar.child is not None:
                sidecar.wait_for_nothing_held()
                sidecar.kill()
        self.queue.assert_empty()

    # the end

    def report(self):
        parts = [(f"log of {s.name}", s.report()) for s in self.sidecars]
        parts += [("what handlers raised", "\n".join(a.errors[:20])) for a in self.applications if a.errors]
        return parts

    def deinit(self):
        """Ends everything, then says what was wrong with the sidecars."""
        faults = []
        for sidecar in self.sidecars:
            try:
                sidecar.end()
            except AssertionError as e:
                faults.append(str(e))
            faults += [f"{sidecar.name}: {f}" for f in sidecar.check()]
        for application in self.applications:
            application.stop()
            if application.errors and not self.expects_errors:
                faults += [f"a handler raised {e}" for e in application.errors[:5]]
        for proxy in self.proxies:
            proxy.stop()
        for queue in self.queues:
            try:
                queue.delete()
                queue.close()
            except Exception as e:  # noqa: BLE001 - a lost connection here is no fault of the program
                print(f"{queue.name}: {e}")
        assert not faults, "\n".join(faults)
