"""Queues that the broker deletes with their last consumer, or after a time without one: Onceward stays subscribed to them."""

import json
import os
import subprocess

import pytest

from rig import schema
from rig.private import bed_on, private_postgres  # noqa: F401 - fixtures
from rig.wait import hold_true, wait_until

IDS = [f"m{i}" for i in range(200)]
KINDS = {
    "auto-delete": {"auto_delete": True},
    "x-expires": {"arguments": {"x-queue-type": "quorum", "x-expires": 5000}},
}


def subscribed(bed, kind, **keys):
    """A sidecar on a queue of that kind, which holds nothing yet."""
    bed.queue = bed.new_queue(f"-{kind}", **KINDS[kind])
    sidecar = bed.sidecar(queue=bed.queue, wait=False, **keys)
    # A queue that is declared again counts as used: so it is there when a slow machine has begun the sidecar.
    wait_until(lambda: bed.queue.declare() and sidecar.find("consuming"), "it consumes", interval=0.5)
    return sidecar


def operator(bed, command):
    path = os.path.join(bed.folder, "operator.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(bed.config(queue=bed.queue), f)
    subprocess.run([schema.require_binary(), command, "--config", path, "--consumer", bed.queue.name], check=True, timeout=60)


def finish(bed, sidecar):
    bed.wait_for_effects(IDS)
    sidecar.wait_for_quiet()
    bed.assert_once(*IDS)
    assert not sidecar.find("cancelled")
    bed.queue.wait_for_ready(0)
    sidecar.wait_for_nothing_held()


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_of_the_database_loses_nothing(bed_on, private_postgres, kind):
    bed = bed_on(private_postgres)
    sidecar = subscribed(bed, kind, prefetch=8, forward={"concurrency": 4})
    bed.app.handler = lambda request, reply: bed.app.commit_and_answer(request, reply)
    bed.queue.publish_many(IDS[:8])
    bed.wait_for_effects(IDS[:8])
    private_postgres.stop()
    sidecar.wait_for("paused", reason="database_down")
    bed.queue.publish_many(IDS[8:])
    hold_true(lambda: bed.queue.n_consumers >= 1, "it stays subscribed", 6)
    wait_until(lambda: bed.queue.n_ready >= len(IDS) - 8 - 9, "no more than the prefetch of both consumers is held")
    private_postgres.start()
    finish(bed, sidecar)


@pytest.mark.parametrize("kind", KINDS)
def test_an_application_that_fails_for_a_while_loses_nothing(bed, kind):
    """Its failures wait for their next attempts, and credit is renewed for the others: no pause is told."""
    failing = True
    bed.app.handler = lambda request, reply: 500 if failing else bed.app.commit_and_answer(request, reply)
    sidecar = subscribed(bed, kind, prefetch=16, brake=0, retry={"max_attempts": 1000, "backoff": "1s", "max_backoff": "2s"})
    bed.queue.publish_many(IDS)
    wait_until(lambda: len({r.message_id for r in bed.app.posts()}) >= 100, "credit was renewed several times", 60)
    failing = False
    finish(bed, sidecar)


@pytest.mark.short("x-expires")
@pytest.mark.parametrize("kind", KINDS)
def test_an_operators_pause_keeps_the_queue(bed, kind):
    sidecar = subscribed(bed, kind)
    operator(bed, "pause")
    sidecar.wait_for("paused", reason="operator")
    bed.queue.publish_many(IDS)
    hold_true(lambda: bed.queue.n_consumers >= 1 and not bed.app.posts(), "it stays subscribed and sends nothing", 6)
    operator(bed, "resume")
    finish(bed, sidecar)


@pytest.mark.short("auto-delete")
@pytest.mark.parametrize("kind", KINDS)
def test_replicas_that_leave_the_queue_to_each_other_keep_it(bed, kind):
    """Both pause at the same time, and presence says that the other one consumes."""
    gone = True
    bed.app.handler = lambda request, reply: 503 if gone else bed.app.commit_and_answer(request, reply)
    keys = {"prefetch": 16, "pause_hold": "0s", "brake": 5, "retry": {"max_attempts": 1000, "backoff": "1s", "max_backoff": "2s"}}
    sidecars = [subscribed(bed, kind, **keys), bed.sidecar(queue=bed.queue, **keys)]
    wait_until(lambda: bed.queue.n_consumers >= 2, "both consume")
    bed.queue.publish_many(IDS)
    for sidecar in sidecars:
        sidecar.wait_for("paused")
    hold_true(lambda: bed.queue.n_consumers >= 1, "one stays subscribed", 12)
    gone = False
    bed.wait_for_effects(IDS)
    bed.assert_once(*IDS)
    bed.queue.wait_for_ready(0)
    for sidecar in sidecars:
        sidecar.wait_for_nothing_held()
