"""How a pause ends, and what becomes of the messages meanwhile: only an answer shows that an application works which has said that it does
not, and what it cannot take goes to other replicas. How long it waits between two tries, and how much it lets out then, is measured by the
simulator."""

import threading
import time

import pytest

from rig.application import Gate
from rig.wait import hold_true, wait_until

QUICK = {"interval": "50ms"}


@pytest.mark.parametrize("answer", [503, 502], ids=["503", "502"])
def test_an_application_that_listens_and_takes_nothing_is_one_pause(bed, answer):
    """Its port is open all the time. One message at a time is tried; the others go to the replica whose application works."""
    ids = [f"m{i}" for i in range(60)]
    bed.app.handler = lambda request, reply: answer
    bed.queue.publish_many(ids)
    first = bed.sidecar(ready=QUICK, pause_hold="2s", completion="response")
    first.wait_for("paused", reason="overloaded" if answer == 503 else "application_down")
    wait_until(lambda: len(bed.app.posts()) >= 4, "it is tried again and again", 60)
    works = bed.new_application("-works")
    works.handler = works.act_and_answer
    second = bed.sidecar(app=works, completion="response")
    first.wait_for("returned", deadline=40)
    wait_until(lambda: len(second.find("completed")) >= len(ids) - 10, lambda: f"done elsewhere: {len(second.find('completed'))}", 60)
    assert len(first.find("paused")) == 1 and not first.find("resumed")
    assert not first.find("retry") and not bed.letters()
    bed.app.handler = bed.app.act_and_answer
    wait_until(lambda: len(first.find("completed") + second.find("completed")) >= len(ids), "all are done", 60)


def test_retry_after_beside_a_503_holds_only_that_message_up(bed):
    bed.app.handler = lambda request, reply: reply.status(503, headers={"Retry-After": "3600"}) if request.message_id == "m1" \
        else bed.app.commit_and_answer(request, reply)
    sidecar = bed.sidecar(ready=QUICK)
    bed.queue.publish("m1")
    assert sidecar.wait_for("given_back", message_id="m1")["next_attempt_ms"] > 60000
    bed.queue.publish("m2")
    sidecar.wait_for("completed", message_id="m2", deadline=40)


@pytest.mark.parametrize("form", ["answers", "hangs"])
def test_a_readiness_url_that_fails_later_pauses(bed, form):
    ready = bed.new_application("-ready")
    ready.handler = ready.only_answer
    sidecar = bed.sidecar(ready={"interval": "50ms", "url": ready.url}, forward={"connect_timeout": "200ms"})
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    ready.handler = (lambda request, reply: 503) if form == "answers" else (lambda request, reply: wait_until(lambda: done, "the end", 60) and 200)
    done = []
    paused = sidecar.wait_for("paused", reason="application_down", deadline=40)
    assert ("answered 503" if form == "answers" else "no answer") in paused["detail"]
    bed.queue.publish("m2")
    hold_true(lambda: not bed.app.posts("m2"), "nothing is forwarded", 0.5)
    done.append(True)
    ready.handler = ready.only_answer
    sidecar.wait_for("resumed", reason="application_down", deadline=40)
    sidecar.wait_for("completed", message_id="m2", deadline=40)


def test_one_readiness_probe_without_an_answer_is_no_pause(bed):
    """The application may only be busy."""
    seen = []

    def handler(request, reply):
        seen.append(request)
        if len(seen) == 1:
            wait_until(lambda: len(seen) >= 4, "the probes after it", 60)
        return 200

    ready = bed.new_application("-ready")
    ready.handler = ready.only_answer
    sidecar = bed.sidecar(ready={"interval": "50ms", "url": ready.url}, forward={"connect_timeout": "200ms"})
    ready.handler = handler
    wait_until(lambda: len(seen) >= 6, "probes", 40)
    assert not sidecar.find("paused")


def test_the_stats_say_why_it_is_paused_now(bed):
    """Not only why it was when it began."""
    ready = bed.new_application("-ready")
    ready.handler = ready.only_answer
    bed.app.handler = lambda request, reply: 503
    sidecar = bed.sidecar(ready={"interval": "50ms", "url": ready.url})
    bed.queue.publish("m1")
    sidecar.wait_for("stats", paused_reason="overloaded", paused_detail=lambda text: "answered 503" in text)
    ready.handler = lambda request, reply: 401
    sidecar.wait_for("stats", paused_detail=lambda text: "answered 401" in text, deadline=40)


def test_max_parked_bounds_what_is_held(bed):
    """Also where all that waits is due at once, and waits for its turn then."""
    bed.app.handler = lambda request, reply: reply.status(409, headers={"Retry-After": "1"})
    bed.queue.publish_many([f"m{i}" for i in range(600)])
    sidecar = bed.sidecar(prefetch=64, max_parked=50, forward={"concurrency": 4})
    sidecar.wait_for("parked_full")
    wait_until(lambda: len(bed.app.posts()) >= 400, "they come again and again", 60)
    assert max(s["held"] for s in sidecar.find("stats")) <= 50 + 64 + 4


# What is here and cannot be tried must not keep others from being tried.

def test_a_row_that_stays_locked_keeps_nobody_from_being_tried(bed):
    """A handler answers 503 and leaves its transaction open: the claim cannot be released before that ends."""
    gate, at_work = Gate(), threading.Event()

    def handler(request, reply):
        if request.message_id == "m1" and not at_work.is_set():
            bed.app.later(lambda: bed.app.try_commit(request, before_commit=lambda: (at_work.set(), gate.wait())))
            at_work.wait(60)
            return 503
        return bed.app.commit_and_answer(request, reply)

    bed.app.handler = handler
    sidecar = bed.sidecar(ready=QUICK, token_window="3s")
    bed.queue.publish("m1")
    gate.wait_for_waiting()
    bed.queue.publish_many(["a", "b"])
    sidecar.wait_for("completed", n=2, deadline=40)
    gate.open()
    bed.wait_for_status("m1", "completed", 40)


def test_copies_of_a_long_job_keep_nobody_from_being_tried(bed):
    """More of them than may follow it; it was sent before the pause, and goes on through it."""
    gate = Gate()

    def handler(request, reply):
        if request.message_id == "long":
            gate.wait()
        elif request.message_id == "x":
            return 503
        return bed.app.act_and_answer(request, reply)

    bed.app.handler = handler
    sidecar = bed.sidecar(ready=QUICK, pause_hold="1h", token_window="10m", completion="response", prefetch=32)
    bed.queue.publish_many(["long"] * 22 + ["x"])
    sidecar.wait_for("given_back", message_id="x", n=2)
    bed.queue.publish_many(["a", "b"])
    for message_id in ("a", "b"):
        sidecar.wait_for("completed", message_id=message_id, deadline=60)
    gate.open()
    bed.wait_for_status("long", "completed", 40)


def test_a_message_that_is_due_late_keeps_nobody_from_being_tried(bed):
    """The row is read more often than it is due."""

    def handler(request, reply):
        if request.message_id == "late":
            return reply.status(429, headers={"Retry-After": "600"})
        return 503 if request.message_id == "a" else bed.app.act_and_answer(request, reply)

    bed.app.handler = handler
    sidecar = bed.sidecar(ready=QUICK, pause_hold="1h", max_hold="20m", completion="response", retry={"max_backoff": "2s"})
    bed.queue.publish("late")
    sidecar.wait_for("given_back", message_id="late")
    bed.queue.publish("a")
    sidecar.wait_for("given_back", message_id="a", n=2)
    bed.queue.publish("b")
    sidecar.wait_for("completed", message_id="b", deadline=40)


def test_an_application_that_takes_long_is_given_more_at_once_all_the_same(bed):
    """The application answers one 503 to shed load; then it takes everything, in long jobs, without a wait for their answers."""
    gate, refused = Gate(), []

    def handler(request, reply):
        if not refused:
            refused.append(request)
            return 503
        gate.wait()
        return bed.app.act_and_answer(request, reply)

    bed.app.handler = handler
    sidecar = bed.sidecar(ready=QUICK, token_window="5m", completion="response")
    bed.queue.publish_many([f"m{i}" for i in range(8)])
    gate.wait_for_waiting(4, deadline=60)
    gate.open()
    sidecar.wait_for("completed", n=8, deadline=60)


def test_a_port_that_refuses_beside_a_readiness_url_is_one_pause(bed):
    """The URL is another port's: its 2xx is no reason to take a prefetch more each time."""
    ready = bed.new_application("-ready")
    ready.handler = ready.only_answer
    bed.app.die()
    bed.queue.publish_many([f"m{i}" for i in range(60)])
    sidecar = bed.sidecar(ready={"interval": "50ms", "url": ready.url}, prefetch=20)
    sidecar.wait_for("paused", reason="application_down")
    sidecar.wait_for("given_back", n=24, deadline=60)
    assert len(sidecar.find("paused")) == 1 and max(s["held"] for s in sidecar.find("stats")) <= 21
    bed.app.start()
    sidecar.wait_for("completed", n=60, deadline=60)


def test_a_refusal_is_not_followed_by_another_at_once(bed):
    """Not even with a Retry-After, and nothing that died: the next try has its wait."""
    bed.app.handler = lambda request, reply: reply.status(503, headers={"Retry-After": "5"})
    bed.queue.publish_many(["m1", "m2", "m3"])
    bed.sidecar(forward={"concurrency": 1}, ready=None)  # the default
    bed.app.wait_for_posts(1)
    hold_true(lambda: len(bed.app.posts()) <= 3, "no hot loop", 4)


@pytest.mark.parametrize("form", ["refused", "died"])
def test_one_message_that_fails_every_try_keeps_nobody_from_being_tried(bed, form):
    """The message may be at fault. Others come later, and are behind it in the queue."""

    def handler(request, reply):
        if request.message_id != "m1":
            return bed.app.commit_and_answer(request, reply)
        if form == "refused":
            return 503
        reply.reset()
        return None

    bed.app.handler = handler
    sidecar = bed.sidecar(ready=QUICK, retry={"max_attempts": 1000, "backoff": "20ms", "max_backoff": "100ms"})
    bed.queue.publish("m1")
    bed.app.wait_for_posts(4)
    for i in range(2):
        bed.queue.publish(f"a{i}")
        sidecar.wait_for("completed", message_id=f"a{i}", deadline=60)


def test_an_application_too_busy_for_its_readiness_gets_its_answer_through(bed):
    """A single thread answers both: no probe is answered while the message is in progress."""
    gate, probes, is_busy = Gate(), Gate(), threading.Event()

    def handler(request, reply):
        is_busy.set()
        gate.wait()
        return bed.app.commit_and_answer(request, reply)

    def ready_handler(request, reply):
        if is_busy.is_set():
            probes.wait()
        return 204

    ready = bed.new_application("-ready")
    bed.app.handler, ready.handler = handler, ready_handler
    sidecar = bed.sidecar(ready={"interval": "50ms", "url": ready.url}, forward={"connect_timeout": "200ms"}, token_window="1m")
    bed.queue.publish("m1")
    probes.wait_for_waiting(2, deadline=60)  # the first of them was given up
    gate.open()
    sidecar.wait_for("completed", message_id="m1", deadline=60)
    assert [p.attempt for p in bed.app.posts()] == [1]
    probes.open()
    sidecar.wait_for("stats", since=sidecar.mark(), state="consuming", deadline=40)


def test_several_messages_that_are_always_refused_keep_nobody_from_being_tried(bed):
    """They are before the others, and more than are taken at once; they take turns with what comes after them. (Hundreds of them: the
    simulator's measured scenarios.)"""
    bad, good = [f"bad{i}" for i in range(12)], [f"good{i}" for i in range(20)]
    bed.app.handler = lambda request, reply: 503 if request.message_id in bad else bed.app.commit_and_answer(request, reply)
    bed.queue.publish_many(bad + good)
    sidecar = bed.sidecar(prefetch=8, forward={"concurrency": 8}, pause_hold="1s")
    sidecar.wait_for("completed", n=len(good), deadline=60)
    assert not sidecar.find("retry") and not sidecar.find("returned") and not bed.letters()
    bed.assert_once(*good)


def test_answers_not_now_with_long_waits_leave_room_for_others(bed):
    """More of them than max_parked, before the others. Alone, they go back only where the broker puts them behind those: a quorum queue
    without a delivery limit (before RabbitMQ 4.3). Elsewhere `parked_full` says that they fill it."""
    bed.queue = bed.new_queue("-quorum", arguments={"x-queue-type": "quorum"})
    late, good = [f"late{i}" for i in range(9)], [f"good{i}" for i in range(5)]
    bed.app.handler = lambda request, reply: reply.status(429, headers={"Retry-After": "600"}) if request.message_id in late \
        else bed.app.commit_and_answer(request, reply)
    bed.queue.publish_many(late + good)
    sidecar = bed.sidecar(queue=bed.queue, max_parked=6, prefetch=4, forward={"concurrency": 4}, pause_hold="1s", max_hold="20m", retry={"max_backoff": "15m"},
                          delivery_limit=0)
    if int(sidecar.find("connected", peer="broker")[0]["version"].split(".")[0]) >= 4:
        pytest.skip("this broker may put what is returned before the others")
    sidecar.wait_for("completed", n=len(good), deadline=60)
    assert sidecar.find("returned", reason=lambda text: "keep others from arriving" in text)
    assert max(s["held"] for s in sidecar.find("stats")) <= 6 + 4 + 1 and not bed.letters()
    bed.assert_once(*good)


def test_a_pause_throws_nothing_out_of_a_bounded_queue(bed):
    """A return to a full queue pushes out its head, which is the returned message. No other replica could take it: it is held."""
    bed.queue = bed.new_queue("-bounded", arguments={"x-max-length": 10, "x-overflow": "drop-head"})
    bed.app.handler = lambda request, reply: 503
    held = [f"held{i}" for i in range(10)]
    bed.queue.publish_many(held)
    sidecar = bed.sidecar(queue=bed.queue, prefetch=10, forward={"concurrency": 10}, pause_hold="0s", ready=QUICK)
    sidecar.wait_for("paused", reason="overloaded")
    sidecar.wait_for("stats", held=10)
    bed.queue.publish_many([f"more{i}" for i in range(16)])
    since = sidecar.mark()
    sidecar.wait_for("stats", n=8, since=since)  # what goes back is looked for once a second
    bed.app.handler = bed.app.commit_and_answer
    sidecar.wait_for("completed", n=20, deadline=60)
    bed.wait_for_effects(held, 60)
    assert not sidecar.find("returned")
    bed.assert_once(*held)


def test_messages_that_were_tried_take_turns_with_one_that_kills(bed):
    """Behind a proxy that answers 503 while it starts: then it kills it again, and the others would never be tried.

    Each turn may wait for 10 s, and a message has its own behind those of the two that kill: so the first may take half a minute."""
    starts_until = [0.0]

    def handler(request, reply):
        if time.monotonic() < starts_until[0]:
            return 503
        if request.message_id.startswith("kills"):
            starts_until[0] = time.monotonic() + 1
            reply.reset()
            return None
        return bed.app.commit_and_answer(request, reply)

    bed.app.handler = handler
    ids = [f"m{i}" for i in range(3)]
    sidecar = bed.sidecar(ready=QUICK, pause_hold="1h", max_hold="20m", retry={"max_attempts": 1000, "backoff": "20ms", "max_backoff": "100ms"})
    bed.queue.publish_many(["kills1", "kills2"])
    sidecar.wait_for("given_back", n=4)
    bed.queue.publish_many(ids)
    for message_id in ids:
        sidecar.wait_for("completed", message_id=message_id)
