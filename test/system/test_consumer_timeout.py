"""consumer_timeout: the argument goes to a broker that knows it, and to no other. A proxy gives the one here another version."""

import json
import os
import struct
import subprocess

import pytest

from rig import schema
from rig.wait import wait_until


def arguments(bed):
    """Of the queue's consumer, as the broker has them."""
    return wait_until(lambda: bed.rabbitmq.consumers(bed.queue.name, "arguments"), "it is among the consumers")


def as_version(bed, version, refuses=None):
    """A version of as many characters as the broker's own. refuses: the number of milliseconds of an argument that it is to refuse. What is
    sent then is a priority of the wrong type, and what the broker says of that names the timeout."""
    connection = bed.rabbitmq.connect()
    own = connection._impl.server_properties["version"].encode()
    connection.close()
    if len(own) < len(version) + 2:
        pytest.skip(f"{own.decode()} has no room for {version.decode()}")
    proxy = bed.new_proxy(bed.rabbitmq.port)
    proxy.rewrites = [(own, (version + b".").ljust(len(own), b"1"))]
    if refuses:
        proxy.rewrites_up = [(b"\x12x-consumer-timeoutl" + struct.pack(">q", refuses), b"\x0ax-priorityS" + struct.pack(">l", 12) + b"no number is")]
        proxy.rewrites.append((b"arg 'x-priority' f", b"x-consumer-timeout"))
    return {"broker": {"url": bed.rabbitmq.url().replace(str(bed.rabbitmq.port), str(proxy.port))}}


@pytest.mark.parametrize("version, is_sent", [(b"4.3", True), (b"4.12", True), (b"5.0", True), (b"4.2", False), (b"3.9", False)])
def test_the_timeout_goes_to_a_broker_that_takes_it(bed, version, is_sent):
    bed.app.handler = bed.app.commit_and_answer
    bed.queue = bed.new_queue("-quorum", arguments={"x-queue-type": "quorum"})  # classic ones of 4.3.2 and later refuse it
    bed.sidecar(top=as_version(bed, version), consumer_timeout="2h")
    assert ("x-consumer-timeout" in arguments(bed), "7200000" in arguments(bed)) == (is_sent, is_sent)
    bed.queue.publish("m1")
    bed.wait_for_effects(["m1"])


def test_the_brokers_own_timeout_is_not_sent(bed):
    bed.sidecar(top=as_version(bed, b"4.3"))
    assert "x-consumer-timeout" not in arguments(bed)


def test_a_broker_that_refuses_the_timeout_is_subscribed_to_without_it(bed):
    bed.app.handler = bed.app.commit_and_answer
    sidecar = bed.sidecar(top=as_version(bed, b"4.3", refuses=7200000), consumer_timeout="2h")
    lost = sidecar.wait_for("disconnected", peer="broker")
    assert "406" in lost["reason"] and "x-consumer-timeout" in lost["reason"], lost
    assert "x-consumer-timeout" not in arguments(bed)
    bed.queue.publish("m1")
    bed.wait_for_effects(["m1"])
    assert len(sidecar.find("disconnected")) == 1


@pytest.mark.parametrize("max_hold, sent", [("25m", "3000000"), ("10m", "1800000")])
def test_an_ordered_queue_is_given_twice_max_hold(bed, max_hold, sent):
    """Never less than consumer_timeout: a timeout would return a part of the deliveries."""
    bed.queue = bed.new_queue("-ordered", arguments={"x-queue-type": "quorum", "x-single-active-consumer": True})
    bed.sidecar(top=as_version(bed, b"4.3"), max_hold=max_hold, max_window="5m", order={"key": ["header:account"]}, delivery_limit=0)
    assert sent in arguments(bed)


@pytest.mark.parametrize("timeout, warns", [("2h", True), ("30m", False)])
def test_check_says_where_the_timeout_has_to_be_set(bed, timeout, warns):
    path = os.path.join(bed.folder, "check.json")
    with open(path, "w") as f:
        json.dump(bed.config(top=as_version(bed, b"3.9"), consumer_timeout=timeout), f)
    done = subprocess.run([schema.require_binary(), "check", "--config", path, "--connect"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    said = "consumer_timeout = 7200000 in rabbitmq.conf" in done.stdout.decode()
    assert done.returncode == 0 and said == warns, done.stdout.decode()
