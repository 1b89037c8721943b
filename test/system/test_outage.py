"""Long outages, and the broker's delivery limit: nothing is dropped, nothing dies of them, and no attempt is charged.

An hour of an application that flaps, or answers 503, has at most 120 returns with the default pause_hold of 30 s. Here a pause returns
what it holds at once, so that there is one a second. ONCEWARD_OUTAGE_RETURNS makes them as many as one has time for."""

import itertools
import os
import threading

import pytest

from rig.wait import wait_until

LIMIT = 20
N_RETURNS = int(os.environ.get("ONCEWARD_OUTAGE_RETURNS", "22"))
PATIENCE = 60 + 6 * N_RETURNS
KINDS = ["classic", "quorum-with-limit"]
ATTEMPTS = {"max_attempts": 2, "backoff": "20ms", "max_backoff": "50ms"}


def make_queue(bed, kind):
    """No dead-letter exchange: what the broker drops is gone."""
    if kind != "classic":
        bed.queue = bed.new_queue("-limit", arguments={"x-queue-type": "quorum", "x-delivery-limit": LIMIT})
    return {"broker": {"delivery_limit": LIMIT}} if kind != "classic" else {}


def assert_nothing_happened_to(bed, ids):
    """Each completed once at its first attempt; no letter, nothing dropped, nothing left."""
    assert bed.letters() == []
    assert set(bed.app.effects()) == set(ids) and set(bed.app.effects().values()) == {1}
    assert {(r["status"], r["attempt"]) for r in bed.rows("SELECT status::text, attempt FROM onceward.inbox WHERE consumer = %s",
                                                          bed.queue.name)} == {("completed", 1)}
    for sidecar in bed.sidecars:
        assert not sidecar.find("dead") and not sidecar.find("retry")
    bed.assert_acked()


@pytest.mark.parametrize("answer", [503, None], ids=["503", "reset"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_application_that_is_down_for_an_hour_dead_letters_nothing(bed, kind, answer):
    """Its port accepts all the time, so that only a message can show how it is: one at a time is tried, and returned. It is one pause,
    however long it lasts."""
    top = make_queue(bed, kind)
    down = threading.Event()
    down.set()

    def handler(request, reply):
        if not down.is_set():
            return bed.app.commit_and_answer(request, reply)
        if answer is None:
            reply.reset()
        return answer

    bed.app.handler = handler
    ids = [f"m{i}" for i in range(30)]
    bed.queue.publish_many(ids)
    sidecar = bed.sidecar(queue=bed.queue, top=top, pause_hold="0s", prefetch=40, ready={"interval": "20ms"}, retry=ATTEMPTS)
    n = N_RETURNS if kind == "classic" else LIMIT // 2
    wait_until(lambda: len(sidecar.find("returned")) >= n, lambda: f"{n} returns, there are {len(sidecar.find('returned'))}", PATIENCE)
    n = 2 * max(N_RETURNS, LIMIT)
    wait_until(lambda: len(bed.app.posts()) >= n, lambda: f"{n} tries", PATIENCE)
    down.clear()
    sidecar.wait_for("completed", n=len(ids), deadline=60)
    assert len(sidecar.find("paused")) == len(sidecar.find("resumed")) == 1
    assert_nothing_happened_to(bed, ids)


@pytest.mark.parametrize("kind", KINDS)
def test_a_database_that_is_down_again_and_again_dead_letters_nothing(bed, kind):
    top = make_queue(bed, kind)
    link = bed.new_proxy(bed.postgres.port)
    top = dict(top, database={"url": bed.postgres.dsn(user="sidecar_login", port=link.port), "connect_timeout": "2s"})
    working = threading.Event()
    bed.app.handler = lambda request, reply: bed.app.commit_and_answer(request, reply) if working.is_set() else 429
    ids = [f"m{i}" for i in range(30)]
    bed.queue.publish_many(ids)
    sidecar = bed.sidecar(queue=bed.queue, top=top, pause_hold="0s", prefetch=40, ready={"interval": "20ms"},
                          retry={"max_attempts": 2, "backoff": "50ms", "max_backoff": "50ms"})
    for n in range(1, max(3, N_RETURNS // 8) + 1):
        since = sidecar.mark()
        sidecar.wait_for("given_back", since=since, deadline=60)
        link.refuse()
        link.cut()
        sidecar.wait_for("paused", reason="database_down", since=since, deadline=60)
        if kind == "classic" or n < LIMIT // 2:
            sidecar.wait_for("returned", since=since, deadline=60)
        link.mend()
        sidecar.wait_for("resumed", reason="database_down", since=since, deadline=60)
    working.set()
    sidecar.wait_for("completed", n=len(ids), deadline=60)
    assert_nothing_happened_to(bed, ids)


def test_25_pauses_and_25_kills_on_a_queue_with_a_delivery_limit_lose_nothing(bed):
    """Pauses never come near the limit. Kills do: what cannot be helped any more is stored whole before it is rejected. (What was out at
    a kill is charged for it, hence the many attempts.)"""
    top = dict(make_queue(bed, "quorum"), instance="one")
    accepting = threading.Event()
    turns = itertools.count()  # 503 pauses, 409 shows that it works
    bed.app.handler = lambda request, reply: bed.app.commit_and_answer(request, reply) if accepting.is_set() else (503, 409)[next(turns) % 2]
    ids = [f"m{i}" for i in range(30)]
    bed.queue.publish_many(ids)
    sidecar = bed.sidecar(queue=bed.queue, top=top, pause_hold="0s", prefetch=40, ready={"interval": "20ms"}, retry=dict(ATTEMPTS, max_attempts=1000))
    sidecar.wait_for("paused", n=25, reason="application_down", deadline=PATIENCE)
    sidecar.wait_for("returned", n=LIMIT // 2, deadline=PATIENCE)
    assert bed.letters() == [], "pauses alone bring nothing near the limit"
    for _ in range(25):
        since = sidecar.mark()
        bed.queue.publish_many([f"m{len(ids)}"])
        ids.append(f"m{len(ids)}")
        sidecar.wait_for("paused", since=since, deadline=60)
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
