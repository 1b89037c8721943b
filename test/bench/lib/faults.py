"""What comes of faults: kills, copies by the publisher, answers of 503, an application that is away. Counts, and seconds to the end.

Every POST and every answer is in the recorder's file, every effect in a table (or, where nothing is killed, the 2xx of the record is
the effect). Lost: an id without an effect when the queue is empty and nothing moves any more."""

import collections
import json
import statistics
import time

import psycopg2

from rig import process
from rig.wait import wait_until

from . import peers, probe
from .contenders import Case
from .recorder import Recorder

MESSAGES = 10000
AWAY_SECONDS = 20
RATE = 500
WARM_SECONDS = 2


class Run:
    """A contender with its own queue and recorder."""

    def __init__(self, bed, label, record_only=False, delivery_limit=None, **options):
        self.bed, self.label = bed, label
        self.who = peers.MADE[label](bed)
        self.case = Case(delivery_limit=delivery_limit, completion=self.who.completion)
        self.case.database = bed.new_database(self.who.template)
        self.queue = f"faults{bed.n_databases}"
        self.case.queues = [self.queue]
        self.broker = bed.rabbitmq.connect()
        self.channel = self.broker.channel()
        if delivery_limit:
            bed.rabbitmq.rabbitmqctl("set_policy", "limit", f"^{self.queue}$", json.dumps({"delivery-limit": delivery_limit}), "--apply-to", "queues")
        self.channel.queue_declare(self.queue, durable=True, arguments={"x-queue-type": "quorum"})
        mode = "record" if record_only and self.who.app_mode != "token" else self.who.app_mode
        self.effects_in_table = mode != "record"
        self.app = Recorder(bed, mode, bed.postgres.dsn(user="bench_app", database=self.case.database), **options)
        self.case.app_url, self.case.app_socket = self.app.url, None
        self.sql = psycopg2.connect(bed.postgres.dsn(database=self.case.database, application_name="bench"))
        self.sql.autocommit = True
        self.children = []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stop()
        self.app.stop()
        self.channel.queue_delete(self.queue)
        self.broker.close()
        self.sql.close()
        self.bed.drop_database(self.case.database)

    def load(self, count, **options):
        self.n_ids = self.bed.load(self.queue, count, **options)

    def look(self):
        return self.channel.queue_declare(self.queue, passive=True).method

    def start(self):
        self.children = self.who.start(self.case)

    def kill(self):
        for child in self.children:
            process.kill(child)

    def stop(self):
        for child in self.children:
            process.reap(child, ((15, 20.0),))
        self.children = []

    def pids(self):
        return [pid for child in self.children for pid in probe.children(child.pid)]

    def effects(self):
        if not self.effects_in_table:
            return collections.Counter(i for _, i, status in self.app.posts()[1] if status < 300)
        with self.sql.cursor() as cursor:
            cursor.execute("SELECT message_id, count(*) FROM public.effect GROUP BY 1")
            return collections.Counter(dict(cursor.fetchall()))

    def n_effects(self):
        if not self.effects_in_table:
            return len(self.effects())
        with self.sql.cursor() as cursor:
            cursor.execute("SELECT count(DISTINCT message_id) FROM public.effect")
            return cursor.fetchone()[0]

    def n_dead(self):
        """Messages that were put aside whole, for a person to look at."""
        if self.who.template != "t_onceward":
            return 0
        with self.sql.cursor() as cursor:
            cursor.execute("SELECT count(DISTINCT message_id) FROM onceward.dead_letter")
            return cursor.fetchone()[0]

    def wait_answers(self, n, patience=60):
        """Until so many were answered; patience without progress is an end, too: it is the contender's matter."""
        last, moved = -1, time.monotonic()
        while time.monotonic() - moved < patience:
            now = self.app.size() // LINES
            if now >= n:
                return
            if now != last:
                last, moved = now, time.monotonic()
            time.sleep(0.02)

    def settle(self, quiet, limit):
        """Until all have their effect and nothing moves for 3 s; or nothing moves for `quiet` seconds."""
        size, moved, end = self.app.size(), time.monotonic(), time.monotonic() + limit
        while time.monotonic() < end:
            time.sleep(0.5)
            now = self.app.size()
            if now != size:
                size, moved = now, time.monotonic()
            still = time.monotonic() - moved
            if still > quiet or (still > 3 and self.look().message_count == 0 and self.n_effects() + self.n_dead() >= self.n_ids):
                return

    def verdict(self):
        self.stop()
        posts, answers = self.app.posts()
        effects, each = self.effects(), collections.Counter(i for _, i in posts)
        left = self.look().message_count
        first = {}
        for at, i, status in answers:
            if status < 300:
                first.setdefault(i, at)
        times = sorted(first.values())
        reached = lambda share: (times[min(len(times) - 1, int(self.n_ids * share))] - posts[0][0]) / 1e9 if times else None
        return {"lost": self.n_ids - len(effects) - left - self.n_dead(), "left": left, "dead": self.n_dead(), "posted_twice": sum(n > 1 for n in each.values()),
                "twice": sum(n > 1 for n in effects.values()), "to_95_s": reached(0.95), "to_99_s": reached(0.99), "to_100_s": reached(1),
                "rate": len(times) / reached(1) if times else None, "faults": []}


LINES = len("P 1795383737893868213 \n" "S 1795383737893868213  204\n") + 2 * 36  # the bytes of a message in the record


def kills(bed, label):
    """Five kill -9 of the sidecar and one of the application, in the midst of a backlog."""
    with Run(bed, label) as run:
        run.load(MESSAGES)
        run.app.start()
        run.start()
        for k in range(1, 7):
            run.wait_answers(MESSAGES * k // 8)
            if k == 4:
                run.app.kill()
                time.sleep(0.3)
                run.app.start()
            else:
                run.kill()
                run.start()
        run.settle(45, 200)
        return run.verdict()


def copies(bed, label):
    """Every tenth message is published twice."""
    with Run(bed, label) as run:
        run.load(MESSAGES, **{"twice-every": 10})
        run.app.start()
        run.start()
        run.settle(15, 100)
        return run.verdict()


def refused(bed, label, permille=20, status=503):
    """Some answers are 503; the rate beside that of a run without."""
    rates = []
    for fail in (0, permille):
        with Run(bed, label, record_only=True, fail=fail, **{"fail-status": status}) as run:
            run.load(MESSAGES)
            run.app.start()
            run.start()
            run.settle(30, 150)
            found = run.verdict()
            rates.append(found["rate"] or 0)
    return dict(found, of_undisturbed=rates[1] / rates[0] if rates[0] else None, undisturbed=rates[0])


def away(bed, label, delivery_limit=None):
    """The application refuses connections for a while."""
    with Run(bed, label, record_only=True, delivery_limit=delivery_limit, **{"delay-ms": 2}) as run:
        run.load(MESSAGES)
        run.app.start()
        run.start()
        run.wait_answers(MESSAGES // 5)
        cpu = probe.Cpu({"sidecar": run.pids, "broker": lambda: probe.children(bed.rabbitmq.child.pid)})
        run.app.stop()
        time.sleep(AWAY_SECONDS)
        used = cpu.seconds()
        before = len(run.app.posts()[0])
        back = time.time_ns()
        run.app.start()
        run.settle(40, 150)
        posts, answers = run.app.posts()
        done = [at for at, _, status in answers if status < 300]
        first = posts[before][0] if len(posts) > before else None
        return dict(run.verdict(), back_s=(first - back) / 1e9 if first else None, end_s=(max(done) - back) / 1e9 if first else None,
                    away_cpu_s=used["sidecar"], away_broker_s=used["broker"])


def latency(bed, label, seconds=12):
    """From publish to POST at a steady rate."""
    with Run(bed, label, record_only=True, stamps=True) as run:
        run.app.start()
        run.start()
        wait_until(lambda: run.look().consumer_count > 0, f"{label} consumes", 40)
        time.sleep(1)
        cpu = probe.Cpu({"sidecar": run.pids})
        run.load(RATE * seconds, rate=RATE)
        wait_until(lambda: run.app.n_done() >= run.n_ids, "all are answered", 30)
        used = cpu.seconds()["sidecar"]
        run.stop()
        run.app.stop()
        values = sorted(run.app.stamps()[RATE * WARM_SECONDS:])
        at = lambda share: values[min(len(values) - 1, int(len(values) * share))] / 1000
        return {"p50_ms": at(0.5), "p99_ms": at(0.99), "cpu_us": {"consumer": used / run.n_ids * 1e6}, "faults": []}


def idle(bed, label, seconds=6, starts=3):
    """Memory and CPU of one that waits; and from the start to the first POST."""
    with Run(bed, label, record_only=True) as run:
        run.app.start()
        run.start()
        wait_until(lambda: run.look().consumer_count > 0, f"{label} consumes", 40)
        time.sleep(seconds)
        cpu = probe.Cpu({"sidecar": run.pids})
        memory = [(probe.rss_anon(pid), probe.rss_file(pid)) for pid in run.pids()]
        time.sleep(seconds)
        used = cpu.seconds()["sidecar"]
        run.stop()
        firsts = []
        for _ in range(starts):
            run.load(50)
            before, start = len(run.app.posts()[0]), time.time_ns()
            run.start()
            posts = wait_until(lambda: run.app.posts()[0][before:], "a POST", 40)
            firsts.append((posts[0][0] - start) / 1e6)
            wait_until(lambda: len(run.app.posts()[1]) >= before + 50, "all are answered", 40)
            run.stop()
        return {"rss_idle": sum(a for a, _ in memory), "rss_file": sum(f for _, f in memory), "idle_cpu_ms_s": used / seconds * 1000,
                "start_ms": statistics.median(firsts), "faults": []}
