"""No message is lost and no effect happens twice, whatever the application and the sidecar do in between."""

import random

import pytest

from rig.application import Gate
from rig.wait import hold_true, wait_until


def test_a_message_goes_the_whole_way(bed):
    sidecar = bed.sidecar()
    bed.queue.publish("m1", b"hello")
    sidecar.wait_for("completed", message_id="m1")
    bed.assert_once("m1")
    assert [r.body for r in bed.app.posts()] == [b"hello"]
    bed.assert_acked()


def test_a_message_goes_the_whole_way_with_response_completion(bed):
    bed.app.handler = bed.app.act_and_answer
    sidecar = bed.sidecar(completion="response")
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    bed.assert_once("m1")
    assert bed.row("m1")["http_status"] == 204
    bed.assert_acked()


@pytest.mark.parametrize("completion", ["transaction", "response"])
def test_a_copy_of_a_completed_message_is_acked_without_a_post(bed, completion):
    bed.app.handler = bed.app.commit_and_answer if completion == "transaction" else bed.app.act_and_answer
    sidecar = bed.sidecar(completion=completion)
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    bed.queue.publish("m1")
    sidecar.wait_for("duplicate", message_id="m1")
    bed.assert_once("m1")
    assert len(bed.app.posts()) == 1
    bed.assert_acked()


def test_commit_then_the_sidecar_is_killed_before_it_hears_of_it(bed):
    gate = Gate()

    def handler(request, reply):
        bed.app.commit(request)
        gate.wait()

    bed.app.handler = handler
    first = bed.sidecar()
    bed.queue.publish("m1")
    gate.wait_for_waiting()
    first.kill()
    gate.open()
    second = bed.sidecar()
    second.wait_for("duplicate", message_id="m1")
    bed.assert_once("m1")
    assert len(bed.app.posts()) == 1
    bed.assert_acked()


def garbage(reply):
    reply.raw(b"\x00\xff\xfe not http at all\r\n\r\n")
    reply.close()


def half_a_response(reply):
    reply.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
    reply.close()


@pytest.mark.parametrize("misdeed", [
    pytest.param(lambda reply: reply.close(), id="closes without a word"),
    pytest.param(lambda reply: reply.reset(), id="resets"),
    pytest.param(garbage, id="answers garbage"),
    pytest.param(half_a_response, id="answers half a response"),
    pytest.param(lambda reply: reply.status(500), id="answers 500"),
    pytest.param(lambda reply: reply.status(400), id="answers 400"),
    pytest.param(lambda reply: reply.status(429), id="answers 429"),
    pytest.param(lambda reply: reply.status(503), id="answers 503"),
])
def test_commit_then_the_application(bed, misdeed):
    def handler(request, reply):
        bed.app.commit(request)
        misdeed(reply)

    bed.app.handler = handler
    sidecar = bed.sidecar()
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    bed.assert_once("m1")
    assert len(bed.app.posts()) == 1 and bed.letters() == []
    bed.assert_acked()


def test_a_committed_completion_outranks_the_answer_and_the_contradiction_is_logged(bed):
    def handler(request, reply):
        bed.app.commit(request)
        return 500

    bed.app.handler = handler
    sidecar = bed.sidecar()
    bed.queue.publish("m1")
    sidecar.wait_for("answer_contradicts_row", message_id="m1")
    sidecar.wait_for("completed", message_id="m1")
    bed.assert_once("m1")
    bed.assert_acked()


def test_commit_then_the_application_dies(bed):
    def handler(request, reply):
        bed.app.commit(request)
        bed.app.die()

    bed.app.handler = handler
    sidecar = bed.sidecar()
    bed.queue.publish("m1")
    bed.wait_for_status("m1", "completed")
    wait_until(lambda: bed.app._listener is None, "the application is dead")
    bed.app.start()
    sidecar.wait_for("completed", message_id="m1")
    bed.assert_once("m1")
    assert len(bed.app.posts()) == 1
    bed.assert_acked()


def test_commit_then_no_answer_within_the_window(bed):
    gate = Gate()

    def handler(request, reply):
        bed.app.commit(request)
        gate.wait()

    bed.app.handler = handler
    sidecar = bed.sidecar(token_window="2s")
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    gate.open()
    bed.assert_once("m1")
    assert len(bed.app.posts()) == 1
    bed.assert_acked()


@pytest.mark.parametrize("completion", ["transaction", "response"])
def test_the_same_message_many_times_at_once_in_one_sidecar_is_one_post(bed, completion):
    gate = Gate()

    def handler(request, reply):
        gate.wait()
        bed.app.commit(request, complete=completion == "transaction")
        return 200

    bed.app.handler = handler
    sidecar = bed.sidecar(completion=completion, token_window="60s")
    bed.queue.publish_many(["m1"] * 40)
    gate.wait_for_waiting()
    sidecar.wait_for("stats", received=lambda n: n > 0)
    bed.queue.wait_for_ready(0)
    gate.open()
    sidecar.wait_for_quiet()
    bed.assert_once("m1")
    assert len(bed.app.posts()) == 1
    assert sidecar.sum_of("duplicates") == 39 and sidecar.sum_of("completed") == 1
    bed.assert_acked()


@pytest.mark.parametrize("completion", ["transaction", "response"])
def test_the_same_message_in_two_sidecars_is_one_post_and_an_ordinary_outcome(bed, completion):
    gate = Gate()

    def handler(request, reply):
        gate.wait()
        bed.app.commit(request, complete=completion == "transaction")
        return 200

    bed.app.handler = handler
    sidecars = [bed.sidecar(completion=completion, token_window="60s") for _ in range(2)]
    bed.queue.publish_many(["m1", "m1"])
    gate.wait_for_waiting()
    wait_until(lambda: [s for s in sidecars if s.find("parked", message_id="m1")], "the loser parks")
    gate.open()
    wait_until(lambda: sum(len(s.find("duplicate", message_id="m1")) for s in sidecars) == 1, "the loser's copy is acked")
    wait_until(lambda: sum(len(s.find("completed", message_id="m1")) for s in sidecars) == 1, "the winner's copy is acked")
    bed.assert_once("m1")
    assert len(bed.app.posts()) == 1
    assert not [e for s in sidecars for e in s.events if e["level"] == "error"]
    bed.assert_acked()


def test_a_thousand_messages_with_copies_have_one_effect_each(bed):
    sidecar = bed.sidecar()
    ids = [f"m{i}" for i in range(600)]
    sent = ids + random.Random(1).choices(ids, k=400)
    random.Random(2).shuffle(sent)
    bed.queue.publish_many(sent)
    bed.wait_for_effects(ids)
    sidecar.wait_for_quiet()
    bed.assert_once(*ids[:20])
    assert set(bed.app.effects().values()) == {1} and bed.statuses() == {"completed": 600}
    assert len(bed.app.posts()) == 600
    bed.assert_acked()


def test_what_is_new_among_a_flood_of_copies_is_posted_once_and_every_copy_acked(bed):
    bed.app.handler = bed.app.act_and_answer
    old, new = [f"old{i}" for i in range(20)], [f"new{i}" for i in range(40)]
    sidecar = bed.sidecar(completion="response", prefetch=256, forward={"concurrency": 8})
    bed.queue.publish_many(old)
    bed.wait_for_effects(old)
    sidecar.wait_for_quiet()
    sent = random.Random(1).choices(old, k=2000) + new + random.Random(2).choices(new, k=20)
    random.Random(3).shuffle(sent)
    mark = sidecar.mark()
    bed.queue.publish_many(sent)
    bed.wait_for_effects(old + new)
    sidecar.wait_for_quiet()
    bed.assert_once(*old, *new)
    assert len(bed.app.posts()) == 60
    assert sum(e["duplicates"] for e in sidecar.find("stats", mark)) == 2020
    bed.assert_acked()


def test_sidecars_killed_again_and_again_lose_and_double_nothing(bed):
    """Two sidecars under load, one killed with -9 whenever some more messages went through."""
    sidecars = [bed.sidecar(), bed.sidecar()]
    ids = [f"m{i}" for i in range(400)]
    sent = ids + random.Random(3).choices(ids, k=200)
    random.Random(4).shuffle(sent)
    bed.queue.publish_many(sent)
    for kill in range(4):
        bed.app.wait_for_posts(60 * (kill + 1), deadline=60)
        victim = sidecars[kill % 2]
        victim.kill()
        victim.start()
    bed.wait_for_effects(ids)
    wait_until(lambda: bed.statuses() == {"completed": 400}, "all rows are completed", 30, 0.1)
    bed.queue.wait_for_ready(0)
    for sidecar in sidecars:
        sidecar.wait_for_quiet()
    assert set(bed.app.effects().values()) == {1} and bed.letters() == []
    bed.assert_acked()


def test_nothing_is_acked_before_its_completion_is_committed(bed):
    """The application answers at once and commits never: a sidecar killed at any moment gives the message back."""
    bed.app.handler = bed.app.only_answer
    sidecar = bed.sidecar(commit_grace="30s", token_window="60s")
    bed.queue.publish("m1")
    bed.app.wait_for_posts(1)
    hold_true(lambda: bed.status("m1") == "processing", "the row waits for the commit", 0.3)
    sidecar.kill()
    bed.queue.wait_for_ready(1)


def test_the_outcome_of_a_settle_whose_answer_was_lost_is_read_before_anything_else(bed):
    """The database commits the completion, the connection dies before the sidecar hears of it."""
    link = bed.new_proxy(bed.postgres.port)
    gate = Gate()

    def handler(request, reply):
        bed.app.commit(request, complete=False)
        gate.wait()
        return 200

    bed.app.handler = handler
    sidecar = bed.sidecar(completion="response", token_window="10s",
                          top={"database": {"url": bed.postgres.dsn(user="sidecar_login", port=link.port)}})
    bed.queue.publish("m1")
    gate.wait_for_waiting()
    link.freeze(up=False)
    gate.open()
    bed.wait_for_status("m1", "completed")
    link.cut()
    link.thaw()
    wait_until(lambda: sidecar.find("completed", message_id="m1") or sidecar.find("duplicate", message_id="m1"), "it is acked")
    assert len(bed.app.posts()) == 1
    bed.assert_acked()


@pytest.mark.parametrize("completion", ["transaction", "response"])
def test_the_outcome_of_a_claim_whose_answer_was_lost_costs_nothing(bed, completion):
    """The claim commits, its answer never comes: the sidecar finds its own token again and charges no attempt."""
    link = bed.new_proxy(bed.postgres.port)
    bed.app.handler = bed.app.commit_and_answer if completion == "transaction" else bed.app.act_and_answer
    sidecar = bed.sidecar(completion=completion, token_window="10s",
                          top={"database": {"url": bed.postgres.dsn(user="sidecar_login", port=link.port)}})
    link.freeze(up=False)
    bed.queue.publish("m1")
    bed.wait_for_status("m1", "processing")
    link.cut()
    link.thaw()
    sidecar.wait_for("completed", message_id="m1")
    assert [r.attempt for r in bed.app.posts()] == [1]
    bed.assert_once("m1")
    bed.assert_acked()
