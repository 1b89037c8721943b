"""The functions of sql/, each answer of each of them. The database server is real, the times are moved, nothing waits."""

import json
import random
import re
import threading
import time
import uuid
from pathlib import Path

import psycopg2
import pytest

from rig import inbox_sql
from rig.inbox_sql import Application, Inbox, Letter, answers, base64url, number, token_text
from rig.wait import wait_until


@pytest.fixture(scope="module")
def pg(raw_postgres):
    """A database with the schema, for this file alone."""
    database = raw_postgres.create_database(f"sql_{uuid.uuid4().hex[:8]}")
    inbox_sql.load(database)
    yield database
    raw_postgres.query(f'DROP DATABASE "{database.database}" WITH (FORCE)', database="postgres")


@pytest.fixture
def sessions(pg, request):
    """make(Inbox, instance) or make(Application): sessions that are closed at the end. Each test has a consumer of its own."""
    made = []

    def make(kind, *arguments):
        made.append(kind(pg, request.node.name, *arguments) if kind is Inbox else kind(pg, *arguments))
        return made[-1]

    yield make
    for session in made:
        session.close()


@pytest.fixture
def inbox(sessions):
    return sessions(Inbox)


@pytest.fixture
def other(sessions):
    return sessions(Inbox, "b")


@pytest.fixture
def app(sessions):
    return sessions(Application)


class Refused:
    """with Refused("OW001") as it: …; it.error has MESSAGE, DETAIL and HINT."""

    def __init__(self, code):
        self.code = code

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        assert isinstance(error, psycopg2.Error), f"{self.code} was expected, nothing was raised"
        assert error.pgcode == self.code, f"{self.code} was expected: {error.pgcode} {error}"
        assert error.diag.message_primary and error.diag.message_detail and error.diag.message_hint
        self.error = error
        return True


def quickly(call):
    """Calls it, and checks that it did not wait: lock_timeout, which is 1 s, would raise, and a wait without one would not end, since
    this thread has the lock's other side."""
    start = time.monotonic()
    answer = call()
    assert time.monotonic() - start < 20, "it waited for a lock"
    return answer


# the schema


def test_everything_may_be_run_again(pg, inbox):
    pg.query("\n".join(inbox_sql.files(numbered=False)))
    version, oldest = inbox.query("SELECT * FROM onceward.sidecar_schema()")[0]
    assert version == pg.query("SELECT count(*) FROM onceward.schema_version")[0][0] >= oldest >= 1


def test_the_check_of_the_schema_knows_all_columns(inbox):
    text = (Path(__file__).parents[2] / "sql/queries/check_columns.sql").read_text()
    wanted = {relation: set(filter(None, f"{needed},{optional}".split(",")))
              for relation, needed, optional in re.findall(r"\('(onceward\.\w+)'[^']*'{(.*?)}'[^']*'{(.*?)}'", text)}
    found = {relation: set(columns) for relation, columns in inbox.query(
        "SELECT attrelid::regclass::text, array_agg(attname::text) FROM pg_attribute"
        " WHERE attrelid = ANY (%s::regclass[]) AND attnum > 0 AND NOT attisdropped GROUP BY 1", list(wanted))}
    assert {relation: found[relation] - columns for relation, columns in wanted.items() if found.get(relation, columns) - columns} == {}


# claim and look


def test_claim_answers(inbox, other):
    first = inbox.claim("m1", "m2", "ä/𝄞")
    assert [(r.ord, r.answer, r.attempt, r.taken_over, r.age_ms) for r in first] == [(n, "claimed", 1, False, 0) for n in (1, 2, 3)]
    mixed = other.claim("m1", "m3")
    assert answers(mixed) == ["held", "claimed"]
    assert 30_000 < mixed[0].wait_ms <= 32_000 and mixed[0].detail == "a/1"
    inbox.settle("m1")
    inbox.fail("m2", delay=5_000)
    assert answers(other.claim("m1")) == ["completed"]
    not_due = other.claim("m2")[0]
    assert (not_due.answer, not_due.detail) == ("not_due", "answered 500") and 4_000 < not_due.wait_ms <= 5_000
    inbox.age("m2", next_attempt_at=5_000)
    assert other.claim("m2")[0][:3] == (1, "claimed", 2)
    assert other.row("m2").status == "processing" and other.row("m2").claimed_by == "b/1"


def test_a_claim_repeated_with_its_token_is_renewed_and_not_charged(inbox):
    inbox.claim("m1", "m2")
    inbox.age("m1", token_expires_at=20_000)
    again = inbox.claim("m1", "m2", again=True)
    assert [(r.answer, r.attempt, r.taken_over) for r in again] == [("claimed", 1, False)] * 2
    assert 29_000 < inbox.look("m1")[0].wait_ms <= 30_000


def test_takeover_after_the_grace_only(inbox, other, app):
    inbox.claim("m1", window=1_000)
    inbox.age("m1", token_expires_at=2_500)
    held = other.claim("m1")[0]
    assert held.answer == "held" and 0 < held.wait_ms <= 500
    inbox.age("m1", token_expires_at=500)
    taken = other.claim("m1")[0]
    assert (taken.answer, number(taken), taken.taken_over) == ("claimed", 2, True)
    assert answers(inbox.settle("m1")) == ["lost"]
    with Refused("OW001"):
        app.complete(inbox.token("m1"))
    assert app.complete(other.token("m1")) == "completed"


def test_another_body_under_the_same_id(inbox, other):
    inbox.claim("m1", "m2", "m3", body=b"one")
    inbox.settle("m1")
    inbox.fail("m2", delay=0)
    rows = other.claim("m1", "m2", "m3", body=b"two")
    assert answers(rows) == ["mismatch"] * 3
    detail = json.loads(rows[0].detail)
    assert detail["first_fingerprint"] == inbox_sql.fingerprint(b"one").hex()
    assert detail["fingerprint"] == inbox_sql.fingerprint(b"two").hex()
    assert detail["first_status"] == "completed" and detail["first_received_at"] and detail["first_completed_at"]
    assert answers(other.look("m1", "m2", "m3", body=b"two")) == ["mismatch"] * 3
    assert inbox.row("m2").status == "failed"


def test_look_answers(inbox, other):
    inbox.claim("claimed", "completed", "not_due", "due", "dead", "expired", "over")
    inbox.settle("completed")
    inbox.fail("not_due")
    inbox.fail("due", delay=0)
    inbox.bury(("dead", Letter()))
    inbox.age("expired", token_expires_at=40_000)
    inbox.age("over", token_expires_at=31_000)
    rows = other.look("claimed", "completed", "not_due", "due", "dead", "expired", "gone")
    assert answers(rows) == ["held", "completed", "not_due", "due", "dead", "due", "vanished"]
    assert (rows[0].detail, rows[2].detail, rows[4].detail) == ("a/1", "answered 500", "it failed")
    mine = inbox.look("claimed", "over", "expired")
    assert answers(mine) == ["claimed"] * 3
    assert mine[0].wait_ms > 0 > mine[1].wait_ms


def test_two_claimers_racing(inbox, other):
    """Every id has one winner, and the loser is told."""
    ids = [f"m{n:03}" for n in range(200)]
    results = {}
    start = threading.Barrier(2)

    def run(session):
        start.wait()
        results[session] = [row for n in range(0, 200, 10) for row in session.claim(*ids[n:n + 10])]

    threads = [threading.Thread(target=run, args=(s,)) for s in (inbox, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for a, b in zip(results[inbox], results[other]):
        assert sorted((a.answer, b.answer)) == ["claimed", "held"]


def test_an_uncommitted_insert_of_the_same_id_is_waited_for_a_second_at_most(inbox, other):
    inbox.begin()
    inbox.claim("m1")
    start = time.monotonic()
    with pytest.raises(psycopg2.errors.LockNotAvailable):
        other.claim("m1", "m2")
    assert 0.5 < time.monotonic() - start < 20
    inbox.commit()
    assert answers(other.claim("m1", "m2")) == ["held", "claimed"]


def test_ids_that_another_claim_inserts_meanwhile_are_held_and_the_others_are_claimed(pg, inbox, other):
    """The claim waits in its INSERT for each of them, and starts it again for the rest."""
    ids = [f"m{n}" for n in range(8)]
    inbox.begin()
    inbox.claim("m2", "m5", "m6")
    found = []
    thread = threading.Thread(target=lambda: found.extend(answers(other.claim(*ids))))
    thread.start()
    wait_until(lambda: pg.query("SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted", [other.pid])[0][0], "the claim waits")
    inbox.commit()
    thread.join(30)
    assert found == ["held" if i in ("m2", "m5", "m6") else "claimed" for i in ids]
    assert answers(other.settle(*(i for i in ids if i not in ("m2", "m5", "m6")))) == ["completed"] * 5
    assert answers(inbox.settle("m2", "m5", "m6")) == ["completed"] * 3


# nothing waits for a row that an application has locked


def test_locked_rows_are_answered_at_once(inbox, other, app):
    ids = ("settle", "fail", "release", "bury", "claim")
    inbox.claim(*ids, "own", "free")
    inbox.age("claim", token_expires_at=40_000)
    app.begin()
    for i in ids + ("own",):
        app.complete(inbox.token(i))
    assert answers(quickly(lambda: inbox.settle("free", "settle"))) == ["completed", "locked"]
    assert answers(quickly(lambda: inbox.fail("fail"))) == ["locked"]
    assert answers(quickly(lambda: inbox.release("release"))) == ["locked"]
    assert answers(quickly(lambda: inbox.bury(("bury", Letter())))) == ["locked"]
    assert answers(quickly(lambda: other.claim("claim", "new"))) == ["locked", "claimed"]
    assert answers(quickly(lambda: inbox.claim("claim", again=True))) == ["locked"]
    assert answers(quickly(lambda: inbox.look("claim"))) == ["claimed"]
    inbox.register((inbox.consumer, "/", inbox.consumer, None))
    assert quickly(lambda: inbox.housekeep(late=0)).swept == 0
    assert not inbox.letters()
    app.commit()
    for call in (inbox.settle, inbox.fail, inbox.release):
        assert answers(call("own")) == ["completed"]
    assert answers(inbox.bury(("bury", Letter()))) == ["completed"]
    assert answers(other.claim(*ids)) == ["completed"] * 5


# settle, fail, release


def test_settle_answers(inbox, other):
    inbox.claim("m1", "m2", "m3", "m4")
    assert answers(inbox.settle("m1", "m2", result='{"ok": true}')) == ["completed"] * 2
    assert inbox.row("m1").result == '{"ok": true}' and inbox.row("m1").http_status == 200
    first = inbox.row("m1")
    inbox.fail("m3")
    inbox.secrets["never"] = str(uuid.uuid4())
    assert answers(inbox.settle("m1", "m2", "m3", "m4", "never")) == ["completed", "completed", "lost", "completed", "vanished"]
    assert answers(inbox.settle("m1", secret=str(uuid.uuid4()))) == ["completed"]
    assert inbox.row("m1") == first
    inbox.claim("long")
    assert answers(inbox.settle("long", result="x" * 65_537)) == ["completed"]
    assert inbox.row("long").result is None


def test_a_token_past_its_window_still_settles_and_completes(inbox, app):
    inbox.claim("m1", "m2")
    inbox.age("m1", token_expires_at=90_000)
    inbox.age("m2", token_expires_at=90_000)
    assert answers(inbox.settle("m1")) == ["completed"]
    assert app.extend(inbox.token("m2"), 10) > 9
    inbox.age("m2", token_expires_at=90_000)
    assert app.complete(inbox.token("m2")) == "completed"


def test_a_failure_beside_another_claims_completion_is_lost(inbox, other):
    """A crash of the database has lost the claim, and a copy with another body was claimed and completed."""
    inbox.claim("m1", "m2")
    inbox.settle("m1", "m2")
    assert answers(other.claim("m1", "m2")) == ["completed"] * 2
    assert answers(other.fail("m1", secret=str(uuid.uuid4()))) == ["lost"]
    assert answers(other.release("m2", secret=str(uuid.uuid4()))) == ["lost"]
    assert answers(inbox.fail("m1")) == answers(inbox.release("m2")) == ["completed"]


def test_fail_answers(inbox, app):
    inbox.claim("m1", "completed", "extended", "over")
    inbox.settle("completed")
    inbox.age("over", token_expires_at=31_000)
    assert answers(inbox.fail("m1")) == ["failed"]
    first = inbox.row("m1")
    assert answers(inbox.fail("m1", delay=1, error="other")) == ["failed"] and inbox.row("m1") == first
    assert answers(inbox.fail("m1", secret=str(uuid.uuid4()))) == ["lost"]
    assert answers(inbox.fail("gone", secret=str(uuid.uuid4()))) == ["vanished"]
    assert answers(inbox.fail("completed")) == ["completed"]
    rows = inbox.fail("extended", "over", only_expired=True)
    assert answers(rows) == ["extended", "failed"] and 29_000 < rows[0].wait_ms <= 30_000
    with Refused("OW001") as it:
        app.complete(inbox.token("m1"))
    assert "failed (answered 500)" in it.error.diag.message_detail
    with Refused("OW001"):
        app.extend(inbox.token("m1"), 10)


def test_the_error_is_cut_at_a_character(inbox):
    for error, length in (("x" * 1_024, 1_024), ("x" * 1_025, 1_024), ("x" + "ä" * 600, 1_023), ("xx" + "𝄞" * 300, 1_022),
                          ("𝄞" * 300, 1_024), ("xxx" + "€" * 400, 1_023)):
        inbox.claim(error[:40])
        inbox.fail(error[:40], error=error)
        kept = inbox.row(error[:40]).last_error
        assert error.startswith(kept) and len(kept.encode()) == length


def test_release_gives_the_attempt_back(inbox, app):
    inbox.claim("m1", "completed")
    inbox.settle("completed")
    assert answers(inbox.release("m1", error="connection refused")) == ["released"]
    row = inbox.row("m1")
    assert (row.status, row.attempt, row.last_error) == ("waiting", 0, "connection refused")
    assert answers(inbox.release("m1")) == ["released"] and inbox.row("m1") == row
    assert answers(inbox.release("m1", secret=str(uuid.uuid4()))) == ["lost"]
    assert answers(inbox.release("completed")) == ["completed"]
    assert answers(inbox.release("gone", secret=str(uuid.uuid4()))) == ["vanished"]
    with Refused("OW001"):
        app.complete(inbox.token("m1"))
    assert inbox.claim("m1")[0][1:3] == ("claimed", 1)
    inbox.fail("m1")
    assert answers(inbox.release("m1")) == ["lost"]


# dead letters


def test_bury_with_a_token(inbox, app):
    inbox.claim("m1", "completed", "released")
    inbox.settle("completed")
    inbox.release("released")
    inbox.secrets["gone"] = str(uuid.uuid4())
    rows = inbox.bury(*((i, Letter(reason="permanent", attempts=3, body=b"\0\xff", deaths=2)) for i in
                        ("completed", "gone", "m1", "released")))
    assert answers(rows) == ["completed", "vanished", "buried", "lost"]
    letter, = inbox.letters()
    assert (letter.id, letter.message_id, letter.reason, letter.attempts, bytes(letter.body), letter.queue, letter.deaths) == (
        rows[2].letter_id, "m1", "permanent", 3, b"\0\xff", "q", 2)
    assert (inbox.row("m1").status, inbox.row("m1").last_error, letter.last_error) == ("dead", "it failed", "it failed")
    with Refused("OW001"):
        app.complete(inbox.token("m1"))
    again = inbox.bury(("m1", Letter()))[0]
    assert (again.answer, again.letter_id) == ("buried", letter.id)
    inbox.secrets["m1"] = str(uuid.uuid4())
    assert inbox.bury(("m1", Letter()))[0][1:] == ("dead", None)
    assert len(inbox.letters()) == 1


def test_row_and_letter_are_one_transaction(inbox):
    inbox.claim("m1")
    with pytest.raises(psycopg2.errors.InvalidTextRepresentation):
        inbox.bury(("m1", Letter(headers="not json")))
    assert inbox.row("m1").status == "processing" and not inbox.letters()


def test_a_rowless_death_is_inserted_once(inbox):
    def bury(**changes):
        return inbox.bury((None, Letter(reason="no_message_id", rowless=True, **changes)))[0]

    first = bury(headers='{"a": 1}')
    assert first.answer == "buried"
    # The broker's own counters are not part of the copy.
    for headers in ('{"a": 1}', '{"a": 1, "x-delivery-count": 2}', '{"x-delivery-count":{"!l":3},"a": 1,"x-acquired-count":7}'):
        assert bury(headers=headers, redelivered=True) == first
    # Anything else is another copy: not redelivered, another header, another body, key or raw id.
    others = [bury(headers='{"a": 1}'), bury(headers='{"a": 2}', redelivered=True), bury(redelivered=True),
              bury(body=b"other", redelivered=True), bury(routing_key="r", redelivered=True), bury(raw_id=b"\xff", redelivered=True),
              bury(deaths=1, redelivered=True)]
    assert len({r.letter_id for r in others} | {first.letter_id}) == 8 == len(inbox.letters())
    assert bury(headers='{"x-delivery-count": 1}', redelivered=True) == others[2]


def test_two_sidecars_do_not_insert_one_copy_at_once(inbox, other):
    letter = Letter(reason="no_message_id", rowless=True)
    inbox.begin()
    inbox.bury((None, letter))
    assert answers(quickly(lambda: other.bury((None, letter._replace(redelivered=True))))) == ["locked"]
    inbox.commit()
    assert other.bury((None, letter._replace(redelivered=True)))[0].letter_id == inbox.letters()[0].id
    assert len(inbox.letters()) == 1


def test_a_mismatch_leaves_the_first_bodys_row_alone(inbox):
    inbox.claim("m1", body=b"one")
    row = inbox.row("m1")
    assert answers(inbox.bury(("m1", Letter(reason="body_mismatch", rowless=True, body=b"two")))) == ["buried"]
    assert inbox.row("m1") == row and inbox.letters()[0].message_id == "m1" and inbox.letters()[0].rowless


def test_revival_by_more_deaths_at_the_broker(inbox, other):
    for life in range(1, 4):
        inbox.claim("m1", deaths=life)
        assert answers(inbox.bury(("m1", Letter(deaths=life)))) == ["buried"]
        dead = other.claim("m1", deaths=life)[0]
        assert (dead.answer, dead.attempt, dead.detail) == ("dead", 1, "it failed")
    inbox.age("m1", received_at=3_600_000)
    inbox.begin()
    inbox.query("SELECT FROM onceward.inbox WHERE consumer = %s FOR UPDATE", inbox.consumer)
    assert answers(quickly(lambda: other.claim("m1", deaths=4))) == ["locked"]
    inbox.rollback()
    revived = other.claim("m1", deaths=4)[0]
    assert (revived.answer, revived.attempt, revived.age_ms, revived.taken_over) == ("claimed", 1, 0, False)
    other.bury(("m1", Letter(deaths=4)))
    assert answers(other.claim("m1", deaths=5)) == ["dead"]
    assert answers(other.claim("m1", deaths=5, revive=4)) == ["claimed"]
    inbox.claim("discarded", deaths=1)
    inbox.bury(("discarded", Letter(deaths=1)))
    inbox.query("DELETE FROM onceward.dead_letter WHERE consumer = %s AND message_id = 'discarded'", inbox.consumer)
    assert answers(inbox.claim("discarded", deaths=2)) == ["dead"]


def test_more_deaths_revive_no_message_that_an_operator_gave_up(inbox, other):
    """A publisher can forge `x-death`."""
    inbox.claim("m1", deaths=1)
    assert answers(inbox.bury(("m1", Letter(deaths=1, reason="operator")))) == ["buried"]
    assert answers(other.claim("m1", deaths=100)) == ["dead"]


def test_redrive(inbox, app):
    def redrive(letter_id):
        return quickly(lambda: inbox.value("SELECT onceward.sidecar_redrive(%s)", letter_id))

    inbox.claim("m1")
    inbox.bury(("m1", Letter()), (None, Letter(rowless=True)))
    old = inbox.token("m1")
    inbox.age("m1", received_at=3_600_000)
    letter, rowless = (x.id for x in inbox.letters())
    assert redrive(rowless) == "rowless"
    assert redrive(letter) == "reset"
    assert (inbox.row("m1").status, inbox.row("m1").attempt) == ("waiting", 0)
    assert redrive(letter) == "other"
    with Refused("OW001"):
        app.complete(old)
    claimed = inbox.claim("m1")[0]
    assert (claimed.answer, claimed.attempt) == ("claimed", 1) and claimed.age_ms < 60_000
    assert redrive(letter) == "other"
    app.begin()
    app.complete(inbox.token("m1"))
    assert redrive(letter) == "locked"
    app.commit()
    assert redrive(letter) == "completed"
    assert redrive(letter) == "gone"
    assert [x.id for x in inbox.letters()] == [rowless]


def test_redrive_under_an_id_that_is_found_now(inbox, app):
    def redrive(letter_id, message_id):
        return quickly(lambda: inbox.value("SELECT onceward.sidecar_redrive_as(%s, %s)", letter_id, message_id))

    inbox.claim("m1", "old", "other")
    inbox.bury((None, Letter(rowless=True)), ("m1", Letter()), ("old", Letter()))
    rowless, of_m1, of_old = (x.id for x in inbox.letters())
    token = inbox.token("m1")
    assert redrive(rowless, "new") == "reset" and inbox.row("new") is None
    assert redrive(rowless, "m1") == "reset"
    assert (inbox.row("m1").status, inbox.row("m1").attempt) == ("waiting", 0)
    with Refused("OW001"):
        app.complete(token)
    assert redrive(rowless, "m1") == "other"
    inbox.query("UPDATE onceward.inbox SET fingerprint = '\\x01' WHERE consumer = %s AND message_id = 'other'", inbox.consumer)
    assert redrive(rowless, "other") == "mismatch"
    inbox.claim("m1")
    app.begin()
    app.complete(inbox.token("m1"))
    assert redrive(rowless, "m1") == redrive(of_old, "m1") == redrive(of_m1, "new") == "locked"
    app.commit()
    assert redrive(of_m1, "new") == "completed"  # under the id that it died under
    assert redrive(of_m1, "new") == "gone"
    assert redrive(rowless, "m1") == "completed"
    assert redrive(of_old, "new") == "reset" and inbox.row("old").status == "dead"
    inbox.query("UPDATE onceward.inbox SET status = 'processing' WHERE consumer = %s AND message_id = 'old'", inbox.consumer)
    assert redrive(of_old, "new") == "held"
    assert [x.id for x in inbox.letters()] == [of_old]


@pytest.mark.parametrize("status", ["completed", "dead", "processing"])
def test_a_letter_beside_a_row_with_another_body_stays(inbox, status):
    """Its own row was removed (`onceward forget`, orphans_remove), and its id used for another message."""
    inbox.claim("m1")
    inbox.bury(("m1", Letter()))
    letter, = (x.id for x in inbox.letters())
    inbox.query("UPDATE onceward.inbox SET status = %s, fingerprint = '\\x01' WHERE consumer = %s", status, inbox.consumer)
    assert inbox.value("SELECT onceward.sidecar_redrive(%s)", letter) == "mismatch"
    assert inbox.value("SELECT onceward.sidecar_redrive_as(%s, 'new')", letter) == "reset"
    assert inbox.row("m1").status == status and [x.id for x in inbox.letters()] == [letter]


SUSPECT = "UPDATE onceward.inbox SET attempt = 3, crashes = 1, takeovers = 1, unproven_step = 1, renewals = 2, renewals_until = now(), batch_cap = 1 WHERE consumer = %s"


@pytest.mark.parametrize("begin_again", ["sidecar_redrive", "sidecar_redrive_as", "lever_retry"])
def test_what_begins_again_has_no_past(inbox, begin_again):
    """A row of a letter, and a held one of an ordered queue: neither an attempt nor the cap of a failed batch is left."""
    inbox.claim("m1")
    inbox.query(SUSPECT, inbox.consumer)
    if begin_again == "lever_retry":
        inbox.query("UPDATE onceward.inbox SET status = 'held', renewals = NULL, renewals_until = NULL WHERE consumer = %s", inbox.consumer)
        assert inbox.value("SELECT onceward.lever_retry(%s, NULL, 'ann')", inbox.consumer) == 1
    else:
        inbox.bury(("m1", Letter()))
        more = ["m1"] if begin_again == "sidecar_redrive_as" else []
        assert inbox.value(f"SELECT onceward.{begin_again}(%s{', %s' * len(more)})", inbox.letters()[0].id, *more) == "reset"
    row = inbox.query("SELECT status, attempt, crashes, takeovers, unproven_at, unproven_step, renewals, renewals_until, batch_cap"
                      " FROM onceward.inbox WHERE consumer = %s", inbox.consumer)[0]
    assert tuple(row) == ("waiting", 0, *[None] * 7)


# housekeeping, figures


@pytest.fixture
def house(inbox):
    inbox.register((inbox.consumer, "/", inbox.consumer, None))
    return inbox


def test_sweep(house, app, sessions):
    sweeper = sessions(Inbox, "b")
    sweep = lambda: quickly(lambda: sweeper.housekeep()).swept
    house.claim("fresh", "old1", "old2", "locked", "completed")
    house.settle("completed")
    for i in ("old1", "old2", "locked", "completed"):
        house.age(i, token_expires_at=4_000_000)
    app.begin()
    app.complete(house.token("locked"))
    assert sweep() == 2
    assert sweep() == 0
    app.rollback()
    assert sweep() == 1
    assert [house.row(i).status for i in ("fresh", "completed", "old1")] == ["processing", "completed", "failed"]
    assert house.row("old1").last_error == "token expired without an answer"
    with Refused("OW001"):
        app.complete(house.token("old1"))
    claimed = sweeper.claim("old1")[0]
    assert (claimed.answer, number(claimed)) == ("claimed", 2)


def test_purge(house):
    house.claim("new", "old1", "old2", "old3", "letter", "tombstone", "processing", "failed", "waiting")
    house.settle("new", "old1", "old2", "old3")
    house.fail("failed")
    house.release("waiting")
    house.bury(("letter", Letter()), ("tombstone", Letter()))
    house.query("DELETE FROM onceward.dead_letter WHERE consumer = %s AND message_id = 'tombstone'", house.consumer)
    for i in ("old1", "old2", "old3", "letter", "tombstone", "processing", "failed", "waiting"):
        house.age(i, completed_at=4_000_000, token_expires_at=4_000_000, received_at=4_000_000)
    assert quickly(lambda: house.housekeep(retention=5_000_000, late=5_000_000)).purged == 0
    house.query("UPDATE onceward.consumer SET retention_at = retention_at - interval '1 hour'")  # no replica has that retention any more
    done = quickly(lambda: house.housekeep(late=5_000_000))
    assert (done.purged, done.swept, done.away_ms) == (4, 0, 0)
    left = house.query("SELECT message_id FROM onceward.inbox WHERE consumer = %s", house.consumer)
    assert {r.message_id for r in left} == {"new", "letter", "processing", "failed", "waiting"}
    assert answers(house.claim("old1")) == ["claimed"]


def test_a_row_that_is_locked_is_not_purged(house, sessions):
    house.claim("m1", "m2")
    house.settle("m1", "m2")
    for i in ("m1", "m2"):
        house.age(i, completed_at=4_000_000)
    holder = sessions(Inbox, "b")
    holder.begin()
    holder.query("SELECT FROM onceward.inbox WHERE consumer = %s AND message_id = 'm1' FOR UPDATE", house.consumer)
    assert quickly(lambda: house.housekeep()).purged == 1
    holder.commit()
    assert quickly(lambda: house.housekeep()).purged == 1


def test_orphans_are_counted_and_left_alone(house):
    house.claim("due", "not due", "fresh", "given back")
    house.fail("due", "not due", "fresh")
    house.release("given back")
    for i in ("due", "not due", "given back"):
        house.age(i, token_expires_at=4_000_000, next_attempt_at=4_000_000)
    house.age("not due", next_attempt_at=-8_000_000)
    assert (house.housekeep().orphans, house.housekeep().swept) == (2, 0)
    assert house.row("due").status == "failed"


def test_a_walk_goes_on_where_it_was_and_ends(house):
    """With no time at all it reads a piece a call."""
    n = 2_000
    house.query("INSERT INTO onceward.inbox (consumer, message_id, status, attempt, token, fingerprint, received_at, alive_since,"
                " token_expires_at, max_expires_at, completed_at, claimed_by)"
                " SELECT %s, i::text, 'completed', 1, gen_random_uuid(), '\\x00', t, t, t, t, t, 'a'"
                " FROM generate_series(1, %s) i, LATERAL (SELECT clock_timestamp() - interval '2 h') AS x (t)", house.consumer, n)
    purged, page, calls = 0, -1, 0
    while page != 0:
        done = house.housekeep(page=page, budget_us=0)
        assert done.purged <= 1_000 and done.away_ms == 0
        assert done.next_page == 0 or done.next_page >= page
        purged, page, calls = purged + done.purged, done.next_page, calls + 1
    assert purged == n and calls > 5
    assert house.housekeep(page=10 ** 9).next_page == 0


def test_one_keeper_at_a_time(house, sessions):
    other = sessions(Inbox, "b")
    other.consumer = house.consumer
    other.instance = "b"
    assert house.housekeep().away_ms == 0
    away = other.housekeep()
    assert 0 < away.away_ms <= 60_000 and away.next_page == -1
    assert house.housekeep().away_ms == 0
    # The lease is not written by every call.
    before = house.value("SELECT xmin::text FROM onceward.consumer WHERE consumer = %s", house.consumer)
    house.housekeep()
    assert house.value("SELECT xmin::text FROM onceward.consumer WHERE consumer = %s", house.consumer) == before
    # It has run out, or was made by a clock that ran ahead: somebody else takes it.
    for end, first, second in (("-1 s", other, house), ("1 day", house, other)):
        house.query("UPDATE onceward.consumer SET kept_until = clock_timestamp() + %s::interval WHERE consumer = %s", end,
                    house.consumer)
        assert first.housekeep().away_ms == 0
        assert second.housekeep().away_ms > 0
    # Another session writes the lease at this moment.
    house.query("UPDATE onceward.consumer SET kept_until = NULL WHERE consumer = %s", house.consumer)
    house.begin()
    house.query("SELECT FROM onceward.consumer WHERE consumer = %s FOR UPDATE", house.consumer)
    assert quickly(lambda: other.housekeep()).away_ms == 1_000
    house.commit()
    # Or another consumer's call is at work.
    house.begin()
    house.query("LOCK TABLE onceward.consumer IN SHARE UPDATE EXCLUSIVE MODE")
    assert quickly(lambda: other.housekeep()).away_ms == 100
    house.commit()
    assert other.housekeep().away_ms == 0


@pytest.mark.parametrize("ahead, late", [(7_200_000, False), (-7_200_000, False), (61_000, False), (-61_000, False), (50_000, True)])
def test_nothing_is_forgotten_because_of_one_clock(house, ahead, late):
    """The database's may have jumped: an hour on, a day, a retention."""
    house.claim("old", "due", "swept")
    house.settle("old")
    house.fail("due")
    for i in ("old", "due", "swept"):
        house.age(i, completed_at=4_000_000, token_expires_at=4_000_000, next_attempt_at=4_000_000)
    done = house.housekeep(ahead_ms=ahead)
    if late:
        assert (done.purged, done.swept, done.orphans, done.unfinished, done.ahead_ms) == (1, 1, 1, 1, 0)
        return
    assert (done.purged, done.swept, done.orphans, done.away_ms) == (0, 0, 0, 0) and abs(done.ahead_ms - ahead) < 5_000
    assert {house.row(i).status for i in ("old", "due", "swept")} == {"completed", "failed", "processing"}
    assert house.housekeep().purged == 1


def test_what_is_old_must_be_old_by_both_clocks(house):
    house.claim("by both", "by the database's")
    house.settle("by both", "by the database's")
    house.age("by both", completed_at=3_660_000)
    house.age("by the database's", completed_at=3_620_000)
    assert house.housekeep(ahead_ms=40_000).purged == 1
    assert house.row("by the database's").status == "completed"
    assert house.housekeep(ahead_ms=-40_000).purged == 1  # its own clock is ahead: the database's is the earlier one


def test_unfinished_rows_are_counted(house):
    house.claim("failed", "waiting", "processing", "completed")
    house.fail("failed")
    house.release("waiting")
    house.settle("completed")
    done = house.housekeep()
    assert (done.unfinished, done.orphans) == (2, 0)


def test_orphans_are_removed_by_whoever_wants_it(house, sessions):
    house.claim("old", "given back", "locked", "young", "not due", "completed", "processing")
    house.fail("old", "locked", "young", "not due")
    house.release("given back")
    house.settle("completed")
    for i in ("old", "given back", "locked", "not due", "completed", "processing"):
        house.age(i, token_expires_at=4_000_000, next_attempt_at=4_000_000)
    house.age("not due", next_attempt_at=-8_000_000)
    holder = sessions(Inbox, "b")
    holder.begin()
    holder.query("SELECT FROM onceward.inbox WHERE consumer = %s AND message_id = 'locked' FOR UPDATE", house.consumer)
    remove = lambda older: house.value("SELECT onceward.orphans_remove(%s, %s::interval)", house.consumer, older)
    assert remove("2 hours") == 0
    assert quickly(lambda: remove("1 hour")) == 2
    left = house.query("SELECT message_id FROM onceward.inbox WHERE consumer = %s", house.consumer)
    assert {r.message_id for r in left} == {"locked", "young", "not due", "completed", "processing"}
    for wrong in ("9 minutes", None):
        with pytest.raises(psycopg2.Error, match="last 10 minutes"):
            remove(wrong)
    assert answers(house.claim("old"))[0] == "claimed"  # its message came after all


def test_the_lock_of_a_session_of_a_prepared_transaction_and_of_nobody(house, app, pg):
    ask = lambda i: house.query("SELECT * FROM onceward.sidecar_lock_holder(%s, %s)", house.consumer, i)[0]
    house.claim("session", "prepared", "nobody", "several")
    app.begin()
    app.complete(house.token("session"))
    held = ask("session")
    assert (held.pid, held.state, held.gid) == (app.pid, "idle in transaction", None) and held.age_ms >= 0
    app.rollback()
    gid = "gid-" + uuid.uuid4().hex
    app.begin()
    app.complete(house.token("prepared"))
    app.query(f"PREPARE TRANSACTION '{gid}'")
    try:
        held = ask("prepared")
        assert (held.pid, held.state, held.gid, held.application) == (0, "prepared", gid, None) and held.age_ms >= 0
    finally:
        app.query(f"ROLLBACK PREPARED '{gid}'")
    for nobody in ("prepared", "nobody", "none"):
        held = ask(nobody)
        assert (held.pid, held.state, held.gid) == (0, None, None)
    # Two at once: xmax is no transaction that anybody could look up.
    lockers = [pg.connect(autocommit=False) for _ in range(2)]
    for locker in lockers:
        with locker.cursor() as cursor:
            cursor.execute("SELECT FROM onceward.inbox WHERE consumer = %s AND message_id = 'several' FOR KEY SHARE", (house.consumer,))
    held = ask("several")
    for locker in lockers:
        locker.close()
    assert (held.pid, held.state) == (0, "holder unknown")


@pytest.fixture
def stranger(pg):
    """A sidecar's login that may not see other sessions: nothing has given it that."""
    role = "sidecar_" + uuid.uuid4().hex[:8]
    pg.query(f"CREATE ROLE {role} LOGIN IN ROLE onceward_sidecar")
    session = inbox_sql.Session(pg, role)
    yield session
    session.close()
    pg.query(f"DROP ROLE {role}")


def test_a_sidecar_does_not_see_other_sessions_unless_somebody_lets_it(stranger, house, app, pg):
    assert not pg.query("SELECT pg_has_role('onceward_sidecar', 'pg_read_all_stats', 'MEMBER')")[0][0]
    house.claim("m1")
    app.begin()
    app.complete(house.token("m1"))
    held = stranger.query("SELECT * FROM onceward.sidecar_lock_holder(%s, 'm1')", house.consumer)[0]
    assert (held.pid, held.state, held.age_ms) == (app.pid, None, 0)
    gauge = lambda: stranger.query("SELECT * FROM onceward.sidecar_gauge(%s)", house.consumer)[0]
    assert gauge().oldest_snapshot_ms == -1
    pg.query(f"GRANT pg_read_all_stats TO {stranger.connection.info.user}")
    wait_until(lambda: gauge().oldest_snapshot_ms >= 100, "the open transaction shows")
    held = stranger.query("SELECT * FROM onceward.sidecar_lock_holder(%s, 'm1')", house.consumer)[0]
    assert (held.pid, held.state) == (app.pid, "idle in transaction")


def test_what_letters_take_is_known(inbox):
    gauge = lambda: inbox.query("SELECT * FROM onceward.sidecar_gauge(%s)", inbox.consumer)[0]
    before = gauge().dead_letter_bytes
    inbox.bury(*((None, Letter(rowless=True, body=random.Random(i).randbytes(100_000))) for i in range(5)))
    assert gauge().dead_letter_bytes >= before + 500_000 and gauge().dead_letters == 5


def test_an_open_snapshot_is_known(inbox, app):
    app.begin("REPEATABLE READ")
    app.query("SELECT 1")
    wait_until(lambda: inbox.query("SELECT * FROM onceward.sidecar_gauge(%s)", inbox.consumer)[0].oldest_snapshot_ms >= 100,
               "the open snapshot shows")


# what an application may call


def test_a_token_completes_once(inbox, app):
    inbox.claim("m1", "m2")
    assert app.complete(inbox.token("m1")) == "completed"
    with Refused("OW003") as it:
        app.complete(inbox.token("m1"))
    assert "'m1'" in it.error.diag.message_detail and "answer with an error" in it.error.diag.message_hint
    with Refused("OW003") as it:
        app.extend(inbox.token("m1"), 1)
    assert "answer with an error" in it.error.diag.message_hint
    assert app.complete(inbox.token("m2"), "outcome ä") == "completed"
    assert inbox.row("m2").result == "outcome ä" and inbox.row("m2").completed_at
    app.rollback()
    inbox.claim("m3")
    app.begin()
    app.complete(inbox.token("m3"))
    with Refused("OW003"):
        app.complete(inbox.token("m3"))


@pytest.mark.parametrize("end, code", [("commit", "OW003"), ("rollback", None)])
def test_two_transactions_with_one_token(inbox, app, sessions, end, code):
    inbox.claim("m1")
    second = sessions(Application)
    outcome = []

    def run():
        try:
            outcome.append(second.complete(inbox.token("m1")))
        except psycopg2.Error as error:
            outcome.append(error.pgcode)

    app.begin()
    app.complete(inbox.token("m1"))
    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: inbox.value("SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s", second.pid), "the second waits")
    getattr(app, end)()
    thread.join(60)
    assert outcome == [code or "completed"]


def test_one_of_two_transactions_loses_to_a_takeover(inbox, other, app):
    """The takeover found the row free and has it locked; complete waits, and then sees the new token."""
    inbox.claim("m1")
    inbox.age("m1", token_expires_at=40_000)
    outcome = []

    def run():
        try:
            outcome.append(app.complete(inbox.token("m1")))
        except psycopg2.Error as error:
            outcome.append(error.pgcode)

    other.begin()
    assert answers(other.claim("m1")) == ["claimed"]
    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: inbox.value("SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s", app.pid), "complete waits")
    other.commit()
    thread.join(60)
    assert outcome == ["OW001"]
    assert other.row("m1").status == "processing"


def test_a_rolled_back_completion_never_was(inbox, app):
    inbox.claim("m1")
    app.begin()
    app.complete(inbox.token("m1"))
    app.rollback()
    assert inbox.row("m1").status == "processing"
    assert app.complete(inbox.token("m1")) == "completed"


def test_extend(inbox, app, sessions):
    inbox.claim("m1", "m2")
    token = inbox.token("m1")
    assert 39 < app.extend(token, 40) <= 40
    assert 39 < app.extend(token, 5) <= 40, "never shortened"
    for much in (10_000, 1e300, float("inf")):
        assert 58 < app.extend(token, much) <= 60, "capped by max_window"
    for nothing in (None, 0, -1, float("nan"), float("-inf")):
        with Refused("OW002"):
            app.extend(token, nothing)
    with Refused("OW001"):
        app.extend(token_text(inbox.consumer, "m1", str(uuid.uuid4())), 5)
    second = sessions(Application)
    app.begin()
    app.complete(inbox.token("m2"))
    assert 28 < quickly(lambda: second.extend(inbox.token("m2"), 50)) <= 30, "the present end, at once"


def test_a_lost_token_tells_nothing_about_the_row(inbox, app):
    inbox.claim("done", "dead")
    inbox.settle("done")
    inbox.bury(("dead", Letter()))
    details = set()
    for i in ("done", "dead", "gone"):
        for call in (app.complete, lambda t: app.extend(t, 5)):
            with Refused("OW001") as it:
                call(token_text(inbox.consumer, i, str(uuid.uuid4())))
            details.add(it.error.diag.message_detail.replace(f"'{i}'", "ID"))
    assert len(details) == 1


def not_tokens():
    """Everything near a token that is none."""
    consumer, secret = "c", bytes(range(16))
    good = token_text(consumer, "m1", str(uuid.UUID(bytes=secret)))
    yield from (None, "", "ow1.", "ow1..", "ow1.." + "A" * 22, good[1:], good[:-1], good + "A", good + "=", " " + good, good + "\n",
                "ow2" + good[3:], "OW1" + good[3:], good.replace(".", "_"), good + "." + good, good[:5] + "+" + good[6:],
                good[:5] + "ä" + good[6:], good[:-1] + "B", '"' + good + '"', good[:4] + "A" + good[4:])
    for key in (b"", b"\0", b"c", b"c\0", b"\0m", b"c\0m\0", b"c\0m\0x", b"c\0\0", b"c\0" + b"m" * 600, b"c\0\xff", b"c\0\xc0\x80", b"c\0\xc3",
                b"c\0\xe0\x80\x80", b"c\0\xed\xa0\x80", b"c\0\xf0\x80\x80\x80", b"c\0\xf4\x90\x80\x80", b"c\0\xf8\x88\x80\x80\x80",
                b"c\0a\xe2\x82", b"\xff\0m", b"c\0\xc3\0", b"\xc3\0\xa9", b"c\0\\\0", b"\\\0\0"):
        yield f"ow1.{base64url(key)}.{base64url(secret)}"
    # The spare bits of the last character must be zero: a token has one spelling.
    for name in (b"mm", b"mmm"):
        yield f"ow1.{base64url(b'c' + bytes(1) + name)[:-1]}B.{base64url(secret)}"


@pytest.mark.parametrize("text", [pytest.param(t, id=str(n)) for n, t in enumerate(not_tokens())])
def test_what_is_no_token_is_refused_in_words(app, text):
    for call in (lambda: app.complete(text), lambda: app.complete(text, "result"), lambda: app.extend(text, 1)):
        with Refused("OW002"):
            call()


def test_damaged_tokens_raise_nothing_else(inbox, app):
    inbox.claim("m1ä")
    good = inbox.token("m1ä")
    chance = random.Random(7)
    for _ in range(500):
        bad = list(good)
        for _ in range(chance.randint(1, 3)):
            bad[chance.randrange(len(bad))] = chance.choice("ABQgwz019-_.=+/ \\é")
        if "".join(bad) != good:
            with pytest.raises(psycopg2.Error) as raised:
                app.complete("".join(bad))
            assert raised.value.pgcode in ("OW001", "OW002"), "".join(bad)
    assert app.complete(good) == "completed"


def test_ids_of_every_kind_complete(inbox, app):
    ids = ["x", "\\", "\\000", "a\\\\b", "'", '"', "\x01\x7f", "é", "\u07ff\u0800\ud7ff\ue000\uffff", "\U00010000\U0010ffff", "ä" * 200, " "]
    inbox.claim(*ids)
    for i in ids:
        assert app.complete(inbox.token(i)) == "completed"


def test_a_result_that_is_too_long_is_refused(inbox, app):
    inbox.claim("m1")
    with Refused("OW002") as it:
        app.complete(inbox.token("m1"), "ä" * 32_769)
    assert "65538" in it.error.diag.message_detail
    assert app.complete(inbox.token("m1"), "ä" * 32_768) == "completed"


# roles


def test_an_application_may_do_nothing_else(pg, inbox, app):
    inbox.claim("m1")
    tables = [r[0] for r in pg.query("SELECT relname FROM pg_class WHERE relnamespace = 'onceward'::regnamespace AND relkind IN ('r', 'S')")]
    assert len(tables) == 27
    attempts = ["CREATE TABLE onceward.x ()", "DELETE FROM onceward.inbox", "UPDATE onceward.inbox SET status = 'completed'",
                "INSERT INTO onceward.consumer VALUES ('c', 'b', '/', 'q')", "TRUNCATE onceward.inbox", "SET ROLE onceward_sidecar"]
    attempts += [f"SELECT * FROM onceward.{table}" for table in tables]
    functions = pg.query("SELECT p.oid::regprocedure::text, p.proname, p.proargtypes::oid[]::regtype[]::text[] FROM pg_proc p"
                         " WHERE p.pronamespace = 'onceward'::regnamespace")
    allowed = set()
    for signature, name, types in functions:
        if app.value("SELECT has_function_privilege(%s, 'EXECUTE')", signature):
            allowed.add(signature)
        else:
            attempts.append(f"SELECT onceward.{name}({', '.join('NULL::' + t for t in types)})")
    assert allowed == {"onceward.complete(text)", "onceward.complete(text,text)", "onceward.extend(text,double precision)",
                       "onceward.complete_all(text[])", "onceward.complete_valid(text[])", "onceward.extend_all(text[],double precision)",
                       "onceward.publish(text,text,jsonb,text,text,jsonb,jsonb)", "onceward.publish(text,text,bytea,text,text,jsonb,jsonb)"}
    for attempt in attempts:
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            app.query(attempt)
    assert app.complete(inbox.token("m1")) == "completed"


def test_public_may_do_nothing(pg):
    granted = pg.query("SELECT p.oid::regprocedure FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a"
                       " WHERE p.pronamespace = 'onceward'::regnamespace AND a.grantee = 0")
    assert granted == []


def test_the_sidecar_has_no_ddl(inbox):
    for attempt in ("CREATE TABLE onceward.x ()", "ALTER TABLE onceward.inbox ADD x int", "DROP FUNCTION onceward.complete(text)",
                    "TRUNCATE onceward.inbox", "INSERT INTO onceward.schema_version VALUES (9, 9)"):
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            inbox.query(attempt)


def test_a_callers_search_path_changes_nothing(pg, inbox, app):
    """Functions of the same names, found first by the caller: none may run with the rights of the owner."""
    pg.query("CREATE SCHEMA hostile; GRANT USAGE ON SCHEMA hostile TO app_login")
    for signature in ("octet_length(text)", "length(text)", "translate(text, text, text)", "strpos(text, text)", "clock_timestamp()",
                      "current_setting(text)", "decode(text, text)"):
        pg.query(f"CREATE FUNCTION hostile.{signature} RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'hostile'; END $$")
    pg.query("CREATE FUNCTION hostile.same(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'hostile'; END $$;"
             " CREATE OPERATOR hostile.= (LEFTARG = text, RIGHTARG = text, FUNCTION = hostile.same)")
    inbox.claim("m1", "m2")
    app.query("SET search_path = hostile, pg_catalog, public")
    assert app.value("SELECT onceward.extend(%s, 5) IS NOT NULL", inbox.token("m1"))
    assert app.complete(inbox.token("m1")) == "completed"
    assert app.complete(inbox.token("m2"), "x") == "completed"
    with Refused("OW003"):
        app.complete(inbox.token("m2"))


# the session of the application


@pytest.mark.parametrize("settings", [
    "standard_conforming_strings = off", "search_path = ''", "bytea_output = escape", "client_encoding = LATIN1",
    "client_encoding = SQL_ASCII", "DateStyle = 'SQL, DMY'; SET IntervalStyle = sql_standard; SET TimeZone = 'Asia/Kathmandu'",
    "default_transaction_isolation = serializable", "extra_float_digits = -15; SET quote_all_identifiers = on; SET array_nulls = off",
    "enable_indexscan = off; SET enable_indexonlyscan = off; SET transform_null_equals = on", "synchronous_commit = off"])
def test_the_settings_of_the_session_change_no_answer(inbox, app, settings):
    ids = ["plain", "ä/é", "clef \U0001d11e", "back\\slash \\000", "'quoted'"]
    inbox.claim(*ids)
    for setting in settings.split("; SET "):
        app.query("SET " + setting)
    for message_id in ids:
        token = inbox.token(message_id)
        assert 39 < app.extend(token, 40) <= 40
        assert (app.complete(token) if message_id == "plain" else app.complete(token, "it's \\ done")) == "completed"
        assert inbox.row(message_id).result == (None if message_id == "plain" else "it's \\ done")
        for call in (lambda: app.complete(token), lambda: app.complete(token, "r"), lambda: app.extend(token, 1)):
            with Refused("OW003"):
                call()
        other = token_text(inbox.consumer, message_id, str(uuid.uuid4()))
        for call in (lambda: app.complete(other), lambda: app.complete(other, "r"), lambda: app.extend(other, 1)):
            with Refused("OW001"):
                call()
    for bad in ("", "ow1.x.y", "ow1xYQBixAAAAAAAAAAAAAAAAAAAAAA", token_text("a", b"\xff", str(uuid.uuid4())),
                token_text("", "b", str(uuid.uuid4())), token_text("a", b"b\0c", str(uuid.uuid4()))):
        for call in (lambda: app.complete(bad), lambda: app.complete(bad, "r"), lambda: app.extend(bad, 1)):
            with Refused("OW002"):
                call()


# durability


def test_what_commits_asynchronously(inbox, other, app):
    def setting(session, call, before="on"):
        session.begin()
        session.query(f"SET LOCAL synchronous_commit = '{before}'")
        call()
        after = session.value("SHOW synchronous_commit")
        session.commit()
        return after

    assert setting(inbox, lambda: inbox.claim("m1", "m2", "m3", "m4")) == "off"
    assert setting(inbox, lambda: inbox.claim("r1", "r2", transaction=False), "off") == "on"
    assert setting(inbox, lambda: inbox.claim("m1", "m5", again=False)) == "off", "m1 is held: nothing was taken"
    inbox.claim("m6", "m7", "m8", "m9")
    assert setting(inbox, lambda: inbox.claim("m6", again=True, window=40_000), "off") == "on"
    inbox.age("m7", token_expires_at=40_000)
    assert setting(other, lambda: other.claim("m7", "n1"), "off") == "on"
    for call in (lambda: inbox.fail("m8"), lambda: inbox.release("m9"), lambda: inbox.settle("m6"),
                 lambda: inbox.bury(("m2", Letter()))):
        assert setting(inbox, call, "off") == "on"
    assert setting(inbox, lambda: inbox.settle("m3"), "remote_apply") == "remote_apply"
    assert setting(app, lambda: app.extend(inbox.token("m4"), 5), "off") == "on"
    assert setting(app, lambda: app.complete(inbox.token("m4")), "off") == "on"


def test_whatever_races_each_message_is_completed_once(pg, request):
    """Windows of nothing: everybody takes over from everybody, fails, gives back, commits, rolls back, dies. No error but the fence's."""
    consumer, ids = request.node.name, [f"m{n:02}" for n in range(30)]
    done, errors = [], []

    def run(number):
        inbox, app, chance = Inbox(pg, consumer, str(number)), Application(pg), random.Random(number)
        start = time.monotonic()
        try:
            while time.monotonic() < start + (3 if len(done) > 5 else 60):  # a busy machine needs longer for as many
                some = chance.sample(ids, 8)
                got = [i for i, r in zip(sorted(some), inbox.claim(*some, window=0, grace=0, max_attempts=10 ** 6, alone=True)) if r.answer == "claimed"]
                for i in got:
                    what = chance.random()
                    if what < 0.2:
                        inbox.fail(i, delay=0, only_expired=chance.random() < 0.5)
                    elif what < 0.3:
                        inbox.release(i)
                    elif what < 0.9:
                        try:
                            app.begin()
                            app.complete(inbox.token(i))
                            if chance.random() < 0.03:
                                app.commit()
                                done.append(i)
                                with Refused("OW003"):
                                    app.complete(inbox.token(i))
                            else:
                                app.rollback()
                        except psycopg2.Error as error:
                            app.rollback()
                            assert error.pgcode == "OW001", error
        except BaseException as error:
            errors.append(error)
        finally:
            inbox.close()
            app.close()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert errors == []
    assert len(done) == len(set(done)) and len(done) > 5
    completed = pg.query("SELECT count(*) FROM onceward.inbox WHERE consumer = %s AND status = 'completed'", (consumer,))[0][0]
    assert completed == len(done)
