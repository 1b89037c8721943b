"""the outbox's relay: rows that wait while the broker is away, their drain in order, from commit to queue at 500/s, an idle one

A sidecar to a quorum queue, with an outbox and no queue; where its name says so, with a queue whose application publishes in the transaction
that completes. From commit to queue is measured at a consumer, whose delivery is in it: what is between the return of COMMIT and the message
in a Python thread. The transaction that stays open holds its id and its snapshot, as one of ten minutes would, but for --minutes.

The drain is compared with a C program that publishes as large messages to such a queue, with as many confirms open. Its parts, for --only:
idle, waiting, latency, application. With --quick a tenth of the rows wait and rates are kept for half the time: with --minutes 0.5 all of it
takes three minutes."""

import json
import os
import statistics
import subprocess
import threading
import time

import psycopg2

from rig.wait import wait_until

from .. import probe
from ..stage import Stage
from ..verdicts import Verdicts

WAITING, AT_ONCE = 1000000, 5000
OPEN, MORE_OPEN = 256, 1024  # confirms; the first is OUTBOX_OUT_MAX
PLAIN_SECONDS = 4
RATE, SECONDS, QUICK_SECONDS = 500, 20, 10
IDLE_SECONDS = 15.0
MIB = 1 << 20
SIZES = ("SELECT pg_total_relation_size('onceward.outbox_0') + pg_total_relation_size('onceward.outbox_1')"
         " + pg_total_relation_size('onceward.outbox_2'), pg_total_relation_size('onceward.outbox_position')")


class Relay(Stage):
    """A stage with a queue, and a sidecar that has an outbox only."""

    def __init__(self, bed):
        super().__init__(bed, "relay")
        self.target = self.queue("out")

    def begin(self):
        made = self.sidecar({}, name="relay")
        config = made.config
        config.pop("queues"), config.pop("defaults")
        config["outbox"] = {}
        return made.start()

    def begin_with_application(self, url):
        """The sidecar has a queue, too."""
        source = self.queue("in")
        made = self.sidecar([source], url, name="both", completion="transaction")
        made.config["outbox"] = {}
        made.start()
        return source

    def sizes(self):
        return "{:.1f} and {:.2f}".format(*(n / MIB for n in self.rows(SIZES)[0]))

    def backend_ms(self):
        """CPU of the sidecar's backends."""
        return sum(int(open(f"/proc/{pid}/schedstat").read().split()[0]) / 1e6 for pid in probe.Database(self.bed.admin).backends(self.database))


def cpu_ms(pid):
    return sum(int(open(f"/proc/{pid}/task/{t}/schedstat").read().split()[0]) / 1e6 for t in os.listdir(f"/proc/{pid}/task"))


def write(stage, n):
    """So many messages, numbered, in transactions of AT_ONCE."""
    connection = psycopg2.connect(stage.app_dsn())
    connection.autocommit = True
    with connection.cursor() as cursor:
        for first in range(1, n + 1, AT_ONCE):
            cursor.execute("SELECT count(onceward.publish('', %s, jsonb_build_object('n', i))) FROM generate_series(%s, %s) i",
                           (stage.target, first, min(n, first + AT_ONCE - 1)))
    connection.close()


def plain_rate(stage, n_open):
    """Messages a second of a publisher that does nothing else."""
    queue = stage.queue(f"plain{len(stage.queues)}")
    count, seconds = 5000, 0.0
    while seconds < PLAIN_SECONDS:
        start = time.monotonic()
        stage.load(queue, count, size=96, window=n_open)
        seconds = time.monotonic() - start
        rate = count / seconds
        count = max(2 * count, int(1.2 * rate * PLAIN_SECONDS))
        stage.channel.queue_purge(queue)
    return rate


def waiting(bed, v, n):
    with Relay(bed) as stage:
        plain = plain_rate(stage, OPEN)
        bed.rabbitmq.stop_politely()
        sidecar = stage.begin()
        peak, ending = [0], threading.Event()

        def look():
            while not ending.wait(0.05):
                peak[0] = max(peak[0], probe.rss_anon(sidecar.pid))

        looking = stage.beside(look)
        write(stage, n)
        time.sleep(2.0)
        v.tell(f"{n:,} rows wait, tables and positions, MiB", stage.sizes())
        v.most("memory of the sidecar while they wait, MiB", peak[0] / MIB, 10)
        bed.rabbitmq.start()
        stage.reconnect()
        wait_until(lambda: stage.n_ready(stage.target) > 0, "the first message", 60, 0.002)
        before, backend = cpu_ms(sidecar.pid), stage.backend_ms()
        start, there = time.monotonic(), stage.n_ready(stage.target)
        wait_until(lambda: stage.n_ready(stage.target) >= n, lambda: f"{stage.n_ready(stage.target):,} of {n:,} are there", 600, 0.05)
        seconds = time.monotonic() - start
        rate = (n - there) / seconds
        v.most("CPU of the sidecar a message, µs", 1000 * (cpu_ms(sidecar.pid) - before) / (n - there), 15, "{:.1f}")
        v.tell("CPU of its backend a message, µs", f"{1000 * (stage.backend_ms() - backend) / (n - there):.1f}")
        ending.set()
        looking.join()
        plain = (plain + plain_rate(stage, OPEN)) / 2
        v.least("drained, messages/s (20,000, or what is published plainly)", rate, min(20000, plain), "{:,.0f}")
        v.tell(f"plainly published with {OPEN} confirms open, messages/s", f"{plain:,.0f}: the drain has {rate / plain:.2f} of it")
        v.tell(f"and with {MORE_OPEN} open", f"{plain_rate(stage, MORE_OPEN):,.0f}")
        v.most("memory of the sidecar at peak, the drain included, MiB", peak[0] / MIB, 10)
        found = subprocess.run([os.path.join(bed.bin, "taker"), "--port", str(bed.rabbitmq.port), "--queue", stage.target, "--count", str(n)],
                               stdout=subprocess.PIPE, check=False)
        taken = json.loads(found.stdout)
        v.exactly("taken, out of order, the last", (taken["taken"], taken["out_of_order"], taken["last"]), (n, 0, n))
        wait_until(lambda: stage.rows(SIZES)[0][0] < MIB, "the tables are emptied", 30, 0.2)
        v.tell("tables and positions after it, MiB", stage.sizes())


class Arrivals:
    """When each message came, by its id."""

    def __init__(self, stage):
        self.came = {}
        self.broker = stage.rabbitmq.connect()
        channel = self.broker.channel()
        channel.basic_consume(stage.target, lambda _, __, p, ___: self.came.__setitem__(p.message_id, time.monotonic()), auto_ack=True)

    def listen(self, is_over, seconds):
        end = time.monotonic() + seconds
        while not is_over() and time.monotonic() < end:
            self.broker.process_data_events(0.02)

    def close(self):
        self.broker.close()

    def since(self, committed):
        """p50 and p99 in milliseconds, from when each was committed."""
        found = sorted(max(0.0, 1000 * (self.came[i] - at)) for i, at in committed.items())
        return found[len(found) // 2], found[len(found) * 99 // 100]


def steadily(stage, seconds):
    """p50 and p99, in milliseconds from the return of each COMMIT to its message, at RATE."""
    committed, arrivals = {}, Arrivals(stage)

    def publish():
        connection = psycopg2.connect(stage.app_dsn())
        begin = time.monotonic()
        with connection.cursor() as cursor:
            for i in range(RATE * seconds):
                time.sleep(max(0.0, begin + i / RATE - time.monotonic()))
                cursor.execute("SELECT onceward.publish('', %s, '{\"n\": 1}'::jsonb)", (stage.target,))
                found = cursor.fetchone()[0]
                connection.commit()
                committed[found] = time.monotonic()
        connection.close()

    thread = stage.beside(publish)
    arrivals.listen(lambda: not thread.is_alive() and len(arrivals.came) >= len(committed), seconds + 60)
    arrivals.close()
    assert len(arrivals.came) == len(committed) == RATE * seconds, f"{len(arrivals.came)} of {len(committed)} came, of {RATE * seconds}"
    return arrivals.since(committed)


def application(bed, v, steady):
    with Relay(bed) as stage:
        path = os.path.join(bed.folder, f"{stage.name}.commits")
        app = stage.app(commits=True, publish=stage.target, **{"commits-file": path})
        source, arrivals = stage.begin_with_application(app.url), Arrivals(stage)
        n_warm, n = RATE * 2, RATE * steady
        backend, start = stage.backend_ms(), time.monotonic()
        loading = stage.beside(lambda: stage.load(source, n_warm + n, rate=RATE, stamps=0))
        arrivals.listen(lambda: len(arrivals.came) >= n_warm + n, steady + 60)
        backend, seconds = stage.backend_ms() - backend, time.monotonic() - start
        loading.join()
        arrivals.close()
        app.stop()
        with open(path) as f:
            committed = {i: int(at) / 1e9 for i, at in (line.split() for line in f)}
        assert len(arrivals.came) == len(committed) == n_warm + n, f"{len(arrivals.came)} of {len(committed)} came, of {n_warm + n}"
        p50, p99 = arrivals.since(dict(list(committed.items())[n_warm:]))
        v.most(f"published by the sidecar's own application at {RATE}/s: p50, ms", p50, 10)
        v.most("p99, ms", p99, 60)
        v.tell("ms of the database's CPU a second, claims and completions included", f"{backend / seconds:.0f}")


def latency(bed, v, minutes, seconds):
    with Relay(bed) as stage:
        stage.begin()
        write(stage, 1)
        stage.wait_for_ready(stage.target, 1)
        stage.channel.queue_purge(stage.target)
        steadily(stage, 3)
        backend, start = stage.backend_ms(), time.monotonic()
        free = [steadily(stage, seconds)]
        cost = (stage.backend_ms() - backend) / (time.monotonic() - start)
        old = psycopg2.connect(stage.postgres.dsn(database=stage.database, application_name="bench"))
        old.set_session(isolation_level="REPEATABLE READ")
        old.cursor().execute("SELECT pg_current_xact_id()")
        since, held = time.monotonic(), []
        while not held or time.monotonic() - since < 60 * minutes:
            held.append(steadily(stage, seconds))
        v.tell("a transaction open for seconds; tables and positions, MiB", f"{time.monotonic() - since:.0f}; {stage.sizes()}")
        old.rollback()
        old.close()
        free.append(steadily(stage, seconds))
        p50, p99 = (statistics.median(each[k] for each in free) for k in (0, 1))
        v.most(f"from commit to queue at {RATE}/s: p50, ms", p50, 10)
        v.most("p99, ms", p99, 60)
        v.tell("ms of the CPU of the relay's backend a second", f"{cost:.0f}")
        v.tell("each: p50, p99, ms", "; ".join(f"{a:.1f}, {b:.1f}" for a, b in free))
        v.most("p99 of the last beside the open transaction, to that without", held[-1][1] / p99, 1.2)
        v.tell("each beside it: p50, p99, ms", "; ".join(f"{a:.1f}, {b:.1f}" for a, b in held))
        wait_until(lambda: stage.rows(SIZES)[0][0] < MIB, "the tables are emptied", 30, 0.2)
        v.tell("tables and positions after it, MiB", stage.sizes())


def idle(bed, v):
    with Relay(bed) as stage:
        sidecar = stage.begin()
        write(stage, 1)
        stage.wait_for_ready(stage.target, 1)
        time.sleep(5.0)
        mine, backend, start = cpu_ms(sidecar.pid), stage.backend_ms(), time.monotonic()
        time.sleep(IDLE_SECONDS)
        seconds = time.monotonic() - start
        v.most("idle: ms of the database's CPU a second", (stage.backend_ms() - backend) / seconds, 2)
        v.tell("idle: ms of the sidecar's", f"{(cpu_ms(sidecar.pid) - mine) / seconds:.2f}")


def prove(bed, o):
    v = Verdicts("relay: the outbox's other end")
    seconds = QUICK_SECONDS if o.quick else SECONDS
    parts = {"idle": lambda: idle(bed, v), "waiting": lambda: waiting(bed, v, WAITING // (10 if o.quick else 1)),
             "latency": lambda: latency(bed, v, o.minutes, seconds),
             "application": lambda: application(bed, v, seconds)}
    for name, part in parts.items():
        if o.only in name:
            part()
    return v
