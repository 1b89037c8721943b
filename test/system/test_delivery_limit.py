"""The broker drops what it has delivered too often. Before it does, the message is published to its queue again, whatever its row is doing;
and what cannot be published is left in the queue."""

import json
import os
import signal
import subprocess

import pytest

from rig import schema
from rig.application import Gate
from rig.wait import hold_true, wait_until

LIMIT = 5
TOP = {"broker": {"delivery_limit": LIMIT}}
SOON = {"token_window": "2s", "max_window": "2s", "max_hold": "5s"}


@pytest.fixture
def limited(bed):
    bed.queue = bed.new_queue("-limit", arguments={"x-queue-type": "quorum", "x-delivery-limit": LIMIT})
    return bed


def start(bed, **keys):
    return bed.sidecar(queue=bed.queue, top=TOP, **{**SOON, **keys})


def skip_where_returns_are_free(sidecar):
    version = sidecar.find("connected", peer="broker")[0]["version"]
    if tuple(map(int, version.split(".")[:2])) >= (4, 3):
        pytest.skip("this broker does not count what is given back with nack")


def bring_to(limited, n):
    """The one message of the queue, delivered so often, and held by the caller: a function that gives it back."""
    channel = limited.rabbitmq.connect().channel()
    for _ in range(n - 1):
        limited.queue.wait_for_ready(1)
        channel.basic_reject(channel.basic_get(limited.queue.name)[0].delivery_tag, requeue=True)
    limited.queue.wait_for_ready(1)
    held = channel.basic_get(limited.queue.name)[0]
    return lambda: channel.basic_reject(held.delivery_tag, requeue=True)


def test_a_message_whose_next_attempt_is_far_away(limited):
    limited.app.handler = lambda request, reply: 500
    sidecar = start(limited, retry={"max_attempts": 8, "backoff": "1h", "max_backoff": "1h"})
    skip_where_returns_are_free(sidecar)
    limited.queue.publish("m1", b"the whole body", headers={"a": "b"})
    sidecar.wait_for("renewed", message_id="m1", deadline=120)
    assert limited.letters() == [] and len(limited.app.posts()) == 1
    assert limited.row("m1")["renewals"] == 1 and limited.status("m1") == "failed"


def test_a_message_whose_row_is_locked_for_long(limited):
    gate = limited.leave_locked("m1", b"the whole body", queue=limited.queue, top=TOP, **SOON)
    second = start(limited)
    try:
        skip_where_returns_are_free(second)
    except pytest.skip.Exception:
        gate.open()
        raise
    second.wait_for("renewed", message_id="m1", deadline=120)
    gate.open()
    limited.wait_for_status("m1", "completed")
    second.wait_for("duplicate", message_id="m1", deadline=60)
    assert limited.letters() == []
    limited.assert_once("m1")
    limited.assert_acked()


def test_a_copy_at_the_limit_that_follows_another_is_renewed_when_the_sidecar_stops(limited):
    limited.app.handler = lambda request, reply: 500
    queue = limited.queue
    queue.publish("m1", b"the whole body")
    queue.sync()
    give_back = bring_to(limited, LIMIT)
    queue.publish("m1", b"the whole body")
    sidecar = start(limited, max_hold="10m", retry={"max_attempts": 8, "backoff": "1h", "max_backoff": "1h"})
    skip_where_returns_are_free(sidecar)
    sidecar.wait_for("retry")
    give_back()
    sidecar.wait_for("stats", parked=2)
    assert sidecar.term() == 0
    assert len(sidecar.find("renewed")) == 1 and limited.letters() == []
    queue.wait_for_ready(2)


def test_a_database_that_refuses_for_long(limited):
    """Connected, and every statement fails: whether it works again is tried without a message, which is held, so that none comes near its
    limit."""
    name = limited.queue.name
    limited.rows("CREATE SEQUENCE public.tries")
    limited.rows(f"""CREATE FUNCTION public.full_disk() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
        IF NEW.consumer = '{name}' THEN
            PERFORM nextval('public.tries');
            RAISE EXCEPTION USING ERRCODE = '53100', MESSAGE = 'could not extend file: No space left';
        END IF;
        RETURN NEW; END $$""")
    limited.rows("CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON onceward.inbox FOR EACH ROW EXECUTE FUNCTION public.full_disk()")
    try:
        sidecar = start(limited, pause_hold="0s", max_hold="10m")
        limited.queue.publish("m1", b"the only copy")
        paused = sidecar.wait_for("paused", reason="database_down")
        assert "No space left" in paused["detail"]
        wait_until(lambda: limited.rows("SELECT last_value FROM public.tries")[0]["last_value"] >= 4, "it is tried", 60)
        assert limited.queue.n_ready == 0 and sidecar.wait_for("stats", since=sidecar.mark(), held=1)["received_total"] == 1
        assert len(sidecar.find("paused")) == 1
    finally:
        limited.rows("DROP TRIGGER full_disk ON onceward.inbox")
        limited.rows("DROP FUNCTION public.full_disk()")
        limited.rows("DROP SEQUENCE public.tries")
    sidecar.wait_for("completed", message_id="m1", deadline=60)
    limited.assert_once("m1")
    assert limited.letters() == []


def test_a_body_for_which_there_is_no_room_is_taken_at_the_limit(limited):
    """The message could not be stored without its body, and its next return might be the last."""
    gate = Gate()
    limited.app.handler = lambda request, reply: (request.message_id == "blocker" and gate.wait(), limited.app.commit_and_answer(request, reply))[1]
    limited.queue.publish("large", b"x" * (200 << 10))
    limited.queue.sync()
    give_back = bring_to(limited, LIMIT)
    sidecar = start(limited, max_bytes="256KiB", max_message="512KiB", max_hold="10m", token_window="60s", max_window="2m")
    limited.queue.publish("blocker", b"y" * (200 << 10))
    gate.wait_for_waiting()
    give_back()
    sidecar.wait_for("renewed", message_id="large", deadline=40)
    gate.open()
    limited.wait_for_effects(["blocker", "large"])
    limited.assert_once("blocker", "large")
    assert limited.letters() == []


def test_a_count_that_the_publisher_wrote_is_not_believed(bed):
    """Not when it is delivered again either, which a classic queue does not count: it is forwarded, and has no more room than others."""
    gate = Gate()
    bed.app.handler = lambda request, reply: (gate.wait(), bed.app.commit_and_answer(request, reply))[1]
    ids = [f"m{i}" for i in range(12)]
    for message_id in ids:
        bed.queue.publish(message_id, b"x" * (100 << 10), headers={"x-delivery-count": 1000})
    bed.queue.wait_for_ready(len(ids))
    other = bed.rabbitmq.connect()
    channel = other.channel()
    assert all(channel.basic_get(bed.queue.name)[0] for _ in ids)
    other.close()
    bed.queue.wait_for_ready(len(ids))
    sidecar = bed.sidecar(top=TOP, max_bytes="250KiB", max_message="200KiB", token_window="60s", max_window="2m")
    sidecar.wait_for("paused", reason="bytes_full")
    gate.wait_for_waiting()
    gate.open()
    sidecar.wait_for("completed", n=len(ids), deadline=60)
    assert {p.header("Onceward-Redelivered") for p in bed.app.posts()} == {"true"} and bed.letters() == []
    assert max(s["held_bytes"] for s in sidecar.find("stats")) <= 250 << 10
    bed.assert_once(*ids)


@pytest.mark.parametrize("limit", [2, 5])
def test_a_limit_that_nobody_has_told_and_cannot_be_read_loses_nothing(bed, limit):
    """The user may not configure the queue. One delivery count on such a queue proves that it counts: `limits` names the key, and what was
    redelivered is renewed."""
    user = f"reader-{limit}"
    bed.rabbitmq.add_user(user, write="^amq\\.default$")
    try:
        top = {"broker": {"user": user, "password": "secret"}}
        bed.queue = bed.new_queue("-untold", arguments={"x-queue-type": "quorum", "x-delivery-limit": limit})
        bed.app.handler = lambda request, reply: 503
        ids = [f"m{i}" for i in range(20)]
        bed.queue.publish_many(ids)
        first = bed.sidecar(queue=bed.queue, top=top, pause_hold="0s", max_hold="10m")
        first.wait_for("stats", held=len(ids))
        first.kill()  # each is delivered again, and counted
        bed.queue.wait_for_ready(len(ids))
        bed.app.handler = bed.app.commit_and_answer
        second = bed.sidecar(queue=bed.queue, top=top, pause_hold="0s", max_hold="10m")
        told = second.wait_for("limits", queue=bed.queue.name)
        assert told["level"] == "warning" and "set queues.<name>.delivery_limit" in told["reason"], told
        bed.wait_for_effects(ids)
        assert len(second.find("limits", queue=bed.queue.name)) == 1 and bed.letters() == []
        bed.assert_once(*ids)
        bed.assert_acked()
    finally:
        bed.rabbitmq.delete_user(user)


def test_another_body_at_the_limit_is_not_taken_for_the_first(limited):
    """The letter was stored without reading the row. It is not deleted because the first body was completed."""
    limited.app.handler = lambda request, reply: 500
    limited.queue.publish("m1", b"body B, another message")
    limited.queue.sync()
    give_back = bring_to(limited, LIMIT)
    limited.queue.publish("m1", b"body A")
    first = start(limited, max_hold="10m", retry={"max_attempts": 8, "backoff": "1h", "max_backoff": "1h"})
    first.wait_for("retry")
    give_back()
    first.wait_for("dead", message_id="m1")
    assert first.term() == 0
    assert [bytes(x["body"]) for x in limited.letters("m1")] == [b"body B, another message"]
    limited.app.handler = limited.app.commit_and_answer
    limited.rows("UPDATE onceward.inbox SET next_attempt_at = clock_timestamp() WHERE consumer = %s", limited.queue.name)
    second = start(limited, max_hold="10m")
    limited.wait_for_status("m1", "completed")

    def redrive(*options):
        return subprocess.run([second.binary, "dead", "redrive", "--config", second.config_path, *options], stdout=subprocess.PIPE, timeout=60)

    for options in (["--dry-run"], [], ["--new-id"]):
        done = redrive(*options)
        assert done.returncode == 1 and b"another body" in done.stdout and len(limited.letters("m1")) == 1, done
    # What tells the two apart makes it a message of its own.
    second.term()
    third = start(limited, max_hold="10m", message_id=[["property:message_id", "body-sha256"]])
    done = subprocess.run([third.binary, "dead", "redrive", "--config", third.config_path], stdout=subprocess.PIPE, timeout=60)
    assert done.returncode == 0, done
    wait_until(lambda: b"body B, another message" in [x.body for x in limited.app.posts()], "it is tried under its own id", 40)
    assert limited.letters() == []


def test_a_message_that_is_too_large_is_left_in_the_queue(limited):
    sidecar = start(limited, max_bytes="256KiB", max_message="512KiB")
    skip_where_returns_are_free(sidecar)
    limited.queue.publish("large", b"x" * (600 << 10))
    wait_until(lambda: sidecar.find("paused", reason="too_large", detail=lambda text: "nothing more is consumed here" in text),
               "it is left", 60)
    limited.queue.wait_for_consumers(0)
    limited.queue.wait_for_ready(1)
    hold_true(lambda: limited.queue.n_ready == 1 and limited.queue.n_consumers == 0, "it stays there", 1)
    assert sidecar.term() == 0
    start(limited, max_bytes="256KiB", max_message="1MiB").wait_for("completed", message_id="large")
    limited.assert_once("large")
    limited.assert_acked()


def test_a_copy_of_a_locked_row_goes_back_after_max_hold(bed):
    """Once: it is the broker's again, and the log says so once each time."""
    gate = bed.leave_locked("m1", token_window="2s")
    second = bed.sidecar(**SOON)
    second.wait_for("returned", n=2, deadline=60)
    second.wait_for("stats", received_total=lambda n: n >= 3)  # each return was one
    gate.open()
    second.wait_for("duplicate", message_id="m1")
    bed.assert_once("m1")
    bed.assert_acked()


def test_the_looks_at_a_locked_row_become_rare(bed):
    gate = bed.leave_locked("m1", token_window="2s")
    url = bed.postgres.dsn(user="sidecar_login", application_name=bed.name)
    second = bed.sidecar(token_window="2s", top={"log": {"stats_interval": "1s"}, "database": {"url": url}})
    second.wait_for("row_locked", deadline=60)  # later than a window, so the waits have grown
    statements = set()

    def look():
        statements.update(row["query_start"] for row in bed.rows("SELECT query_start FROM pg_stat_activity WHERE application_name = %s", bed.name))
        return True

    hold_true(look, "it is looked at", 3)
    assert 1 <= len(statements) <= 24, f"{len(statements)} statements in 3 s, the figures and the holder's among them"
    gate.open()
    second.wait_for("duplicate", message_id="m1")
    bed.assert_once("m1")


def test_an_extended_token_is_left_to_its_holder_at_the_end_of_the_grace(bed):
    gate = Gate()

    def handler(request, reply):
        if len(bed.app.posts("m1")) == 1:
            bed.rows("SELECT onceward.extend(%s, 15)", request.token)
            gate.wait()
        return 200

    bed.app.handler = handler
    keys = dict(completion="response", token_window="2s", max_window="60s")
    first = bed.sidecar(**keys)
    bed.queue.publish("m1")
    gate.wait_for_waiting()
    first.signal(signal.SIGTERM)
    first.wait_for("draining")
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    row, = bed.rows("SELECT status, attempt, next_attempt_at >= token_expires_at + interval '2 s' AS after_it FROM onceward.inbox"
                    " WHERE message_id = 'm1' AND consumer = %s", bed.queue.name)
    assert row == {"status": "waiting", "attempt": 0, "after_it": True}, row
    gate.open()


def test_a_message_that_is_not_renewed_any_more_can_be_given_up(limited):
    limited.app.handler = lambda request, reply: 500
    keys = dict(max_hold="10m", retry={"max_attempts": 8, "backoff": "1h", "max_backoff": "1h"})
    first = start(limited, **keys)
    skip_where_returns_are_free(first)
    limited.queue.publish("m1", b"the whole body")
    first.wait_for("retry")
    assert first.term() == 0
    limited.rows("UPDATE onceward.inbox SET renewals = 1000 WHERE consumer = %s", limited.queue.name)
    bring_to(limited, LIMIT - 2)()
    second = start(limited, **keys)
    second.wait_for("paused", reason="renewal_loop")
    operator(limited, "give-up", "m1")
    second.wait_for("dead", message_id="m1", reason="operator")
    assert [bytes(x["body"]) for x in limited.letters("m1")] == [b"the whole body"]
    assert len(limited.app.posts()) == 1 and not second.find("renewed")


def operator(bed, command, *arguments):
    path = os.path.join(bed.folder, "operator.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(bed.config(queue=bed.queue, top=TOP), f)
    subprocess.run([schema.require_binary(), command, "--config", path, "--consumer", bed.queue.name, *arguments], check=True, timeout=60)


def test_messages_that_cannot_be_renewed_rest_in_their_queue_during_a_pause(bed):
    """Held here they would go back at each max_hold, and their next deliveries would count."""
    bed.queue = bed.new_queue("-rests", arguments={"x-queue-type": "quorum", "x-delivery-limit": LIMIT, "x-max-length": 1000})
    ids = [f"m{i}" for i in range(8)]
    busy = True
    bed.app.handler = lambda request, reply: 503 if busy else bed.app.commit_and_answer(request, reply)
    sidecar = start(bed, prefetch=16)
    skip_where_returns_are_free(sidecar)
    bed.queue.publish_many(ids)
    wait_until(bed.app.posts, "one is refused")
    operator(bed, "pause")
    sidecar.wait_for("paused", reason="operator")
    bed.queue.wait_for_ready(len(ids))
    hold_true(lambda: bed.queue.n_consumers == 0 and bed.queue.n_ready == len(ids), "they rest", 8)
    busy = False
    operator(bed, "resume")
    bed.wait_for_effects(ids)
    bed.assert_once(*ids)
    assert bed.letters() == []
