"""Parked deliveries: they use up neither the prefetch nor anybody's patience."""

import pytest

from rig.application import Gate
from rig.wait import hold_true, wait_until


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_more_deliveries_in_backoff_than_the_prefetch_and_the_others_go_on(bed, kind):
    if kind == "quorum":
        bed.queue = bed.new_queue("-quorum", arguments={"x-queue-type": "quorum"})
    mended = Gate()

    def handler(request, reply):
        if request.message_id.startswith("bad") and not mended._event.is_set():
            return 500
        return bed.app.commit_and_answer(request, reply)

    bed.app.handler = handler
    sidecar = bed.sidecar(queue=bed.queue, prefetch=8, forward={"concurrency": 4}, brake=0,
                          retry={"max_attempts": 1000, "backoff": "2s", "max_backoff": "4s"})
    bad = [f"bad{i}" for i in range(40)]
    good = [f"good{i}" for i in range(40)]
    bed.queue.publish_many(bad + good)
    bed.wait_for_effects(good)
    assert not set(bad) & set(bed.app.effects())
    mended.open()
    bed.wait_for_effects(bad)
    sidecar.wait_for_quiet()
    bed.assert_once(*bad, *good)
    assert not [r for r in bed.app.posts() if r.header("Onceward-Redelivered") == "true"], "nothing was given back to make room"
    bed.assert_acked()


def test_at_max_parked_it_says_so_and_goes_on_when_one_is_due(bed):
    mended = Gate()
    bed.app.handler = lambda request, reply: bed.app.commit_and_answer(request, reply) if mended._event.is_set() else 500
    sidecar = bed.sidecar(prefetch=8, max_parked=20, forward={"concurrency": 4}, brake=0,
                          retry={"max_attempts": 1000, "backoff": "1s", "max_backoff": "2s"})
    ids = [f"m{i}" for i in range(60)]
    bed.queue.publish_many(ids)
    full = sidecar.wait_for("parked_full")
    assert full["n"] >= 20 and full["errors"] == ["answered 500"], full
    assert max(e["parked"] for e in sidecar.find("stats")) <= 20 + 8 if sidecar.find("stats") else True
    mended.open()
    bed.wait_for_effects(ids)
    sidecar.wait_for_quiet()
    bed.assert_once(*ids)
    bed.assert_acked()


def test_a_copy_held_elsewhere_is_parked_and_acked_when_the_holder_completes(bed):
    gate = Gate()

    def handler(request, reply):
        if request.message_id == "held":
            gate.wait()
        return bed.app.commit_and_answer(request, reply)

    bed.app.handler = handler
    first = bed.sidecar(token_window="20s")
    bed.queue.publish("held")
    gate.wait_for_waiting()
    second = bed.sidecar(token_window="20s")
    bed.queue.publish_many(["held"] * 4 + [f"m{i}" for i in range(20)])
    bed.wait_for_effects([f"m{i}" for i in range(20)])
    wait_until(lambda: second.find("parked", message_id="held"), "the copy is parked in the second")
    hold_true(lambda: len(bed.app.posts("held")) == 1, "no second POST while the token lives", 1.2)
    gate.open()
    wait_until(lambda: sum(len(s.find("duplicate", message_id="held")) for s in (first, second)) >= 1, "copies are acked")
    first.wait_for_quiet()
    second.wait_for_quiet()
    bed.assert_once("held")
    assert len(bed.app.posts("held")) == 1
    bed.assert_acked()


def test_copies_beyond_what_follows_wait_for_the_row(bed):
    gate = Gate()

    def handler(request, reply):
        gate.wait()
        return bed.app.commit_and_answer(request, reply)

    bed.app.handler = handler
    sidecar = bed.sidecar(token_window="20s")
    bed.queue.publish_many(["m1"] * 100)
    gate.wait_for_waiting()
    bed.queue.wait_for_ready(0)
    gate.open()
    sidecar.wait_for_quiet()
    assert len(bed.app.posts()) == 1
    bed.assert_once("m1")
    bed.assert_acked()
