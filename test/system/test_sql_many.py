"""The functions of sql/, continued: several queues in a batch, whose holder is gone, whose fault an end was, presence and operator commands.
The database server is real, the times are moved, nothing waits."""

import json
import os
import random
import re
import uuid
from concurrent.futures import ThreadPoolExecutor

import psycopg2
import pytest

from rig import inbox_sql
from rig.inbox_sql import Application, Inbox, Letter, answers, each, fingerprint
from rig.wait import wait_until


@pytest.fixture(scope="module")
def pg(raw_postgres):
    """A database with the schema, for this file alone."""
    database = raw_postgres.create_database(f"many_{uuid.uuid4().hex[:8]}")
    inbox_sql.load(database)
    yield database
    raw_postgres.query(f'DROP DATABASE "{database.database}" WITH (FORCE)', database="postgres")


@pytest.fixture
def sessions(pg, request):
    """make(instance, number) or make(kind=Application): sessions that are closed at the end. Each test has a consumer of
    its own."""
    made = []

    def make(*arguments, kind=Inbox):
        made.append(kind(pg) if kind is Application else kind(pg, request.node.name, *arguments))
        return made[-1]

    yield make
    for session in made:
        session.close()


@pytest.fixture
def inbox(sessions):
    return sessions("a", 5)


# several queues in a batch


def of_two(inbox, call, items, *columns, head=("p", "q")):
    """Calls a function with items (queue 1 or 2, id, secret) of two consumers."""
    items = sorted(items)
    queues, ids, secrets = [i[0] for i in items], [i[1] for i in items], [i[2] for i in items]
    consumers = [f"{inbox.consumer} {h}" for h in head]
    return each(inbox.query(call, consumers, queues, ids, secrets, *([c] * len(items) for c in columns)), len(items))


CLAIM = ("SELECT * FROM onceward.sidecar_claim_many(true, 'a', 5, false, NULL, 2000, %s::text[], '{10s,60s}', '{20s,70s}', '{1,8}',"
         " '{3,3}', %s::integer[], %s::text[], %s::uuid[], %s::bytea[], NULL, %s::bigint[], NULL)")
LOOK = ("SELECT * FROM onceward.sidecar_look_many('a', 5, false, NULL, 2000, %s::text[], '{t,t}', '{10s,60s}', '{20s,70s}',"
        " %s::integer[], %s::text[], %s::uuid[], %s::bytea[])")
SETTLE = "SELECT * FROM onceward.sidecar_settle_many(%s::text[], %s::integer[], %s::text[], %s::uuid[], %s::integer[], NULL)"
FAIL = ("SELECT * FROM onceward.sidecar_fail_many(%s::text[], %s::integer[], %s::text[], %s::uuid[], NULL, NULL, %s::bigint[], NULL, NULL,"
        " NULL, NULL)")
RELEASE = "SELECT * FROM onceward.sidecar_release_many(%s::text[], %s::integer[], %s::text[], %s::uuid[], NULL, %s::bigint[], NULL, NULL)"


def test_one_batch_has_the_same_id_of_two_queues(inbox):
    """Each with its own window, its own number of attempts, and its own row."""
    body = inbox_sql.Binary(fingerprint(b"body"))
    items = [(q, i, str(uuid.uuid4())) for q in (1, 2) for i in ("m1", "m2", "m3")]
    assert answers(of_two(inbox, CLAIM, items, body, 0)) == ["claimed"] * 6
    windows = [round(row.wait_ms / 1000) for row in of_two(inbox, LOOK, items, body)]
    assert windows == [10] * 3 + [60] * 3
    assert answers(of_two(inbox, SETTLE, [items[0], items[4]], 200)) == ["completed"] * 2
    assert answers(of_two(inbox, FAIL, [items[1], items[3]], 0)) == ["failed"] * 2
    assert answers(of_two(inbox, RELEASE, [items[2], items[5]], 0)) == ["released"] * 2
    rows = {(r.consumer[-1], r.message_id): r.status for r in inbox.query(
        "SELECT * FROM onceward.inbox WHERE consumer LIKE %s || ' _'", inbox.consumer.replace("_", r"\_"))}
    assert rows == {("p", "m1"): "completed", ("p", "m2"): "failed", ("p", "m3"): "waiting",
                    ("q", "m1"): "failed", ("q", "m2"): "completed", ("q", "m3"): "waiting"}
    anew = [(q, i, str(uuid.uuid4())) for q, i, _ in items]
    # One attempt is all that the first queue gives.
    assert answers(of_two(inbox, CLAIM, anew, body, 0)) == ["completed", "exhausted", "claimed", "claimed", "completed", "claimed"]


def test_what_is_completed_has_one_row_and_the_others_their_own(inbox):
    ids = [f"m{n:02}" for n in range(40)]
    inbox.claim(*ids)
    inbox.settle(*ids[::2])
    rows = inbox.query(LOOK, [inbox.consumer, "-"], [1] * 40, ids, [None] * 40, [inbox_sql.Binary(fingerprint(b"body"))] * 40)
    assert sorted(row.ord for row in rows) == [-20] + list(range(2, 41, 2))
    assert {row.ord: row.answer for row in rows}[-20] == "completed"


# the end of a holder


def test_an_end_without_a_word_is_no_attempt(inbox, sessions):
    """Taken over: attempt stays, takeovers counts; twice beside others, then only alone."""
    other = sessions("b")
    inbox.claim("m1")
    for takeovers, alone in ((1, False), (2, True), (3, True), (4, True)):
        inbox.age("m1", token_expires_at=40_000)
        row = other.claim("m1", alone=alone)[0]
        assert (row.answer, row.attempt, row.takeovers, row.taken_over) == ("claimed", 1, takeovers, True)
        assert bool(inbox.row("m1").alone) == alone
    assert answers(other.fail("m1", delay=0)) == ["failed"]
    row = other.claim("m1")[0]
    assert (row.answer, row.attempt, row.takeovers, row.taken_over) == ("claimed", 2, 4, False)
    other.release("m1")
    assert inbox.row("m1").attempt == 1 and inbox.row("m1").takeovers == 4


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("swept", [False, True], ids=["expired", "swept"])
def test_a_negative_count_of_takeovers_counts_as_none(inbox, sessions, alone, swept):
    """Somebody has changed the row by hand."""
    other = sessions("b")
    inbox.register((inbox.consumer, "/", inbox.consumer, None))
    inbox.claim("m1", alone=alone)
    inbox.query("UPDATE onceward.inbox SET takeovers = -5 WHERE consumer = %s", inbox.consumer)
    inbox.age("m1", token_expires_at=70_000)
    if swept:
        assert inbox.housekeep(late=30_000).swept == 1
    assert other.claim("m1")[0][1:4] == ("claimed", 1, 1)


def test_an_earlier_start_whose_count_of_takeovers_is_negative_has_ended(inbox, sessions):
    inbox.claim("m1")
    inbox.query("UPDATE onceward.inbox SET takeovers = -5 WHERE consumer = %s", inbox.consumer)
    later = sessions()
    later.number = inbox.number + 1
    assert later.claim("m1", own=True, max_window=30_000)[0][1:4] == ("claimed", 1, 1)


def test_holders_who_had_other_work_count_up_to_two(inbox, sessions):
    """A neighbour of a killer: its holder was not alone, however often that ended."""
    other = sessions("b")
    inbox.claim("m1")
    for takeovers in (1, 2, 2, 2):
        inbox.age("m1", token_expires_at=40_000)
        assert other.claim("m1", alone=True)[0].takeovers == takeovers
        # It went beside others after all.
        inbox.query("UPDATE onceward.inbox SET alone = NULL WHERE consumer = %s", inbox.consumer)


def test_what_was_taken_over_once_is_taken_over_again_alone_only(inbox, sessions):
    other = sessions("b")
    inbox.claim("m1", "m2")
    for i in ("m1", "m2"):
        inbox.age(i, token_expires_at=40_000)
    assert [r.takeovers for r in other.claim("m1", "m2")] == [1, 1]
    for i in ("m1", "m2"):
        inbox.age(i, token_expires_at=40_000)
    before = inbox.row("m1")
    due = inbox.claim("m1", "m3")
    assert [(r.answer, r.takeovers) for r in due] == [("due", 1), ("claimed", 0)]
    assert inbox.row("m1") == before
    look = inbox.look("m1")[0]
    assert (look.answer, look.takeovers) == ("due", 1)
    assert inbox.claim("m1", alone=True)[0].takeovers == 2
    # Given back by its holder, it may go beside others: that one lived.
    other.release("m2")
    assert inbox.claim("m2")[0][1:4] == ("claimed", 1, 1)


@pytest.mark.parametrize("swept", [False, True], ids=["expired", "swept"])
def test_it_dies_when_max_attempts_holders_have_ended_with_it_alone(inbox, sessions, swept):
    other = sessions("b")
    inbox.register((inbox.consumer, "/", inbox.consumer, None))

    def end():
        inbox.age("m1", token_expires_at=70_000)
        if swept:
            assert inbox.housekeep(late=30_000).swept == 1

    inbox.claim("m1", max_attempts=2)
    for takeovers in (1, 2, 3, 4):
        end()
        assert other.claim("m1", alone=True, max_attempts=2)[0][1:4] == ("claimed", 1, takeovers)
        assert answers(inbox.bury(("m1", Letter(exhausted=True)), max_attempts=2)) == ["lost"]
    assert answers(inbox.claim("m1", alone=True, max_attempts=2)) == ["held"]
    end()
    before = inbox.row("m1")
    row = inbox.claim("m1", alone=True, max_attempts=2)[0]
    assert (row.answer, row.attempt, row.takeovers) == ("exhausted", 1, 4)
    assert inbox.claim("m1", max_attempts=2)[0].answer == "exhausted" and inbox.row("m1") == before
    assert answers(inbox.look("m1")) == ["due"]
    assert answers(inbox.bury(("m1", Letter(exhausted=True, attempts=5)), max_attempts=3)) == ["lost"]
    assert answers(inbox.bury(("m1", Letter(exhausted=True, attempts=5)), max_attempts=2)) == ["buried"]
    assert inbox.letters()[0].attempts == 5


def test_attempts_used_up_are_those_that_failed(inbox, sessions):
    """The last attempt's holder ended: it has not failed yet."""
    other = sessions("b")
    inbox.claim("failed", "expired", max_attempts=1)
    inbox.fail("failed")
    inbox.age("expired", token_expires_at=40_000)
    rows = other.claim("expired", "failed", max_attempts=1)
    assert [(r.answer, r.attempt, r.takeovers) for r in rows] == [("claimed", 1, 1), ("exhausted", 1, 0)]
    assert answers(inbox.bury(("failed", Letter(exhausted=True)), max_attempts=1)) == ["buried"]
    other.fail("expired", delay=0)
    assert answers(inbox.claim("expired", max_attempts=1)) == ["exhausted"]


def test_a_locked_exhausted_row_is_not_buried(inbox, sessions):
    app = sessions(kind=Application)
    inbox.claim("m1")
    inbox.query("UPDATE onceward.inbox SET takeovers = 10 WHERE consumer = %s", inbox.consumer)
    inbox.age("m1", token_expires_at=40_000)
    app.begin()
    app.complete(inbox.token("m1"))
    assert answers(inbox.bury(("m1", Letter(exhausted=True)))) == ["locked"]
    app.rollback()
    assert answers(inbox.bury(("m1", Letter(exhausted=True, content_header=b"\x00\x3c\xff")))) == ["buried"]
    assert bytes(inbox.letters()[0].content_header) == b"\x00\x3c\xff"


# crashes and charges


def test_crashes_and_unproven_charges_are_kept(inbox):
    inbox.claim("m1", "m2")
    assert inbox.row("m1").crashes is None
    inbox.fail("m1", delay=0, crashes=3, unproven_step=0)
    inbox.release("m2", crashes=1)
    rows = inbox.claim("m1", "m2")
    assert [(r.answer, r.crashes, r.unproven_step) for r in rows] == [("claimed", 3, 0), ("claimed", 1, 0)]
    assert 0 <= rows[0].unproven_ms < 20_000 and rows[1].unproven_ms is None
    inbox.age("m1", unproven_at=60_000)
    assert 60_000 <= inbox.look("m1")[0].unproven_ms < 80_000 and inbox.look("m1")[0].crashes == 3
    inbox.release("m1")
    assert inbox.look("m1")[0].crashes == 3 and inbox.look("m1")[0].unproven_ms >= 60_000, "nothing said, nothing changed"
    assert inbox.claim("m1")[0].crashes == 3
    inbox.release("m1", unproven_step=2, crashes=0)
    row = inbox.look("m1")[0]
    assert (row.crashes, row.unproven_step) == (0, 2) and row.unproven_ms < 20_000
    not_due = inbox.claim("m2")[0]
    assert (not_due.answer, not_due.crashes) == ("held", 1), "whoever finds it held knows it too"
    inbox.age("m1", unproven_at=-60_000)
    assert inbox.look("m1")[0].unproven_ms == 0, "the clock was set back"


def test_a_failure_can_be_given_back(inbox):
    inbox.claim("m1")
    assert answers(inbox.fail("m1", give_back=True, crashes=1)) == ["released"]
    row = inbox.row("m1")
    assert (row.status, row.attempt, row.crashes, row.last_error) == ("waiting", 0, 1, "answered 500")


def all_set(inbox, message_id):
    inbox.query("UPDATE onceward.inbox SET crashes = 3, takeovers = 4, alone = true, unproven_at = now(), unproven_step = 2"
                " WHERE consumer = %s AND message_id = %s", inbox.consumer, message_id)


def nothing_is_set(inbox, message_id):
    row = inbox.row(message_id)
    return [row.crashes, row.takeovers, row.alone, row.unproven_at, row.unproven_step] == [None] * 5


def test_who_is_brought_back_from_the_dead_begins_anew(inbox):
    inbox.claim("m1", "m2")
    for i in ("m1", "m2"):
        all_set(inbox, i)
        inbox.bury((i, Letter(deaths=1)))
    assert inbox.value("SELECT onceward.sidecar_redrive(%s)", inbox.letters()[0].id) == "reset"
    assert nothing_is_set(inbox, "m1") and not nothing_is_set(inbox, "m2")
    assert answers(inbox.claim("m2", deaths=2)) == ["claimed"]
    assert nothing_is_set(inbox, "m2")


# who is dead


def test_what_an_earlier_life_has_is_taken_over_at_once(inbox, sessions):
    before, same_life, later, stranger = sessions("a", 4), sessions("a", 5), sessions("a", 6), sessions("b", 9)
    before.claim("m1", "m2", "m3", "m4", "m5")
    stranger.claim("m6")
    later.claim("m7")
    assert answers(inbox.claim("m1")) == ["held"], "only whoever knows that nobody else has its name"
    assert answers(stranger.claim("m1", own=True)) == ["held"]
    assert answers(before.claim("m1", own=True)) == ["held"], "one's own life"
    assert answers(inbox.claim("m6", "m7", own=True)) == ["held", "held"]
    assert answers(inbox.claim("m1", own=True, transaction=False)) == ["held"], "the fence is the application's"
    taken = inbox.claim("m1", own=True)[0]
    assert (taken.answer, taken.attempt, taken.takeovers, taken.taken_over) == ("claimed", 1, 1, True)
    assert answers(before.settle("m1")) == ["lost"]
    # A second time it waits for its window, and goes alone.
    held = later.claim("m1", own=True, alone=True)[0]
    assert held.answer == "held" and 29_000 < held.wait_ms <= 32_000
    # The application has asked for more time: it is at work.
    app = sessions(kind=Application)
    app.extend(before.token("m2"), 40)
    held = inbox.claim("m2", own=True)[0]
    assert held.answer == "held" and 40_000 < held.wait_ms <= 42_000
    assert answers(same_life.look("m3", own=True)) == ["due"]


def test_what_an_instance_that_is_gone_has_is_taken_over_at_once(inbox, sessions):
    gone, app = sessions("gone", 3), sessions(kind=Application)
    gone.claim("m1", "m2", "m3")
    app.extend(gone.token("m2"), 40)
    assert answers(inbox.claim("m1", gone=["others", "on"])) == ["held"]
    assert answers(inbox.claim("m1", gone=["gone"], transaction=False)) == ["held"]
    assert answers(inbox.claim("m2", gone=["gone"])) == ["held"]
    assert inbox.claim("m1", gone=["x", "gone"])[0][1:4] == ("claimed", 1, 1)
    # However often: whoever is gone does not come back to it.
    inbox.query("UPDATE onceward.inbox SET takeovers = 1 WHERE consumer = %s AND message_id = 'm3'", inbox.consumer)
    assert answers(inbox.claim("m3", gone=["gone"])) == ["due"]
    assert inbox.claim("m3", gone=["gone"], alone=True)[0][1:4] == ("claimed", 1, 2)


def test_a_holder_without_a_number_proves_nothing(inbox):
    inbox.claim("m1", "m2")
    for i, holder in (("m1", "a"), ("m2", "gone")):
        inbox.query("UPDATE onceward.inbox SET claimed_by = %s WHERE consumer = %s AND message_id = %s", holder, inbox.consumer, i)
    rows = inbox.claim("m1", "m2", own=True, gone=["gone"])
    assert [(r.answer, r.detail, r.namesake) for r in rows] == [("held", "a", True), ("held", "gone", False)]


@pytest.mark.parametrize("holder, namesake", [("a/5", False), ("a/4", False), ("a/6", True), ("a/99999999999999999999", True), ("a", True),
                                              ("a/x", True), ("a/b/6", False), ("aa/6", False), ("A/6", False), ("/6", False), ("", False)])
def test_a_namesake_is_told(inbox, holder, namesake):
    inbox.claim("m1")
    inbox.query("UPDATE onceward.inbox SET claimed_by = %s WHERE consumer = %s", holder, inbox.consumer)
    inbox.secrets.clear()
    for row in (inbox.look("m1")[0], inbox.claim("m1", own=False)[0]):
        assert (row.answer, row.namesake, row.detail) == ("held", namesake, holder)


def test_names_that_look_like_others_are_not_taken_over(inbox, sessions):
    pod = sessions("a/b", 7)
    for holder in ("a/1x", "a/", "a//1", "a/-1", "a/b", "a/b/c/1", "ab/1", "a/b/99999999999999999999"):
        inbox.claim(holder)
        inbox.query("UPDATE onceward.inbox SET claimed_by = %s WHERE consumer = %s AND message_id = %s", holder, inbox.consumer, holder)
        assert answers(pod.claim(holder, own=True, gone=["a/b/c/1", "1", "", "ab/1"])) == ["held"], holder
        assert answers(inbox.look(holder, own=True, secret=str(uuid.uuid4()))) == ["held"], holder
    assert answers(pod.look("ab/1", gone=["ab"])) == ["due"]


def test_a_look_says_what_a_claim_would(inbox, sessions):
    """held by the one is held by the other, for as long; due is whatever is claimed, or must be given up, or go alone."""
    app, chance = sessions(kind=Application), random.Random(3)
    holders = [sessions(instance, number) for instance, number in (("a", 4), ("a", 5), ("a", 6), ("b", 1), ("c", 2))]
    seen = set()
    for n in range(300):
        i, holder = f"m{n:03}", chance.choice(holders)
        holder.claim(i)
        inbox.query("UPDATE onceward.inbox SET takeovers = %s, alone = %s WHERE consumer = %s AND message_id = %s",
                    chance.choice((None, None, 1, 2, 3, 4, 5)), chance.random() < 0.5, inbox.consumer, i)
        if chance.random() < 0.3:
            app.extend(holder.token(i), chance.choice((31, 50)))
        inbox.age(i, token_expires_at=chance.choice((0, 0, 31_000, 33_000, 70_000)))
        what = chance.random()
        if what < 0.1:
            holder.fail(i, delay=chance.choice((0, 60_000)))
        elif what < 0.2:
            holder.release(i, delay=chance.choice((0, 60_000)))
        elif what < 0.25:
            inbox.query("UPDATE onceward.inbox SET status = 'failed', swept = true, next_attempt_at = clock_timestamp()"
                        " WHERE consumer = %s AND message_id = %s", inbox.consumer, i)
        asks = dict(own=chance.random() < 0.5, gone=chance.choice((None, ["c"])), transaction=chance.random() < 0.8)
        inbox.secrets[i] = str(uuid.uuid4())
        look = inbox.look(i, **asks)[0]
        claim = inbox.claim(i, max_attempts=2, alone=chance.random() < 0.5, **asks)[0]
        expected = {"held": {"held"}, "not_due": {"not_due"}, "due": {"claimed", "exhausted", "due"}}[look.answer]
        assert claim.answer in expected, (look, claim, asks, inbox.row(i))
        if look.answer in ("held", "not_due"):
            assert abs(look.wait_ms - claim.wait_ms) < 5_000 and (look.takeovers, look.crashes) == (claim.takeovers, claim.crashes)
        seen.add((look.answer, claim.answer))
    assert seen == {("held", "held"), ("not_due", "not_due"), ("due", "claimed"), ("due", "exhausted"), ("due", "due")}


# which queue a name belongs to


def test_names_are_registered_together(inbox, sessions):
    names = [f"{inbox.consumer} {x}" for x in "abc"]
    assert inbox.register(*((name, "/", name, None) for name in names)) == []
    assert inbox.register(*((name, "/", name, None) for name in names)) == []
    rows = inbox.register((names[0], "/", "other", None), (names[1], "v", names[1], None), (names[2], "/", names[2], "x"))
    assert [tuple(r)[:4] for r in rows] == [(1, "refused", names[0], "/"), (2, "refused", names[1], "/")]
    rows = inbox.register((names[0], "/", "other", names[0]), (names[1], "v", names[1], names[1]), (names[2], "/", "other", "x"))
    assert [tuple(r)[:4] for r in rows] == [(3, "refused", names[2], "/")]
    assert [tuple(r)[:4] for r in inbox.register((names[0], "/", names[0], None))] == [(1, "refused", "other", "/")]
    assert inbox.register((names[0], "/", "other", names[0]), (names[1], "v", names[1], None)) == []
    # One name for two queues of one process: the first has it.
    one = inbox.consumer + " d"
    assert [tuple(r)[:4] for r in inbox.register((one, "/", "first", None), (one, "/", "second", None))] == [(2, "refused", "first", "/")]
    # Somebody is changing the record.
    other = sessions("b")
    other.begin()
    other.query("SELECT FROM onceward.consumer WHERE consumer = %s FOR UPDATE", names[2])
    assert [tuple(r)[:4] for r in inbox.register((names[2], "/", "new", names[2]), (names[1], "v", names[1], None))] == [
        (1, "busy", names[2], "/")]
    other.rollback()
    assert inbox.register((names[2], "/", "new", names[2])) == []


def test_a_consumer_belongs_to_one_broker(inbox):
    """Two brokers, one database: a message of the second would be acked unseen as a duplicate of the first's."""
    name = inbox.consumer
    assert inbox.register((name, "rabbit@a", "/", name, None)) == []
    assert [tuple(r) for r in inbox.register((name, "rabbit@b", "/", name, None))] == [(1, "refused", name, "/", "rabbit@a", None)]
    assert [r.answer for r in inbox.register((name, "rabbit@b", "/", name, "x"))] == ["refused"]
    assert [r.answer for r in inbox.register((name, None, "/", name, None))] == ["busy"], "the broker is not connected yet"
    assert [r.answer for r in inbox.register((name, None, "/", "x", None))] == ["refused"]
    assert [r.answer for r in inbox.register((name + " new", None, "/", "x", None))] == ["busy"]
    assert inbox.register((name, "rabbit@b", "/", name, name)) == []
    assert [r.answer for r in inbox.register((name, "rabbit@a", "/", name, None))] == ["refused"]


def test_a_queue_belongs_to_one_consumer(inbox):
    """Under another name its messages would be done again: unless takes_over names the former, under whose name the rows stay."""
    old, new = inbox.consumer, inbox.consumer + " new"
    assert inbox.register((old, "/", old, None)) == []
    assert [tuple(r) for r in inbox.register((new, "/", old, None))] == [(1, "taken", None, None, None, old)]
    assert [r.answer for r in inbox.register((new, "/", old, "x"))] == ["taken"]
    for _ in range(2):
        assert [(r.answer, r.former) for r in inbox.register((new, "/", old, old))] == [("former", old)]
    assert inbox.register((old, "/", old, old)) == [], "it goes on under this name"
    # Another vhost, another broker: another queue.
    assert inbox.register((new + " v", "v", old, None), (new + " b", "rabbit@b", "/", old, None)) == []
    # A name that moves may not move onto the queue of another one.
    assert inbox.register((new, "/", new, None)) == []
    assert [(r.answer, r.former) for r in inbox.register((new, "/", old, new))] == [("taken", old)]
    assert inbox.query("SELECT queue FROM onceward.consumer WHERE consumer = %s", new) == [(new,)]


@pytest.mark.parametrize("queue, wider", [("{}", None), ("{}-{{0..3}}", "{}-{{0..5}}")], ids=["queue", "range"])
def test_a_replica_with_another_order_is_refused(inbox, sessions, queue, wider):
    name, queue = inbox.consumer, queue.format(inbox.consumer)

    def register(order_key, queue=queue, takes_over=None):
        return [r.answer for r in inbox.register((name, "/", queue, takes_over), order_key=order_key)]

    def recorded():
        return tuple(inbox.query("SELECT queue, order_key FROM onceward.consumer WHERE consumer = %s", name)[0])

    assert register("a") == [] and recorded() == (queue, "a")
    assert register("") == ["mode"] and register("", takes_over="x") == ["mode"] and recorded() == (queue, "a")
    assert inbox.register((name, "/", queue, None), order_key="b")[0].former == "a" and register("b") == ["mode"]
    running = sessions("running")
    for state in ({"order_key": "a", "state": "paused"}, {"order_key": "a"}):
        running.presence(json.dumps([{"consumer": name, **state}]), consumers=[name])
        refused, = inbox.register((name, "/", queue, queue), order_key="b")
        assert (refused.answer, refused.former) == ("running", "a") and recorded() == (queue, "a")
    for state in ({}, {"order_key": "b"}, {"order_key": "a", "state": "drained"}):  # refused itself, or at its end
        running.presence(json.dumps([{"consumer": name, **state}]), consumers=[name])
    assert register("b", takes_over=queue) == [] and recorded() == (queue, "b") and register("a") == ["mode"]
    assert register("a", takes_over=queue) == [] and recorded() == (queue, "a")
    assert register(None) == [] and recorded() == (queue, "a")  # a caller that does not know
    if wider:
        wider = wider.format(name)
        assert register("", wider) == ["mode"] and register("a", wider) == ["order"] and recorded() == (queue, "a")
    locked = sessions("l")
    locked.begin()
    locked.query("SELECT FROM onceward.consumer WHERE consumer = %s FOR UPDATE", name)
    assert register("", takes_over=queue) == ["busy"]
    locked.rollback()
    assert register("", takes_over=queue) == [] and recorded() == (queue, "")
    assert register("a") == ["mode"] and register("") == []
    if wider:
        assert register("", wider) == ["range"] and recorded() == (wider, "")
        assert register("a", wider) == ["mode"]
        queue = wider
    assert register("a", queue, takes_over=queue) == [] and recorded() == (queue, "a")


def test_a_last_attempt_without_a_transaction_keeps_its_time_for_every_replica(inbox, sessions):
    """Its application may still be at work on it, and the next message of its key waits for that."""
    other = sessions("other")
    inbox.claim("m", transaction=False, max_attempts=1)
    assert answers(inbox.fail("m", delay=60_000)) == ["failed"]
    assert answers(other.claim("m", transaction=False, max_attempts=1)) == ["exhausted"], "no message waits for its key"
    assert inbox.register((inbox.consumer, "/", inbox.consumer, None), order_key="a") == []
    waits, = other.claim("m", transaction=False, max_attempts=1)
    assert waits.answer == "not_due" and 50_000 < waits.wait_ms <= 60_000
    assert answers(other.claim("m", max_attempts=1)) == ["exhausted"], "a token that has ended can commit nothing"
    inbox.query("UPDATE onceward.inbox SET next_attempt_at = clock_timestamp() WHERE consumer = %s", inbox.consumer)
    assert answers(other.claim("m", transaction=False, max_attempts=1)) == ["exhausted"]


def test_claims_of_a_replica_that_registered_before_a_change_of_the_order_fail(inbox, sessions):
    """Also where no presence row shows the replica, or it stood still for longer than a row counts."""
    name, former, neighbour = inbox.consumer, sessions("former"), sessions("neighbour")
    neighbour.consumer = name + "2"
    assert former.register((name, "/", name, None), order_key="a") == [] and former.claim("m1")[0].answer == "claimed"
    assert neighbour.register((name + "2", "/", name + "2", None), order_key="a") == []
    assert inbox.register((name, "/", name, name), order_key="b") == []
    with pytest.raises(psycopg2.Error) as refused:
        former.claim("m2")
    assert refused.value.pgcode == "OW010" and inbox.row("m2") is None
    assert inbox.claim("m2")[0].answer == neighbour.claim("m1")[0].answer == "claimed"
    assert answers(former.settle("m1")) == ["completed"]  # the right to finish it was given before
    assert [r.answer for r in former.register((name, "/", name, None), order_key="a")] == ["mode"]
    assert former.register((name, "/", name, None), order_key="b") == [] and former.claim("m3")[0].answer == "claimed"


def test_a_change_of_the_order_waits_for_claims_in_flight(inbox, sessions):
    name, former = inbox.consumer, sessions("former")
    assert former.register((name, "/", name, None), order_key="a") == []
    former.begin()
    former.claim("m1")
    assert [r.answer for r in inbox.register((name, "/", name, name), order_key="b")] == ["busy"]
    assert inbox.order_changes == former.order_changes
    former.commit()
    assert inbox.register((name, "/", name, name), order_key="b") == [] and inbox.order_changes == former.order_changes + 1
    assert inbox.register((name, "/", name, name), order_key="b") == [] and inbox.order_changes == former.order_changes + 1


def test_two_who_register_a_queue_at_once_get_one_consumer(inbox, sessions):
    """Each sees no other consumer of it: under two names, messages would be done twice."""
    other, name = sessions("b"), inbox.consumer
    registered = ThreadPoolExecutor(1)

    def at_once(mine, yours):
        inbox.begin()
        assert inbox.register(mine) == []
        rows = registered.submit(other.register, yours)
        wait_until(lambda: sessions("c").value("SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted", other.pid), "it waits", deadline=10)
        inbox.commit()
        return [(r.answer, r.former) for r in rows.result(timeout=10)]

    with registered:
        assert at_once((name + " a", "/", name, None), (name + " b", "/", name, None)) == [("taken", name + " a")]
        assert inbox.register((name + " c", "/", "before " + name, None)) == []
        mine, yours = (name + " d", "/", "new " + name, None), (name + " c", "/", "new " + name, "before " + name)
        assert at_once(mine, yours) == [("taken", name + " d")]
    assert inbox.value("SELECT queue FROM onceward.consumer WHERE consumer = %s", name + " c") == "before " + name


def test_message_ids_of_any_text_are_forgotten(inbox):
    inbox.register((inbox.consumer, "/", inbox.consumer, None))
    for i in ("\U0010ffffx", "\U0010ffff7", "\U0010ffff" * 63 + "\ud7ff"):
        inbox.claim(i), inbox.settle(i)
    n_rows, after, answer = 0, "", "more"
    while answer == "more":
        answer, n, _, after = inbox.query("SELECT * FROM onceward.consumer_forget(%s, false, %s)", inbox.consumer, after)[0]
        n_rows += n
    assert (answer, n_rows) == ("done", 3)


def test_a_consumer_is_forgotten_in_slices_but_for_what_is_at_work(inbox, others):
    pg, name = inbox, inbox.consumer
    inbox.register((name, "/", name, None), (name + "2", "/", name + "2", None))
    row = ("INSERT INTO onceward.inbox (consumer, message_id, status, attempt, token, fingerprint, received_at, token_expires_at, max_expires_at,"
           " claimed_by) SELECT %s, 'm' || n, 'completed', 1, gen_random_uuid(), '', now(), now(), now(), repeat('x', 1500) FROM generate_series(1, %s) n")
    pg.query(row, name, 2500), pg.query(row, name + "2", 3)
    assert pg.value("SELECT pg_relation_size('onceward.inbox') / 8192") > 1000
    pg.query("UPDATE onceward.inbox SET status = 'processing', token_expires_at = now() + interval '1 min' WHERE (consumer, message_id) = (%s, 'm7')", name)

    def forget(after):
        return tuple(pg.query("SELECT * FROM onceward.consumer_forget(%s, true, %s)", name, after)[0])

    def forget_all():
        """The number of rows in each slice, and the last answer."""
        answer, n_rows, _, after = forget("")
        removed = []
        while answer == "more":
            removed.append(n_rows)
            answer, n_rows, _, after = forget(after)
        return removed, (answer, n_rows)

    def left():
        return pg.query("SELECT count(*) FROM onceward.inbox WHERE consumer = %s", name)[0][0]

    replica = others("r")
    replica.presence(json.dumps([{"consumer": "x"}, {"consumer": name}]))
    assert forget("") == ("in_use", 0, 0, "r") and left() == 2500
    replica.query("UPDATE onceward.replica SET seen_at = seen_at - interval '601 s'")
    removed, last = forget_all()
    assert sum(removed) == 2499 and len(removed) > 1 and max(removed) < 2499 and last == ("held", 1) and left() == 1
    assert pg.query("SELECT consumer FROM onceward.consumer WHERE consumer = %s", name)
    pg.query("UPDATE onceward.inbox SET token_expires_at = now() WHERE consumer = %s", name)
    removed, last = forget_all()
    assert sum(removed) == 1 and last == ("done", 0)
    assert pg.query("SELECT consumer FROM onceward.consumer WHERE consumer LIKE %s", name + "%") == [(name + "2",)]
    assert pg.query("SELECT count(*) FROM onceward.inbox WHERE consumer = %s", name + "2")[0][0] == 3


# letters


def test_a_letter_without_a_row_is_known_by_its_token(inbox, sessions):
    """The content of two copies does not show whether they are one message."""
    letter = Letter(reason="no_message_id", rowless=True)

    def bury(*tokens, **changes):
        rows = []
        for token in tokens:
            inbox.secrets[None] = token
            rows += inbox.bury((None, letter._replace(**changes)))
        assert answers(rows) == ["buried"] * len(rows)
        return [r.letter_id for r in rows]

    tokens = [str(uuid.uuid4()) for _ in range(3)]
    first = bury(*tokens)
    assert len(set(first)) == 3
    assert bury(*tokens, redelivered=True) == first
    assert bury(*tokens, redelivered=True, headers='{"x-delivery-count": 2}', body=b"it is the token that counts") == first
    assert not set(bury(*(str(uuid.uuid4()) for _ in range(2)), redelivered=True)) & set(first)
    # A program that offers none knows a copy by what it says, and finds no letter of one that does.
    zeros = bury(str(uuid.UUID(int=0)))
    assert zeros[0] not in first and bury(None, str(uuid.UUID(int=0)), redelivered=True) == zeros * 2
    # The first call is still at work when its connection is lost, and another repeats it.
    other = sessions("b")
    inbox.begin()
    inbox.secrets[None] = other.secrets[None] = str(uuid.uuid4())
    inbox.bury((None, letter))
    assert answers(other.bury((None, letter._replace(redelivered=True)))) == ["locked"]
    inbox.commit()
    assert len(inbox.letters()) == 7 and answers(other.bury((None, letter._replace(redelivered=True)))) == ["buried"]
    assert len(inbox.letters()) == 7


# a clock that was ahead


MOST = 604_800_000  # ms: the longest max_window that a configuration may have


def ahead(inbox, *ids, by=MOST):
    for i in ids:
        inbox.age(i, token_expires_at=-by, max_expires_at=-by)


def test_a_token_that_ends_in_more_than_a_week_ends_with_the_longest_window(inbox, sessions):
    """The database's clock was a week ahead when it was given out: its holder is gone, and others wait for one window, not for a week."""
    other = sessions("b")
    inbox.claim("m1", "bit", "own")
    ahead(inbox, "m1", "own")
    ahead(inbox, "bit", by=MOST - 29_000)
    look = other.look("m1", secret=str(uuid.uuid4()))[0]
    assert look.answer == "held" and look.wait_ms == 64_000
    rows = other.claim("bit", "m1")
    assert [r.answer for r in rows] == ["held", "held"] and rows[0].wait_ms == 64_000 and 61_000 < rows[1].wait_ms <= 62_000
    assert 61_000 < other.claim("m1")[0].wait_ms <= 62_000, "it stays so"
    inbox.age("m1", token_expires_at=63_000)
    assert other.claim("m1")[0].taken_over
    assert inbox.look("own")[0].wait_ms == 60_000 and inbox.claim("own", again=True)[0].answer == "claimed"
    assert answers(inbox.fail("own", only_expired=True)) == ["failed"]
    before = inbox.row("bit")
    assert (before.token_expires_at - before.received_at).total_seconds() > 604_800
    assert answers(inbox.fail("bit", only_expired=True)) == ["extended"]


def test_a_replica_with_a_smaller_max_window_ends_no_token(inbox, sessions):
    """A rollout has made it smaller: the other replica's application may be at work for a week."""
    other = sessions("b")
    inbox.claim("m1", "m2", window=MOST, max_window=MOST)
    before = inbox.row("m1")
    assert answers(other.look("m1", secret=str(uuid.uuid4()), max_window=60_000)) == ["held"]
    assert answers(other.claim("m1", max_window=60_000)) == ["held"]
    assert inbox.row("m1") == before
    assert answers(inbox.fail("m1", only_expired=True)) == ["extended"]
    inbox.release("m2", delay=-2_000)
    before = inbox.row("m2")
    assert answers(other.claim("m2", max_window=60_000)) == ["not_due"] and inbox.row("m2") == before


def test_the_functions_know_the_longest_max_window():
    root = os.path.join(os.path.dirname(__file__), "../..")
    with open(os.path.join(root, "src/config/keys.def")) as f:
        days = re.search(r'^KEY\(QUEUE, "max_window", .*"2s\.\.(\d+)d"', f.read(), re.M).group(1)
    assert int(days) * 86_400_000 == MOST
    for name in ("claim", "fail", "release"):
        with open(os.path.join(root, f"sql/functions/sidecar_{name}_many.sql")) as f:
            assert f"c_most constant interval := interval '{24 * int(days)} hours'" in re.sub(" +", " ", f.read()), name


def test_a_window_that_ends_in_more_than_a_week_delays_nobody_who_waits_for_its_end(inbox, sessions):
    """Released in a drain with `response`, before the clock was set right and after that."""
    other = sessions("b")
    inbox.claim("before", "after")
    ahead(inbox, "after")
    inbox.release("before", "after", delay=-2_000)
    ahead(inbox, "before")
    inbox.age("before", next_attempt_at=-MOST)
    assert (inbox.row("after").next_attempt_at - inbox.row("after").received_at).total_seconds() < 604_803
    rows = other.claim("after", "before")
    assert answers(rows) == ["not_due"] * 2 and all(60_000 < row.wait_ms <= 62_000 for row in rows)


# the horizon


def test_what_is_new_has_no_time_before_the_horizon(inbox):
    """An export has passed it, and the clock was set back since. Windows, backoffs and ages are the clock's all the same."""
    inbox.claim("old")
    inbox.begin()
    passed = inbox.value("UPDATE onceward.horizon SET passed = clock_timestamp() + interval '1 hour' RETURNING passed")
    rows = inbox.claim("m1", "old")
    assert answers(rows) == ["claimed", "held"] and rows[0].age_ms == 0 and inbox.row("m1").received_at == passed
    assert 29_000 < inbox.look("m1")[0].wait_ms <= 30_000
    assert answers(inbox.bury(("m1", Letter()), (None, Letter(rowless=True)))) == ["buried"] * 2
    assert [letter.died_at for letter in inbox.letters()] == [passed] * 2
    assert inbox.value("SELECT token_expires_at < clock_timestamp() FROM onceward.inbox WHERE message_id = 'm1' AND consumer = %s", inbox.consumer)
    inbox.rollback()
    assert inbox.claim("m2")[0].answer == "claimed" and inbox.row("m2").received_at < passed


# figures


def test_figures_of_several_consumers(inbox):
    inbox.claim("m1")
    inbox.bury(("m1", Letter()), (None, Letter(rowless=True)))
    rows = inbox.query("SELECT * FROM onceward.sidecar_gauge_many(%s)", ["-", inbox.consumer, "--"])
    assert [r.dead_letters for r in rows] == [0, 2, 0]
    assert len({(r.dead_letter_bytes, r.oldest_snapshot_ms) for r in rows}) == 1 and rows[0].dead_letter_bytes > 0


# presence and levers


def states(**of):
    """Of each consumer: may_consume, and the number of requests."""
    return json.dumps([{"consumer": consumer, "state": "standby", "may_consume": may, "in_flight": 3} for consumer, may in of.items()])


@pytest.fixture
def others(pg, sessions):
    """No other instance is there; make(instance, number)."""
    pg.query("TRUNCATE onceward.replica, onceward.control")
    return sessions


def kinds(rows):
    return [row.kind for row in rows]


def others_of(rows):
    """Place among the asked consumers to number of instances; None: those that may consume none of them."""
    return {row.ord: row.number for row in of_kind(rows, "others")}


def test_who_is_there_and_what_they_may_consume(others):
    a, b = others("a", 3), others("b", 1)
    mine, = a.presence(states(c=True, d=True, e=False), consumers=["c"])
    assert (mine.kind, mine.number, mine.yes) == ("self", 1, False)
    rows = b.presence("[]", consumers=["d", "x", "e", "c"], version="0.2")
    assert others_of(rows) == {1: 1, 4: 1}
    assert a.query("SELECT queues -> 2, host, version FROM onceward.replica WHERE instance = 'a'")[0] == ({
        "consumer": "e", "state": "standby", "may_consume": False, "in_flight": 3}, "host", "v")
    a.presence(states(c=False), counter=1, consumers=["c"])
    assert others_of(b.presence("[]", counter=1, consumers=["c"])) == {None: 1}
    assert kinds(b.presence("[]", counter=2, consumers=["c"], count=False)) == ["self"]
    a.presence(states(c=True), counter=2, consumers=["c"])
    a.query("UPDATE onceward.replica SET seen_at = seen_at - interval '11 s' WHERE instance = 'a'")
    assert others_of(b.presence("[]", counter=3, consumers=["c"])) == {}, "it has not called for 10 s"


def test_holders_are_looked_up_whenever_they_called_last(others):
    a, b = others("a", 3), others("b", 1)
    assert kinds(b.presence("[]", holders=["a", "zoe"], count=False)) == ["self"]
    a.presence(), a.presence(counter=1)
    a.query("UPDATE onceward.replica SET seen_at = seen_at - interval '9 min' WHERE instance = 'a'")
    for _ in range(2):
        row, = of_kind(b.presence("[]", counter=1, holders=["zoe", "a"], count=False), "holder")
        assert (row.name, row.counter) == ("a", 2)
    a.presence(counter=2)
    assert of_kind(b.presence("[]", counter=3, holders=["a"]), "holder")[0].counter == 3


@pytest.mark.parametrize("odd", ["{}", "3", "null", '[3, null, {"consumer": 7, "may_consume": true}, {"may_consume": true}, '
                                 '{"consumer": "c", "may_consume": 1}, {"consumer": "c"}]'])
def test_states_of_another_shape_say_nothing(others, odd):
    others("a").presence(odd)
    assert others_of(others("b").presence("[]", consumers=["7x", "c"])) == {None: 1}


def test_somebody_elses_presence_under_ones_name_is_told(others):
    a, copy, later = others("a", 3), others("a", 3), others("a", 4)

    def call(session, counter):
        row = session.presence("[]", counter=counter)[0]
        return row.number, row.yes

    assert call(a, None) == (1, False)
    assert call(a, 1) == (2, False)
    assert call(copy, None) == (3, False), "it may have been started in the place of the other"
    assert call(a, 2) == (4, True)
    assert call(copy, 3) == (5, True)
    assert call(later, None) == (6, False)
    assert call(a, 5) == (7, True), "a larger number"
    assert call(later, 6) == (8, True), "a smaller one came back"
    assert call(later, 9) == (9, False), "a server that crashed may have lost the last calls"


def test_levers_are_read(others, pg):
    a = others("a")
    pg.query("INSERT INTO onceward.control (consumer, paused, reason, by, since, give_up, give_up_by) VALUES"
             " ('c', true, 'deploy', 'ann', %s, '{}', NULL), ('d', false, NULL, NULL, NULL, %s, 'bob'), ('e', false, 'x', 'cat', now(), '{}', NULL),"
             " ('f', true, NULL, NULL, NULL, '{}', NULL)", ("2026-01-02T03:04:05.678Z", ["m1", None, "m2"]))
    rows = a.presence("[]", consumers=["e", "d", "c"])
    assert kinds(rows) == ["self", "control", "control", "control", "give_up", "give_up"]
    assert [(r.ord, r.yes, r.text, r.name) for r in rows[1:4]] == [
        (1, False, "x", "cat"), (2, False, "", ""), (3, True, "deploy", "ann")]
    assert rows[3].number == 1767323045678
    assert [(r.ord, r.text, r.name) for r in rows[4:]] == [(2, "m1", "bob"), (2, "m2", "bob")], "NULL means nothing"


def lever(session, call, *parameters):
    return session.value(f"SELECT onceward.lever_{call}", *parameters)


def of_kind(rows, kind):
    return [row for row in rows if row.kind == kind]


def test_a_pause_says_whether_it_changed_something(others):
    a = others("a")
    assert lever(a, "pause(%s, true, 'deploy', 'ann')", a.consumer) is True
    assert lever(a, "pause(%s, true, 'longer', 'bob')", a.consumer) is False
    row, = of_kind(a.presence("[]", consumers=[a.consumer]), "control")
    assert (row.yes, row.text, row.name) == (True, "longer", "bob")
    assert lever(a, "pause(%s, false, NULL, 'cat')", a.consumer) is True
    assert lever(a, "pause(%s, false, NULL, 'cat')", a.consumer) is False
    assert lever(a, "pause('d', false, NULL, 'cat')") is False
    row, = of_kind(a.presence("[]", consumers=[a.consumer]), "control")
    assert (row.yes, row.name) == (False, "cat") and row.number > 1767323045678


def test_a_retry_makes_rows_due_and_has_a_number(others, sessions):
    a = others("a")
    inbox = sessions("a")
    for message in ("failed", "other", "waiting", "drained", "done", "locked"):
        inbox.claim(message)
    inbox.fail("failed", "other", "locked", delay=60_000)
    inbox.release("waiting", delay=60_000)
    inbox.release("drained", delay=-2_000)
    inbox.settle("done")
    holder = sessions("h")
    holder.begin()
    holder.query("SELECT FROM onceward.inbox WHERE message_id = 'locked' FOR UPDATE")
    assert of_kind(a.presence("[]", consumers=[a.consumer]), "retry") == []
    assert lever(a, "retry(%s, '{other,done,none}', 'ann')", a.consumer) == 1
    row, = of_kind(a.presence("[]", consumers=[a.consumer]), "retry")
    assert (row.ord, row.number, row.name) == (1, 1, "ann")
    assert answers(inbox.claim("other")) == ["claimed"] and answers(inbox.claim("failed")) == ["not_due"]
    assert lever(a, "retry(%s, NULL, 'bob')", a.consumer) == 2, "one that is locked is left, and one whose application may still be at it"
    holder.rollback()
    assert answers(inbox.claim("drained", "failed", "locked", "waiting")) == ["not_due", "claimed", "not_due", "claimed"]
    row, = of_kind(a.presence("[]", consumers=[a.consumer]), "retry")
    assert (row.number, row.name) == (2, "bob")
    assert lever(a, "retry(%s, NULL, 'bob')", a.consumer) == 1


def test_a_stop_stands_until_a_retry_of_everything(others):
    """It is told to all replicas, and also by those that do not know it yet."""
    a, b = others("a"), others("b")
    stop = json.dumps([{"consumer": "c", "queue": "c-1", "stop": {"count": 18, "why": "near"}}, {"consumer": "c", "queue": "c-2"},
                       {"consumer": "other", "queue": "o", "stop": {"count": 18, "why": "near"}}])

    def stops(session, states="[]", **more):
        rows = of_kind(session.presence(states, consumers=["x", "c"], ordered=True, **more), "stop")
        return {(r.ord, r.text): (r.counter, r.name) if r.number is None else r.number for r in rows}

    def n_shown():
        with open(os.path.join(inbox_sql.SQL, "queries", "status_levers.sql"), encoding="utf-8") as file:
            return len(a.query(f"SELECT 1 AS shown FROM ({file.read()}) q WHERE q.consumer = 'c'"))

    def report(**reported):
        return json.dumps([{"consumer": "c", "queue": "c-1", "stop": reported}])

    assert stops(a) == {}
    assert stops(a, stop, count=False) == stops(b) == {(2, "c-1"): (18, "near")}
    assert of_kind(a.presence("[]", consumers=["c"]), "stop") == [], "no queue of the caller is ordered"
    other = json.dumps([{"consumer": "c", "queue": "c-2", "stop": {"count": 19, "why": "too"}}])
    assert stops(b, other) == {(2, "c-1"): (18, "near"), (2, "c-2"): (19, "too")}
    lever(a, "retry('c', '{m1}', 'ann')")
    assert len(stops(a)) == 2 and n_shown() == 1
    lever(a, "retry('c', NULL, 'ann')")
    lever(a, "retry('c', NULL, 'ann')")
    assert stops(a) == stops(b) == {(2, "c-1"): 19, (2, "c-2"): 20}, "a replica that starts later knows what was accepted"
    assert n_shown() == 0, "no queue is stopped"
    assert stops(a, report(count=19, why="late")) == {(2, "c-1"): 19, (2, "c-2"): 20}, "that is accepted"
    accepted = {r.text: r.priority for r in of_kind(a.presence("[]", consumers=["c"], ordered=True), "stop")}
    first = accepted["c-1"]
    assert first == accepted["c-2"], "the third command accepted nothing"
    assert stops(a, report(outdated=first - 1)) == {(2, "c-1"): 19, (2, "c-2"): 20}, "that is another acceptance"
    assert stops(a, report(outdated=first)) == stops(b) == {(2, "c-2"): 20}
    again = report(outdated=first, count=18, why="again")
    assert stops(a, again) == {(2, "c-1"): (18, "again"), (2, "c-2"): 20}
    lever(a, "retry('c', NULL, 'ann')")
    assert stops(a, again) == {(2, "c-1"): 19, (2, "c-2"): 20}, "the report once more, by a replica that has not read the retry"
    assert stops(a, report(outdated=first + 2, count=18, why="again")) == {(2, "c-1"): (18, "again"), (2, "c-2"): 20}, "both in one report"
    lever(a, "retry('c', NULL, 'ann')")
    assert stops(a, report(count=20, why="more")) == {(2, "c-1"): (20, "more"), (2, "c-2"): 20}


def test_a_stop_outlives_the_end_of_an_older_acceptance(others, pg):
    """One replica knows that the messages of the acceptance are done, another one stops for a new message at the same time."""
    a, b = others("a"), others("b")

    def report(**stop):
        return json.dumps([{"consumer": "c", "queue": "c-1", "stop": stop}])

    a.presence(report(count=18, why="near"), consumers=["c"], ordered=True)
    a.query("SELECT onceward.lever_retry('c', NULL, 'ann')")
    retry, = {r.priority for r in of_kind(a.presence("[]", consumers=["c"], ordered=True), "stop")}
    a.begin()
    a.presence(report(count=25, why="new"), consumers=["c"], ordered=True)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(b.presence, report(outdated=retry), consumers=["c"], ordered=True)
        wait_until(lambda: pg.query("SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted", [b.pid])[0][0], "it waits")
        a.commit()
        ended.result()
    assert [(r.counter, r.name) for r in of_kind(b.presence("[]", consumers=["c"], ordered=True), "stop")] == [(25, "new")]


def test_states_of_another_shape_are_no_peers(others):
    for odd in ("{}", "3", '[3, null, {"consumer": "c", "subscription": "x", "received": {}, "queue": []}]'):
        others("a").presence(odd)
        assert of_kind(others("b").presence("[]", consumers=["c"], ordered=True), "peer") == []
        assert others("b").value("SELECT onceward.consumer_range('c', 'q-{0..3}')") == "q-{0..3}"


def test_what_is_given_up_is_noted_until_it_is_dead_or_wanted_again(others, sessions):
    a = others("a")
    inbox = sessions("a")
    inbox.claim("open", "done", "dies")
    inbox.settle("done")

    def give_up(*ids):
        return {r.message_id: r.answer for r in a.query("SELECT * FROM onceward.lever_give_up(%s, %s, 'ann')", a.consumer, list(ids))}

    def noted():
        return [r.text for r in of_kind(a.presence("[]", consumers=["x", a.consumer]), "give_up")]

    assert give_up("open", "done", "dies", "never", "open") == {"open": "at_hand", "done": "completed", "dies": "at_hand", "never": "unseen"}
    a.query("INSERT INTO onceward.history SELECT onceward.history_hash(%s, 'compacted'), onceward.history_print('\\x00'), 1, 1", a.consumer)
    assert give_up("compacted") == {"compacted": "completed"}
    assert give_up("open") == {"open": "at_hand"}
    assert sorted(noted()) == ["dies", "never", "open"]
    letter, = inbox.bury(("dies", inbox_sql.Letter(reason="operator")))
    assert sorted(noted()) == ["never", "open"], "it is dead"
    assert give_up("dies") == {"dies": "dead"}
    inbox.fail("open")
    lever(a, "retry(%s, '{open}', 'ann')", a.consumer)
    assert noted() == ["never"], "who wants it tried does not want it given up"
    # Redriven before anybody has read that it was dead.
    a.query("UPDATE onceward.control SET give_up = '{dies,never}'")
    assert a.value("SELECT onceward.sidecar_redrive(%s)", letter.letter_id) == "reset"
    assert noted() == ["never"]


def test_of_a_consumer_a_thousand_messages_are_noted(others):
    a = others("a")
    many = [f"m{n}" for n in range(1001)]
    said = [r.answer for r in a.query("SELECT * FROM onceward.lever_give_up(%s, %s, 'ann')", a.consumer, many)]
    assert said.count("unseen") == 1000 and said.count("full") == 1
    assert len(of_kind(a.presence("[]", consumers=[a.consumer]), "give_up")) == 1000


def test_what_is_held_is_given_up_once_and_by_its_time(others):
    a = others("a")
    assert lever(a, "give_up_held(%s, 'ann')", a.consumer) == 1
    a.query("UPDATE onceward.control SET held_at = held_at - interval '3 s'")
    row, = of_kind(a.presence("[]", consumers=["d", a.consumer]), "held")
    assert (row.ord, row.number, row.name) == (2, 1, "ann") and 3000 <= row.counter < 60_000
    assert lever(a, "give_up_held(%s, 'bob')", a.consumer) == 2
    row, = of_kind(a.presence("[]", consumers=[a.consumer]), "held")
    assert (row.number, row.name) == (2, "bob") and 0 <= row.counter < 60_000


def test_presence_is_one_hot_update_and_waits_for_nothing(others, pg):
    a, b = others("a"), others("b")
    a.presence()
    for n in range(50):
        a.presence(states(c=True), counter=n + 1)
        if n % 10 == 9:
            pg.query("VACUUM onceward.replica")

    def statistics():
        row = pg.query("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'replica'")[0]
        return row[0] >= 50 and row

    updated, hot = wait_until(statistics, "50 updates in the statistics")
    assert hot == updated
    # Somebody has the row: nothing is written, everything is read.
    b.presence()
    pg_other = others("x")
    pg_other.begin()
    pg_other.query("SELECT FROM onceward.replica WHERE instance = 'a' FOR UPDATE")
    rows = a.presence("[]")
    assert kinds(rows) == ["self", "others"]
    pg_other.rollback()


def test_rows_that_nobody_wrote_for_ten_minutes_are_deleted(others, pg):
    """Each call that counts reads all rows: a crash loop with a name for each life left 20,000 a day."""
    a = others("a")
    others("old").presence(), others("new").presence(), a.presence()
    stale = "UPDATE onceward.replica SET seen_at = now() - interval '11 minutes' WHERE instance IN ('old', 'a')"
    instances = "SELECT instance FROM onceward.replica ORDER BY 1"
    pg.query(stale)
    pg.query("UPDATE onceward.replica SET counter = 10 WHERE instance = 'a'")
    a.presence(counter=10)
    assert pg.query(instances) == [("a",), ("new",), ("old",)]
    a.presence(counter=11)
    assert pg.query(instances) == [("a",), ("new",)], "once in 12 calls"
    others("old").presence(), pg.query(stale)
    a.presence()
    assert pg.query(instances) == [("a",), ("new",)], "by the first call of a connection"


def test_rows_of_a_clock_that_was_set_back_are_deleted(others, pg):
    """A replica that has ended would count as present until the clock is there again."""
    a = others("a")
    others("ended").presence(), others("soon").presence()
    pg.query("UPDATE onceward.replica SET seen_at = now() + interval '11 minutes' WHERE instance = 'ended'")
    pg.query("UPDATE onceward.replica SET seen_at = now() + interval '9 minutes' WHERE instance = 'soon'")
    a.presence()
    assert pg.query("SELECT instance FROM onceward.replica ORDER BY 1") == [("a",), ("soon",)]


def test_presence_commits_asynchronously(others):
    a = others("a")
    a.begin()
    a.presence()
    assert a.value("SHOW synchronous_commit") == "off"
    a.commit()
