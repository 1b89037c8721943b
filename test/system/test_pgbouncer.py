"""The whole way of messages through PgBouncer in transaction mode: sidecars, housekeeping and the application's transactions."""

import pytest

from rig.pooler import PgBouncer
from rig.private import bed_on, private_postgres  # noqa: F401 - fixtures
from rig.wait import wait_until

N = 200
IDS = [f"m{i}" for i in range(N)]


@pytest.fixture
def pooler(private_postgres):
    made = []

    def make(**settings):
        made.append(PgBouncer(private_postgres, **settings).start())
        return made[-1]

    yield make
    for p in made:
        p.stop()


def through(bed, pooler, **database):
    """The top of a sidecar's configuration, and the application's connections, through the pooler."""
    bed.app.postgres = pooler.client()
    return {"database": {"url": pooler.client().dsn(user="sidecar_login"), **database}}


def n_ready(queue):
    return queue.channel.queue_declare(queue.name, passive=True).method.message_count


def session_settings_of_others(pooler):
    """In transaction mode a pool keeps what another client of it has set."""
    other = pooler.client().connect(user="sidecar_login")
    with other.cursor() as cursor:
        cursor.execute("SET search_path = nowhere; SET synchronous_commit = off; SET enable_indexscan = off; SET datestyle = 'German'")
    other.close()


def handler_of(bed, completion):
    return bed.app.commit_and_answer if completion == "transaction" else bed.app.act_and_answer


def put_old_rows(bed):
    """Work for housekeeping: a completed row past the retention, and a claim that was never completed."""
    for message_id, status in (("past", "completed"), ("forgotten", "processing")):
        bed.rows("INSERT INTO onceward.inbox (consumer, message_id, status, attempt, token, fingerprint, received_at, alive_since,"
                 " token_expires_at, max_expires_at, completed_at, claimed_by)"
                 " SELECT %s, %s, %s, 1, gen_random_uuid(), '\\x00', t, t, t, t, CASE WHEN %s = 'completed' THEN t END, 'somebody'"
                 " FROM (SELECT clock_timestamp() - interval '9 days' AS t) x", bed.queue.name, message_id, status, status)


def said(sidecars, event, **fields):
    return [line for s in sidecars for line in s.find(event, **fields)]


@pytest.mark.short("auto-transaction")
@pytest.mark.parametrize("completion", ["transaction", "response"])
@pytest.mark.parametrize("prepared", ["auto", "off", "on"])
def test_messages_housekeeping_and_completions_through_a_pooler(bed_on, private_postgres, pooler, prepared, completion):
    if prepared == "on" and not PgBouncer.keeps_prepared_statements():
        pytest.skip("this pgbouncer knows no prepared statements in transaction mode")
    pool = pooler(default_pool_size=3)
    bed = bed_on(private_postgres)
    bed.app.handler = handler_of(bed, completion)
    put_old_rows(bed)
    top = through(bed, pool, prepared=prepared)
    session_settings_of_others(pool)
    sidecars = [bed.sidecar(top=top, completion=completion, token_window="60s") for _ in range(2)]
    bed.queue.publish_many(IDS)
    bed.queue.publish_many(IDS[:20])  # copies
    bed.wait_for_effects(IDS)
    for s in sidecars:
        s.wait_for_quiet()
    wait_until(lambda: bed.row("past") is None and bed.status("forgotten") == "failed", "housekeeping was done", 30, 0.1)
    bed.assert_once(*IDS)
    assert sorted(r.message_id for r in bed.app.posts()) == sorted(IDS) and {r.attempt for r in bed.app.posts()} == {1}
    assert sum(s.sum_of("duplicates") for s in sidecars) == 20
    lost = said(sidecars, "disconnected", peer="database") + said(sidecars, "database_error")
    assert lost == []
    gave_up = said(sidecars, "limits", reason=lambda r: "prepared" in r)
    if prepared != "auto" or PgBouncer.keeps_prepared_statements():
        assert gave_up == []
    bed.assert_acked()


def test_prepared_statements_that_the_pooler_loses_are_given_up_once(bed_on, private_postgres, pooler):
    """auto: the first that is lost is the last that is made; nothing is lost with it."""
    if PgBouncer.keeps_prepared_statements():
        pytest.skip("this pgbouncer keeps them")
    pool = pooler(default_pool_size=4, server_round_robin=1)
    bed = bed_on(private_postgres)
    sidecar = bed.sidecar(top=through(bed, pool), token_window="60s")
    others = [pool.client().connect(user="sidecar_login", autocommit=False) for _ in range(3)]
    for n in range(8):  # another of them lets its connection go each time, and the pool gives it to the sidecar
        with others[n % 3].cursor() as cursor:
            cursor.execute("SELECT 1")
        bed.queue.publish(f"m{n}")
        sidecar.wait_for("completed", message_id=f"m{n}")
        others[n % 3].rollback()
    for other in others:
        other.close()
    assert len(sidecar.find("limits", reason=lambda r: "loses prepared statements" in r)) == 1
    assert sidecar.find("disconnected") == [] and sidecar.find("database_error") == []
    assert {r.attempt for r in bed.app.posts()} == {1}
    bed.assert_once(*(f"m{n}" for n in range(8)))
    bed.assert_acked()


@pytest.mark.short("auto")
@pytest.mark.parametrize("prepared", ["auto", "off"])
def test_the_outbox_through_a_pooler_that_loses_prepared_statements(bed_on, private_postgres, pooler, prepared):
    """A sidecar without queues: its relay finds out by itself."""
    pool = pooler(default_pool_size=4, server_round_robin=1)
    bed = bed_on(private_postgres)
    sidecar = bed.sidecar(wait=False, top={**through(bed, pool, prepared=prepared), "queues": None, "outbox": {}})
    sidecar.wait_for("outbox_held")
    others = [pool.client().connect(user="sidecar_login", autocommit=False) for _ in range(3)]
    for n in range(8):  # as above
        with others[n % 3].cursor() as cursor:
            cursor.execute("SELECT 1")
        bed.rows("SELECT onceward.publish('', %s, '1'::jsonb, %s)", bed.queue.name, f"m{n}")
        wait_until(lambda: n_ready(bed.queue) == n + 1, lambda: f"{n + 1} are there: {n_ready(bed.queue)}", 30, 0.05)
        others[n % 3].rollback()
    for other in others:
        other.close()
    gave_up = prepared == "auto" and not PgBouncer.keeps_prepared_statements()
    assert len(sidecar.find("limits", reason=lambda r: "loses prepared statements" in r)) == gave_up
    assert sidecar.find("disconnected") == [] and sidecar.find("database_error") == [] and sidecar.find("outbox_left") == []


@pytest.mark.short("pooler-transaction")
@pytest.mark.parametrize("completion", ["transaction", "response"])
@pytest.mark.parametrize("what", ["pooler", "server"])
def test_the_pooler_or_the_server_behind_it_restarts_in_the_middle(bed_on, private_postgres, pooler, what, completion):
    pool = pooler(default_pool_size=40)
    bed = bed_on(private_postgres)
    bed.app.handler = bed.app.commit_and_answer if completion == "transaction" else bed.answer
    sidecar = bed.sidecar(top=through(bed, pool), completion=completion, token_window="60s", prefetch=N)
    bed.queue.publish_many(IDS)
    bed.app.wait_for_posts(80)
    mark = sidecar.mark()
    broken = pool if what == "pooler" else private_postgres
    broken.kill()
    lost = sidecar.wait_for("disconnected", peer="database", since=mark)
    assert lost["reason"]
    sidecar.wait_for("paused", reason="database_down", since=mark, deadline=30)
    bed.app._databases.clear()  # the idle ones are dead, and would fail messages that come afterwards
    broken.start()
    sidecar.wait_for("resumed", reason="database_down", since=mark, deadline=60)
    wait_until(lambda: bed.statuses() == {"completed": N}, lambda: f"all are completed; there are {bed.statuses()}", 60, 0.1)
    sidecar.wait_for_quiet()
    if completion == "transaction":
        bed.assert_once(*IDS)
    else:
        bed.assert_answered_once(IDS)
    # The application's own pool may find the server later than the sidecar's does: what it answers then is charged, up to the brake.
    assert {r.attempt for r in bed.app.posts()} <= ({1, 2} if completion == "transaction" and what == "server" else {1})
    assert bed.letters() == []
    bed.assert_acked()


def test_another_isolation_that_the_pooler_does_not_let_us_change_is_said(bed_on, private_postgres, pooler):
    """ignore_startup_parameters = options is common: then our settings are dropped without a word."""
    private_postgres.query("ALTER ROLE sidecar_login SET default_transaction_isolation = 'repeatable read'")
    try:
        pool = pooler(ignore_startup_parameters="extra_float_digits,options")
        bed = bed_on(private_postgres)
        sidecar = bed.sidecar(top=through(bed, pool), wait=False)
        assert "repeatable read" in sidecar.wait_for("paused", reason="refused", deadline=30)["detail"]
    finally:
        private_postgres.query("ALTER ROLE sidecar_login RESET default_transaction_isolation")
    pool.admin("RECONNECT")
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1", deadline=60)
    bed.assert_once("m1")
    bed.assert_acked()
