"""The outbox's half of the database: what publish costs an application beside an insert into a table of its own and beside the outbox that is
usually written, what a poll costs while nothing comes and while a transaction is open for long, and how large the tables are after it.

Applications are pgbench's; the relay is one connection that reads and confirms, but sends nowhere: no broker takes a part of the machine."""

import os
import subprocess
import threading
import time

import psycopg2

from . import probe

BODY = '{"order": 12345678, "cents": 250, "customer": "abcdefghijklmnop", "lines": [{"sku": "A-1", "n": 1}, {"sku": "B-22", "n": 2}]}'
SCHEMA = """
CREATE TABLE public.plain (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message_id text NOT NULL, exchange text NOT NULL,
                           routing_key text NOT NULL, body jsonb NOT NULL, at timestamptz NOT NULL DEFAULT now());
GRANT ALL ON ALL TABLES IN SCHEMA public TO bench_app, bench_sidecar;
"""
WORK = "INSERT INTO public.effect (message_id) VALUES (gen_random_uuid()::text);"
SAYS = {"plain insert": f"INSERT INTO public.plain (message_id, exchange, routing_key, body) VALUES (gen_random_uuid()::text, 'e', 'r', '{BODY}');",
        "publish": f"SELECT onceward.publish('e', 'r', '{BODY}'::jsonb);"}
SAYS["publish, relayed"] = SAYS["publish"]
SAYS["DELETE … SKIP LOCKED"] = SAYS["plain insert"]
DELETE = ("DELETE FROM public.plain p USING (SELECT id FROM public.plain ORDER BY id LIMIT 256 FOR UPDATE SKIP LOCKED) o WHERE p.id = o.id"
          " RETURNING p.id, p.message_id, p.exchange, p.routing_key, p.body")
CLIENTS = 8


class Reader:
    """Polls every 50 ms, and at once while something comes."""

    def __init__(self, dsn):
        self.connection = psycopg2.connect(dsn)
        self.connection.autocommit = True
        self.cursor = self.connection.cursor()
        self.taken, self.poll_ms = 0, []

    def poll(self):
        begun = time.perf_counter()
        found = self.read()
        self.poll_ms.append(1000 * (time.perf_counter() - begun))
        self.taken += found
        return found

    def value(self, sql, *parameters):
        self.cursor.execute(sql, parameters)
        return self.cursor.fetchall()

    def cpu_ms(self):
        with open(f"/proc/{self.connection.info.backend_pid}/schedstat") as f:
            return int(f.read().split()[0]) / 1e6

    def housekeep(self):
        pass

    def close(self):
        self.connection.close()


class Relay(Reader):
    def __init__(self, dsn):
        super().__init__(dsn)
        self.lease, self.batch, self.after = None, None, None
        self.housekeep()

    def housekeep(self):
        self.lease = self.value("SELECT lease FROM onceward.sidecar_outbox_lease('bench', 1, %s, 15000, true)", self.lease)[0][0]
        while self.value("SELECT onceward.sidecar_outbox_turn(%s, 8388608, 60000)", self.lease)[0][0] == "turned":
            pass

    def read(self):
        rows = self.value("SELECT * FROM onceward.sidecar_outbox_read(%s, %s, 1000, 4194304, 16777216)", self.batch, self.after)
        found, head = rows[:-1], rows[-1]
        if found:
            self.value("SELECT onceward.sidecar_outbox_write(%s, %s, %s)", self.lease, head[0], None if head[1] else found[-1][2])
        self.batch, self.after = head[0], None if head[1] else found[-1][2]
        return len(found)


class Deleter(Reader):
    def read(self):
        return len(self.value(DELETE))


def reading(reader, ending):
    housekept = time.monotonic()
    while not ending.is_set():
        if not reader.poll():
            ending.wait(0.05)
        if time.monotonic() - housekept > 1:
            housekept = time.monotonic()
            reader.housekeep()


def pgbench(bed, database, text, seconds, rate=0):
    path = os.path.join(bed.folder, "outbox.sql")
    with open(path, "w") as f:
        f.write(f"BEGIN;\n{WORK}\n{text}\nCOMMIT;\n")
    done = subprocess.run(["pgbench", "-n", "-M", "prepared", "-c", str(CLIENTS), "-j", "2", "-T", str(seconds), "-f", path,
                           *(["-R", str(rate)] if rate else []), bed.postgres.dsn(user="bench_app", database=database)],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return float(next(line for line in done.stdout.splitlines() if line.startswith("tps")).split()[2])


def prepared(bed):
    database = bed.new_database("t_onceward")
    bed.postgres.query(SCHEMA, database=database)
    return database


def reader_of(bed, database, label):
    kind = {"publish, relayed": Relay, "DELETE … SKIP LOCKED": Deleter}.get(label)
    return kind(bed.postgres.dsn(user="bench_sidecar", database=database)) if kind else None


def sizes(bed, database):
    return bed.postgres.query("SELECT pg_total_relation_size('onceward.outbox_0') + pg_total_relation_size('onceward.outbox_1')"
                              " + pg_total_relation_size('onceward.outbox_2'), pg_total_relation_size('onceward.outbox_position'),"
                              " pg_total_relation_size('public.plain')", database=database)[0]


def server_seconds(bed):
    """CPU of the server, those of its processes that have ended included."""
    with open(f"/proc/{bed.postgres.child.pid}/stat") as f:
        ended = sum(int(ticks) for ticks in f.read().rsplit(")", 1)[1].split()[13:15]) / probe.TICK
    return ended + sum(probe.cpu_seconds(pid) for pid in probe.children(bed.postgres.child.pid))


def transactions(bed, label, seconds):
    """Transactions a second of eight applications, each with a row of its own and a message."""
    database = prepared(bed)
    reader, ending = reader_of(bed, database, label), threading.Event()
    thread = threading.Thread(target=reading, args=(reader, ending))
    try:
        pgbench(bed, database, SAYS[label], 1)
        if reader:
            thread.start()
        before = server_seconds(bed)
        rate = pgbench(bed, database, SAYS[label], seconds)
        cpu = (server_seconds(bed) - before) / (rate * seconds)
        ending.set()
        if reader:
            thread.join()
            while reader.poll():
                pass
            for _ in range(3):
                reader.housekeep()
        tables, positions, plain = sizes(bed, database)
        left = plain if "DELETE" in label or "plain" in label else tables + positions
        return {"rate": rate, "cpu_us": {"database": 1e6 * cpu}, "table_mib": left / (1 << 20)}
    finally:
        ending.set()
        if reader:
            reader.close()
        bed.drop_database(database)


def idle(bed, seconds):
    """What polls cost the database while nothing comes: four a second, and the lease every five."""
    database = prepared(bed)
    relay = Relay(bed.postgres.dsn(user="bench_sidecar", database=database))
    try:
        for _ in range(8):
            relay.poll()
        relay.poll_ms, before, begun = [], relay.cpu_ms(), time.monotonic()
        for number in range(4 * seconds):
            relay.poll()
            if number % 20 == 0:
                relay.housekeep()
            time.sleep(max(0, begun + (number + 1) / 4 - time.monotonic()))
        return {"cpu_ms": (relay.cpu_ms() - before) / (time.monotonic() - begun), "poll_ms": sorted(relay.poll_ms)[len(relay.poll_ms) // 2]}
    finally:
        relay.close()
        bed.drop_database(database)


def beside_old(bed, label, seconds, rate=1000):
    """A poll's median while a transaction is open, with an id and a snapshot: in the first and in the last fifth of the time."""
    database = prepared(bed)
    reader, ending = reader_of(bed, database, label), threading.Event()
    old = psycopg2.connect(bed.postgres.dsn(database=database))
    old.set_session(isolation_level="REPEATABLE READ")
    thread = threading.Thread(target=reading, args=(reader, ending))
    try:
        old.cursor().execute("SELECT pg_current_xact_id()")
        pgbench(bed, database, SAYS[label], 1, rate)
        while reader.poll():
            pass
        reader.poll_ms = []
        thread.start()
        pgbench(bed, database, SAYS[label], seconds, rate)
        ending.set()
        thread.join()
        part = max(1, len(reader.poll_ms) // 5)
        middle = lambda values: sorted(values)[len(values) // 2]
        first, last = middle(reader.poll_ms[:part]), middle(reader.poll_ms[-part:])
        return {"first_ms": first, "last_ms": last, "grown": last / first}
    finally:
        ending.set()
        reader.close()
        old.close()
        bed.drop_database(database)
