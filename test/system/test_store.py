"""`store`: messages are written whole with their first claim, once; in one claim in the order of arrival; their days are made ahead and dropped whole."""

import os
import threading
import time
import uuid

import pytest

from rig import inbox_sql, schema
from rig.inbox_sql import fingerprint
from rig.wait import wait_until
from test_large_letters import sessions

BINARY = os.environ.get("ONCEWARD_FAILPOINT_BINARY", "")
STORE = {"store": {"retention": "30d"}}
DAY = 86400000

CLAIM = ("SELECT * FROM onceward.sidecar_claim_store_many(true, 'a', 5, false, NULL, 2000, %s::text[], '{10s}', '{20s}', '{8}', '{3}',"
         " %s::integer[], %s::text[], %s::uuid[], %s::bytea[], NULL, NULL, NULL, %s::bigint[], NULL, NULL, NULL, %s::bytea[])")
KEEP = "SELECT * FROM onceward.sidecar_keep_messages(%s::text[], %s::bigint[], %s)"


def stored(bed, consumer=None):
    return bed.rows("SELECT * FROM onceward.message WHERE consumer = %s ORDER BY received_at, seq", consumer or bed.queue.name)


# by the sidecar


def test_a_message_is_stored_whole(bed):
    """Also its headers, whatever kinds they have, an empty body, and one that is no text."""
    bodies = {f"m{9 - i}": os.urandom(50 * i) for i in range(8)}
    for message_id, body in bodies.items():
        bed.queue.publish(message_id, body, type="order", headers={"x-n": 5, "list": [1, "a"]}, content_type="a/b", priority=3)
    bed.queue.sync()
    bed.sidecar(**STORE)
    bed.wait_for_effects(bodies)
    rows = stored(bed)
    assert {r["message_id"]: bytes(r["body"]) for r in rows} == bodies and len(rows) == len(bodies)
    assert {(r["message_type"], r["exchange"], r["routing_key"]) for r in rows} == {("order", "", bed.queue.name)}
    header = bytes(rows[0]["content_header"])
    assert b"x-n" in header and b"a/b" in header and b"list" in header
    assert all(r["received_at"] == bed.row(r["message_id"])["received_at"] for r in rows)
    bed.assert_once(*bodies)
    bed.assert_acked()


@pytest.mark.parametrize("completion", ["transaction", "response"])
def test_retries_and_copies_store_nothing_more(bed, completion):
    bed.app.handler = lambda request, reply: 500 if request.attempt < 3 else bed.app.commit_and_answer(request, reply)
    sidecar = bed.sidecar(completion=completion, **STORE)
    bed.queue.publish_many(["m1", "m2", "m1"])
    for message_id in ("m1", "m2"):
        sidecar.wait_for("completed", message_id=message_id)
    bed.queue.publish_many(["m1"])
    sidecar.wait_for("duplicate", message_id="m1")
    assert sorted(r["message_id"] for r in stored(bed)) == ["m1", "m2"]


def test_a_queue_without_store_beside_one_with_it_stores_nothing(bed):
    other = bed.new_queue("-plain")
    config = bed.config(**STORE)
    config["queues"][other.name] = {k: v for k, v in config["queues"][bed.queue.name].items() if k != "store"}
    bed.sidecar(config=config)
    bed.queue.publish_many(["m1"])
    other.publish_many(["p1"])
    bed.wait_for_effects(["m1", "p1"])
    assert [r["message_id"] for r in stored(bed)] == ["m1"] and not stored(bed, other.name)


def test_large_messages_are_stored_and_the_connection_gives_their_memory_back(bed):
    sidecar = bed.sidecar(**STORE)
    bodies = {f"m{i}": os.urandom(3 << 20) for i in range(3)}
    for message_id, body in bodies.items():
        bed.queue.publish(message_id, body)
    bed.queue.publish_many(["small"])
    bed.wait_for_effects([*bodies, "small"])
    assert {r["message_id"]: bytes(r["body"]) for r in stored(bed) if r["message_id"] != "small"} == bodies
    sidecar.wait_for_nothing_held()
    bed.assert_acked()


def test_a_letter_has_the_message_that_is_stored(bed):
    bed.app.handler = lambda request, reply: 400
    sidecar = bed.sidecar(**STORE)
    bed.queue.publish("m1", b"\x00\xff", headers={"x": 1})
    sidecar.wait_for("dead", message_id="m1")
    letter, = bed.letters("m1")
    row, = stored(bed)
    assert bytes(letter["body"]) == bytes(row["body"]) == b"\x00\xff"
    assert bytes(letter["content_header"]) == bytes(row["content_header"])


def test_the_days_to_come_are_there_before_the_first_claim(fresh_bed):
    bed = fresh_bed
    bed.sidecar(**STORE)
    bed.queue.publish_many(["m1"])
    bed.wait_for_effects(["m1"])
    row, = bed.rows("SELECT tableoid::regclass::text AS part, to_char(received_at AT TIME ZONE 'UTC', 'YYYYMMDD') AS day FROM onceward.message")
    assert row["part"] == f"onceward.message_{row['day']}"
    assert len(days(bed.postgres)) == 8


def test_a_day_that_is_past_the_retention_goes_and_that_is_told(fresh_bed):
    bed = fresh_bed
    make_day(bed.postgres, 32)
    make_day(bed.postgres, 31)
    make_day(bed.postgres, 29)
    sidecar = bed.sidecar(**STORE)
    wait_until(lambda: len(days(bed.postgres)) == 9, lambda: f"the old days are dropped; there are {days(bed.postgres)}")
    wait_until(lambda: len(sidecar.find("day_dropped")) == 2, "both are told")


def test_the_sidecar_has_no_ddl(bed):
    """The function is the owner's; what it makes nobody else may touch by its own name."""
    bed.sidecar(**STORE)
    bed.queue.publish_many(["m1"])
    bed.wait_for_effects(["m1"])
    part, = bed.rows("SELECT tableoid::regclass::text AS name FROM onceward.message WHERE consumer = %s", bed.queue.name)
    for sql in (f"DROP TABLE {part['name']}", "TRUNCATE onceward.message", "DELETE FROM onceward.message",
                f"SELECT FROM {part['name']}", "UPDATE onceward.message SET body = ''"):
        with pytest.raises(Exception, match="permission denied|must be owner"):
            bed.postgres.query(sql, user="sidecar_login")
    with pytest.raises(Exception, match="permission denied"):
        bed.postgres.query("SELECT FROM onceward.message", user="app_login")


@pytest.mark.skipif(not os.access(BINARY, os.X_OK), reason="ONCEWARD_FAILPOINT_BINARY names no program")
def test_without_a_queue_a_failure_is_told_all_the_same(fresh_bed):
    """A sidecar with an outbox alone keeps the days of others."""
    bed = fresh_bed
    bed.postgres.query("REVOKE EXECUTE ON FUNCTION onceward.sidecar_make_messages(text[], bigint[], bigint) FROM onceward_sidecar")
    sidecar = bed.sidecar(wait=False, top={"queues": None, "outbox": {}}, binary=BINARY, environment={"ONCEWARD_FAILPOINT": "days_ms=200"})
    told = sidecar.wait_for("limits", reason=lambda reason: "stored messages could not be maintained" in reason)
    assert "permission denied" in told["reason"] and told.get("queue") is None
    name = make_day(bed.postgres, 40)
    bed.postgres.query("GRANT EXECUTE ON FUNCTION onceward.sidecar_make_messages(text[], bigint[], bigint) TO onceward_sidecar")
    sidecar.wait_for("day_dropped", partition=name)


@pytest.mark.skipif(not os.access(BINARY, os.X_OK), reason="ONCEWARD_FAILPOINT_BINARY names no program")
def test_a_day_that_somebody_took_out_is_told_once_and_messages_are_stored(fresh_bed):
    bed = fresh_bed
    sidecar = bed.sidecar(binary=BINARY, environment={"ONCEWARD_FAILPOINT": "days_ms=100"}, **STORE)
    wait_until(lambda: len(days(bed.postgres)) == 8, "the days are made")
    today, *others = days(bed.postgres)
    bed.postgres.query(f"ALTER TABLE onceward.message DETACH PARTITION onceward.{today}")
    told = sidecar.wait_for("limits", reason=lambda reason: today in reason)
    assert "is no partition" in told["reason"] and "ATTACH PARTITION" in told["reason"]
    for name in others[:3]:  # it goes on with the others, again and again
        bed.postgres.query(f"DROP TABLE onceward.{name}")
        wait_until(lambda: name in days(bed.postgres), f"{name} is made again")
    bed.queue.publish_many(["m1"])
    bed.wait_for_effects(["m1"])
    assert [r["message_id"] for r in stored(bed)] == ["m1"]
    assert bed.rows("SELECT count(*)::int AS n FROM onceward.message_default")[0]["n"] == 1
    assert len(sidecar.find("limits", reason=lambda reason: today in reason)) == 1


def test_days_beside_a_large_default_partition_are_made_and_claims_go_on(fresh_bed):
    """PostgreSQL reads all of it for each day: here that takes longer than a statement may."""
    bed = fresh_bed
    keep(bed.postgres, c=30 * DAY)
    wanted = days(bed.postgres)
    bed.postgres.query(f"DROP TABLE onceward.{wanted[6]}, onceward.{wanted[7]}")
    fill_default(bed.postgres)
    bed.postgres.query("CREATE FUNCTION public.slow_attach() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN"
                       " IF EXISTS (SELECT FROM pg_event_trigger_ddl_commands() WHERE object_identity = 'onceward.message') THEN"
                       " PERFORM pg_sleep(1.5); END IF; END $$")
    bed.postgres.query("CREATE EVENT TRIGGER slow_attach ON ddl_command_end WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION public.slow_attach()")
    sidecar = bed.sidecar(top={"database": {"statement_timeout": "1s"}}, **STORE)
    wait_until(lambda: sessions(bed, "PgSleep") == 1, "a day is being made")
    bed.queue.publish_many(["m1"])
    bed.wait_for_effects(["m1"])
    assert len(days(bed.postgres)) == 6 and len(stored(bed)) == 1
    wait_until(lambda: days(bed.postgres) == wanted, lambda: f"all days are made; there are {days(bed.postgres)}")
    wait_until(lambda: sessions(bed) == 1, "the second connection is closed")
    assert not sidecar.find("limits")


def slow_drops(bed):
    """Large files on a slow disk: a dropped table takes until the connection that is answered is closed."""
    bed.postgres.query("CREATE FUNCTION public.slow_drop() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN"
                       " WHILE NOT pg_try_advisory_xact_lock(4711) LOOP PERFORM pg_sleep(0.02); END LOOP; END $$")
    bed.postgres.query("CREATE EVENT TRIGGER slow_drop ON sql_drop WHEN TAG IN ('DROP TABLE') EXECUTE FUNCTION public.slow_drop()")
    holder = bed.postgres.connect()
    with holder.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(4711)")
    return holder


def test_claims_go_on_while_a_day_is_dropped(fresh_bed):
    """The drop has a connection of its own, as long as it needs one."""
    bed = fresh_bed
    name = make_day(bed.postgres, 40)
    holder = slow_drops(bed)
    sidecar = bed.sidecar(**STORE)
    wait_until(lambda: sessions(bed, "PgSleep") == 1, "it is being dropped")
    wanted = [f"m{i}" for i in range(20)]
    bed.queue.publish_many(wanted)
    bed.wait_for_effects(wanted)
    assert sessions(bed, "PgSleep") == 1 and not sidecar.find("day_dropped") and len(stored(bed)) == 20
    holder.close()
    sidecar.wait_for("day_dropped", partition=name)
    wait_until(lambda: sessions(bed) == 1, "the second connection is closed")
    bed.assert_acked()


def test_a_drop_whose_connection_is_lost_is_tried_again(fresh_bed):
    bed = fresh_bed
    name = make_day(bed.postgres, 40)
    holder = slow_drops(bed)
    sidecar = bed.sidecar(**STORE)
    wait_until(lambda: sessions(bed, "PgSleep") == 1, "it is being dropped")
    bed.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'onceward' AND datname = current_database()"
             " AND wait_event = 'PgSleep'")
    sidecar.wait_for("disconnected", peer="database")
    bed.queue.publish_many(["m1"])
    bed.wait_for_effects(["m1"])
    holder.close()
    sidecar.wait_for("day_dropped", partition=name)


@pytest.fixture
def fresh_bed(request, tmp_path, fresh_postgres, rabbitmq):
    """A bed with a database of its own, so that its days are only this test's."""
    from rig.bed import Bed
    schema.require_binary()
    made = Bed(request.node.name, tmp_path, fresh_postgres, rabbitmq)
    request.node.bed = made
    yield made
    made.deinit()


# the functions alone


@pytest.fixture
def pg(raw_postgres):
    database = raw_postgres.create_database(f"store_{uuid.uuid4().hex[:8]}")
    inbox_sql.load(database)
    yield database
    raw_postgres.query(f'DROP DATABASE "{database.database}" WITH (FORCE)', database="postgres")


def days(pg):
    return [name for name, in pg.query("SELECT relname::text FROM pg_class WHERE relnamespace = 'onceward'::regnamespace"
                                       " AND relname ~ '^message_[0-9]{8}$' ORDER BY 1")]


def make_day(pg, ago):
    """The partition of a day so long ago, with a message in it."""
    name, = pg.query("SELECT to_char(now() AT TIME ZONE 'UTC' - %s * interval '1 day', 'YYYYMMDD')", (ago,))[0]
    owner, = pg.query("SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'onceward'")[0]
    pg.query(f"CREATE TABLE onceward.message_{name} PARTITION OF onceward.message FOR VALUES FROM ('{name} 00:00:00+00') TO"
             f" ('{name} 24:00:00+00')")
    pg.query(f"ALTER TABLE onceward.message_{name} OWNER TO {owner}")
    pg.query("INSERT INTO onceward.message (consumer, message_id, received_at, exchange, routing_key, body) VALUES ('old', %s, %s, '', '', '')",
             (name, f"{name} 12:00:00+00"))
    return f"message_{name}"


def fill_default(pg):
    """20 MB that belong to no day that is there."""
    pg.query("INSERT INTO onceward.message_default (consumer, message_id, received_at, exchange, routing_key, body)"
             " SELECT 'old', i::text, now() - interval '5 days', '', '', convert_to(repeat('x', 1800), 'UTF8') FROM generate_series(1, 10000) i")


def keep(pg, ahead_ms=0, **retentions):
    columns = "made, dropped, more, busy, stuck, ahead_ms"
    clock = int(time.time() * 1000) - ahead_ms
    found, = pg.query(KEEP.replace("*", columns), (list(retentions), list(retentions.values()), clock), user="sidecar_login")
    return dict(zip(columns.split(", "), found))


def drop(pg, **retentions):
    """The oldest day goes: taken out of the table by one call, dropped by the next one."""
    first = keep(pg, **retentions)
    assert first["dropped"] is None and first["more"] and not first["stuck"], first
    return keep(pg, **retentions)


def claim(pg, ids, tokens=None, bodies=None, connection=None, arrivals=None):
    tokens = tokens or [str(uuid.uuid4()) for _ in ids]
    parameters = (["c"], [1] * len(ids), ids, tokens, [fingerprint(b"body")] * len(ids), arrivals or list(range(len(ids))), bodies or [b"body"] * len(ids))
    if connection:
        with connection.cursor() as cursor:
            cursor.execute(CLAIM, parameters)
            return cursor.fetchall()
    return pg.query(CLAIM, parameters, user="sidecar_login")


@pytest.mark.parametrize("ahead", ["-1 hour", "1 hour"], ids=["clock", "set back"])
def test_only_what_is_new_is_stored(pg, ahead):
    """Also where an export has passed a horizon that the clock has not reached again."""
    pg.query("UPDATE onceward.horizon SET passed = now() + %s::interval", (ahead,))
    tokens = [str(uuid.uuid4()) for _ in range(3)]
    assert claim(pg, ["a", "b", "c"], tokens)[0][:2] == (-3, "claimed")
    assert {row[1] for row in claim(pg, ["a", "b", "c"], tokens)} == {"claimed"}, "a repeat, with the same tokens"
    assert sorted(row[1] for row in claim(pg, ["b", "d"])) == ["claimed", "held"]
    assert pg.query("SELECT message_id FROM onceward.message ORDER BY seq") == [("a",), ("b",), ("c",), ("d",)]
    # Given back, and claimed anew with attempt 1: the row is not new.
    pg.query("UPDATE onceward.inbox SET status = 'waiting', attempt = 0, next_attempt_at = now() WHERE message_id = 'a'")
    assert claim(pg, ["a"])[0][1:3] == ("claimed", 1)
    # Taken over.
    pg.query("UPDATE onceward.inbox SET token_expires_at = now() - interval '1 hour' WHERE message_id = 'b'")
    assert claim(pg, ["b"])[0][1] == "claimed"
    assert pg.query("SELECT count(*)::int FROM onceward.message") == [(4,)]
    assert pg.query("SELECT count(*)::int FROM onceward.message m JOIN onceward.inbox USING (consumer, message_id, received_at)") == [(4,)]


def test_of_one_claim_they_are_stored_in_the_order_of_arrival(pg):
    """Items come sorted by their ids; and each keeps its own body."""
    claim(pg, ["a", "b", "c"], arrivals=[7, 9, 5], bodies=[b"A", b"B", b"C"])
    claim(pg, ["a", "d", "e"], arrivals=[1, 3, 2], bodies=[b"again", b"D", b"E"])
    assert [(i, bytes(b)) for i, b in pg.query("SELECT message_id, body FROM onceward.message ORDER BY received_at, seq")] == [
        ("c", b"C"), ("a", b"A"), ("b", b"B"), ("e", b"E"), ("d", b"D")]
    assert pg.query("SELECT count(DISTINCT received_at)::int FROM onceward.message") == [(2,)]


def test_bodies_of_some_kib_stay_in_their_rows_compressed_where_the_server_can(pg):
    """Whatever they are: moving them elsewhere, or trying to compress them with what is slow, cost a third of the claims."""
    keep(pg, c=30 * DAY)
    bodies = {"json": b'{"a": 12345678, "b": "abc"},' * 200, "random": os.urandom(7000), "large": os.urandom(50000), "small": b"x" * 1500}
    claim(pg, list(bodies), bodies=list(bodies.values()))
    assert {i: bytes(b) for i, b in pg.query("SELECT message_id, body FROM onceward.message")} == bodies
    has_lz4, = pg.query("SELECT 'lz4' = ANY (enumvals) FROM pg_settings WHERE name = 'default_toast_compression'") or [(False,)]
    sizes = dict(pg.query("SELECT message_id, pg_column_size(body) FROM onceward.message"))
    assert (sizes["json"] < 1000) == has_lz4[0] and sizes["random"] >= 7000 and sizes["small"] >= 1500
    aside, = pg.query("SELECT DISTINCT c.reltoastrelid::regclass::text FROM pg_class c JOIN onceward.message m ON m.tableoid = c.oid")
    chunks, = pg.query(f"SELECT count(DISTINCT chunk_id)::int FROM {aside[0]}")
    assert chunks == (1,), "only the large one"


def test_a_repeat_beside_somebody_who_has_the_row_stores_nothing_more(pg):
    """The row is as the first claim left it, with the same token and window."""
    tokens = [str(uuid.uuid4())]
    claim(pg, ["a"], tokens)
    holder = pg.connect()
    holder.autocommit = False
    with holder.cursor() as cursor:
        cursor.execute("SELECT FROM onceward.inbox WHERE message_id = 'a' FOR UPDATE")
    assert claim(pg, ["a"], tokens)[0][1] == "locked"
    holder.rollback()
    holder.close()
    assert pg.query("SELECT count(*)::int FROM onceward.message") == [(1,)]


def test_what_is_not_committed_is_not_stored(pg):
    connection = pg.connect(user="sidecar_login")
    connection.autocommit = False
    claim(pg, ["a"], connection=connection)
    connection.rollback()
    connection.close()
    assert pg.query("SELECT (SELECT count(*)::int FROM onceward.inbox), (SELECT count(*)::int FROM onceward.message)") == [(0, 0)]


def test_a_null_body_is_not_stored(pg):
    claim(pg, ["a", "b"], bodies=[None, b""])
    assert pg.query("SELECT message_id FROM onceward.message") == [("b",)]


def test_days_are_made_once_and_only_where_somebody_stores(pg):
    assert keep(pg)["made"] == 0 and not days(pg)
    assert keep(pg, c=30 * DAY)["made"] == 8
    assert keep(pg, c=30 * DAY)["made"] == 0 and len(days(pg)) == 8
    claim(pg, ["a"])
    assert pg.query("SELECT count(*)::int FROM onceward.message_default") == [(0,)]


def test_a_day_is_dropped_whole_in_two_calls(pg):
    """The first takes it out of the table, and its commit waits for nothing; what is left by a crash then goes with the next call."""
    names = [make_day(pg, ago) for ago in (5, 4, 3)]
    first = keep(pg, c=3 * DAY)
    assert first["dropped"] is None and first["more"] and names[0] not in days(pg) and pg.query("SELECT to_regclass(%s)::text", (f"onceward.{names[0]}_gone",)) == [
        (f"onceward.{names[0]}_gone",)]
    assert [i for i, in pg.query("SELECT message_id FROM onceward.message WHERE consumer = 'old' ORDER BY 1")] == [name[8:] for name in names[1:]]
    second = keep(pg, c=3 * DAY)
    assert second["dropped"] == names[0] and second["more"] and names[1] in days(pg)
    assert pg.query("SELECT to_regclass(%s)::text", (f"onceward.{names[0]}_gone",)) == [(None,)]
    again = drop(pg, c=3 * DAY)
    assert again["dropped"] == names[1] and not again["more"]
    assert keep(pg, c=3 * DAY)["dropped"] is None and names[2] in days(pg)
    assert pg.query("SELECT message_id FROM onceward.message WHERE consumer = 'old'") == [(names[2][8:],)]


def test_taking_a_day_out_does_not_wait_for_the_disk(pg):
    """Its lock would be held meanwhile."""
    make_day(pg, 5)
    keep(pg, c=30 * DAY)
    pg.query("DELETE FROM onceward.message_retention")
    connection = pg.connect(user="sidecar_login")
    connection.autocommit = False
    with connection.cursor() as cursor:
        for wanted in ("off", "on"):  # taken out; dropped
            cursor.execute(KEEP, (["c"], [DAY], int(time.time() * 1000)))
            cursor.execute("SELECT current_setting('synchronous_commit')")
            assert cursor.fetchone() == (wanted,)
            connection.commit()
    connection.close()


def test_making_days_says_what_is_to_be_dropped_and_drops_nothing(pg):
    make = lambda: pg.query("SELECT made, due FROM onceward.sidecar_make_messages('{c}', ARRAY[%s::bigint], %s)", (30 * DAY, int(time.time() * 1000)),
                            user="sidecar_login")[0]
    assert make() == (8, False)
    name = make_day(pg, 40)
    assert make() == (0, True) and name in days(pg)
    keep(pg, c=30 * DAY)
    assert make() == (0, True) and name not in days(pg), "it is out of the table, and is still to be dropped"
    assert keep(pg, c=30 * DAY)["dropped"] == name and make() == (0, False)
    pg.query("INSERT INTO onceward.message_default (consumer, message_id, received_at, exchange, routing_key, body)"
             " VALUES ('c', 'old', now() - interval '40 days', '', '', '')")
    assert make() == (0, True)


def test_beside_a_large_default_partition_days_are_made_one_a_call_and_not_among_claims(pg):
    make = lambda: pg.query("SELECT made, due FROM onceward.sidecar_make_messages('{c}', ARRAY[%s::bigint], %s)", (30 * DAY, int(time.time() * 1000)),
                            user="sidecar_login")[0]
    keep(pg, c=30 * DAY)
    wanted = days(pg)
    pg.query("DROP TABLE " + ", ".join(f"onceward.{name}" for name in wanted))
    fill_default(pg)
    old = make_day(pg, 40)
    assert make() == (0, True) and days(pg) == [old]
    for n in range(1, 9):  # the nearest first
        answer = keep(pg, c=30 * DAY)
        assert (answer["made"], answer["more"], answer["dropped"]) == (1, True, None) and days(pg) == [old, *wanted[:n]]
    assert drop(pg, c=30 * DAY)["dropped"] == old
    assert make() == (0, False) and keep(pg, c=30 * DAY)["more"] is False
    pg.query(f"DROP TABLE onceward.{wanted[0]}")
    assert make() == (0, True)
    assert keep(pg, c=30 * DAY)["more"] is False and days(pg) == wanted and make() == (0, False)


def test_a_table_that_somebody_took_out_himself_stays(pg):
    """As an archive, say."""
    name = make_day(pg, 40)
    pg.query(f"ALTER TABLE onceward.message DETACH PARTITION onceward.{name}")
    assert keep(pg, c=30 * DAY)["dropped"] is None and keep(pg, c=30 * DAY)["dropped"] is None and name in days(pg)


def hindered(pg):
    return pg.query("SELECT onceward.sidecar_days_hindered()", user="sidecar_login")[0][0]


@pytest.mark.parametrize("remedy", ["attach", "rename", "drop"])
def test_a_day_of_today_that_somebody_took_out_keeps_no_other_from_being_made(pg, remedy):
    keep(pg, c=30 * DAY)
    names = days(pg)
    assert hindered(pg) is None
    pg.query("CREATE TABLE onceward.message_20260231 ()")  # no day's
    assert hindered(pg) is None
    pg.query("DROP TABLE onceward.message_20260231")
    pg.query(f"ALTER TABLE onceward.message DETACH PARTITION onceward.{names[0]}")
    pg.query(f"DROP TABLE onceward.{names[3]}")
    assert keep(pg, c=30 * DAY)["made"] == 1 and days(pg) == names
    assert hindered(pg).startswith(f"onceward.{names[0]} is no partition of onceward.message")
    if remedy == "attach":
        pg.query(hindered(pg)[hindered(pg).index("ALTER TABLE"):])
    claim(pg, ["a"])
    where, = pg.query("SELECT tableoid::regclass::text FROM onceward.message")[0]
    assert where == f"onceward.{names[0] if remedy == 'attach' else 'message_default'}"
    if remedy != "attach":
        assert hindered(pg) and keep(pg, c=30 * DAY)["made"] == 0
        pg.query(f"DROP TABLE onceward.{names[0]}" if remedy == "drop" else f"ALTER TABLE onceward.{names[0]} RENAME TO archive")
        keep(pg, c=30 * DAY)
        claim(pg, ["b"])
    assert hindered(pg) is None


def test_a_detach_that_did_not_end_is_told_and_keeps_no_other_day(pg):
    """CONCURRENTLY, which PostgreSQL refuses beside a default partition: who does it takes that away first."""
    old, other = make_day(pg, 40), make_day(pg, 39)
    pg.query("ALTER TABLE onceward.message DETACH PARTITION onceward.message_default")
    reader, detacher = pg.connect(), pg.connect()
    reader.autocommit = False
    detacher.autocommit = True
    pending = lambda: pg.query("SELECT inhdetachpending FROM pg_inherits WHERE inhrelid = %s::regclass", (f"onceward.{old}",)) == [(True,)]

    def detach():
        with detacher.cursor() as cursor, pytest.raises(Exception, match="canceling statement"):
            cursor.execute(f"ALTER TABLE onceward.message DETACH PARTITION onceward.{old} CONCURRENTLY")

    with reader.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM onceward.message")
        thread = threading.Thread(target=detach)
        thread.start()
        wait_until(pending, "it waits for the reader")
        detacher.cancel()
        thread.join()
    reader.close()
    detacher.close()
    pg.query("ALTER TABLE onceward.message ATTACH PARTITION onceward.message_default DEFAULT")
    assert keep(pg, c=30 * DAY)["made"] == 8 and pending()
    assert keep(pg, c=30 * DAY)["dropped"] == other, "the one behind it goes"
    assert keep(pg, c=30 * DAY)["more"] is False and claim(pg, ["a"])
    told = hindered(pg)
    assert told.startswith(f"a DETACH of onceward.{old} from onceward.message has begun and not ended")
    pg.query(told[told.index("ALTER TABLE"):told.index("FINALIZE") + len("FINALIZE")])
    assert hindered(pg) is None and old in days(pg), "it is past, and stays as an archive"


def test_the_longest_retention_counts_for_all(pg):
    name = make_day(pg, 5)
    keep(pg, short=DAY, long=30 * DAY)
    keep(pg, short=DAY)
    assert name in days(pg)
    # A rollout: the old replica, with the longer one, was there a moment ago.
    keep(pg, long=DAY)
    assert name in days(pg)
    pg.query("UPDATE onceward.message_retention SET seen_at = now() - interval '2 hours' WHERE consumer = 'long' AND retention_ms = %s", (30 * DAY,))
    assert drop(pg, short=DAY, long=DAY)["dropped"] == name


def test_who_stores_no_more_keeps_what_was_promised_and_no_longer(pg):
    name = make_day(pg, 5)
    keep(pg, gone=30 * DAY)
    pg.query("UPDATE onceward.message_retention SET seen_at = now() - interval '29 days'")
    assert keep(pg)["dropped"] is None and name in days(pg)
    pg.query("UPDATE onceward.message_retention SET seen_at = now() - interval '31 days'")
    assert drop(pg)["dropped"] == name


@pytest.mark.parametrize("ahead_ms", [120000, -120000])
def test_nothing_is_done_because_of_one_clock(pg, ahead_ms):
    name = make_day(pg, 40)
    answer = keep(pg, ahead_ms=ahead_ms, c=DAY)
    assert answer["dropped"] is None and answer["made"] == 0 and abs(answer["ahead_ms"] - ahead_ms) < 30000
    assert days(pg) == [name]


def test_what_lies_in_the_default_partition_goes_when_all_of_it_is_old(pg):
    pg.query("INSERT INTO onceward.message (consumer, message_id, received_at, exchange, routing_key, body)"
             " VALUES ('c', 'old', now() - interval '40 days', '', '', ''), ('c', 'young', now(), '', '', '')")
    assert keep(pg, c=30 * DAY)["made"] == 7, "today cannot be made: one of its messages is in the default partition"
    assert keep(pg, c=30 * DAY)["dropped"] is None
    pg.query("DELETE FROM onceward.message_default WHERE message_id = 'young'")
    assert keep(pg, c=30 * DAY) == {"made": 1, "dropped": "message_default", "more": False, "busy": False, "stuck": None, "ahead_ms": 0}
    assert pg.query("SELECT count(*)::int FROM onceward.message") == [(0,)]


def test_what_comes_into_the_default_partition_while_it_is_to_be_emptied_stays(pg):
    """Of a claim that has not committed when it is looked at, and has when its lock is there."""
    keep(pg, c=30 * DAY)
    writer = pg.connect()
    writer.autocommit = False
    watch = pg.connect().cursor()
    for k in range(10):
        with writer.cursor() as cursor:  # a day that nobody made in time
            cursor.execute("INSERT INTO onceward.message (consumer, message_id, received_at, exchange, routing_key, body)"
                           " VALUES ('c', %s, now() - interval '20 days', '', '', '')", (str(k),))
        thread = threading.Thread(target=keep, args=(pg,), kwargs={"c": 30 * DAY})
        thread.start()
        while thread.is_alive():
            watch.execute("SELECT FROM pg_locks WHERE NOT granted AND relation = 'onceward.message_default'::regclass")
            if watch.rowcount:
                break
        writer.commit()
        thread.join()
        assert pg.query("SELECT message_id FROM onceward.message_default") == [(str(k),)]
        pg.query("DELETE FROM onceward.message_default")
    writer.close()
    watch.connection.close()


def test_a_reader_keeps_its_day_and_claims_wait_for_50_ms_at_most(pg):
    """An export in a long transaction: the day is told as stuck, and a claim that comes meanwhile is not held up for longer than that."""
    name = make_day(pg, 5)
    keep(pg, c=30 * DAY)
    reader = pg.connect(user="sidecar_login")
    reader.autocommit = False
    claimer = pg.connect(user="sidecar_login")
    claimer.autocommit = True
    with reader.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM onceward.message")
    pg.query("DELETE FROM onceward.message_retention")
    answers, slowest, end = [], 0, threading.Event()

    def keep_trying():
        for _ in range(5):
            answers.append(keep(pg, c=DAY))
        end.set()

    thread = threading.Thread(target=keep_trying)
    thread.start()
    n = 0
    while not end.is_set():
        begin = time.monotonic()
        claim(pg, [f"m{n}"], connection=claimer)
        slowest = max(slowest, time.monotonic() - begin)
        n += 1
    thread.join()
    assert all(a["stuck"] == name and a["busy"] and a["dropped"] is None for a in answers), answers
    assert slowest < 1, "the wait for the lock ends by itself"
    reader.rollback()
    assert drop(pg, c=DAY)["dropped"] == name
    reader.close()
    claimer.close()


def test_two_keepers_at_once_do_it_once(pg):
    barrier, answers = threading.Barrier(4), []

    def one():
        barrier.wait()
        answers.append(keep(pg, c=30 * DAY))

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4, "one of them failed"
    assert sum(a["made"] for a in answers) == 8 and len(days(pg)) == 8
