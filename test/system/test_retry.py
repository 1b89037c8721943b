"""The outcomes of an attempt: kept, released, tried again, given up."""

import datetime
import email.utils

import pytest

from rig.application import Gate, Script
from rig.wait import hold_true, wait_until
from test_commands import run


def test_a_failed_attempt_is_written_down_counted_and_tried_again(bed):
    bed.app.handler = Script(500, bed.app.commit_and_answer)
    sidecar = bed.sidecar(retry={"backoff": "30s", "max_backoff": "60s"})
    bed.queue.publish("m1")
    line = sidecar.wait_for("retry", message_id="m1")
    assert line["attempt"] == 1 and "500" in line["error"]
    row = bed.wait_for_status("m1", "failed")
    assert row["attempt"] == 1 and row["http_status"] == 500 and "500" in row["last_error"]
    assert row["next_attempt_at"] is not None and row["completed_at"] is None
    sidecar.kill()
    bed.rows("UPDATE onceward.inbox SET next_attempt_at = clock_timestamp() WHERE consumer = %s", bed.queue.name)
    bed.sidecar().wait_for("completed", message_id="m1")
    assert [r.attempt for r in bed.app.posts()] == [1, 2]
    bed.assert_once("m1")
    bed.assert_acked()


def test_a_row_without_an_end_of_its_wait_is_no_fault_of_its_message(bed):
    """An operator has written infinity by hand, to keep a message back."""
    bed.app.handler = Script(500, bed.app.commit_and_answer)
    sidecar = bed.sidecar(retry={"backoff": "1h", "max_backoff": "1h"})
    bed.queue.publish("m1")
    bed.wait_for_status("m1", "failed")
    sidecar.kill()
    bed.rows("UPDATE onceward.inbox SET next_attempt_at = 'infinity' WHERE consumer = %s", bed.queue.name)
    sidecar = bed.sidecar()
    assert sidecar.wait_for("parked", message_id="m1")["wait_ms"] > 3_600_000
    for arguments in ([], ["--id", "m1"]):
        assert run("status", "--config", sidecar.config_path, *arguments).status == 0
    assert run("retry", "--config", sidecar.config_path, "--consumer", bed.queue.name, "m1").status == 0
    sidecar.wait_for("completed", message_id="m1")
    bed.assert_once("m1")
    bed.assert_acked()


@pytest.mark.parametrize("changes", [
    "received_at = 'infinity'", "received_at = '-infinity'", "alive_since = 'infinity'", "alive_since = '-infinity'",
    "unproven_at = 'infinity'", "next_attempt_at = '-infinity'", "token_expires_at = 'infinity'",
    "crashes = 2147483647", "batch_cap = 2147483647", "unproven_step = 2147483647"])
def test_a_column_that_was_changed_by_hand_is_no_fault_of_its_message(bed, changes):
    bed.app.handler = Script(500, bed.app.commit_and_answer)
    sidecar = bed.sidecar(retry={"backoff": "1h", "max_backoff": "1h", "max_age": "30d"})
    bed.queue.publish("m1")
    bed.wait_for_status("m1", "failed")
    sidecar.kill()
    bed.rows(f"UPDATE onceward.inbox SET {changes} WHERE consumer = %s", bed.queue.name)
    sidecar = bed.sidecar(retry={"backoff": "1h", "max_backoff": "1h", "max_age": "30d"})
    for arguments in ([], ["--id", "m1"]):
        assert run("status", "--config", sidecar.config_path, *arguments).status == 0
    if not changes.startswith("next_attempt_at"):
        assert run("retry", "--config", sidecar.config_path, "--consumer", bed.queue.name, "m1").status == 0
    sidecar.wait_for("completed", message_id="m1")
    bed.assert_once("m1")
    bed.assert_acked()


@pytest.mark.parametrize("column", ["attempt", "takeovers"])
@pytest.mark.parametrize("status", ["failed", "waiting"])
def test_a_message_whose_counts_were_changed_by_hand_dies_of_its_attempts_at_most(bed, column, status):
    """The row says that all its attempts are used up. The letter names that, and has the message."""
    bed.app.handler = Script(500, 500, 500)
    sidecar = bed.sidecar(retry={"backoff": "1h", "max_backoff": "1h", "max_attempts": 2})
    bed.queue.publish("m1")
    bed.wait_for_status("m1", "failed")
    sidecar.kill()
    bed.rows(f"UPDATE onceward.inbox SET {column} = 2147483647, status = %s, next_attempt_at = '-infinity' WHERE consumer = %s",
             status, bed.queue.name)
    sidecar = bed.sidecar(retry={"backoff": "50ms", "max_backoff": "1s", "max_attempts": 2})
    bed.wait_for_status("m1", "dead")
    (letter,) = bed.letters("m1")
    assert letter["reason"] == "attempts"
    assert 2 <= letter["attempts"] <= 2_147_483_647
    bed.assert_acked()


def test_attempts_are_spread_by_a_growing_backoff_with_a_ceiling(bed):
    bed.app.handler = Script(500, 500, 500, 500, 500, bed.app.commit_and_answer)
    sidecar = bed.sidecar(retry={"max_attempts": 8, "backoff": "100ms", "max_backoff": "400ms"})
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    waits = [line["next_attempt_ms"] for line in sidecar.find("retry", message_id="m1")]
    assert len(waits) == 5
    for wait, ceiling in zip(waits, [100, 200, 400, 400, 400]):
        assert 0 <= wait <= ceiling
    assert len(set(waits)) > 1, "jitter"
    assert [r.attempt for r in bed.app.posts()] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("how", ["no answer", "504"])
def test_the_next_attempt_waits_for_a_window_where_no_answer_came(bed, how):
    """The application may still be at work: a proxy that says 504 does not end it."""
    gate = Gate()

    def first(request, reply):
        if how == "504":
            return 504
        gate.wait()
        return 500

    bed.app.handler = Script(first, bed.app.commit_and_answer)
    sidecar = bed.sidecar(token_window="2s", retry={"backoff": "50ms", "max_backoff": "50ms"})
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    gate.open()
    one, two = bed.app.posts()
    assert two.at - one.at >= (1.9 if how == "504" else 3.8)
    bed.assert_once("m1")


@pytest.mark.parametrize("status", [302, 401, 404, 500, 501])
def test_an_answer_that_is_a_failure_keeps_the_attempt(bed, status):
    bed.app.handler = Script(lambda request, reply: reply.status(status, headers={"Location": "/elsewhere"}),
                             bed.app.commit_and_answer)
    sidecar = bed.sidecar()
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    assert [(r.attempt, r.target) for r in bed.app.posts()] == [(1, "/messages"), (2, "/messages")]
    bed.assert_once("m1")


@pytest.mark.parametrize("status", [400, 410, 413, 415, 422])
def test_a_permanent_answer_is_dead_at_once(bed, status):
    bed.app.handler = Script(status)
    sidecar = bed.sidecar()
    bed.queue.publish("m1")
    line = sidecar.wait_for("dead", message_id="m1")
    assert line["attempt"] == 1
    assert len(bed.app.posts()) == 1 and bed.status("m1") == "dead"
    letter, = bed.letters("m1")
    assert letter["attempts"] == 1 and str(status) in letter["last_error"]
    bed.assert_acked()


def test_permanent_status_wins_over_every_other_row_of_the_table(bed):
    bed.app.handler = Script(503)
    sidecar = bed.sidecar(permanent_status=[503])
    bed.queue.publish("m1")
    sidecar.wait_for("dead", message_id="m1")
    assert len(bed.app.posts()) == 1


@pytest.mark.parametrize("completion", ["transaction", "response"])
@pytest.mark.parametrize("status", [408, 409, 423, 425, 429, 503])
def test_not_now_gives_the_attempt_back(bed, status, completion):
    bed.app.handler = Script(status, status, status, status,
                             bed.app.commit_and_answer if completion == "transaction" else bed.app.act_and_answer)
    sidecar = bed.sidecar(completion=completion, retry={"max_attempts": 2, "backoff": "20ms", "max_backoff": "50ms"})
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    assert [r.attempt for r in bed.app.posts()] == [1] * 5 and bed.row("m1")["attempt"] == 1
    bed.assert_once("m1")
    bed.assert_acked()


@pytest.mark.parametrize("status, form", [(429, "seconds"), (429, "date"), (503, "seconds")])
def test_retry_after_is_obeyed(bed, status, form):
    times = []

    def not_now(request, reply):
        at = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=3)
        times.append(request.at)
        reply.status(status, headers={"Retry-After": "2" if form == "seconds" else email.utils.format_datetime(at, usegmt=True)})

    bed.app.handler = Script(not_now, bed.app.commit_and_answer)
    sidecar = bed.sidecar(retry={"backoff": "10ms", "max_backoff": "30s"})
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    first, second = bed.app.posts("m1")
    assert second.at - first.at >= 1.9 and second.attempt == 1
    # Neither the backoff, nor its ceiling: what was asked for (a date is in whole seconds).
    assert 1000 <= sidecar.find("given_back", message_id="m1")[0]["next_attempt_ms"] <= 3000


def test_nothing_is_consumed_before_the_application_is_ready(bed):
    bed.app.refuse()
    bed.queue.publish("m1")
    sidecar = bed.sidecar(wait=False)
    sidecar.wait_for("waiting", reason="application_down")
    bed.queue.wait_for_ready(1)
    assert bed.queue.n_consumers == 0 and bed.row("m1") is None
    bed.app.start()
    sidecar.wait_for("completed", message_id="m1")
    assert [r.attempt for r in bed.app.posts()] == [1]


def test_a_readiness_url_is_asked(bed):
    ready = Gate()

    def handler(request, reply):
        if request.method == "GET":
            return 200 if ready._event.is_set() else 500
        return bed.app.commit_and_answer(request, reply)

    bed.app.handler = handler
    bed.queue.publish("m1")
    sidecar = bed.sidecar(wait=False, ready={"url": bed.app.url.replace("/messages", "/ready"), "interval": "100ms"})
    bed.app.wait_for_posts(3)
    assert {r.target for r in bed.app.requests} == {"/ready"} and bed.queue.n_consumers == 0
    ready.open()
    sidecar.wait_for("completed", message_id="m1")


def test_an_application_that_is_down_for_a_while_costs_no_attempt(bed):
    """Nor does any message go back to the broker: nobody else could take it."""
    sidecar = bed.sidecar(pause_hold="1s")
    bed.queue.publish("m0")
    sidecar.wait_for("completed", message_id="m0")
    bed.app.die()
    ids = [f"m{i}" for i in range(1, 40)]
    bed.queue.publish_many(ids)
    sidecar.wait_for("paused", reason="application_down")
    sidecar.wait_for("stats", paused_for_ms=lambda ms: ms > 2000)
    bed.app.start()
    sidecar.wait_for("resumed", reason="application_down")
    bed.wait_for_effects(ids)
    sidecar.wait_for_quiet()
    assert not sidecar.find("returned")
    assert {r.attempt for r in bed.app.posts()} == {1} and bed.letters() == []
    bed.assert_once(*ids)
    bed.assert_acked()


def test_a_window_that_ends_without_an_answer_is_a_failed_attempt(bed):
    gate = Gate()
    refused = []

    def slow(request, reply):
        gate.wait()
        refused.append(bed.app.try_commit(request))
        return 200

    bed.app.handler = Script(slow, bed.app.commit_and_answer)
    sidecar = bed.sidecar(token_window="2s")
    bed.queue.publish("m1")
    sidecar.wait_for("token_expired", message_id="m1")
    sidecar.wait_for("completed", message_id="m1")
    gate.open()
    wait_until(lambda: refused, "the late handler has ended")
    assert refused == ["OW001"] and [r.attempt for r in bed.app.posts()] == [1, 2]
    bed.assert_once("m1")
    bed.assert_acked()


def test_the_window_is_what_the_header_says(bed):
    sidecar = bed.sidecar(token_window="7s")
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    request, = bed.app.posts()
    assert 6300 <= request.window_ms <= 7000 or sidecar.find("short_window", message_id="m1")


def test_200_without_completing_the_token_is_a_failure(bed):
    bed.app.handler = Script(bed.app.only_answer, 200, bed.app.commit_and_answer)
    sidecar = bed.sidecar(commit_grace="200ms")
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    errors = [line["error"] for line in sidecar.find("retry", message_id="m1")]
    assert errors == ["answered 204 without completing the token", "answered 200 without completing the token"]
    assert [r.attempt for r in bed.app.posts()] == [1, 2, 3]
    bed.assert_once("m1")


def test_200_before_the_commit_within_the_grace_is_completed_with_a_warning(bed):
    gate = Gate()

    def handler(request, reply):
        bed.app.commit(request, before_commit=lambda: (reply.status(200), gate.wait()))

    bed.app.handler = handler
    sidecar = bed.sidecar(commit_grace="300ms", token_window="60s")
    bed.queue.publish("m1")
    bed.app.wait_for_posts(1)
    gate.wait_for_waiting()
    hold_true(lambda: len(bed.app.posts()) == 1, "the row is watched while it is locked, also past the grace", 0.6)
    gate.open()
    sidecar.wait_for("completed", message_id="m1")
    sidecar.wait_for("answered_before_commit", message_id="m1")
    assert len(bed.app.posts()) == 1
    bed.assert_once("m1")
    bed.assert_acked()


def test_200_and_the_transaction_begins_only_then(bed):
    """The row is not locked when the answer comes: the grace itself must wait."""
    def handler(request, reply):
        reply.status(200)
        bed.app.commit(request)

    bed.app.handler = handler
    sidecar = bed.sidecar(commit_grace="2s")
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    assert len(bed.app.posts()) == 1
    bed.assert_once("m1")


def test_what_is_older_than_max_age_is_dead(bed):
    bed.app.handler = Script(500)
    sidecar = bed.sidecar(retry={"max_attempts": 1000, "backoff": "300ms", "max_backoff": "300ms", "max_age": "1s"})
    bed.queue.publish("m1")
    sidecar.wait_for("dead", message_id="m1", reason="too_old")
    letter, = bed.letters("m1")
    assert letter["reason"] == "too_old" and 1 <= letter["attempts"] < 1000
    bed.assert_acked()


def test_the_answer_is_stored_where_it_is_asked_for(bed):
    bed.app.handler = lambda request, reply: reply.status(200, b"the outcome")
    sidecar = bed.sidecar(completion="response", store_response="64B")
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    assert bed.row("m1")["result"] == "the outcome"


@pytest.mark.parametrize("keys, answer", [
    (dict(prefetch=16), 400),
    (dict(prefetch=16, retry={"max_attempts": 1}), 500),
    (dict(completion="transaction", commit_grace="200ms", retry={"max_attempts": 1}), 200),
], ids=["400-small-prefetch", "last-attempt-small-prefetch", "200-without-a-commit"])
def test_everything_fails_and_nobody_dies(bed, keys, answer):
    """Also where fewer messages come than the brake counts, and where the failure is found out later than the answer."""
    bed.app.handler = lambda request, reply: answer
    sidecar = bed.sidecar(**keys)
    bed.queue.publish_many([f"m{i}" for i in range(60)])
    sidecar.wait_for("paused", reason="everything_fails", deadline=40)
    hold_true(lambda: bed.letters() == [], "nobody dies", 1.0)
    bed.app.handler = bed.app.commit_and_answer
    sidecar.wait_for("completed", n=60, deadline=60)
    assert bed.letters() == []


def test_the_brake_says_what_most_of_them_got(bed):
    """Not what the last one got; and it goes on to count while it tries."""
    bed.app.handler = lambda request, reply: 404 if len(bed.app.posts()) == 5 else 500  # the order of the messages varies on a busy machine
    bed.queue.publish_many([f"m{i}" for i in range(20)])
    sidecar = bed.sidecar(brake=5, forward={"concurrency": 1}, retry={"backoff": "10s", "max_backoff": "10s"})  # none comes twice
    paused = sidecar.wait_for("paused", reason="everything_fails")
    assert paused["detail"] == "5 different messages in a row failed; most often, 4 times: answered 500"
    sidecar.wait_for("stats", paused_detail=lambda text: "answered 500" in text and "4 times" not in text)


def test_the_brake_lets_go_when_all_that_is_held_has_no_attempts_left(bed):
    """Windows that end are failures, too; after the last of them a row waits for the claim that finds it used up."""
    gate = Gate()
    bed.app.handler = lambda request, reply: (gate.wait(), 500)[1]
    sidecar = bed.sidecar(brake=3, token_window="2s", max_window="2s", retry={"max_attempts": 1})
    bed.queue.publish_many(["m1", "m2", "m3"])
    sidecar.wait_for("paused", reason="everything_fails", deadline=20)
    bed.app.handler = bed.app.commit_and_answer
    gate.open()
    bed.queue.publish_many(["m4", "m5"])
    bed.wait_for_status("m4", "completed", 60)
    bed.wait_for_status("m5", "completed", 60)
    sidecar.wait_for("resumed", reason="everything_fails")


def test_everything_fails_here_and_works_elsewhere(bed):
    """A bad deploy, half done: after pause_hold the messages go to the replica whose application works."""
    bed.app.handler = lambda request, reply: 500
    ids = [f"m{i}" for i in range(40)]
    bed.queue.publish_many(ids)
    first = bed.sidecar(brake=5, pause_hold="1s", retry={"backoff": "50ms", "max_backoff": "100ms"})
    first.wait_for("paused", reason="everything_fails")
    works = bed.new_application("-works")
    works.handler = works.commit_and_answer
    second = bed.sidecar(app=works)
    first.wait_for("returned", deadline=40)
    wait_until(lambda: len(second.find("completed")) >= len(ids) - 10, lambda: f"they are done, there are {len(second.find('completed'))}", 60)


def test_everything_fails_and_nothing_dies(bed):
    """The brake: a bad deploy must not dead-letter the backlog."""
    broken = [True]
    bed.app.handler = lambda request, reply: 400 if broken[0] else bed.app.commit_and_answer(request, reply)
    sidecar = bed.sidecar(brake=5, retry={"backoff": "50ms", "max_backoff": "100ms"})
    ids = [f"m{i}" for i in range(60)]
    bed.queue.publish_many(ids)
    sidecar.wait_for("paused", reason="everything_fails")
    hold_true(lambda: len(bed.letters()) <= 6, "the brake holds", 1.0)
    broken[0] = False
    sidecar.wait_for("resumed")
    dead = {letter["message_id"] for letter in bed.letters()}
    bed.wait_for_effects(set(ids) - dead)
    assert len(dead) <= 6
