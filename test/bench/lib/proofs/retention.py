"""many ids: bytes, server CPU and claims a second with whole rows and with the compact history, moves, and claims beside moves

Two databases grow up to --rows ids (default: 1,000,000; with --quick 200,000): one with a row for each id, and one where 14 of 15 ids are
entries of the history. A third one stays empty. At each size of LEVELS all three are measured in turn. CPU is that of the server's process, as
the scheduler counts it; claims a second are those of one connection, without the time in which other programs had the CPUs.

With --memory N the server runs in a cgroup of N GiB, the pages that the kernel keeps for it included, and has a quarter of that as shared
buffers. At the end whole rows and the compact history are then measured each for minutes, since the pages of one drive out those of the other.
CPU beside whole rows and beside moves, and drains, are measured without the bound. Without --memory the shared buffers are a quarter of the
machine's memory, and hold everything that claims read.

--entries A,B measures only these of: levels, cpu, hashes, wal, moves, vacuum, drains. Without levels it does not stop at each of them, and
has whole rows only for cpu, up to MANY."""

import json
import math
import os
import statistics
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import psycopg2

from .. import plot
from ..claimer import Claimer
from ..drain import drain
from ..memory import Group
from ..verdicts import Verdicts

LEVELS = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000)
ROUNDS, SECONDS, WARM_S, BATCH, SLICE = 5, 3.0, 5.0, 64, 16
AT_ONCE = 16  # calls between two awakenings of the client
LONG_WARM_S, LONG_S = 45.0, 30.0  # of each block in bounded memory
MOVES, MOVING_SECONDS, PARTS = 16000, 4.0, 5
DRAINED, DRAINS = 200_000, 5  # long: the first access of a backend to a page costs several times as much as each later one
COMPACTS = {"compact_after": "1d", "retention": "30d"}  # of the drained queue: its sidecar sends the hashes of the ids
WAL_CALLS = (4, 16, 64)  # of AT_ONCE calls, each of BATCH claims
ROWS_OF = 15  # of so many ids one is a row
MANY = 10_000_000  # whole rows that the claims beside the compact history are compared with
QUARTER_MIB = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (4 << 20)
ALONE = {"autovacuum": "off", "max_wal_size": "16GB", "shared_buffers": f"{QUARTER_MIB}MB"}  # a vacuum of one database would be measured with the others

# In the order of the index, or filling takes several times as long: of the key; of the hash index, in which the ids of a group are in few
# buckets.
ROWS = """
INSERT INTO onceward.inbox (consumer, message_id, status, attempt, http_status, token, fingerprint, received_at, token_expires_at,
                            max_expires_at, completed_at, claimed_by)
SELECT 'c', id::text, 'completed', 1, 204, id, uuid_send(id), at, at + interval '30 s', at + interval '20 min', at + interval '1 s', 'bench'
FROM (SELECT md5('id' || n)::uuid AS id, clock_timestamp() - interval '2 hours' AS at FROM generate_series(%s, %s) n ORDER BY 1) x
"""
ENTRIES = """
INSERT INTO onceward.history (hash, print, consumer, day)
SELECT hash, n, 1, 9000
FROM (SELECT onceward.history_hash('c', md5('id' || n)::uuid::text) AS hash, n FROM generate_series(%s, %s) n OFFSET 0) x
ORDER BY uuid_hash(hash) & 16383
"""


class Client:
    """A connection, one that claims, and the CPU of the processes that serve them. hashes: see Claimer."""

    def __init__(self, bed, database, hashes=False):
        dsn = bed.postgres.dsn(database=database, application_name="bench")
        self.connection = psycopg2.connect(dsn)
        self.connection.autocommit = True
        self.cursor = self.connection.cursor()
        self.pid = self.connection.info.backend_pid
        self.claimer = Claimer(dsn, hashes)
        self.claimed = []

    def query(self, sql, *parameters):
        self.cursor.execute(sql, parameters or None)
        return self.cursor.fetchall() if self.cursor.description else None

    def value(self, sql, *parameters):
        return self.query(sql, *parameters)[0][0]

    def cpu_us(self):
        return self.scheduled()[0] / 1000

    def scheduled(self, pid=None):
        """ns on a CPU, and ns in which it waited for one, since other programs had them."""
        with open(f"/proc/{pid or self.pid}/schedstat") as f:
            return [int(n) for n in f.read().split()[:2]]

    def claims(self, seconds=SECONDS, end=None):
        """µs of CPU a claim of new ids, and claims a second of the server's time. Time without a CPU does not count."""
        start, before, busy, n = time.monotonic(), self.scheduled(self.claimer.pid), 0.0, 0
        while time.monotonic() - start < seconds if end is None else not end.is_set():
            busy += self.claims_at_once()
            n += BATCH * AT_ONCE
        cpu, waited = (now - then for now, then in zip(self.scheduled(self.claimer.pid), before))
        return cpu / 1000 / n, n / (busy - waited / 1e9)

    def claims_at_once(self):
        """The seconds that the calls took."""
        calls = []
        for _ in range(AT_ONCE):
            ids = sorted(str(uuid.uuid4()) for _ in range(BATCH))
            calls.append(self.claimer.parameters(ids))
            self.claimed += ids
        asked = time.monotonic()
        self.claimer.send(calls)
        return time.monotonic() - asked

    def wal_bytes(self, n_calls):
        """Bytes of WAL a claim, of so many claims behind a checkpoint."""
        self.query("CHECKPOINT")
        lsn = self.value("SELECT pg_current_wal_insert_lsn()")
        for _ in range(n_calls):
            self.claims_at_once()
        return float(self.value("SELECT pg_current_wal_insert_lsn() - %s::pg_lsn", lsn)) / (n_calls * BATCH * AT_ONCE)

    def warm(self, mode="read"):
        self.query("CREATE EXTENSION IF NOT EXISTS pg_prewarm")
        self.query("SELECT pg_prewarm('onceward.inbox_pkey', %s), pg_prewarm('onceward.history_hash', %s)", mode, mode)

    def forget_claims(self):
        for first in range(0, len(self.claimed), 1000):
            self.query("DELETE FROM onceward.inbox WHERE consumer = 'c' AND message_id = ANY (%s)", self.claimed[first:first + 1000])
        self.claimed = []
        self.query("VACUUM onceward.inbox")

    def close(self):
        self.claimer.close()
        self.connection.close()


def grow(client, compact, first, last):
    """To ids [1, last], of which those before first are there."""
    client.query("SET work_mem = '256MB'; SET synchronous_commit = off")
    if compact:
        n = (last - first + 1) // ROWS_OF
        client.query(ROWS, first, first + n - 1)
        client.query(ENTRIES, first + n, last)
        # Without it claims look for no entry.
        client.query("INSERT INTO onceward.history_begun SELECT WHERE NOT EXISTS (SELECT FROM onceward.history_begun)")
    else:
        client.query(ROWS, first, last)
    client.query("RESET synchronous_commit; ANALYZE onceward.inbox, onceward.history")


def in_turn(clients, seconds=SECONDS):
    """label: medians of CPU and rate over the rounds. What was claimed is removed again. A fill leaves the indexes on the disk."""
    results = {label: [] for label in clients}
    for client in clients.values():
        client.warm()
        client.claims(WARM_S)
    for number in range(ROUNDS):
        for label in list(clients) if number % 2 == 0 else list(clients)[::-1]:
            results[label].append(clients[label].claims(seconds))
    for client in clients.values():
        client.forget_claims()
    return {label: tuple(statistics.median(each) for each in zip(*r)) for label, r in results.items()}


def in_blocks(clients):
    """label: CPU and rate, each after it had the memory for itself for a while."""
    results = {label: [] for label in clients}
    for label in [*clients, *list(clients)[::-1]]:
        clients[label].warm()
        clients[label].claims(LONG_WARM_S)
        results[label].append(clients[label].claims(LONG_S))
    return {label: tuple(statistics.mean(each) for each in zip(*r)) for label, r in results.items()}


def bytes_per_id(client, table, n):
    return client.value("SELECT pg_total_relation_size(%s::regclass)", table) / n


def old_rows(client, first, n):
    """Places of new rows that are old enough to be moved, in slices."""
    tids = [row[0] for row in client.query(ROWS + " RETURNING ctid::text", first, first + n - 1)]
    return [tids[i:i + SLICE] for i in range(0, len(tids), SLICE)]


def measure_wal(g, v):
    """Beside the whole pages that the formula of deploy/guides/millions.md expects, a claim writes what it writes long after a checkpoint."""
    for label in ("rows", "compact"):
        client = g.clients[label]
        pages = client.value("SELECT pg_relation_size('onceward.inbox_pkey') / 8192")
        for n_calls in WAL_CALLS:
            n = n_calls * BATCH * AT_ONCE
            found = {}
            for compression in ("off", "lz4"):
                client.claimer.set("wal_compression", compression)
                found[compression] = client.wal_bytes(n_calls)
            client.claimer.set("wal_compression", "DEFAULT")
            whole = 8192 * pages / n * (1 - math.exp(-n / pages))
            v.tell(f"{label}: bytes of WAL a claim, {n:,} after a checkpoint",
                   f"{found['off']:,.0f}, with lz4 {found['lz4']:,.0f}; whole pages of the key by the formula {whole:,.0f}")
        client.forget_claims()


def measure_vacuum(g, v):
    """Of a day's entries of thirty, which expire."""
    client = g.clients["compact"]
    n = client.value("WITH gone AS (DELETE FROM onceward.history WHERE print % 30 = 0 RETURNING 1) SELECT count(*) FROM gone")
    before, start = client.scheduled()[0], time.monotonic()
    client.query("VACUUM onceward.history")
    v.tell(f"a vacuum of the history after {n:,} entries expired: s of CPU, s",
           f"{(client.scheduled()[0] - before) / 1e9:.1f}, {time.monotonic() - start:.1f}")


ASYNCHRONOUS = "SET synchronous_commit = off"  # as housekeeping commits
MOVE = "SELECT onceward.history_move('c', 1::smallint, %s::tid[], clock_timestamp())"


def moves(v, client, first):
    client.query(ASYNCHRONOUS)
    slices = old_rows(client, first, MOVES)
    for tids in slices[:50]:
        client.query(MOVE, tids)
    client.query("CHECKPOINT")
    lsn, used, n = client.value("SELECT pg_current_wal_insert_lsn()"), client.cpu_us(), 0
    for tids in slices[50:]:
        n += client.value(MOVE, tids)
    used = (client.cpu_us() - used) / n
    client.query("RESET synchronous_commit")
    wal = client.value("SELECT pg_current_wal_insert_lsn() - %s::pg_lsn", lsn) / n
    v.tell("a move: µs of CPU, bytes of WAL just after a checkpoint", f"{used:.1f}, {wal:,.0f}")


def beside(bed, database, client, first, rate):
    """µs of CPU a claim beside so many moves a second, of that without, in turn; and the moves a second."""
    mover, ratios, moved = Client(bed, database), [], []
    mover.query(ASYNCHRONOUS)
    slices = old_rows(mover, first, max(SLICE * PARTS, int(rate * MOVING_SECONDS * PARTS)))
    without = [client.claims()[0]]
    for part in (slices[i::PARTS] for i in range(PARTS)):
        end, start = threading.Event(), time.monotonic()

        def move():
            for i, tids in enumerate(part):
                time.sleep(max(0, start + i * SLICE / rate - time.monotonic()))
                mover.query(MOVE, tids)
            moved.append(len(part) * SLICE / (time.monotonic() - start))
            end.set()

        thread = threading.Thread(target=move)
        thread.start()
        cpu = client.claims(end=end)[0]
        thread.join()
        without.append(client.claims()[0])
        ratios.append(2 * cpu / sum(without[-2:]))
    mover.close()
    client.forget_claims()
    return statistics.median(ratios), statistics.median(moved)


class Server:
    """The bed's PostgreSQL, started again with other settings, inside a group of processes whose memory is bounded if there is a bound."""

    def __init__(self, bed, gib):
        self.bed, self.group = bed, Group(f"onceward-bench-{os.getpid()}", gib << 30) if gib else None
        settings = dict(ALONE, shared_buffers=f"{gib << 8}MB") if gib else ALONE
        bed.admin.close()
        bed.postgres.stop()
        with open(os.path.join(bed.postgres.data, "postgresql.conf"), "a") as f:
            f.writelines(f"{name} = {value}\n" for name, value in settings.items())
        if self.group:
            bed.postgres.inside = self.group.enter
        bed.postgres.start()
        bed.admin = psycopg2.connect(bed.postgres.dsn(application_name="bench"))
        bed.admin.autocommit = True

    def full_pages(self, on):
        """Without them a fill writes half as much."""
        self.bed.postgres.query(f"ALTER SYSTEM SET full_page_writes = {on}")
        self.bed.postgres.query("SELECT pg_reload_conf()")
        self.bed.checkpoint()

    def unbound(self):
        if self.group:
            self.group.limit(-1)

    def stop(self):
        if self.group:
            self.bed.postgres.stop()
            self.group.remove()


class Growth:
    """The databases, and what was measured of them at each level."""

    def __init__(self, bed, server, v):
        self.bed, self.server, self.v, self.done = bed, server, v, 0
        self.names = {label: bed.new_database("t_onceward") for label in ("empty", "rows", "compact")}
        self.clients = {label: Client(bed, name, label == "compact") for label, name in self.names.items()}
        self.levels, self.measured, self.sizes = [], [], []

    def grow(self, upto, labels=("rows", "compact")):
        self.bed.say(f"up to {upto:,} ids")
        self.server.full_pages(False)
        with ThreadPoolExecutor(2) as both:
            for done in [both.submit(grow, self.clients[label], label == "compact", self.done + 1, upto) for label in labels]:
                done.result()
        self.server.full_pages(True)
        self.done = upto

    def copy_rows(self):
        """Another database with the rows that there are now."""
        self.clients["rows"].close()
        self.names["many rows"] = name = "bench_many"
        with self.bed.admin.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name} TEMPLATE {self.names['rows']} STRATEGY file_copy")
        for label in ("rows", "many rows"):
            self.clients[label] = Client(self.bed, self.names[label])

    def bytes_now(self):
        return {label: sum(bytes_per_id(self.clients[label], f"onceward.{table}", 1) for table in ("inbox", "history"))
                for label in ("rows", "compact")}

    def note(self, sizes, measured):
        self.v.tell(f"{self.done:,} ids: µs of CPU a claim, claims/s",
                    "; ".join(f"{label} {cpu:.1f}, {rate:,.0f}" for label, (cpu, rate) in measured.items()))
        self.v.tell("    GB", "; ".join(f"{label} {n / 1e9:.2f}" for label, n in sizes.items()))
        self.levels.append(self.done)
        self.measured.append(measured)
        self.sizes.append(sizes)

    def close(self):
        for client in self.clients.values():
            client.close()


def measure_level(g, last, bounded):
    clients, sizes = {label: client for label, client in g.clients.items() if label != "many rows"}, g.bytes_now()
    if last and bounded:
        rows, compact = clients.pop("rows"), clients.pop("compact")
        g.note(sizes, {**in_turn(clients), **in_blocks({"rows": rows, "compact": compact})})
        rates = {label: rate for label, (_, rate) in g.measured[-1].items()}
        g.v.least(f"claims/s in {bounded} GiB, of those with whole rows", rates["compact"] / rates["rows"], 1.3)
    else:
        g.note(sizes, in_turn(clients))


def measure_cpu(g, v):
    """Of claims that find everything in memory."""
    g.server.unbound()
    if "many rows" not in g.clients:
        return
    cpu = {label: m[0] for label, m in in_blocks({label: g.clients[label] for label in ("many rows", "compact")}).items()}
    v.most(f"µs of CPU a claim, of that with {MANY:,} whole rows", cpu["compact"] / cpu["many rows"], 1.1)


def measure_hashes(g, v):
    """What a claim costs by an older program."""
    clients = {"sent": g.clients["compact"], "computed by the database": Client(g.bed, g.names["compact"])}
    v.tell("µs of CPU a claim with hashes", ", ".join(f"{label} {cpu:.1f}" for label, (cpu, _) in in_turn(clients).items()))
    clients["computed by the database"].close()


def measure_moves(g, v):
    n_entries = g.clients["compact"].value("SELECT count(*) FROM onceward.history")
    v.most("bytes an entry, with its index", bytes_per_id(g.clients["compact"], "onceward.history", n_entries), 95, "{:.0f}")
    if g.sizes:
        v.tell("bytes of the two tables, an id", ", ".join(f"{label} {n / g.done:.0f}" for label, n in g.sizes[-1].items()))
    moves(v, g.clients["compact"], g.done + 1)
    for number, (per_second, limit) in enumerate(((1000, 1.05), (5000, 1.25))):
        ratio, real = beside(g.bed, g.names["compact"], g.clients["compact"], g.done + 1 + 10 ** 8 * (number + 1), per_second)
        v.most(f"µs of CPU a claim beside {real:,.0f} moves a second ({per_second:,} wanted)", ratio, limit)


def measure_drains(g, v):
    """As in a server that has run for a while, whose buffers have the pages that claims read. Each drain has a backend of its own, which maps
    each of these pages at its first access; with huge pages (vm.nr_hugepages) that costs nothing."""
    labels, ratios = ["empty", "compact"] + ["rows"] * (g.done >= MANY and g.sizes != []), {}

    def rate(label):
        if label == "empty":
            g.clients[label].query("TRUNCATE onceward.inbox")
        found = drain(g.bed, "onceward", DRAINED, database=g.names[label], queue_options=COMPACTS)
        g.bed.say(f"drained beside {label}: {found['rate']:,.0f}/s, {found['cpu_us']['backends']:.1f} µs of the database's CPU a message")
        return found["rate"]

    for label in labels:
        g.clients[label].warm("buffer")
        rate(label)
    for number in range(DRAINS):
        rates = {label: rate(label) for label in (labels if number % 2 == 0 else labels[::-1])}
        for label in labels:
            ratios.setdefault(label, []).append(rates[label] / rates["empty"])
    v.least("throughput, of that with an empty inbox", statistics.median(ratios["compact"]), 0.85)
    v.tell("    of each round", ", ".join(f"{ratio:.2f}" for ratio in ratios["compact"]))
    if "rows" in ratios:
        v.tell("    and with whole rows", f"{statistics.median(ratios['rows']):.2f}")


def draw(figures):
    """The plot of what write() has written."""
    levels, measured, sizes = figures["levels"], figures["measured"], figures["bytes"]
    most = sizes[-1]["rows"]
    series = {f"rate, {label}": [m[label][1] / m["empty"][1] for m in measured] for label in ("rows", "compact")}
    series.update({f"bytes, {label}": [n[label] / most for n in sizes] for label in ("rows", "compact")})
    return plot.lines(f"Rate of claims, of that with an empty inbox; bytes, of {most / 1e9:.3g} GB", "million ids", [n / 1e6 for n in levels], series)


def write(g, folder):
    os.makedirs(folder, exist_ok=True)
    figures = {"levels": g.levels, "measured": g.measured, "bytes": g.sizes}
    with open(os.path.join(folder, "retention.json"), "w") as f:
        json.dump(figures, f, indent=1)
    path = os.path.join(folder, "retention.svg")
    with open(path, "w") as f:
        f.write(draw(figures))
    g.bed.say(f"wrote {path}")
    g.v.document.update(figures)


def measure_levels(g, total, o):
    for upto in [n for n in LEVELS if n < total] + [total]:
        g.grow(upto)
        measure_level(g, upto == total, o.memory)
        if upto == MANY < total:
            g.copy_rows()
    if len(g.levels) > 1:
        write(g, o.out)


def grow_at_once(g, total, entries):
    if "cpu" in entries and MANY < total:
        g.grow(MANY)
        g.copy_rows()
    g.grow(total, ("compact",))


ENTRIES_OF = {"cpu": measure_cpu, "hashes": measure_hashes, "wal": measure_wal, "moves": measure_moves, "vacuum": measure_vacuum,
              "drains": measure_drains}


def prove(bed, o):
    v = Verdicts("retention: many ids, as rows and compact")
    total = o.ids or (200_000 if o.quick else 1_000_000)
    entries = o.entries.split(",") if o.entries else ["levels", *ENTRIES_OF]
    unknown = set(entries) - {"levels", *ENTRIES_OF}
    if unknown:
        raise SystemExit(f"retention has no such entry: {', '.join(sorted(unknown))}")
    server = Server(bed, o.memory)
    g = Growth(bed, server, v)
    try:
        if "levels" in entries:
            measure_levels(g, total, o)
        else:
            grow_at_once(g, total, entries)
        for name, measure in ENTRIES_OF.items():
            if name in entries:
                measure(g, v)
    finally:
        g.close()
        server.stop()
    return v
