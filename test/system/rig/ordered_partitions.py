"""Ordered partitions under load: numbered messages per key, an application that records the order, and who is active."""

import collections
import itertools
import threading
import time
import uuid

from .bed import merge
from .wait import wait_until

SINGLE = {"x-queue-type": "quorum", "x-single-active-consumer": True}
N_KEYS = 4  # of each partition


class OrderedPartitions:
    def __init__(self, bed, n, rate=100):
        self.bed = bed
        self.n = n
        self.pause = 1 / rate
        self.queues = [bed.new_queue(f"-{i}", arguments=self.arguments(bed.rabbitmq)) for i in range(n)]
        bed.app.handler = self.commit
        self.fails = lambda key, number, attempt: None  # a status in place of the commit
        self.numbers = collections.Counter()
        self.instances = {}  # by the sidecar's name
        self.ends = threading.Event()
        self.publisher = threading.Thread(target=self._publish, daemon=True)

    @staticmethod
    def arguments(rabbitmq):
        """Of a partition: no delivery limit, which RabbitMQ 4 has by default."""
        return {**SINGLE, **({"x-delivery-limit": -1} if rabbitmq.version() >= (4,) else {})}

    # messages

    def publish(self, partition, key):
        key = f"p{partition}k{key}"
        number = self.numbers[key] + 1
        self.queues[partition].publish(f"{key}:{number}", headers={"account": key})
        self.numbers[key] = number

    def _publish(self):
        for i in itertools.count():
            if self.ends.wait(self.pause):
                return
            self.publish(i % self.n, i // self.n % N_KEYS)

    def begin(self):
        self.publisher.start()

    def end(self, deadline=120.0):
        """All that was published is done."""
        self.ends.set()
        self.publisher.join()
        for queue in self.queues:
            queue.sync()
        self.bed.wait_for_effects(self.ids(), deadline)

    def commit(self, request, reply):
        key, number = request.message_id.split(":")
        status = self.fails(key, int(number), request.attempt)
        if status:
            return status
        app = self.bed.app
        database = app.borrow()
        try:
            with database.cursor() as cursor:
                cursor.execute("SELECT onceward.complete(%s)", (request.token,))
                cursor.execute("SELECT coalesce(max(split_part(message_id, ':', 2)::int), 0) FROM app.ledger "
                               "WHERE application = %s AND message_id LIKE %s", (app.name, key + ":%"))
                last = cursor.fetchone()[0]
                cursor.execute("INSERT INTO app.ledger (application, message_id, note) VALUES (%s, %s, %s)",
                               (app.name, request.message_id, str(last)))
            database.commit()
        except Exception:
            database.rollback()
            raise
        finally:
            app.give_back(database)
        return 200

    def ids(self):
        return [f"{key}:{n}" for key, most in self.numbers.items() for n in range(1, most + 1)]

    def faults(self):
        """(inversions, doubled, gaps) of the ledger."""
        rows = self.bed.rows("SELECT message_id, note FROM app.ledger WHERE application = %s", self.bed.app.name)
        done = collections.Counter(r["message_id"] for r in rows)
        inverted = [r["message_id"] for r in rows if int(r["note"]) != int(r["message_id"].split(":")[1]) - 1]
        return inverted, [i for i, n in done.items() if n > 1], sorted(set(self.ids()) - set(done))

    def assert_ordered(self):
        inverted, doubled, gaps = self.faults()
        assert not inverted and not doubled and not gaps, f"inversions {inverted[:5]}, doubled {doubled[:5]}, gaps {gaps[:5]}"

    # replicas

    def sidecar(self, top=None, environment=None, **keys):
        name = f"sidecar{len(self.bed.sidecars) + 1}"
        config = self.bed.config(top={"instance": str(uuid.uuid4()), **(top or {})}, order={"key": ["header:account"]}, delivery_limit=0, **keys)
        entry = config["queues"].pop(self.bed.queue.name)
        config["queues"][self.bed.name] = merge(entry, {"queue": f"{self.bed.name}-{{0..{self.n - 1}}}", "consumer": self.bed.name})
        self.instances[name] = config["instance"]
        return self.bed.sidecar(name, config=config, wait=False, environment=environment)

    def active(self):
        """The instance that made the latest completion of each partition, and how many seconds ago the oldest of these is."""
        rows = self.bed.rows("SELECT DISTINCT ON (p) substring(message_id from '^p([0-9]+)k')::int AS p, claimed_by, "
                             "extract(epoch FROM clock_timestamp() - completed_at)::float AS ago FROM onceward.inbox "
                             "WHERE consumer = %s AND status = 'completed' ORDER BY p, completed_at DESC", self.bed.name)
        return {r["p"]: r["claimed_by"].rpartition("/")[0] for r in rows}, max((r["ago"] for r in rows), default=0)

    def counts(self, sidecars):
        active, _ = self.active()
        found = collections.Counter(active.values())
        return [found[self.instances[s.name]] for s in sidecars]

    def is_even(self, sidecars, within=1):
        counts = self.counts(sidecars)
        return sum(counts) == self.n and all(abs(c - self.n / len(sidecars)) <= within for c in counts)

    def wait_for_even(self, sidecars, deadline=30.0):
        """Seconds until the partitions are spread, give or take one."""
        start = time.monotonic()
        wait_until(lambda: self.is_even(sidecars), lambda: f"spread, now {self.counts(sidecars)}", deadline)
        return time.monotonic() - start
