"""complete_all, complete_valid and extend_all: each answer of each of them, and many connections at once. The database
server is real, the times are moved, nothing waits."""

import base64
import random
import threading
import uuid

import psycopg2
import pytest

from rig import inbox_sql
from rig.inbox_sql import Application, Inbox, Letter
from rig.wait import wait_until
from test_sql import Refused, quickly


@pytest.fixture(scope="module")
def pg(raw_postgres):
    """A database with the schema, for this file alone."""
    database = raw_postgres.create_database(f"batches_{uuid.uuid4().hex[:8]}")
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
def app(sessions):
    return sessions(Application)


def complete_all(app, tokens):
    return app.value("SELECT onceward.complete_all(%s::text[])", tokens)


def complete_valid(app, tokens):
    return [row[0] for row in app.query("SELECT onceward.complete_valid(%s::text[])", tokens)]


def extend_all(app, tokens, seconds):
    """How many seconds from now the first window ends."""
    return app.value("SELECT extract(epoch FROM onceward.extend_all(%s::text[], %s::float8) - clock_timestamp())::float8", tokens,
                     seconds)


CALLS = {"complete_all": complete_all, "complete_valid": complete_valid, "extend_all": lambda app, tokens: extend_all(app, tokens, 5)}


def claimed(inbox, n, name="m"):
    """Ids in an order that is not that of their keys, with their tokens."""
    ids = [f"{name}{i:04}" for i in range(n)]
    inbox.claim(*ids)
    random.Random(n).shuffle(ids)
    return ids, [inbox.token(i) for i in ids]


def statuses(inbox, ids):
    return [inbox.row(i).status for i in ids]


def test_all_are_completed_or_none(inbox, app):
    ids, tokens = claimed(inbox, 100)
    app.begin()
    assert complete_all(app, tokens) == 100
    app.rollback()
    assert set(statuses(inbox, ids)) == {"processing"}
    inbox.age(ids[7], token_expires_at=40_000)
    inbox.claim(ids[7])
    with Refused("OW001") as it:
        complete_all(app, tokens)
    assert it.error.diag.message_detail.startswith(f"1 of 100: '{ids[7]}' of consumer 'test_all_are_completed_or_none' is not valid.")
    assert it.error.diag.message_detail.endswith("or their messages were completed longer than compact_after ago.")
    assert "complete_valid" in it.error.diag.message_hint
    assert set(statuses(inbox, ids)) == {"processing"}
    tokens[7] = inbox.token(ids[7])
    assert complete_all(app, tokens) == 100
    assert {(inbox.row(i).status, inbox.row(i).completed_at is not None) for i in ids} == {("completed", True)}


def test_used_ones_are_told_from_those_that_are_not_valid(inbox, app):
    ids, tokens = claimed(inbox, 17)
    complete_all(app, tokens[:12])
    with Refused("OW001") as it:
        complete_all(app, tokens)
    detail = it.error.diag.message_detail
    assert detail.startswith("12 of 17: ") and detail.count(" is used") == 10 and detail.endswith("; and 2 more.")
    inbox.fail(ids[12])
    with Refused("OW001") as it:
        complete_all(app, tokens[12:])
    assert "is given up: failed (answered 500)" in it.error.diag.message_detail
    with Refused("OW003") as it:
        complete_all(app, tokens[:12])
    assert "12 messages" in it.error.diag.message_detail and "answer with an error" in it.error.diag.message_hint


def test_valid_ones_are_completed_and_answered_in_the_order_of_the_array(inbox, app):
    ids, tokens = claimed(inbox, 100)
    complete_all(app, [tokens[3], tokens[50]])
    inbox.fail(ids[99])
    assert complete_valid(app, tokens) == [t for n, t in enumerate(tokens) if n not in (3, 50, 99)]
    assert [i for i in ids if inbox.row(i).status != "completed"] == [ids[99]]
    assert complete_valid(app, tokens) == []


def test_a_token_past_its_window_still_completes(inbox, app):
    ids, tokens = claimed(inbox, 2)
    inbox.age(ids[0], token_expires_at=90_000)
    assert complete_all(app, tokens) == 2


def test_a_lost_token_tells_nothing_about_the_row(inbox, app):
    inbox.claim("m1", "m2")
    inbox.settle("m2")
    stale = [inbox_sql.token_text(inbox.consumer, i, str(uuid.uuid4())) for i in ("m1", "m2", "gone")]
    with Refused("OW001") as it:
        complete_all(app, stale)
    assert it.error.diag.message_detail.count("is not valid") == 3


@pytest.mark.parametrize("name", CALLS)
def test_bad_arrays(inbox, app, name):
    call = CALLS[name]
    ids, tokens = claimed(inbox, 3)
    with Refused("OW002") as it:
        call(app, None)
    assert it.error.diag.message_detail == "The array is NULL."
    with Refused("OW002") as it:
        call(app, tokens + [None])
    assert it.error.diag.message_detail == "At place 4 of the array: The token is NULL."
    with Refused("OW002") as it:
        call(app, [tokens[0], "ow1.x", tokens[1]])
    assert it.error.diag.message_detail.startswith("At place 2 of the array: ")
    with Refused("OW002") as it:
        call(app, tokens + [tokens[1]])
    assert it.error.diag.message_detail == "At the places 2 and 4 of the array."
    stale = inbox_sql.token_text(inbox.consumer, "other", str(uuid.uuid4()))
    with Refused("OW002"):
        call(app, [stale, stale, None])
    with Refused("OW002") as it:
        call(app, [str(n) for n in range(10_001)])
    assert it.error.diag.message_detail == "There are 10001; a call takes at most 10000."
    assert set(statuses(inbox, ids)) == {"processing"}
    assert call(app, []) == {"complete_all": 0, "complete_valid": [], "extend_all": None}[name]


def token_of(consumer, message_id, *, before=None, secret=None):
    part = lambda data: base64.urlsafe_b64encode(data).rstrip(b"=").decode()
    keys = [consumer + b"\0" + i for i in (message_id, before) if i is not None]
    return ".".join(["ow1", *map(part, keys), part(secret or uuid.uuid4().bytes)])


def damaged(token, r):
    at, some = r.randrange(len(token)), r.choice("ABQgwEIMZaz09-_.+/= ,\u00f6")
    return r.choice([token[:at] + some + token[at + 1:], token[:at] + token[at + 1:], token[:at] + some + token[at:], token[:-1] + some,
                     token[:-24] + some + token[-23:], token + "." + token, token[:at], token[at:], token + ".ow1", None])


def arrays(r):
    """Of one to three tokens, most of them with one that is damaged, or cut elsewhere than between the tokens."""
    ids = [r.randbytes(r.randrange(1, 30)).hex().encode(), b"x" * r.randrange(400, 700), "\u00e4\u20ac".encode(), b"a\\b", b"", b"\xff", b"a\0b",
           b"a\0", b"a\\b\0"]
    tokens = [token_of(r.choice([b"a\\b", *(b"c" * r.randrange(0, 9) for _ in range(8))]), r.choice(ids[:1] * 9 + ids), before=b"m0" if r.random() < 0.1 else None)
              for _ in range(r.randrange(1, 4))]
    whole = ".".join(tokens)
    yield tokens
    yield [damaged(t, r) if t is tokens[0] else t for t in tokens]
    yield [damaged(t, r) for t in tokens + tokens[:1]]
    yield whole.split(".")
    yield [whole]
    one = tokens[0]
    yield from ([t] for t in ("ow2." + one[4:], one[:-5] + "+" + one[-4:], one[:-10] + "." + one[-9:], token_of(b"a\\b", b"m\0")))
    # As long as a token, with the first part where the secret of another one is.
    yield [tokens[0] + ".ow1", token_of(b"c", b"m" * 17, secret=b"c\0" + b"m" * 14)[4:]]


def test_tokens_are_read_together_as_one_by_one(pg):
    """Each array gives the same parts or the same error, even if the check for duplicate tokens comes last."""
    pg.query("""
        CREATE FUNCTION public.reads(tokens text[], together boolean) RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
        SET plan_cache_mode = force_generic_plan AS $$
        DECLARE v_read text; v_detail text;
        BEGIN
            IF together THEN
                v_read := (SELECT array_agg(t.ord || ' ' || ARRAY[t.consumer, t.message_id, encode(t.secret, 'hex'), t.before]::text)::text
                           FROM onceward.tokens_read(tokens) t);
                PERFORM onceward.tokens_check(tokens);
                RETURN v_read;
            END IF;
            PERFORM onceward.tokens_check(tokens);
            RETURN (SELECT array_agg(s.ord || ' ' || ARRAY[s.key[1], s.key[2], s.key[3], s.key[4]]::text)::text
                    FROM (SELECT u.ord, onceward.token_read(u.token, u.ord::integer) AS key
                          FROM (SELECT * FROM unnest(tokens) WITH ORDINALITY u (token, ord) ORDER BY u.token COLLATE "C" OFFSET 0) u OFFSET 0) s);
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS v_detail = PG_EXCEPTION_DETAIL;
            RETURN SQLSTATE || ': ' || v_detail;
        END $$""")
    r = random.Random(7)
    for _ in range(300):
        for tokens in arrays(r):
            together, single = pg.query("SELECT public.reads(%s, true), public.reads(%s, false)", (tokens, tokens))[0]
            assert together == single and (single[0] == "{" or single.startswith("OW002")), tokens


def test_ten_thousand_at_once(inbox, app):
    inbox.query("INSERT INTO onceward.inbox (consumer, message_id, status, attempt, token, fingerprint, received_at, token_expires_at,"
                " max_expires_at, claimed_by) SELECT %s, i::text, 'processing', 1, md5(i::text)::uuid, '\\x00', t, t + '1 min', t + '1 min', 'a'"
                " FROM generate_series(1, 10000) i, clock_timestamp() t", inbox.consumer)
    rows = inbox.query("SELECT message_id, token FROM onceward.inbox WHERE consumer = %s ORDER BY random()", inbox.consumer)
    tokens = [inbox_sql.token_text(inbox.consumer, row.message_id, str(row.token)) for row in rows]
    assert complete_valid(app, tokens) == tokens
    with Refused("OW003"):
        complete_all(app, tokens)


def test_several_consumers_and_ids_that_need_quoting(inbox, sessions, pg, app):
    second = Inbox(pg, "Ä\\ '" + inbox.consumer)
    inbox.claim("a", "ä/𝄞", "back\\slash", "q'uote")
    second.claim("a", "ä/𝄞")
    tokens = [s.token(i) for s, i in ((second, "a"), (inbox, "q'uote"), (inbox, "a"), (second, "ä/𝄞"), (inbox, "ä/𝄞"), (inbox, "back\\slash"))]
    assert complete_valid(app, tokens) == tokens
    with Refused("OW003"):
        complete_all(app, tokens)
    second.close()


def test_two_tokens_of_one_message_are_not_the_same(inbox, app):
    inbox.claim("m1")
    stale = inbox.token("m1")
    inbox.age("m1", token_expires_at=40_000)
    inbox.claim("m1")
    with Refused("OW001"):
        complete_all(app, [inbox.token("m1"), stale])
    assert complete_valid(app, [stale, inbox.token("m1")]) == [inbox.token("m1")]


def test_a_savepoint_takes_it_back(inbox, app):
    ids, tokens = claimed(inbox, 5)
    app.begin()
    app.query("SAVEPOINT s")
    complete_all(app, tokens)
    app.query("ROLLBACK TO s")
    assert complete_valid(app, tokens) == tokens
    with Refused("OW003"):
        complete_all(app, tokens)
    app.rollback()
    assert set(statuses(inbox, ids)) == {"processing"}


def test_synchronous_commit_is_raised(inbox, app):
    _, tokens = claimed(inbox, 2)
    for call in (lambda: complete_all(app, tokens[:1]), lambda: complete_valid(app, tokens[1:])):
        app.begin()
        app.query("SET LOCAL synchronous_commit = off")
        call()
        assert app.value("SHOW synchronous_commit") == "on"
        app.commit()


def waiting(pg, session):
    return pg.query("SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s", (session.pid,))[0][0]


def behind(pg, session, call):
    """Calls it in a thread, and answers once it waits for a lock: (thread, [answer or error])."""
    found = []

    def run():
        try:
            found.append(call())
        except psycopg2.Error as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: waiting(pg, session), "the call waits")
    return thread, found


@pytest.mark.parametrize("name", ["complete_all", "complete_valid"])
def test_a_row_that_was_extended_during_the_wait_is_completed(pg, inbox, sessions, app, name):
    """The version that was locked is not in the snapshot of the statement that waited."""
    ids, tokens = claimed(inbox, 3)
    other = sessions(Application)
    app.begin()
    app.extend(tokens[1], 40)
    thread, found = behind(pg, other, lambda: CALLS[name](other, tokens))
    app.commit()
    thread.join(60)
    assert found == [3 if name == "complete_all" else tokens]
    assert set(statuses(inbox, ids)) == {"completed"}


def test_a_row_that_was_used_during_the_wait(pg, inbox, sessions, app):
    ids, tokens = claimed(inbox, 3)
    other = sessions(Application)
    app.begin()
    app.complete(tokens[1])
    thread, found = behind(pg, other, lambda: complete_valid(other, tokens))
    app.commit()
    thread.join(60)
    assert found == [[tokens[0], tokens[2]]]
    ids, tokens = claimed(inbox, 3, "n")
    app.begin()
    app.complete(tokens[1])
    thread, found = behind(pg, other, lambda: complete_all(other, tokens))
    app.commit()
    thread.join(60)
    assert found[0].pgcode == "OW001" and "is used" in found[0].diag.message_detail
    app.begin()
    app.complete(tokens[0])
    thread, found = behind(pg, other, lambda: complete_all(other, tokens[:1] + tokens[2:]))
    app.rollback()
    thread.join(60)
    assert found == [2]


@pytest.mark.parametrize("name", ["complete_all", "complete_valid"])
@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_row_that_changed_since_the_snapshot_is_a_serialization_failure(inbox, sessions, app, isolation, name):
    _, tokens = claimed(inbox, 3)
    other = sessions(Application)
    other.begin(isolation)
    other.query("SELECT 1")
    app.complete(tokens[1])
    with pytest.raises(psycopg2.errors.SerializationFailure):
        CALLS[name](other, tokens)
    other.rollback()


def race(pg, consumer, isolation, call):
    """8 connections, each of which takes 40 of 400 tokens in random order, three times of four to roll back. Answers the
    SQLSTATEs that were raised."""
    inbox = Inbox(pg, consumer)
    tokens = []
    for start in range(0, 400, 100):
        ids = [f"r{i:04}" for i in range(start, start + 100)]
        inbox.claim(*ids, window=600_000)
        tokens += [inbox.token(i) for i in ids]
    pg.query("CREATE TABLE IF NOT EXISTS effects (token text)")
    pg.query("GRANT INSERT ON effects TO app_login")
    pg.query("TRUNCATE effects")
    raised = set()

    def run(seed):
        app, dice = Application(pg), random.Random(seed)
        for _ in range(40):
            chosen = dice.sample(tokens, 40)
            try:
                app.begin(isolation)
                for token in call(app, chosen):
                    app.query("INSERT INTO effects VALUES (%s)", token)
                app.query("COMMIT" if dice.random() < 0.25 else "ROLLBACK")
            except psycopg2.Error as error:
                raised.add(error.pgcode)
                app.rollback()
        app.close()

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    completed = pg.query("SELECT count(*) FROM onceward.inbox WHERE consumer = %s AND status = 'completed'", (consumer,))[0][0]
    n, distinct = pg.query("SELECT count(*), count(DISTINCT token) FROM effects")[0]
    assert n == distinct == completed > 0
    inbox.close()
    return raised


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_tokens_in_any_order_never_deadlock_and_are_done_once(pg, request, isolation):
    raised = race(pg, request.node.name, isolation, complete_valid)
    assert raised <= (set() if isolation == "READ COMMITTED" else {"40001"}), raised


def test_all_tokens_in_any_order_never_deadlock(pg, request):
    def done(app, tokens):
        complete_all(app, tokens)
        return tokens

    assert race(pg, request.node.name, "READ COMMITTED", done) <= {"OW001", "OW003"}


@pytest.mark.long
def test_the_race_finds_a_deadlock_where_there_is_one(pg, request):
    """Completing one by one, in the order of each array, does deadlock: the test above could fail."""

    def one_by_one(app, tokens):
        done = []
        for token in tokens:
            try:
                app.query("SAVEPOINT s")
                app.complete(token)
                done.append(token)
            except psycopg2.Error as error:
                if error.pgcode == "40P01":
                    raise
                app.query("ROLLBACK TO s")
        return done

    assert "40P01" in race(pg, request.node.name, "READ COMMITTED", one_by_one)


def test_plans_do_not_depend_on_statistics(pg, inbox, app):
    """The plan is made while the table is empty by its statistics, and used while it is not."""
    ids, tokens = claimed(inbox, 100)
    complete_valid(app, tokens)
    pg.query("INSERT INTO onceward.inbox (consumer, message_id, status, attempt, token, fingerprint, received_at, token_expires_at,"
             " max_expires_at, claimed_by) SELECT 'large', i::text, 'completed', 1, md5(i::text)::uuid, '\\x00', t, t, t, 'a'"
             " FROM generate_series(1, 50000) i, clock_timestamp() t")
    for name in CALLS:
        _, tokens = claimed(inbox, 100, name)
        seconds = ", 5" if name == "extend_all" else ""
        pages = app.pages(f"SELECT onceward.{name}(%s::text[]{seconds})", tokens)
        assert pages < 3_000, f"{name}: {pages} pages for 100 tokens"


def test_extending_a_request(inbox, app, sessions):
    ids, tokens = claimed(inbox, 3)
    assert 49 < extend_all(app, tokens, 50) <= 50
    assert 59 < extend_all(app, tokens, 1e300) <= 60, "max_window is the cap"
    assert 59 < extend_all(app, tokens, 1) <= 60, "no window becomes shorter"
    app.begin()
    app.complete(tokens[0])
    other = sessions(Application)
    assert 59 < quickly(lambda: extend_all(other, tokens, 5)) <= 60, "its own application is completing one"
    app.commit()
    with Refused("OW001") as it:
        extend_all(app, tokens, 5)
    assert f"1 of 3: '{ids[0]}'" in it.error.diag.message_detail and "is used" in it.error.diag.message_detail
    with Refused("OW003"):
        extend_all(app, tokens[:1], 5)
    for seconds in (0, -1, None, "NaN"):
        with Refused("OW002"):
            extend_all(app, tokens[1:], seconds)
    inbox.claim("short", window=2_000)
    assert extend_all(app, tokens[1:] + [inbox.token("short")], 0.001) < 3, "the first end of all"


def test_a_parameter_without_a_type_is_inferred(app):
    """Drivers that ask the server for the types of parameters get an array of text."""
    app.query("PREPARE p AS SELECT onceward.complete_all($1), onceward.complete_valid($2), onceward.extend_all($3, $4)")
    assert app.value("SELECT parameter_types::text FROM pg_prepared_statements WHERE name = 'p'") == '{text[],text[],text[],"double precision"}'


def test_the_cap_of_a_batch_outlives_claims(inbox, sessions):
    other = sessions(Inbox, "b")
    assert [row.batch_cap for row in inbox.claim("m1", "m2", "m3")] == [0, 0, 0]
    inbox.release("m1", batch_cap=50)
    inbox.fail("m2", delay=0, batch_cap=8)
    inbox.fail("m3", delay=0, give_back=True, batch_cap=1)
    assert [row.batch_cap for row in other.claim("m1", "m2", "m3")] == [50, 8, 1]
    other.release("m1")
    other.fail("m2", delay=0)
    assert [row.batch_cap for row in inbox.claim("m1", "m2")] == [50, 8], "what is not written stays"
    inbox.bury(("m2", Letter(deaths=1)))
    pg_id = inbox.letters()[0].id
    assert inbox.value("SELECT onceward.sidecar_redrive(%s)", pg_id) == "reset"
    assert inbox.claim("m2")[0].batch_cap == 0, "a message that is redriven is no suspect"


# --- messages of one key in one request ---

def token_behind(inbox, message_id, before):
    """The token of a message that is in one request with the message before it in its key."""
    head, key, secret = inbox.token(message_id).split(".")
    return ".".join([head, key, inbox.token(before).split(".")[1], secret])


@pytest.fixture
def run(inbox):
    """Three messages of one key, in their order, with the tokens of one request."""
    inbox.claim("m1", "m2", "m3")
    return [inbox.token("m1"), token_behind(inbox, "m2", "m1"), token_behind(inbox, "m3", "m2")]


def test_a_message_is_completed_after_the_one_before_it_in_its_key(inbox, app, run):
    with Refused("OW001") as it:
        app.complete(run[1])
    assert it.error.diag.message_primary == "this transaction token is not valid yet"
    assert it.error.diag.message_detail.endswith("comes behind message 'm1' in its key, which is not completed.")
    assert "424" in it.error.diag.message_hint
    app.begin()
    app.complete(run[0])
    app.complete(run[1], "with a result")
    app.rollback()
    assert statuses(inbox, ["m1", "m2", "m3"]) == ["processing"] * 3
    app.complete(run[0])
    app.complete(run[1])
    app.complete(run[2])
    assert statuses(inbox, ["m1", "m2", "m3"]) == ["completed"] * 3
    with Refused("OW003"):
        app.complete(run[2])


def test_an_open_transaction_with_the_one_before_it_does_not_let_it_pass(inbox, app, run, sessions):
    other = sessions(Application)
    other.begin()
    other.complete(run[0])
    with Refused("OW001"):
        app.complete(run[1])
    assert complete_valid(app, run[1:]) == []
    with Refused("OW001"):
        complete_all(app, run[1:])
    other.commit()
    assert complete_valid(app, run[1:]) == run[1:]


def test_a_token_that_is_spelled_in_two_ways_is_used_once(inbox, app, run):
    with Refused("OW001") as it:
        complete_all(app, [run[1], run[0], inbox.token("m2")])
    assert it.error.diag.message_detail == f"1 of 3: 'm2' of consumer '{inbox.consumer}' is used."
    assert statuses(inbox, ["m1", "m2", "m3"]) == ["processing"] * 3


def test_the_one_before_is_completed_while_a_call_waits(pg, inbox, app, run, sessions):
    """It was not completed when the call began, so the call fails. The DETAIL is true when the call ends."""
    inbox.claim("z")
    first, second, last = sessions(Application), sessions(Application), inbox.token("z")
    assert run[1] < last, "the order in which their rows are changed"
    first.begin()
    first.complete(run[0])
    second.begin()
    second.complete(last)
    thread, found = behind(pg, app, lambda: complete_all(app, [last, run[1]]))
    first.commit()
    second.rollback()
    thread.join(60)
    assert found[0].pgcode == "OW001"
    assert found[0].diag.message_detail == "The message before one of them in its key was completed only during this call."
    assert complete_all(app, [last, run[1]]) == 2


def test_all_of_a_key_are_completed_together_in_any_order(inbox, app, run):
    with Refused("OW001") as it:
        complete_all(app, [run[2], run[0]])
    assert it.error.diag.message_detail.startswith("1 of 2: 'm3' of consumer ")
    assert "is behind 'm2' in its key, which is neither completed nor among these tokens" in it.error.diag.message_detail
    assert complete_all(app, [run[2], run[0], run[1]]) == 3
    assert statuses(inbox, ["m1", "m2", "m3"]) == ["completed"] * 3


def test_the_valid_ones_of_a_key_end_at_the_first_that_is_missing(inbox, app, run):
    inbox.claim("other")
    assert complete_valid(app, [run[0], run[2], inbox.token("other")]) == [run[0], inbox.token("other")]
    assert complete_valid(app, run) == run[1:]


def test_the_valid_ones_of_a_key_end_at_the_first_that_was_taken_over(inbox, app, run):
    inbox.age("m2", token_expires_at=40_000)
    inbox.claim("m2")
    assert complete_valid(app, run) == [run[0]]
    assert statuses(inbox, ["m1", "m2", "m3"]) == ["completed", "processing", "processing"]


def test_a_row_that_is_gone_is_not_completed(inbox, app, run, raw_postgres, pg):
    app.complete(run[0])
    raw_postgres.query(f"DELETE FROM onceward.inbox WHERE consumer = '{inbox.consumer}' AND message_id = 'm1'", database=pg.database)
    with Refused("OW001"):
        app.complete(run[1])


@pytest.mark.parametrize("wrong", ["AA", "A", "*", "b3JkZXJzAG0tMQ", "b3JkZXJzAG0tM"])
def test_what_stands_for_the_one_before_is_checked(inbox, app, run, wrong):
    parts = run[1].split(".")
    token = ".".join([parts[0], parts[1], wrong, parts[3]])
    for call in (lambda: app.complete(token), lambda: complete_all(app, [token]), lambda: complete_valid(app, [token])):
        with Refused("OW002"):
            call()
    assert statuses(inbox, ["m2"]) == ["processing"]


def test_a_token_behind_another_one_is_extended(inbox, app, run):
    assert 39 < app.extend(run[1], 40) <= 40
    assert 44 < extend_all(app, run, 45) <= 45
