"""Kills, and the broker's delivery limit: nothing is dropped. Long outages of everything else, with every limit, are the simulator's
measured scenarios (`test/sim --measured`): they bring nothing near the limit, and charge nobody."""

import threading

from rig.wait import wait_until

LIMIT = 20
N_KILLS = LIMIT + 2


def test_kills_on_a_queue_with_a_delivery_limit_lose_nothing(bed):
    """What cannot be helped any more is stored whole before it is rejected. No dead-letter exchange: what the broker drops is gone. (What
    was out at a kill may be taken over many times, hence the many attempts.)"""
    bed.queue = bed.new_queue("-limit", arguments={"x-queue-type": "quorum", "x-delivery-limit": LIMIT})
    accepting = threading.Event()
    bed.app.handler = lambda request, reply: bed.app.commit_and_answer(request, reply) if accepting.is_set() else 503
    ids = [f"m{i}" for i in range(30)]
    bed.queue.publish_many(ids)
    sidecar = bed.sidecar(queue=bed.queue, top={"broker": {"delivery_limit": LIMIT}, "instance": "one"}, prefetch=40,
                          retry={"max_attempts": 1000, "backoff": "20ms", "max_backoff": "50ms"})
    for _ in range(N_KILLS):
        since = sidecar.mark()
        bed.queue.publish_many([f"m{len(ids)}"])
        ids.append(f"m{len(ids)}")
        wait_until(lambda: sidecar.find("given_back", since) or sidecar.find("dead", since), "something was tried, or stored", 60)
        sidecar.kill()
        sidecar.start()
    accepting.set()
    wait_until(lambda: len(bed.app.effects()) + len(bed.letters()) >= len(ids),
               lambda: f"{len(ids)} ends, there are {len(bed.app.effects())} effects and {len(bed.letters())} letters", 90, 0.2)
    sidecar.wait_for_quiet()
    letters = bed.letters()
    assert {x["reason"] for x in letters} <= {"delivery_limit"} and all(bytes(x["body"]) == b'{"marker":"body-marker"}' for x in letters)
    assert sorted([*bed.app.effects(), *(x["message_id"] for x in letters)]) == sorted(ids)
    assert set(bed.app.effects().values()) == {1} and bed.app.effects()
    bed.assert_acked()
