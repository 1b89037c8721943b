"""The database ends in the middle of work, politely and not, and comes back: nothing is lost, doubled or charged."""

import pytest

from rig.application import Gate
from rig.private import bed_on, private_postgres  # noqa: F401 - fixtures
from rig.wait import wait_until

N = 120
HOLD = [f"m{i}" for i in range(40, 48)]  # these are with the application when it happens
IDS = [f"m{i}" for i in range(N)]


def assert_uncharged(bed, sidecar):
    """But for failures that were written while the sidecar's own session still lived: the server ends them one after the other."""
    lost = sidecar.events.index(sidecar.find("disconnected", peer="database")[0])
    early = {e["message_id"] for e in sidecar.events[:lost] if e["event"] == "retry"}
    assert {r.attempt for r in bed.app.posts() if r.message_id not in early} == {1}
    assert not [r for r in bed.rows("SELECT message_id FROM onceward.inbox WHERE consumer = %s AND attempt > 1", bed.queue.name)
                if r["message_id"] not in early]
    assert bed.letters() == [] and len(early) < len(HOLD)


def break_in_the_middle(bed, handler, how):
    """Messages are with the application, others are being claimed and completed when the server ends. Answers the sidecar."""
    gate = Gate()

    def hold(request, reply):
        if request.message_id in HOLD and len(bed.app.posts(request.message_id)) == 1:
            return handler(request, reply, gate.wait)
        return handler(request, reply, None)

    bed.app.handler = hold
    sidecar = bed.sidecar(completion=bed.completion, token_window="60s", prefetch=N)
    bed.queue.publish_many(IDS)
    gate.wait_for_waiting(len(HOLD))
    bed.app.wait_for_posts(60)
    how()
    gate.open()
    lost = sidecar.wait_for("disconnected", peer="database")
    paused = sidecar.wait_for("paused", reason="database_down")
    assert lost["reason"] and paused["detail"]
    return sidecar


@pytest.mark.short("kill")
@pytest.mark.parametrize("how", ["stop", "crash", "kill"])
def test_a_restart_in_the_middle_of_transactions(bed_on, private_postgres, how):
    bed = bed_on(private_postgres)
    bed.completion = "transaction"
    sidecar = break_in_the_middle(bed, lambda request, reply, wait: bed.app.commit(request, before_commit=wait) and 200,
                                  getattr(private_postgres, how))
    mark = sidecar.mark()
    private_postgres.start()
    sidecar.wait_for("resumed", reason="database_down", since=mark, deadline=60)
    bed.wait_for_effects(IDS)
    sidecar.wait_for_quiet()
    bed.assert_once(*IDS)
    assert_uncharged(bed, sidecar)
    bed.assert_acked()


@pytest.mark.short("kill")
@pytest.mark.parametrize("how", ["stop", "crash", "kill"])
def test_a_restart_before_answers_are_settled(bed_on, private_postgres, how):
    bed = bed_on(private_postgres)
    bed.completion = "response"

    def handler(request, reply, wait):
        if wait:
            wait()
        return bed.answer(request, reply)

    sidecar = break_in_the_middle(bed, handler, getattr(private_postgres, how))
    wait_until(lambda: set(HOLD) <= set(bed.answered), "those were answered while there was no database")
    mark = sidecar.mark()
    private_postgres.start()
    sidecar.wait_for("resumed", reason="database_down", since=mark, deadline=60)
    wait_until(lambda: len(bed.answered) >= N, lambda: f"{len(bed.answered)} of {N} are answered", 60)
    sidecar.wait_for_quiet()
    bed.assert_answered_once(IDS)
    assert len(bed.app.posts()) == N
    assert_uncharged(bed, sidecar)
    bed.assert_acked()
