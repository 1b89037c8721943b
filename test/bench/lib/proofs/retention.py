"""many ids: bytes and server CPU of claims with whole rows and with the compact history, moves, and claims beside moves

Two databases grow in steps up to --rows ids (default: 1,000,000; with --quick 200,000): one with a row for each id, and one where 14 of 15 ids are
entries of the history. A third one stays empty. After each step all three are measured in turn. CPU is that of the server's process, as the
scheduler counts it. Not measured here: a database whose memory is bounded."""

import os
import statistics
import threading
import time
import uuid

import psycopg2

from .. import plot
from ..drain import drain
from ..verdicts import Verdicts

STEPS, ROUNDS, CALLS, BATCH, WARM, SLICE = 4, 5, 120, 64, 20, 16
MOVES, MOVING_SECONDS, DRAINED = 16000, 4.0, 30000
ROWS_OF = 15  # of so many ids one is a row
MANY = 10_000_000  # from here on the rows' index is large enough for the comparison of claims to be a verdict

ROWS = """
INSERT INTO onceward.inbox (consumer, message_id, status, attempt, http_status, token, fingerprint, received_at, token_expires_at,
                            max_expires_at, completed_at, claimed_by)
SELECT 'c', md5('id' || n)::uuid::text, 'completed', 1, 204, md5('t' || n)::uuid, decode(md5('f' || n), 'hex'),
       at, at + interval '30 s', at + interval '20 min', at + interval '1 s', 'bench'
FROM (SELECT n, clock_timestamp() - interval '2 hours' AS at FROM generate_series(%s, %s) n ORDER BY md5('id' || n) COLLATE "C") x
"""
ENTRIES = """
INSERT INTO onceward.history (hash, print, consumer, day)
SELECT onceward.history_hash('c', md5('id' || n)::uuid::text), n, 1, 9000 FROM generate_series(%s, %s) n
"""
CLAIM = ("SELECT count(*) FROM onceward.sidecar_claim_many(true, 'bench', 1, false, NULL, 2000, '{c}', '{30s}', '{60s}', '{8}', '{3}',"
         " array_fill(1, ARRAY[%s]), %s::text[], %s::uuid[], array_fill('\\x00'::bytea, ARRAY[%s]), NULL, NULL, NULL)")


class Client:
    """A connection, and the CPU of the process that serves it."""

    def __init__(self, bed, database):
        self.connection = psycopg2.connect(bed.postgres.dsn(database=database, application_name="bench"))
        self.connection.autocommit = True
        self.cursor = self.connection.cursor()
        self.pid = self.connection.info.backend_pid

    def query(self, sql, *parameters):
        self.cursor.execute(sql, parameters or None)
        return self.cursor.fetchall() if self.cursor.description else None

    def value(self, sql, *parameters):
        return self.query(sql, *parameters)[0][0]

    def cpu_us(self):
        with open(f"/proc/{self.pid}/schedstat") as f:
            return int(f.read().split()[0]) / 1000

    def claims(self, calls=CALLS, end=None):
        """µs of CPU a claim of new ids, and claims a second."""
        start, used, n = time.monotonic(), self.cpu_us(), 0
        while n < calls if end is None else not end.is_set():
            ids = sorted(str(uuid.uuid4()) for _ in range(BATCH))
            self.query(CLAIM, BATCH, ids, [str(uuid.uuid4()) for _ in ids], BATCH)
            n += 1
        return (self.cpu_us() - used) / n / BATCH, n * BATCH / (time.monotonic() - start)

    def close(self):
        self.connection.close()


def grow(client, compact, first, last):
    """To ids [1, last], of which those before first are there."""
    client.query("SET work_mem = '256MB'; SET synchronous_commit = off")
    if compact:
        n = (last - first + 1) // ROWS_OF
        client.query(ROWS, first, first + n - 1)
        client.query(ENTRIES, first + n, last)
    else:
        client.query(ROWS, first, last)
    client.query("VACUUM (ANALYZE) onceward.inbox, onceward.history")


def forget_claims(client):
    client.query("DELETE FROM onceward.inbox WHERE claimed_by = 'bench/1'")
    client.query("VACUUM onceward.inbox")


def in_turn(clients):
    """label: medians of CPU and rate over the rounds. What was claimed is removed again."""
    results = {label: [] for label in clients}
    for client in clients.values():
        client.claims(WARM)
    for number in range(ROUNDS):
        for label in list(clients) if number % 2 == 0 else list(clients)[::-1]:
            results[label].append(clients[label].claims())
    for client in clients.values():
        forget_claims(client)
    return {label: (statistics.median(cpu for cpu, _ in r), statistics.median(rate for _, rate in r)) for label, r in results.items()}


def bytes_per_id(client, table, n):
    return client.value("SELECT pg_total_relation_size(%s::regclass)", table) / n


def old_rows(client, first, n):
    """Places of new rows that are old enough to be moved, in slices."""
    client.query(ROWS, first, first + n - 1)
    tids = [row[0] for row in client.query("SELECT ctid::text FROM onceward.inbox WHERE attempt = 1 AND status = 'completed' AND token = ANY"
                                           " (SELECT md5('t' || n)::uuid FROM generate_series(%s, %s) n)", first, first + n - 1)]
    return [tids[i:i + SLICE] for i in range(0, len(tids), SLICE)]


MOVE = "SELECT onceward.history_move('c', 1::smallint, %s::tid[], clock_timestamp())"


def moves(v, client, first):
    slices = old_rows(client, first, MOVES)
    for tids in slices[:50]:
        client.query(MOVE, tids)
    client.query("CHECKPOINT")
    lsn, used, n = client.value("SELECT pg_current_wal_insert_lsn()"), client.cpu_us(), 0
    for tids in slices[50:]:
        n += client.value(MOVE, tids)
    used = (client.cpu_us() - used) / n
    wal = client.value("SELECT pg_current_wal_insert_lsn() - %s::pg_lsn", lsn) / n
    v.tell("a move: µs of CPU, bytes of WAL just after a checkpoint", f"{used:.1f}, {wal:,.0f}")


def beside(bed, database, client, first, rate):
    """µs of CPU a claim beside so many moves a second, of that without, in turn."""
    mover, ratios, moved = Client(bed, database), [], []
    slices = old_rows(mover, first, int(rate * MOVING_SECONDS * 1.2) if rate * MOVING_SECONDS > SLICE else SLICE)
    parts = [slices[i::3] for i in range(3)]
    for part in parts:
        without = client.claims(CALLS)[0]
        end, start = threading.Event(), time.monotonic()

        def move():
            for i, tids in enumerate(part):
                time.sleep(max(0, start + i * SLICE / rate - time.monotonic()))
                mover.query(MOVE, tids)
            moved.append(len(part) * SLICE / (time.monotonic() - start))
            end.set()

        thread = threading.Thread(target=move)
        thread.start()
        ratios.append(client.claims(end=end)[0] / without)
        thread.join()
    mover.close()
    return statistics.median(ratios), statistics.median(moved)


def prove(bed, o):
    v = Verdicts("retention: many ids, as rows and compact")
    total = o.ids or (200_000 if o.quick else 1_000_000)
    names = {label: bed.new_database("t_onceward") for label in ("empty", "rows", "compact")}
    clients = {label: Client(bed, name) for label, name in names.items()}
    levels, series = [], {"claims/s, rows": [], "claims/s, compact": [], "bytes, rows": [], "bytes, compact": []}
    try:
        done = 0
        for step in range(1, STEPS + 1):
            upto = total * step // STEPS
            for label in ("rows", "compact"):
                bed.say(f"{label}: up to {upto:,} ids")
                grow(clients[label], label == "compact", done + 1, upto)
            done = upto
            bed.checkpoint()
            sizes = {label: sum(bytes_per_id(clients[label], f"onceward.{table}", 1) for table in ("inbox", "history")) for label in clients}
            measured = in_turn(clients)
            cpu, rate = ({label: m[i] for label, m in measured.items()} for i in range(2))
            v.tell(f"{upto:,} ids: µs of CPU a claim; MB", "; ".join(f"{label} {cpu[label]:.1f}, {sizes[label] / 1e6:,.0f}" for label in clients))
            levels.append(upto / 1e6)
            for label in ("rows", "compact"):
                series[f"claims/s, {label}"].append(rate[label] / rate["empty"])
                series[f"bytes, {label}"].append(sizes[label])
        n_entries = clients["compact"].value("SELECT count(*) FROM onceward.history")
        v.most("bytes an entry, with its index", bytes_per_id(clients["compact"], "onceward.history", n_entries), 95, "{:.0f}")
        v.tell("bytes of the two tables, an id", ", ".join(f"{label} {sizes[label] / done:.0f}" for label in ("rows", "compact")))
        ratio = cpu["compact"] / cpu["rows"]
        if total >= MANY:
            v.most("µs of CPU a claim, of that with whole rows", ratio, 1.1)
        else:
            v.tell(f"µs of CPU a claim, of that with whole rows (asked from {MANY:,} on)", f"{ratio:.2f}")
        moves(v, clients["compact"], done + 1)
        for number, (per_second, limit) in enumerate(((1000, 1.05), (5000, 1.25))):
            ratio, real = beside(bed, names["compact"], clients["compact"], done + 1 + 10 ** 8 * (number + 1), per_second)
            v.most(f"µs of CPU a claim beside {real:,.0f} moves a second", ratio, limit)
        ratios = []
        for client in clients.values():
            forget_claims(client)
        for label in ("empty", "compact"):
            drain(bed, "onceward", DRAINED, database=names[label])  # warms up
        for number in range(2):
            rates = {label: drain(bed, "onceward", DRAINED, database=names[label])["rate"]
                     for label in (("empty", "compact"), ("compact", "empty"))[number]}
            ratios.append(rates["compact"] / rates["empty"])
        v.least("throughput, of that with an empty inbox", statistics.median(ratios), 0.85)
    finally:
        for client in clients.values():
            client.close()
    most = max(series["bytes, rows"])
    for label in ("rows", "compact"):
        series[f"bytes, {label}"] = [n / most for n in series[f"bytes, {label}"]]
    os.makedirs(o.out, exist_ok=True)
    path = os.path.join(o.out, "retention.svg")
    with open(path, "w") as f:
        f.write(plot.lines("Claims of that with an empty inbox; bytes of the most", "million ids", levels, series))
    bed.say(f"wrote {path}")
    v.document.update(levels=levels, series=series)
    return v
