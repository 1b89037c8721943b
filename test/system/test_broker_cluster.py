"""The leader of an ordered queue dies, in a cluster of three nodes: the facts that order per key relies on, and the program."""

import uuid

import pika
import pytest

from rig import schema
from rig.bare import Consumer
from rig.bed import Bed
from rig.cluster import Cluster
from rig.ordered_partitions import SINGLE, OrderedPartitions
from rig.wait import wait_until

N, HELD = 300, 120

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cluster(certificates):
    cluster = Cluster(certificates)
    try:
        yield cluster.start()
    finally:
        cluster.stop()


@pytest.fixture
def nodes(cluster):
    """All of them live, before and after."""
    yield cluster.nodes
    for node in cluster.nodes:
        if not node.child:
            node.start()


def queue_led_by(cluster, node):
    """Messages 1 to N in a queue with this leader."""
    connection = node.connect()
    channel = connection.channel()
    name = "leader-" + uuid.uuid4().hex[:8]
    channel.queue_declare(name, durable=True, arguments=SINGLE)  # the leader is where the queue is declared
    channel.confirm_delivery()
    for i in range(1, N + 1):
        channel.basic_publish("", name, b"%d" % i, pika.BasicProperties(delivery_mode=2))
    connection.close()
    assert cluster.leader(name) is node
    return name


def test_a_consumer_keeps_its_deliveries_when_the_leader_dies(cluster, nodes):
    """Nothing is delivered twice or out of order, and acks from before and after the death count."""
    one, two, three = nodes
    queue = queue_led_by(cluster, two)
    active = Consumer(one, queue, HELD)
    active.wait(HELD)
    standby = Consumer(three, queue, HELD)
    active.ack(set(range(2, HELD, 3)))
    cluster.kill(two)
    cluster.wait_for_leader_other_than(two, queue)
    while len(active.got) < N:
        n = len(active.got)
        active.ack_all()
        active.wait(n + 1)
    assert active.numbers() == list(range(1, N + 1))
    active.ack_all()
    wait_until(lambda: one.rabbitmqctl("list_queues", "name", "messages").split().count(queue) and
               f"{queue}\t0" in one.rabbitmqctl("list_queues", "name", "messages"), "all are acked", 60, 0.5)
    standby.connection.process_data_events(time_limit=0)
    assert not standby.got
    active.end()
    standby.end()


def test_a_standby_gets_all_in_order_when_the_leader_dies_with_the_active_consumer(cluster, nodes):
    one, two, three = nodes
    queue = queue_led_by(cluster, two)
    acked = set(range(2, HELD, 3))
    active = Consumer(two, queue, HELD)
    active.wait(HELD)
    standby = Consumer(three, queue, HELD)
    active.ack(acked)
    cluster.kill(two)
    active.connection = None
    got = standby.wait(HELD // 2, acked, deadline=120)
    assert got == [n for n in range(1, N + 1) if n not in acked][:len(got)]
    standby.end()


def test_order_is_kept_when_leaders_die(cluster, nodes, request, tmp_path, postgres):
    """Two replicas, each with a node of its own. The leaders of all partitions are on a node that dies: first without a replica,
    then with one."""
    schema.require_binary()
    one, two, three = nodes
    bed = Bed(request.node.name, tmp_path, postgres, one)
    request.node.bed = bed
    try:
        channel = two.connect().channel()
        for i in range(4):
            channel.queue_declare(f"{bed.name}-{i}", durable=True, arguments=OrderedPartitions.arguments(two))
        parts = OrderedPartitions(bed, 4, rate=60)
        replicas = [parts.sidecar(top={"broker": {"url": node.url()}}) for node in (one, three)]
        parts.begin()
        for dead in (two, three):
            done = len(bed.app.effects())
            wait_until(lambda: len(bed.app.effects()) > done + 100, "messages are completed", 120)
            cluster.kill(dead)
            done = len(bed.app.effects())
            wait_until(lambda: len(bed.app.effects()) > done + 100, "messages are completed after the death", 180)
            dead.start()
        parts.end(180)
        parts.assert_ordered()
        for replica in replicas:
            assert replica.term() == 0
    finally:
        bed.deinit()
