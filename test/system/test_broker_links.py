"""The link to the broker: half-open, deaf in one direction, slow to the byte, and cut a hundred times.

The promises are those of test_broker_faults.py."""

import itertools
import threading
import time

import pytest

from rig.broker_view import finish, hold_some, needs_failpoints, own, own_broker, start, wait_for_state  # noqa: F401
from rig.wait import wait_until

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("own_broker_links")]


def start_linked(own, *times, broker=None, **keys):
    link = own.new_proxy(own.rabbitmq.port)
    return link, start(own, *times, top={"broker": {"url": own.rabbitmq.url(port=link.port), **(broker or {})}}, **keys)


def test_a_half_open_connection_is_found_by_its_heartbeats(own):
    """The other side accepts everything, new connections too, and nothing ever comes of it."""
    gate = hold_some(own, "held")
    link, sidecar = start_linked(own, broker={"heartbeat": "1s", "connect_timeout": "1s"})
    own.queue.publish_many(["m0"])
    sidecar.wait_for("completed", message_id="m0")
    own.queue.publish_many(["held"])
    gate.wait_for_waiting()
    mark = sidecar.mark()
    link.swallow()
    lost = sidecar.wait_for("disconnected", since=mark, peer="broker")
    assert lost["reason"].startswith("the broker was silent for"), lost
    again = sidecar.wait_for("disconnected", since=mark, n=2, peer="broker")
    assert "logging in" in again["reason"], again
    wait_for_state(sidecar, "disconnected", mark)
    gate.open()
    own.wait_for_status("held", "completed")
    own.queue.publish_many(["m1"])
    link.mend_swallow()
    mark = sidecar.mark()
    sidecar.wait_for("consuming", since=mark, deadline=30)
    sidecar.wait_for("duplicate", message_id="held")
    finish(own, sidecar, ["m0", "held", "m1"])


@pytest.mark.parametrize("deaf", ["sidecar", "broker"])
def test_a_connection_that_carries_one_direction_only(own, deaf):
    gate = hold_some(own, "held")
    link, sidecar = start_linked(own, broker={"heartbeat": "1s"})
    own.queue.publish_many(["held"])
    gate.wait_for_waiting()
    mark = sidecar.mark()
    link.freeze(up=deaf == "broker", down=deaf == "sidecar")
    gate.open()
    own.wait_for_status("held", "completed")
    lost = sidecar.wait_for("disconnected", since=mark, peer="broker", deadline=30)
    if deaf == "sidecar":
        assert lost["reason"].startswith("the broker was silent for"), lost
    else:
        assert "the broker" in lost["reason"], lost  # it closes what it does not hear of
    link.cut()
    link.thaw()
    mark = sidecar.mark()
    sidecar.wait_for("consuming", since=mark, deadline=30)
    own.queue.publish_many(["m1"])
    finish(own, sidecar, ["held", "m1"])


def test_a_link_that_trickles_splits_every_frame(own):
    """Login, deliveries, acks and heartbeats, byte by byte, in both directions."""
    ids = [f"m{i}" for i in range(25)]
    own.queue.publish_many(ids[:20], body=bytes(range(256)))
    link = own.new_proxy(own.rabbitmq.port)
    link.trickle()
    sidecar = start(own, top={"broker": {"url": own.rabbitmq.url(port=link.port), "heartbeat": "3s", "connect_timeout": "60s"}})
    own.wait_for_effects(ids[:20])
    own.queue.publish_many(ids[20:])
    own.wait_for_effects(ids)
    own.rabbitmq.wait_for_counts(own.queue, unacked=0, ready=0)
    assert sum(r.body == bytes(range(256)) for r in own.app.posts()) == 20
    assert not sidecar.find("disconnected"), "it is slow, not silent"
    link.trickle(None)
    finish(own, sidecar, ids)


def test_a_body_that_takes_longer_than_the_heartbeats_is_no_silence(own):
    link, sidecar = start_linked(own, broker={"heartbeat": "2s"})
    link.trickle(4000, 0.02)
    body = b"x" * 1_800_000
    own.queue.publish_many(["large"], body=body)
    begin = time.monotonic()
    sidecar.wait_for("completed", message_id="large", deadline=60)
    assert time.monotonic() - begin > 6, "it did not outlast the heartbeats"
    assert own.app.posts()[0].body == body and not sidecar.find("disconnected")
    link.trickle(None)
    finish(own, sidecar, ["large"])


class Traffic:
    """Publishes until it is told to stop, on a thread of its own."""

    def __init__(self, own):
        self.own, self.ids, self.stopped = own, [], threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.stopped.wait(0.005):
            message_id = f"t{len(self.ids)}"
            self.own.queue.publish(message_id)
            self.ids.append(message_id)

    def stop(self):
        self.stopped.set()
        self.thread.join(60)
        self.own.queue.sync()


@needs_failpoints
@pytest.mark.parametrize("kind,times", [("classic", 100), ("quorum", 20)])
def test_a_hundred_lost_connections_leave_one_consumer_and_nothing_behind(own, kind, times):
    """Cut by the link in any moment of the work; no tag is ever used on a channel that it is not of."""
    turns = itertools.count()

    def handler(request, reply):
        n = next(turns)
        time.sleep((n % 7) * 0.004)
        if n % 9 == 0:
            reply.status(429, headers={"Retry-After": "0"})  # it waits here, and loses its tag while it does
            return None
        return own.app.commit_and_answer(request, reply)

    own.app.handler = handler
    own.queue = own.new_queue("-" + kind, arguments={"x-queue-type": kind})
    # The queue has no delivery limit; unknown, a message that was delivered three times would be stored whole.
    link, sidecar = start_linked(own, "redial_last_ms=40", broker={"heartbeat": "1s", "delivery_limit": 0}, queue=own.queue, prefetch=32,
                                 forward={"concurrency": 8})
    traffic = Traffic(own)
    for n in range(times):
        mark = sidecar.mark()
        link.cut()
        sidecar.wait_for("consuming", since=mark, deadline=30)
        if n % 4 == 0:  # some work between two losses, or none
            n_posts = len(own.app.posts())
            wait_until(lambda: len(own.app.posts()) > n_posts + 3, "it works", 30)
    traffic.stop()
    own.wait_for_effects(traffic.ids)
    sidecar.wait_for_quiet()
    assert set(own.app.effects().values()) == {1} and own.statuses() == {"completed": len(traffic.ids)} and own.letters() == []
    assert {r.attempt for r in own.app.posts()} == {1}, "no loss of a connection is charged"
    reconnects = sidecar.find("stats")[-1]["reconnects_total"]
    assert reconnects >= times
    assert not [e for e in sidecar.events if "406" in str(e.get("reason"))]
    own.rabbitmq.wait_for_counts(own.queue, consumers=1, ready=0, unacked=0, connections=1, channels=2, consumers_of_channels=1,
                                 unacked_of_channels=0)
    wait_until(lambda: link.n_open == 1, lambda: f"one connection, there are {link.n_open}")
    own.assert_acked()
