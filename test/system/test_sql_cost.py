"""What must not grow or change with the size of the table: pages touched, HOT updates, and no serialization failures."""

import threading
import uuid

import psycopg2
import pytest

from rig import inbox_sql
from rig.inbox_sql import Application, Inbox, answers
from rig.wait import wait_until


@pytest.fixture
def pg(raw_postgres):
    """A database of its own: the tests here empty the table."""
    database = raw_postgres.create_database(f"cost_{uuid.uuid4().hex[:8]}")
    inbox_sql.load(database)
    yield database
    raw_postgres.query(f'DROP DATABASE "{database.database}" WITH (FORCE)', database="postgres")


def fill(pg, n):
    """Completed rows of the same consumer, until there are n. Without ANALYZE: the session under test keeps its plans."""
    pg.query("INSERT INTO onceward.inbox (consumer, message_id, status, attempt, token, fingerprint, received_at, alive_since,"
             " token_expires_at, max_expires_at, completed_at, claimed_by)"
             " SELECT 'c', md5(i::text), 'completed', 1, md5(i::text)::uuid, '\\x00', t, t, t, t, t, 'a'"
             " FROM generate_series((SELECT count(*) FROM onceward.inbox) + 1, %s) i, clock_timestamp() t", (n,))


def test_pages_do_not_depend_on_the_size(pg):
    """The plans are made on an empty, analysed table: the trap that plain statements fall into."""
    pg.query("TRUNCATE onceward.inbox")
    pg.query("VACUUM ANALYZE onceward.inbox")
    inbox, app = Inbox(pg, "c"), Application(pg)
    for n in range(8):
        inbox.claim(f"warm{n}")
        inbox.settle(f"warm{n}")
        inbox.claim(f"retry{n}")
        inbox.fail(f"retry{n}", delay=0)
        inbox.claim(f"retry{n}")
        app.complete(inbox.token(f"retry{n}"))
    batch = 64
    touched = {}
    for size in (0, 10 ** 3, 10 ** 6):
        fill(pg, size)
        ids = [uuid.uuid4().hex for _ in range(batch)]
        touched[size] = {}

        def measure(name, call):
            touched[size][name] = call(*ids) / batch

        measure("claim", lambda *i: inbox.claim(*i, explain=True))
        inbox.fail(*sorted(ids), delay=0)
        measure("claim again", lambda *i: inbox.claim(*i, explain=True))
        measure("settle", lambda *i: inbox.settle(*i, explain=True))
        measure("duplicate", lambda *i: inbox.claim(*i, explain=True))
        one = uuid.uuid4().hex
        inbox.claim(one)
        touched[size]["complete"] = app.pages("SELECT onceward.complete(%s)", inbox.token(one))
    print(touched)
    for name in touched[0]:
        small, large = touched[0][name], touched[10 ** 6][name]
        # Two more levels of the index, on each of a few descents; a scan of the table would be 30,000 pages.
        assert large <= small * 1.6 + 10, f"{name}: {small} pages on a small table, {large} on a large one"
    inbox.query("SELECT onceward.sidecar_register('c', '/', 'q', NULL)")
    walked = inbox.pages("SELECT * FROM onceward.sidecar_keep_house('c', 'a', 3600000, 3600000, 0, 0, NULL)")
    print(walked)
    # The 8 pages of a piece, and what planning reads the first time; the table has 38,000.
    assert 8 < walked < 1_000
    inbox.close()
    app.close()


def test_completions_are_hot(pg):
    inbox, app = Inbox(pg, "c"), Application(pg)
    n, batch = 2_560, 256
    for start in range(0, n, batch):
        ids = [uuid.uuid4().hex for _ in range(batch)]
        assert answers(inbox.claim(*ids)) == ["claimed"] * batch
        half = sorted(ids)[::2]
        assert answers(inbox.settle(*half)) == ["completed"] * len(half)
        for i in set(ids) - set(half):
            app.complete(inbox.token(i))
    inbox.close()
    app.close()

    def statistics():
        updated, hot = pg.query("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'inbox'")[0]
        return updated == n and (updated, hot)

    updated, hot = wait_until(statistics, f"{n} updates in the statistics")
    assert hot >= 0.99 * updated, f"{hot} of {updated} updates were HOT"


def test_serializable_applications_do_not_disturb_each_other(pg):
    """All have completed before the first commits. With a sequential scan in complete() most of them fail."""
    pg.query("CREATE TABLE ledger (id text); GRANT INSERT ON ledger TO app_login")
    n = 40
    inbox = Inbox(pg, "c")
    ids = [f"m{i:02}" for i in range(n)]
    inbox.claim(*ids)
    pg.query("VACUUM ANALYZE onceward.inbox")  # two pages: reading them all looks cheaper than any index
    failures = []
    together = threading.Barrier(n)

    def run(i):
        app = Application(pg)
        try:
            app.begin("SERIALIZABLE")
            app.complete(inbox.token(i))
            app.query("INSERT INTO ledger VALUES (%s)", i)
            together.wait(120)
            app.commit()
        except psycopg2.Error as error:
            failures.append(error.pgcode)
        finally:
            app.close()

    threads = [threading.Thread(target=run, args=(i,)) for i in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
    assert failures == []
    assert answers(inbox.look(*ids)) == ["completed"] * n
    inbox.close()
