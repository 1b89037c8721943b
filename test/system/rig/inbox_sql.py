"""The functions of the schema, called as the sidecar and the application call them: for the tests of sql/ alone.

The files of sql/ are run here as `onceward migrate` runs them, so that these tests need no program."""

import base64
import collections
import fcntl
import glob
import hashlib
import os
import sys
import uuid

import psycopg2
import psycopg2.extras
from psycopg2 import Binary

SQL = os.path.join(os.path.dirname(__file__), "..", "..", "..", "sql")
sys.path.append(os.path.join(SQL, "..", "src", "inbox"))
import embed  # noqa: E402 - it expands the planner settings of functions


def files(numbered=True):
    """The texts of sql/, in the order in which they are run; those that are run once, or only those that are run each time."""
    names = sorted(glob.glob(os.path.join(SQL, "[0-9]*.sql"))) if numbered else []
    names += sorted(glob.glob(os.path.join(SQL, "functions", "*.sql")))
    names += [os.path.join(SQL, "roles_create.sql"), os.path.join(SQL, "roles_grant.sql")]
    return [embed.expanded(open(name, encoding="utf-8").read(), [SQL]) for name in names]


def load(postgres):
    """Roles belong to the whole server: one at a time, like rig.schema.migrate()."""
    with open(os.path.join(postgres.folder, "migrate.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = postgres.connect(autocommit=False)
        with connection, connection.cursor() as cursor:
            for text in files():
                cursor.execute(text)
            for login, role in (("sidecar_login", "onceward_sidecar"), ("app_login", "onceward_app")):
                cursor.execute("SELECT FROM pg_roles WHERE rolname = %s", (login,))
                if not cursor.rowcount:
                    cursor.execute(f"CREATE ROLE {login} LOGIN IN ROLE {role}")
            cursor.execute("GRANT pg_read_all_stats TO sidecar_login")  # as an administrator may: nothing else gives it
        connection.close()


def base64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token_text(consumer, message_id, secret):
    """message_id and consumer: text or bytes. secret: a UUID's text."""
    key = b"\0".join(x.encode() if isinstance(x, str) else x for x in (consumer, message_id))
    return f"ow1.{base64url(key)}.{base64url(uuid.UUID(secret).bytes)}"


def fingerprint(body):
    return hashlib.sha256(body).digest()[:16]


def history_hash(consumer, message_id):
    return str(uuid.UUID(bytes=hashlib.sha256(f"{consumer}\0{message_id}".encode()).digest()[:16]))


Letter = collections.namedtuple("Letter", "reason rowless redelivered exhausted attempts raw_id body headers routing_key deaths"
                                " content_header",
                                defaults=("attempts", False, False, False, None, None, b"body", "{}", "q", 0, None))


Registered = collections.namedtuple("Registered", "ord answer queue vhost broker former")


class Session:
    """A connection as one of the two logins. Each call is a transaction, unless begun with begin()."""

    def __init__(self, postgres, user):
        self.connection = postgres.connect(user=user)

    def close(self):
        self.connection.close()

    def query(self, sql, *parameters):
        with self.connection.cursor(cursor_factory=psycopg2.extras.NamedTupleCursor) as cursor:
            cursor.execute(sql, parameters or None)
            return cursor.fetchall() if cursor.description else None

    def value(self, sql, *parameters):
        return self.query(sql, *parameters)[0][0]

    def begin(self, isolation="READ COMMITTED"):
        self.query(f"BEGIN ISOLATION LEVEL {isolation}")

    def commit(self):
        self.query("COMMIT")

    def rollback(self):
        self.query("ROLLBACK")

    def pages(self, sql, *parameters):
        """Runs it, and answers how many pages were touched, also inside the functions."""
        plan = self.value("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + sql, *parameters)[0]["Plan"]
        return sum(plan[f"{kind} Blocks"] for kind in ("Shared Hit", "Shared Read"))

    @property
    def pid(self):
        return self.connection.info.backend_pid


class Application(Session):
    def __init__(self, postgres):
        super().__init__(postgres, "app_login")

    def complete(self, token, *result):
        return self.value(f"SELECT onceward.complete(%s{', %s' * len(result)})", token, *result)

    def extend(self, token, seconds):
        """How many seconds from now the window ends."""
        return self.value("SELECT extract(epoch FROM onceward.extend(%s, %s::float8) - clock_timestamp())::float8", token, seconds)


class Inbox(Session):
    """A sidecar's calls for one consumer. Remembers the last secret that it offered for each id. Each batch names a consumer before this
    one, of which it has no item.

    own, number, gone, alone: see sidecar_claim_many."""

    def __init__(self, postgres, consumer, instance="a", number=1):
        super().__init__(postgres, "sidecar_login")
        self.consumer = consumer
        self.instance = instance
        self.number = number
        self.secrets = {}
        self.order_changes = None  # as the latest registration answered

    def token(self, message_id):
        return token_text(self.consumer, message_id, self.secrets[message_id])

    def _secrets(self, ids, given):
        return [given or self.secrets[i] for i in ids]

    def _consumers(self):
        return ["-", self.consumer]

    def claim(self, *ids, again=False, body=b"body", deaths=0, transaction=True, window=30_000, grace=2_000, max_attempts=8, revive=3,
              own=False, max_window=60_000, explain=False, gone=None, alone=False, hashes=None):
        """again: with the same secrets. hashes: of ids, which the sidecar has computed. Rows in the order of the ids; with explain the number of
        pages touched."""
        ids = sorted(ids)
        if not again:
            self.secrets.update((i, str(uuid.uuid4())) for i in ids)
        n = len(ids)
        sql = ("SELECT * FROM onceward.sidecar_claim_many(%s, %s, %s, %s, %s::text[], %s, %s::text[], %s::interval[], %s::interval[],"
               " %s::integer[], %s::integer[], %s::integer[], %s::text[], %s::uuid[], %s::bytea[], %s::text[], %s::bigint[],"
               " %s::boolean[], %s, %s::uuid[])")
        parameters = (transaction, self.instance, self.number, own, gone, grace, self._consumers(), ["1s", f"{window} ms"],
                      ["1s", f"{max(window, max_window)} ms"], [1, max_attempts], [0, revive], [2] * n, ids, self._secrets(ids, None),
                      [Binary(fingerprint(body))] * n, [None] * n, [deaths] * n, [alone or None] * n, self.order_changes,
                      None if hashes is None else [hashes.get(i) for i in ids])
        return self.pages(sql, *parameters) if explain else each(self.query(sql, *parameters), n)

    def look(self, *ids, body=b"body", grace=2_000, secret=None, transaction=True, window=30_000, max_window=60_000, own=False, gone=None):
        ids = list(ids)
        n = len(ids)
        return each(self.query(
            "SELECT * FROM onceward.sidecar_look_many(%s, %s, %s, %s::text[], %s, %s::text[], %s::boolean[], %s::interval[],"
            " %s::interval[], %s::integer[], %s::text[], %s::uuid[], %s::bytea[])", self.instance, self.number, own, gone, grace,
            self._consumers(), [False, transaction], ["1s", f"{window} ms"], ["1s", f"{max(window, max_window)} ms"], [2] * n, ids,
            [secret or self.secrets.get(i) for i in ids], [Binary(fingerprint(body))] * n), n)

    def housekeep(self, retention=3_600_000, late=3_600_000, page=-1, budget_us=1_000_000, ahead_ms=0, compact=None):
        """ahead_ms: of the database's clock."""
        return self.query("SELECT * FROM onceward.sidecar_keep_house(%s, %s, %s, %s, %s, %s,"
                          " floor(1000 * extract(epoch FROM clock_timestamp()))::bigint - %s, %s)", self.consumer, self.instance,
                          retention, late, page, budget_us, ahead_ms, compact)[0]

    def expire_history(self, retention=3_600_000, page=-1, budget_us=60_000_000, ahead_ms=0):
        return self.query("SELECT * FROM onceward.sidecar_expire_history(%s, %s, %s, %s, %s,"
                          " floor(1000 * extract(epoch FROM clock_timestamp()))::bigint - %s)", self.consumer, self.instance, retention,
                          page, budget_us, ahead_ms)[0]

    def settle(self, *ids, secret=None, status=200, result=None, explain=False):
        ids = sorted(ids)
        n = len(ids)
        sql = "SELECT * FROM onceward.sidecar_settle_many(%s::text[], %s::integer[], %s::text[], %s::uuid[], %s::integer[], %s::text[])"
        parameters = (self._consumers(), [2] * n, ids, self._secrets(ids, secret), [status] * n, [result] * n)
        return self.pages(sql, *parameters) if explain else each(self.query(sql, *parameters), n)

    def fail(self, *ids, secret=None, error="answered 500", status=500, delay=60_000, only_expired=False, give_back=False, crashes=None,
             unproven_step=None, batch_cap=None):
        n = len(ids)
        return self.query(
            "SELECT * FROM onceward.sidecar_fail_many(%s::text[], %s::integer[], %s::text[], %s::uuid[], %s::text[], %s::integer[],"
            " %s::bigint[], %s::boolean[], %s::boolean[], %s::integer[], %s::integer[], %s::integer[])", self._consumers(), [2] * n, list(ids),
            self._secrets(ids, secret), [error] * n, [status] * n, [delay] * n, [only_expired] * n, [give_back or None] * n,
            [crashes] * n, [unproven_step] * n, [batch_cap] * n)

    def release(self, *ids, secret=None, error=None, delay=0, crashes=None, unproven_step=None, batch_cap=None):
        n = len(ids)
        return self.query(
            "SELECT * FROM onceward.sidecar_release_many(%s::text[], %s::integer[], %s::text[], %s::uuid[], %s::text[], %s::bigint[],"
            " %s::integer[], %s::integer[], %s::integer[])", self._consumers(), [2] * n, list(ids), self._secrets(ids, secret),
            [error] * n, [delay] * n, [crashes] * n, [unproven_step] * n, [batch_cap] * n)

    def bury(self, *items, max_attempts=8, grace=2_000, error="it failed", status=500, transaction=True, window=30_000,
             max_window=60_000, own=False, gone=None):
        """items: (message id or None, Letter)."""
        n = len(items)
        letters = [letter for _, letter in items]
        return self.query(
            "SELECT * FROM onceward.sidecar_bury_many(%s, %s, %s, %s::text[], %s, %s::text[], '{-,/}', '{-,q}', %s::boolean[],"
            " %s::interval[], %s::interval[], %s::integer[], %s::integer[], %s::text[], %s::uuid[], %s::bytea[], %s::text[],"
            " %s::integer[], %s::text[], %s::text[], %s::boolean[], %s::boolean[], %s::boolean[], %s::integer[], %s::bytea[],"
            " %s::bytea[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[], %s::bytea[])",
            self.instance, self.number, own, gone, grace, self._consumers(), [False, transaction], ["1s", f"{window} ms"],
            ["1s", f"{max(window, max_window)} ms"], [1, max_attempts], [2] * n, [i for i, _ in items],
            [self.secrets.get(i) for i, _ in items], [Binary(fingerprint(x.body)) for x in letters], [None] * n, [status] * n, [error] * n,
            [x.reason for x in letters], [x.rowless for x in letters], [x.redelivered for x in letters],
            [x.exhausted for x in letters], [x.attempts for x in letters], [x.raw_id and Binary(x.raw_id) for x in letters],
            [Binary(x.body) for x in letters], ["text/plain"] * n, ["{}"] * n, [x.headers for x in letters], [""] * n,
            [x.routing_key for x in letters], [x.deaths for x in letters], [x.content_header and Binary(x.content_header) for x in letters])

    def register(self, *queues, order_key=None):
        """queues: (consumer, vhost, queue, takes_over), or with the broker before the vhost. order_key: of all of them. Rows of queues."""
        queues = [(q[0], "rabbit@a", *q[1:]) if len(q) == 4 else q for q in queues]
        rows = self.query("SELECT * FROM onceward.sidecar_register_many(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], NULL,"
                          " %s::text[])", *(list(field) for field in zip(*queues)), None if order_key is None else [order_key] * len(queues))
        assert (rows[0].ord, rows[0].answer) == (0, "changes")
        self.order_changes = rows[0].number
        return [Registered(*r[:6]) for r in rows[1:]]

    def presence(self, queues="[]", counter=None, consumers=None, version="v", holders=(), count=True, ordered=False):
        return self.query("SELECT * FROM onceward.sidecar_presence(%s, %s, %s, %s, 'host', %s::json, %s::text[], %s::text[], %s, %s)",
                          self.instance, self.number, counter, version, queues, consumers or [self.consumer], list(holders), count, ordered)

    def row(self, message_id):
        rows = self.query("SELECT * FROM onceward.inbox WHERE consumer = %s AND message_id = %s", self.consumer, message_id)
        return rows[0] if rows else None

    def letters(self):
        return self.query("SELECT * FROM onceward.dead_letter WHERE consumer = %s ORDER BY id", self.consumer)

    def age(self, message_id, **columns):
        """Moves a row's times into the past, by so many milliseconds: tests do not wait for time."""
        changes = ", ".join(f"{name} = {name} - %s * interval '1 ms'" for name in columns)
        self.query(f"UPDATE onceward.inbox SET {changes} WHERE consumer = %s AND message_id = %s", *columns.values(), self.consumer,
                   message_id)


def each(rows, n):
    """A row an item: one with ord -k is for the k that have none."""
    rest = [row for row in rows if row.ord < 0]
    named = {row.ord: row for row in rows if row.ord > 0}
    if not rest:
        return rows
    assert len(rest) == 1 and len(named) - rest[0].ord == n, rows
    return [named.get(i, rest[0]._replace(ord=i)) for i in range(1, n + 1)]


def number(row):
    """Which attempt the application is told that it is."""
    return row.attempt + row.takeovers


def answers(rows):
    return [row.answer for row in rows]
