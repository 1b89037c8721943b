"""Order per key on real servers: the completions of one key commit in the order of the queue, whatever ends or restarts."""

import datetime
import itertools
import json
import signal
import subprocess
import threading
import time

import pika
import pytest

from rig import schema
from rig.application import Gate
from rig.bare import Consumer
from rig.wait import wait_until
from test_batches import Batch, forward

SINGLE = {"x-queue-type": "quorum", "x-single-active-consumer": True}
ORDER = {"order": {"key": ["header:account"]}, "delivery_limit": 0}


class Ordered:
    """Publishes numbered messages per key, and an application that records after which number each one committed."""

    def __init__(self, bed, suffix="-ordered", arguments=None):
        self.bed = bed
        bed.queue = bed.new_queue(suffix, arguments=arguments or SINGLE)
        bed.app.handler = self.commit
        self.numbers = {}
        self.fails = lambda key, number, attempt: None  # a status in place of the commit

    def publish(self, keys, n):
        """n messages of each key, in turns."""
        for _, key in itertools.product(range(n), keys):
            number = self.numbers[key] = self.numbers.get(key, 0) + 1
            self.bed.queue.publish(f"{key}:{number}", headers={"account": key})
        self.bed.queue.sync()

    def commit(self, request, reply):
        key, number = request.message_id.split(":")
        status = self.fails(key, int(number), request.attempt)
        if status:
            return status
        app = self.bed.app
        database = app.borrow()
        try:
            with database.cursor() as cursor:
                cursor.execute("SELECT onceward.complete(%s)", (request.token,))
                cursor.execute("SELECT coalesce(max(split_part(message_id, ':', 2)::int), 0) FROM app.ledger "
                               "WHERE application = %s AND message_id LIKE %s", (app.name, key + ":%"))
                last = cursor.fetchone()[0]
                cursor.execute("INSERT INTO app.ledger (application, message_id, note) VALUES (%s, %s, %s)",
                               (app.name, request.message_id, str(last)))
            database.commit()
        except Exception:
            database.rollback()
            raise
        finally:
            app.give_back(database)
        return 200

    def commit_batch(self, request, reply):
        """The valid messages of a request in one transaction; the others are named as failed."""
        batch, failures, app = Batch(request), [], self.bed.app
        for m in batch.messages:
            key, number = m["id"].split(":")
            status = self.fails(key, int(number), m["attempt"])
            if status:
                failures.append({"id": m["id"], "status": status})
        failed = {f["id"] for f in failures}
        tokens = [m["token"] for m in batch.messages if m["id"] not in failed]
        database = app.borrow()
        try:
            with database.cursor() as cursor:
                cursor.execute("SELECT onceward.complete_valid(%s::text[])", (tokens,))
                valid = {row[0] for row in cursor.fetchall()}
                for m in batch.messages:
                    if m["token"] in valid:
                        cursor.execute("""INSERT INTO app.ledger (application, message_id, note)
                            SELECT %(app)s, %(id)s, coalesce(max(split_part(message_id, ':', 2)::int), 0) FROM app.ledger
                            WHERE application = %(app)s AND message_id LIKE split_part(%(id)s, ':', 1) || ':%%'""",
                                       {"app": app.name, "id": m["id"]})
            database.commit()
        except Exception:
            database.rollback()
            raise
        finally:
            app.give_back(database)
        reply.status(200, json.dumps({"failures": failures}).encode(), {"Onceward-Batch": batch.count})

    def ids(self):
        return [f"{key}:{n}" for key, most in self.numbers.items() for n in range(1, most + 1)]

    def rows(self):
        return self.bed.rows("SELECT message_id, note FROM app.ledger WHERE application = %s", self.bed.app.name)

    def assert_ordered(self, without=()):
        """Each once, and each after the one before it."""
        rows = self.rows()
        done = [r["message_id"] for r in rows]
        assert len(done) == len(set(done)), "doubled"
        assert set(done) == set(self.ids()) - set(without), "gaps"
        wrong = []
        for r in rows:
            key, number = r["message_id"].split(":")
            before = [n for n in range(1, int(number)) if f"{key}:{n}" not in without]
            if int(r["note"]) != (before[-1] if before else 0):
                wrong.append((r["message_id"], r["note"]))
        assert not wrong, f"{len(wrong)} inversions: {wrong[:5]}"


def test_the_messages_of_a_key_go_one_after_the_other(bed):
    ordered = Ordered(bed)
    running, most = {}, {}
    lock = threading.Lock()
    commit = ordered.commit

    def handler(request, reply):
        key = request.message_id.split(":")[0]
        with lock:
            running[key] = running.get(key, 0) + 1
            most[key] = max(most.get(key, 0), running[key])
            most["all"] = max(most.get("all", 0), sum(running.values()))
        try:
            return commit(request, reply)
        finally:
            with lock:
                running[key] -= 1

    bed.app.handler = handler
    ordered.publish([f"k{i}" for i in range(20)], 20)
    bed.sidecar(**ORDER)
    bed.wait_for_effects(ordered.ids())
    assert most.pop("all") > 1
    assert set(most.values()) == {1}
    ordered.assert_ordered()
    bed.assert_acked()


def test_a_message_that_fails_keeps_its_key_waiting_and_no_other(bed):
    ordered = Ordered(bed)
    good = threading.Event()
    ordered.fails = lambda key, number, attempt: 500 if (key, number) == ("bad", 1) and not good.is_set() else None
    ordered.publish(["bad", "good"], 20)
    bed.sidecar(retry={"max_attempts": 1000, "backoff": "50ms", "max_backoff": "50ms"}, **ORDER)
    bed.wait_for_effects([f"good:{n}" for n in range(1, 21)])
    assert not bed.app.posts("bad:2")
    good.set()
    bed.wait_for_effects(ordered.ids())
    ordered.assert_ordered()
    bed.assert_acked()


def test_after_a_dead_letter_the_key_goes_on(bed):
    ordered = Ordered(bed)
    ordered.fails = lambda key, number, attempt: 400 if (key, number) == ("a", 3) else None
    ordered.publish(["a", "b"], 10)
    bed.sidecar(**ORDER)
    bed.wait_for_effects(set(ordered.ids()) - {"a:3"})
    ordered.assert_ordered(without={"a:3"})
    assert [r["reason"] for r in bed.letters()] == ["permanent"]
    bed.assert_acked()


def test_a_batch_has_runs_of_its_keys(bed):
    """One message dies and one is tried again, both named in the answer of a batch, which completes all others; the
    sidecar is killed meanwhile."""
    ordered = Ordered(bed)
    bed.app.handler = ordered.commit_batch
    ordered.fails = lambda key, number, attempt: (422 if (key, number) == ("k1", 3) else
                                                  500 if (key, number, attempt) == ("k2", 2, 1) else None)
    ordered.publish([f"k{i}" for i in range(20)], 20)
    keys = {"retry": {"max_attempts": 8, "backoff": "50ms", "max_backoff": "50ms"}, "forward": forward(100, 2), **ORDER}
    sidecar = bed.sidecar(**keys)
    wait_until(lambda: len(ordered.rows()) >= 100, lambda: f"100 completed: {bed.statuses()}")
    sidecar.kill()
    bed.sidecar(**keys)
    bed.wait_for_effects(set(ordered.ids()) - {"k1:3"})
    ordered.assert_ordered(without={"k1:3"})
    ids = [[m["id"].split(":")[0] for m in Batch(p).messages] for p in bed.app.posts()]
    assert max(len(i) for i in ids) >= 5 and any(len(i) > len(set(i)) for i in ids), "no request has two messages of a key"
    assert [r["reason"] for r in bed.letters()] == ["permanent"]
    bed.assert_acked()


def test_a_queue_that_dead_letters_to_itself_is_reported(bed):
    ordered = Ordered(bed)
    sidecar = bed.sidecar(**ORDER)
    ordered.publish(["a"], 1)
    bed.wait_for_effects(["a:1"])
    bed.queue.publish("a:2", headers={"account": "a", "x-death": [{"queue": bed.queue.name, "reason": "expired", "count": 1}]})
    assert sidecar.wait_for("order_loop")["message_id"] == "a:2"
    assert len(sidecar.find("order_loop")) == 1


def test_a_redrive_goes_the_way_of_the_message(bed):
    """To its own exchange with its own routing key, which is its key."""
    ordered, exchange = Ordered(bed), f"{bed.name}-accounts"
    ordered.fails = lambda key, number, attempt: 400 if len(bed.app.posts("a:1")) == 1 else None
    channel = bed.queue.channel
    channel.exchange_declare(exchange, "direct", durable=True)
    try:
        channel.queue_bind(bed.queue.name, exchange, "acc-1")
        sidecar = bed.sidecar(**{**ORDER, "order": {"key": ["routing_key"]}})
        channel.basic_publish(exchange, "acc-1", b"{}", pika.BasicProperties(message_id="a:1", delivery_mode=2))
        sidecar.wait_for("dead")

        def redrive(*options):
            return subprocess.run([sidecar.binary, "dead", "redrive", "--config", sidecar.config_path, *options],
                                  capture_output=True, text=True, check=False)

        refused = redrive()
        assert refused.returncode == 1 and "redrive it with --out-of-order" in refused.stdout
        channel.queue_unbind(bed.queue.name, exchange, "acc-1")
        unroutable = redrive("--out-of-order")
        assert unroutable.returncode == 1
        assert f'there is no queue for exchange "{exchange}" with routing key "acc-1"' in unroutable.stdout
        channel.queue_bind(bed.queue.name, exchange, "acc-1")
        done = redrive("--out-of-order")
        assert done.returncode == 0 and f'redriven to exchange "{exchange}" with routing key "acc-1"' in done.stdout
        bed.wait_for_effects(["a:1"])
        assert [(p.header("Amqp-Exchange"), p.header("Amqp-Routing-Key")) for p in bed.app.posts("a:1")] == [(exchange, "acc-1")] * 2
        assert not bed.letters()
        bed.assert_acked()
    finally:
        channel.exchange_delete(exchange)


HOLD = {**ORDER, "order": {"key": ["header:account"], "on_dead": "hold"}}


def command(bed, sidecar, *words):
    done = subprocess.run([sidecar.binary, words[0], "--config", sidecar.config_path, "--consumer", bed.queue.name, *words[1:]],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_held_message_keeps_its_place_until_an_operator_decides(bed):
    """Through a kill of its replica, and through a drain that hands it to another one."""
    ordered = Ordered(bed)
    mended = threading.Event()
    ordered.fails = lambda key, number, attempt: 400 if key != "c" and number == 3 and not mended.is_set() else None
    ordered.publish(["a", "b", "c"], 50)
    first = bed.sidecar(**HOLD)
    bed.wait_for_effects(["a:1", "a:2", "b:1", "b:2", *(f"c:{n}" for n in range(1, 51))])
    wait_until(lambda: {line["message_id"] for line in first.find("order_held")} == {"a:3", "b:3"}, "both are held")
    first.kill()
    first.start()
    first.wait_for("order_held", n=4)
    other = bed.sidecar(wait=False, **HOLD)
    assert first.term() == 0
    other.wait_for("order_held", message_id="a:3")
    other.wait_for("order_held", message_id="b:3")
    assert {r["status"] for r in bed.rows("SELECT status FROM onceward.inbox WHERE consumer = %s AND message_id IN ('a:3', 'b:3')",
                                          bed.queue.name)} == {"held"}
    assert not bed.letters() and not bed.app.posts("a:4") and not bed.app.posts("b:4")
    command(bed, other, "give-up", "b:3")
    bed.wait_for_effects([f"b:{n}" for n in range(4, 51)])
    assert [r["reason"] for r in bed.letters()] == ["operator"]
    mended.set()
    command(bed, other, "retry", "a:3")
    bed.wait_for_effects(set(ordered.ids()) - {"b:3"})
    ordered.assert_ordered(without={"b:3"})
    bed.assert_acked()


def test_attempts_that_are_used_up_hold_a_message(bed):
    ordered = Ordered(bed)
    ordered.fails = lambda key, number, attempt: 500 if (key, number) == ("a", 1) and len(bed.app.posts("a:1")) <= 2 else None
    ordered.publish(["a", "b"], 10)
    sidecar = bed.sidecar(retry={"max_attempts": 2, "backoff": "50ms"}, **HOLD)
    assert sidecar.wait_for("order_held")["error"]
    bed.wait_for_effects([f"b:{n}" for n in range(1, 11)])
    command(bed, sidecar, "retry")
    bed.wait_for_effects(ordered.ids())
    ordered.assert_ordered()
    assert not bed.letters()



def test_redelivered_messages_may_together_exceed_the_largest_single_one(bed):
    """The first redelivery makes Onceward ask for the queue's kind; deliveries wait meanwhile."""
    ordered = Ordered(bed)
    good = threading.Event()
    ordered.fails = lambda key, number, attempt: None if good.is_set() else 503
    for n in range(1, 151):
        ordered.numbers[f"k{n}"] = 1
        bed.queue.publish(f"k{n}:1", body=b"x" * 1000, headers={"account": f"k{n}"})
    bed.queue.sync()
    first = bed.sidecar(max_bytes="1MiB", **ORDER)  # max_message is 4 KiB then
    bed.queue.wait_for_ready(0)
    first.kill()
    good.set()
    second = bed.sidecar(max_bytes="1MiB", **ORDER)
    bed.wait_for_effects(ordered.ids())
    assert not second.find("bug") and not second.find("too_large")
    ordered.assert_ordered()
    bed.assert_acked()


@pytest.mark.long
def test_kills_and_restarts_of_three_replicas_keep_the_order(bed):
    ordered = Ordered(bed)
    keys = [f"k{i}" for i in range(30)]
    ordered.fails = lambda key, number, attempt: 500 if attempt == 1 and number % 11 == 0 else None
    ordered.publish(keys, 10)
    replicas = [bed.sidecar(**ORDER) for _ in range(3)]
    for turn in range(6):
        ordered.publish(keys, 5)
        n = len(bed.app.effects())
        wait_until(lambda: len(bed.app.effects()) > n, "something is done")
        for r in replicas[turn % 3:] + replicas[:turn % 3]:  # the active one is among them
            if turn % 2:
                assert r.term() == 0
            else:
                r.kill()
            mark = r.mark()
            r.start()
            r.wait_for("consuming", since=mark)  # before that a SIGTERM may find no handler
    bed.wait_for_effects(ordered.ids())
    ordered.assert_ordered()
    bed.assert_acked()


def return_often(queue, n, times):
    """As many restarts of a replica would: a channel takes n messages and closes."""
    for _ in range(times):
        consumer = Consumer(queue.rabbitmq, queue.name, 256)
        consumer.wait(n)
        consumer.close_channel()
        consumer.end()


def test_a_queue_near_its_delivery_limit_stops_in_all_replicas_until_an_operator_continues(bed):
    """Three replicas and their restarts would use up the limit, and the broker would then drop all messages at once."""
    ordered = Ordered(bed, arguments={**SINGLE, "x-delivery-limit": 20})
    ordered.publish(["a", "b"], 60)
    return_often(bed.queue, 120, 18)
    replicas = [bed.sidecar(name=f"s{i}", wait=False, order=ORDER["order"]) for i in range(3)]
    holder = wait_until(lambda: next((r for r in replicas if r.find("paused", reason="delivery_limit") and r.find("consuming")), None), "it stops")
    for r in replicas:
        assert "18 times before" in r.wait_for("paused", reason="delivery_limit")["detail"]
    wait_until(lambda: bed.rows("SELECT stopped FROM onceward.control WHERE consumer = %s AND stopped <> '{}'", bed.queue.name), "it is recorded")
    # A passive declare counts the active consumer alone.
    wait_until(lambda: bed.rabbitmq.consumers(bed.queue.name, "consumer_tag").count("<<") == 1, "the standbys have closed their channels")
    for _ in range(2):  # its first end returns the messages, and then nobody takes them
        for r in [holder] + [r for r in replicas if r is not holder]:
            r.kill()
            r.start()
            r.wait_for("paused", reason="delivery_limit", since=0)
    bed.queue.wait_for_ready(120)
    assert bed.queue.n_consumers == 0 and not bed.app.posts()
    shown = subprocess.run([holder.binary, "status", "--config", holder.config_path], capture_output=True, text=True, check=True).stdout
    assert f"stopped near the delivery limit until `onceward retry --consumer C`: {bed.queue.name}" in " ".join(shown.split())
    for r in replicas:
        r.kill()
    command(bed, holder, "retry")
    for r in replicas:  # they know of it although none ran at the time
        r.start()
    bed.wait_for_effects(ordered.ids())
    ordered.assert_ordered()
    bed.assert_acked()


@pytest.mark.parametrize("arguments, word", [
    ({"x-queue-type": "quorum"}, "single active consumer"),
    ({"x-single-active-consumer": True, "x-max-priority": 5}, "x-max-priority"),
    ({**SINGLE, "x-delivery-limit": 19}, "at least 20"),
    ({**SINGLE, "x-delivery-limit": 0}, "at least 20"),
    ({**SINGLE, "x-delivery-limit": -1}, "at least 20"),
])
def test_a_queue_that_cannot_keep_the_order_is_refused_before_a_message_is_taken(bed, arguments, word):
    if arguments.get("x-delivery-limit") == -1 and bed.rabbitmq.version() >= (4,):
        pytest.skip("there it is no limit")
    ordered = Ordered(bed, arguments=arguments)
    ordered.publish(["a"], 1)
    sidecar = bed.sidecar(wait=False, **{k: v for k, v in ORDER.items() if k != "delivery_limit"})
    assert word in sidecar.wait_for("refused")["reason"]
    sidecar.wait_for("paused", reason="refused")
    checked = check(bed, sidecar)
    assert checked.returncode == 1 and word in checked.stdout
    assert not bed.app.posts() and bed.queue.n_ready == 1


def check(bed, sidecar, *options):
    return subprocess.run([sidecar.binary, "check", "--config", sidecar.config_path, "--connect", *options],
                          capture_output=True, text=True, check=False)


def test_an_ordered_queue_is_not_sampled(bed):
    ordered = Ordered(bed)
    ordered.publish(["a"], 2)
    bed.app.stop()
    sidecar = bed.sidecar(wait=False, **ORDER)
    checked = check(bed, sidecar, "--sample")
    assert checked.returncode == 1 and "ordered" in checked.stdout and "onceward explain unkeyed" in checked.stdout
    assert "has the id" not in checked.stdout


def test_a_drain_returns_the_whole_tail_in_order(bed):
    """At least 100 held: fewer come back in order by chance."""
    ordered = Ordered(bed)
    gate = Gate()
    bed.app.handler = lambda request, reply: gate.wait() or ordered.commit(request, reply)
    first = bed.sidecar(**ORDER)
    ordered.publish(["a", "b"], 100)
    gate.wait_for_waiting(2)
    other = bed.sidecar(**ORDER)
    gate.open()
    assert first.term() == 0
    other.wait_for("completed")
    bed.wait_for_effects(ordered.ids())
    ordered.assert_ordered()
    bed.assert_acked()


def test_max_hold_returns_the_whole_tail_in_order(bed):
    ordered = Ordered(bed)
    stuck = threading.Event()
    ordered.fails = lambda key, number, attempt: 503 if (key, number) == ("a", 1) and not stuck.is_set() else None
    ordered.publish(["a", "b"], 100)
    sidecar = bed.sidecar(token_window="2s", max_window="2s", max_hold="5s", **ORDER)
    assert sidecar.wait_for("returned")["reason"] == "held for max_hold"
    stuck.set()
    bed.wait_for_effects(ordered.ids())
    ordered.assert_ordered()
    bed.assert_acked()


def test_one_key_that_fills_the_prefetch_is_reported(bed):
    ordered = Ordered(bed)
    stuck = threading.Event()
    ordered.fails = lambda key, number, attempt: None if stuck.is_set() else 503
    ordered.publish(["a"], 300)
    sidecar = bed.sidecar(**ORDER)
    blocked = sidecar.wait_for("order_blocked")
    assert blocked["message_id"] == "a:1" and blocked["waiting"] == 255
    stuck.set()
    bed.wait_for_effects(ordered.ids())
    ordered.assert_ordered()
    bed.assert_acked()


def test_messages_without_a_key_are_not_ordered_or_dead(bed):
    ordered = Ordered(bed)
    bed.app.handler = bed.app.commit_and_answer
    bed.queue.publish("plain", headers={"acount": "a"})
    sidecar = bed.sidecar(**ORDER)
    bed.wait_for_effects(["plain"])
    line = sidecar.wait_for("unkeyed")
    assert line["n"] == 1 and line["message_id"] == "plain"
    assert "looked for header:account; it has the properties message_id" in line["reason"] and "acount" in line["reason"]
    sidecar.wait_for("stats", unkeyed_total=1)
    sidecar.term()
    bed.sidecar(**{**ORDER, "order": {"key": ["header:account"], "unkeyed": "dead"}})
    bed.queue.publish("other")
    wait_until(lambda: [r["reason"] for r in bed.letters()] == ["no_key"], "it is a dead letter")
    assert "looked for header:account" in bed.letters()[0]["last_error"]
    assert not bed.app.posts("other")
    bed.assert_acked()


def test_another_range_is_refused_until_takes_over_confirms_it(bed):
    ordered = Ordered(bed)
    names = [f"{bed.name}-range-{i}" for i in range(3)]
    channel = bed.queue.channel
    for name in names:
        channel.queue_declare(name, durable=True, arguments=SINGLE)

    def config(last, **keys):
        whole = bed.config(**ORDER)
        entry = whole["queues"].pop(bed.queue.name)
        whole["queues"]["accounts"] = {**entry, "queue": f"{bed.name}-range-{{0..{last}}}", "consumer": f"{bed.name}-range", **keys}
        return whole

    def publish(name, number):
        channel.basic_publish("", name, b"{}", pika.BasicProperties(message_id=f"a:{number}", headers={"account": "a"}, delivery_mode=2))

    try:
        first = bed.sidecar(config=config(1), wait=False)
        first.wait_for("consuming", n=2)
        publish(names[0], 1)
        bed.wait_for_effects(["a:1"])
        assert first.term() == 0
        other = bed.sidecar(config=config(2), wait=False)
        reason = other.wait_for("refused")["reason"]
        assert "(1) stop publishing" in reason and f'takes_over "{bed.name}-range-{{0..1}}"' in reason
        checked = check(bed, other)
        assert checked.returncode == 1 and "(1) stop publishing" in checked.stdout
        publish(names[2], 2)
        assert other.term() == 0
        assert not bed.app.posts("a:2")
        confirmed = bed.sidecar(config=config(2, takes_over=f"{bed.name}-range-{{0..1}}"), wait=False)
        bed.wait_for_effects(["a:2"])
        assert confirmed.term() == 0
        again = bed.sidecar(config=config(2), wait=False)  # it is the recorded range now
        again.wait_for("consuming", n=3)
    finally:
        for name in names:
            channel.queue_delete(name)


def test_the_other_partitions_wait_for_one_that_leaves_the_range(bed):
    """Two replicas come with a smaller range, while a message of the partition that leaves fails. Its key continues in another one."""
    ordered = Ordered(bed)
    names = [f"{bed.name}-leave-{i}" for i in range(3)]
    good = threading.Event()
    ordered.fails = lambda key, number, attempt: 500 if number == 1 and not good.is_set() else None
    ordered.numbers = {"a": 2}

    def config(last, **keys):
        whole = bed.config(retry={"max_attempts": 1000, "backoff": "500ms", "max_backoff": "500ms"}, **ORDER)
        entry = whole["queues"].pop(bed.queue.name)
        name = f"{bed.name}-leave"
        whole["queues"]["accounts"] = {**entry, "queue": f"{name}-{{0..{last}}}", "consumer": name, **keys}
        return whole

    for name in names:
        bed.queue.channel.queue_declare(name, durable=True, arguments=SINGLE)
    try:
        former = bed.sidecar(config=config(2), wait=False)
        former.wait_for("consuming", n=3)
        assert former.term() == 0
        bed.rows("DELETE FROM onceward.replica WHERE queues::text LIKE %s RETURNING 1", f"%{bed.name}-leave-0%")  # else it counts for 30 s
        for number, name in ((1, names[2]), (2, names[0])):
            bed.queue.channel.basic_publish("", name, b"{}", pika.BasicProperties(
                message_id=f"a:{number}", headers={"account": "a"}, delivery_mode=2))
        replicas = [bed.sidecar(config=config(1, takes_over=f"{bed.name}-leave-{{0..2}}"), wait=False) for _ in range(2)]
        for replica in replicas:
            replica.wait_for("paused", reason="partition_leaving", deadline=60)
        n = len(bed.app.posts("a:1"))
        # Meanwhile the replica that does not hold it finds the queue empty several times, and may not conclude from it.
        wait_until(lambda: len(bed.app.posts("a:1")) >= n + 12, "it is tried twice a second, twelve times", 60)
        assert not bed.app.posts("a:2")
        assert bed.rows("SELECT queue FROM onceward.consumer WHERE consumer = %s", f"{bed.name}-leave")[0]["queue"].endswith("{0..2}")
        good.set()
        bed.wait_for_effects(["a:1", "a:2"])
        ordered.assert_ordered()
        changed = {"from": f"{bed.name}-leave-{{0..2}}", "to": f"{bed.name}-leave-{{0..1}}"}
        assert any(replica.find("partitions_changed", **changed) for replica in replicas)
        assert not any(replica.find("key_in_two_partitions") for replica in replicas)
    finally:
        for name in names:
            bed.queue.channel.queue_delete(name)


def test_a_rollout_of_a_smaller_range_ends(bed):
    """It ends a replica with the former range only when one with the new range has become ready."""
    names = [f"{bed.name}-roll-{i}" for i in range(3)]

    def config(last, **keys):
        whole = bed.config(**ORDER)
        entry = whole["queues"].pop(bed.queue.name)
        name = f"{bed.name}-roll"
        whole["queues"]["accounts"] = {**entry, "queue": f"{name}-{{0..{last}}}", "consumer": name, **keys}
        return whole

    for name in names:
        bed.queue.channel.queue_declare(name, durable=True, arguments=SINGLE)
    try:
        former = bed.sidecar(config=config(2), wait=False)
        former.wait_for("consuming", n=3)
        new = bed.sidecar(config=config(1, takes_over=f"{bed.name}-roll-{{0..2}}"), wait=False)
        new.wait_for("paused", reason="partition_leaving")
        for question in ("--ready", "--consuming"):
            wait_until(lambda question=question: subprocess.run(
                [schema.require_binary(), "health", question, "--state", new.config["state_file"]], check=False).returncode == 0, question)
        assert not former.find("draining")
        former.term()
        new.wait_for("resumed", reason="partition_leaving", deadline=60)
        new.wait_for("partitions_changed")
    finally:
        for name in names:
            bed.queue.channel.queue_delete(name)


def test_a_replica_without_the_order_of_the_others_is_refused(bed):
    ordered = Ordered(bed)
    first = bed.sidecar(**ORDER)
    ordered.publish(["a"], 3)
    bed.wait_for_effects(ordered.ids())
    other = bed.sidecar(wait=False)
    reason = other.wait_for("refused")["reason"]
    assert "recorded with order.key, and this configuration has none" in reason and f'takes_over to "{bed.queue.name}"' in reason
    checked = check(bed, other)
    assert checked.returncode == 1 and "recorded with order.key" in checked.stdout
    region = bed.sidecar(wait=False, order={"key": ["header:region"]}, delivery_limit=0)
    assert "with order.key header:account, and this configuration has header:region" in region.wait_for("refused")["reason"]
    checked = check(bed, region)
    assert checked.returncode == 1 and "this configuration has header:region" in checked.stdout
    confirmed = bed.sidecar(wait=False, takes_over=bed.queue.name)
    assert "confirms this; another replica still runs with the recorded setting" in confirmed.wait_for("refused")["reason"]
    checked = check(bed, confirmed)
    assert "takes_over confirms another order.key, and a replica still runs with the recorded one" in checked.stdout
    assert not confirmed.find("consuming") and not other.find("consuming") and not region.find("consuming")
    ordered.publish(["a"], 3)
    bed.wait_for_effects(ordered.ids())
    ordered.assert_ordered()
    first.term()
    confirmed.wait_for("consuming")
    assert "a replica still runs" not in check(bed, confirmed).stdout


def test_a_new_consumer_name_does_not_hide_a_change_of_the_order(bed):
    """The former consumer has the record, and the running replica."""
    ordered = Ordered(bed)
    first = bed.sidecar(**ORDER)
    ordered.publish(["a"], 3)
    bed.wait_for_effects(ordered.ids())
    other = bed.sidecar(wait=False, consumer="new-" + bed.name, takes_over=bed.queue.name)
    assert "confirms this; another replica still runs with the recorded setting" in other.wait_for("refused")["reason"]
    checked = check(bed, other)
    assert "takes_over confirms another order.key, and a replica still runs with the recorded one" in checked.stdout
    assert not other.find("consuming")
    first.term()
    other.wait_for("consuming")


def test_check_compares_the_order_with_the_record_of_the_former_consumer(bed):
    """As `run` does. The former name is not that of the queue, so takes_over does not confirm another order."""
    Ordered(bed)
    bed.sidecar(consumer="old-" + bed.name, **ORDER).wait_for("consuming")
    keys = {"consumer": "new-" + bed.name, "takes_over": "old-" + bed.name}
    other = bed.sidecar(wait=False, **keys)
    reason = other.wait_for("refused")["reason"]
    checked = check(bed, other)
    assert "recorded with order.key, and this configuration has none" in reason and checked.returncode == 1 and reason in checked.stdout, checked.stdout
    assert check(bed, bed.sidecar(wait=False, **keys, **ORDER)).returncode == 0


def test_a_replica_that_stood_still_during_a_change_of_the_order_claims_nothing(bed):
    ordered = Ordered(bed)
    first = bed.sidecar(**ORDER)
    ordered.publish(["a"], 3)
    bed.wait_for_effects(ordered.ids())
    first.freeze()
    bed.rows("UPDATE onceward.replica SET seen_at = seen_at - interval '16 s'")
    second = bed.sidecar(takes_over=bed.queue.name)
    # The broker still delivers to the first one, which finds these when it goes on.
    ordered.publish(["a"], 3)
    bed.queue.wait_for_ready(0)
    first.thaw()
    assert "recorded without order.key, and this configuration has it" in first.wait_for("refused")["reason"]
    bed.wait_for_effects(ordered.ids())
    wait_until(lambda: len(second.find("completed")) == 3, "the second one completes what the first one did not claim")
    assert len(first.find("completed")) == 3


def test_partitions_keep_the_order_of_each_key_through_kills_and_restarts(bed):
    ordered = Ordered(bed)
    names = [f"{bed.name}-part-{i}" for i in range(4)]
    channel = bed.queue.channel
    for name in names:
        channel.queue_declare(name, durable=True, arguments=SINGLE)
    try:
        partitions_keep_the_order(bed, ordered, names)
    finally:
        for name in names:
            channel.queue_delete(name)


def partitions_keep_the_order(bed, ordered, names):
    keys = [f"k{i}" for i in range(40)]

    def publish(n):
        for _, key in itertools.product(range(n), keys):
            number = ordered.numbers[key] = ordered.numbers.get(key, 0) + 1
            bed.queue.channel.basic_publish("", names[int(key[1:]) % len(names)], b"{}", pika.BasicProperties(
                message_id=f"{key}:{number}", headers={"account": key}, delivery_mode=2))

    def config():
        whole = bed.config(**ORDER)
        entry = whole["queues"].pop(bed.queue.name)
        whole["queues"]["accounts"] = {**entry, "queue": f"{bed.name}-part-{{0..3}}", "consumer": f"{bed.name}-part"}
        return whole

    publish(10)
    replicas = [bed.sidecar(config=config(), name=f"s{i}", wait=False) for i in range(3)]
    for r in replicas:
        r.wait_for("consuming")
    for turn in range(4):
        publish(5)
        n = len(bed.app.effects())
        wait_until(lambda: len(bed.app.effects()) > n, "something is done")
        for r in replicas:
            if turn % 2:
                assert r.term() in (0, -signal.SIGTERM)  # the others may be done before this one has begun to catch signals
            else:
                r.kill()
            r.start()
    bed.wait_for_effects(ordered.ids())
    ordered.assert_ordered()


def test_a_key_in_two_partitions_is_an_error(bed):
    Ordered(bed)
    names = [f"{bed.name}-two-{i}" for i in range(2)]
    channel = bed.queue.channel
    for name in names:
        channel.queue_declare(name, durable=True, arguments=SINGLE)
    whole = bed.config(**ORDER)
    entry = whole["queues"].pop(bed.queue.name)
    whole["queues"]["accounts"] = {**entry, "queue": f"{bed.name}-two-{{0..1}}", "consumer": f"{bed.name}-two"}
    try:
        sidecar = bed.sidecar(config=whole, wait=False)
        sidecar.wait_for("consuming", n=2)
        for number, name in enumerate(names, 1):
            channel.basic_publish("", name, b"{}", pika.BasicProperties(message_id=f"a:{number}", headers={"account": "a"}, delivery_mode=2))
            bed.wait_for_effects([f"a:{number}"])
        assert sidecar.wait_for("key_in_two_partitions")["partition"] == names[1]
    finally:
        for name in names:
            channel.queue_delete(name)


def at(line):
    """The time of a log line, in seconds."""
    return datetime.datetime.fromisoformat(line["ts"].replace("Z", "+00:00")).timestamp()


def test_replicas_that_both_receive_messages_pause(bed):
    """The user may not read the queue's arguments, so a missing single active consumer is seen by its effect alone: both replicas
    receive messages."""
    Ordered(bed, arguments={"x-queue-type": "quorum"})
    bed.app.handler = lambda request, reply: time.sleep(0.1) or bed.app.commit(request) and 200
    user = f"reader-{bed.name[-6:]}"
    bed.rabbitmq.add_user(user)
    try:
        top = {"broker": {"user": user, "password": "secret"}}
        replicas = [bed.sidecar(top=top, name=f"s{i}", forward={"concurrency": 1}, **ORDER) for i in range(2)]
        stop = threading.Event()

        def publish():
            number = 0
            while not stop.wait(0.01):
                number += 1
                bed.queue.publish(f"k{number}:1", headers={"account": f"k{number}"})

        publisher = threading.Thread(target=publish)
        publisher.start()
        try:
            wait_until(lambda: any(r.find("not_exclusive") for r in replicas), "one of them detects the other")
        finally:
            stop.set()
            publisher.join()
        assert any(r.find("paused", reason="not_exclusive") for r in replicas)
        # Figures of four reports, which come sooner than every 2.5 s while the replicas change.
        both_s = max(at(r.find("completed")[0]) for r in replicas)
        found_s = min(at(line) for r in replicas for line in r.find("not_exclusive"))
        assert found_s - both_s < 10, f"found after {found_s - both_s:.1f} s"
    finally:
        bed.rabbitmq.delete_user(user)


@pytest.mark.parametrize("source, n_keys", [("header:account", 2), ("routing_key", 1)])
def test_long_keys_and_routing_keys_are_keys(bed, source, n_keys):
    """Keys of 10 KB differ in their last byte; by the default exchange all messages have one routing key."""
    ordered = Ordered(bed)
    gate = Gate()
    bed.app.handler = lambda request, reply: gate.wait() or ordered.commit(request, reply)
    for number, key in itertools.product((1, 2), "ab"):
        ordered.numbers[key] = number
        bed.queue.publish(f"{key}:{number}", headers={"account": "x" * 10240 + key})
    sidecar = bed.sidecar(**{**ORDER, "order": {"key": [source]}})
    gate.wait_for_waiting(n_keys)
    sidecar.wait_for("stats", received=4)
    assert sorted(p.message_id for p in bed.app.posts()) == ["a:1", "b:1"][:n_keys]
    gate.open()
    bed.wait_for_effects(ordered.ids())
    ordered.assert_ordered()
