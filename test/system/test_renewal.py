"""A quorum queue drops what it delivered too often. Before that a message is published to its own queue again, where its deliveries count
from 0."""

import pytest

from rig.application import Gate
from rig.wait import wait_until

LIMIT = 5


def quorum(bed, suffix="-quorum", **arguments):
    bed.queue = bed.new_queue(suffix, arguments={"x-queue-type": "quorum", **arguments})
    return bed.queue


def kill_until_renewed(bed, ids, n_kills, **keys):
    """The application keeps everything until the gate opens; the sidecar is killed again and again."""
    gate = Gate()
    bed.app.handler = lambda request, reply: (gate.wait(), bed.app.commit_and_answer(request, reply))[1]
    bed.queue.publish_many(ids)
    for n in range(n_kills):
        sidecar = bed.sidecar(f"killed{n}", **keys)
        sidecar.wait_for("stats", held=lambda held: held >= 1)
        sidecar.kill()
        bed.queue.wait_for_consumers(0)
    last = bed.sidecar("last", **keys)
    gate.open()
    return last


@pytest.mark.parametrize("told", [None, 0], ids=["unknown", "told"])
def test_crashes_cost_no_message_of_a_queue_without_a_limit(bed, told):
    quorum(bed)
    ids = [f"m{i}" for i in range(20)]
    last = kill_until_renewed(bed, ids, 4, **({} if told is None else {"delivery_limit": told}))
    bed.wait_for_effects(ids, 120)
    assert bed.letters() == []
    bed.assert_once(*ids)
    assert told is None or not last.find("renewed")
    bed.assert_acked()


def test_a_limit_that_is_read_is_never_reached(bed):
    """Each kill is a delivery: five of them are more than a limit of 5 leaves."""
    quorum(bed, **{"x-delivery-limit": LIMIT})
    ids = [f"m{i}" for i in range(5)]
    last = kill_until_renewed(bed, ids, LIMIT + 2)
    bed.wait_for_effects(ids, 120)
    assert bed.letters() == []
    bed.assert_once(*ids)
    bed.assert_acked()


@pytest.mark.parametrize("limit", [0, -1])
def test_with_a_limit_of_0_a_kill_loses_one_message_and_a_drain_none(bed, limit):
    """The broker drops a message with its first counted return, so no copy could be published before. Messages go one at a time."""
    if limit < 0 and bed.rabbitmq.version() >= (4,):
        pytest.skip("there it is no limit")
    quorum(bed, **{"x-delivery-limit": limit})
    ids = [f"m{i}" for i in range(6)]
    gate = Gate()
    bed.app.handler = lambda request, reply: (gate.wait(), reply.status(429, headers={"Retry-After": "3"}))[1]
    bed.queue.publish_many(ids)
    killed = bed.sidecar("killed")
    assert "below 5" in killed.wait_for("limits", reason=lambda text: "below 5" in text)["reason"]
    gate.wait_for_waiting()
    killed.wait_for("stats", held=lambda n: n >= 1)
    held = len(ids) - bed.queue.n_ready
    killed.kill()
    bed.queue.wait_for_consumers(0)
    left = bed.queue.n_ready
    assert (held, left) == (1, len(ids) - 1)
    gate.open()
    drained = bed.sidecar("drained")
    drained.wait_for("stats", parked=lambda n: n >= 1)
    assert drained.term() == 0
    # From RabbitMQ 4.3 on a drain may return a message without a count.
    assert (drained.find("renewed") or bed.rabbitmq.version() >= (4, 3)) and not bed.letters() and bed.queue.n_ready == left
    bed.app.handler = bed.app.commit_and_answer
    last = bed.sidecar("last")
    wait_until(lambda: len(last.find("completed")) == left, "all that are left are completed", 120)
    assert last.term() == 0
    bed.queue.assert_empty()


def test_with_a_limit_of_0_a_drain_stores_what_it_cannot_publish(bed):
    """The application does not answer before the grace period ends, and a copy could push another message out."""
    if bed.rabbitmq.version() >= (4, 3):
        pytest.skip("there a drain may return the message without a count")
    quorum(bed, **{"x-delivery-limit": 0, "x-max-length": 1000})
    gate = Gate()
    bed.app.handler = lambda request, reply: (gate.wait(), 200)[1]
    sidecar = bed.sidecar(top={"shutdown_grace": "1s"})
    bed.queue.publish("m1", b"the whole body")
    gate.wait_for_waiting()
    assert sidecar.term() == 0
    gate.open()
    letter, = bed.letters("m1")
    assert letter["reason"] == "delivery_limit" and bytes(letter["body"]) == b"the whole body"
    bed.queue.assert_empty()


@pytest.mark.parametrize("arguments, n", [({}, 1), ({"x-dead-letter-exchange": "amq.fanout"}, 0)], ids=["none", "exchange"])
def test_a_limit_without_a_dead_letter_exchange_is_logged_at_the_start(bed, arguments, n):
    quorum(bed, **{"x-delivery-limit": LIMIT, **arguments})
    sidecar = bed.sidecar()
    sidecar.wait_for("consuming")
    assert len(sidecar.find("limits", queue=bed.queue.name, reason=lambda text: "no x-dead-letter-exchange" in text)) == n


def test_arguments_are_read_once_in_a_connection_until_the_queue_is_deleted(bed):
    """Each read leaves a line in the broker's log for each argument that differs. Without a connection the queue may have been replaced."""
    def lines(word="inequivalent arg"):
        with open(bed.rabbitmq.log) as f:
            return [line for line in f if word in line and f"'{bed.queue.name}'" in line]

    quorum(bed, **{"x-delivery-limit": LIMIT})
    link = bed.new_proxy(bed.rabbitmq.port)
    sidecar = bed.sidecar(top={"broker": {"url": bed.rabbitmq.url(port=link.port)}})
    wait_until(lines, "the log has the lines", 30, 0.1)
    n = len(lines())
    since = sidecar.mark()
    link.refuse()
    link.cut()
    sidecar.wait_for("disconnected", since=since)
    bed.queue.delete()
    bed.queue.arguments = {"x-queue-type": "quorum", "x-delivery-limit": 3}
    bed.queue.declare()
    link.start()
    sidecar.wait_for("consuming", since=since)
    wait_until(lambda: len(lines()) == 2 * n, lambda: f"it is read again: {len(lines())} lines, {n} before", 30, 0.1)
    assert "below 5" in sidecar.wait_for("limits", since=since, reason=lambda text: "below 5" in text)["reason"]
    since = sidecar.mark()
    bed.queue.delete()
    sidecar.wait_for("cancelled", since=since)
    bed.queue.declare()
    sidecar.wait_for("consuming", since=since)
    wait_until(lambda: len(lines()) == 3 * n, lambda: f"the new queue was read: {len(lines())} lines, {n} before", 30, 0.1)
    since = sidecar.mark()
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    assert len(lines()) == 3 * n
