"""outages of the application, the database and the broker, on classic and quorum queues: --minutes each

All of them at once, each with servers of its own that really stop. An hour of each, in virtual time: test/sim --measured outages."""

import os
import threading
import time

import psycopg2

from rig import servers
from rig.application import Application as Scripted

from ..bed import EFFECT
from ..stage import Stage
from ..verdicts import Verdicts

# kind, limit, told
QUEUES = [("classic", None, False)] + [("quorum", limit, told) for limit in (2, 5, 20) for told in (True, False)]
BEFORE, MEANWHILE = 60, 20
FULL_SPEED_SECONDS = 5  # after the first


class Outage:
    """within: seconds until the first message after the end. charges: at most so many of all."""

    name, within, charges = "", 0, 0
    publishes_meanwhile = True

    def __init__(self, bed):
        self.bed = bed
        self.stage = self.make()
        self.queues = [self.stage.queue(f"{kind}{limit or ''}{'told' if told else ''}", kind, limit) for kind, limit, told in QUEUES]
        options = {queue: {"delivery_limit": limit} if told else {} for queue, (_, limit, told) in zip(self.queues, QUEUES)}
        self.url = self.application()
        self.sidecar = self.stage.sidecar(options, self.url, completion="transaction", **self.options()).start()

    def make(self):
        return Stage(self.bed, "outage")

    def application(self):
        self.app = self.stage.mortal(pool=4)
        return self.app.url

    def options(self):
        return {}

    def publish(self, n, prefix):
        for queue in self.queues:
            self.stage.publish(queue, [f"{queue}-{prefix}-{i}" for i in range(n)])

    def begin(self):
        raise NotImplementedError

    def finish(self):
        """The end of it; the first moment at which it works again."""
        raise NotImplementedError

    def run(self, minutes):
        for queue in self.queues:
            self.sidecar.wait_for("consuming", queue=queue)
        self.publish(BEFORE, "before")
        time.sleep(0.05)
        self.begin()
        start = time.monotonic()
        time.sleep(min(2.0, minutes * 30))
        if self.publishes_meanwhile:
            self.publish(MEANWHILE, "meanwhile")
        time.sleep(max(0.0, start + minutes * 60 - time.monotonic()))
        self.finish()
        self.ended = time.time()
        if not self.publishes_meanwhile:
            self.publish(MEANWHILE, "after")
        self.n = len(self.queues) * (BEFORE + MEANWHILE)
        self.seconds = self.stage.wait_for_completed(self.n, 60)

    def say(self, v):
        stage = self.stage
        after = [row[0] - self.ended for row in stage.rows(
            "SELECT extract(epoch FROM completed_at)::float8 FROM onceward.inbox WHERE status = 'completed' AND "
            "extract(epoch FROM completed_at) > %s ORDER BY 1", self.ended)]
        v.exactly(f"{self.name}: done of {self.n} (lost: none), letters", (stage.n_completed(), stage.n_letters()), (self.n, 0))
        v.exactly(f"{self.name}: doubled", stage.n_doubled(), 0)
        v.most(f"{self.name}: charged", stage.n_charged(), self.charges, "{:d}")
        v.most(f"{self.name}: the first after its end, s", after[0] if after else 999, self.within)
        v.most(f"{self.name}: the last of {len(after)} after the first, s", after[-1] - after[0] if after else 999, FULL_SPEED_SECONDS)

    def stop(self):
        self.stage.__exit__()


class ApplicationDown(Outage):
    name, within = "application", 2

    def begin(self):
        self.app.kill()

    def finish(self):
        self.app.come_back()


class FrontedDown(ApplicationDown):
    name, within, charges = "application behind nginx", 12, 4

    def application(self):
        self.app = self.stage.mortal(pool=4)
        return self.stage.front(self.app)


class Refusing(Outage):
    """The sidecar's role may call nothing."""

    name, within = "database that refuses statements", 16

    def begin(self):
        self.stage.rows("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA onceward FROM onceward_sidecar")

    def finish(self):
        self.stage.rows("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA onceward TO onceward_sidecar")


class DatabaseDown(Outage):
    """A PostgreSQL of its own. Its application answers 500 meanwhile, and connects again by itself."""

    name, within = "database", 6

    def make(self):
        self.server = servers.PostgreSQL(os.path.join(self.bed.folder, "other-postgresql"), self.bed.servers.certificates)
        self.server.init(ssl="off").start()
        self.server.query("CREATE DATABASE outage")
        self.bed.migrate(self.server.dsn(database="outage"))
        self.server.query("CREATE ROLE bench_sidecar LOGIN IN ROLE onceward_sidecar")
        self.server.query("CREATE ROLE bench_app LOGIN IN ROLE onceward_app")
        self.server.query(EFFECT, database="outage")
        return Stage(self.bed, "outage", postgres=self.server, database="outage")

    def application(self):
        self.connections = []
        self.app = Scripted("outage", self.server)
        self.app.handler = self.answer
        return self.app.start().url

    def answer(self, request, _):
        connection = None
        try:
            connection = self.borrow()
            with connection, connection.cursor() as cursor:
                cursor.execute("SELECT onceward.complete(%s)", (request.token,))
                cursor.execute("INSERT INTO public.effect (message_id) VALUES (%s)", (request.message_id,))
            self.connections.append(connection)
            return 204
        except psycopg2.Error:
            if connection:
                connection.close()
            return 500

    def borrow(self):
        try:
            return self.connections.pop()
        except IndexError:
            return psycopg2.connect(self.stage.app_dsn(), connect_timeout=5)

    def begin(self):
        self.server.crash()

    def finish(self):
        self.connections.clear()  # as a good pool does it: none that is stale is lent
        self.server.start()

    def stop(self):
        super().stop()
        self.app.stop()
        self.server.stop()


class BrokerDown(Outage):
    """A RabbitMQ of its own."""

    name, within = "broker", 6
    publishes_meanwhile = False

    def make(self):
        self.server = servers.RabbitMQ(os.path.join(self.bed.folder, "other-rabbitmq"), self.bed.servers.certificates)
        os.makedirs(self.server.folder)
        self.server.init().start()
        return Stage(self.bed, "outage", rabbitmq=self.server)

    def begin(self):
        self.server.stop()

    def finish(self):
        self.server.start()
        self.stage.reconnect()

    def stop(self):
        super().stop()
        self.server.deinit()


ALL = (ApplicationDown, FrontedDown, Refusing, DatabaseDown, BrokerDown)


def prove(bed, o):
    v = Verdicts(f"outages: {o.minutes:g} minutes each, on {len(QUEUES)} queues: classic, quorum with delivery limits 2, 5, 20, told and untold")
    outages = []
    try:
        for kind in ALL:
            if o.only in kind.name:
                outages.append(kind(bed))
        threads = [threading.Thread(target=outage.run, args=(o.minutes,)) for outage in outages]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for outage in outages:
            outage.say(v)
    finally:
        for outage in outages:
            outage.stop()
    return v
