"""Queues and consumers: several in one sidecar, several sidecars on one queue, and names that must not be mixed up."""

import json
import os
import re
import socket

import pytest
from test_commands import run

from rig.bed import merge
from rig.broker_view import needs_failpoints, quick
from rig.wait import wait_until


def two_queues(bed, other, other_app=None, **keys):
    config = bed.config(**keys)
    return merge(config, {"queues": bed.config(queue=other, app=other_app, **keys)["queues"]})


def test_several_queues_in_one_sidecar(bed):
    other, other_app = bed.new_queue("-b"), bed.new_application("-b")
    sidecar = bed.sidecar(config=two_queues(bed, other, other_app), wait=False)
    bed.queue.publish("m1", b"a")
    other.publish("m1", b"b")
    sidecar.wait_for("completed", message_id="m1", queue=bed.queue.name)
    sidecar.wait_for("completed", message_id="m1", queue=other.name)
    assert [r.body for r in bed.app.posts()] == [b"a"] and [r.body for r in other_app.posts()] == [b"b"]
    assert bed.status("m1") == bed.status("m1", other.name) == "completed"


def test_one_queue_without_its_application_does_not_hold_up_the_other(bed):
    other, other_app = bed.new_queue("-b"), bed.new_application("-b")
    other_app.refuse()
    sidecar = bed.sidecar(config=two_queues(bed, other, other_app), wait=False)
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1", queue=bed.queue.name)
    sidecar.wait_for("waiting", queue=other.name)
    other_app.start()
    other.publish("m2")
    sidecar.wait_for("completed", message_id="m2", queue=other.name)


def test_two_queues_under_one_consumer_name_are_refused(bed):
    bed.queue.publish("m1")
    first = bed.sidecar(consumer="shared-" + bed.name)
    first.wait_for("completed", message_id="m1")
    other = bed.new_queue("-b")
    other.publish("m1")
    second = bed.sidecar(queue=other, consumer="shared-" + bed.name, wait=False)
    line = second.wait_for("refused")
    assert bed.queue.name in line["reason"] and other.n_consumers == 0
    other.wait_for_ready(1)
    if second.child.poll() is not None:
        assert second.wait() != 0


def test_takes_over_keeps_the_deduplication_across_the_move(bed):
    consumer = "moved-" + bed.name
    first = bed.sidecar(consumer=consumer)
    bed.queue.publish("m1")
    first.wait_for("completed", message_id="m1")
    assert first.term() == 0
    other = bed.new_queue("-b")
    other.publish_many(["m1", "m2"])
    second = bed.sidecar(queue=other, consumer=consumer, takes_over=bed.queue.name)
    second.wait_for("duplicate", message_id="m1")
    second.wait_for("completed", message_id="m2")
    assert len(bed.app.posts("m1")) == 1
    third = bed.sidecar(consumer=consumer, wait=False)  # the old name is refused from now on
    third.wait_for("refused")
    assert bed.queue.n_consumers == 0
    if third.child.poll() is not None:
        assert third.wait() != 0


@pytest.mark.parametrize("mistake", [{"queue": 'no "such'}, {"queue": "no such (vhost nope)"}])
def test_a_mistake_of_the_first_start_is_mended_by_what_the_refusal_says(bed, mistake):
    """The consumer was recorded with a queue that there is not. `run` and `check` say the same, and doing it works."""
    consumer = "orders-" + bed.name
    first = bed.sidecar(config=merge(bed.config(consumer=consumer), {"queues": {bed.queue.name: mistake}}), wait=False)
    wait_until(lambda: bed.rows("SELECT consumer FROM onceward.consumer WHERE consumer = %s", consumer), "the mistake is recorded", 20)
    assert first.term() == 0
    bed.queue.publish("m1")
    second = bed.sidecar(consumer=consumer, wait=False)
    said = second.wait_for("refused")["reason"]
    former = mistake.get("queue", bed.queue.name)
    assert f'belongs to queue "{former}" in vhost "{mistake.get("vhost", "/")}", not to queue "{bed.queue.name}" in vhost "/"' in said
    advice = said.split('set takes_over to "')[1].split('" if this')[0]
    assert advice == former and second.term() == 0
    done = run("check", "--config", write(bed, consumer=consumer), "--connect")
    assert done.status == 1 and f"FAIL database {bed.postgres.dsn().split('@')[1]}: queues.{bed.queue.name}: {said}" in done.out, done.text
    path = write(bed, consumer=consumer, takes_over=advice)
    done = run("check", "--config", path, "--connect")
    assert done.status == 0 and "is taken over from" in done.out and "warning" not in done.text, done.text
    third = bed.sidecar(consumer=consumer, takes_over=advice)
    third.wait_for("completed", message_id="m1")
    done = run("check", "--config", path, "--connect")
    assert done.status == 0 and f"belongs to queue {bed.queue.name}\n" in done.out and "warning" not in done.text, done.text


def write(bed, **keys):
    path = os.path.join(bed.folder, "check.json")
    with open(path, "w") as f:
        json.dump(bed.config(**keys), f)
    return path


def test_a_queue_at_another_broker_is_refused(bed):
    """Its messages would be acked unseen as duplicates of the former broker's."""
    first = bed.sidecar()
    bed.queue.publish("m1")
    first.wait_for("completed", message_id="m1")
    assert first.term() == 0
    broker = bed.rows("SELECT broker FROM onceward.consumer WHERE consumer = %s", bed.queue.name)[0]["broker"]
    bed.rows("UPDATE onceward.consumer SET broker = 'rabbit@old' WHERE consumer = %s", bed.queue.name)
    bed.queue.publish("m2")
    second = bed.sidecar(wait=False)
    said = second.wait_for("refused")["reason"]
    for part in ('at broker "rabbit@old"', f'at broker "{broker}"', f'set takes_over to "{bed.queue.name}"'):
        assert part in said, said
    assert bed.queue.n_consumers == 0 and second.term() == 0
    third = bed.sidecar(takes_over=bed.queue.name)
    third.wait_for("completed", message_id="m2")
    bed.assert_once("m1", "m2")


@needs_failpoints
def test_a_broker_that_gets_its_name_later_is_asked_again(bed):
    """Each node of a new cluster reports its own name until the cluster has one."""
    first = bed.sidecar()
    bed.queue.publish("m1")
    first.wait_for("completed", message_id="m1")
    assert first.term() == 0
    broker = bed.rows("SELECT broker FROM onceward.consumer WHERE consumer = %s", bed.queue.name)[0]["broker"]
    proxy = bed.new_proxy(bed.rabbitmq.port)
    proxy.rewrites = [(broker.encode(), broker[::-1].encode())]
    bed.queue.publish("m2")
    second = bed.sidecar(wait=False, environment=quick("broker_name_ms=1000"), top={"broker": {"url": bed.rabbitmq.url(port=proxy.port)}})
    assert f'at broker "{broker[::-1]}"' in second.wait_for("refused")["reason"]
    wait_until(lambda: proxy.n_accepted >= 3, lambda: f"{proxy.n_accepted} connections", 30)
    assert bed.queue.n_ready == 1 and len(second.find("refused")) == 1
    proxy.rewrites = []
    second.wait_for("completed", message_id="m2")
    bed.assert_once("m1", "m2")


def test_another_consumer_name_is_refused_unless_it_takes_the_former_over(bed):
    """Under a name of its own, messages that were completed under the former one would be done again."""
    ids = [f"m{i}" for i in range(40)]
    former = bed.sidecar(prefetch=16)
    bed.queue.publish_many(ids)
    bed.wait_for_effects(ids)
    former.wait_for_quiet()
    other = bed.sidecar(consumer="new-" + bed.name, wait=False)
    said = other.wait_for("refused")["reason"]
    for part in (f'belongs to consumer "{bed.queue.name}"', f'not to consumer "new-{bed.name}"', f'set takes_over to "{bed.queue.name}"'):
        assert part in said, said
    done = run("check", "--config", write(bed, consumer="new-" + bed.name), "--connect")
    assert done.status == 1 and said in done.out, done.text
    assert other.term() == 0
    done = run("check", "--config", write(bed, consumer="new-" + bed.name, takes_over=bed.queue.name), "--connect")
    assert done.status == 0 and "continues under the consumer name" in done.out, done.text
    # Beside a replica that still runs under the former name, both see what either has completed.
    other = bed.sidecar(consumer="new-" + bed.name, takes_over=bed.queue.name, prefetch=16)
    more = [f"n{i}" for i in range(60)]
    bed.queue.publish_many(ids + more + more)
    bed.wait_for_effects(ids + more)
    for sidecar in (former, other):
        sidecar.wait_for_quiet()
        assert sidecar.find("duplicate")
    bed.assert_once(*ids, *more)


def test_an_operator_names_a_consumer_by_either_name_after_a_takeover(bed):
    """The rows, and what operators want, are under the former name."""
    former = bed.sidecar()
    bed.queue.publish("m1", b"a")
    former.wait_for("completed", message_id="m1")
    assert former.term() == 0
    keys = {"consumer": "new-" + bed.name, "takes_over": bed.queue.name}
    sidecar, path = bed.sidecar(**keys), write(bed, **keys)
    done = run("pause", "--config", path, "--consumer", "new-" + bed.name, "--json")
    assert done.status == 0 and json.loads(done.out)["consumer"] == bed.queue.name, done.text
    sidecar.wait_for("paused", reason="operator", deadline=20)
    done = run("resume", "--config", path, "--consumer", bed.queue.name)
    assert done.status == 0 and "is not paused" in done.out, done.text
    assert not bed.rows("SELECT FROM onceward.control WHERE consumer = %s", "new-" + bed.name)


def test_dead_letters_and_status_after_a_takeover_are_those_of_the_former_name(bed):
    bed.app.handler = lambda request, reply: 400
    former = bed.sidecar()
    bed.queue.publish_many(["m1", "m2"])
    former.wait_for("dead", n=2)
    assert former.term() == 0
    path = write(bed, consumer="new-" + bed.name, takes_over=bed.queue.name)
    bed.sidecar(consumer="new-" + bed.name, takes_over=bed.queue.name).wait_for("consuming")

    def good(*options):
        done = run(*options, "--config", path)
        assert done.status == 0, done.text
        return done.out

    lines = [line for line in good("status").splitlines() if line.startswith(bed.queue.name)]
    assert lines and not any("*" in line for line in lines)
    ids = [json.loads(line)["letter"] for line in good("dead", "list", "--consumer", "new-" + bed.name, "--json").splitlines()]
    assert len(ids) == 2 and good("export", "--rows", "--letters", "--consumer", "new-" + bed.name).count('"kind"') == 4
    bed.app.handler = bed.app.commit_and_answer
    assert "1 redriven" in good("dead", "redrive", str(ids[0])) and "1 redriven" in good("dead", "redrive", "--all")
    assert bed.letters() == []


def test_a_consumer_of_a_range_is_named_by_either_name_after_a_takeover(bed):
    bed.rows("INSERT INTO onceward.consumer (consumer, broker, vhost, queue) VALUES (%s, 'b', '/', %s)", "old-" + bed.name, bed.name + "-{0..3}")
    path = write(bed)
    with open(path) as f:
        config = json.load(f)
    queue = next(iter(config["queues"].values()))
    queue.update({"queue": bed.name + "-{0..1}", "consumer": "new-" + bed.name, "takes_over": "old-" + bed.name})
    with open(path, "w") as f:
        json.dump(config, f)
    done = run("pause", "--config", path, "--consumer", "new-" + bed.name, "--json")
    assert done.status == 0 and json.loads(done.out)["consumer"] == "old-" + bed.name, done.text


def test_a_pause_of_the_former_consumer_holds_from_the_start(bed):
    former = bed.sidecar()
    done = run("pause", "--config", write(bed), "--consumer", bed.queue.name)
    assert done.status == 0, done.text
    former.wait_for("paused", reason="operator", deadline=20)
    assert former.term() == 0
    bed.queue.publish("m1")
    other = bed.sidecar(wait=False, environment={"ONCEWARD_FAILPOINT": ""}, consumer="new-" + bed.name, takes_over=bed.queue.name)
    other.wait_for("paused", reason="operator", deadline=20)
    assert not other.find("consuming") and not bed.app.posts()


def test_a_consumer_that_nobody_uses_any_more_is_forgotten(bed):
    """No configuration names it, so no sidecar purges its rows."""
    sidecar = bed.sidecar(consumer="old-" + bed.name)
    bed.queue.publish_many(["m1", "m2"])
    sidecar.wait_for("completed", n=2)
    letter = ("INSERT INTO onceward.dead_letter (consumer, vhost, queue, message_id, rowless, reason, attempts, body, exchange, routing_key, deaths,"
              " died_at) VALUES (%s, '/', 'q', 'm3', false, 'x', 1, '', '', '', 0, now())")
    bed.rows(letter, "old-" + bed.name)
    other_queue = bed.new_queue("-b")
    other = write(bed, queue=other_queue)

    def forget(*options):
        return run("forget", "--config", other, "--consumer", "old-" + bed.name, *options)

    done = forget()
    assert done.status == 1 and sidecar.find("started")[0]["instance"] in done.err and bed.status("m1", "old-" + bed.name) == "completed"
    for keys in ({"consumer": "old-" + bed.name}, {"consumer": "new-" + bed.name, "takes_over": "old-" + bed.name}):
        write(bed, **keys)
        done = forget()
        assert done.status == 1 and "remove it there first" in done.err, done.text
    write(bed, queue=other_queue)
    assert sidecar.term() == 0
    bed.rows("UPDATE onceward.replica SET seen_at = seen_at - interval '9 min' WHERE queues::text LIKE %s", f"%{bed.queue.name}%")
    done = forget()
    assert done.status == 1 and sidecar.find("started")[0]["instance"] in done.err, done.text
    bed.rows("UPDATE onceward.replica SET seen_at = seen_at - interval '2 min' WHERE queues::text LIKE %s", f"%{bed.queue.name}%")
    said = run("status", "--config", other).out
    assert f"old-{bed.name} *" in said and "onceward forget --consumer C" in said
    done = forget()
    assert done.status == 0 and done.out == f"2 rows and 0 dead letters of old-{bed.name} removed.\n", done.text
    assert not bed.rows("SELECT consumer FROM onceward.consumer WHERE consumer = %s", "old-" + bed.name)
    assert len(bed.rows("SELECT id FROM onceward.dead_letter WHERE consumer = %s", "old-" + bed.name)) == 1
    done = forget("--dead-letters", "--json")
    assert json.loads(done.out) == {"consumer": "old-" + bed.name, "rows": 0, "dead_letters": 1, "left": 0}, done.text
    assert f"old-{bed.name}" not in run("status", "--config", other).out
    # The queue is free for another consumer.
    bed.sidecar(consumer="new-" + bed.name)


@pytest.mark.parametrize("record", ["changed", "new"])
def test_an_open_transaction_that_keeps_a_consumer_from_its_record_is_logged(bed, record):
    keys, other = {"consumer": "new-" + bed.name, "takes_over": "former"}, bed.postgres.connect()
    if record == "changed":
        bed.rows("INSERT INTO onceward.consumer (consumer, broker, vhost, queue) VALUES (%s, 'b', '/', 'former')", keys["consumer"])
    other.autocommit = False
    with other.cursor() as cursor:
        cursor.execute("SELECT FROM onceward.consumer WHERE consumer = %s FOR UPDATE" if record == "changed" else
                       "INSERT INTO onceward.consumer (consumer, broker, vhost, queue) VALUES (%s, 'b', '/', 'former')", [keys["consumer"]])
    sidecar = bed.sidecar(wait=False, **keys)
    sidecar.wait_for("limits", deadline=60, reason=lambda reason: "not registered yet: " + (
        "another transaction has locked" if record == "changed" else "canceling statement due to lock timeout") in reason)
    assert not sidecar.find("consuming")
    other.rollback()
    other.close()
    sidecar.wait_for("consuming")


def test_a_replica_that_was_frozen_while_its_consumer_was_forgotten_registers_again(bed):
    """Its row in onceward.replica was removed after 10 minutes. Without the record of the consumer there is no housekeeping."""
    sidecar = bed.sidecar()
    bed.queue.publish_many(["m1"])
    sidecar.wait_for("completed")
    sidecar.freeze()
    bed.rows("DELETE FROM onceward.replica WHERE queues::text LIKE %s", f"%{bed.queue.name}%")
    done = run("forget", "--config", write(bed, queue=bed.new_queue("-b")), "--consumer", bed.name)
    assert done.status == 0 and not bed.rows("SELECT 1 FROM onceward.consumer WHERE consumer = %s", bed.name), done.text
    sidecar.thaw()
    wait_until(lambda: bed.rows("SELECT 1 FROM onceward.consumer WHERE consumer = %s AND keeper IS NOT NULL", bed.name),
               what="the consumer is registered again, and has a keeper")
    bed.queue.publish_many(["m2"])
    sidecar.wait_for("completed", n=2)


def test_status_names_hosts_marks_other_configurations_and_shows_a_drained_replica_until_it_ends(bed):
    sidecar, other = bed.sidecar(), bed.new_queue("-b")

    def status(*options, **keys):
        done = run("status", "--config", write(bed, **keys), *options)
        assert done.status == 0, done.text
        return done.out

    def replicas():
        return [r for r in json.loads(status("--json"))["replicas"] if r["queue"] == bed.queue.name]

    wait_until(replicas, "it is shown", 20)
    assert f"{bed.queue.name} *" in status(queue=other) and f"{bed.queue.name} *" not in status()
    assert f"{sidecar.find('started')[0]['instance']} ({socket.gethostname()})" in status()
    assert replicas()[0]["host"] == socket.gethostname()
    assert run("drain", "--state", os.path.join(bed.folder, "sidecar1.state")).status == 0
    wait_until(lambda: [r["state"] for r in replicas()] == ["drained"], "it is shown as drained", 20)
    assert sidecar.term() == 0
    bed.rows("UPDATE onceward.replica SET seen_at = seen_at - interval '15 s' WHERE queues::text LIKE %s", f"%{bed.queue.name}%")
    assert replicas() == []


def test_the_same_queue_under_two_consumer_names_are_two_inboxes(bed):
    """Copies of a message in two queues, as behind a fanout exchange: each consumer has it once."""
    other = bed.new_queue("-b")
    sidecar = bed.sidecar(config=two_queues(bed, other), wait=False)
    bed.queue.publish("m1")
    other.publish("m1")
    sidecar.wait_for("completed", n=2, message_id="m1")
    assert bed.app.effects("m1") == 2


def test_two_sidecars_share_a_queue(bed):
    sidecars = [bed.sidecar(prefetch=16), bed.sidecar(prefetch=16)]
    ids = [f"m{i}" for i in range(200)]
    bed.queue.publish_many(ids)
    bed.wait_for_effects(ids)
    for sidecar in sidecars:
        sidecar.wait_for_quiet()
        assert sidecar.find("completed")
    bed.assert_once(*ids)
    bed.assert_acked()


def no_queue_is_told(bed, sidecar):
    """In each line of the figures, also while it is tried again and again."""
    sidecar.wait_for("stats", n=8, state="no_queue")
    first = next(i for i, e in enumerate(sidecar.events) if e.get("state") == "no_queue")
    told = sidecar.find("stats", first)
    assert {e["state"] for e in told} == {"no_queue"} and {e["depth"] for e in told} == {None}
    assert all("NOT_FOUND" in e["depth_reason"] and bed.queue.name in e["depth_reason"] for e in told)


def test_a_missing_queue_is_waited_for_and_never_declared(bed):
    bed.queue.delete()
    sidecar = bed.sidecar(wait=False)
    sidecar.wait_for("connected", peer="broker")
    line = sidecar.wait_for("no_queue")
    assert line["level"] == "warning" and bed.queue.name in line["reason"] and line["message"] == f"no such queue: {line['reason']}"
    no_queue_is_told(bed, sidecar)
    assert len(sidecar.find("no_queue")) == 1 and not sidecar.find("disconnected"), "the connection is good"
    bed.queue.declare()
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1", deadline=40)


def test_a_deleted_queue_is_consumed_again_when_it_is_back(bed):
    sidecar = bed.sidecar()
    bed.queue.delete()
    sidecar.wait_for("cancelled")
    no_queue_is_told(bed, sidecar)
    mark = sidecar.mark()
    bed.queue.declare()
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1", deadline=40)
    sidecar.wait_for("stats", since=mark, state="consuming", depth=0)


@needs_failpoints
def test_a_stream_is_refused(bed):
    stream = bed.new_queue("-stream", arguments={"x-queue-type": "stream"})
    link = bed.new_proxy(bed.postgres.port)
    sidecar = bed.sidecar(queue=stream, environment=quick(),
                          top={"database": {"url": bed.postgres.dsn(user="sidecar_login", port=link.port)}})

    stream.publish("m1")
    assert "is a stream" in sidecar.wait_for("refused")["reason"]
    sidecar.wait_for("paused", reason="refused", detail=lambda text: "is a stream" in text)
    sidecar.wait_for("stats", n=2, state="paused", paused_reason="refused")
    mark = sidecar.mark()
    link.cut()
    sidecar.wait_for("connected", peer="database", since=mark, deadline=30)
    sidecar.wait_for("stats", n=2, since=sidecar.mark(), state="paused", paused_reason="refused")
    assert not sidecar.find("resumed", reason="refused") and bed.app.posts() == []

    stream.delete()
    stream.arguments = {"x-queue-type": "quorum"}
    stream.declare()
    stream.publish("m2")
    sidecar.wait_for("resumed", reason="refused", deadline=40)
    sidecar.wait_for("completed", message_id="m2", deadline=40)
    assert bed.app.posts("m1") == [] and bed.status("m2", stream.name) == "completed"
    assert len(sidecar.find("paused", reason="refused")) == 1


def test_a_stream_that_holds_messages_is_refused(bed):
    """A stream delivers only what comes after its consumer."""
    stream = bed.new_queue("-stream", arguments={"x-queue-type": "stream"})
    stream.publish_many(["m1", "m2"])
    stream.wait_for_ready(2)
    sidecar = bed.sidecar(queue=stream)
    assert "is a stream" in sidecar.wait_for("refused")["reason"]
    sidecar.wait_for("stats", state="paused", paused_reason="refused")
    assert bed.app.posts() == [] and not sidecar.find("stuck")


def test_a_stream_is_refused_when_it_comes_to_life(bed):
    """The knowledge about a queue ends with it."""
    bed.queue.publish("m1")
    sidecar = bed.sidecar()
    sidecar.wait_for("completed", message_id="m1")
    bed.queue.delete()
    sidecar.wait_for("cancelled")
    bed.queue.arguments = {"x-queue-type": "stream"}
    bed.queue.declare()
    sidecar.wait_for("consuming", n=2, deadline=40)
    bed.queue.publish("m2")
    assert "is a stream" in sidecar.wait_for("refused", deadline=40)["reason"]
    assert bed.app.posts("m2") == []


def broker_lines(bed, text):
    with open(bed.rabbitmq.log, errors="replace") as f:
        return [line for line in f if bed.queue.name in line and text in line]


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_an_idle_queue_is_no_stream_and_its_broker_says_nothing_of_it(bed, kind):
    bed.queue = bed.new_queue("-" + kind, arguments={"x-queue-type": kind})
    sidecar = bed.sidecar(queue=bed.queue)
    sidecar.wait_for("stats", n=20, state="consuming", depth=0)  # of 250 ms each
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    errors = [line for line in broker_lines(bed, "error") if "inequivalent arg" not in line]  # the reading of the queue's arguments
    assert not sidecar.find("refused") and errors == [] == broker_lines(bed, "x-stream-offset")
    assert bed.app.posts("m1")[0].header("Onceward-Redelivered") == "false"
    bed.assert_acked()


def test_a_standby_learns_that_its_queue_is_no_stream_and_takes_nothing(bed):
    """Messages are there and do not come. To ask costs the broker one line, once, and no message a delivery."""
    bed.queue = bed.new_queue("-sac", arguments={"x-queue-type": "quorum", "x-single-active-consumer": True})
    first = bed.queue.hold_first(["m1", "m2", "m3"])
    sidecar = bed.sidecar(queue=bed.queue)
    wait_until(lambda: first.process_data_events(0) or broker_lines(bed, "x-stream-offset"), "it is asked", 20, 0.1)
    mark = sidecar.mark()
    sidecar.wait_for("stats", n=12, since=mark, state="consuming", depth=2)
    assert len(broker_lines(bed, "x-stream-offset")) == 1 and not sidecar.find("refused")
    first.close()
    bed.wait_for_effects(["m1", "m2", "m3"])
    for message_id, redelivered in (("m1", "true"), ("m2", "false"), ("m3", "false")):
        post, = bed.app.posts(message_id)
        assert post.header("Onceward-Redelivered") == redelivered
    assert len(sidecar.find("consuming")) == 1
    sidecar.wait_for_quiet()
    bed.assert_acked()


@needs_failpoints
def test_a_refusal_by_the_database_outlasts_the_broker(bed):
    """Each refusal is taken back by the one who made it."""
    first = bed.sidecar(consumer="shared-" + bed.name)
    first.wait_for("consuming")
    other, link = bed.new_queue("-b"), bed.new_proxy(bed.rabbitmq.port)
    second = bed.sidecar(queue=other, consumer="shared-" + bed.name, wait=False, environment=quick(),
                         top={"broker": {"url": bed.rabbitmq.url(port=link.port)}})
    second.wait_for("paused", reason="refused")
    mark = second.mark()
    link.cut()
    second.wait_for("connected", peer="broker", since=mark)
    second.wait_for("stats", n=2, since=mark, paused_reason="refused")
    assert not second.find("resumed", reason="refused") and other.n_consumers == 0


def test_a_refusal_that_is_found_on_a_reconnect_is_what_the_stats_say(bed):
    """Not that the database is down, which it was before."""
    link = bed.new_proxy(bed.postgres.port)
    sidecar = bed.sidecar(top={"database": {"url": bed.postgres.dsn(user="sidecar_login", port=link.port), "connect_timeout": "2s"}})
    bed.rows("UPDATE onceward.consumer SET queue = 'another' WHERE consumer = %s", bed.queue.name)
    link.refuse()
    link.cut()
    sidecar.wait_for("paused", reason="database_down", deadline=40)
    link.mend()
    sidecar.wait_for("refused", deadline=60)
    assert sidecar.wait_for("stats", paused_reason="refused", deadline=40)["paused_detail"]
    sidecar.wait_for("resumed", reason="database_down")


def test_a_quorum_queue_goes_the_whole_way(bed):
    bed.queue = bed.new_queue("-quorum", arguments={"x-queue-type": "quorum"})
    sidecar = bed.sidecar(queue=bed.queue)
    ids = [f"m{i}" for i in range(100)]
    bed.queue.publish_many(ids + ids[:30])
    bed.wait_for_effects(ids)
    sidecar.wait_for_quiet()
    bed.assert_once(*ids)
    bed.assert_acked()


def test_names_that_need_quoting(bed):
    queue = bed.new_queue(' "ü/\'{,}%')
    sidecar = bed.sidecar(queue=queue)
    queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1", queue=queue.name)
    assert bed.status("m1", queue.name) == "completed"


def test_without_its_schema_it_consumes_nothing_and_says_so(bed, raw_postgres):
    empty = raw_postgres.create_database("empty-" + bed.name)
    bed.queue.publish("m1")
    sidecar = bed.sidecar(wait=False, top={"database": {"url": empty.dsn()}})
    wait_until(lambda: any("migrate" in json_text(e) for e in sidecar.events), "it says to migrate", 20)
    bed.queue.wait_for_ready(1)
    assert bed.queue.n_consumers == 0 and bed.app.posts() == []
    if sidecar.child.poll() is not None:
        assert sidecar.wait() != 0


def json_text(event):
    return " ".join(str(v) for v in event.values())


def test_consumer_tags_are_never_used_again(bed):
    """A quorum queue knows a consumer by its tag and its channel's process, whose number comes again after a restart of the node."""
    sidecar = bed.sidecar()
    tags = []
    for n in range(2):
        tags += re.findall(r'<<"([^"]+)">>', bed.rabbitmq.consumers(bed.queue.name, "consumer_tag"))
        if n == 0:
            sidecar.kill()
            sidecar.start()
            sidecar.wait_for("consuming", n=2)
    assert len(tags) == len(set(tags)) == 2 and len({t.rsplit(".", 1)[-1] for t in tags}) == 2, tags
