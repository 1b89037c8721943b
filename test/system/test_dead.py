"""Dead letters: whole, in the table before they leave the queue, and on their way back."""

import datetime
import decimal
import hashlib
import re
import subprocess

import psycopg2
import pytest

from rig.application import Gate, Script
from rig.wait import wait_until

FEW = {"max_attempts": 2, "backoff": "20ms", "max_backoff": "50ms"}


def command(sidecar, *arguments):
    """Runs `onceward dead …` as an operator does: as the superuser, with the sidecar's configuration."""
    done = subprocess.run([sidecar.binary, *arguments, "--config", sidecar.config_path], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    text = done.stdout.decode(errors="replace")
    assert done.returncode == 0, text
    return text


def test_a_letter_does_not_wait_for_one_slow_neighbour(bed):
    """A further failure could not switch the circuit breaker on."""
    gate = Gate()

    def handler(request, reply):
        if request.message_id == "slow":
            gate.wait()
            return bed.app.commit_and_answer(request, reply)
        return 400

    bed.app.handler = handler
    sidecar = bed.sidecar(token_window="60s")
    bed.queue.publish("slow")
    gate.wait_for_waiting()
    bed.queue.publish("m1")
    sidecar.wait_for("dead", message_id="m1", deadline=20)
    gate.open()
    sidecar.wait_for("completed", message_id="slow")
    bed.assert_acked()


def test_attempts_used_up_is_a_letter_with_everything_and_nothing_is_lost(bed):
    bed.app.handler = Script(500)
    sidecar = bed.sidecar(retry=FEW)
    body = bytes(range(256)) * 3
    bed.queue.publish("m1", body, content_type="application/x-thing", type="order.placed", correlation_id="c-1", priority=3,
                      headers={"region": "north", "n": 7, "deep": {"list": [1, "two"]}})
    line = sidecar.wait_for("dead", message_id="m1")
    assert line["level"] == "error" and line["reason"]
    letter, = bed.letters()
    assert letter["message_id"] == "m1" and letter["attempts"] == 2 and "500" in letter["last_error"]
    assert bytes(letter["body"]) == body and letter["content_type"] == "application/x-thing"
    assert bytes(letter["fingerprint"]) == hashlib.sha256(body).digest()[:16]
    assert letter["queue"] == bed.queue.name and letter["vhost"] == "/" and letter["routing_key"] == bed.queue.name
    assert letter["exchange"] == "" and letter["died_at"] is not None
    assert letter["properties"]["correlation_id"] == "c-1" and letter["properties"]["type"] == "order.placed"
    assert letter["headers"]["region"] == "north" and "deep" in letter["headers"]
    assert bed.row("m1")["status"] == "dead" and bed.app.effects() == {}
    assert [r.attempt for r in bed.app.posts()] == [1, 2]
    bed.assert_acked()


def with_dlx(bed):
    dlq = bed.new_queue("-dlq")
    main = bed.new_queue("-main", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dlq.name})
    bed.queue = main
    return dlq


def test_a_dead_message_goes_to_the_dlx_where_there_is_one(bed):
    dlq = with_dlx(bed)
    bed.app.handler = Script(400)
    sidecar = bed.sidecar(queue=bed.queue)
    bed.queue.publish("m1", b"the body")
    sidecar.wait_for("dead", message_id="m1")
    dlq.wait_for_ready(1)
    method, properties, body = dlq.get()
    assert (properties.message_id, body) == ("m1", b"the body")
    assert properties.headers["x-death"][0]["reason"] == "rejected"
    assert len(bed.letters()) == 1
    bed.assert_acked()


def test_a_message_moved_back_from_the_dlx_is_tried_afresh(bed):
    dlq = with_dlx(bed)
    bed.app.handler = Script(500, 500, bed.app.commit_and_answer)
    sidecar = bed.sidecar(queue=bed.queue, retry=FEW)
    bed.queue.publish("m1", b"the body")
    sidecar.wait_for("dead", message_id="m1")
    dlq.wait_for_ready(1)
    _, properties, body = dlq.get()
    bed.queue.channel.basic_publish("", bed.queue.name, body, properties)  # as a shovel does it
    sidecar.wait_for("completed", message_id="m1")
    assert [r.attempt for r in bed.app.posts()] == [1, 2, 1]
    bed.assert_once("m1")
    bed.assert_acked()


def test_a_copy_of_a_dead_message_is_rejected_again_without_a_post(bed):
    dlq = with_dlx(bed)
    bed.app.handler = Script(400)
    sidecar = bed.sidecar(queue=bed.queue)
    bed.queue.publish("m1")
    sidecar.wait_for("dead", message_id="m1")
    bed.queue.publish("m1")
    sidecar.wait_for("dead_again", message_id="m1")
    dlq.wait_for_ready(2)
    assert len(bed.app.posts()) == 1 and len(bed.letters()) == 1
    bed.assert_acked()


LEADS_BACK = "the queue's dead-letter exchange leads back to it"


def with_a_circle(bed, **arguments):
    """Its dead-letter exchange leads back to it."""
    name = bed.name + "-circle"
    bed.queue = bed.new_queue("-circle", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name, **arguments})


def waits_are_kept(lines, wait="wait_ms"):
    for before, after in zip(lines, lines[1:]):
        assert after["_at"] - before["_at"] > before[wait] / 1000 - 0.25, (before, after)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_dead_message_that_its_dlx_brings_back_goes_round_slowly(bed, kind):
    with_a_circle(bed, **{"x-queue-type": kind})
    bed.app.handler = lambda request, reply: 400 if request.message_id == "bad" else bed.app.commit_and_answer(request, reply)
    sidecar = bed.sidecar(queue=bed.queue, revive=0, prefetch=16)
    bed.queue.publish_many(["bad"])
    sidecar.wait_for("dead", message_id="bad")
    first = sidecar.wait_for("dead_again", message_id="bad")
    assert LEADS_BACK in first["error"] and "dead-letter exchange" in first["advice"] and first["wait_ms"] >= 200
    bed.queue.publish_many([f"m{i}" for i in range(50)])  # the others go on
    bed.wait_for_effects([f"m{i}" for i in range(50)])
    sidecar.wait_for("dead_again", n=4, message_id="bad", deadline=40)
    lines = sidecar.find("dead_again")
    waits_are_kept(lines)
    assert "rejected here 1 times" in lines[0]["error"] and "rejected here 4 times" in lines[3]["error"]
    assert lines[3]["wait_ms"] >= 1600
    sidecar.wait_for("stats", since=sidecar.mark())
    assert sidecar.sum_of("received") == 50 + 1 + len(sidecar.find("dead_again"))
    assert len(bed.app.posts("bad")) == 1 and len(bed.letters()) == 1
    assert sidecar.term() == 0  # it does not wait for that
    bed.queue.wait_for_ready(1)
    method, properties, _ = bed.queue.get()
    assert properties.message_id == "bad" and properties.headers["x-death"][0]["count"] == 1 + len(sidecar.find("dead_again"))


def test_what_circles_is_redriven_without_a_wait(bed):
    """A copy that waits to be rejected keeps no other from its way."""
    with_a_circle(bed)
    bed.app.handler = Script(400, bed.app.commit_and_answer)
    sidecar = bed.sidecar(queue=bed.queue, revive=0)
    bed.queue.publish("m1")
    last = sidecar.wait_for("dead_again", wait_ms=lambda wait: wait > 6000, deadline=90)
    letter, = bed.letters("m1")
    command(sidecar, "dead", "redrive", str(letter["id"]))
    done = sidecar.wait_for("completed", message_id="m1")
    assert done["_at"] - last["_at"] < last["wait_ms"] / 1000 - 0.1
    bed.assert_once("m1")


def test_a_dead_message_without_an_id_that_its_dlx_brings_back_makes_few_letters(bed):
    with_a_circle(bed)
    sidecar = bed.sidecar(queue=bed.queue, revive=0)
    bed.queue.publish(None, b"anonymous")
    sidecar.wait_for("dead", n=4, deadline=40)
    waits = sidecar.find("parked", why=LEADS_BACK)
    waits_are_kept(waits)
    for line, dead in zip(waits, sidecar.find("dead")[1:]):
        assert dead["_at"] - line["_at"] > line["wait_ms"] / 1000 - 0.25
    assert len(bed.letters()) <= 5
    assert sidecar.term() == 0
    bed.queue.wait_for_ready(1)


def test_another_body_under_an_id_that_its_dlx_brings_back_goes_round_slowly(bed):
    """And holds up nobody else with that id."""
    with_a_circle(bed)
    sidecar = bed.sidecar(queue=bed.queue, revive=0)
    bed.queue.publish("m1", b"first")
    sidecar.wait_for("completed", message_id="m1")
    bed.queue.publish("m1", b"second")
    waits = sidecar.wait_for("parked", n=4, why=LEADS_BACK, deadline=40)
    bed.queue.publish("m1", b"first")
    assert sidecar.wait_for("duplicate", message_id="m1")["_at"] - waits["_at"] < waits["wait_ms"] / 1000
    waits_are_kept(sidecar.find("parked", why=LEADS_BACK))
    assert {letter["reason"] for letter in bed.letters()} == {"body_mismatch"} and len(bed.letters()) <= 5
    bed.assert_once("m1")


def test_many_that_come_back_leave_room_for_others(bed):
    """Messages that would fill max_parked wait for a second at most."""
    with_a_circle(bed)
    bed.app.handler = lambda request, reply: 400 if request.message_id != "good" else bed.app.commit_and_answer(request, reply)
    sidecar = bed.sidecar(queue=bed.queue, revive=0, brake=0, prefetch=16, max_parked=10)
    bed.queue.publish_many([f"bad{i}" for i in range(30)])
    late = re.compile(r"rejected here ([6-9]|\d\d) times")  # the first wait of these would be 6.4 s or more
    sidecar.wait_for("dead_again", error=late.match, wait_ms=lambda wait: wait <= 1000, deadline=60)
    bed.queue.publish("good")
    sidecar.wait_for("completed", message_id="good")
    assert len(bed.letters()) == 30


def test_a_message_that_is_too_large_and_comes_back_goes_round_slowly(bed):
    with_a_circle(bed)
    sidecar = bed.sidecar(queue=bed.queue, revive=0, max_message="1KiB", on_too_large="reject")
    bed.queue.publish("large", b"x" * 2000)
    sidecar.wait_for("parked", n=3, why=LEADS_BACK, deadline=40)
    waits_are_kept(sidecar.find("parked"))
    assert len(sidecar.find("too_large")) == 4
    assert sidecar.term() == 0
    bed.queue.wait_for_ready(1)


def test_redrive_brings_it_through_and_removes_that_letter(bed):
    bed.app.handler = Script(400, bed.app.commit_and_answer)
    sidecar = bed.sidecar()
    bed.queue.publish("m1", b"\x00\xff binary", headers={"region": "north"})
    bed.queue.publish("m2", b"other")
    sidecar.wait_for("dead", message_id="m1")
    sidecar.wait_for("dead", message_id="m2")
    letter, = bed.letters("m1")
    command(sidecar, "dead", "redrive", str(letter["id"]))
    sidecar.wait_for("completed", message_id="m1")
    first, second = bed.app.posts("m1")
    assert second.body == b"\x00\xff binary" and second.attempt == 1
    assert second.header("Amqp-Header-region") == "north"
    assert [each["message_id"] for each in bed.letters()] == ["m2"]
    bed.assert_once("m1")
    bed.assert_acked()


def test_redrive_publishes_the_bytes_of_the_properties_that_came(bed):
    """Kinds that JSON does not tell apart (a decimal, a number's width, a float) are published unchanged."""
    bed.app.handler = Script(400, 400)
    sidecar = bed.sidecar()
    bed.queue.publish("m1", b"x", priority=3, correlation_id="c", app_id="shop",
                      headers={"d": decimal.Decimal("1.20"), "t": datetime.datetime(2026, 1, 2), "n": {"a": [1, 2 ** 40, None, True]}, "s": "x"})
    sidecar.wait_for("dead", message_id="m1")
    letter, = bed.letters("m1")
    command(sidecar, "dead", "redrive", str(letter["id"]))
    sidecar.wait_for("dead", message_id="m1", n=2)
    again, = bed.letters("m1")
    assert again["id"] != letter["id"] and len(bytes(letter["content_header"])) > 60
    assert bytes(again["content_header"]) == bytes(letter["content_header"])


def test_a_message_without_an_id_is_a_letter_of_its_own(bed):
    sidecar = bed.sidecar()
    bed.queue.publish(None, b"anonymous")
    sidecar.wait_for("dead")
    letter, = bed.letters()
    assert letter["message_id"] is None and bytes(letter["body"]) == b"anonymous"
    assert bed.app.posts() == []
    bed.assert_acked()


@pytest.mark.parametrize("message_id", [None, "same"])
def test_each_of_many_that_say_the_same_has_its_letter_when_they_are_redelivered(bed, message_id):
    """The copies cannot be told apart: an existing letter says nothing about the others."""
    if message_id:
        bed.queue.publish(message_id, b"another body")
    sidecar = bed.sidecar(brake=0)
    if message_id:
        bed.wait_for_effects([message_id])
    assert sidecar.term() == 0
    for _ in range(12):
        bed.queue.publish(message_id, b'{"refresh":true}')
    bed.queue.sync()
    for tag in [bed.queue.channel.basic_get(bed.queue.name)[0].delivery_tag for _ in range(12)]:
        bed.queue.channel.basic_nack(tag, requeue=True)
    bed.queue.sync()
    sidecar = bed.sidecar(brake=0)
    sidecar.wait_for("dead", n=12)
    assert [bytes(letter["body"]) for letter in bed.letters()] == [b'{"refresh":true}'] * 12
    bed.assert_acked()


@pytest.mark.parametrize("wrong", ["header:x-id", "property:type"])
def test_after_a_wrong_message_id_the_letters_go_out_as_they_were(bed, wrong):
    """Each message was published twice, and died without an id, or as another body under one that is the same for all. With the key
    corrected each has its effect once, under its own id."""
    ids = [f"m{i}" for i in range(10)]
    bed.app.handler = Script(503)
    first = bed.sidecar(message_id=[wrong], brake=0)
    for i, message_id in enumerate(ids):
        for _ in range(2):
            bed.queue.publish(message_id, b"order %d" % i, type="order")
    n_letters = 20 if wrong == "header:x-id" else 18  # two copies of one body are waiting for the application
    first.wait_for("dead", n=n_letters)
    assert first.term() == 0
    bed.app.handler = bed.app.commit_and_answer
    second = bed.sidecar(brake=0)
    command(second, "dead", "redrive")
    bed.wait_for_effects(ids)
    second.wait_for_nothing_held()
    bed.assert_once(*ids)
    assert bed.app.effects() == {message_id: 1 for message_id in ids} and bed.letters() == []
    bed.assert_acked()


def test_an_id_that_the_database_cannot_hold_is_dead_with_its_reason(bed):
    sidecar = bed.sidecar()
    bed.queue.publish(b"nul\x00inside", b"one")
    bed.queue.publish(b"bad\xff\xfeutf8", b"two")
    bed.queue.publish("", b"three")
    sidecar.wait_for("dead", n=3)
    assert {bytes(letter["body"]) for letter in bed.letters()} == {b"one", b"two", b"three"}
    assert bed.app.posts() == []
    bed.assert_acked()


def test_an_id_that_is_too_long_is_dead_with_its_reason(bed):
    sidecar = bed.sidecar(message_id=["header:key"])
    bed.queue.publish(headers={"key": "x" * 256}, body=b"long")
    bed.queue.publish(headers={"key": "x" * 255}, body=b"fits")
    sidecar.wait_for("dead")
    sidecar.wait_for("completed", message_id="x" * 255)
    assert [bytes(letter["body"]) for letter in bed.letters()] == [b"long"]


def test_one_impossible_message_among_500_good_ones_dies_alone(bed):
    bed.queue.publish_many([f"m{i}" for i in range(250)])
    bed.queue.publish(b"nul\x00inside", b"bad")
    ids = [f"m{i}" for i in range(499)]
    bed.queue.publish_many(ids[250:])
    sidecar = bed.sidecar(prefetch=500)
    bed.wait_for_effects(ids)
    sidecar.wait_for("dead")
    sidecar.wait_for_quiet()
    assert {r.attempt for r in bed.app.posts()} == {1} and len(bed.app.posts()) == 499
    letter, = bed.letters()
    assert bytes(letter["body"]) == b"bad" and letter["reason"]
    bed.assert_acked()


def test_one_id_with_two_bodies_the_second_is_dead_with_both_fingerprints(bed):
    sidecar = bed.sidecar()
    bed.queue.publish("m1", b"first")
    sidecar.wait_for("completed", message_id="m1")
    bed.queue.publish("m1", b"second")
    sidecar.wait_for("dead", reason="body_mismatch")
    sidecar.wait_for("body_mismatch", message_id="m1")
    letter, = bed.letters()
    assert letter["reason"] == "body_mismatch" and bytes(letter["body"]) == b"second"
    for body in (b"first", b"second"):
        assert hashlib.sha256(body).hexdigest()[:32] in letter["last_error"]
    assert len(bed.app.posts()) == 1 and bed.status("m1") == "completed"
    assert bytes(bed.row("m1")["fingerprint"]) == hashlib.sha256(b"first").digest()[:16]
    bed.assert_once("m1")
    bed.assert_acked()


def test_two_bodies_under_one_id_at_once_are_compared_too(bed):

    gate = Gate()

    def handler(request, reply):
        gate.wait()
        return bed.app.commit_and_answer(request, reply)

    bed.app.handler = handler
    sidecar = bed.sidecar(token_window="60s")
    bed.queue.publish("m1", b"first")
    gate.wait_for_waiting()
    bed.queue.publish("m1", b"second")
    sidecar.wait_for("dead", reason="body_mismatch")
    gate.open()
    sidecar.wait_for("completed", message_id="m1")
    assert [bytes(letter["body"]) for letter in bed.letters()] == [b"second"]
    bed.assert_once("m1")


def test_a_claim_that_was_never_decided_does_not_say_whose_the_row_is(bed):
    """The first body's row is there, and due. The second body comes first, its claim ends at a lock, its delivery is lost; the first body
    arrives while that claim is being given back: it must not be called the other one."""
    link = bed.new_proxy(bed.rabbitmq.port)
    sidecar = bed.sidecar(top={"broker": {"url": bed.rabbitmq.url(port=link.port)}})
    bed.rows("""INSERT INTO onceward.inbox (consumer, message_id, status, attempt, token, fingerprint, received_at, token_expires_at,
        max_expires_at, claimed_by, next_attempt_at) VALUES (%s, 'm1', 'failed', 1, gen_random_uuid(), %s, clock_timestamp(),
        clock_timestamp(), clock_timestamp(), 'somebody', clock_timestamp())""", bed.queue.name,
             psycopg2.Binary(hashlib.sha256(b"body A").digest()[:16]))
    waits = "SELECT count(*) AS n FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database() AND query LIKE %s"
    holder = bed.postgres.connect(autocommit=False)
    with holder.cursor() as cursor:
        cursor.execute("LOCK TABLE onceward.inbox IN ACCESS EXCLUSIVE MODE")
    bed.queue.publish("m1", b"body B")
    wait_until(lambda: bed.rows(waits, "%sidecar_claim%")[0]["n"], "the claim waits")
    link.cut()
    wait_until(lambda: bed.rows(waits, "%sidecar_release%")[0]["n"] or sidecar.find("paused"), "the release waits")
    bed.queue.publish("m1", b"body A")
    wait_until(lambda: sidecar.find("stats")[-1]["received_total"] >= 3 or sidecar.find("paused"), "both are here")
    holder.rollback()
    holder.close()
    bed.wait_for_status("m1", "completed", 40)
    sidecar.wait_for("dead", reason="body_mismatch", deadline=40)
    assert [r.body for r in bed.app.posts()] == [b"body A"] and [bytes(x["body"]) for x in bed.letters()] == [b"body B"]


def test_on_body_mismatch_duplicate_acks_the_second(bed):
    sidecar = bed.sidecar(on_body_mismatch="duplicate")
    bed.queue.publish("m1", b"first")
    sidecar.wait_for("completed", message_id="m1")
    bed.queue.publish("m1", b"second")
    sidecar.wait_for("duplicate", message_id="m1")
    assert len(bed.app.posts()) == 1 and bed.letters() == []
    bed.assert_acked()


@pytest.mark.parametrize("source, properties, body, expected", [
    (["header:x-id"], {"headers": {"x-id": 42}}, b"{}", "42"),
    (["property:message_id", "property:correlation_id"], {"correlation_id": "c/1"}, b"{}", "c/1"),
    (["json:/order/id"], {}, b'{"order": {"id": "o-1"}}', "o-1"),
    (["body-sha256"], {}, b"abc", hashlib.sha256(b"abc").hexdigest()),
    ([["property:type", "header:x-id"]], {"type": "a/b", "headers": {"x-id": "1"}}, b"{}", "a%2Fb/1"),
])
def test_the_message_id_comes_from_where_it_is_configured(bed, source, properties, body, expected):
    sidecar = bed.sidecar(message_id=source)
    bed.queue.publish(None, body, **properties)
    bed.queue.publish(None, body, **properties)
    sidecar.wait_for("completed", message_id=expected)
    sidecar.wait_for("duplicate", message_id=expected)
    bed.assert_once(expected)


def test_a_letter_is_committed_before_the_reject(bed):
    """With the database's answers withheld nothing reaches the DLX."""
    dlq = with_dlx(bed)
    link = bed.new_proxy(bed.postgres.port)

    def handler(request, reply):
        link.freeze(up=False)
        return 400

    bed.app.handler = handler
    sidecar = bed.sidecar(queue=bed.queue, token_window="10s",
                          top={"database": {"url": bed.postgres.dsn(user="sidecar_login", port=link.port)}})
    bed.queue.publish("m1")
    bed.wait_for_status("m1", "dead")
    assert dlq.n_ready == 0
    link.cut()
    link.thaw()
    dlq.wait_for_ready(1)
    assert len(bed.letters()) == 1 and len(bed.app.posts()) == 1
    bed.assert_acked()
