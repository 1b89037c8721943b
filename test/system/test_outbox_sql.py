"""The outbox's SQL: what publish takes and refuses, the order, the lease, and letters. The tables' turns, crashes and races: test_outbox_tables.py."""

import json
import uuid

import psycopg2
import pytest

from rig import outbox
from rig.inbox_sql import Application
from rig.outbox import Relay, left
from rig.outbox_bed import app, pg, publish, relay, server, sessions, shared  # noqa: F401


# what publish takes


def test_what_is_published_comes_out_as_it_went_in(relay, app):
    body = '{"ä": [1, 2.50, "\\u00e9"], "n": null}'
    made = app.value("SELECT onceward.publish('orders', 'new', %s::jsonb)", body)
    assert str(uuid.UUID(made)) == made
    assert app.value("SELECT onceward.publish('', 'queue ä', ''::bytea)") != made
    everything = {"content_type": "text/plain", "content_encoding": "gzip", "correlation_id": "c", "reply_to": "r", "expiration": 60000,
                  "priority": 255, "delivery_mode": 1, "timestamp": 18446744073709551615, "user_id": "u", "app_id": "a", "cluster_id": None}
    headers = {"s": "x", "i": 5, "l": 1 << 40, "d": 1.5, "t": True, "n": None, "a": [1, "x", {"y": {}}], "when": {"!timestamp": 5},
               "raw": {"!bytes": "AAE="}, "much": {"!decimal": "1.25"}, "long": {"!l": 5}, "f": {"!double": 5}, "CC": ["a", "b"]}
    assert app.value("SELECT onceward.publish(exchange => %s, routing_key => %s, body => %s, message_id => %s, type => %s, headers => %s,"
                     " properties => %s)", "e" * 255, "k" * 255, psycopg2.Binary(bytes(range(256))), "i" * 255, "t" * 255, json.dumps(headers),
                     json.dumps(everything)) == "i" * 255
    assert app.value("SELECT onceward.publish('e', 'r', 'null'::jsonb, 'x', properties => '{\"app_id\": \"me\"}')") == "x"

    relay.lease()
    (first, empty, full, app_id), head = relay.read(None)
    assert head.over and [r.batch for r in (first, empty, full)] == [None] * 3
    assert (first.exchange, first.routing_key, first.message_id, first.type, first.headers, first.properties) == ("orders", "new", made) + (None,) * 3
    assert json.loads(bytes(first.body)) == json.loads(body) and first.body_bytes == len(first.body)
    assert (empty.exchange, empty.routing_key, empty.properties, bytes(empty.body)) == ("", "queue ä", "{}", b"")
    assert (full.message_id, full.type, bytes(full.body)) == ("i" * 255, "t" * 255, bytes(range(256)))
    del everything["cluster_id"]
    assert json.loads(full.properties) == {**everything, "expiration": "60000"} and json.loads(full.headers) == headers
    assert json.loads(app_id.properties) == {"app_id": "me", "content_type": "application/json"} and bytes(app_id.body) == b"null"


LONG = "x" * 256
REFUSED = [
    ("exchange => NULL", "exchange is NULL"), ("routing_key => NULL", "routing_key is NULL"), ("body => NULL", "body is NULL"),
    (f"exchange => '{LONG}'", "exchange has 256 bytes"), (f"routing_key => '{'ä' * 128}'", "routing_key has 256 bytes"),
    (f"message_id => '{LONG}'", "message_id has 256 bytes"), ("message_id => ''", "message_id is empty"), (f"type => '{LONG}'", "type has 256 bytes"),
    ("headers => '[]'", "headers is a JSON array"), ("headers => '\"x\"'", "headers is a JSON string"),
    (f"headers => '{{\"a\": {{\"{LONG}\": 1}}}}'", "headers.a has a name of 256 bytes"),
    ("headers => '{\"a\": [1, {\"b\": 9223372036854775808}]}'", "headers.a[1].b is an integer that 64 bits cannot hold"),
    ("headers => '{\"a\": -9223372036854775809}'", "headers.a is an integer"), ("headers => '{\"a\": 1e400}'", "headers.a is an integer"),
    ("headers => '{\"a\": 1.5e-400}'", "headers.a is a number that a double cannot hold"),
    ("headers => '{\"!x\": \"AAE=\"}'", 'begins with "!"'), ("headers => '{\"a\": {\"!timestamp\": 1, \"b\": 2}}'", 'begins with "!"'),
    ("headers => '{\"a\": {\"!timestamp\": -1}}'", "headers.a has an integer for !timestamp that is not within"),
    ("headers => '{\"a\": {\"!timestamp\": \"now\"}}'", "headers.a has something else than an integer"),
    ("headers => '{\"a\": {\"!b\": 128}}'", "headers.a has an integer for !b"), ("headers => '{\"a\": {\"!bytes\": \"?\"}}'", "no base64"),
    ("headers => '{\"a\": {\"!decimal\": \"1.2.3\"}}'", "no decimal"), ("headers => '{\"a\": {\"!double\": \"five\"}}'", "no number"),
    ("headers => '{\"a\": {\"!nothing\": 1}}'", "is no kind"), ("headers => '{\"CC\": \"q\"}'", "headers.CC must be an array of strings"),
    ("headers => '{\"BCC\": [1]}'", "headers.BCC must be an array"),
    (f"headers => '{{\"a\": {'[' * 101}{']' * 101}}}'", "is nested deeper than 100"),
    ("headers => jsonb_build_object('a', repeat('x', 131072))", "headers and properties take 131"),
    ("properties => '[]'", "properties is a JSON array"), ("properties => '{\"colour\": 1}'", "properties.colour is no property of AMQP"),
    ("properties => '{\"message_id\": \"x\"}'", "properties.message_id is an argument of its own"),
    ("properties => '{\"headers\": {}}'", "properties.headers is an argument"), ("properties => '{\"type\": \"x\"}'", "properties.type is an argument"),
    ("properties => '{\"priority\": 256}'", "properties.priority is 256, and must be within 0 and 255"),
    ("properties => '{\"priority\": -1}'", "properties.priority is -1"), ("properties => '{\"priority\": \"5\"}'", "is a JSON string, and must be an integer"),
    ("properties => '{\"priority\": 1.5}'", "properties.priority is 1.5"), ("properties => '{\"delivery_mode\": 3}'", "properties.delivery_mode is 3"),
    ("properties => '{\"timestamp\": -5}'", "properties.timestamp is -5"), ("properties => '{\"timestamp\": 18446744073709551616}'", "2^64"),
    ("properties => '{\"expiration\": \"1 min\"}'", "properties.expiration is '1 min'"),
    ("properties => '{\"expiration\": -1}'", "properties.expiration is '-1'"), ("properties => '{\"expiration\": 4294967296}'", "4294967295"),
    ("properties => '{\"expiration\": [1]}'", "properties.expiration is a JSON array"),
    ("properties => '{\"app_id\": 5}'", "properties.app_id is a JSON number, and must be a string"),
    (f"properties => '{{\"correlation_id\": \"{LONG}\"}}'", "properties.correlation_id has 256 bytes"),
    ("properties => '{\"reply_to\": \"amq.rabbitmq.reply-to\"}'", "properties.reply_to is the direct reply-to"),
    *((f"headers => '{{\"a\": [{{\"{tag}\": \"{value}\"}}]}}'", f"headers.a[0] has {value} for {tag}: RabbitMQ closes the connection")
      for tag in ("!double", "!d", "!f") for value in ("NaN", "Infinity", "-Infinity")),
]
TO_A_QUEUE = [
    ("headers => '{\"CC\": [\"q\", \"amq.rabbitmq.reply-to.%%%.x\"]}'", "headers.CC names a direct reply-to, which is no queue"),
    ("headers => '{\"BCC\": [\"amq.rabbitmq.reply-to.x\"]}'", "headers.BCC names a direct reply-to, which is no queue"),
]


@pytest.mark.parametrize("kind", ["jsonb", "bytea"])
def test_what_amqp_cannot_carry_is_refused_with_what_and_where(shared, sessions, kind):
    app = sessions(Application, shared)
    good = {"exchange": "'e'", "routing_key": "'r'", "body": f"'1'::{kind}"}
    for exchange, (argument, said) in [("'e'", refused) for refused in REFUSED] + [("''", refused) for refused in TO_A_QUEUE]:
        name, value = argument.split(" => ", 1)
        arguments = {**good, "exchange": exchange, name: f"NULL::{kind}" if name == "body" else value}
        with pytest.raises(psycopg2.Error) as refused:
            app.query(f"SELECT onceward.publish({', '.join(f'{n} => {v}' for n, v in arguments.items())})")
        assert refused.value.pgcode == "OW004" and said in refused.value.diag.message_primary, (argument, str(refused.value))
    assert left(shared) == [0, 0, 0]


def test_to_another_exchange_what_looks_like_a_direct_reply_to_is_a_key_like_any_other(relay, app):
    app.query("SELECT onceward.publish('e', 'amq.rabbitmq.reply-to.x', '1'::jsonb, 'key', headers => '{\"CC\": [\"amq.rabbitmq.reply-to.x\"]}')")
    assert relay.drain() == ["key"]


def test_a_session_in_another_encoding_is_told_too(shared, sessions):
    app = sessions(Application, shared)
    app.query("SET client_encoding = LATIN1")
    with pytest.raises(psycopg2.Error) as refused:
        app.query("SELECT onceward.publish('e', 'r', '1'::jsonb, properties => jsonb_build_object(chr(9731), 1))")
    assert refused.value.pgcode == "OW004"


# who may


def test_an_application_publishes_and_sees_nothing_of_it(shared, sessions):
    app = sessions(Application, shared)
    for name in ("outbox", "outbox_0", "outbox_1", "outbox_2", "outbox_position", "outbox_life", "outbox_number", "outbox_turn"):
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            app.query(f"SELECT * FROM onceward.{name}")
    for call in ("outbox_id()", "sidecar_outbox_gauge()", "sidecar_outbox_lease('a', 1, NULL, 1, true)", "outbox_forget_broker()",
                 "sidecar_outbox_read(NULL, NULL, 1, 1, 1)", "outbox_check('e', 'r', 1, true, NULL, NULL, NULL, NULL)"):
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            app.query(f"SELECT onceward.{call}")


def test_a_callers_search_path_changes_nothing_of_publish(pg, app, relay):
    pg.query("CREATE SCHEMA hostile; GRANT USAGE ON SCHEMA hostile TO app_login")
    for signature in ("octet_length(text)", "octet_length(bytea)", "convert_to(text, name)", "clock_timestamp()", "current_setting(text)",
                      "gen_random_uuid()", "nextval(regclass)", "pg_current_xact_id()", "jsonb_typeof(jsonb)"):
        pg.query(f"CREATE FUNCTION hostile.{signature} RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'hostile'; END $$")
    pg.query("CREATE FUNCTION hostile.same(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'hostile'; END $$;"
             " CREATE OPERATOR hostile.= (LEFTARG = text, RIGHTARG = text, FUNCTION = hostile.same)")
    app.query("SET search_path = hostile, pg_catalog, public")
    app.query("SELECT onceward.publish('e', 'r', '1'::jsonb) AS a, onceward.publish('e', 'r', '1'::bytea, headers => '{\"a\": 1}') AS b")
    assert len(relay.drain()) == 2


# order


def test_the_order_of_one_transaction_and_of_following_ones(relay, app, pg, sessions):
    other = sessions(Application, pg)
    app.begin()
    ids = [publish(app, f"a{i}") for i in range(20)]
    other.begin("REPEATABLE READ")
    other.query("SELECT 1")
    app.commit()
    ids += [publish(other, f"b{i}") for i in range(5)]
    other.commit()
    ids += [publish(app, "c")]
    assert relay.drain(rows=7) == ids


def test_what_is_not_committed_is_not_sent_and_what_is_late_comes(relay, app, pg, sessions):
    """Some that began before and commit behind others: with an old snapshot, an old id, above the latest that ended, in two phases."""
    late = [sessions(Application, pg) for _ in range(5)]
    for number, (session, isolation) in enumerate(zip(late, ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE", "READ COMMITTED", "READ COMMITTED"))):
        session.begin(isolation)
        session.query("SELECT pg_current_xact_id()" if number % 2 else "SELECT 1")
    publish(app, "first")
    for number, session in enumerate(late):
        publish(session, f"late{number}")
        session.query("SAVEPOINT s")
        publish(session, "taken back")
        session.query("ROLLBACK TO s")
    publish(app, "second")
    assert relay.drain() == ["first", "second"] and relay.drain() == []
    late[3].query("PREPARE TRANSACTION 'late'")
    late[4].rollback()
    for number in (2, 0, 1):
        late[number].commit()
        publish(app, f"behind {number}")
        assert relay.drain() == [f"late{number}", f"behind {number}"]
    late[3].query("COMMIT PREPARED 'late'")
    assert relay.drain() == ["late3"] and relay.gauge().waiting == 0


def test_what_runs_above_the_latest_that_ended_is_not_forgotten(relay, app, pg, sessions):
    """A snapshot's xmax is behind the latest that has ended, and not before all that have begun."""
    publish(app, "first")
    relay.lease()
    late = sessions(Application, pg)
    late.begin()
    publish(late, "late")
    rows, head = relay.read(None)
    assert [r.message_id for r in rows] == ["first"] and head.over
    late.commit()
    assert [r.message_id for r in relay.read(head.batch)[0]] == ["late"]


def test_a_killed_backend_sends_nothing(relay, app, pg, sessions):
    app.begin()
    publish(app, "never")
    publish(sessions(Application, pg), "other")
    pg.query("SELECT pg_terminate_backend(%s)", (app.pid,))
    assert relay.drain() == ["other"]


def test_reading_ahead_and_an_end_at_any_place(relay, app, pg, sessions):
    """Positions in the middle of a batch and at its end, batches read ahead: after an end the next one sends the rest, in order."""
    expected = []
    for round_ in range(6):
        expected += [publish(app, f"{round_}.{i}") for i in range(10)]
        relay.lease()
        relay.read_on(4)
    assert relay.sent == expected
    for upto in (1, 9, 5, 20):  # of those that are not written yet; heads that end a batch count, too
        relay.write(upto)
        written = pg.query("SELECT upto IS NULL, last FROM onceward.outbox_position ORDER BY lease DESC, n DESC LIMIT 1")[0]
        confirmed = expected[:len(expected) - sum(1 for _, seq in relay.unwritten if seq is not None)]
        again = sessions(Relay, pg, "a", relay.number + upto)
        assert again.lease().answer == "held"
        again.read_on(4)
        assert again.sent == expected[len(confirmed):], (upto, written)
        assert relay.write(1) == "lost"
        relay = again


def test_the_budget_of_bytes_and_what_is_too_large(relay, app):
    for i in range(6):
        app.query("SELECT onceward.publish('e', 'r', convert_to(repeat('x', %s), 'UTF8'), %s)", 3000 if i == 4 else 1000, str(i))
    relay.lease()
    rows, head = relay.read(None, n_bytes=2500)
    assert [r.message_id for r in rows] == ["0", "1", "2"] and not head.over
    rows, head = relay.read(head.batch, rows[-1].seq, max_message=2000)
    assert [(r.message_id, r.body_bytes, r.body is None) for r in rows] == [("3", 1000, False), ("4", 3000, True), ("5", 1000, False)] and head.over
    rows, head = relay.read(None, n_bytes=1, rows=256)
    assert len(rows) == 1 and not head.over


# the lease


def test_one_relays_at_a_time(pg, sessions):
    a, b = sessions(Relay, pg, "a", 5), sessions(Relay, pg, "b", 9)
    assert a.value("SELECT answer FROM onceward.sidecar_outbox_register('rabbit', '/')") == "ok"
    assert b.query("SELECT * FROM onceward.sidecar_outbox_register('rabbit', 'other')") == [("refused", "rabbit", "/")]
    assert b.value("SELECT answer FROM onceward.sidecar_outbox_register('rabbit', '/')") == "ok"
    first = a.lease()
    assert (first.answer, first.left_ms, first.restored) == ("held", outbox.LEASE_MS, False)
    there = b.lease()
    assert (there.answer, there.holder, there.lease) == ("other", "a/5", None) and 0 < there.left_ms <= outbox.LEASE_MS
    assert a.lease().lease == first.lease
    pg.query("UPDATE onceward.outbox SET held_until = clock_timestamp()")
    assert a.lease().lease == first.lease, "nobody else took it"
    pg.query("UPDATE onceward.outbox SET held_until = clock_timestamp()")
    assert b.lease().lease > first.lease and a.lease().answer == "other"
    later = sessions(Relay, pg, "b", 10)
    assert later.lease().answer == "held" and b.lease().answer == "other", "a later life of the same instance"
    assert later.lease(want=False).answer == "free" and a.lease().answer == "held"
    locker = pg.connect(autocommit=False)
    locker.cursor().execute("SELECT FROM onceward.outbox FOR UPDATE")
    assert a.lease().answer == "busy" and a.turn() == "busy"
    locker.close()
    assert pg.query("SELECT onceward.outbox_forget_broker()") == [("rabbit (vhost /)",)]
    assert a.value("SELECT answer FROM onceward.sidecar_outbox_register('rabbit', 'other')") == "ok"


def test_a_clock_that_was_set_back_makes_nobody_wait_for_a_holder_that_is_gone(pg, sessions):
    gone, other = sessions(Relay, pg, "a"), sessions(Relay, pg, "b")
    gone.lease()
    pg.query("UPDATE onceward.outbox SET held_until = held_until + interval '13 s'")
    assert other.lease().answer == "other", "within two leases it is one that lives"
    pg.query("UPDATE onceward.outbox SET held_until = held_until + interval '1 hour'")
    assert other.lease().lease == gone.number_of_lease + 1
    assert gone.turn() == "lost" and gone.lease().answer == "other"


def test_a_former_holder_changes_nothing(pg, app, sessions):
    former, holder = sessions(Relay, pg, "a"), sessions(Relay, pg, "b")
    ids = [publish(app, str(i)) for i in range(4)]
    former.lease()
    former.step()
    pg.query("UPDATE onceward.outbox SET held_until = clock_timestamp()")
    assert holder.lease().answer == "held"
    rows, _ = former.read(None)
    assert former.turn() == "lost" and former.bury(rows[:1])[0].answer == "lost" and former.restore() == "lost"
    assert former.write() == "lost"
    assert holder.drain() == ids


# letters


def test_what_cannot_be_sent_becomes_a_letter_once(pg, app, relay):
    app.query("SELECT onceward.publish('e', 'r', '{\"a\": 1}'::jsonb, 'x', 't', '{\"h\": 1}', '{\"priority\": 3}')")
    app.query("SELECT onceward.publish('e2', 'r2', '\\x00'::bytea, 'y')")
    relay.lease()
    rows, head = relay.read(None)
    first = relay.bury(rows, error="ä" * 2000)
    assert [a.answer for a in first] == ["buried"] * 2 and relay.bury(rows) == first
    assert relay.bury([rows[0]._replace(message_id="other")])[0].answer == "gone"
    letters = pg.query("SELECT consumer, vhost, queue, message_id, reason, exchange, routing_key, body, content_type, message_type, properties,"
                       " headers, rowless, octet_length(last_error) FROM onceward.dead_letter ORDER BY id")
    assert [l[:7] for l in letters] == [("onceward-outbox", "/", "", "x", "unroutable", "e", "r"), ("onceward-outbox", "/", "", "y", "unroutable", "e2", "r2")]
    assert [bytes(l[7]) for l in letters] == [b'{"a": 1}', b"\0"] and [l[8:10] for l in letters] == [("application/json", "t"), (None, None)]
    assert letters[0][10] == {"priority": 3, "delivery_mode": 2, "content_type": "application/json", "message_id": "x", "type": "t"}
    assert letters[1][10] == {"delivery_mode": 2, "message_id": "y"} and [l[11] for l in letters] == [{"h": 1}, None]
    assert [l[12:] for l in letters] == [(True, 1024)] * 2
    gauge = relay.gauge()
    assert (gauge.waiting, gauge.exact, gauge.letters, gauge.holder, gauge.restored) == (2, True, 2, "a/1", False)
    relay.step()
    relay.write()
    assert (relay.gauge().waiting, relay.gauge().lag_ms) == (0, 0)


def test_parked_messages_count_in_the_size(pg, app, relay):
    publish(app, "parked", body=json.dumps("x" * 100_000))
    before = relay.gauge().bytes
    relay.lease()
    rows, _ = relay.read(None)
    assert [a.answer for a in relay.bury(rows, reason="parked")] == ["buried"]
    assert relay.gauge().bytes >= before + 100_000


def test_a_letter_waits_a_second_at_most_for_a_lock(pg, app, relay):
    publish(app, "x")
    relay.lease()
    rows, _ = relay.read(None)
    relay.query("SET statement_timeout = '20 s'")
    connection = pg.connect(autocommit=False)
    with connection, connection.cursor() as cursor:
        cursor.execute("LOCK TABLE onceward.horizon IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(psycopg2.errors.LockNotAvailable):
            relay.bury(rows)
    connection.close()
    assert [a.answer for a in relay.bury(rows)] == ["buried"]


@pytest.mark.parametrize("table, call", [
    ("control", "sidecar_outbox_lease('i', 1, NULL, 15000, true)"), ("outbox", "sidecar_outbox_lease('i', 1, NULL, 15000, true)"),
    ("outbox", "sidecar_outbox_register('b', '/')"), ("outbox_position", "sidecar_outbox_read(NULL, NULL, 1, 1, 1)"),
    ("outbox_parked", "sidecar_outbox_parked()"), ("outbox_parked", "sidecar_outbox_parked_read('x', 0, 1, 1, 1)"),
    ("outbox_parked", "sidecar_outbox_unpark({lease}, '{{}}')"), ("outbox_position", "sidecar_outbox_turn({lease}, 0, 0)"),
    ("outbox_position", "sidecar_outbox_write({lease}, '{batch}', NULL)"), ("outbox_position", "sidecar_outbox_restore({lease}, 1)"),
    ("dead_letter", "sidecar_outbox_gauge()"), ("outbox_position", "sidecar_outbox_gauge()")])
def test_a_table_that_an_operator_has_locked_holds_a_relay_up_for_a_second_at_most(pg, app, relay, table, call):
    """Its statements go before the claims of all queues on one connection. VACUUM FULL may take hours."""
    publish(app, "x")
    lease = relay.lease().lease
    _, head = relay.read(None)
    relay.query("SET statement_timeout = '20 s'")
    connection = pg.connect(autocommit=False)
    with connection, connection.cursor() as cursor:
        cursor.execute(f"LOCK TABLE onceward.{table} IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(psycopg2.errors.LockNotAvailable):
            relay.query("SELECT * FROM onceward." + call.format(lease=lease, batch=head.batch))
    connection.close()


def test_a_long_queue_is_estimated(pg, app, relay):
    app.query("SELECT onceward.publish('e', 'r', '1'::jsonb) FROM generate_series(1, 10500)")
    gauge = relay.gauge()
    assert not gauge.exact and 10500 <= gauge.waiting <= 10600 and gauge.lag_ms > 0
