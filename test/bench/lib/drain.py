"""One drain: a backlog is loaded, a contender is started on it, and the time to empty it and what it cost are taken.

The clock starts when the first message leaves the queue and stops when none is left there and the application has had all of
them: so neither the start of the program nor the poll interval counts. What remains then is at most one prefetch of acks."""

import os
import signal
import time

import psycopg2

from rig import process
from rig.wait import wait_until

from . import probe
from .contenders import ALL, Case

POLL_SECONDS = 0.02
START_POLL_SECONDS = 0.002


class Stalled(Exception):
    pass


class Drain:
    def __init__(self, bed, contender, case, count, database=None):
        self.bed, self.contender, self.case = bed, contender, case
        self.count = max(200, int(count * contender.share))
        self.keeps_database = database is not None
        self.database = database
        self.peak = self.idle = 0
        self.children = []
        self.app = None
        self.faults = []

    # the parts

    def _prepare(self):
        case, bed = self.case, self.bed
        case.database = self.database or bed.new_database(self.contender.template or "t_textbook")
        self.broker = bed.rabbitmq.connect()
        self.channel = self.broker.channel()
        case.queues = [f"q{i + 1}" for i in range(case.n_queues)]
        for queue in case.queues:
            self.channel.queue_delete(queue)
            self.channel.queue_declare(queue, durable=True, arguments={"x-queue-type": case.queue_type})
        each = self.count // case.n_queues
        self.count = each * case.n_queues
        self.n_ids = sum(bed.load(queue, each, case.size, case.duplicates, fill=case.fill) for queue in case.queues)
        wait_until(lambda: self._ready() == self.count, lambda: f"{self.count} messages ready, {self._ready()} are", 60)
        if not self.keeps_database:  # a full one lives long after its last checkpoint, or each page that it meets would be logged whole
            bed.checkpoint()
        self.sql = psycopg2.connect(bed.postgres.dsn(database=case.database, application_name="bench"))
        self.sql.autocommit = True

    def _ready(self):
        return sum(self.channel.queue_declare(q, passive=True).method.message_count for q in self.case.queues)

    def _application(self):
        """nginx, unless the case brings its own: anything with n_done(), pids(), url, socket, stop()."""
        case = self.case
        if case.application:
            self.app = case.application(self)
            case.app_url, case.app_socket = self.app.url, self.app.socket
            self.done = self.app.n_done
            self.app_pids = self.app.pids
        else:
            case.app_url, case.app_socket = self.bed.app_url, self.bed.app_socket
            first, looks = self.bed.n_posted(), [0]

            def done():
                looks[0] += 1
                return self.bed.n_posted() - first - looks[0]

            self.done = done
            self.app_pids = lambda: probe.children(self.bed.nginx.pid)

    def _pids(self):
        return [pid for child in self.children for pid in probe.children(child.pid)]

    def _alive(self):
        for child in self.children:
            if child.poll() is not None:
                raise Stalled(f"{self.contender.name} ended with {child.returncode}:\n"
                              + process.tail(os.path.join(self.bed.folder, self.contender.name + ".log"), 15))

    def _memory(self):
        self.peak = max(self.peak, sum(probe.rss_anon(pid) for pid in self._pids()))

    # all of it

    def run(self):
        try:
            self._prepare()
            self._application()
            return self._measure()
        finally:
            for child in self.children:
                process.reap(child, ((signal.SIGTERM, 15.0),))
            if self.app:
                self.app.stop()
            if hasattr(self, "sql"):
                self.sql.close()
            if hasattr(self, "channel"):
                try:
                    for queue in self.case.queues:
                        self.channel.queue_delete(queue)
                    self.broker.close()
                except Exception:  # noqa: BLE001 - the connection may have gone with the broker
                    pass
            if not self.keeps_database and getattr(self.case, "database", None):
                self.bed.drop_database(self.case.database)

    def _measure(self):
        bed = self.bed
        figures = probe.Database(bed.admin)
        commits = figures.commits(self.case.database)
        self.children = self.contender.start(self.case)
        patience = time.monotonic() + 30
        while self._ready() == self.count:
            if time.monotonic() > patience:
                raise Stalled(f"{self.contender.name} takes nothing")
            self._alive()
            time.sleep(START_POLL_SECONDS)
        start = time.monotonic()
        cpu = probe.Cpu({
            "consumer": self._pids, "backends": lambda: figures.backends(self.case.database),
            "database": lambda: probe.children(bed.postgres.child.pid), "broker": lambda: probe.children(bed.rabbitmq.child.pid),
            "application": self.app_pids})
        self._wait_for_end(cpu)
        seconds = time.monotonic() - start
        used = cpu.seconds()
        self._memory()
        wal, images = figures.wal()
        tcp = {}
        for child in self.children:
            for port, values in probe.tcp(child.pid).items():
                tcp[port] = values
        self._stop_politely()
        return self._result(seconds, used, wal, images, commits, tcp, figures)

    def _wait_for_end(self, cpu):
        last, moved, looks = None, time.monotonic(), 0
        while True:
            ready = self._ready()
            self._memory()
            n_done = self.done() if ready == 0 and self.posts() else None
            if ready == 0 and (n_done is None or n_done >= self.n_ids):
                return
            now = time.monotonic()
            if (ready, n_done) != last:
                last, moved = (ready, n_done), now
            elif now - moved > 30:
                raise Stalled(f"{self.contender.name}: nothing moved for 30 s, {ready} ready, {n_done} of {self.n_ids} done")
            looks += 1
            if looks % 50 == 0:
                self._alive()
                cpu.look()
            time.sleep(POLL_SECONDS)

    def posts(self):
        return getattr(self.contender, "forwards", True)

    def _stop_politely(self):
        """Ends the contender as a rollout does it, and looks whether it left anything in the queue."""
        if self.contender.n_completed(self.sql.cursor()) is not None and self.case.completion == "response" \
                and not self.keeps_database:
            wait_until(lambda: self.contender.n_completed(self.sql.cursor()) >= self.n_ids, "all rows completed", 20, 0.1)
        for child in self.children:
            process.reap(child, ((signal.SIGTERM, 20.0),))
            if child.returncode:
                self.faults.append(f"{self.contender.name} ended with {child.returncode}")
        if self.app:
            self.app.stop()
        # A backend adds what it did to the statistics at its end.
        wait_until(lambda: not probe.Database(self.bed.admin).backends(self.case.database), "all backends ended", 15, 0.05)
        left = self._ready()
        if left > (self.case.prefetch if self.case.duplicates else 0):  # copies that wait for the first one are returned
            self.faults.append(f"{left} messages left")

    def _result(self, seconds, used, wal, images, commits, tcp, figures):
        n = self.count
        sql = self.sql.cursor()
        hot = None
        table = {"t_onceward": "onceward.inbox", "t_textbook": "inbox"}.get(self.contender.template)
        if table:
            sql.execute("SELECT pg_stat_force_next_flush()")
            sql.execute("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = %s::regclass", (table,))
            updates, hots = sql.fetchone()
            hot = hots / updates if updates else None
        broker = tcp.get(self.case.broker_port or self.bed.rabbitmq.port, {})
        database = tcp.get(self.bed.postgres.port, {})
        busy = sum(used[name] for name in ("consumer", "database", "broker", "application")) / seconds / os.cpu_count()
        return {
            "messages": n, "busy": busy, "ids": self.n_ids, "seconds": seconds, "rate": n / seconds,
            "cpu_us": {name: s / n * 1e6 for name, s in used.items()},
            "rss_peak": self.peak,
            "wal": wal / n, "wal_images": images / n,
            "commits": (figures.commits(self.case.database) - commits) / n, "hot": hot,
            "broker_bytes_out": broker.get("bytes_sent", 0) / n, "broker_segments_out": broker.get("segs_out", 0) / n,
            "broker_segments_in": broker.get("segs_in", 0) / n,
            "database_round_trips": database.get("data_segs_out", 0) / n,
            "faults": self.faults,
        }


def drain(bed, contender, count, database=None, **fields):
    return Drain(bed, ALL[contender](bed), Case(**fields), count, database).run()
