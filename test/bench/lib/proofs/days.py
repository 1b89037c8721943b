"""a day of stored messages that is dropped beside claims, 30 days kept: how long the table is locked, and the slowest claim

The statement is what a sidecar says on a connection that it opens for that: two calls, of which the first takes the day out of the table and the
second drops it. Claims that store go on meanwhile on two other connections, ten a call, each call timed."""

import threading
import time
import uuid

import psycopg2

from ..verdicts import Verdicts

DAYS, DROPS, HELD, ROWS, BODY_BYTES = 30, 4, 3, 250000, 1024
CLAIMERS, CLAIMS, SECONDS_BEFORE = 2, 10, 6.0
DAY_MS = 86400000

CLAIM = ("SELECT count(*) FROM onceward.sidecar_claim_store_many(false, 'bench', 1, false, NULL, 2000, '{c}', '{30s}', '{60s}', '{8}', '{3}',"
         " %s::integer[], %s::text[], %s::uuid[], %s::bytea[], NULL, NULL, NULL, %s::bigint[], NULL, NULL, NULL, %s::bytea[])")
KEEP = "SELECT dropped, more, stuck FROM onceward.sidecar_keep_messages('{c}', ARRAY[%s::bigint], %s)"
MAKE = """
DO $$
DECLARE
    day date := (now() AT TIME ZONE 'UTC')::date - %(ago)s;
    name text := 'message_' || to_char(day, 'YYYYMMDD');
BEGIN
    EXECUTE format('CREATE TABLE onceward.%%I PARTITION OF onceward.message FOR VALUES FROM (%%L) TO (%%L) WITH (toast_tuple_target = 128)', name,
                   day::text || ' 00:00+00', (day + 1)::text || ' 00:00+00');
    EXECUTE format('ALTER TABLE onceward.%%I OWNER TO %%s', name, (SELECT nspowner::regrole FROM pg_namespace WHERE nspname = 'onceward'));
    INSERT INTO onceward.message (consumer, message_id, received_at, exchange, routing_key, content_header, body)
    SELECT 'c', gen_random_uuid()::text, day::timestamp AT TIME ZONE 'UTC' + i * interval '1 ms', '', 'q', '\\x0000',
           convert_to(repeat(md5(i::text), %(bytes)s / 32), 'UTF8')
    FROM generate_series(1, %(rows)s) i;
END $$"""


class Claimer(threading.Thread):
    """times: (when, seconds) of each call."""

    def __init__(self, dsn):
        super().__init__(daemon=True)
        self.connection = psycopg2.connect(dsn)
        self.connection.autocommit = True
        self.ending, self.times, self.fault = threading.Event(), [], None

    def run(self):
        bodies, ones = [psycopg2.Binary(b"x" * BODY_BYTES)] * CLAIMS, [1] * CLAIMS
        prints = [psycopg2.Binary(b"f" * 16)] * CLAIMS
        try:
            with self.connection.cursor() as cursor:
                while not self.ending.wait(0.01):
                    ids = sorted(str(uuid.uuid4()) for _ in range(CLAIMS))
                    start = time.monotonic()
                    cursor.execute(CLAIM, (ones, ids, [str(uuid.uuid4()) for _ in ids], prints, list(range(CLAIMS)), bodies))
                    self.times.append((start, time.monotonic() - start))
        except psycopg2.Error as e:
            self.fault = str(e)

    def stop(self):
        self.ending.set()
        self.join()
        self.connection.close()

    def slowest_ms(self, since, until):
        return max((1000 * seconds for start, seconds in self.times if start < until and start + seconds > since), default=0.0)


def called(keeper):
    """Makes one call of the function that drops days, like a sidecar: whether it made progress, and its start and end."""
    start = time.monotonic()
    keeper.execute(KEEP, (DAYS * DAY_MS, int(time.time() * 1000)))
    end = time.monotonic()
    dropped, more, stuck = keeper.fetchone()
    return (dropped or more) and not stuck, bool(dropped), start, end


def dropped(keeper):
    """Drops the oldest day: when its two calls began and ended, and how often a lock was not had within 50 ms. Half taken out, it has one call."""
    calls, n_vain = [], 0
    while n_vain < 60:
        done, is_gone, start, end = called(keeper)
        if done:
            calls.append((start, end))
            if is_gone:
                return calls, n_vain
        else:
            n_vain += 1
        time.sleep(0.5)
    raise AssertionError("no day is dropped in 60 tries")


def held_ms(keeper):
    """Takes a day out of the table, and answers for how long its lock was held, with three round trips that a sidecar's one call has not; then drops it."""
    for _ in range(100):
        keeper.execute("BEGIN; SET LOCAL lock_timeout = '50ms'")
        try:
            keeper.execute("LOCK TABLE ONLY onceward.message IN ACCESS EXCLUSIVE MODE")
        except psycopg2.errors.LockNotAvailable:
            keeper.execute("ROLLBACK")
            time.sleep(0.1)
            continue
        start = time.monotonic()
        done, is_gone, _, _ = called(keeper)
        keeper.execute("COMMIT")
        end = time.monotonic()
        if not done:  # autovacuum is at that day, say
            time.sleep(0.5)
            continue
        assert not is_gone
        dropped(keeper)
        return 1000 * (end - start)
    raise AssertionError("the lock is not had in 100 tries")


def prove(bed, o):
    v = Verdicts("days: one of stored messages dropped beside claims")
    database = bed.new_database("t_onceward")
    claimers = []
    admin = psycopg2.connect(bed.postgres.dsn(database=database))
    admin.autocommit = True
    keeping = psycopg2.connect(bed.postgres.dsn(user="bench_sidecar", database=database))
    keeping.autocommit = True
    try:
        make, keeper = admin.cursor(), keeping.cursor()
        keeper.execute(KEEP, (DAYS * DAY_MS, int(time.time() * 1000)))
        for ago in range(1, DAYS + 1 + DROPS + HELD):
            make.execute(MAKE, {"ago": ago, "bytes": BODY_BYTES, "rows": ROWS if ago > DAYS else 1000})
        make.execute("CHECKPOINT")
        make.execute("SELECT count(*), pg_size_pretty(max(pg_total_relation_size(inhrelid))) FROM pg_inherits"
                     " WHERE inhparent = 'onceward.message'::regclass")
        v.tell("partitions; the largest", "{}; {}".format(*make.fetchone()))
        claimers = [Claimer(bed.postgres.dsn(user="bench_sidecar", database=database)) for _ in range(CLAIMERS)]
        for claimer in claimers:
            claimer.start()
        begin = time.monotonic()
        time.sleep(SECONDS_BEFORE)
        slowest = lambda since, until: max(c.slowest_ms(since, until) for c in claimers)
        v.tell("the slowest claim without, ms", f"{slowest(begin + 1, time.monotonic()):.1f}")
        taken, dropping, claims, vain = [], [], [], 0
        for _ in range(DROPS):
            calls, n_vain = dropped(keeper)
            vain += n_vain
            time.sleep(1.0)
            taken.append(1000 * (calls[0][1] - calls[0][0]))
            dropping.append(1000 * (calls[1][1] - calls[1][0]))
            claims.append(max(slowest(start, end + 0.2) for start, end in calls))
        held = [held_ms(make) for _ in range(HELD)]
        v.most(f"the table's lock held, the longest of {HELD}, ms", max(held), 50)
        v.most("the slowest claim beside it, ms", max(claims), 100)
        v.tell("each: taken out, dropped; the slowest claim, ms", "; ".join(f"{a:.1f}, {b:.1f}; {c:.1f}" for a, b, c in zip(taken, dropping, claims)))
        v.tell("tries that did not get the lock within 50 ms", str(vain))
        n_calls = sum(len(c.times) for c in claimers)
        v.tell("calls a second", f"{n_calls / (time.monotonic() - begin):.0f}, {CLAIMS} claims each")
        v.exactly("claims that failed", [c.fault for c in claimers if c.fault], [])
    finally:
        for claimer in claimers:
            claimer.stop()
        admin.close()
        keeping.close()
        bed.drop_database(database)
    return v
