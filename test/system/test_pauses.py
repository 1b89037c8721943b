"""How a pause ends, and what becomes of the messages meanwhile: only an answer shows that an application works which has said that it does
not, and what it cannot take goes to other replicas."""

import pytest

from rig.wait import hold_true, wait_until

QUICK = {"interval": "50ms"}


@pytest.mark.parametrize("answer", [503, 502], ids=["503", "502"])
def test_an_application_that_listens_and_takes_nothing_is_one_pause(bed, answer):
    """Its port is open all the time. One message at a time is tried; the others go to the replica whose application works."""
    ids = [f"m{i}" for i in range(60)]
    bed.app.handler = lambda request, reply: answer
    bed.queue.publish_many(ids)
    first = bed.sidecar(ready=QUICK, pause_hold="2s", completion="response")
    first.wait_for("paused", reason="application_down")
    wait_until(lambda: len(bed.app.posts()) >= 4, "it is tried again and again", 60)
    works = bed.new_application("-works")
    works.handler = works.act_and_answer
    second = bed.sidecar(app=works, completion="response")
    first.wait_for("returned", reason="application_down", deadline=40)
    wait_until(lambda: len(second.find("completed")) >= len(ids) - 10, lambda: f"done elsewhere: {len(second.find('completed'))}", 60)
    assert len(first.find("paused")) == 1 and not first.find("resumed")
    assert not first.find("retry") and not bed.letters()
    bed.app.handler = bed.app.act_and_answer
    wait_until(lambda: len(first.find("completed") + second.find("completed")) >= len(ids), "all are done", 60)


def test_the_trial_ends_where_nobody_comes_to_be_tried(bed):
    """The one message that was refused is another's by now: an empty queue is no reason to stay paused."""
    bed.app.handler = lambda request, reply: 503
    bed.queue.publish("m1")
    first = bed.sidecar(ready=QUICK, pause_hold="1s", completion="response")
    first.wait_for("paused", reason="application_down")
    works = bed.new_application("-works")
    works.handler = works.act_and_answer
    second = bed.sidecar(app=works, completion="response")
    second.wait_for("completed", message_id="m1", deadline=60)
    first.wait_for("resumed", reason="application_down", deadline=60)


def test_retry_after_beside_a_503_does_not_hold_a_message_up(bed):
    bed.app.handler = lambda request, reply: reply.status(503, headers={"Retry-After": "3600"})
    sidecar = bed.sidecar(ready=QUICK)
    bed.queue.publish("m1")
    sidecar.wait_for("paused", reason="application_down")
    bed.app.handler = bed.app.commit_and_answer
    sidecar.wait_for("completed", message_id="m1", deadline=40)


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
    """Not why it was when it began."""
    ready = bed.new_application("-ready")
    ready.handler = ready.only_answer
    bed.app.handler = lambda request, reply: 503
    sidecar = bed.sidecar(ready={"interval": "50ms", "url": ready.url})
    bed.queue.publish("m1")
    sidecar.wait_for("paused", reason="application_down")
    ready.handler = lambda request, reply: 401
    sidecar.wait_for("stats", paused_detail=lambda text: "answered 401" in text, deadline=40)


def test_max_parked_bounds_what_is_held(bed):
    """Also where all that waits is due at once, and waits for its turn then."""
    bed.app.handler = lambda request, reply: reply.status(429, headers={"Retry-After": "1"})
    bed.queue.publish_many([f"m{i}" for i in range(600)])
    sidecar = bed.sidecar(prefetch=64, max_parked=50, forward={"concurrency": 4})
    sidecar.wait_for("parked_full")
    wait_until(lambda: len(bed.app.posts()) >= 400, "they come again and again", 60)
    assert max(s["held"] for s in sidecar.find("stats")) <= 50 + 64 + 4
