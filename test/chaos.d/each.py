"""One fault at a time, for as long as its alert needs, in real time: the logs that test/system/test_alerts.py holds the rules against.

Each has a sidecar with the intervals and limits that it has without a word, a queue, a database and an application of its own. It works on good
messages for HEALTHY_S, then the fault begins, and lasts to the record's end. All run beside each other: `test/chaos --each FOLDER` takes
an hour, since one of them is a transaction that has been open for so long; the others are over after 24 minutes."""

import fcntl
import gzip
import json
import os
import threading
import time

from rig import process, schema, servers
from rig.application import Application
from rig.proxy import Proxy
from rig.queue import Queue
from rig.sidecar import Sidecar
from rig.wait import wait_until

HEALTHY_S = 60
FAULTS = {}
F_SETPIPE_SZ = 1031


def fault(minutes, rate=1.0, log=None, outbox=False, environment=None, **keys):
    """minutes: how long it lasts; rate: good messages a second, all the time; log, keys: of the configuration's log, and its queue; outbox:
    it has no queue, and brings to the broker what the application publishes. environment: of the sidecar."""
    def note(function):
        function.seconds, function.rate, function.log, function.outbox, function.keys = minutes * 60, rate, log or {}, outbox, keys
        function.environment = environment or {}
        FAULTS[function.__name__] = function
        return function
    return note


class Muffled(Sidecar):
    """Its log is read as long as `flows` is set."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.flows = threading.Event()
        self.flows.set()

    def _take(self, line):
        self.flows.wait()
        super()._take(line)


class Case:
    def __init__(self, what, folder, running):
        self.what, self.name, self.ends = what, what.__name__, threading.Event()
        self.is_gone = False  # the queue: nothing is published to it any more
        self.postgres = schema.database(running.postgres, self.name)
        self.queue = Queue(running.rabbitmq, self.name).declare()
        self.application = Application(self.name, self.postgres).start()
        self.broker = Proxy(running.rabbitmq.port).start()
        config = {"broker": {"url": running.rabbitmq.url(port=self.broker.port)}, "database": {"url": self.postgres.dsn(user="sidecar_login")},
                  "log": what.log, "state_file": os.path.join(folder, f"{self.name}.state")}
        if what.outbox:
            config["outbox"] = {}
        else:
            config["queues"] = {self.name: {"completion": "transaction", **what.keys,
                                            "forward": {"url": self.application.url, **what.keys.get("forward", {})}}}
        self.sidecar = Muffled(schema.require_binary(), folder, config, self.name, what.environment)
        self.publisher = threading.Thread(target=self._publish, daemon=True)

    def _publish(self):
        if self.what.outbox:
            return self._publish_there()
        begun, n = time.monotonic(), 0
        while not self.ends.wait(0.1) and not self.is_gone:
            while n < (time.monotonic() - begun) * self.what.rate:
                self.queue.publish(f"m{n}", b"{}")
                n += 1
            self.queue.sync()

    def _publish_there(self):
        """In the application's transactions."""
        with self.postgres.connect(user="app_login").cursor() as cursor:
            while not self.ends.wait(1 / self.what.rate):
                cursor.execute("SELECT onceward.publish('', %s, '{}'::jsonb)", (self.name,))

    def n_done(self):
        return self.queue.n_ready if self.what.outbox else len(self.application.effects())

    def flood(self, n):
        self.queue.publish_many([f"flood-{i}" for i in range(n)], body=b"{}")

    def run(self):
        self.sidecar.start()
        self.publisher.start()
        self.ends.wait(HEALTHY_S)
        assert not self.ends.is_set() and self.n_done() >= min(1, HEALTHY_S * self.what.rate), f"{self.name}: not healthy at first"
        begun = time.monotonic()
        self.what(self)
        self.ends.wait(max(0.0, self.what.seconds - process.seconds_since(begun)))
        self.sidecar.kill()
        self.ends.set()
        self.publisher.join()
        self.application.stop()
        self.broker.stop()

    def record(self, path):
        """The lines of figures, those of level error, and of others the first of each event, behind the pod's name."""
        seen, lines = set(), []
        with open(self.sidecar.log_path) as f:
            for line in f:
                event = json.loads(line)
                if event["event"] in ("stats", "outbox") or event["level"] == "error" or event["event"] not in seen:
                    seen.add(event["event"])
                    lines.append(f"{self.name} {line}".encode())
        with gzip.GzipFile(path, "wb", mtime=0) as f:
            f.writelines(lines)
        return len(lines)


@fault(minutes=4)
def away(case):
    """The application's process is gone: nobody listens."""
    case.application.die()


@fault(minutes=5)
def no_broker(case):
    """The broker's machine is gone."""
    case.broker.refuse()
    case.broker.cut()


@fault(minutes=5)
def no_queue(case):
    """An operator has deleted the queue."""
    case.is_gone = True
    case.queue.delete()


@fault(minutes=6, outbox=True)
def unsent(case):
    """The broker's machine is gone, and what applications publish waits."""
    case.broker.refuse()
    case.broker.cut()


@fault(minutes=9)
def overloaded(case):
    """The application answers 503, whatever it is sent, and more waits than the sidecar takes."""
    case.application.handler = lambda request, reply: 503
    case.flood(300)


@fault(minutes=4)
def fails(case):
    """The application fails three times at each message."""
    case.application.handler = lambda request, reply: 500 if request.attempt <= 3 else case.application.commit_and_answer(request, reply)


@fault(minutes=1)
def refuses(case):
    """The application will never take one message of many."""
    case.application.handler = lambda request, reply: 422 if request.message_id == "flood-7" else case.application.commit_and_answer(request, reply)
    case.flood(30)


@fault(minutes=4, rate=0.4)
def slow(case):
    """The application needs 26 s of the 30 for each message."""
    def handler(request, reply):
        case.ends.wait(26)
        return case.application.commit_and_answer(request, reply)
    case.application.handler = handler


@fault(minutes=23, rate=10, forward={"concurrency": 4})
def outgrown(case):
    """More comes than the application can do: 10 a second, where it does 8."""
    def handler(request, reply):
        case.ends.wait(0.5)
        return case.application.commit_and_answer(request, reply)
    case.application.handler = handler
    case.flood(1300)


@fault(minutes=17)
def later(case):
    """The application wants one message not before two hours from now."""
    def handler(request, reply):
        if request.message_id != "flood-7":
            return case.application.commit_and_answer(request, reply)
        return reply.status(429, headers={"Retry-After": "7200"})
    case.application.handler = handler
    case.flood(30)


@fault(minutes=62, rate=1 / 50)
def open_transaction(case):
    """A session has begun a transaction, and does not end it."""
    forgotten = case.postgres.connect(user="app_login", autocommit=False)
    with forgotten.cursor() as cursor:
        cursor.execute("SELECT txid_current()")
    case.forgotten = forgotten


@fault(minutes=1, rate=10, log={"messages": "all"})
def unread(case):
    """The log's reader stops for a while, while many lines are written."""
    fcntl.fcntl(case.sidecar.child.stdout, F_SETPIPE_SZ, 4096)
    case.sidecar.flows.clear()
    case.flood(6000)
    wait_until(lambda: len(case.application.effects()) >= 6000, "all that came meanwhile is done", 300, 0.5)
    case.sidecar.flows.set()


OLD_ROWS = """
INSERT INTO onceward.inbox (consumer, message_id, status, attempt, token, fingerprint, received_at, token_expires_at, max_expires_at,
                            completed_at, claimed_by)
SELECT %s, 'old' || n, 'completed', 1, gen_random_uuid(), uuid_send(gen_random_uuid()), at, at, at, at, ''
FROM generate_series(1, 100000) n, LATERAL (SELECT clock_timestamp() - interval '5 hours' AS at) x
"""


@fault(minutes=2, compact_after="4h", environment={"ONCEWARD_FAILPOINT": "walk_goal_ms=500"})
def lags(case):
    """A hundred thousand rows become due for the compact history at once, and a walk of them may take half a second."""
    case.postgres.query(OLD_ROWS, (case.name,))


def _run(case, path, say, wrong):
    try:
        case.run()
        say(f"  {case.name}: {case.record(path)} lines. {case.what.__doc__}")
    except Exception as error:  # noqa: BLE001 - the others go on
        wrong.append(f"{case.name}: {type(error).__name__}: {error}")


def record(folder, only, say):
    """Runs all, or those named, beside each other; each leaves FOLDER/NAME.gz. Answers what went wrong."""
    os.makedirs(folder, exist_ok=True)
    running, wrong, cases, threads = servers.Servers("onceward-faults-"), [], [], []
    try:
        running.start(postgres={"max_connections": 400})
        schema.require_binary()
        cases += [Case(what, running.folder, running) for name, what in FAULTS.items() if not only or name in only]
        threads += [threading.Thread(target=_run, args=(case, os.path.join(folder, f"{case.name}.gz"), say, wrong)) for case in cases]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for case in cases:
            case.ends.set()
        running.stop()
    return wrong
