"""Under the memory limit of a control group the kernel kills whoever takes more: what queues hold is fitted into it. With the release build, since
a sanitizer's shadow is not the program's memory."""

import os
import stat

import pytest

from rig import schema
from rig.application import Gate
from rig.wait import wait_until

ROOT = "/sys/fs/cgroup/memory"
MIB = 1 << 20


@pytest.fixture
def release():
    path = os.environ.get("ONCEWARD_RELEASE_BINARY", "")
    if not os.access(path, os.X_OK):
        pytest.skip("ONCEWARD_RELEASE_BINARY names no program")
    return path


class Group:
    def __init__(self, name, limit):
        self.path = os.path.join(ROOT, name)
        try:
            os.mkdir(self.path)
            self.write("memory.limit_in_bytes", str(limit))
        except OSError as e:
            pytest.skip(f"no memory controller of version 1 that may be written: {e}")

    def write(self, name, text):
        with open(os.path.join(self.path, name), "w", encoding="ascii") as f:
            f.write(text)

    def read(self, name):
        with open(os.path.join(self.path, name), encoding="ascii") as f:
            return f.read()

    @property
    def n_killed(self):
        return int(self.read("memory.oom_control").split("oom_kill ")[1].split()[0])

    @property
    def peak(self):
        return int(self.read("memory.max_usage_in_bytes"))


@pytest.fixture
def group(bed):
    made = Group(f"onceward-{os.getpid()}-{bed.name}"[:100], 128 * MIB)
    yield made
    for sidecar in bed.sidecars:
        sidecar.end()
    wait_until(lambda: not made.read("cgroup.procs").strip(), "its processes have ended", 30)
    os.rmdir(made.path)


@pytest.fixture
def limited(bed, group, release):
    """The program, begun inside the group."""
    path = os.path.join(bed.folder, "limited")
    with open(path, "w", encoding="utf-8") as f:
        f.write(f'#!/bin/sh\necho $$ > {group.path}/cgroup.procs || exit 9\nexec {release} "$@"\n')
    os.chmod(path, stat.S_IRWXU)
    return path


def config(bed, queues, **keys):
    """The defaults of users."""
    return {"broker": {"url": bed.rabbitmq.url()}, "database": {"url": bed.postgres.dsn(user="sidecar_login")},
            "log": {"messages": "all", "stats_interval": "1s"}, "queues": {q.name: {"forward": {"url": bed.app.url}, **keys} for q in queues}}


def test_three_queues_with_a_backlog_fit_into_128_mib(bed, group, limited):
    def handler(request, reply):
        request.body = b""
        return bed.app.commit_and_answer(request, reply)

    bed.app.handler = handler
    queues = [bed.new_queue(f"-{n}") for n in range(3)]
    ids = []
    for q in queues:
        own = [f"{q.name}-{n}" for n in range(130)]
        q.publish_many(own, body=os.urandom(950_000))
        ids += own
    sidecar = bed.sidecar(config=config(bed, queues), binary=limited)
    assert "lowered to 64 MiB in all and 16 MiB" in sidecar.wait_for("limits", path="queues")["reason"]
    bed.wait_for_effects(ids, 240)
    print(f"peak of the group {group.peak / MIB:.0f} MiB")
    assert group.n_killed == 0 and set(bed.app.effects().values()) == {1}


def test_a_letter_of_the_largest_message_fits_into_128_mib(bed, group, limited):
    bed.app.handler = lambda request, reply: 400
    sidecar = bed.sidecar(config=config(bed, [bed.queue]), binary=limited)
    bed.queue.publish("large", os.urandom(16 * MIB))
    sidecar.wait_for("dead", message_id="large")
    letter, = bed.letters()
    print(f"peak of the group {group.peak / MIB:.0f} MiB")
    assert len(letter["body"]) == 16 * MIB and group.n_killed == 0 and not sidecar.find("limits", path="queues")


def test_a_message_whose_letter_would_not_fit_stays_with_the_broker(bed, group, limited):
    bed.app.handler = lambda request, reply: 400
    sidecar = bed.sidecar(config=config(bed, [bed.queue], max_message="64MiB"), binary=limited)
    sidecar.wait_for("limits", path="queues")
    bed.queue.publish("large", os.urandom(60_000_000))
    sidecar.wait_for("too_large")
    sidecar.term()
    bed.queue.wait_for_ready(1)
    assert group.n_killed == 0


def test_the_requests_of_batches_fit_into_128_mib_beside_the_messages(bed, group, limited):
    """16 requests of one message of 3.9 MB, in base64 5.2 MB."""
    gate = Gate()
    waiting = []

    def handler(request, reply):
        waiting.append(len(request.body))
        request.body = b""
        gate.wait()
        reply.status(200, b"", {"Onceward-Batch": 1})

    bed.app.handler = handler
    ids = [f"m{n}" for n in range(17)]
    bed.queue.publish_many(ids, body=os.urandom(3_900_000))
    forward = {"url": bed.app.url, "concurrency": 16, "batch": {"max_messages": 10}}
    sidecar = bed.sidecar(config=config(bed, [bed.queue], forward=forward, max_message="4MiB"), binary=limited, wait=False)
    try:
        wait_until(lambda: len(waiting) >= 8 or group.n_killed, "eight requests are in flight at once", 60)
    finally:
        gate.open()
    if not group.n_killed:
        wait_until(lambda: bed.statuses() == {"completed": len(ids)}, "all are completed", 60)
    print(f"peak of the group {group.peak / MIB:.0f} MiB")
    assert group.n_killed == 0 and min(waiting) > 5_200_000
    assert "beside batches in flight" in sidecar.find("limits", path="queues")[0]["reason"]


def test_after_a_kill_one_message_comes_first(bed):
    sidecar = bed.sidecar(binary=schema.require_binary())
    assert sidecar.wait_for("consuming")["prefetch"] > 1
    sidecar.kill()
    again = bed.sidecar(name=sidecar.name)
    assert again.wait_for("consuming")["prefetch"] == 1
    bed.queue.publish_many([f"m{n}" for n in range(20)])
    bed.wait_for_effects([f"m{n}" for n in range(20)])
    assert again.term() == 0
    assert bed.sidecar(name=sidecar.name).wait_for("consuming")["prefetch"] > 1
