"""Active replicas of ordered partitions: each replica has as many as the others, give or take one. The order holds meanwhile."""

import threading

import pytest

from rig.ordered_partitions import OrderedPartitions
from rig.wait import hold_true, wait_until

N = 16


@pytest.fixture
def partitions(bed):
    made = OrderedPartitions(bed, N)
    yield made
    made.ends.set()


def states(bed, instance):
    rows = bed.rows("SELECT q ->> 'state' AS state, count(*) AS n FROM onceward.replica, json_array_elements(queues) q "
                    "WHERE instance = %s GROUP BY 1", instance)
    return {r["state"]: r["n"] for r in rows}


def test_replicas_that_join_and_leave_share_the_partitions(partitions, bed):
    partitions.begin()
    sidecars = []
    for _ in range(4):
        sidecars.append(partitions.sidecar())
        partitions.wait_for_even(sidecars)
    wait_until(lambda: sorted(partitions.counts(sidecars)) == [4, 4, 4, 4], lambda: f"spread, now {partitions.counts(sidecars)}", 30)
    for s in sidecars:
        wait_until(lambda s=s: states(bed, partitions.instances[s.name]) == {"consuming": 4, "standby": 12}, "status shows who is active")
        wait_until(lambda s=s: s.find("stats", partitions_active=4), "and the stats line")
    sidecars.pop(0).term()
    partitions.wait_for_even(sidecars)
    sidecars.pop(0).kill()
    partitions.wait_for_even(sidecars, 60)
    sidecars.append(partitions.sidecar())
    partitions.wait_for_even(sidecars)
    partitions.end()
    partitions.assert_ordered()
    assert not [line for s in bed.sidecars for line in s.find("not_exclusive")]


def test_replicas_that_start_together_share_the_partitions(partitions, bed):
    partitions.begin()
    sidecars = [partitions.sidecar() for _ in range(4)]
    wait_until(lambda: sorted(partitions.counts(sidecars)) == [4, 4, 4, 4], lambda: f"spread, now {partitions.counts(sidecars)}", 30)
    partitions.end()
    partitions.assert_ordered()


def test_messages_that_do_not_end_are_returned_to_the_replica_that_takes_over(partitions, bed):
    mended = threading.Event()
    partitions.fails = lambda key, number, attempt: 500 if key.endswith("k0") and number == 1 and not mended.is_set() else None
    retry = {"max_attempts": 1000, "backoff": "50ms", "max_backoff": "200ms"}
    partitions.begin()
    first = partitions.sidecar(retry=retry)
    wait_until(lambda: partitions.counts([first]) == [N], "the first is active everywhere")
    wait_until(lambda: len({line["message_id"] for line in first.find("retry")}) == N, "each partition has a message that fails")
    second = partitions.sidecar(retry=retry)
    partitions.wait_for_even([first, second], 60)
    assert first.find("handover")
    assert {line["reason"] for line in first.find("returned")} == {"another replica takes the queue over"}
    assert len(first.find("returned")) == N // 2
    mended.set()
    partitions.end()
    partitions.assert_ordered()


@pytest.mark.long
def test_a_replica_whose_application_is_down_leaves_its_partitions(partitions, bed):
    """On every broker: it closes, and stays away while another replica is subscribed."""
    bed.expects_errors = True  # requests that the end of the application cut off
    down = bed.new_application("-down")
    down.handler = bed.app.handler
    partitions.begin()
    first = partitions.sidecar(app=down, pause_hold="1s")
    wait_until(lambda: partitions.counts([first]) == [N], "the first is active everywhere")
    down.stop()
    first.wait_for("paused", reason="application_down")
    hold_true(lambda: not first.find("returned"), "it stays while no other replica is subscribed", 3)
    second = partitions.sidecar()
    wait_until(lambda: partitions.counts([second]) == [N], "the second has all of it")
    wait_until(lambda: set(states(bed, partitions.instances[first.name])) == {"paused"}, "the first is away")
    assert not bed.rows("SELECT FROM onceward.replica, json_array_elements(queues) q WHERE instance = %s AND q ->> 'subscription' IS NOT NULL",
                        partitions.instances[first.name])
    partitions.end()
    partitions.assert_ordered()
