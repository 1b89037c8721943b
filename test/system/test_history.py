"""The compact history: completed rows that are replaced by entries, and what claims, tokens, letters and housekeeping make of them. The
database server is real, times are moved, nothing waits. The races are in test/history."""

import datetime
import glob
import hashlib
import json
import os
import re
import threading
import types
import uuid

import psycopg2
import pytest

from rig import inbox_sql
from rig.inbox_sql import Application, Inbox, Letter, answers, fingerprint
from rig.wait import wait_until

HOUR, DAY = 3_600_000, 86_400_000
MONTH = 30 * DAY


@pytest.fixture(scope="module")
def pg(raw_postgres):
    """A database with the schema, for this file alone."""
    database = raw_postgres.create_database(f"history_{uuid.uuid4().hex[:8]}")
    inbox_sql.load(database)
    yield database
    raw_postgres.query(f'DROP DATABASE "{database.database}" WITH (FORCE)', database="postgres")


@pytest.fixture(autouse=True)
def empty(pg):
    """The expiry of the history is the work of one keeper for all consumers: no test has others beside its own."""
    pg.query("TRUNCATE onceward.history, onceward.history_begun; DELETE FROM onceward.inbox; DELETE FROM onceward.dead_letter; DELETE FROM onceward.consumer")


@pytest.fixture
def sessions(pg, request):
    made = []

    def make(kind, *arguments, consumer=None):
        name = consumer or request.node.name
        made.append(kind(pg, name, *arguments) if kind is Inbox else kind(pg, *arguments))
        if kind is Inbox:
            made[-1].register((name, "/", name, None))
        return made[-1]

    yield make
    for session in made:
        session.close()


@pytest.fixture
def inbox(sessions):
    return sessions(Inbox)


@pytest.fixture
def app(sessions):
    return sessions(Application)


def complete(inbox, app, *ids, ago=2 * HOUR, body=b"body"):
    assert answers(inbox.claim(*ids, body=body)) == ["claimed"] * len(ids)
    for message_id in ids:
        app.complete(inbox.token(message_id))
        inbox.age(message_id, received_at=ago, completed_at=ago)


def move(inbox, compact=HOUR, **arguments):
    """A whole walk."""
    done = inbox.housekeep(retention=MONTH, compact=compact, budget_us=60_000_000, **arguments)
    assert (done.next_page, done.away_ms) == (0, 0), done
    return done.moved


def moved(inbox, app, *ids, **arguments):
    complete(inbox, app, *ids, **arguments)
    assert move(inbox) == len(ids)


def entries(inbox):
    return inbox.query("SELECT h.hash::text, h.print, h.consumer, h.day FROM onceward.history h"
                       " JOIN onceward.consumer c ON c.number = h.consumer WHERE c.consumer = %s ORDER BY 1", inbox.consumer)


def replaced(pg, name, *changes):
    """A function of the schema with pieces of its text replaced; put back by what this answers."""
    text = pg.query("SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'onceward'::regnamespace AND proname = %s", [name])[0][0]
    new = text
    for before, after in changes:
        assert before in new, before
        new = new.replace(before, after)
    pg.query(new)
    return lambda: pg.query(text)


# --- moves, and claims of what was moved ---

def test_a_row_that_was_moved_is_still_completed(inbox, app):
    moved(inbox, app, "m1")
    assert inbox.row("m1") is None and len(entries(inbox)) == 1
    assert answers(inbox.claim("m1")) == ["completed"]
    assert inbox.row("m1") is None


def test_an_entry_has_hash_print_consumer_and_day(inbox, app):
    moved(inbox, app, "m€1")
    entry, = entries(inbox)
    digest = hashlib.sha256(inbox.consumer.encode() + b"\0" + "m€1".encode()).digest()
    assert uuid.UUID(entry.hash).bytes == digest[:16]
    assert entry.print & 0xFFFFFFFF == int.from_bytes(fingerprint(b"body")[:4], "big")
    then = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=2)
    assert entry.day == (then.date() - datetime.date(2000, 1, 1)).days


def test_the_hash_is_the_same_on_each_server_and_is_inlined(pg):
    """An entry outlives upgrades of the server, and restores into newer ones. A call that is not inlined costs each claim 1.5 µs a message."""
    assert pg.query("SELECT onceward.history_hash('orders', 'm€1')::text, onceward.history_print('\\x80000001ff')") == \
        [("37bf7f76-97de-e627-c020-74c8b139b649", -2147483647)]
    plan = str(pg.query("EXPLAIN (VERBOSE) SELECT onceward.history_hash(c.consumer, 'm1') FROM onceward.consumer c"))
    assert "sha256" in plan and "history_hash" not in plan


def test_only_completed_rows_that_are_old_are_moved(inbox, app):
    complete(inbox, app, "old")
    complete(inbox, app, "young", ago=HOUR // 2)
    for message_id in ("processing", "failed", "waiting", "dead"):
        inbox.claim(message_id)
        inbox.age(message_id, received_at=2 * HOUR)
    inbox.fail("failed")
    inbox.release("waiting")
    assert answers(inbox.bury(("dead", Letter()))) == ["buried"]
    assert move(inbox) == 1
    assert {m for m in ("old", "young", "processing", "failed", "waiting", "dead") if inbox.row(m)} == \
        {"young", "processing", "failed", "waiting", "dead"}
    assert len(entries(inbox)) == 1


def test_off_moves_nothing_and_what_was_moved_stays_known(inbox, app):
    moved(inbox, app, "m1")
    complete(inbox, app, "m2")
    assert move(inbox, compact=None) == 0 and inbox.row("m2")
    assert answers(inbox.claim("m1", "m2")) == ["completed"] * 2


def test_less_than_an_hour_counts_as_an_hour(inbox, app):
    """The claims' look at the clock relies on it, whatever a configuration says."""
    complete(inbox, app, "m1", ago=HOUR - 60_000)
    assert move(inbox, compact=1) == 0
    inbox.age("m1", completed_at=120_000)
    assert move(inbox, compact=1) == 1


def test_a_batch_of_new_moved_and_other_ids(inbox, app):
    moved(inbox, app, *(f"moved{i:02}" for i in range(40)))  # more than one slice
    complete(inbox, app, "row")
    inbox.claim("held")
    ids = sorted(["new1", "new2", "row", "held"] + [f"moved{i:02}" for i in range(40)])
    expected = {"new1": "claimed", "new2": "claimed", "held": "held"}
    assert answers(inbox.claim(*ids)) == [expected.get(i, "completed") for i in ids]
    assert answers(inbox.claim("moved01", "moved02")) == ["completed"] * 2


def test_another_body_under_a_moved_id_is_a_mismatch(inbox, app):
    moved(inbox, app, "m1")
    answer, = inbox.claim("m1", body=b"another")
    assert answer.answer == "mismatch"
    said = json.loads(answer.detail)
    assert said["first_fingerprint"] == fingerprint(b"body").hex()[:8]
    assert said["fingerprint"] == fingerprint(b"another").hex() and said["first_status"] == "completed"


def test_the_known_part_of_a_fingerprint_may_begin_with_zeros(inbox, app):
    moved(inbox, app, "m1")
    for first in ("00000000", "0000007f", "7fffffff", "ffffffff"):
        inbox.query("DELETE FROM onceward.history")
        inbox.query("INSERT INTO onceward.history SELECT onceward.history_hash(%s, 'm1'), onceward.history_print(%s::bytea), 1, 0",
                    inbox.consumer, "\\x" + first)
        answer, = inbox.claim("m1")
        assert json.loads(answer.detail)["first_fingerprint"] == first


def test_the_same_id_of_another_consumer_is_another_message(sessions, app):
    one, other = sessions(Inbox, consumer="one"), sessions(Inbox, consumer="other")
    moved(one, app, "m1")
    assert answers(other.claim("m1")) == ["claimed"]


def test_late_calls_on_a_moved_row_lead_to_the_claim(inbox, app):
    moved(inbox, app, "m1")
    assert answers(inbox.settle("m1")) == ["vanished"]
    assert answers(inbox.fail("m1")) == ["vanished"]
    assert answers(inbox.release("m1")) == ["vanished"]
    assert answers(inbox.look("m1")) == ["vanished"]
    assert answers(inbox.bury(("m1", Letter()))) == ["vanished"]
    assert answers(inbox.claim("m1")) == ["completed"] and not inbox.letters()


def test_a_used_token_is_unknown_after_the_move_and_says_so(inbox, app):
    moved(inbox, app, "m1")
    for call in (lambda: app.complete(inbox.token("m1")), lambda: app.complete(inbox.token("m1"), "r"),
                 lambda: app.extend(inbox.token("m1"), 5)):
        with pytest.raises(psycopg2.Error) as error:
            call()
        assert error.value.pgcode == "OW001" and "or it was completed longer than compact_after ago" in error.value.diag.message_detail


# --- hashes that the sidecar computes ---

KINDS = ["plain", "ä/é", "e\u0301", "\u00e9", "clef \U0001d11e", "\u20ac" * 85, "x" * 255, " ", "\x01\x7f", "back\\slash \\000", "'quoted\"", "{}", "NULL"]


def made_up(inbox, *ids):
    """Entries whose hashes are not those of the ids: found only by a claim that looks for the hashes that it was given."""
    hashes = {message_id: str(uuid.uuid4()) for message_id in ids}
    for value in hashes.values():
        inbox.query("INSERT INTO onceward.history SELECT %s, onceward.history_print(%s), 1, 9000", value, fingerprint(b"body"))
    inbox.register((inbox.consumer, "/", inbox.consumer, None))  # leaves the mark
    return hashes


def test_hashes_of_all_kinds_of_ids_are_those_of_the_schema(pg, inbox, app):
    moved(inbox, app, *KINDS)
    hashes = {message_id: inbox_sql.history_hash(inbox.consumer, message_id) for message_id in KINDS}
    assert answers(inbox.claim(*KINDS, hashes=hashes)) == ["completed"] * len(KINDS)
    for message_id in KINDS:
        assert pg.query("SELECT onceward.history_hash(%s, %s)::text", (inbox.consumer, message_id)) == [(hashes[message_id],)]


def test_a_claim_looks_for_the_hashes_that_it_was_given(inbox, app):
    hashes = made_up(inbox, "a", "c", "e")
    ids = ["a", "b", "c", "d", "e"]
    expected = ["completed", "claimed"] * 2 + ["completed"]
    assert answers(inbox.claim(*ids, hashes={**hashes, "b": str(uuid.uuid4())})) == expected
    assert answers(inbox.claim(*ids)) == ["claimed", "held", "claimed", "held", "claimed"]


def test_without_a_hash_it_is_computed(inbox, app):
    """As for the queues of a replica whose configuration has no compact_after."""
    moved(inbox, app, "a", "b")
    hashes = made_up(inbox, "c")
    assert answers(inbox.claim("a", "b", "c", hashes=hashes)) == ["completed"] * 3
    assert answers(inbox.claim("a", "b", hashes={})) == ["completed"] * 2
    assert answers(inbox.claim("a", "b")) == ["completed"] * 2


def test_hashes_of_a_client_with_another_encoding_are_not_used(inbox, app):
    """It sends UTF-8, which the server takes for LATIN1: the ids are stored as other bytes than it has hashed."""
    inbox.query("SET client_encoding = LATIN1")
    assert answers(inbox.claim("ä", transaction=False)) == ["claimed"] and answers(inbox.settle("ä")) == ["completed"]
    inbox.age("ä", received_at=2 * HOUR, completed_at=2 * HOUR)
    assert move(inbox) == 1
    hashes = {"ä": inbox_sql.history_hash(inbox.consumer, "ä")}
    assert answers(inbox.claim("ä", hashes=hashes)) == ["completed"]
    inbox.query("SET client_encoding = UTF8")
    assert answers(inbox.claim("ä", hashes=hashes)) == ["claimed"]  # that is another id


def test_claims_that_meet_another_keep_their_hashes(pg, sessions, inbox, app):
    """After the conflict the items are inserted in blocks of half the size."""
    put_back = replaced(pg, "sidecar_claim_many", ("'lock_timeout', '1s'", "'lock_timeout', '60s'"))
    try:
        blocker, late = sessions(Inbox, "blocker"), sessions(Inbox, "late")
        hashes = made_up(inbox, "c", "f", "g")
        blocker.begin()
        blocker.claim("b")
        said = []
        thread = threading.Thread(target=lambda: said.extend(answers(late.claim(*"abcdefg", hashes=hashes))))
        thread.start()
        wait_until(lambda: pg.query("SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %s", [late.pid])[0][0] == 1,
                   "the claim waits in its INSERT", 10)
        blocker.commit()
        thread.join()
        assert said == ["claimed", "held", "completed", "claimed", "claimed", "completed", "completed"]
    finally:
        put_back()


# --- every function that inserts ---

def test_every_function_that_inserts_into_the_inbox_has_both_lookups():
    found = []
    for name in glob.glob(os.path.join(inbox_sql.SQL, "functions", "*.sql")):
        text = open(name, encoding="utf-8").read()
        if re.search(r"INSERT\s+INTO\s+onceward\.inbox\b", text):
            found.append(os.path.basename(name))
            insert = text[re.search(r"INSERT\s+INTO\s+onceward\.inbox\b", text).start():]
            statements = insert.split(";")
            looks = r"onceward\.history h\s+(ON|WHERE) h\.hash = "
            assert re.search(looks, statements[0]), f"{name}: the INSERT itself must look for the entry"
            answer = text[text.rindex("RETURN QUERY"):].split(";")[0]
            assert re.search(looks, answer), f"{name}: the answer must look for the entry"
            assert "ERRCODE = '40001'" in insert, f"{name}: the clock must be read behind the INSERT"
    assert sorted(found) == ["sidecar_claim_many.sql", "sidecar_renew_many.sql"]
    elsewhere = [p for p in glob.glob(os.path.join(inbox_sql.SQL, "..", "src", "**", "*.[ch]"), recursive=True)
                 if re.search(r"INSERT\s+INTO\s+onceward\.inbox\b", open(p, encoding="utf-8").read())]
    assert not elsewhere


# --- old snapshots ---

def claim_with_an_old_snapshot(pg, sessions, inbox, app):
    """A claim waits in its INSERT, while an id that it is about to insert is claimed, completed and moved by others. What it answers."""
    blocker, late = sessions(Inbox, "blocker"), sessions(Inbox, "late")
    blocker.begin()
    blocker.claim("a")
    said = []

    def claim():
        try:
            said.extend(answers(late.claim("a", "b")))
        except psycopg2.Error as error:
            said.append(error.pgcode)

    thread = threading.Thread(target=claim)
    thread.start()
    wait_until(lambda: pg.query("SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %s", [late.pid])[0][0] == 1,
               "the late claim waits in its INSERT", 10)
    moved(inbox, app, "b")
    # It has read the clock before it began to wait.
    wait_until(lambda: pg.query("SELECT clock_timestamp() > waitstart + interval '2 seconds' FROM pg_locks WHERE NOT granted AND pid = %s",
                                [late.pid])[0][0], "the minute of the late claim is over", 10)
    blocker.rollback()
    thread.join()
    return said


@pytest.fixture
def patient(pg):
    """The claim waits for longer than a second, and the minute is shorter."""
    changes = [("'lock_timeout', '1s'", "'lock_timeout', '60s'"), ("v_now + interval '1 minute'", "v_now + interval '2 seconds'")]
    put_back = replaced(pg, "sidecar_claim_many", *changes)
    yield
    put_back()


def test_a_claim_that_is_older_than_a_move_is_repeated(pg, sessions, inbox, app, patient):
    assert claim_with_an_old_snapshot(pg, sessions, inbox, app) == ["40001"]
    assert inbox.row("a") is None and inbox.row("b") is None


def test_without_the_look_at_the_clock_such_a_claim_would_double_the_effect(pg, sessions, inbox, app, patient):
    """Shows that the test above can fail."""
    put_back = replaced(pg, "sidecar_claim_many", ("v_now + interval '2 seconds'", "v_now + interval '1 hour'"))
    try:
        assert claim_with_an_old_snapshot(pg, sessions, inbox, app) == ["claimed", "claimed"]
    finally:
        put_back()


def test_a_clock_that_was_set_back_during_a_claim_repeats_it(pg, inbox):
    put_back = replaced(pg, "sidecar_claim_many", ("v_now := least(v_received, clock_timestamp());",
                                                   "v_now := clock_timestamp() + interval '5 seconds';"))
    try:
        with pytest.raises(psycopg2.Error) as error:
            inbox.claim("m1")
        assert error.value.pgcode == "40001"
    finally:
        put_back()


def compacted_to(inbox):
    """In ms from now; NULL: None."""
    value, = inbox.query("SELECT (1000 * extract(epoch FROM compacted_to - clock_timestamp()))::bigint AS ms FROM onceward.consumer"
                         " WHERE consumer = %s", inbox.consumer)
    return value.ms


def test_the_time_up_to_which_rows_were_moved_is_recorded(pg, inbox, app):
    complete(inbox, app, "old", ago=5 * DAY)
    complete(inbox, app, "young", ago=HOUR)
    assert move(inbox, compact=MONTH) == 0 and compacted_to(inbox) is None
    assert move(inbox, compact=DAY) == 1 and abs(compacted_to(inbox) + DAY) < 120_000
    complete(inbox, app, "other")
    assert move(inbox, compact=HOUR) == 2 and abs(compacted_to(inbox) + HOUR) < 120_000
    recorded = compacted_to(inbox)
    complete(inbox, app, "late", ago=5 * DAY)
    assert move(inbox, compact=DAY) == 1 and abs(compacted_to(inbox) - recorded) < 60_000  # it never goes back


def test_what_cannot_be_recorded_is_not_moved(pg, inbox, app):
    complete(inbox, app, "m1")
    number(inbox)
    owner = pg.connect(autocommit=False)
    with owner.cursor() as cursor:
        cursor.execute("SELECT FROM onceward.consumer FOR UPDATE")
        try:
            assert inbox.housekeep(retention=MONTH, compact=HOUR).moved == 0
        finally:
            owner.rollback()
            owner.close()
    assert move(inbox) == 1


def test_a_row_that_is_locked_is_not_moved(pg, inbox, app):
    complete(inbox, app, "m1")
    owner = pg.connect(autocommit=False)
    with owner.cursor() as cursor:
        cursor.execute("SELECT FROM onceward.inbox FOR UPDATE")
        assert move(inbox) == 0
    owner.rollback()
    owner.close()
    assert move(inbox) == 1


# --- expiry ---

def set_day(inbox, days_ago):
    inbox.query("DELETE FROM onceward.history")
    for ago in days_ago:
        inbox.query("INSERT INTO onceward.history SELECT onceward.history_hash(%s, %s), onceward.history_print(%s), number,"
                    " (clock_timestamp() AT TIME ZONE 'UTC')::date - date '2000-01-01' - %s FROM onceward.consumer WHERE consumer = %s",
                    inbox.consumer, f"d{ago}", fingerprint(b"body"), ago, inbox.consumer)


def days(inbox):
    return sorted(r[0] for r in inbox.query(
        "SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date - date '2000-01-01' - h.day FROM onceward.history h"
        " JOIN onceward.consumer c ON c.number = h.consumer WHERE c.consumer = %s", inbox.consumer))


def forget_the_walk(pg):
    pg.query("UPDATE onceward.consumer SET history_day = NULL")


def keep_house(inbox, retention, compact=DAY, **arguments):
    """A walk through the rows, and the one through the history if that is due, as a sidecar does it."""
    done = inbox.housekeep(retention=retention, compact=compact, budget_us=60_000_000, **arguments)
    expired = 0
    if done.history_due:
        expiry = inbox.expire_history(retention)
        assert expiry.next_page == 0, expiry
        expired = expiry.expired
    return types.SimpleNamespace(**done._asdict(), expired=expired)


def walk(inbox, retention=10 * DAY, **arguments):
    done = keep_house(inbox, retention, **arguments)
    assert done.next_page == 0, done
    return done.expired


def walk_moves(inbox):
    return inbox.housekeep(retention=10 * DAY, compact=HOUR, page=0, budget_us=60_000_000).moved


def number(inbox):
    """A consumer gets its number by its first walk that compacts. Entries that a test makes need the mark, too."""
    walk(inbox)
    inbox.query("INSERT INTO onceward.history_begun DEFAULT VALUES")


def test_entries_expire_by_the_day(pg, inbox):
    number(inbox)
    set_day(inbox, range(20))
    forget_the_walk(pg)
    # Of the eleventh day before this one some hours may be within the retention of ten days; the twelfth is wholly outside.
    assert walk(inbox) == 9 and days(inbox) == list(range(11))
    assert answers(inbox.claim("d10", "d11")) == ["completed", "claimed"]


def test_the_history_is_walked_once_a_day(pg, inbox):
    number(inbox)
    set_day(inbox, [1])
    forget_the_walk(pg)
    walk(inbox)
    set_day(inbox, [1, 15])
    assert walk(inbox) == 0
    pg.query("UPDATE onceward.consumer SET history_day = history_day - 1")
    assert walk(inbox) == 1


def test_entries_expire_also_where_nothing_is_compacted_any_more(pg, inbox):
    number(inbox)
    set_day(inbox, [1, 15])
    forget_the_walk(pg)
    assert walk(inbox, compact=None) == 1


def test_each_consumer_has_its_own_retention(pg, sessions):
    short, long = sessions(Inbox, consumer="short"), sessions(Inbox, consumer="long")
    for inbox, retention in ((short, 5 * DAY), (long, 20 * DAY)):
        walk(inbox, retention=retention)
        pg.query("UPDATE onceward.consumer SET kept_until = NULL")
    pg.query("INSERT INTO onceward.history_begun DEFAULT VALUES")
    for inbox in (short, long):
        inbox.query("INSERT INTO onceward.history SELECT gen_random_uuid(), 0, number, (clock_timestamp() AT TIME ZONE 'UTC')::date"
                    " - date '2000-01-01' - n FROM onceward.consumer, generate_series(0, 30) n WHERE consumer = %s", inbox.consumer)
    forget_the_walk(pg)
    # One of the two does it for both, whichever comes first; the other one, too, when it is alone.
    assert walk(short, retention=5 * DAY) == 25 + 10
    assert days(short) == list(range(6)) and days(long) == list(range(21))
    assert walk(long, retention=20 * DAY) == 0


def test_the_first_of_the_consumers_that_are_kept_walks_the_history(pg, sessions):
    first, second = sessions(Inbox, consumer="first"), sessions(Inbox, consumer="second")
    for inbox in (first, second):
        number(inbox)
    set_day(second, [1, 15])
    forget_the_walk(pg)
    assert walk(second) == 0
    pg.query("UPDATE onceward.consumer SET kept_until = clock_timestamp() WHERE consumer = 'first'")
    assert walk(second) == 1


def test_entries_of_a_consumer_that_is_gone_stay_for_the_longest_retention(pg, sessions):
    gone, here = sessions(Inbox, consumer="gone"), sessions(Inbox, consumer="here")
    for inbox in (gone, here):
        number(inbox)
    set_day(gone, [1, 9, 15])
    pg.query("DELETE FROM onceward.consumer WHERE consumer = 'gone'")
    forget_the_walk(pg)
    assert walk(here) == 1
    assert answers(gone.claim("d1", "d15", "d9")) == ["completed", "claimed", "completed"]


def test_a_consumer_that_is_forgotten_leaves_no_entries(pg, sessions, app):
    gone, here = sessions(Inbox, consumer="gone"), sessions(Inbox, consumer="here")
    for inbox in (gone, here):
        moved(inbox, app, "m1", "m2")
        pg.query("UPDATE onceward.consumer SET kept_until = NULL")
    n_rows, after, answer = 0, "", "more"
    while answer == "more":
        answer, n, _, after = gone.query("SELECT * FROM onceward.consumer_forget('gone', false, %s)", after)[0]
        n_rows += n
    assert (answer, n_rows) == ("done", 2)
    assert len(entries(here)) == 2 and pg.query("SELECT count(*) FROM onceward.history")[0][0] == 2
    assert answers(gone.claim("m1")) == ["claimed"] and answers(here.claim("m1")) == ["completed"]


def test_a_number_is_never_given_out_again(pg, sessions):
    gone, new = sessions(Inbox, consumer="gone"), sessions(Inbox, consumer="new")
    number(gone)
    before = gone.value("SELECT number FROM onceward.consumer WHERE consumer = 'gone'")
    pg.query("DELETE FROM onceward.consumer WHERE consumer = 'gone'")
    number(new)
    assert new.value("SELECT number FROM onceward.consumer WHERE consumer = 'new'") > before


def test_two_keepers_give_a_consumer_one_number(pg, sessions):
    """The second one has read that there is none, and does not wait for the first one's transaction."""
    keeper, first = sessions(Inbox, consumer="twice"), sessions(Inbox)
    first.begin()
    first.query("UPDATE onceward.consumer SET number = 30000 WHERE consumer = 'twice'")
    assert keeper.housekeep(compact=HOUR)[:7] == (0, 0, 0, 0, -1, 0, 1000)
    first.commit()
    assert keeper.housekeep(compact=HOUR).away_ms == 0
    assert pg.query("SELECT number FROM onceward.consumer WHERE consumer = 'twice'") == [(30000,)]


def many_entries(inbox, n=1000):
    """Half of them expired; 157 on a page."""
    inbox.query("INSERT INTO onceward.history SELECT gen_random_uuid(), 0, number, n %% 2 * 20000 FROM onceward.consumer,"
                " generate_series(1, %s) n WHERE consumer = %s", n, inbox.consumer)


def test_walks_in_pieces_cover_both_tables(pg, inbox, app):
    number(inbox)
    complete(inbox, app, *(f"m{i:03}" for i in range(100)))
    page, n_moved, calls = -1, 0, 0
    while page:
        done = inbox.housekeep(retention=10 * DAY, compact=HOUR, page=page, budget_us=0)
        assert done.next_page <= done.n_pages and done.moved <= 16
        page, n_moved, calls = done.next_page, n_moved + done.moved, calls + 1
    # Of the first page, which is left in the middle, some rows are left to the next walk.
    assert 82 <= n_moved <= 100 and calls > 5
    n_moved += walk_moves(inbox)
    assert n_moved == 100
    many_entries(inbox)
    forget_the_walk(pg)
    page, n_expired, calls = -1, 0, 0
    while page:
        done = inbox.expire_history(10 * DAY, page=page, budget_us=0)
        assert done.expired <= 157 and done.next_page < done.n_pages
        page, n_expired, calls = done.next_page, n_expired + done.expired, calls + 1
    assert n_expired == 500 and calls == done.n_pages > 5
    assert len(entries(inbox)) == 600


def test_a_growing_inbox_does_not_hold_up_the_expiry(pg, inbox, app):
    """Rows come faster than they are walked: that walk does not end, the other one does."""
    number(inbox)
    many_entries(inbox, 500)
    complete(inbox, app, *(f"m{i:03}" for i in range(100)))
    forget_the_walk(pg)
    rows = entry = -1
    expired = 0
    for i in range(20):
        complete(inbox, app, *(f"n{i:02}{k:03}" for k in range(40)))
        done = inbox.housekeep(retention=10 * DAY, compact=HOUR, page=rows, budget_us=0)
        rows = done.next_page
        assert rows and (done.history_due or entry == 0)
        if entry:
            done = inbox.expire_history(10 * DAY, page=entry, budget_us=0)
            entry, expired = done.next_page, expired + done.expired
    assert entry == 0 and expired == 250


def test_the_expiry_goes_on_where_it_was_noted(pg, inbox):
    """A restart does not make it begin again, so restarts do not keep it from its end."""
    number(inbox)
    pg.query("UPDATE onceward.consumer SET history_page = 3")
    many_entries(inbox)
    forget_the_walk(pg)
    done = inbox.expire_history(10 * DAY)
    assert done.next_page == 0 and 150 < done.expired < 300
    assert pg.query("SELECT history_page FROM onceward.consumer") == [(0,)]
    assert inbox.expire_history(10 * DAY)[:2] == (0, -1)  # once a day


def test_the_expiry_of_a_table_that_became_shorter_reads_all_of_it(pg, inbox):
    """A dump that is restored keeps the noted page, and its entries take fewer pages."""
    number(inbox)
    pg.query("UPDATE onceward.consumer SET history_page = 1000000")
    many_entries(inbox)
    forget_the_walk(pg)
    n = pg.query("SELECT count(*) FROM onceward.history")[0][0]
    done = inbox.expire_history(10 * DAY)
    assert (done.next_page, done.expired) == (0, n - pg.query("SELECT count(*) FROM onceward.history")[0][0]) and done.expired > 200


def test_the_expiry_notes_its_page(pg, inbox):
    number(inbox)
    many_entries(inbox, 170_000)
    forget_the_walk(pg)
    done = inbox.expire_history(10 * DAY, page=1023, budget_us=0)
    assert done.next_page == 1024 and pg.query("SELECT history_page FROM onceward.consumer") == [(1024,)]


def test_an_end_that_cannot_be_noted_is_noted_by_the_next_call(pg, inbox):
    number(inbox)
    many_entries(inbox)
    forget_the_walk(pg)
    owner = pg.connect(autocommit=False)
    with owner.cursor() as cursor:
        cursor.execute("SELECT FROM onceward.consumer FOR UPDATE")
        done = inbox.expire_history(10 * DAY)
        assert (done.expired, done.next_page) == (500, done.n_pages)
    owner.rollback()
    owner.close()
    assert inbox.expire_history(10 * DAY, page=done.next_page)[:2] == (0, 0)
    assert inbox.expire_history(10 * DAY, page=done.next_page)[:2] == (0, -1)


@pytest.mark.parametrize("lease", ["keeper = 'somebody'", "kept_until = clock_timestamp() - interval '1 s'",
                                   "kept_until = clock_timestamp() + interval '1 day'"])
def test_only_the_keeper_expires_entries(pg, inbox, lease):
    number(inbox)
    many_entries(inbox)
    forget_the_walk(pg)
    pg.query(f"UPDATE onceward.consumer SET {lease}")
    assert inbox.expire_history(10 * DAY)[:2] == (0, -1)


def test_a_lease_of_the_future_keeps_nobody_from_the_expiry(pg, sessions):
    """The first consumer was given up while the clock was a year ahead."""
    first, second = sessions(Inbox, consumer="first"), sessions(Inbox, consumer="second")
    number(first)
    pg.query("UPDATE onceward.consumer SET kept_until = clock_timestamp() + interval '1 year' WHERE consumer = 'first'")
    number(second)
    set_day(second, [1, 15])
    forget_the_walk(pg)
    assert walk(second) == 1


# --- retention and compact_after that change, clocks ---

def report(inbox, retention, **arguments):
    return keep_house(inbox, retention, **arguments)


def an_hour_later(pg, hours=1):
    """The keeper has kept house in the meantime."""
    pg.query("UPDATE onceward.consumer SET retention_at = retention_at - %s * interval '1 hour', history_day = NULL", (hours,))


@pytest.mark.parametrize("compact", [HOUR, None])
def test_of_replicas_with_two_retentions_the_longer_one_counts(pg, sessions, inbox, app, compact):
    """In both directions of a rollout, whichever of the two replicas keeps house; for rows and for entries."""
    other = sessions(Inbox, "b")
    number(inbox)
    complete(inbox, app, "row", ago=12 * DAY)
    set_day(inbox, [12])
    forget_the_walk(pg)
    report(other, 20 * DAY)  # it is not the keeper
    done = keep_house(inbox, 5 * DAY, compact)
    assert (done.purged, done.expired) == (0, 0)
    assert answers(inbox.claim("d12", "row")) == ["completed"] * 2
    # The replica with the longer one is gone for an hour.
    an_hour_later(pg)
    done = keep_house(inbox, 5 * DAY, compact)
    assert (done.purged, done.expired) == ((0, 2) if compact else (1, 1))


def test_a_retention_that_is_still_reported_stays(pg, sessions, inbox):
    other = sessions(Inbox, "b")
    number(inbox)
    set_day(inbox, [12])
    for _ in range(3):
        report(other, 20 * DAY)
        pg.query("UPDATE onceward.consumer SET retention_at = retention_at - interval '59 minutes', history_day = NULL")
        assert report(inbox, 5 * DAY).expired == 0
    an_hour_later(pg)
    assert report(inbox, 5 * DAY).expired == 1


@pytest.mark.parametrize("kept", ["NULL", "clock_timestamp() - interval '1 second'", "clock_timestamp() + interval '1 day'"])
def test_an_hour_in_which_no_house_was_kept_does_not_count(pg, sessions, inbox, app, kept):
    """After an outage of the database, or a step of its clock, the replica with the shorter retention is the first."""
    other = sessions(Inbox, "b")
    number(inbox)
    complete(inbox, app, "row", ago=12 * DAY)
    set_day(inbox, [12])
    report(other, 20 * DAY)
    an_hour_later(pg, hours=3)
    pg.query(f"UPDATE onceward.consumer SET kept_until = {kept}")
    done = keep_house(inbox, 5 * DAY, HOUR)
    assert (done.purged, done.expired) == (0, 0) and answers(inbox.claim("d12")) == ["completed"]
    an_hour_later(pg)
    assert report(inbox, 5 * DAY).expired == 2  # the row was moved


def test_a_report_of_the_future_counts_for_another_hour(pg, sessions, inbox):
    """The clock was a year ahead at the last report. It neither ends the longer retention nor makes it last a year."""
    other = sessions(Inbox, "b")
    number(inbox)
    set_day(inbox, [12])
    report(other, 20 * DAY)
    an_hour_later(pg, hours=-9000)
    assert report(inbox, 5 * DAY).expired == 0
    an_hour_later(pg)
    assert report(inbox, 5 * DAY).expired == 1


def test_a_replica_whose_clock_differs_still_reports_its_retention(pg, sessions, inbox):
    other = sessions(Inbox, "b")
    number(inbox)
    set_day(inbox, [12])
    for _ in range(3):
        assert report(other, 20 * DAY, ahead_ms=400 * DAY).ahead_ms
        pg.query("UPDATE onceward.consumer SET retention_at = retention_at - interval '59 minutes', history_day = NULL")
        assert report(inbox, 5 * DAY).expired == 0


def test_a_shorter_compact_after_of_another_replica_forgets_nothing(sessions, inbox, app):
    """Two replicas with 1 h and 3 h take turns: an id is known by its row or by its entry."""
    other = sessions(Inbox, "b")
    complete(inbox, app, "m1", "m2")
    assert move(inbox, compact=3 * HOUR) == 0
    assert answers(inbox.claim("m1")) == ["completed"]
    inbox.query("UPDATE onceward.consumer SET kept_until = clock_timestamp()")
    assert move(other, compact=HOUR) == 2
    inbox.query("UPDATE onceward.consumer SET kept_until = clock_timestamp()")
    assert move(inbox, compact=3 * HOUR) == 0
    assert answers(inbox.claim("m1", "m2")) == ["completed"] * 2


@pytest.mark.parametrize("ahead", [61_000, -61_000, 400 * DAY, -400 * DAY])
def test_nothing_is_moved_or_expires_while_the_clocks_differ(pg, inbox, app, ahead):
    number(inbox)
    complete(inbox, app, "m1", ago=2 * DAY)
    set_day(inbox, [1, 15])
    forget_the_walk(pg)
    done = keep_house(inbox, 10 * DAY, HOUR, ahead_ms=ahead)
    assert done.ahead_ms and not done.moved and not done.history_due
    inbox.housekeep()  # takes the lease
    assert inbox.expire_history(10 * DAY, ahead_ms=ahead)[:2] == (0, -1)
    assert days(inbox) == [1, 15] and inbox.row("m1")


def test_of_two_clocks_the_earlier_one_counts_for_moves(inbox, app):
    complete(inbox, app, "m1", ago=HOUR + 20_000)
    assert move(inbox, ahead_ms=40_000) == 0
    assert move(inbox, ahead_ms=-40_000) == 1


def test_a_time_in_the_future_is_moved_late_and_never_forgotten_early(inbox, app):
    """The row was completed while the database's clock was a day ahead."""
    complete(inbox, app, "m1", ago=-DAY)
    assert move(inbox) == 0
    inbox.age("m1", completed_at=DAY + 2 * HOUR)
    assert move(inbox) == 1 and answers(inbox.claim("m1")) == ["completed"]


# --- letters ---

def dead(inbox, message_id, body=b"body"):
    inbox.claim(message_id, body=body)
    row, = inbox.bury((message_id, Letter(body=body)))
    assert row.answer == "buried"
    return inbox.letters()[-1].id


def redrive(inbox, letter, *message_id):
    if message_id:
        return inbox.value("SELECT onceward.sidecar_redrive_as(%s, %s)", letter, *message_id)
    return inbox.value("SELECT onceward.sidecar_redrive(%s)", letter)


@pytest.mark.parametrize("other_id", [False, True])
def test_a_letter_whose_message_was_completed_and_moved_is_done(inbox, app, other_id):
    letter = dead(inbox, "m1")
    assert redrive(inbox, letter) == "reset"
    moved(inbox, app, "m1")
    assert redrive(inbox, letter, *["m2"] * other_id) == "completed"
    assert not inbox.letters() and redrive(inbox, letter) == "gone"


def test_a_letter_beside_an_entry_with_another_body_is_not_published_as_that(inbox, app):
    letter = dead(inbox, "m1")
    inbox.query("DELETE FROM onceward.inbox")
    moved(inbox, app, "m1", body=b"another")
    moved(inbox, app, "m2", body=b"another")
    assert redrive(inbox, letter) == "mismatch"
    assert redrive(inbox, letter, "m2") == "mismatch"
    assert redrive(inbox, letter, "m3") == "reset"
    assert len(inbox.letters()) == 1


def test_a_letter_that_is_redriven_under_an_id_that_was_moved_is_done(inbox, app):
    letter = dead(inbox, "m1")
    moved(inbox, app, "m2")
    assert redrive(inbox, letter, "m2") == "completed" and not inbox.letters()


# --- the mark that there are entries ---

def marks(pg):
    return pg.query("SELECT count(*) FROM onceward.history_begun")[0][0]


def test_the_first_move_leaves_a_mark_in_its_transaction(pg, sessions, inbox, app):
    complete(inbox, app, "m1", "m2")
    assert move(inbox, compact=DAY) == 0 and marks(pg) == 0
    keeper = sessions(Inbox)
    keeper.begin()
    assert keeper.housekeep(retention=MONTH, compact=HOUR, budget_us=60_000_000).moved == 2
    assert marks(pg) == 0 and answers(inbox.claim("m1", "m2")) == ["completed"] * 2
    keeper.commit()
    assert marks(pg) == 1 and answers(inbox.claim("m1", "m2")) == ["completed"] * 2
    complete(inbox, app, "m3")
    assert move(inbox) == 1 and marks(pg) == 1


def test_without_the_mark_entries_are_not_looked_for(pg, inbox, app):
    """Shows that the tests above and below can fail."""
    moved(inbox, app, "m1")
    pg.query("DELETE FROM onceward.history_begun")
    assert answers(inbox.claim("m1")) == ["claimed"]


def test_entries_that_were_restored_alone_get_their_mark_before_the_first_claim(pg, inbox, app):
    """Each sidecar registers its consumers before it claims."""
    moved(inbox, app, "m1")
    pg.query("DELETE FROM onceward.history_begun")
    inbox.register((inbox.consumer, "/", inbox.consumer, None))
    assert marks(pg) == 1 and answers(inbox.claim("m1")) == ["completed"]
    inbox.register((inbox.consumer, "/", inbox.consumer, None))
    assert marks(pg) == 1


# --- what it costs, rights ---

def test_lookups_are_index_probes(inbox, app):
    """Also where the history was emptied: the table is not scanned."""
    number(inbox)
    few = max(inbox.claim(f"a{i}", explain=True) for i in range(3))
    inbox.query("INSERT INTO onceward.history SELECT gen_random_uuid(), 0, 1, 0 FROM generate_series(1, 50000)")
    # Beside other tests a claim may have to read the catalog anew, so the cheapest of three counts: a scan would be in each.
    many = min(inbox.claim(f"b{i}", explain=True) for i in range(3))
    assert many < few + 30, (few, many)
    moved(inbox, app, "m1")
    assert min(inbox.claim("m1", explain=True) for _ in range(3)) < few + 60
    inbox.query("DELETE FROM onceward.history")
    assert min(inbox.claim(f"c{i}", explain=True) for i in range(3)) < few + 30


def test_who_may_do_what(sessions, inbox, app):
    for sql in ("SELECT * FROM onceward.history", "INSERT INTO onceward.history VALUES (gen_random_uuid(), 0, 1, 1)",
                "DELETE FROM onceward.history", "SELECT onceward.history_hash('a', 'b')", "SELECT nextval('onceward.consumer_number')"):
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            app.query(sql)
    for sql in ("UPDATE onceward.history SET day = 1", "TRUNCATE onceward.history", "DELETE FROM onceward.history_begun",
                "TRUNCATE onceward.history_begun"):
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            inbox.query(sql)


def test_a_publication_of_all_tables_does_not_hinder_the_expiry(pg, inbox):
    number(inbox)
    set_day(inbox, [1, 15])
    forget_the_walk(pg)
    pg.query("CREATE PUBLICATION everything FOR ALL TABLES")
    try:
        assert walk(inbox) == 1
    finally:
        pg.query("DROP PUBLICATION everything")
