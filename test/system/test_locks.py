"""No statement of the sidecar waits for a row that an application has locked."""

import threading
import time
import uuid

import pytest

from rig.application import Gate
from rig.wait import wait_until
from test_commands import good

N = 300


def run_through(bed, sidecar, prefix):
    """Seconds for N messages, a third of which fail at first, so that claims, settles and fails are among them."""
    ids = [f"{prefix}{i}" for i in range(N)]
    start = time.monotonic()
    bed.queue.publish_many(ids)
    wait_until(lambda: bed.statuses().get("completed", 0) >= bed.n_before + N, "all went through", 60, 0.02)
    took = time.monotonic() - start
    bed.n_before += N
    return took


@pytest.mark.alone
def test_an_application_that_holds_its_transaction_open_delays_nobody_and_is_not_failed(bed):
    gate = Gate()
    failed = set()
    bed.n_before = 0

    def handler(request, reply):
        if request.message_id == "slow":
            bed.app.commit(request, before_commit=gate.wait)
            return 200
        if request.message_id.endswith("3") and request.message_id not in failed:
            failed.add(request.message_id)
            return 500
        return bed.app.commit_and_answer(request, reply)

    bed.app.handler = handler
    sidecar = bed.sidecar(token_window="2s", retry={"max_attempts": 3, "backoff": "10ms", "max_backoff": "20ms"})
    run_through(bed, sidecar, "warm")
    without = min(run_through(bed, sidecar, "a"), run_through(bed, sidecar, "b"))
    bed.queue.publish("slow")
    gate.wait_for_waiting()
    bed.queue.publish("slow")  # a copy must not wait either
    with_it = min(run_through(bed, sidecar, "c"), run_through(bed, sidecar, "d"))
    # A statement that waits for the lock ends after a second, with all that is in it.
    assert with_it <= without * 4 + 2, f"{N} messages: {without:.2f} s without, {with_it:.2f} s with an open transaction"
    wait_until(lambda: bed.row("slow")["left"].total_seconds() < -3, "its window has long ended", 20)
    line = sidecar.wait_for("row_locked", message_id="slow")
    assert line["pid"] > 0 and line["age_ms"] > 0 and line["locked_ms"] > 0
    assert "application" in line and "state" in line
    after = run_through(bed, sidecar, "e")
    assert after <= without * 4 + 2, f"{N} messages: {without:.2f} s without, {after:.2f} s past the window"
    assert bed.status("slow") == "processing" and len(bed.app.posts("slow")) == 1
    gate.open()
    sidecar.wait_for("completed", message_id="slow")
    assert len(bed.app.posts("slow")) == 1 and sidecar.find("retry", message_id="slow") == []
    bed.assert_once("slow")
    bed.assert_acked()


def test_a_row_that_a_prepared_transaction_holds_is_said_with_its_name(bed):
    gid = "two-phase-" + bed.queue.name

    def handler(request, reply):
        connection = bed.postgres.connect(user="app_login")
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT onceward.complete(%s)", (request.token,))
            cursor.execute(f"PREPARE TRANSACTION '{gid}'")
        connection.close()
        return 200

    bed.app.handler = handler
    sidecar = bed.sidecar(token_window="2s", commit_grace="100ms")
    bed.queue.publish("m1")
    try:
        line = sidecar.wait_for("row_locked", message_id="m1", deadline=20)
        assert line["gid"] == gid and line["state"] == "prepared" and line["age_ms"] > 0 and "pid" not in line
        # Only the ten oldest are shown: what other tests have left unfinished is older.
        bed.postgres.query("DELETE FROM onceward.inbox WHERE consumer <> %s AND status <> 'completed'", (bed.queue.name,))
        out = good("status", "--config", sidecar.config_path)
        assert f"Row m1 is locked by the prepared transaction {gid} of app_login" in out, out
    finally:
        bed.postgres.query(f"COMMIT PREPARED '{gid}'")
    sidecar.wait_for("completed", message_id="m1")
    bed.assert_acked()


def test_a_row_whose_holder_may_not_be_seen_is_said_with_what_can(bed):
    role = "sidecar_" + uuid.uuid4().hex[:8]
    bed.postgres.query(f"CREATE ROLE {role} LOGIN IN ROLE onceward_sidecar")
    gate = Gate()

    def handler(request, reply):
        bed.app.commit(request, before_commit=gate.wait)
        return 200

    bed.app.handler = handler
    sidecar = bed.sidecar(token_window="2s", top={"database": {"url": bed.postgres.dsn(user=role)}})
    try:
        line = sidecar.wait_for("stats", dead_letters=lambda n: n is not None)
        assert line["oldest_snapshot_ms"] is None and "pg_read_all_stats" in line["oldest_snapshot_reason"]
        bed.queue.publish("m1")
        line = sidecar.wait_for("row_locked", message_id="m1", deadline=20)
        assert line["pid"] > 0 and line["state"] is None and line["age_ms"] > 0 and "pg_read_all_stats" in line["reason"]
        bed.postgres.query(f"GRANT pg_read_all_stats TO {role}")
        line = sidecar.wait_for("row_locked", message_id="m1", deadline=20, state=lambda state: state)
        assert line["age_ms"] > 0 and "reason" not in line
        sidecar.wait_for("stats", oldest_snapshot_ms=lambda ms: ms is not None)
    finally:
        gate.open()
    sidecar.wait_for("completed", message_id="m1")
    sidecar.term()
    bed.postgres.query(f"DROP ROLE {role}")


@pytest.mark.parametrize("answer", [500, 503, 200], ids=["to-fail", "to-release", "to-check"])
def test_max_hold_holds_for_a_row_that_its_own_application_keeps_locked(bed, answer):
    """It has answered, and its transaction goes on: what is to be written about it cannot be. At max_hold the delivery goes back, and the
    row is left as it is."""
    gate, at_work = Gate(), threading.Event()

    def handler(request, reply):
        bed.app.later(lambda: bed.app.try_commit(request, before_commit=lambda: (at_work.set(), gate.wait())))
        at_work.wait(60)
        return answer

    bed.app.handler = handler
    sidecar = bed.sidecar(token_window="2s", max_window="2s", max_hold="5s")
    bed.queue.publish("m1")
    returned = sidecar.wait_for("returned", deadline=40)
    assert returned["n"] == 1 and "max_hold" in returned["reason"] and bed.status("m1") == "processing"
    sidecar.wait_for("stats", received_total=lambda n: n >= 2)
    gate.open()
    bed.wait_for_status("m1", "completed")
    sidecar.wait_for("duplicate", message_id="m1")
    assert len(bed.app.posts()) == 1
    bed.assert_once("m1")
    bed.assert_acked()


def test_another_sidecar_does_not_take_a_locked_row_over(bed):
    gate = bed.leave_locked("m1", token_window="2s")
    other = bed.sidecar(token_window="2s")
    wait_until(lambda: bed.row("m1")["left"].total_seconds() < -3, "past window and grace", 20)
    gate.open()
    other.wait_for("duplicate", message_id="m1")
    assert len(bed.app.posts()) == 1
    bed.assert_once("m1")
    bed.assert_acked()
