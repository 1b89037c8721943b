"""A message that kills the application, and its neighbours: those of its own queue, and those of other queues of the same application."""

import threading
import time

import pytest

from rig.bed import merge
from rig.wait import wait_until


class Mortal:
    """An application that `killer` kills, once a neighbour is at work (or cannot be got to work); it comes again after a moment."""

    def __init__(self, bed):
        self.bed = bed
        self.neighbour = threading.Event()
        bed.app.handler = self

    def __call__(self, request, reply):
        if request.message_id == "killer":
            self.neighbour.wait(0.7)
            self.bed.app.die()
            threading.Timer(0.05, self.bed.app.start).start()
            reply.close()
            return None
        self.neighbour.set()
        try:
            if threading.Event().wait(0.3):
                return 500
        finally:
            self.neighbour.clear()
        return 204


@pytest.mark.parametrize("same", [True, False], ids=["same-queue", "another-queue"])
def test_a_killer_is_charged_and_its_neighbour_is_not(bed, same):
    other = bed.queue if same else bed.new_queue("-other")
    config = bed.config(completion="response", retry={"max_attempts": 4})
    if not same:
        config["queues"][other.name] = merge(config["queues"][bed.queue.name], {})
    Mortal(bed)
    bed.sidecar(config=config)
    bed.queue.publish_many(["killer"])
    other.publish_many(["neighbour"])
    bed.wait_for_status("killer", "dead", 40)
    row = bed.wait_for_status("neighbour", "completed", 20, consumer=other.name)
    attempts = [p.attempt for p in bed.app.posts("neighbour")]
    assert row["attempt"] == 1 and set(attempts) == {1}, f"charged for its neighbour: {attempts}"
    assert [x["reason"] for x in bed.letters("killer")] == ["attempts"]


# An application that is down behind something that accepts connections for it.

QUICK = {"max_attempts": 3, "backoff": "20ms", "max_backoff": "100ms"}


class Front:
    """A proxy, a service mesh, or the parent of several processes: it always listens. While the application is down it accepts and
    resets, or answers for it. `poison` takes the application down for a moment each time it comes."""

    def __init__(self, bed, answer):
        self.bed = bed
        self.answer = answer
        self.down = threading.Event()
        bed.app.handler = self

    def __call__(self, request, reply):
        if self.down.is_set() or request.message_id.startswith("poison"):
            if self.answer:
                return self.answer
            reply.reset()
            return None
        return self.bed.app.act_and_answer(request, reply)

    def deaths(self, message_id):
        return len(self.bed.app.posts(message_id))


@pytest.mark.parametrize("answer", [None, 502], ids=["reset", "502"])
def test_an_application_that_is_down_behind_a_front_charges_hardly_anybody(bed, answer):
    """Only what is quarantined is charged, once in max_backoff at first. (An hour of it: the simulator's measured scenarios.)"""
    front = Front(bed, answer)
    front.down.set()
    ids = [f"m{i}" for i in range(4)]
    bed.queue.publish_many(ids)
    sidecar = bed.sidecar(completion="response", ready={"interval": "20ms"}, retry={"max_attempts": 3, "backoff": "20ms", "max_backoff": "5m"})
    bed.app.wait_for_posts(6)
    assert len(sidecar.find("retry")) <= 1 and not sidecar.find("dead")
    front.down.clear()
    sidecar.wait_for("completed", n=4, deadline=60)
    assert bed.letters() == [] and set(bed.app.effects()) == set(ids)


@pytest.mark.parametrize("answer", [None, 502], ids=["reset", "502"])
def test_the_others_prove_that_it_is_the_poison(bed, answer):
    """The application works for everybody else: their answers are the proof, so the poison dies of its attempts."""
    front = Front(bed, answer)
    sidecar = bed.sidecar(completion="response", ready={"interval": "20ms"}, retry=QUICK)
    bed.queue.publish_many(["poison"])
    serial = 0
    while not sidecar.find("dead", message_id="poison"):
        bed.queue.publish_many([f"m{serial}"])
        sidecar.wait_for("completed", message_id=f"m{serial}", deadline=40)
        serial += 1
        assert serial < 200
    assert [p.attempt for p in bed.app.posts("poison") if p.attempt > 1][-1] == 3
    assert [x["message_id"] for x in bed.letters()] == ["poison"]
    assert front.deaths("poison") >= 4, "one death is free, and then as many as there are attempts"


def test_a_readiness_url_proves_that_it_is_the_poison(bed):
    ready = bed.new_application("-ready")
    ready.handler = ready.only_answer
    front = Front(bed, None)
    sidecar = bed.sidecar(completion="response", ready={"interval": "20ms", "url": ready.url}, retry=QUICK)
    bed.queue.publish_many(["poison"])
    sidecar.wait_for("dead", message_id="poison", deadline=60)
    assert [p.attempt for p in bed.app.posts("poison")] == [1, 1, 2, 3]
    assert front.deaths("poison") == 4


def test_a_killer_that_nobody_can_tell_from_an_outage_dies_in_the_end(bed):
    """Alone in its queue, behind a front: nothing ever proves the application alive. Its few attempts are used up all the same."""
    front = Front(bed, None)
    sidecar = bed.sidecar(completion="response", ready={"interval": "20ms"}, retry=QUICK)
    bed.queue.publish_many(["poison"])
    sidecar.wait_for("dead", message_id="poison", deadline=60)
    assert [p.attempt for p in bed.app.posts("poison")][-1] == 3
    assert front.deaths("poison") >= 4, "one death is free"
    assert [x["message_id"] for x in bed.letters()] == ["poison"]


def test_a_killer_is_known_again_when_it_comes_back_from_the_broker(bed):
    """Its row says so, to whoever gets it next: here another life of the sidecar, which finds the application down."""
    down = threading.Event()

    def handler(request, reply):
        bed.app.die()
        down.set()
        reply.close()
        return None

    bed.app.handler = handler
    sidecar = bed.sidecar(completion="response", ready={"interval": "20ms"}, retry=QUICK)
    bed.queue.publish_many(["killer"])
    for _ in range(3):
        assert down.wait(40)
        down.clear()
        wait_until(lambda: bed.status("killer") in ("waiting", "failed"), "it waits", 40)
        assert sidecar.term() == 0
        mark = sidecar.mark()
        sidecar.start()
        sidecar.wait_for("waiting", since=mark, reason="application_down")
        bed.app.start()
    sidecar.wait_for("dead", message_id="killer", deadline=60)
    assert [p.attempt for p in bed.app.posts("killer")] == [1, 1, 2, 3]


def test_a_copy_takes_over_what_its_first_is_suspected_of(bed):
    """The first delivery's channel is lost while it is with the application, which then dies: the redelivered copy goes on in its place,
    and no further death is free."""
    link = bed.new_proxy(bed.rabbitmq.port)
    copied = threading.Event()

    def handler(request, reply):
        copied.wait(40)
        bed.app.die()
        threading.Timer(0.05, bed.app.start).start()
        reply.close()
        return None

    bed.app.handler = handler
    bed.queue.publish_many(["killer"])
    sidecar = bed.sidecar(completion="response", ready={"interval": "20ms"}, retry=QUICK,
                          top={"broker": {"url": bed.rabbitmq.url(port=link.port)}})
    wait_until(lambda: bed.app.posts("killer"), "the first POST", 40)
    link.cut()
    sidecar.wait_for("stats", in_flight=1, parked=1, deadline=40)
    copied.set()
    sidecar.wait_for("dead", message_id="killer", deadline=60)
    assert [p.attempt for p in bed.app.posts("killer")] == [1, 1, 2, 3]


def test_a_kill_of_the_sidecar_in_between_charges_little(bed):
    """What waits for its next try has given its attempt back; what is out when the sidecar is killed is charged, once; and each of its
    lives charges the few deaths that it cannot tell from the message's doing."""
    front = Front(bed, None)
    front.down.set()
    sidecar = bed.sidecar(completion="response", ready={"interval": "20ms"}, token_window="2s", retry=dict(QUICK, max_attempts=12))
    bed.queue.publish_many(["m1"])
    for n in range(1, 4):
        wait_until(lambda: front.deaths("m1") >= 3 * n, "three deaths more", 60)
        sidecar.kill()
        sidecar.start()
    front.down.clear()
    done = sidecar.wait_for("completed", message_id="m1", deadline=60)
    assert done["attempt"] <= 7 and bed.letters() == []


def test_what_was_accepted_is_not_charged_for_a_neighbour_that_killed_the_application(bed):
    """The message was answered 202, and was in progress when the application died."""
    at_work = threading.Event()

    def handler(request, reply):
        if request.message_id == "accepted" and not at_work.is_set():
            at_work.set()  # and then comes the neighbour
            return 202
        if request.message_id == "neighbour" and len(bed.app.posts("neighbour")) == 1:
            at_work.wait(60)
            reply.reset()
            return None
        return bed.app.commit_and_answer(request, reply)

    bed.app.handler = handler
    sidecar = bed.sidecar(token_window="2s", ready={"interval": "20ms"})
    bed.queue.publish_many(["neighbour", "accepted"])
    sidecar.wait_for("completed", message_id="neighbour", deadline=40)
    sidecar.wait_for("completed", message_id="accepted", deadline=40)
    assert [p.attempt for p in bed.app.posts("accepted")] == [1, 1]
    assert sidecar.find("given_back", message_id="accepted") and not sidecar.find("retry", message_id="accepted")
    bed.assert_once("accepted", "neighbour")
