"""The application's uses of a token: complete it once, extend it, answer 202 and take its time."""

import re
import threading

import psycopg2
import psycopg2.extensions
import pytest

from rig.application import Gate, Script
from rig.wait import hold_true, wait_until

TOKEN = re.compile(r"^ow1\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{22}$")


def test_a_token_looks_like_its_grammar(bed):
    sidecar = bed.sidecar()
    longest = "ä" * 127 + "x"
    bed.queue.publish_many(["m1", longest])
    sidecar.wait_for("completed", n=2)
    for request in bed.app.posts():
        assert TOKEN.match(request.token) and len(request.token) <= 720


def test_the_same_token_in_two_successive_transactions_is_one_effect(bed):
    outcomes = []

    def handler(request, reply):
        outcomes.append(bed.app.try_commit(request))
        outcomes.append(bed.app.try_commit(request))
        return 200

    bed.app.handler = handler
    sidecar = bed.sidecar()
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    assert outcomes == [None, "OW003"]
    bed.assert_once("m1")


def test_the_same_token_in_two_concurrent_transactions_is_one_effect(bed):
    outcomes = []

    def handler(request, reply):
        inside = threading.Event()
        other = threading.Thread(target=lambda: outcomes.append(bed.app.try_commit(request)))

        def meanwhile():
            other.start()
            inside.set()
            wait_until(lambda: bed.rows("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND usename = 'app_login' "
                               "AND wait_event_type = 'Lock'"),
                       "the other transaction waits for this one")

        outcomes.append(bed.app.try_commit(request, before_commit=meanwhile))
        other.join(60)
        return 200

    bed.app.handler = handler
    sidecar = bed.sidecar(token_window="20s")
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    assert sorted(outcomes, key=str) == [None, "OW003"] or sorted(outcomes, key=str) == ["OW003", None]
    bed.assert_once("m1")


@pytest.mark.parametrize("token", ["", "ow1", "ow1.", "ow1.x.y", "ow2.YQBi.AAAAAAAAAAAAAAAAAAAAAA", "ow1.YQBi.AAAA", "ow1.%%%.AAAAAAAAAAAAAAAAAAAAAA",
                                   "ow1._wBi.AAAAAAAAAAAAAAAAAAAAAA", "ow1.YWI.AAAAAAAAAAAAAAAAAAAAAA", "x" * 100000, None], ids=range(11))
def test_a_malformed_token_raises_OW002(bed, token):
    for call in ("onceward.complete(%s)", "onceward.complete(%s, 'result')", "onceward.extend(%s, 5)", "onceward.complete_all(ARRAY[%s])",
                 "onceward.complete_valid(ARRAY[%s])", "onceward.extend_all(ARRAY[%s], 5)"):
        with pytest.raises(psycopg2.Error) as e:
            bed.postgres.query("SELECT " + call, (token,), user="app_login")
        assert e.value.pgcode == "OW002"


def test_an_unknown_token_raises_OW001(bed):
    with pytest.raises(psycopg2.Error) as e:
        bed.postgres.query("SELECT onceward.complete('ow1.YQBi.AAAAAAAAAAAAAAAAAAAAAA')", user="app_login")
    assert e.value.pgcode == "OW001"


def test_complete_keeps_the_result(bed):
    bed.app.handler = lambda request, reply: bed.app.commit(request, result='{"invoice": 17}') and 200
    sidecar = bed.sidecar()
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    assert bed.row("m1")["result"] == '{"invoice": 17}'
    bed.assert_once("m1")


def test_a_transaction_that_is_rolled_back_completes_nothing(bed):
    bed.expects_errors = True

    def rolled_back(request, reply):
        bed.app.commit(request, before_commit=lambda: 1 / 0)

    bed.app.handler = Script(rolled_back, bed.app.commit_and_answer)
    sidecar = bed.sidecar()
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    assert [r.attempt for r in bed.app.posts()] == [1, 2]
    bed.assert_once("m1")


def test_202_and_completion_later(bed):
    gate = Gate()

    def handler(request, reply):
        bed.app.later(lambda: (gate.wait(), bed.app.commit(request)))
        return 202

    bed.app.handler = handler
    sidecar = bed.sidecar(token_window="20s", commit_grace="100ms", prefetch=8, forward={"concurrency": 2})
    ids = [f"m{i}" for i in range(6)]
    bed.queue.publish_many(ids)
    gate.wait_for_waiting(2)
    hold_true(lambda: len(bed.app.posts()) == 2, "accepted messages keep their slots, and have not failed", 0.5)
    sidecar.wait_for("stats", accepted=2, in_flight=0)
    gate.open()
    sidecar.wait_for("completed", n=6)
    assert {r.attempt for r in bed.app.posts()} == {1}
    bed.assert_once(*ids)
    bed.assert_acked()


def test_202_and_never(bed):
    bed.app.handler = Script(202, bed.app.commit_and_answer)
    sidecar = bed.sidecar(token_window="2s")
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    first, second = bed.app.posts()
    assert second.attempt == 2 and second.at - first.at >= 1.8
    bed.assert_once("m1")
    bed.assert_acked()


def test_202_is_an_ordinary_success_in_response_completion(bed):
    bed.app.handler = Script(202)
    sidecar = bed.sidecar(completion="response")
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    assert len(bed.app.posts()) == 1


def expired(bed, message_id, seconds):
    """Until the first window is surely over, by the database's clock."""
    start = bed.rows("SELECT clock_timestamp() AS now")[0]["now"]
    wait_until(lambda: (bed.rows("SELECT clock_timestamp() AS now")[0]["now"] - start).total_seconds() > seconds, "time passes")


@pytest.mark.parametrize("answer_first", [True, False], ids=["after 202", "while the request is open"])
def test_extend_gives_a_long_job_more_time(bed, answer_first):
    def handler(request, reply):
        if answer_first:
            reply.status(202)
        assert not isinstance(bed.app.extend(request, 20), str)
        expired(bed, "m1", 3)
        bed.app.commit(request)
        return 200

    bed.app.handler = handler
    sidecar = bed.sidecar(token_window="2s")
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    assert len(bed.app.posts()) == 1 and sidecar.find("token_expired") == []
    bed.assert_once("m1")
    bed.assert_acked()


def test_extend_is_capped_never_shortens_and_refuses_nonsense(bed):
    seen = {}

    def handler(request, reply):
        before = bed.row("m1")["token_expires_at"]
        seen["shorter"] = bed.app.extend(request, 0.001) >= before
        seen["nonsense"] = [bed.app.extend(request, seconds) for seconds in (0, -1, None, float("nan"))]
        bed.app.extend(request, 1e9)
        seen["left"] = bed.row("m1")["left"].total_seconds()
        bed.app.commit(request)
        seen["used"] = bed.app.extend(request, 5)
        return 200

    bed.app.handler = handler
    sidecar = bed.sidecar(token_window="5s", max_window="30s")
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    assert seen["shorter"] and seen["nonsense"] == ["OW002"] * 4 and 20 <= seen["left"] <= 30.1 and seen["used"] == "OW003"


def test_forty_serializable_applications_complete_their_tokens_at_once(bed):
    gate = Gate()
    states = []

    def handler(request, reply):
        if request.message_id in warm:
            bed.app.commit(request)
            return 200
        connection = bed.postgres.connect(user="app_login", autocommit=False)
        connection.set_session(isolation_level=psycopg2.extensions.ISOLATION_LEVEL_SERIALIZABLE)
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
                gate.wait()
                cursor.execute("SELECT onceward.complete(%s)", (request.token,))
                cursor.execute("INSERT INTO app.ledger (application, message_id) VALUES (%s, %s)",
                               (bed.app.name, request.message_id))
            connection.commit()
            states.append(None)
        except psycopg2.Error as e:
            states.append(e.pgcode)
        finally:
            connection.close()
        return 200

    bed.app.handler = handler
    warm = [f"warm{i}" for i in range(45)]  # each good answer lets one more be out
    sidecar = bed.sidecar(forward={"concurrency": 40}, token_window="60s")
    bed.queue.publish_many(warm)
    sidecar.wait_for("completed", n=len(warm))
    ids = [f"m{i}" for i in range(40)]
    bed.queue.publish_many(ids)
    gate.wait_for_waiting(40)
    gate.open()
    sidecar.wait_for("completed", n=len(warm) + 40)
    assert states == [None] * 40
    bed.assert_once(*warm, *ids)
