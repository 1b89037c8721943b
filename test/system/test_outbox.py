"""The outbox: what an application publishes in its transaction comes to the broker, once it has committed, in order, and never is lost.

Each test has a database of its own: a schema has one outbox."""

import json
import re
import socket
import subprocess
import uuid

import pytest

from rig import schema
from rig.bed import Bed
from rig.broker_view import own_broker  # noqa: F401
from rig.wait import wait_until
from test_stats import OF_EVERY_LINE, keys


@pytest.fixture
def box(request, tmp_path, fresh_postgres, rabbitmq):
    """A bed with a database of its own, and an exchange that its queue is bound to."""
    made = Bed(request.node.name, tmp_path, fresh_postgres, rabbitmq)
    request.node.bed = made
    made.exchange = made.name + "-x"
    made.queue.channel.exchange_declare(made.exchange, "direct", durable=True)
    made.queue.channel.queue_bind(made.queue.name, made.exchange, "key")
    yield made
    made.queue.channel.exchange_delete(made.exchange)
    made.deinit()


def relay(box, name=None, **outbox):
    """A sidecar with an outbox and no queue."""
    sidecar = box.sidecar(name, wait=False, top={"queues": None, "outbox": outbox, "instance": name})
    return sidecar


def publish(box, message_id, exchange=None, key="key", body='{"n": 1}', commit=True, **more):
    """Answers the id."""
    names = "".join(f", {name} => %s" for name in more)
    connection = box.postgres.connect()
    try:
        connection.autocommit = False
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT onceward.publish(%s, %s, %s::jsonb, %s{names})",
                           (box.exchange if exchange is None else exchange, key, body, message_id, *more.values()))
            found = cursor.fetchone()[0]
        connection.commit() if commit else connection.rollback()
        return found
    finally:
        connection.close()


def publish_many(box, ids, exchange=None, key="key"):
    connection = box.postgres.connect()
    try:
        connection.autocommit = False
        with connection.cursor() as cursor:
            for message_id in ids:
                cursor.execute("SELECT onceward.publish(%s, %s, '{}'::jsonb, %s)",
                               (box.exchange if exchange is None else exchange, key, message_id))
        connection.commit()
    finally:
        connection.close()


def take(box, n, deadline=40):
    return take_from(box.queue, n, deadline)


def take_from(queue, n, deadline=40):
    """The next n messages of the queue: (id, properties, body)."""
    found = []

    def more():
        method, properties, body = queue.channel.basic_get(queue.name, auto_ack=True)
        if method:
            found.append((properties.message_id, properties, body))
        return len(found) >= n

    wait_until(more, lambda: f"{n} messages; {len(found)} came", deadline, 0.01)
    return found


def is_empty(box):
    return box.queue.channel.basic_get(box.queue.name, auto_ack=True)[0] is None


def gauge(box):
    return box.rows("SELECT * FROM onceward.sidecar_outbox_gauge()")[0]


def wait_for_nothing_waiting(box, deadline=40):
    wait_until(lambda: gauge(box)["waiting"] == 0, lambda: f"nothing waiting: {gauge(box)}", deadline, 0.05)


def letters(box):
    return box.rows("SELECT * FROM onceward.dead_letter WHERE consumer = 'onceward-outbox' AND queue = '' ORDER BY id")


def wait_for_letter(box, reason):
    wait_until(lambda: [x for x in letters(box) if x["reason"] == reason], lambda: f"a letter {reason}: {letters(box)}", 40, 0.05)
    return [x for x in letters(box) if x["reason"] == reason][0]


def run(box, sidecar, *words):
    return subprocess.run([schema.require_binary(), *words, "--config", sidecar.config_path], capture_output=True, text=True,
                          timeout=60, check=False)


def test_what_is_committed_comes_with_its_properties_and_what_is_rolled_back_never(box):
    relay(box)
    publish(box, "rolled-back", commit=False)
    publish(box, "one", type="order", headers=json.dumps({"x-tenant": "a", "n": 5}), properties=json.dumps({"correlation_id": "c"}))
    (message_id, properties, body), = take(box, 1)
    assert (message_id, json.loads(body)) == ("one", {"n": 1})
    assert properties.content_type == "application/json" and properties.delivery_mode == 2
    assert properties.type == "order" and properties.correlation_id == "c"
    assert properties.headers == {"x-tenant": "a", "n": 5}
    made = publish(box, None)
    assert uuid.UUID(made) and take(box, 1)[0][0] == made
    wait_for_nothing_waiting(box)
    assert is_empty(box) and letters(box) == []


def test_a_transaction_comes_in_its_order(box):
    ids = [f"m{n:04}" for n in range(1000)]
    publish_many(box, ids)
    relay(box)
    assert [x[0] for x in take(box, len(ids))] == ids
    wait_for_nothing_waiting(box)


def test_large_messages_are_sent_once(box):
    """Their pages make the sidecar reconnect to free memory: not before the position behind them is written."""
    connection = box.postgres.connect()
    connection.autocommit = False
    with connection.cursor() as cursor:
        for n in range(4):
            cursor.execute("SELECT onceward.publish(%s, 'key', convert_to(repeat('x', 5000000), 'UTF8'), %s)", (box.exchange, f"m{n}"))
    connection.commit()
    connection.close()
    sidecar = relay(box)
    assert [x[0] for x in take(box, 4)] == ["m0", "m1", "m2", "m3"]
    sidecar.wait_for("outbox_left", reason="reconnecting to the database to free memory")
    sidecar.wait_for("outbox_held", n=2)
    wait_for_nothing_waiting(box)
    publish(box, "later")
    assert [x[0] for x in take(box, 1)] == ["later"]
    assert is_empty(box)


def test_what_cannot_be_sent_becomes_a_letter_and_those_behind_it_go_on(box):
    sidecar = relay(box, exchanges=[box.exchange, box.exchange + "-missing"], max_message="1KiB")
    publish(box, "unroutable", key="nobody")
    publish(box, "missing", exchange=box.exchange + "-missing")
    publish(box, "not-allowed", exchange="amq.fanout")
    publish(box, "large", body=json.dumps("x" * 2000))
    publish(box, "user", properties=json.dumps({"user_id": "somebody-else"}))
    publish(box, "good")
    assert take(box, 1)[0][0] == "good"
    for message_id, reason in (("unroutable", "unroutable"), ("missing", "no_exchange"), ("not-allowed", "not_allowed"),
                               ("large", "too_large"), ("user", "refused")):
        letter = wait_for_letter(box, reason)
        assert letter["message_id"] == message_id and letter["last_error"]
        sidecar.wait_for("outbox_letter", message_id=message_id, reason=reason, letter=letter["id"])
    assert wait_for_letter(box, "unroutable")["routing_key"] == "nobody"
    wait_for_nothing_waiting(box)
    assert is_empty(box)
    left = run(box, sidecar, "dead", "redrive", str(wait_for_letter(box, "not_allowed")["id"]))
    assert left.returncode == 1 and "not in outbox.exchanges" in left.stdout + left.stderr, left.stdout + left.stderr
    assert wait_for_letter(box, "not_allowed")


def test_a_return_is_blamed_on_the_right_one_of_two_that_look_alike(box):
    """A headers exchange: the same id, routing key and length, and only the first has a queue."""
    channel, exchange = box.queue.channel, box.name + "-headers"
    channel.exchange_declare(exchange, "headers", durable=True)
    channel.queue_bind(box.queue.name, exchange, "", {"x-match": "all", "take": "yes"})
    with box.postgres.connect() as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        for n in range(200):
            for take_it in ("yes", "no"):
                cursor.execute("SELECT onceward.publish(%s, 'k', %s::jsonb, %s, headers => %s)",
                               (exchange, json.dumps(take_it.rjust(3)), f"m{n}", json.dumps({"take": take_it})))
        cursor.execute("COMMIT")
    relay(box)
    got = take(box, 200)
    wait_for_nothing_waiting(box)
    assert [x[0] for x in got] == [f"m{n}" for n in range(200)] and is_empty(box)
    assert {x[1].headers["take"] for x in got} == {"yes"}
    dead = letters(box)
    assert [x["message_id"] for x in dead] == [f"m{n}" for n in range(200)]
    assert {x["reason"] for x in dead} == {"unroutable"} and {x["headers"]["take"] for x in dead} == {"no"}
    channel.exchange_delete(exchange)


def test_an_exchange_that_is_not_mandatory_gets_no_return(box):
    relay(box, not_mandatory=[box.exchange])
    publish(box, "no-queue", key="nobody")
    publish(box, "taken")
    assert take(box, 1)[0][0] == "taken"
    wait_for_nothing_waiting(box)
    assert letters(box) == []


def test_a_message_that_crashes_the_broker_becomes_a_letter_and_those_around_it_come(box):
    """RabbitMQ's channel process crashes over NaN, and the broker closes the connection. publish refuses that; what else it crashes over nobody
    knows."""
    good = [f"m{n:02}" for n in range(40)]
    publish_many(box, good[:30])
    box.rows("INSERT INTO onceward.outbox_0 VALUES (pg_current_xact_id(), nextval('onceward.outbox_number'), clock_timestamp(), %s, 'key', 'bad',"
             " NULL, '{\"f\": {\"!double\": \"NaN\"}}', NULL, '1')", (box.exchange,))
    publish_many(box, good[30:])
    sidecar = relay(box)
    letter = wait_for_letter(box, "refused")
    assert letter["message_id"] == "bad" and "541 INTERNAL_ERROR" in letter["last_error"]
    sidecar.wait_for("outbox_letter", message_id="bad", reason="refused")
    wait_for_nothing_waiting(box)
    found = []
    while (message := box.queue.channel.basic_get(box.queue.name, auto_ack=True))[0]:
        found.append(message[1].message_id)
    assert list(dict.fromkeys(found)) == good and len(letters(box)) == 1


def test_an_answer_that_a_client_has_addressed_to_crash_the_broker_is_a_letter_and_stays_one(box):
    """RabbitMQ crashes over a direct reply-to that is malformed."""
    sidecar = relay(box)
    publish(box, "answer", exchange="", key="amq.rabbitmq.reply-to.%%%.x", properties=json.dumps({"correlation_id": "c"}))
    publish(box, "good")
    letter = wait_for_letter(box, "unroutable")
    assert letter["message_id"] == "answer" and "direct reply-to" in letter["last_error"]
    assert take(box, 1)[0][0] == "good" and not sidecar.find("disconnected")
    left = run(box, sidecar, "dead", "redrive", str(letter["id"]))
    assert left.returncode == 1 and "direct reply-to" in left.stdout and "541" not in left.stdout + left.stderr, left.stdout + left.stderr


def test_a_letter_is_redriven_to_its_exchange(box):
    sidecar = relay(box)
    publish(box, "early", key="later", headers=json.dumps({"a": "b"}))
    letter = wait_for_letter(box, "unroutable")
    left = run(box, sidecar, "dead", "redrive", str(letter["id"]))
    assert left.returncode == 1 and letters(box), left.stdout + left.stderr
    box.queue.channel.queue_bind(box.queue.name, box.exchange, "later")
    done = run(box, sidecar, "dead", "redrive", str(letter["id"]))
    assert done.returncode == 0, done.stdout + done.stderr
    (message_id, properties, body), = take(box, 1)
    assert (message_id, properties.headers, json.loads(body)) == ("early", {"a": "b"}, {"n": 1})
    assert letters(box) == []


def test_a_letter_of_an_ordered_exchange_is_redriven_out_of_order_only(box):
    sidecar = relay(box, ordered=[box.exchange])
    publish(box, "early", properties=json.dumps({"user_id": "somebody-else"}))
    letter = wait_for_letter(box, "refused")
    box.rows("UPDATE onceward.dead_letter SET properties = '{}' WHERE message_id = 'early'")
    left = run(box, sidecar, "dead", "redrive", str(letter["id"]))
    assert left.returncode == 1 and "outbox.ordered" in left.stdout and letters(box), left.stdout + left.stderr
    done = run(box, sidecar, "dead", "redrive", "--out-of-order", str(letter["id"]))
    assert done.returncode == 0 and take(box, 1)[0][0] == "early", done.stdout + done.stderr


def test_what_the_broker_refuses_is_left_and_the_letters_behind_it_are_redriven(box):
    """By closing the channel (404, 406), or the connection, as it does when it crashes over a message (541)."""
    sidecar = relay(box)
    publish(box, "missing", exchange=box.exchange + "-missing")
    publish(box, "user", properties=json.dumps({"user_id": "somebody-else"}))
    for message_id in ("crash", "early"):
        publish(box, message_id, key="later")
    wait_until(lambda: len(letters(box)) == 4, lambda: f"letters of all: {letters(box)}")
    box.rows("UPDATE onceward.dead_letter SET headers = '{\"f\": {\"!double\": \"NaN\"}}' WHERE message_id = 'crash'")
    box.queue.channel.queue_bind(box.queue.name, box.exchange, "later")
    done = run(box, sidecar, "dead", "redrive", *(str(letter["id"]) for letter in letters(box)))
    assert done.returncode == 1 and "1 redriven, 0 completed meanwhile, 3 left." in done.stdout, done.stdout + done.stderr
    for said in ("404 NOT_FOUND", "406 PRECONDITION_FAILED", "541 INTERNAL_ERROR"):
        assert said in done.stdout, done.stdout
    assert take(box, 1)[0][0] == "early" and {letter["message_id"] for letter in letters(box)} == {"missing", "user", "crash"}


def test_a_chain_lets_each_through_once(box):
    """Orders in; complete, the effect and an invoice in one transaction; the invoices out. The sidecar is killed in the middle."""
    ids = [f"order{n:03}" for n in range(60)]
    box.app.handler = lambda request, reply: box.app.commit(
        request, publish=[(box.exchange, "invoices", '{"of": "order"}', "invoice-" + request.message_id)]) and 200
    invoices = box.new_queue("-invoices")
    invoices.channel.queue_bind(invoices.name, box.exchange, "invoices")
    sidecar = box.sidecar(top={"outbox": {}}, token_window="60s", max_window="2m")
    for message_id in ids[:30]:
        box.queue.publish(message_id)
    box.wait_for_effects(ids[:10])
    sidecar.kill()
    for message_id in ids[30:]:
        box.queue.publish(message_id)
    sidecar.start()
    box.wait_for_effects(ids)
    box.assert_once(*ids)
    wait_for_nothing_waiting(box)
    found = set()
    while (message := invoices.channel.basic_get(invoices.name, auto_ack=True))[0]:
        found.add(message[1].message_id)
    assert found == {"invoice-" + i for i in ids} and letters(box) == []


def test_another_sidecar_takes_over_and_goes_on(box):
    first = relay(box, "first")
    first.wait_for("outbox_held")
    second = relay(box, "second")
    publish(box, "before")
    assert take(box, 1)[0][0] == "before"
    wait_for_nothing_waiting(box)
    assert not second.find("outbox_held")
    first.kill()
    publish(box, "after")
    second.wait_for("outbox_held", deadline=60)
    assert take(box, 1)[0][0] == "after"
    assert gauge(box)["holder"].startswith("second/")


def test_a_drain_gives_the_lease_up_at_once(box):
    first = relay(box, "first")
    first.wait_for("outbox_held")
    publish_many(box, [f"m{n}" for n in range(300)])
    take(box, 300)
    assert first.term() == 0
    assert first.find("outbox_left")
    assert gauge(box)["holder"] is None and gauge(box)["waiting"] == 0
    second = relay(box, "second")
    second.wait_for("outbox_held")
    publish(box, "next")
    assert take(box, 1)[0][0] == "next"


def test_a_transaction_that_locks_the_lease_is_logged(box):
    """An operator's psql without a COMMIT. Then no statement fails, and no sidecar relays."""
    sidecar = relay(box)
    publish(box, "m1")
    take(box, 1)
    operator = box.postgres.connect()
    operator.autocommit = False
    with operator.cursor() as cursor:
        cursor.execute("SELECT onceward.outbox_give_up('none')")
    publish(box, "m2")
    sidecar.wait_for("database_error", deadline=40, reason=lambda reason: "has locked the row of onceward.outbox" in reason)
    operator.rollback()
    operator.close()
    assert [x[0] for x in take(box, 1)] == ["m2"]


def test_rows_of_another_server_are_sent_although_all_tables_are_published(box):
    """Debezium makes such a publication. A dump and pg_upgrade keep it."""
    box.rows("CREATE PUBLICATION everything FOR ALL TABLES")
    publish_many(box, ["m1", "m2"])
    box.rows("UPDATE onceward.outbox_position SET system_identifier = 5")
    relay(box)
    assert [x[0] for x in take(box, 2)] == ["m1", "m2"]


def test_an_operator_pauses_the_outbox(box):
    """Also with a standby, and through a restart of the relay: messages wait in the database, and come in order."""
    first, second = relay(box, "first"), relay(box, "second")
    publish(box, "before")
    assert take(box, 1)[0][0] == "before"
    done = run(box, first, "pause", "--consumer", "onceward-outbox", "--by", "ann", "--reason", "more partitions")
    assert done.returncode == 0 and "onceward-outbox is paused" in done.stdout, done.stdout + done.stderr
    wait_until(lambda: gauge(box)["holder"] is None, lambda: f"no sidecar relays: {gauge(box)}", 10)
    left = wait_until(lambda: [line for sidecar in (first, second) for line in sidecar.find("outbox_left")], "the relay says so", 20)
    assert [line["reason"] for line in left] == ["an operator has paused the outbox: ann, more partitions"]
    ids = [f"m{n:02}" for n in range(50)]
    publish_many(box, ids)
    first.kill()
    first.start()
    first.wait_for("started", n=2)
    asked = box.rows("SELECT max(seen_at) AS at FROM onceward.replica")[0]["at"]
    wait_until(lambda: box.rows("SELECT count(*)::int AS n FROM onceward.replica WHERE seen_at > %s", asked)[0]["n"] == 2, "both were there since", 40)
    assert is_empty(box) and gauge(box)["waiting"] == 50 and gauge(box)["holder"] is None
    shown = run(box, first, "status").stdout
    assert "50 waiting" in shown and "relayed by nobody" in shown and "by ann: more partitions" in shown, shown
    done = run(box, first, "resume", "--consumer", "onceward-outbox")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [x[0] for x in take(box, 50)] == ids
    wait_for_nothing_waiting(box)
    for word in ("retry", "give-up"):
        done = run(box, first, word, "--consumer", "onceward-outbox", "m01")
        assert done.returncode == 1 and "there is no consumer" in done.stderr, done.stdout + done.stderr


def test_another_virtual_host_is_refused(box):
    first = relay(box, "first")
    first.wait_for("outbox_held")
    box.rabbitmq.add_vhost(box.name)
    try:
        other = relay(box, "other", vhost=box.name)
        said = other.wait_for("outbox_refused")
        assert "outbox_forget_broker" in said["reason"]
        checked = run(box, other, "check", "--connect")
        assert checked.returncode == 1 and f"this sidecar would send to {box.name}: SELECT onceward.outbox_forget_broker()" in checked.stdout, checked.stdout
        assert "outbox_forget_broker" not in run(box, first, "check", "--connect").stdout
    finally:
        other.kill()
        box.rabbitmq.delete_vhost(box.name)


@pytest.mark.long
def test_a_lost_connection_loses_nothing(request, tmp_path, fresh_postgres, own_broker):  # noqa: F811
    made = Bed(request.node.name, tmp_path, fresh_postgres, own_broker)
    request.node.bed = made
    made.exchange = ""
    try:
        sidecar = relay(made)
        sidecar.wait_for("outbox_held")
        ids = [f"m{n:04}" for n in range(2000)]
        publish_many(made, ids[:1000], key=made.queue.name)
        take(made, 200)
        own_broker.eval('[rabbit_networking:close_connection(P, "test") || P <- rabbit_networking:connections(), '
                        "{_, C} <- rabbit_reader:info(P, [client_properties]), "
                        '{<<"connection_name">>, _, <<"onceward outbox", _/binary>>} <- C]')
        publish_many(made, ids[1000:], key=made.queue.name)
        sidecar.wait_for("connected", n=2, peer="outbox")
        wait_for_nothing_waiting(made, 60)
        first = made.queue.channel.basic_get(made.queue.name, auto_ack=True)
        assert first[0] is not None
        assert letters(made) == []
    finally:
        made.deinit()


@pytest.mark.long
def test_rows_wait_while_the_whole_broker_is_stopped_and_go_out_in_their_order(request, tmp_path, fresh_postgres, own_broker):  # noqa: F811
    made = Bed(request.node.name, tmp_path, fresh_postgres, own_broker)
    request.node.bed = made
    made.exchange = ""
    ids = [f"m{n:04}" for n in range(400)]
    try:
        sidecar = relay(made)
        sidecar.wait_for("outbox_held")
        publish_many(made, ids[:50], key=made.queue.name)
        wait_for_nothing_waiting(made, 60)
        own_broker.stop()
        try:
            sidecar.wait_for("disconnected", peer="outbox")
            for start in range(50, 400, 50):
                publish_many(made, ids[start:start + 50], key=made.queue.name)
            sidecar.wait_for("outbox", waiting=350)
        finally:
            own_broker.start()
            made.queue.forget_connection()
        wait_for_nothing_waiting(made, 60)
        found = [x[0] for x in take_from(made.queue, len(ids))]
        assert found == ids  # before it all was confirmed, so that nothing is sent again
        assert letters(made) == []
    finally:
        made.deinit()


@pytest.mark.long
def test_a_broker_short_of_memory_stops_the_outbox_and_no_ack(request, tmp_path, fresh_postgres, own_broker):  # noqa: F811
    """A broker in alarm stops reading from connections that publish: the queues have another one."""
    made = Bed(request.node.name, tmp_path, fresh_postgres, own_broker)
    request.node.bed = made
    try:
        results = made.new_queue("-results")
        made.app.handler = lambda message, reply: made.app.commit(
            message, publish=[("", results.name, "{}", "result-" + message.message_id)]) and 200
        for n in range(20):
            made.queue.publish(f"m{n}")
        own_broker.set_alarm("memory")
        try:
            sidecar = made.sidecar(top={"outbox": {}})
            made.wait_for_effects([f"m{n}" for n in range(20)])
            sidecar.wait_for_quiet()
            own_broker.wait_for_counts(made.queue, ready=0, unacked=0)
            assert gauge(made)["waiting"] == 20
        finally:
            own_broker.clear_alarms()
        wait_for_nothing_waiting(made, 60)
        assert {x[0] for x in take_from(results, 20)} == {f"result-m{n}" for n in range(20)}
    finally:
        made.deinit()


@pytest.mark.long
def test_a_channel_that_the_broker_closes_over_no_message_is_told_in_its_words(request, tmp_path, fresh_postgres, own_broker):  # noqa: F811
    """Another's exclusive queue is asked for on its channel: 405."""
    made = Bed(request.node.name, tmp_path, fresh_postgres, own_broker)
    request.node.bed = made
    try:
        sidecar = relay(made, "first")
        sidecar.wait_for("outbox_held")
        locked = made.queue.channel.queue_declare("", exclusive=True).method.queue
        # From RabbitMQ 4.3 on the function is another module's.
        asked = ("[(case erlang:function_exported(rabbit_channel, do, 2) of true -> rabbit_channel; _ -> rabbit_channel_common end)"
                 ":do(C, {'basic.get', 0, <<\"%s\">>, false}) || C <- rabbit_channel:list(),"
                 " [{connection, P}] <- [rabbit_channel:info(C, [connection])],"
                 ' string:find(io_lib:format("~0p", [rabbit_reader:info(P, [client_properties])]), "outbox") =/= nomatch]' % locked)
        wait_until(lambda: own_broker.eval(asked) == "[ok]", "the broker finds the channel", 30)
        told = sidecar.wait_for("disconnected", peer="outbox")
        assert "RESOURCE_LOCKED" in told["reason"] and told["next_try_ms"] == 1000
        assert sidecar.wait_for("outbox", error=lambda e: e)["error"] == told["reason"]
        publish_many(made, ["m1"], exchange="", key=made.queue.name)
        assert take_from(made.queue, 1)[0][0] == "m1"
        sidecar.wait_for("outbox", since=len(sidecar.find("outbox")), error=None)
        assert len(sidecar.find("disconnected", peer="outbox")) == 1
    finally:
        made.deinit()


def test_what_a_full_queue_refuses_goes_again_in_order_and_is_told(box):
    """overflow: reject-publish makes the broker say nack."""
    full = box.new_queue("-full", arguments={"x-max-length": 10, "x-overflow": "reject-publish"})
    ids = [f"m{n:02}" for n in range(40)]
    publish_many(box, ids, exchange="", key=full.name)
    sidecar = relay(box, "first")
    said = sidecar.wait_for("limits", reason=lambda r: "(nack)" in r)
    assert full.name in said["reason"]
    assert [x[0] for x in take_from(full, 40, 120)] == ids
    wait_for_nothing_waiting(box)
    assert letters(box) == [] and sidecar.find("outbox_left") == []
    assert len(sidecar.find("limits", reason=lambda r: "(nack)" in r)) == 1
    wait_until(lambda: any(line["nacked_total"] for line in sidecar.find("outbox")), "nacks are counted", 30, 0.2)


@pytest.mark.long
def test_a_body_that_is_under_way_outlives_its_row(request, tmp_path, fresh_postgres, own_broker):  # noqa: F811
    """The relay forgets its rows while the broker takes no more of a large body: what it sends afterwards is that body all the same."""
    made = Bed(request.node.name, tmp_path, fresh_postgres, own_broker)
    request.node.bed = made
    body = json.dumps({"text": "x" * (15 << 20)})
    try:
        results = made.new_queue("-results")
        made.app.handler = lambda message, reply: made.app.commit(message, publish=[("", results.name, body, "large")]) and 200
        made.queue.publish("m0")
        own_broker.set_alarm("memory")
        try:
            sidecar = made.sidecar(top={"outbox": {}})
            made.wait_for_effects(["m0"])
            wait_until(lambda: "blocked" in own_broker.eval('[rabbit_reader:info(P, [state]) || P <- rabbit_networking:connections()]'),
                       "the relay is blocked")
            made.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                      " WHERE usename = 'sidecar_login' AND datname = current_database()")
            sidecar.wait_for("connected", n=2, peer="database")
        finally:
            own_broker.clear_alarms()
        wait_for_nothing_waiting(made, 60)
        results.sync()
        bodies = [got[2] for got in iter(results.get, None)]
        assert bodies and all(got == body.encode() for got in bodies), [len(got) for got in bodies]
    finally:
        made.deinit()


def test_what_waits_for_a_first_relay_is_shown(box):
    publish(box, "one")
    sidecar = box.sidecar()
    assert "outbox, never relayed: 1 waiting" in run(box, sidecar, "status").stdout
    assert json.loads(run(box, sidecar, "status", "--json").stdout)["outbox"][0]["waiting"] == 1


def test_a_user_who_may_write_to_his_exchange_only_passes_check(box):
    """With all exchanges allowed by the configuration nobody can tell which they are."""
    name = box.name
    box.rabbitmq.add_user(name, write=f"^{box.exchange}$", read="")
    try:
        url = box.rabbitmq.url().replace("guest:guest", f"{name}:secret")
        sidecar = box.sidecar(wait=False, top={"queues": None, "outbox": {}, "broker": {"url": url}})
        checked = run(box, sidecar, "check", "--connect")
        assert checked.returncode == 0 and "no other was tried" in checked.stdout, checked.stdout + checked.stderr
    finally:
        box.rabbitmq.delete_user(name)


def parked(box):
    return [x["message_id"] for x in box.rows("SELECT message_id FROM onceward.outbox_parked ORDER BY n")]


def test_an_ordered_exchange_keeps_the_order_of_each_routing_key(box):
    """A full queue nacks, the exchange loses a binding, and an operator gives one routing key up."""
    full = box.new_queue("-full", arguments={"x-max-length": 5, "x-overflow": "reject-publish"})
    channel = box.queue.channel
    for key in ("a", "b"):
        channel.queue_bind(full.name, box.exchange, key)
    sidecar = relay(box, "first", ordered=[box.exchange])
    wanted = {key: [f"{key}{n:02}" for n in range(20)] for key in ("a", "b")}
    connection = box.postgres.connect()
    with connection.cursor() as cursor:
        for n in range(20):
            for key in wanted:
                cursor.execute("SELECT onceward.publish(%s, %s, '{}'::jsonb, %s)", (box.exchange, key, wanted[key][n]))
    connection.close()
    sidecar.wait_for("limits", reason=lambda r: "(nack)" in r)
    found = [x[0] for x in take_from(full, 40, 120)]
    assert {key: [i for i in found if i[0] == key] for key in wanted} == wanted
    wait_for_nothing_waiting(box)
    channel.queue_unbind(full.name, box.exchange, "a")
    publish_many(box, ["a20", "a21"], key="a")
    sidecar.wait_for("outbox_stopped", exchange=box.exchange, reason="unroutable")
    publish_many(box, ["b20"], key="b")
    wait_until(lambda: sorted(parked(box)) == ["a20", "a21", "b20"], lambda: f"3 are parked: {parked(box)}", 40)
    assert letters(box) == [] and full.channel.basic_get(full.name, auto_ack=True)[0] is None
    channel.queue_bind(full.name, box.exchange, "a")
    assert [i for i in (x[0] for x in take_from(full, 3)) if i[0] == "a"] == ["a20", "a21"]
    sidecar.wait_for("outbox_open", exchange=box.exchange)
    channel.queue_unbind(full.name, box.exchange, "a")
    publish_many(box, ["a22", "a23"], key="a")
    wait_until(lambda: len(parked(box)) == 2, lambda: f"2 are parked: {parked(box)}", 40)
    publish_many(box, ["b21"], key="b")
    wait_until(lambda: len(parked(box)) == 3, lambda: f"3 are parked: {parked(box)}", 40)
    assert box.rows("SELECT onceward.outbox_give_up(%s, 'a') AS n", box.exchange)[0]["n"] == 2
    assert take_from(full, 1)[0][0] == "b21"
    assert [x["message_id"] for x in letters(box)] == ["a22", "a23"]
    wait_for_nothing_waiting(box)


@pytest.mark.long
def test_without_write_permission_an_exchange_stops_and_goes_on_in_order(box):
    name, other = box.name, box.name + "-other"
    box.queue.channel.exchange_declare(other, "direct", durable=True)
    box.queue.channel.queue_bind(box.queue.name, other, "key")
    box.rabbitmq.add_user(name, read="")
    try:
        url = box.rabbitmq.url().replace("guest:guest", f"{name}:secret")
        sidecar = box.sidecar(wait=False, top={"queues": None, "outbox": {}, "broker": {"url": url}})
        publish(box, "before")
        assert take(box, 1)[0][0] == "before"
        box.rabbitmq.set_permissions(name, "", f"^{other}$", "")
        # A busy channel remembers for a while what it was allowed: the relay gets a new one.
        box.rabbitmq.eval(f'rabbit_networking:close_all_user_connections(<<"{name}">>, <<"the permissions have changed">>)')
        ids = [f"m{n:04}" for n in range(2000)]
        publish_many(box, ids[:1500])
        line = sidecar.wait_for("outbox_stopped", exchange=box.exchange, reason="refused")
        assert "ACCESS_REFUSED" in line["error"]
        wait_until(lambda: len(parked(box)) == 1500, "all are parked", 60)
        publish(box, "to-another", exchange=other)
        assert take(box, 1)[0][0] == "to-another"
        wait_until(lambda: gauge(box)["waiting"] == 1500, lambda: f"1500 wait: {gauge(box)}", 40)
        assert letters(box) == []
        publish_many(box, ids[1500:1800])
        box.rabbitmq.set_permissions(name, "", ".*", "")
        publish_many(box, ids[1800:])
        assert [x[0] for x in take(box, 2000, 90)] == ids
        sidecar.wait_for("outbox_open", exchange=box.exchange)
        wait_for_nothing_waiting(box)
        assert letters(box) == [] and parked(box) == [] and is_empty(box)
    finally:
        box.rabbitmq.delete_user(name)
        box.queue.channel.exchange_delete(other)


def test_an_exchange_that_is_declared_later_gets_all_but_the_first_two_in_order(box):
    exchange = box.name + "-later"
    sidecar = relay(box)
    ids = [f"m{n:02}" for n in range(20)]
    publish_many(box, ids, exchange=exchange)
    sidecar.wait_for("outbox_stopped", exchange=exchange, reason="no_exchange")
    wait_until(lambda: parked(box) == ids[2:], lambda: f"18 are parked: {parked(box)}", 40)
    sidecar.kill()  # what is parked outlives it
    relay(box, "second")
    box.queue.channel.exchange_declare(exchange, "direct", durable=True)
    box.queue.channel.queue_bind(box.queue.name, exchange, "key")
    assert [x[0] for x in take(box, 18)] == ids[2:]
    assert [x["message_id"] for x in letters(box)] == ids[:2]
    box.queue.channel.exchange_delete(exchange)


def test_a_replica_that_allows_an_exchange_gets_the_lease(box):
    first = relay(box, "first", exchanges=["amq.fanout"])
    first.wait_for("outbox_held")
    second = relay(box, "second", exchanges=[box.exchange])
    ids = [f"m{n:02}" for n in range(20)]
    publish_many(box, ids)
    assert [x[0] for x in take(box, 20)] == ids
    assert "may take the lease" in first.wait_for("outbox_left")["reason"]
    assert second.find("outbox_held") and letters(box) == []


def test_a_sidecar_without_an_outbox_logs_that_nobody_relays(box):
    publish(box, "waits")
    sidecar = box.sidecar()
    line = sidecar.wait_for("outbox_unrelayed", deadline=60)
    assert line["n"] == 1 and line["lag_ms"] >= 15000
    checked = run(box, sidecar, "check", "--connect")
    assert "1 published messages wait in the outbox, and no sidecar relays them" in checked.stdout, checked.stdout + checked.stderr
    relay(box, "relay")
    wait_for_nothing_waiting(box)


def test_an_operator_gives_up_what_is_parked(box):
    exchange = box.name + "-never"
    sidecar = relay(box)
    publish_many(box, [f"m{n}" for n in range(5)], exchange=exchange)
    wait_until(lambda: len(parked(box)) == 3, "3 are parked", 40)
    assert box.rows("SELECT onceward.outbox_give_up(%s) AS n", exchange)[0]["n"] == 3
    assert [x["message_id"] for x in letters(box)] == [f"m{n}" for n in range(5)]
    wait_for_nothing_waiting(box)
    publish(box, "good")
    assert take(box, 1)[0][0] == "good"
    assert sidecar.find("outbox_stopped")


def test_a_transaction_that_keeps_the_tables_from_being_emptied_is_seen_in_the_figures(box):
    sidecar = relay(box)
    sidecar.wait_for("outbox_held")

    def waits(**wanted):
        publish(box, None)  # an idle one writes a line a minute
        return sidecar.find("outbox", **wanted)

    with box.postgres.connect() as connection:
        connection.autocommit = False
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_current_xact_id()")
        line = wait_until(lambda: waits(turn_waits_ms=lambda ms: ms), "tables that wait", 60, 0.2)[-1]
        since = sidecar.mark()
        connection.rollback()
    assert 0 < line["turn_waits_ms"] < 120000
    wait_until(lambda: waits(since=since, turn_waits_ms=0), "tables that were emptied", 60, 0.2)


def test_status_and_check_show_it(box):
    sidecar = relay(box, "first", exchanges=[box.exchange])
    sidecar.wait_for("outbox_held")
    publish(box, "one")
    take(box, 1)
    wait_for_nothing_waiting(box)
    shown = json.loads(run(box, sidecar, "status", "--json").stdout)["outbox"]
    assert shown[0]["holder"].startswith("first/") and shown[0]["waiting"] == 0
    shown = run(box, sidecar, "status").stdout
    assert re.search(rf"outbox to /: 0 waiting; relayed by first/\d+ \({re.escape(socket.gethostname())}\)", shown), shown
    checked = run(box, sidecar, "check", "--connect")
    assert f"the outbox may publish to exchange {box.exchange}" in checked.stdout, checked.stdout + checked.stderr
    assert is_empty(box), "check has published"
    said = sidecar.wait_for("outbox", state="relaying", published_total=1, published=1)
    assert [key for key in said if not key.startswith("_")] == OF_EVERY_LINE + keys("OUTBOX"), "those of the table, in its order"
