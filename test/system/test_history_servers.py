"""Ids of the compact history after a failover to a standby and after a restore from a dump: neither forgets one early."""

import os
import subprocess
import uuid

import pytest

from rig import inbox_sql
from rig.inbox_sql import Application, Inbox, answers
from rig.private import private  # noqa: F401 - a fixture
from rig.servers import PostgreSQL
from rig.wait import wait_until

pytestmark = pytest.mark.long

HOUR, DAY = 3_600_000, 86_400_000
RETENTION = 10 * DAY


class Side:
    """A consumer's sidecar and application at one server."""

    def __init__(self, server):
        self.server, self.inbox, self.app = server, Inbox(server, "c"), Application(server)
        self.inbox.register(("c", "/", "c", None))

    def complete(self, *ids, ago=2 * HOUR):
        assert answers(self.inbox.claim(*ids)) == ["claimed"] * len(ids)
        for message_id in ids:
            self.app.complete(self.inbox.token(message_id))
            self.inbox.age(message_id, received_at=ago, completed_at=ago)

    def walk(self):
        """A whole walk by whoever keeps house now."""
        self.inbox.query("UPDATE onceward.consumer SET kept_until = NULL, history_day = NULL")
        done = self.inbox.housekeep(retention=RETENTION, compact=HOUR, budget_us=60_000_000)
        assert (done.next_page, done.away_ms) == (0, 0), done
        expiry = self.inbox.expire_history(RETENTION)
        assert done.history_due and expiry.next_page == 0, expiry
        return done.moved, expiry.expired, done.purged

    def add_entries(self, *days_ago):
        for ago in days_ago:
            self.inbox.query(
                "INSERT INTO onceward.history SELECT onceward.history_hash('c', %s), onceward.history_print(%s), number,"
                " (clock_timestamp() AT TIME ZONE 'UTC')::date - date '2000-01-01' - %s FROM onceward.consumer WHERE consumer = 'c'",
                f"d{ago}", inbox_sql.fingerprint(b"body"), ago)

    def close(self):
        self.inbox.close()
        self.app.close()


def filled(server):
    """Moved ids, rows that may be moved, and entries of many days."""
    side = Side(server)
    side.complete(*(f"moved{i}" for i in range(20)))
    assert side.walk()[0] == 20
    side.add_entries(1, 9, 10, 15)
    side.complete(*(f"row{i}" for i in range(20)))
    return side


def is_whole(server):
    """Each id within the retention is known, before and after a walk; only what is outside expires."""
    side, known = Side(server), [f"moved{i}" for i in range(20)] + [f"row{i}" for i in range(20)] + ["d1", "d9", "d10"]
    try:
        assert set(answers(side.inbox.claim(*known))) == {"completed"}
        assert side.walk()[1:] == (1, 0)
        assert set(answers(side.inbox.claim(*known))) == {"completed"}
        assert server.query("SELECT count(*)::int FROM onceward.inbox WHERE status = 'completed'")[0][0] == 0
        assert answers(side.inbox.claim("d15", "new")) == ["claimed", "claimed"]
    finally:
        side.close()


@pytest.mark.parametrize("later", [False, True])
def test_a_failover_forgets_no_id(private, later):  # noqa: F811 - the fixture
    """later: the last moves and expiries came after the standby had stopped, so that only the lost primary had them."""
    primary = private.postgres()
    side = filled(primary)
    standby = private.unstarted().init_standby(primary).start()
    if later:
        standby.stop()
    assert side.walk() == (20, 1, 0)
    side.add_entries(15)
    if not later:
        end = primary.query("SELECT pg_current_wal_flush_lsn()::text")[0][0]
        wait_until(lambda: standby.query("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (end,))[0][0], "the standby has all of it", 30)
    side.close()
    primary.kill()
    if later:
        standby.start()
    standby.query("SELECT pg_promote()")
    wait_until(lambda: not standby.query("SELECT pg_is_in_recovery()")[0][0], "the standby takes writes", 30)
    is_whole(standby)


def test_a_restored_database_forgets_no_id(private):  # noqa: F811
    server = private.postgres()
    side = filled(server)
    side.close()
    dump = subprocess.run([os.path.join(PostgreSQL.programs(), "pg_dump"), server.dsn()], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          check=True).stdout
    copy = server.create_database(f"copy_{uuid.uuid4().hex[:8]}")
    subprocess.run(["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-o", os.devnull, copy.dsn()], input=dump, check=True)
    is_whole(copy)
