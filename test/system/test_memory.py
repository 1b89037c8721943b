"""Bounds of memory. Measured on the release build: a sanitizer's shadow is not the program's."""

import os

import pytest

from rig.application import Gate
from rig.fields import Typed
from rig.wait import wait_until

MIB = 1024


@pytest.fixture
def release():
    path = os.environ.get("ONCEWARD_RELEASE_BINARY", "")
    if not os.access(path, os.X_OK):
        pytest.skip("ONCEWARD_RELEASE_BINARY names no program")
    return path


@pytest.fixture
def plain_config(bed):
    """The defaults: nothing but what is required."""
    return {"broker": {"url": bed.rabbitmq.url()}, "database": {"url": bed.postgres.dsn(user="sidecar_login")},
            "queues": {bed.queue.name: {"forward": {"url": bed.app.url}}}}


def test_idle_with_the_defaults_it_takes_at_most_3_mib(bed, release, plain_config):
    sidecar = bed.sidecar(config=plain_config, binary=release)
    sidecar.wait_for("stats", deadline=30)
    rss = sidecar.status_kib("RssAnon")
    print(f"RssAnon {rss} KiB idle")
    assert rss <= 3 * MIB


@pytest.mark.alone  # what is held at once depends on who is slow
def test_memory_does_not_grow_with_the_number_of_messages(bed, release, plain_config):
    bed.app.handler = bed.app.only_answer
    plain_config["log"] = {"stats_interval": "1s"}
    sidecar = bed.sidecar(config=plain_config, binary=release)

    def run(n, name):
        before = bed.statuses().get("completed", 0)
        bed.queue.publish_many([f"{name}{i}" for i in range(n)], body=b"x" * 256)
        wait_until(lambda: bed.statuses().get("completed", 0) == before + n, "all went through", 90, 0.2)
        bed.app.requests.clear()
        sidecar.wait_for_quiet()
        return sidecar.status_kib("RssAnon")

    first = run(4000, "a")
    last = [run(4000, name) for name in "bcd"][-1]
    print(f"RssAnon {first} KiB after 4000 messages, {last} KiB after 16000")
    assert last <= first + 512


def test_256_messages_of_1_mib_stay_within_max_bytes_and_16_mib(bed, release):
    gate = Gate()

    def handler(request, reply):
        gate.wait()
        request.body = b""
        return bed.app.commit_and_answer(request, reply)

    bed.app.handler = handler
    body = os.urandom(1 << 20)
    ids = [f"m{i}" for i in range(256)]
    bed.queue.publish_many(ids, body=body)
    sidecar = bed.sidecar(binary=release, token_window="60s", max_bytes="64MiB", prefetch=256, forward={"concurrency": 16})
    gate.wait_for_waiting(16)
    since = sidecar.mark()
    sidecar.wait_for("stats", since=since, n=3)
    held = sidecar.status_kib("RssAnon")
    gate.open()
    bed.wait_for_effects(ids)
    sidecar.wait_for_quiet()
    peak = sidecar.status_kib("VmHWM")
    print(f"RssAnon {held // MIB} MiB while 16 are out, peak resident {peak // MIB} MiB")
    file_backed = sidecar.status_kib("RssFile")
    assert held <= (64 + 16) * MIB and peak - file_backed <= (64 + 16) * MIB
    bed.assert_once(*ids[:10])
    assert set(bed.app.effects().values()) == {1}
    bed.assert_acked()


@pytest.mark.long
def test_60_messages_with_100_kb_of_voids_stay_within_max_bytes_and_24_mib(bed, release):
    """A void takes a byte on the wire, and forty here: 4 MB each, beside a body of one byte."""
    gate = Gate()

    def handler(request, reply):
        gate.wait()
        return bed.app.commit_and_answer(request, reply)

    bed.app.handler = handler
    ids = [f"m{i}" for i in range(60)]
    bed.queue.publish_many(ids, body=b"x", headers={"voids": [Typed("V")] * 100_000})
    sidecar = bed.sidecar(binary=release, token_window="60s", max_bytes="1MiB")
    gate.wait_for_waiting(1)
    since = sidecar.mark()
    sidecar.wait_for("stats", since=since, n=3)
    gate.open()
    bed.wait_for_effects(ids, 90)
    sidecar.wait_for_quiet()
    peak, file_backed = sidecar.status_kib("VmHWM"), sidecar.status_kib("RssFile")
    print(f"peak resident {peak // MIB} MiB, of these {file_backed // MIB} MiB are files")
    assert peak - file_backed <= (1 + 24) * MIB
    bed.assert_acked()


def test_many_connections_lost_do_not_make_it_grow(bed, release):
    link, database = bed.new_proxy(bed.rabbitmq.port), bed.new_proxy(bed.postgres.port)
    sidecar = bed.sidecar(binary=release, top={"broker": {"url": bed.rabbitmq.url(port=link.port)},
                                               "database": {"url": bed.postgres.dsn(user="sidecar_login", port=database.port)}})

    def lose(n):
        for _ in range(n):
            mark = sidecar.mark()
            link.cut()
            database.cut()
            sidecar.wait_for("connected", peer="database", since=mark, deadline=40)
            sidecar.wait_for("consuming", since=mark, deadline=40)
        return sidecar.status_kib("RssAnon")

    first = lose(3)
    last = lose(8)
    print(f"RssAnon {first} KiB after 3 losses, {last} KiB after 11")
    assert last <= first + 512
