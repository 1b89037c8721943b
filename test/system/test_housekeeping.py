"""The purge of what is past the retention, and the sweep for tokens that nobody came back for: done by one sidecar, said once."""

import itertools
import json
import re
import subprocess

import pytest

from rig import schema
from rig.application import Gate
from rig.private import bed_on  # noqa: F401
from rig.wait import wait_until

OLD = "2 hours"
SOON = {"retention": "1m", "max_window": "20s", "max_hold": "40s"}  # walks every second
_numbers = itertools.count()


def put(bed, message_id, status, age=OLD, letter=False):
    """A row as it was left so long ago."""
    bed.rows("INSERT INTO onceward.inbox (consumer, message_id, status, attempt, token, fingerprint, received_at, alive_since,"
             " token_expires_at, max_expires_at, next_attempt_at, completed_at, claimed_by)"
             " SELECT %s, %s, %s, 1, gen_random_uuid(), '\\x00', t, t, t, t, CASE WHEN %s IN ('failed', 'waiting') THEN t END,"
             " CASE WHEN %s = 'completed' THEN t END, 'somebody' FROM (SELECT clock_timestamp() - %s::interval AS t) x",
             bed.queue.name, message_id, status, status, status, age)
    if letter:
        bed.rows("INSERT INTO onceward.dead_letter (consumer, vhost, queue, message_id, rowless, reason, attempts, body, exchange,"
                 " routing_key, deaths, died_at) VALUES (%s, '/', 'q', %s, false, 'attempts', 1, '', '', 'q', 0, clock_timestamp())",
                 bed.queue.name, message_id)


def age(bed):
    """Makes completed rows look old."""
    bed.rows("UPDATE onceward.inbox SET completed_at = completed_at - %s::interval, received_at = received_at - %s::interval"
             " WHERE consumer = %s AND status = 'completed'", OLD, OLD, bed.queue.name)


def ids(bed):
    return {r["message_id"] for r in bed.rows("SELECT message_id FROM onceward.inbox WHERE consumer = %s", bed.queue.name)}


def n_said(event, *sidecars):
    return sum(line["n"] for s in sidecars for line in s.find(event))


def next_walk(bed, sidecar):
    """Until a walk that began after this call has swept a row, so that it has been over the whole of a small table."""
    for _ in range(2):
        mark = f"mark-{next(_numbers)}"
        put(bed, mark, "processing")
        bed.wait_for_status(mark, "failed", deadline=30)


def test_what_is_past_the_retention_is_purged_and_nothing_else(bed):
    for status in ("processing", "failed", "waiting", "dead", "completed"):
        put(bed, status + "-old", status, letter=status == "dead")
    put(bed, "tombstone", "dead")
    put(bed, "young", "completed", "1 second")
    sidecar = bed.sidecar(retention="1h", retry={"max_backoff": "200ms"})
    sidecar.wait_for("purged", n=1)
    wait_until(lambda: ids(bed) == {"processing-old", "failed-old", "waiting-old", "dead-old", "young"},
               lambda: f"the rows that stay; there are {ids(bed)}")
    next_walk(bed, sidecar)
    assert {"processing-old", "failed-old", "waiting-old", "dead-old", "young"} <= ids(bed)
    assert n_said("purged", sidecar) == 2 and len(bed.letters()) == 1


def test_an_id_is_forgotten_after_the_retention(bed):
    sidecar = bed.sidecar(**SOON)
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    bed.queue.publish("m1")
    sidecar.wait_for("duplicate", message_id="m1")
    age(bed)
    wait_until(lambda: bed.row("m1") is None, "the row is gone")
    bed.queue.publish("m1")
    sidecar.wait_for("completed", n=2, message_id="m1")
    assert len(bed.app.posts("m1")) == 2


def test_one_of_two_sidecars_purges_and_the_other_takes_over(bed):
    first, second = bed.sidecar(**SOON), bed.sidecar(**SOON)
    count, total = 40, 0
    for n in range(2):
        bed.queue.publish_many([f"m{n}-{i}" for i in range(count)])
        total += count
        bed.wait_for_effects([f"m{n}-{i}" for i in range(count)])
        age(bed)
        wait_until(lambda: n_said("purged", first, second) == total,
                   lambda: f"{total} rows are purged; {n_said('purged', first, second)} are", 30)
    lines = [s.find("purged") for s in (first, second)]
    keeper, other = (first, second) if lines[0] else (second, first)
    assert not other.find("purged")
    assert all(line["level"] == "info" and line["queue"] == bed.queue.name for line in keeper.find("purged"))
    # It is killed; its lease runs out.
    keeper.kill()
    bed.rows("UPDATE onceward.consumer SET kept_until = clock_timestamp() WHERE consumer = %s", bed.queue.name)
    third = bed.sidecar(**SOON)
    bed.queue.publish("late")
    bed.wait_for_status("late", "completed")
    age(bed)
    wait_until(lambda: n_said("purged", other, third) == 1, "somebody else purges", 30)
    assert not ids(bed)


def test_tokens_that_expired_long_ago_are_swept(bed):
    put(bed, "lost1", "processing", "11 min")
    put(bed, "lost2", "processing", "11 min")
    put(bed, "not yet", "processing", "5 min")
    sidecar = bed.sidecar()
    # One line or two: they may lie in two pieces of the table.
    wait_until(lambda: sum(line["n"] for line in sidecar.find("swept")) == 2, "two tokens are swept")
    assert bed.row("lost1")["status"] == bed.row("lost2")["status"] == "failed"
    assert bed.row("lost1")["last_error"] == "token expired without an answer"
    assert bed.status("not yet") == "processing"
    assert not sidecar.find("orphans")
    # Its message comes after all.
    bed.queue.publish("lost1", b"")
    line = sidecar.wait_for("dead", message_id="lost1")  # another body than that of the row
    assert line["reason"] == "body_mismatch"


def test_a_completion_that_could_not_be_written_in_time_is_settled_after_the_sweep(bed):
    """The holder's own link to the database was away; nobody has claimed the row since."""
    gate = Gate()

    def handler(request, reply):
        bed.app.commit(request, complete=False)
        gate.wait()
        return 200

    bed.app.handler = handler
    link = bed.new_proxy(bed.postgres.port)
    sidecar = bed.sidecar(completion="response", token_window="10s",
                          top={"database": {"url": bed.postgres.dsn(user="sidecar_login", port=link.port)}})
    bed.queue.publish("m1")
    gate.wait_for_waiting()
    link.refuse()
    link.cut()
    sidecar.wait_for("disconnected", peer="database")
    gate.open()
    bed.rows("UPDATE onceward.inbox SET token_expires_at = token_expires_at - interval '11 min' WHERE consumer = %s", bed.queue.name)
    other = bed.sidecar("other", completion="response", token_window="10s")
    assert other.wait_for("swept")["n"] == 1
    link.start()
    sidecar.wait_for("completed", message_id="m1", deadline=60)
    bed.assert_once("m1")
    assert bed.row("m1")["attempt"] == 1 and bed.row("m1")["next_attempt_at"] is None
    bed.assert_acked()


def test_the_sweep_waits_for_ten_windows(bed):
    put(bed, "m1", "processing", "15 min")
    sidecar = bed.sidecar(token_window="2m", retention="1h", retry={"max_backoff": "200ms"})
    put(bed, "old", "completed")
    wait_until(lambda: bed.row("old") is None, "a walk", 60)
    assert bed.status("m1") == "processing" and not sidecar.find("swept")


def test_rows_that_nobody_comes_for_are_said_once_an_interval(bed):
    put(bed, "failed", "failed", "11 min")
    put(bed, "waiting", "waiting", "11 min")
    put(bed, "not yet", "failed", "5 min")
    sidecar = bed.sidecar(**SOON, top={"log": {"stats_interval": "1h"}})
    line = sidecar.wait_for("orphans")
    assert line["n"] == 2 and line["level"] == "warning"
    next_walk(bed, sidecar)
    assert len(sidecar.find("orphans")) == 1
    assert bed.status("failed") == "failed" and bed.status("waiting") == "waiting"


def test_housekeeping_that_fails_disturbs_nothing_else(bed):
    function = "FUNCTION onceward.sidecar_keep_house(text, text, bigint, bigint, bigint, bigint, bigint, bigint)"
    bed.rows(f"REVOKE EXECUTE ON {function} FROM onceward_sidecar")
    try:
        sidecar = bed.sidecar(**SOON)
        line = sidecar.wait_for("database_error")
        assert (line["sqlstate"], line["during"]) == ("42501", "housekeeping")
        bed.queue.publish_many(["m1", "m2"])
        bed.wait_for_effects(["m1", "m2"])
        assert not sidecar.find("paused", reason="database_down")
    finally:
        bed.rows(f"GRANT EXECUTE ON {function} TO onceward_sidecar")
    age(bed)
    sidecar.wait_for("purged", deadline=40)


def replaced(bed, name, before, after):
    """A function of the schema with a piece of its text replaced, as its owner; put back by what this answers."""
    text, = bed.rows("SELECT pg_get_functiondef(oid) AS text FROM pg_proc WHERE pronamespace = 'onceward'::regnamespace AND proname = %s", name)
    assert before in text["text"]
    bed.postgres.query(text["text"].replace(before, after), user=schema.OWNER)
    return lambda: bed.postgres.query(text["text"], user=schema.OWNER)


@pytest.mark.parametrize("ahead", ["7200000", "-7200000"])
def test_clocks_that_differ_purge_nothing_and_say_so(bed, ahead):
    put(bed, "old", "completed")
    put(bed, "lost", "processing")
    put_back = replaced(bed, "sidecar_keep_house", "- p_clock_ms, 0)", f"- p_clock_ms + {ahead}, 0)")
    try:
        sidecar = bed.sidecar(retention="1h", retry={"max_backoff": "200ms"})
        line = sidecar.wait_for("clocks_differ")
        assert line["level"] == "warning" and abs(line["ahead_ms"] - int(ahead)) < 60_000 and line["queue"] == bed.queue.name
        sidecar.wait_for("clocks_differ", n=2, deadline=30)
        assert ids(bed) == {"old", "lost"} and bed.status("lost") == "processing" and not sidecar.find("purged")
    finally:
        put_back()
    sidecar.wait_for("purged", deadline=30)
    bed.wait_for_status("lost", "failed", deadline=30)


def test_many_rows_that_wait_are_a_line(bed):
    """As many as the bound are counted for each of two rows."""
    put(bed, "failed", "failed", "1 second")
    put(bed, "waiting", "waiting", "1 second")
    put_back = replaced(bed, "sidecar_keep_house", "unfinished + v_open", "unfinished + v_open * 50001")
    try:
        sidecar = bed.sidecar(retention="1h", retry={"max_backoff": "200ms"})
        line = sidecar.wait_for("limits", reason=lambda text: "failed or waiting" in text)
        assert f"100002 rows of consumer {bed.queue.name}" in line["reason"] and "orphans_remove" in line["reason"]
        next_walk(bed, sidecar)
        assert len(sidecar.find("limits", reason=line["reason"])) == 1
    finally:
        put_back()


def test_many_bytes_of_letters_are_a_line(bed):
    put_back = replaced(bed, "sidecar_gauge", "pg_total_relation_size('onceward.dead_letter')", "3::bigint << 30")
    try:
        sidecar = bed.sidecar()
        line = sidecar.wait_for("limits", reason=lambda text: "dead letters" in text)
        assert "3072 MiB" in line["reason"] and "dead discard --older" in line["reason"] and line["level"] == "warning"
        sidecar.wait_for("stats", n=3, dead_letter_bytes=3 << 30)
        assert len(sidecar.find("limits", reason=line["reason"])) == 1
    finally:
        put_back()


def test_what_was_purged_is_said_at_the_latest_at_the_end(bed):
    sidecar = bed.sidecar(**SOON, top={"log": {"stats_interval": "1h"}})
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    age(bed)
    sidecar.wait_for("purged")
    bed.queue.publish("m2")
    sidecar.wait_for("completed", message_id="m2")
    age(bed)
    wait_until(lambda: not ids(bed), "m2 is purged")
    assert len(sidecar.find("purged")) == 1
    assert sidecar.term() == 0
    assert n_said("purged", sidecar) == 2


def status(sidecar):
    return json.loads(subprocess.run([sidecar.binary, "status", "--config", sidecar.config_path, "--json"], check=True,
                                     stdout=subprocess.PIPE).stdout)


COMPACT = {"retention": "30d", "compact_after": "2h"}


def test_completed_rows_are_compacted_and_their_ids_still_known(bed):
    """With one sidecar, with its successor, and after compaction was switched off again."""
    sidecar = bed.sidecar(**COMPACT)
    names = [f"m{n:02}" for n in range(40)]
    bed.queue.publish_many(names)
    bed.wait_for_effects(names)
    wait_until(lambda: all(bed.status(name) == "completed" for name in names), "all are completed")
    bed.rows("UPDATE onceward.inbox SET completed_at = completed_at - interval '3 hours' WHERE consumer = %s", bed.queue.name)
    wait_until(lambda: not ids(bed), "all rows are replaced", 60)
    wait_until(lambda: n_said("compacted", sidecar) == len(names), "it is logged")
    shown = status(sidecar)
    own, = [c for c in shown["compacted"] if c["consumer"] == bed.queue.name]
    assert not own["estimated"] and own["ids"] == len(names) and re.fullmatch(r"20\d\d-\d\d-\d\d", own["oldest_day"])
    # The sidecar sends the hashes of its ids, so that the database need not compute them.
    put_back = replaced(bed, "history_hash", "convert_to(p_message_id, 'UTF8')", "convert_to(p_message_id || '?', 'UTF8')")
    try:
        bed.queue.publish_many(names[:3])
        for name in names[:3]:
            sidecar.wait_for("duplicate", message_id=name)
    finally:
        put_back()
    assert sidecar.term() == 0
    off = bed.sidecar()
    bed.queue.publish(names[3])
    off.wait_for("duplicate", message_id=names[3])
    bed.assert_acked()
    assert all(len(bed.app.posts(name)) == 1 for name in names) and not ids(bed)


def test_row_level_security_hides_no_id(bed_on, fresh_postgres):
    """Entries that a policy hides would be processed again. A running sidecar is refused by the database, a later one by its own check."""
    bed = bed_on(fresh_postgres)
    sidecar = bed.sidecar(**COMPACT)
    bed.queue.publish("m1")
    sidecar.wait_for("completed")
    bed.rows("UPDATE onceward.inbox SET completed_at = completed_at - interval '3 hours'")
    wait_until(lambda: not ids(bed), "the row is replaced", 60)
    bed.rows("ALTER TABLE onceward.history ENABLE ROW LEVEL SECURITY")
    bed.queue.publish("m1")
    sidecar.wait_for("database_error", reason=lambda reason: "row-level security" in reason)
    assert sidecar.term() == 0
    sidecar = bed.sidecar(wait=False, **COMPACT)
    assert "DISABLE ROW LEVEL SECURITY" in sidecar.wait_for("refused")["reason"]
    bed.rows("ALTER TABLE onceward.history DISABLE ROW LEVEL SECURITY")
    sidecar.wait_for("duplicate", message_id="m1")
    assert len(bed.app.posts("m1")) == 1


def test_entries_expire_while_the_walk_through_the_rows_goes_on(bed):
    """That walk never seems to end. The expiry has many pages."""
    put_back = replaced(bed, "sidecar_keep_house", "next_page := CASE WHEN v_page < v_pages THEN greatest(v_page, 1) ELSE 0 END;",
                        "next_page := 1; n_pages := 1000000;")
    try:
        sidecar = bed.sidecar(**COMPACT)
        mine = "FROM onceward.history WHERE consumer = (SELECT number FROM onceward.consumer WHERE consumer = %s)"
        wait_until(lambda: bed.rows("SELECT number FROM onceward.consumer WHERE consumer = %s AND number IS NOT NULL", bed.queue.name), "it has a number")
        bed.rows("UPDATE onceward.consumer SET kept_until = NULL WHERE consumer <> %s", bed.queue.name)  # of the tests before
        bed.rows("INSERT INTO onceward.history SELECT gen_random_uuid(), 0, number, n %% 2 * 20000 FROM onceward.consumer,"
                 " generate_series(1, 20000) n WHERE consumer = %s", bed.queue.name)
        bed.rows("INSERT INTO onceward.history_begun DEFAULT VALUES")
        wait_until(lambda: not bed.rows(f"SELECT day {mine} AND day = 0 LIMIT 1", bed.queue.name), "expired entries are deleted", 60)
        wait_until(lambda: n_said("history_expired", sidecar) == 10_000, "it is logged")
        assert bed.rows(f"SELECT count(*) AS n {mine}", bed.queue.name)[0]["n"] == 10_000
    finally:
        put_back()


def test_the_size_of_a_large_history_is_an_estimate(bed):
    sidecar = bed.sidecar(**COMPACT)
    wait_until(lambda: bed.rows("SELECT number FROM onceward.consumer WHERE consumer = %s AND number IS NOT NULL", bed.queue.name), "it has a number")
    bed.rows("INSERT INTO onceward.history SELECT gen_random_uuid(), 0, number, 20000 FROM onceward.consumer,"
             " generate_series(1, 170000) WHERE consumer = %s", bed.queue.name)
    own, = [c for c in status(sidecar)["compacted"] if c["consumer"] == bed.queue.name]
    assert own["estimated"] is True and 140_000 < own["ids"] < 200_000 and own["oldest_day"] == "2054-10-04"
    bed.rows("TRUNCATE onceward.history")


@pytest.mark.short("dead")
@pytest.mark.parametrize("policy", ["dead", "duplicate"])
def test_another_body_under_a_compacted_id(bed, policy):
    sidecar = bed.sidecar(on_body_mismatch=policy, **COMPACT)
    bed.queue.publish("m1", b"one")
    sidecar.wait_for("completed", message_id="m1")
    bed.rows("UPDATE onceward.inbox SET completed_at = completed_at - interval '3 hours' WHERE consumer = %s", bed.queue.name)
    wait_until(lambda: not ids(bed), "the row is replaced", 60)
    bed.queue.publish("m1", b"two")
    if policy == "dead":
        assert sidecar.wait_for("dead", message_id="m1")["reason"] == "body_mismatch"
        assert len(bed.letters()) == 1
    else:
        sidecar.wait_for("duplicate", message_id="m1")
        assert not bed.letters()
    bed.assert_acked()
    assert len(bed.app.posts("m1")) == 1


def test_a_walk_that_takes_too_long_is_said(bed):
    """The table seems to be larger than any walk can cover."""
    put_back = replaced(bed, "sidecar_keep_house", "next_page := CASE WHEN v_page < v_pages THEN greatest(v_page, 1) ELSE 0 END;",
                        "next_page := 1; n_pages := 1000000;")
    try:
        sidecar = bed.sidecar(**COMPACT, environment={"ONCEWARD_FAILPOINT": "walk_goal_ms=100"})
        line = sidecar.wait_for("compaction_lags", deadline=40)
        assert line["level"] == "warning" and line["pages_left"] == 999_999 and line["lag_ms"] > 0
    finally:
        put_back()
