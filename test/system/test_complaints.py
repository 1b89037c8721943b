"""What users of other programs that forward messages to HTTP applications were hurt by, each as a test.

The numbers are those of the list in this file; other tests cover the corners, these show the complaint itself."""

import os
import threading

import pytest

from rig.application import Gate, Script
from rig.wait import hold_true, wait_until

FEW = {"max_attempts": 2, "backoff": "20ms", "max_backoff": "50ms"}


def ids_of(n, name="m"):
    return [f"{name}{i}" for i in range(n)]


def assert_all_at_the_first_attempt(bed, ids):
    bed.assert_once(*ids)
    assert {p.attempt for p in bed.app.posts()} == {1} and bed.letters() == []
    bed.assert_acked()


# 1: messages are lost when the application fails or is down

@pytest.mark.parametrize("how", ["refuses", "answers-503", "resets"])
def test_complaint_1_application_down_loses_nothing(bed, how):
    """Without a dead-letter exchange, what the application could not take was nacked without requeue: gone.
    github.com/dapr/components-contrib/issues/709, github.com/dapr/dapr/issues/3081, github.com/vectordotdev/vector/issues/19711"""
    down = threading.Event()
    down.set()

    def handler(request, reply):
        if not down.is_set():
            return bed.app.commit_and_answer(request, reply)
        if how == "resets":
            reply.reset()
        return 503

    bed.app.handler = handler
    ids = ids_of(40)
    sidecar = bed.sidecar(ready={"interval": "20ms"}, retry=FEW if how != "resets" else {**FEW, "max_backoff": "20s"})
    if how == "refuses":
        bed.app.die()
    bed.queue.publish_many(ids)
    sidecar.wait_for("paused", reason="overloaded" if how == "answers-503" else "application_down", deadline=40)
    wait_until(lambda: how == "refuses" or len(bed.app.posts()) >= 6, "it is tried again and again", 40)
    down.clear()
    if how == "refuses":
        bed.app.start()
    bed.wait_for_effects(ids)
    sidecar.wait_for_quiet()
    # Who dies alone, and is not known to have been away, is charged at most once in a max_backoff.
    charged = [bed.row(i)["attempt"] - 1 for i in ids]
    assert min(charged) == 0 and sum(charged) <= (1 if how == "resets" else 0), charged
    bed.assert_once(*ids)
    assert bed.letters() == []
    bed.assert_acked()


def test_complaint_1_what_the_application_refuses_for_good_is_kept(bed):
    """The same links: an error of the application took the message off the queue, and nobody had it any more."""
    bed.app.handler = Script(500)
    sidecar = bed.sidecar(retry=FEW, brake=0)
    ids = ids_of(10)
    for message_id in ids:
        bed.queue.publish(message_id, message_id.encode() * 100)
    sidecar.wait_for("dead", n=len(ids), deadline=40)
    assert {x["message_id"]: bytes(x["body"]) for x in bed.letters()} == {i: i.encode() * 100 for i in ids}
    bed.assert_acked()


def test_complaint_1_letter_before_reject(bed):
    """The message was acked before its copy was safe in the dead-letter queue; a crash in between lost it.
    github.com/knative-extensions/eventing-rabbitmq/issues/1385"""
    dlq = bed.new_queue("-dlq")
    bed.queue = bed.new_queue("-main", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dlq.name})
    link = bed.new_proxy(bed.postgres.port)

    def handler(request, reply):
        if not bed.letters() and sidecar.n_starts == 1:
            link.freeze()
        return 400

    bed.app.handler = handler
    sidecar = bed.sidecar(queue=bed.queue, token_window="2s",
                          top={"instance": "one", "database": {"url": bed.postgres.dsn(user="sidecar_login", port=link.port)}})
    bed.queue.publish("m1", b"the body")
    bed.app.wait_for_posts(1)
    hold_true(lambda: dlq.n_ready == 0 and bed.queue.n_ready == 0, "nothing is rejected before its letter is written", 0.5)
    assert bed.letters() == []
    sidecar.kill()
    bed.queue.wait_for_ready(1)
    link.cut()
    link.thaw()
    sidecar.start()
    sidecar.wait_for("dead", message_id="m1", deadline=40)
    dlq.wait_for_ready(1)
    assert [(x["message_id"], bytes(x["body"])) for x in bed.letters()] == [("m1", b"the body")]


# 2: the consumer is gone after a reconnect, and only a restart helps

def test_complaint_2_after_reconnects_and_channel_errors_it_consumes_again(bed):
    """After a lost connection, or a channel that the broker had closed, nothing was consumed until somebody restarted the program.
    github.com/knative-extensions/eventing-rabbitmq/issues/832, /1287, /1369, github.com/dapr/dapr/issues/4143,
    github.com/vectordotdev/vector/issues/20735"""
    link = bed.new_proxy(bed.rabbitmq.port)
    sidecar = bed.sidecar(top={"broker": {"url": bed.rabbitmq.url(port=link.port)}})
    pid = sidecar.pid

    def cut():
        link.cut()

    def refuse():
        link.refuse()
        link.cut()
        sidecar.wait_for("disconnected", peer="broker", n=3, deadline=40)
        link.mend()

    def delete_queue():
        bed.queue.delete()
        sidecar.wait_for("cancelled", deadline=40)
        bed.queue.declare()

    for n, harm in enumerate((cut, refuse, delete_queue, cut, delete_queue)):
        since = sidecar.mark()
        harm()
        sidecar.wait_for("consuming", since=since, deadline=60)
        bed.queue.publish_many([f"m{n}"])
        sidecar.wait_for("completed", message_id=f"m{n}", deadline=40)
    assert sidecar.pid == pid and sidecar.n_starts == 1
    assert_all_at_the_first_attempt(bed, ids_of(5))


# 3: a rollout dead-letters or repeats what was in flight

@pytest.mark.parametrize("completion", ["transaction", "response"])
def test_complaint_3_a_rollout_neither_dead_letters_nor_repeats(bed, completion):
    """At each rollout the messages in flight were nacked, and dead-lettered, or handled again.
    github.com/dapr/dapr/issues/9604, github.com/dapr/components-contrib/issues/4450"""
    def handler(request, reply):
        threading.Event().wait(0.05)
        return (bed.app.commit_and_answer if completion == "transaction" else bed.app.act_and_answer)(request, reply)

    bed.app.handler = handler
    sidecars = [bed.sidecar(completion=completion, prefetch=20, forward={"concurrency": 4}) for _ in range(2)]
    ids = ids_of(200)
    bed.queue.publish_many(ids)
    for n, sidecar in enumerate(sidecars * 2):
        bed.app.wait_for_posts(20 * (n + 1))
        assert sidecar.term() == 0
        sidecar.start()
    bed.wait_for_effects(ids)
    assert len(bed.app.posts()) == len(ids), "one POST each"
    assert_all_at_the_first_attempt(bed, ids)


# 4: hot loops

def test_complaint_4_an_application_that_answers_errors_is_not_asked_thousands_of_times_a_minute(bed):
    """What failed was requeued at once and came back at once: thousands of attempts a minute.
    github.com/dapr/components-contrib/issues/2557, github.com/rabbitmq/rabbitmq-server/issues/1020"""
    bed.app.handler = Script(500)
    ids = ids_of(5)
    bed.queue.publish_many(ids)
    bed.sidecar(retry=None)  # the defaults
    bed.app.wait_for_posts(5)
    hold_true(lambda: max(len(bed.app.posts(i)) for i in ids) <= 7, "at most 7 attempts in 5 s", 5)
    assert {p.header("Onceward-Redelivered") for p in bed.app.posts()} == {"false"}, "they wait here, not in a loop through the broker"


def test_complaint_4_nor_one_that_is_down(bed):
    """The same links. One message is tried after each wait; a hundred that are behind it make no difference."""
    bed.app.handler = Script(503)
    bed.queue.publish_many(ids_of(100))
    bed.sidecar(retry=None, ready=None)  # the defaults
    bed.app.wait_for_posts(2)
    hold_true(lambda: len(bed.app.posts()) <= 16 + 16, "the first requests, and at most three a second then", 5)


# 5: consumers leak

def test_complaint_5_reconnects_leak_no_consumer(bed):
    """After reconnects the broker counted several consumers of one program, each with a prefetch of messages that nobody handled.
    github.com/dapr/components-contrib/issues/4540"""
    gate = Gate()

    def handler(request, reply):
        gate.wait()
        return bed.app.commit_and_answer(request, reply)

    bed.app.handler = handler
    link = bed.new_proxy(bed.rabbitmq.port)
    ids = ids_of(100)
    bed.queue.publish_many(ids)
    sidecar = bed.sidecar(prefetch=16, forward={"concurrency": 4}, token_window="10m", max_window="20m",
                          top={"broker": {"url": bed.rabbitmq.url(port=link.port), "heartbeat": "2s"}})
    for n in range(4):
        since = sidecar.mark()
        if n % 2:
            link.cut()
        else:
            link.freeze()
            sidecar.wait_for("disconnected", peer="broker", since=since, deadline=120)
            link.cut()
            link.thaw()
        sidecar.wait_for("consuming", since=since, deadline=120)

    wait_until(lambda: bed.queue.n_consumers == 1 and 0 < len(ids) - bed.queue.n_ready <= 16,
               lambda: f"one consumer that holds at most 16: {bed.queue.n_consumers}, {bed.queue.n_ready} ready", 120, 0.1)
    gate.open()
    bed.wait_for_effects(ids)
    sidecar.wait_for_quiet()
    assert_all_at_the_first_attempt(bed, ids)


# 6: an outage uses up the delivery count

def test_complaint_6_an_application_that_is_down_for_long_uses_up_no_delivery_limit(bed):
    """Each return to the queue counted as a delivery, and after twenty the broker dead-lettered everything. What nobody else could take
    is not returned at all. (An hour of it, with every limit: the simulator's measured scenarios.)
    github.com/dapr/components-contrib/issues/3136"""
    bed.queue = bed.new_queue("-limit", arguments={"x-queue-type": "quorum", "x-delivery-limit": 2})
    down = threading.Event()
    down.set()
    bed.app.handler = lambda request, reply: 503 if down.is_set() else bed.app.commit_and_answer(request, reply)
    ids = ids_of(20)
    bed.queue.publish_many(ids)
    sidecar = bed.sidecar(queue=bed.queue, top={"broker": {"delivery_limit": 2}}, pause_hold="0s", ready={"interval": "20ms"}, retry=FEW)
    sidecar.wait_for("paused", reason="overloaded", deadline=60)
    bed.app.wait_for_posts(8)
    down.clear()
    bed.wait_for_effects(ids)
    sidecar.wait_for_quiet()
    assert not sidecar.find("returned")
    assert {p.header("Onceward-Redelivered") for p in bed.app.posts()} == {"false"}
    assert_all_at_the_first_attempt(bed, ids)


# 7: memory

@pytest.mark.parametrize("n, size, most_mib", [(20000, 200, 12), (150, 1 << 20, 16 + 12)], ids=["many-small", "large"])
def test_complaint_7_a_backlog_is_not_held_in_memory(bed, n, size, most_mib):
    """An unlimited prefetch took the whole backlog into memory, and each sidecar took hundreds of MB.
    github.com/vectordotdev/vector/issues/21037, github.com/dapr/dapr/issues/6581"""
    release = os.environ.get("ONCEWARD_RELEASE_BINARY", "")
    if not os.access(release, os.X_OK):
        pytest.skip("ONCEWARD_RELEASE_BINARY names no program")
    gate = Gate()

    def handler(request, reply):
        gate.wait()
        return 204

    bed.app.handler = handler
    bed.queue.publish_many(ids_of(n), body=b"x" * size)
    sidecar = bed.sidecar(binary=release, completion="response", token_window="60s", max_bytes="16MiB")
    gate.wait_for_waiting(1)
    since = sidecar.mark()
    sidecar.wait_for("stats", since=since, n=4)
    held = sidecar.find("stats")[-1]
    used = sidecar.status_kib("RssAnon") / 1024
    print(f"RssAnon {used:.1f} MiB with {held['held']} of {n} messages held, {held['held_bytes']} bytes")
    assert used <= most_mib and held["held"] < n and held["held_bytes"] <= 16 << 20
    gate.open()
    sidecar.kill()


# 8: a misspelt key

@pytest.mark.parametrize("where, key", [("forward", "concurency"), ("retry", "max_attempt"), (None, "prefech"), (None, "maxConcurrency")])
def test_complaint_8_a_misspelt_key_is_refused(bed, where, key):
    """A key that nobody knows was ignored without a word: the limit that somebody had set was not there. (Dapr's `concurrency`.)"""
    config = bed.config(**({where: {key: 1}} if where else {key: 1}))
    sidecar = bed.sidecar(config=config, wait=False)
    assert sidecar.wait() == 2
    error = sidecar.find("config_error")[0]
    assert key in error["path"] and "unknown" in error["reason"]
    assert not sidecar.find("consuming")
    bed.sidecars.remove(sidecar)


# 9: a dead subscription looks healthy

def test_complaint_9_a_dead_subscription_is_not_silent(bed):
    """The program said that it was well, and its subscription was dead: no line in the log, no message for hours.
    github.com/dapr/dapr/issues/2167, github.com/dapr/dapr/issues/7298"""
    link = bed.new_proxy(bed.rabbitmq.port)
    sidecar = bed.sidecar(top={"broker": {"url": bed.rabbitmq.url(port=link.port), "heartbeat": "2s"}})

    def deaf_is_said(*events):
        since = sidecar.mark()
        yield
        wait_until(lambda: any(sidecar.find(e, since) for e in events), f"a line of {events}", 40)
        wait_until(lambda: [e for e in sidecar.find("stats", since) if e["state"] != "consuming"], "its stats say so", 40)
        yield

    for harm, mend, event in (
            (bed.queue.delete, bed.queue.declare, ("cancelled",)),
            (link.freeze, lambda: (link.cut(), link.thaw()), ("disconnected",)),
            (lambda: (link.refuse(), link.cut()), link.mend, ("disconnected",))):
        said = deaf_is_said(*event)
        next(said)
        harm()
        next(said)
        since = sidecar.mark()
        mend()
        sidecar.wait_for("consuming", since=since, deadline=60)
        wait_until(lambda: [e for e in sidecar.find("stats", since) if e["state"] == "consuming"], "its stats say so", 40)
