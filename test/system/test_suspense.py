"""Messages that wait for others: for one of another queue that goes alone, behind a long job, or for one that shows how it is.

Nobody waits without end, and whoever waits says so."""

import contextlib
import itertools
import time
import threading

import pytest

from rig.application import Gate
from rig.bed import merge
from rig.wait import wait_until

QUICK = {"max_attempts": 3, "backoff": "20ms", "max_backoff": "100ms"}


def two_queues(bed, more=None, **keys):
    """A configuration with another queue of the same application."""
    other = bed.new_queue("-other")
    config = bed.config(**keys)
    config["queues"][other.name] = merge(config["queues"][bed.queue.name], more or {})
    return other, config


# a poison among processes that go on working

@pytest.mark.parametrize("both", [False, True], ids=["one-queue", "both-queues"])
def test_a_poison_dies_while_other_queues_always_have_something_out(bed, both):
    """The message kills one process of several: nothing else notices, and another queue's requests are in flight at any time."""
    other, config = two_queues(bed, completion="response", token_window="10s", ready={"interval": "20ms"}, retry=QUICK,
                               forward={"concurrency": 8})

    def handler(request, reply):
        if request.message_id.startswith("poison"):
            reply.reset()
            return None
        threading.Event().wait(0.1)
        return 204

    bed.app.handler = handler
    sidecar = bed.sidecar(config=config)
    other.publish_many(["first"])
    bed.wait_for_status("first", "completed", consumer=other.name)
    poisons = {bed.queue: "poison"}
    if both:
        poisons[other] = "poison-other"
    for queue, poison in poisons.items():
        queue.publish_many([poison])
    serial = itertools.count()

    def all_dead():
        if other.n_ready < 20:
            other.publish_many([f"m{next(serial)}" for _ in range(40)])
        return all(sidecar.find("dead", message_id=p) for p in poisons.values())

    wait_until(all_dead, lambda: f"the poison is charged: {[p.attempt for p in bed.app.posts('poison')]}", 60, 0.1)
    for queue, poison in poisons.items():
        assert [p.attempt for p in bed.app.posts(poison)][-1] == 3
        assert [x["message_id"] for x in bed.letters(consumer=queue.name)] == [poison]
    assert {p.attempt for p in bed.app.posts() if p.message_id.startswith("m")} == {1}


# whoever waits for a suspect says so

def stats_of(sidecar, queue, **fields):
    return sidecar.wait_for("stats", since=sidecar.mark(), deadline=30, queue=queue.name, **fields)


def test_a_queue_that_waits_for_anothers_suspect_says_so(bed):
    other, config = two_queues(bed, completion="response", token_window="60s", ready={"interval": "20ms"}, retry=QUICK)
    gate = Gate()

    def handler(request, reply):
        if request.message_id == "slow":
            if len(bed.app.posts("slow")) == 1:
                reply.reset()
                return None
            gate.wait()
        return 204

    bed.app.handler = handler
    sidecar = bed.sidecar(config=config)
    other.publish_many(["first"])  # it is seen alive
    bed.wait_for_status("first", "completed", consumer=other.name)
    bed.queue.publish_many(["slow"])
    gate.wait_for_waiting()
    other.publish_many(["m1"])
    waits = stats_of(sidecar, other, state="waiting_for_suspect")
    assert bed.queue.name in waits["state_detail"], waits
    assert "others wait" in stats_of(sidecar, bed.queue, state="suspects")["state_detail"]
    assert not bed.app.posts("m1")
    gate.open()
    bed.wait_for_status("m1", "completed", 30, consumer=other.name)
    bed.wait_for_status("slow", "completed", 30)
    assert "state_detail" not in stats_of(sidecar, other, state="consuming")


def test_a_suspect_that_waits_for_a_long_job_says_so_and_goes_on(bed):
    """The message has the application for itself, and waits for requests in flight, for little longer than a window."""
    other, config = two_queues(bed, completion="transaction", token_window="2s", max_window="60s", ready={"interval": "20ms"}, retry=QUICK)
    gate = Gate()

    def handler(request, reply):
        if request.message_id == "long":
            bed.app.extend(request, 50)
            gate.wait()
        if request.message_id == "suspect" and len(bed.app.posts("suspect")) == 1:
            reply.reset()
            return None
        return bed.app.commit_and_answer(request, reply)

    bed.app.handler = handler
    sidecar = bed.sidecar(config=config)
    other.publish_many(["first"])
    bed.wait_for_status("first", "completed", consumer=other.name)
    other.publish_many(["long"])
    gate.wait_for_waiting()
    bed.queue.publish_many(["suspect"])
    assert "in flight" in stats_of(sidecar, bed.queue, state="suspects")["state_detail"]
    bed.wait_for_status("suspect", "completed", 30)
    other.publish_many(["m1"])
    bed.wait_for_status("m1", "completed", 30, consumer=other.name)
    gate.open()
    bed.wait_for_status("long", "completed", 30, consumer=other.name)


# the brake, and what was out before it

def test_the_brake_neither_waits_for_what_was_sent_before_it_nor_believes_it(bed):
    healthy, gates = [], {"long1": Gate(), "long2": Gate()}

    def handler(request, reply):
        gate = gates.get(request.message_id)
        if gate:
            gate.wait()
        return 204 if gate or healthy else 500

    bed.app.handler = handler
    sidecar = bed.sidecar(completion="response", token_window="60s", brake=4, forward={"concurrency": 4}, retry=dict(QUICK, max_attempts=8))
    bed.queue.publish_many(list(gates))
    for gate in gates.values():
        gate.wait_for_waiting()
    bed.queue.publish_many([f"bad{i}" for i in range(6)])
    sidecar.wait_for("paused", reason="everything_fails")
    n = len(bed.app.posts())
    wait_until(lambda: len(bed.app.posts()) >= n + 2, "others are tried while the long ones are out", 40)
    gates["long1"].open()
    bed.wait_for_status("long1", "completed", 30)
    n = len(bed.app.posts())
    wait_until(lambda: len(bed.app.posts()) >= n + 1, "others are tried", 40)
    assert not sidecar.find("resumed", reason="everything_fails"), "an answer to what was sent before the brake ended it"
    healthy.append(True)
    sidecar.wait_for("resumed", reason="everything_fails", deadline=60)
    for i in range(6):
        bed.wait_for_status(f"bad{i}", "completed", 60)
    assert bed.status("long2") == "processing"
    gates["long2"].open()
    bed.wait_for_status("long2", "completed", 30)


def test_a_suspect_of_a_braked_queue_with_a_long_job_does_not_stop_another_queue(bed):
    other, config = two_queues(bed, {"completion": "response"}, completion="transaction", token_window="2s", max_window="200s", brake=4,
                               ready={"interval": "20ms"}, retry=dict(QUICK, max_attempts=8), forward={"concurrency": 8})
    gate = Gate()

    def handler(request, reply):
        if request.message_id == "long":
            bed.app.extend(request, 170)
            gate.wait()
            return bed.app.commit_and_answer(request, reply)
        if request.message_id == "poison":
            reply.reset()
            return None
        return 500 if request.message_id.startswith("bad") else 204

    bed.app.handler = handler
    sidecar = bed.sidecar(config=config)
    bed.queue.publish_many(["long"])
    gate.wait_for_waiting()
    bed.queue.publish_many(["poison"])
    sidecar.wait_for("alone", message_id="poison")
    bed.queue.publish_many([f"bad{i}" for i in range(6)])
    sidecar.wait_for("paused", reason="everything_fails", queue=bed.queue.name, deadline=60)
    n, begun = len(bed.app.posts("poison")), time.monotonic()
    for serial in itertools.count():
        other.publish_many([f"m{serial}"])
        bed.wait_for_status(f"m{serial}", "completed", 15, consumer=other.name)
        passed = time.monotonic() - begun
        # A message with two crashes goes only alone: it waits for the long job, and takes the place for a window now and then.
        if len(bed.app.posts("poison")) >= n + 1 or (bed.row("poison")["crashes"] >= 2 and passed > 6):
            break
        assert passed < 90
    assert bed.status("long") == "processing" and not sidecar.find("resumed", reason="everything_fails")
    gate.open()
    bed.wait_for_status("long", "completed", 30)


# errors of the database, and what was out before them

@contextlib.contextmanager
def no_claims(bed):
    signature = bed.rows("SELECT oid::regprocedure::text AS it FROM pg_proc WHERE proname = 'sidecar_claim_many'")[0]["it"]
    bed.rows(f"REVOKE EXECUTE ON FUNCTION {signature} FROM onceward_sidecar")
    try:
        yield
    finally:
        bed.rows(f"GRANT EXECUTE ON FUNCTION {signature} TO onceward_sidecar")


@pytest.mark.parametrize("accepted", [False, True], ids=["out", "accepted"])
def test_the_pause_for_the_databases_errors_does_not_wait_for_a_long_job(bed, accepted):
    gate = Gate()

    def handler(request, reply):
        if request.message_id != "long":
            return bed.app.commit_and_answer(request, reply)
        if not accepted:
            gate.wait()
            return bed.app.commit_and_answer(request, reply)

        def work():
            gate.wait()
            bed.app.commit(request)

        bed.app.later(work)
        return 202

    bed.app.handler = handler
    ids = [f"m{i}" for i in range(3)]
    sidecar = bed.sidecar(token_window="60s", forward={"concurrency": 4})
    bed.queue.publish_many(["long"])
    gate.wait_for_waiting()
    mark = sidecar.mark()
    with no_claims(bed):
        bed.queue.publish_many(ids)
        sidecar.wait_for("paused", reason="database_down", since=mark)
    sidecar.wait_for("resumed", reason="database_down", since=mark, deadline=50)
    for i in ids:
        bed.wait_for_status(i, "completed", 30)
    assert bed.status("long") == "processing"
    gate.open()
    bed.wait_for_status("long", "completed", 30)
    bed.assert_once("long", *ids)


def test_a_suspect_that_is_a_long_job_is_not_waited_for_to_its_end(bed):
    """A death with many long jobs out would otherwise stop all queues of the application for the sum of them."""
    gate = Gate()

    def handler(request, reply):
        if request.message_id == "long":
            if len(bed.app.posts("long")) == 1:
                reply.reset()
                return None
            bed.rows("SELECT onceward.extend(%s, 60)", request.token)
            gate.wait()
        return bed.app.act_and_answer(request, reply)

    bed.app.handler = handler
    sidecar = bed.sidecar(completion="response", token_window="4s", max_window="10m", ready={"interval": "20ms"}, retry=QUICK)
    bed.queue.publish("long")
    gate.wait_for_waiting()
    bed.queue.publish_many(["m1", "m2"])
    sidecar.wait_for("completed", n=2, deadline=60)
    bed.queue.publish_many(["m3", "m4"])
    for message_id in ("m3", "m4"):
        assert sidecar.wait_for("completed", message_id=message_id, deadline=60)["held_ms"] < 5500, "it is waited for again"
    gate.open()
    sidecar.wait_for("completed", message_id="long", deadline=60)


def test_a_killer_that_takes_long_is_found_all_the_same(bed):
    """The message kills the application after others have joined it, since they had waited long enough: the next time they wait twice as long."""
    dying = []

    def handler(request, reply):
        if request.message_id != "poison":
            return bed.app.act_and_answer(request, reply)
        if len(bed.app.posts("poison")) > 1:
            bed.rows("SELECT onceward.extend(%s, 60)", request.token)
            wait_until(lambda: not bed.queue.n_ready or len(bed.app.posts("poison")) > 2, "others have joined it", 60)
            threading.Event().wait(6)
        dying.append(request)
        reply.reset()
        return None

    bed.app.handler = handler
    sidecar = bed.sidecar(completion="response", token_window="2s", max_window="10m", ready={"interval": "20ms"},
                          retry={**QUICK, "max_attempts": 1})
    bed.queue.publish("poison")
    serial = itertools.count()

    def is_dead():
        if bed.queue.n_ready < 5:
            bed.queue.publish_many([f"m{next(serial)}" for _ in range(5)])
        return sidecar.find("dead", message_id="poison")

    wait_until(is_dead, lambda: f"the poison is charged, after {len(dying)} deaths", 90, 0.2)
    assert [x["message_id"] for x in bed.letters()] == ["poison"]
