"""A quorum queue drops what it delivered too often. Before that a message is published to its own queue again, where its deliveries count
from 0."""

import pytest

from rig.application import Gate

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


@pytest.mark.parametrize("arguments, n", [({}, 1), ({"x-dead-letter-exchange": "amq.fanout"}, 0)], ids=["none", "exchange"])
def test_a_limit_without_a_dead_letter_exchange_is_logged_at_the_start(bed, arguments, n):
    quorum(bed, **{"x-delivery-limit": LIMIT, **arguments})
    sidecar = bed.sidecar()
    sidecar.wait_for("consuming")
    assert len(sidecar.find("limits", queue=bed.queue.name, reason=lambda text: "no x-dead-letter-exchange" in text)) == n
