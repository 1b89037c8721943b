"""Facts that order per key relies on at the broker, on each version of test/run --matrix: the places of returned deliveries, single active
consumers, priorities. With bare AMQP methods, since client libraries cancel their consumers before they close a channel, and with at
least 100 deliveries held: fewer come back in order by chance (an Erlang map keeps the order up to 32)."""

import os
import shutil
import tempfile
import uuid

import pika
import pytest

from rig import servers
from rig.bare import Consumer
from rig.wait import wait_until

QUORUM = {"x-queue-type": "quorum"}
CLASSIC = {}
SINGLE = {"x-single-active-consumer": True}
N, HELD = 300, 120


@pytest.fixture
def place(rabbitmq):
    """Makes queues with messages 1 to N, and consumers; ends all of them."""
    consumers, names = [], []
    connection = rabbitmq.connect()
    channel = connection.channel()

    class Place:
        @staticmethod
        def queue(arguments, priorities=()):
            name = "order-" + uuid.uuid4().hex[:8]
            channel.queue_declare(name, durable=True, arguments=arguments)
            names.append(name)
            channel.confirm_delivery()
            for i in range(1, (len(priorities) or N) + 1):
                priority = priorities[i - 1] if priorities else None
                channel.basic_publish("", name, b"%d" % i, pika.BasicProperties(delivery_mode=2, priority=priority))
            return name

        @staticmethod
        def consumer(queue, prefetch, arguments=None):
            consumers.append(Consumer(rabbitmq, queue, prefetch, arguments))
            return consumers[-1]

        @staticmethod
        def wait_for_no_consumer(queue):
            """The broker has noticed the end of the last consumer, and has returned its messages."""
            wait_until(lambda: channel.queue_declare(queue, passive=True).method.consumer_count == 0, "the consumer is gone", 30, 0.03)

    yield Place
    for c in consumers:
        c.end()
    for name in names:
        channel.queue_delete(name)
    connection.close()


def expected(acked):
    return [n for n in range(1, N + 1) if n not in acked]


@pytest.mark.parametrize("kind", [QUORUM, {**QUORUM, "x-delivery-limit": 20}, CLASSIC], ids=["quorum", "limited", "classic"])
def test_a_closed_channel_returns_its_tail_to_its_place(place, kind):
    queue = place.queue(kind)
    acked = set(range(2, HELD, 3))
    first = place.consumer(queue, HELD)
    first.wait(HELD)
    first.ack(acked)
    first.close_channel()
    place.wait_for_no_consumer(queue)
    for _ in range(2):  # and again, with the same prefetch
        other = place.consumer(queue, HELD)
        got = other.wait(HELD // 2, acked)
        assert got == expected(acked)[:len(got)]
        other.close_channel()
        place.wait_for_no_consumer(queue)
    assert place.consumer(queue, 0).wait(N - len(acked), acked) == expected(acked)


@pytest.mark.parametrize("kind", [QUORUM, {**QUORUM, "x-delivery-limit": 20}, CLASSIC], ids=["quorum", "limited", "classic"])
def test_a_connection_that_is_reset_returns_its_tail_to_its_place(place, kind):
    queue = place.queue(kind)
    acked = set(range(2, HELD, 3))
    first = place.consumer(queue, HELD)
    first.wait(HELD)
    first.ack(acked)
    first.reset()
    place.wait_for_no_consumer(queue)
    for _ in range(2):
        other = place.consumer(queue, HELD)
        got = other.wait(HELD // 2, acked)
        assert got == expected(acked)[:len(got)]
        other.reset()
        place.wait_for_no_consumer(queue)
    assert place.consumer(queue, 0).wait(N - len(acked), acked) == expected(acked)


@pytest.mark.parametrize("kind", [QUORUM, CLASSIC], ids=["quorum", "classic"])
def test_a_standby_gets_all_of_a_connection_that_is_reset(place, kind):
    queue = place.queue({**kind, **SINGLE})
    first = place.consumer(queue, HELD)
    first.wait(HELD)
    standby = place.consumer(queue, HELD)
    first.reset()
    assert standby.wait(HELD)[:HELD] == list(range(1, HELD + 1))


@pytest.mark.parametrize("kind", [QUORUM, {**QUORUM, "x-delivery-limit": 20}, CLASSIC], ids=["quorum", "limited", "classic"])
def test_rejects_lose_the_order_of_a_quorum_queue(place, kind):
    queue = place.queue(kind)
    first = place.consumer(queue, HELD)
    first.wait(HELD)
    first.cancel_and_reject()
    returned = [n for n in place.consumer(queue, 0).wait(N) if n <= HELD]
    assert sorted(returned) == list(range(1, HELD + 1))
    assert (returned == sorted(returned)) == (kind is CLASSIC)


@pytest.mark.parametrize("kind", [QUORUM, CLASSIC], ids=["quorum", "classic"])
def test_a_consumer_with_a_higher_priority_takes_over_once_all_is_acked(place, rabbitmq, kind):
    """From RabbitMQ 4 on, of a quorum queue. Else the first consumer stays active."""
    queue = place.queue({**kind, **SINGLE})
    first = place.consumer(queue, HELD)
    first.wait(HELD)
    higher = place.consumer(queue, HELD, {"x-priority": 10})
    takes_over = kind is QUORUM and rabbitmq.version() >= (4,)
    first.ack(set(range(1, HELD)))
    if takes_over:  # one delivery without an ack keeps the queue from both
        first.connection.process_data_events(time_limit=1)
        higher.connection.process_data_events(time_limit=1)
        assert not higher.got and len(first.got) == HELD
    first.ack({HELD})
    if takes_over:
        assert higher.wait(1)[0] == HELD + 1 and len(first.got) == HELD
    else:
        assert first.wait(HELD + 1)[HELD] == HELD + 1
        higher.connection.process_data_events(time_limit=1)
        assert not higher.got


@pytest.mark.parametrize("kind", [QUORUM, CLASSIC], ids=["quorum", "classic"])
def test_a_channel_that_closes_beside_a_higher_priority_hands_all_over_in_order(place, kind):
    queue = place.queue({**kind, **SINGLE})
    first = place.consumer(queue, HELD)
    first.wait(HELD)
    higher = place.consumer(queue, HELD, {"x-priority": 10})
    first.close_channel()
    assert higher.wait(HELD)[:HELD] == list(range(1, HELD + 1))


def test_a_channel_that_ends_beside_a_higher_priority_leaves_no_consumer(place, rabbitmq):
    """RabbitMQ 4.3.6 keeps it, and delivers to it once no other consumer is left. So Onceward sends no priorities."""
    queue = place.queue({**QUORUM, **SINGLE})
    first = place.consumer(queue, HELD)
    first.wait(HELD)
    higher = place.consumer(queue, HELD, {"x-priority": 10})
    first.close_channel()
    higher.wait(HELD)
    higher.close_channel()
    if (4, 3) <= rabbitmq.version():
        wait_until(lambda: rabbitmq.consumers(queue, "active") == "[true]", "only the dead consumer is left, and it is active", 30, 0.2)
        last = place.consumer(queue, HELD, {"x-priority": 20})
        last.connection.process_data_events(time_limit=3)
        assert not last.got
    else:
        place.wait_for_no_consumer(queue)
        place.consumer(queue, HELD).wait(HELD)


@pytest.mark.parametrize("kind", [QUORUM, CLASSIC], ids=["quorum", "classic"])
def test_the_consumer_that_has_waited_longest_becomes_active(place, kind):
    """So a replica that subscribes again steps behind the others."""
    queue = place.queue({**kind, **SINGLE})
    first, second, owner = (place.consumer(queue, HELD) for _ in range(3))
    first.wait(HELD)
    second.close_channel()
    waiting = [place.consumer(queue, HELD) for _ in range(4)]
    first.close_channel()
    assert owner.wait(HELD)[:HELD] == list(range(1, HELD + 1))
    for consumer in waiting:
        consumer.connection.process_data_events(time_limit=0.1)
        assert not consumer.got


@pytest.mark.parametrize("kind", [QUORUM, CLASSIC], ids=["quorum", "classic"])
def test_a_single_active_consumer_that_closes_hands_all_of_it_to_the_next(place, kind):
    queue = place.queue({**kind, **SINGLE})
    acked = set(range(2, HELD, 3))
    first = place.consumer(queue, HELD)
    first.wait(HELD)
    standby = place.consumer(queue, HELD)
    first.ack(acked)
    first.close_channel()
    got = standby.wait(HELD // 2, acked)
    assert got == expected(acked)[:len(got)]


def test_a_cancel_lets_the_standby_of_a_quorum_queue_begin_behind_what_is_not_acked(place):
    queue = place.queue({**QUORUM, **SINGLE})
    first = place.consumer(queue, HELD)
    first.wait(HELD)
    standby = place.consumer(queue, HELD)
    first.cancel_and_close()
    assert standby.wait(HELD)[0] == HELD + 1


def test_a_part_that_is_returned_again_goes_behind_the_rest_of_a_quorum_queue(place):
    queue = place.queue(QUORUM)
    first = place.consumer(queue, HELD)
    first.wait(HELD)
    first.close_channel()
    smaller = place.consumer(queue, HELD // 4)
    smaller.wait(HELD // 4)
    smaller.close_channel()
    assert place.consumer(queue, 0).wait(N)[0] == HELD // 4 + 1


def test_priorities_overtake_in_quorum_queues_from_rabbitmq_4_on(place, rabbitmq):
    queue = place.queue(QUORUM, priorities=[0] * 50 + [9])
    assert place.consumer(queue, 0).wait(51)[0] == (51 if rabbitmq.version() >= (4,) else 1)


def partitions_of(broker, exchange, queues, n_keys=400):
    """The queue of each routing key."""
    connection = broker.connect()
    channel = connection.channel()
    channel.confirm_delivery()
    found = {}
    for n in range(n_keys):
        channel.basic_publish(exchange, f"account-{n}", b"", pika.BasicProperties(delivery_mode=2))
    for queue in queues:
        while True:
            method, _, _ = channel.basic_get(queue, auto_ack=True)
            if method is None:
                break
            found[method.routing_key] = queue
    connection.close()
    assert len(found) == n_keys
    return found


@pytest.mark.long
def test_a_restart_of_the_broker_moves_no_key_of_a_modulus_hash(certificates):
    """RabbitMQ 3.10 restores the bindings of a consistent hash in another order, and most of its keys then have another queue."""
    folder = tempfile.mkdtemp(prefix="onceward-hash-")
    os.chmod(folder, 0o755)
    broker = servers.RabbitMQ(folder, certificates).init()
    kinds = ("x-modulus-hash", "x-consistent-hash")
    queues = {kind: [f"{kind}-{n}" for n in range(4)] for kind in kinds}
    try:
        connection = broker.start().connect()
        version = connection._impl.server_properties["version"]
        channel = connection.channel()
        for kind in kinds:
            channel.exchange_declare(kind, kind, durable=True)
            for queue in queues[kind]:
                channel.queue_declare(queue, durable=True, arguments=QUORUM)
                channel.queue_bind(queue, kind, "1")
        connection.close()
        before = {kind: partitions_of(broker, kind, queues[kind]) for kind in kinds}
        broker.stop_politely()
        broker.start()
        after = {kind: partitions_of(broker, kind, queues[kind]) for kind in kinds}
        moved = {kind: sum(before[kind][key] != after[kind][key] for key in before[kind]) for kind in kinds}
        print(f"RabbitMQ {version}: of 400 keys a restart moved {moved}")
        assert moved["x-modulus-hash"] == 0
    finally:
        broker.deinit()
        shutil.rmtree(folder, ignore_errors=True)
