"""A message whose holder did not come back: taken over when its token has expired, not before, and the fence holds."""

import hashlib

from rig.application import Gate, Script
from rig.wait import wait_until


def test_a_row_left_by_a_killed_sidecar_is_taken_over_when_its_token_expires_and_not_before(bed):
    gate = Gate()
    times = []

    def second(request, reply):
        times.append(bed.rows("SELECT clock_timestamp() AS now")[0]["now"])
        return bed.app.commit_and_answer(request, reply)

    bed.app.handler = Script(lambda request, reply: gate.wait(), second)
    first = bed.sidecar(token_window="3s")
    bed.queue.publish("m1")
    gate.wait_for_waiting()
    expires = bed.row("m1")["token_expires_at"]
    first.kill()
    other = bed.sidecar(token_window="3s")
    other.wait_for("taken_over", message_id="m1")
    other.wait_for("completed", message_id="m1")
    assert times[0] >= expires
    assert [(r.attempt, r.header("Onceward-Redelivered")) for r in bed.app.posts()] == [(1, "false"), (2, "true")]
    assert len({r.token for r in bed.app.posts()}) == 2
    gate.open()
    bed.assert_once("m1")
    bed.assert_acked()


def test_after_the_takeover_complete_raises_and_the_late_writes_are_gone(bed):
    gate = Gate()
    refused = []

    def late(request, reply):
        gate.wait()
        refused.append(bed.app.try_commit(request, note="late"))
        return 200

    bed.app.handler = Script(late, lambda request, reply: bed.app.commit(request, note="in time") and 200)
    first = bed.sidecar(token_window="2s")
    bed.queue.publish("m1")
    gate.wait_for_waiting()
    first.kill()
    bed.sidecar(token_window="2s").wait_for("completed", message_id="m1")
    gate.open()
    wait_until(lambda: refused, "the late handler ended")
    assert refused[0] in ("OW001", "OW003")
    assert [r["note"] for r in bed.rows("SELECT note FROM app.ledger WHERE application = %s", bed.app.name)] == ["in time"]
    bed.assert_once("m1")
    bed.assert_acked()


def test_while_the_next_holder_works_the_late_token_raises_OW001(bed):
    gate, next_gate = Gate(), Gate()
    refused = []

    def late(request, reply):
        gate.wait()
        refused.append(bed.app.try_commit(request))
        return 200

    def held(request, reply):
        next_gate.wait()
        return bed.app.commit_and_answer(request, reply)

    bed.app.handler = Script(late, held)
    first = bed.sidecar(token_window="2s")
    bed.queue.publish("m1")
    gate.wait_for_waiting()
    first.kill()
    other = bed.sidecar(token_window="10s")
    next_gate.wait_for_waiting()
    gate.open()
    wait_until(lambda: refused, "the late handler ended")
    next_gate.open()
    other.wait_for("completed", message_id="m1")
    assert refused == ["OW001"]
    bed.assert_once("m1")


def test_late_but_not_taken_over_still_completes(bed):
    gate = Gate()
    outcome = []

    def late(request, reply):
        gate.wait()
        outcome.append(bed.app.try_commit(request))
        return 200

    bed.app.handler = late
    sidecar = bed.sidecar(token_window="2s")
    bed.queue.publish("m1")
    gate.wait_for_waiting()
    sidecar.kill()
    wait_until(lambda: bed.row("m1")["left"].total_seconds() < -0.2, "the token has expired")
    gate.open()
    wait_until(lambda: outcome, "the late handler ended")
    assert outcome == [None]
    bed.sidecar().wait_for("duplicate", message_id="m1")
    assert len(bed.app.posts()) == 1
    bed.assert_once("m1")
    bed.assert_acked()


def test_the_same_instance_takes_its_own_rows_over_at_once(bed):
    gate = Gate()
    bed.app.handler = Script(lambda request, reply: gate.wait(), bed.app.commit_and_answer)
    sidecar = bed.sidecar(token_window="60s", top={"instance": "pod-" + bed.name, "shutdown_grace": "2s"})
    bed.queue.publish("m1")
    gate.wait_for_waiting()
    sidecar.kill()
    sidecar.start()
    sidecar.wait_for("completed", message_id="m1", deadline=40)
    assert [r.attempt for r in bed.app.posts()] == [1, 2]
    gate.open()
    bed.assert_once("m1")
    bed.assert_acked()


def test_response_completion_leaves_a_killed_sidecars_token_to_expire(bed):
    """A second POST while the first token lives could be a second effect."""
    gate = Gate()
    bed.app.handler = Script(lambda request, reply: gate.wait(), bed.app.act_and_answer)
    sidecar = bed.sidecar(completion="response", token_window="3s", top={"instance": "pod-" + bed.name})
    bed.queue.publish("m1")
    gate.wait_for_waiting()
    expires = bed.row("m1")["token_expires_at"]
    sidecar.kill()
    sidecar.start()
    bed.app.wait_for_posts(2)
    assert bed.rows("SELECT clock_timestamp() AS now")[0]["now"] >= expires
    gate.open()
    sidecar.wait_for("completed", message_id="m1")


def test_a_message_that_kills_the_sidecar_every_time_ends_up_dead(bed):
    """A crash of the sidecar is counted for itself: two are forgiven, and then max_attempts of a message that went alone."""
    gate = Gate()
    bed.app.handler = lambda request, reply: gate.wait()
    sidecar = bed.sidecar(token_window="60s", retry={"max_attempts": 2}, top={"instance": "pod-" + bed.name})
    bed.queue.publish("m1")
    for n in range(1, 6):
        gate.wait_for_waiting(n)
        sidecar.kill()
        if n > 1:  # taken over at once it is but once: then its token must expire
            bed.rows("UPDATE onceward.inbox SET token_expires_at = clock_timestamp() - interval '10 s' WHERE consumer = %s",
                     bed.queue.name)
        sidecar.start()
    sidecar.wait_for("dead", message_id="m1")
    assert len(bed.app.posts()) == 5 and bed.letters()[0]["attempts"] == 5
    assert [post.attempt for post in bed.app.posts()] == [1, 2, 3, 4, 5]
    gate.open()
    bed.assert_acked()


def test_a_message_that_kills_the_sidecar_takes_no_neighbour_with_it(bed):
    """Messages that were in flight with it, twice, are not charged: from then on each goes alone, so that only the killer dies."""
    gates = [Gate(), Gate()]
    neighbours = ["neighbour1", "neighbour2"]
    killed = Gate()

    def handler(request, reply):
        life = len(bed.app.posts(request.message_id))
        if request.message_id == "killer":
            killed.wait()
        elif life <= len(gates):
            gates[life - 1].wait()
        else:
            return bed.app.commit_and_answer(request, reply)
        return 200

    bed.app.handler = handler
    bed.queue.publish_many([*neighbours, "killer"])
    sidecar = bed.sidecar(token_window="60s", retry={"max_attempts": 2}, top={"instance": "pod-" + bed.name})
    for n in range(1, 6):
        bed.app.wait_for_posts(n, "killer")
        if n <= len(gates):
            gates[n - 1].wait_for_waiting(len(neighbours))
        sidecar.kill()
        bed.rows("UPDATE onceward.inbox SET token_expires_at = clock_timestamp() - interval '10 s' WHERE consumer = %s AND"
                 " status = 'processing'", bed.queue.name)
        sidecar.start()
    sidecar.wait_for("dead", message_id="killer")
    for message_id in neighbours:
        bed.wait_for_status(message_id, "completed")
    assert [letter["message_id"] for letter in bed.letters()] == ["killer"]
    assert {bed.row(message_id)["attempt"] for message_id in neighbours} == {1}
    bed.assert_once(*neighbours)
    for gate in (*gates, killed):
        gate.open()
    bed.assert_acked()


def test_two_that_live_under_one_instance_say_so_and_take_nothing_from_each_other(bed):
    """`instance` in a configuration that is shared, say. A copy of what the one has in work comes to the other."""
    gate = Gate()
    bed.app.handler = lambda request, reply: (gate.wait(), bed.app.commit_and_answer(request, reply))[1]
    keys = dict(token_window="60s", max_window="2m", top={"instance": "pod-" + bed.name})
    both = [bed.sidecar(**keys), bed.sidecar(**keys)]
    ids = [f"m{i}" for i in range(4)]
    bed.queue.publish_many(ids)
    gate.wait_for_waiting(len(ids))
    bed.queue.publish_many(reversed(ids))  # the broker gives each sidecar every second one
    said = "another sidecar runs under this one's `instance`"
    wait_until(lambda: any(s.find("limits", reason=lambda text: said in text) for s in both), "one of them says so", 40)
    wait_until(lambda: sum(len(s.find("parked")) for s in both) == len(ids), "each copy waits for the other's", 40)
    assert len(bed.app.posts()) == len(ids) and not any(s.find("taken_over") for s in both)
    gate.open()
    wait_until(lambda: sum(len(s.find("completed")) + len(s.find("duplicate")) for s in both) == 2 * len(ids), "all are done", 60)
    assert len(bed.app.posts()) == len(ids)
    bed.assert_once(*ids)
    bed.assert_acked()


def test_a_sidecar_that_was_stopped_past_its_window_changes_nothing(bed):
    """SIGSTOP instead of kill: the other sidecar takes over, the first one wakes up and finds out."""
    gate = Gate()
    bed.app.handler = Script(lambda request, reply: gate.wait() or 500, bed.app.commit_and_answer)
    first = bed.sidecar(token_window="2s", top={"broker": {"heartbeat": "2s"}})
    bed.queue.publish("m1")
    gate.wait_for_waiting()
    first.freeze()
    other = bed.sidecar(token_window="2s")
    other.wait_for("completed", message_id="m1", deadline=40)
    gate.open()
    first.thaw()
    bed.assert_once("m1")
    first.wait_for_quiet()
    other.wait_for_quiet()
    assert bed.letters() == [] and len(bed.app.posts()) == 2
    bed.assert_acked()


def test_copies_that_are_only_looked_at_are_taken_over_at_once(bed):
    """After a kill most of what comes is done already, so rows are looked at before they are claimed. What the life before had in work is as
    free to a look as to a claim."""
    name, body = "pod-" + bed.name, b"body"
    done, left = [f"done{n:03}" for n in range(120)], [f"left{n}" for n in range(8)]
    sidecar = bed.sidecar(token_window="60s", max_window="60s", prefetch=64, forward={"concurrency": 2}, top={"instance": name})
    sidecar.wait_for("consuming")
    sidecar.kill()
    bed.rows("INSERT INTO onceward.inbox (consumer, message_id, status, attempt, token, fingerprint, received_at, token_expires_at,"
             " max_expires_at, completed_at, claimed_by) SELECT %s, i, CASE WHEN i LIKE 'done%%' THEN 'completed' ELSE 'processing' END, 1,"
             " gen_random_uuid(), %s, now(), now() + interval '60 s', now() + interval '60 s', now(), %s || '/1' FROM unnest(%s) i",
             bed.queue.name, hashlib.sha256(body).digest()[:16], name, done + left)
    for message_id in done + left:
        bed.queue.publish(message_id, body)
    mark = sidecar.mark()
    sidecar.start()
    for message_id in left:
        sidecar.wait_for("taken_over", message_id=message_id, since=mark, deadline=30)
    wait_until(lambda: bed.statuses() == {"completed": 128}, lambda: bed.statuses(), 30)
    assert not sidecar.find("parked", since=mark) and len(bed.app.posts()) == len(left)
    bed.assert_acked()
