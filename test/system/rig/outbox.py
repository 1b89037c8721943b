"""The outbox by its SQL functions: a relay that sends to a list instead of a broker, and writers of every kind against it.

What an application committed is known from a table of its own, `ledger`, that it writes in the same transaction: so it does not matter
whether a commit was answered."""

import collections
import random
import threading
import time

import psycopg2
import psycopg2.extensions

from .inbox_sql import Session
from .wait import wait_until

LEASE_MS = 15000
LEDGER = ("CREATE TABLE IF NOT EXISTS public.ledger (id text, key integer, version integer);"
          "CREATE TABLE IF NOT EXISTS public.aggregate (key integer PRIMARY KEY, version integer NOT NULL);"
          "INSERT INTO public.aggregate SELECT g, 0 FROM generate_series(1, 20) g ON CONFLICT DO NOTHING;"
          "GRANT ALL ON public.ledger, public.aggregate TO app_login")
Row = collections.namedtuple("Row", "batch over seq exchange routing_key message_id type headers properties body body_bytes age_ms")


class Relay(Session):
    """A sidecar's part. `sent` has the ids in the order in which they went out."""

    def __init__(self, postgres, instance="a", number=1, sent=None):
        super().__init__(postgres, "sidecar_login")
        self.instance, self.number = instance, number
        self.sent = [] if sent is None else sent
        self.number_of_lease = None
        self.forget()

    def forget(self):
        """As after a lost connection: the batches in memory are worth nothing."""
        self.batch, self.after, self.unwritten = None, None, []

    def lease(self, want=True, ms=LEASE_MS):
        answer = self.query("SELECT * FROM onceward.sidecar_outbox_lease(%s, %s, %s, %s, %s)", self.instance, self.number,
                            self.number_of_lease, ms, want)[0]
        if answer.answer != "busy":
            if answer.lease != self.number_of_lease:
                self.forget()
            self.number_of_lease = answer.lease
        return answer

    def read(self, batch, after=None, rows=256, n_bytes=1 << 22, max_message=1 << 24):
        """The rows, and the head: None when there is none."""
        found = [Row(*r) for r in self.query("SELECT * FROM onceward.sidecar_outbox_read(%s, %s, %s, %s, %s)", batch, after, rows, n_bytes,
                                             max_message)]
        return (found[:-1], found[-1]) if found else ([], None)

    def step(self, rows=256):
        """Reads on and sends. Answers how many; None: begin again."""
        found, head = self.read(self.batch, self.after, rows)
        if head is None:
            self.forget()
            return None
        self.sent += [row.message_id for row in found]
        self.unwritten += [(head.batch, row.seq) for row in found]
        if head.over:
            self.unwritten.append((head.batch, None))
        self.batch, self.after = head.batch, None if head.over else found[-1].seq
        return len(found)

    def write(self, upto=None):
        """Writes the position of the first `upto` that were sent since the last one; None: of all."""
        upto = len(self.unwritten) if upto is None else upto
        if not upto:
            return "written"
        answer = self.value("SELECT onceward.sidecar_outbox_write(%s, %s, %s)", self.number_of_lease, *self.unwritten[upto - 1])
        if answer == "written":
            del self.unwritten[:upto]
        elif answer in ("lost", "stale"):
            self.forget()
        return answer

    def turn(self, min_bytes=0, min_ms=0):
        return self.value("SELECT onceward.sidecar_outbox_turn(%s, %s, %s)", self.number_of_lease, min_bytes, min_ms)

    def restore(self, rows=20000):
        return self.value("SELECT onceward.sidecar_outbox_restore(%s, %s)", self.number_of_lease, rows)

    def bury(self, rows, reason="unroutable", error="NO_ROUTE"):
        return self.query("SELECT * FROM onceward.sidecar_outbox_bury(%s, '/', %s::bigint[], %s::text[], %s::text[], %s::text[])",
                          self.number_of_lease, [r.seq for r in rows], [r.message_id for r in rows], [reason] * len(rows), [error] * len(rows))

    def gauge(self):
        return self.query("SELECT * FROM onceward.sidecar_outbox_gauge()")[0]

    def drain(self, rows=256):
        """Sends and confirms all that is there. Answers the ids, in order."""
        if self.number_of_lease is None:
            assert self.lease().answer == "held"
        first = len(self.sent)
        self.read_on(rows, self.write)
        assert self.write() == "written"
        return self.sent[first:]

    def read_on(self, rows, behind_each=lambda: "written"):
        """Until two batches had nothing: what is left of one that was begun before may be nothing, too."""
        empty = 0
        while empty < 2:
            found = self.step(rows)
            assert found is not None and behind_each() == "written"
            empty = 0 if found or self.after is not None else empty + 1


def left(postgres):
    """How many rows the three tables have."""
    return [postgres.query(f"SELECT count(*)::int FROM onceward.outbox_{k}")[0][0] for k in range(3)]


class Writers:
    """Applications that publish in transactions of every kind, until stop()."""

    def __init__(self, postgres, seed, n=8, kill=False):
        self.postgres, self.seed, self.ending = postgres, seed, threading.Event()
        self.failures = []
        self.threads = [threading.Thread(target=self._write, args=(i,)) for i in range(n)]
        if kill:
            self.threads.append(threading.Thread(target=self._kill))
        for thread in self.threads:
            thread.start()

    def _write(self, number):
        r = random.Random(f"{self.seed} {number}")
        connection = None
        while not self.ending.is_set():
            try:
                if connection is None or connection.closed:
                    connection = psycopg2.connect(self.postgres.dsn(user="app_login"))
                self._transaction(connection, r, number)
            except psycopg2.Error as error:
                if not expected(error):
                    self.failures.append(repr(error))
                try:
                    connection.rollback()
                except (psycopg2.Error, AttributeError):
                    connection = None
                    self.ending.wait(0.02)
        if connection:
            connection.close()

    def _transaction(self, connection, r, number):
        connection.set_session(isolation_level=r.choice([psycopg2.extensions.ISOLATION_LEVEL_READ_COMMITTED] * 3
                               + [psycopg2.extensions.ISOLATION_LEVEL_REPEATABLE_READ, psycopg2.extensions.ISOLATION_LEVEL_SERIALIZABLE]))
        kind = r.random()
        with connection.cursor() as cursor:
            if kind < .1:  # a snapshot that is old when the transaction gets its id
                cursor.execute("SELECT 1")
                self.ending.wait(r.random() * .5)
            elif kind > .93:  # an id that is old when the first message is published
                cursor.execute("SELECT pg_current_xact_id()")
                self.ending.wait(r.random() * .7)
            for _ in range(r.choice([1, 1, 1, 2, 5])):
                self._message(cursor, r, number)
            if .1 < kind < .14:
                self.ending.wait(r.random())
        if r.random() < .1:
            connection.rollback()
        elif r.random() < .04 and isinstance(self.postgres.port, int) and not getattr(self.postgres, "is_pooler", False):
            self._in_two_phases(connection, r, number)
        else:
            connection.commit()

    def _in_two_phases(self, connection, r, number):
        name = f"{number} {r.getrandbits(60)}"
        with connection.cursor() as cursor:
            cursor.execute("PREPARE TRANSACTION %s", (name,))
        connection.rollback()  # ends what psycopg2 believes to be a transaction
        self.ending.wait(r.random() * .2)
        connection.autocommit = True
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"{'COMMIT' if r.random() < .7 else 'ROLLBACK'} PREPARED %s", (name,))
        finally:
            connection.autocommit = False

    def _message(self, cursor, r, number):
        key = r.randint(1, 20)
        cursor.execute("UPDATE public.aggregate SET version = version + 1 WHERE key = %s RETURNING version", (key,))
        version = cursor.fetchone()[0]
        name = f"{key}:{version}:{number}:{r.getrandbits(40)}"
        if r.random() < .1:
            cursor.execute("SAVEPOINT s")
            cursor.execute("SELECT onceward.publish('e', 'r', '1'::jsonb, %s)", (name + " taken back",))
            cursor.execute("ROLLBACK TO s")
        if r.random() < .1:
            cursor.execute("SAVEPOINT kept")
        cursor.execute("SELECT onceward.publish('e', 'r', '1'::jsonb, %s)", (name,))
        cursor.execute("INSERT INTO public.ledger VALUES (%s, %s, %s)", (name, key, version))
        if r.random() < .05:
            self.ending.wait(r.random() * .1)

    def _kill(self):
        r = random.Random(f"{self.seed} kill")
        while not self.ending.wait(r.random() * .5):
            try:
                self._orphans_end()
                self.postgres.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app_login' AND datname = current_database()"
                                    " ORDER BY random() LIMIT 1")
            except psycopg2.Error:
                pass  # the server is away

    def _orphans_end(self):
        """Of a backend that was killed between its two phases nobody else would ever end the transaction, and all would wait for its rows."""
        for name, in self.postgres.query("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
                                         " AND prepared < clock_timestamp() - interval '1 s'"):
            try:
                self.postgres.query("ROLLBACK PREPARED %s", (name,))
            except psycopg2.Error:
                pass  # its writer was faster

    def stop(self):
        self.ending.set()

        def ended():
            self._orphans_end()
            return not any(t.is_alive() for t in self.threads) and not self.postgres.query(
                "SELECT FROM pg_prepared_xacts WHERE database = current_database()")

        wait_until(ended, "the writers have ended", 30, 0.05)
        assert self.failures == [], self.failures


def expected(error):
    """Of serializable transactions, deadlocks, killed backends and servers, and a second phase that somebody else was faster with."""
    return error.pgcode in (None, "40001", "40P01", "57P01", "57P02", "57P03", "08P01", "08006", "08003", "42704") or isinstance(error, psycopg2.InterfaceError)


class RandomRelay:
    """A relay that does the right things in a random order, and forgets all that it knows at any step."""

    def __init__(self, postgres, seed, instance="a", sent=None, steal=0.0, jump=True):
        self.r = random.Random(f"{seed} relay {instance}")
        self.postgres, self.instance, self.steal, self.jump = postgres, instance, steal, jump
        self.sent = [] if sent is None else sent
        self.number, self.relay, self.crashes, self.turns = 0, None, 0, collections.Counter()

    def crash(self):
        if self.relay:
            try:
                self.relay.close()
            except psycopg2.Error:
                pass
        self.relay = None
        self.crashes += 1

    def begin(self):
        self.number += 1
        self.relay = Relay(self.postgres, self.instance, self.number, self.sent)

    def act(self):
        """Makes one step. Answers how many messages were sent."""
        try:
            if self.relay is None:
                self.begin()
            if self.relay.number_of_lease is None or self.r.random() < .05:
                if self.r.random() < self.steal:  # by the database's clock, the other's time is over
                    self.postgres.query("UPDATE onceward.outbox SET held_until = clock_timestamp() WHERE holder <> %s", (self.instance,))
                if self.relay.lease().answer != "held":
                    time.sleep(.002)
                    return 0
            chance = self.r.random()
            if chance < .03:
                self.crash()
                return 0
            if chance < .08:
                return self.turn()
            if chance < .35 and self.relay.unwritten:
                self._note(self.relay.write(self.r.randint(1, len(self.relay.unwritten))))
                return 0
            sent = self.relay.step(self.r.choice([1, 7, 50]))
            if sent is None:
                self.relay.lease()
            return sent or 0
        except psycopg2.Error:
            self.crash()
            time.sleep(.02)
            return 0

    def turn(self):
        if self.jump and self.r.random() < .1:  # as after a crash of the server
            self.postgres.query("SELECT setval('onceward.outbox_turn', (SELECT last_value + %s FROM onceward.outbox_turn))",
                                (self.r.randint(1, 32),))
        answer = self.relay.turn()
        self.turns[answer] += 1
        self._note(answer)
        return 0

    def _note(self, answer):
        if answer == "lost":
            self.relay.number_of_lease = None

    def finish(self):
        """Until all is sent and confirmed and the tables are empty."""
        if self.relay is None:
            self.begin()
        while True:
            answer = self.relay.lease()
            if answer.answer == "held":
                break
            self.postgres.query("UPDATE onceward.outbox SET held_until = clock_timestamp()")
        self.relay.forget()
        self.relay.drain()
        # Backends of clients that are gone may have ids for a moment yet.
        wait_until(lambda: self.relay.turn() == "rests", "the tables are empty, or rest", 90, 0.005)
        waiting = self.relay.gauge().waiting
        self.relay.close()
        return waiting


def judge(postgres, sent):
    """The faults: lost, sent without a commit, out of order of one key. And the number of messages sent again."""
    ledger = postgres.query("SELECT id, key, version FROM public.ledger")
    first = {}
    for place, name in enumerate(sent):
        first.setdefault(name, place)
    committed = {name for name, _, _ in ledger}
    of_key = collections.defaultdict(list)
    for name, key, version in ledger:
        of_key[key].append((version, first.get(name, -1), name))
    disorder = [(a[2], b[2]) for rows in of_key.values() for a, b in zip(sorted(rows), sorted(rows)[1:]) if a[1] > b[1]]
    wrong = {"lost": sorted(committed - set(first)), "ghosts": sorted(set(first) - committed), "out of order": disorder}
    return {what: names[:5] for what, names in wrong.items() if names}, len(sent) - len(first), len(committed)


def race(postgres, seed, seconds, relays=1, kill=False, through=None, jump=True, meanwhile=None):
    """Writers against relays. through: the server as the clients see it, when that is another. meanwhile(): is called all the time."""
    clients = through or postgres
    postgres.query(LEDGER)
    sent = []
    acting = [RandomRelay(clients, seed, name, sent, steal=.3 if relays > 1 else 0, jump=jump) for name in "ab"[:relays]]
    writers = Writers(clients, seed, kill=kill)
    ending = threading.Event()

    def run(one):
        while not ending.is_set():
            if not one.act():
                time.sleep(one.r.random() * .005)

    threads = [threading.Thread(target=run, args=(one,)) for one in acting]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if meanwhile:
            meanwhile()
        time.sleep(.05)
    writers.stop()
    ending.set()
    for thread in threads:
        thread.join(30)
    for one in acting[1:]:
        one.crash()
    acting[0].postgres = postgres
    waiting = acting[0].finish()
    wrong, again, committed = judge(postgres, sent)
    if waiting:
        wrong["waiting"] = waiting
    if sum(left(postgres)):
        wrong["left"] = left(postgres)
    return wrong, {"committed": committed, "sent again": again, "crashes": sum(a.crashes for a in acting),
                   "turns": dict(sum((a.turns for a in acting), collections.Counter()))}
