"""What a broker can do to its consumers: restarts, closed channels, deleted queues, alarms, permissions taken away, silence.

Whatever it is: each message has its one effect, no attempt is charged, the log says why nothing comes, and at the end the broker's
own figures show one consumer and nothing unacked. See test_broker_links.py for the link between the two."""

import threading
from datetime import datetime, timedelta

import pytest

from rig.broker_view import finish, hold_some, needs_failpoints, own, own_broker, start, wait_for_state  # noqa: F401
from rig.wait import hold_true, wait_until

pytestmark = pytest.mark.xdist_group("own_broker")


# the node

@pytest.mark.short("killed")
@pytest.mark.parametrize("how", ["stop_app", "politely", "killed"])
def test_a_restart_in_the_middle_of_work(own, how):
    ids = [f"m{i}" for i in range(150)]
    gate = hold_some(own, "m20", "m40", "m60")
    own.queue.channel.confirm_delivery()
    own.queue.publish_many(ids)
    sidecar = start(own, prefetch=20, forward={"concurrency": 8})
    own.app.wait_for_posts(70)
    mark = sidecar.mark()
    if how == "stop_app":
        own.rabbitmq.eval("rabbit:stop()")
    elif how == "politely":
        own.rabbitmq.stop_politely()
    else:
        own.rabbitmq.stop()
    lost = sidecar.wait_for("disconnected", peer="broker", since=mark)
    # What was written just then may fail before the broker's last words are read.
    said = ("the broker closed the connection: 320",) if how != "killed" else ("the connection to the broker was lost",)
    assert lost["reason"].startswith((*said, "the connection to the broker is lost", "sending to the broker"))
    wait_for_state(sidecar, "disconnected", mark, depth=None)
    gate.open()
    for held in ("m20", "m40", "m60"):
        own.wait_for_status(held, "completed")
    mark = sidecar.mark()
    if how == "stop_app":
        own.rabbitmq.eval("rabbit:start()")
    else:
        own.rabbitmq.start()
    sidecar.wait_for("consuming", since=mark, deadline=60)
    own.queue.forget_connection()
    finish(own, sidecar, ids)


# the channel

def test_a_channel_closed_for_the_consumer_timeout(own):
    own.rabbitmq.eval("application:set_env(rabbit, consumer_timeout, 1500), application:set_env(rabbit, channel_tick_interval, 300)")
    try:
        gate = hold_some(own, "slow")
        sidecar = start(own)
        version = sidecar.find("connected", peer="broker")[0]["version"]
        if tuple(map(int, version.split(".")[:2])) >= (4, 3):
            pytest.skip("classic queues have no consumer timeout any more, and quorum queues look only once a minute")
        own.queue.publish("slow")
        gate.wait_for_waiting()
        own.queue.publish_many(["m1", "m2"])
        lost = sidecar.wait_for("disconnected", peer="broker")
        assert "406" in lost["reason"] and "timed out" in lost["reason"], lost
        sidecar.wait_for("consuming", n=2)
        own.queue.publish_many(["m3", "m4"])
        sidecar.wait_for("completed", message_id="m4")
    finally:
        own.rabbitmq.eval("application:set_env(rabbit, consumer_timeout, 1800000), "
                          "application:set_env(rabbit, channel_tick_interval, 60000)")
    gate.open()
    finish(own, sidecar, ["slow", "m1", "m2", "m3", "m4"])


def logged_at(line):
    return datetime.fromisoformat(line["ts"].replace("Z", "+00:00"))


def test_a_broker_that_refuses_transactions(own):
    """A proxy turns tx.select into a tx.commit, which RabbitMQ refuses before it. Each try waits for its time."""
    select, commit = b"\x00\x5a\x00\x0a\xce", b"\x00\x5a\x00\x14\xce"
    link = own.new_proxy(own.rabbitmq.port)
    link.rewrites_up = [(select, commit)]
    sidecar = start(own, wait=False, top={"broker": {"url": own.rabbitmq.url(port=link.port)}})
    own.queue.publish("m1")
    lost = [sidecar.wait_for("disconnected", n=n, peer="broker") for n in (1, 2, 3)]
    assert all("channel is not transactional" in line["reason"] for line in lost), lost
    for one, other in zip(lost, lost[1:]):
        assert logged_at(other) - logged_at(one) >= timedelta(milliseconds=one["next_try_ms"] - 1), lost
    link.rewrites_up = []
    finish(own, sidecar, ["m1"])


def test_a_queue_deleted_under_work_and_made_again(own):
    gate = hold_some(own, "m0", "m1", "m2")
    sidecar = start(own)
    ids = []
    for n in range(3):
        mark = sidecar.mark()
        ids.append(f"m{n}")
        own.queue.publish_many(ids[-1:])
        gate.wait_for_waiting(n + 1)
        own.queue.delete()
        assert own.queue.name in sidecar.wait_for("cancelled", since=mark)["reason"]
        assert "404" in sidecar.wait_for("no_queue", since=mark)["reason"], "it says what it waits for"
        own.queue.declare()
        sidecar.wait_for("consuming", since=mark)
    gate.open()
    more = [f"n{i}" for i in range(20)]
    own.queue.publish_many(more)
    finish(own, sidecar, ids + more)


# acks

@pytest.mark.short("8")
@pytest.mark.parametrize("prefetch", [8, 1024])
def test_a_slow_message_does_not_hold_the_acks_of_the_others(own, prefetch):
    gate = hold_some(own, "slow")
    sidecar = start(own, prefetch=prefetch, forward={"concurrency": 4})
    own.queue.publish("slow")
    gate.wait_for_waiting()
    ids = [f"m{i}" for i in range(40)]
    own.queue.publish_many(ids)
    own.rabbitmq.wait_for_counts(own.queue, ready=0, unacked=1)
    gate.open()
    finish(own, sidecar, ["slow", *ids])


# alarms

@pytest.mark.short("memory")
@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_consuming_and_acking_go_on_while_the_broker_takes_no_messages(own, kind):
    ids = [f"m{i}" for i in range(60)]
    gate = hold_some(own, *ids)
    own.queue.publish_many(ids)
    sidecar = start(own, prefetch=16, forward={"concurrency": 8})
    gate.wait_for_waiting(8)
    own.rabbitmq.set_alarm(kind)
    try:
        gate.open()
        own.wait_for_effects(ids)
        own.rabbitmq.wait_for_counts(own.queue, ready=0, unacked=0)
        mark = sidecar.mark()
        own.rabbitmq.close_connections("an operator")  # one that is made now may be blocked from its start
        sidecar.wait_for("consuming", since=mark)
        own.rabbitmq.wait_for_counts(own.queue, consumers=1)
    finally:
        own.rabbitmq.clear_alarms()
    own.queue.forget_connection()
    own.queue.publish_many(["later"])
    finish(own, sidecar, ids + ["later"])


# permissions

class User:
    """A user of the broker whom an operator can hurt."""

    def __init__(self, broker, name):
        self.broker, self.name = broker, name
        broker.eval(f'rabbit_auth_backend_internal:add_user(<<"{name}">>, <<"pw">>, <<"test">>)')
        self.allow()

    def allow(self, read=".*"):
        self.broker.eval(f'rabbit_auth_backend_internal:set_permissions(<<"{self.name}">>, <<"/">>, <<"">>, <<"">>, '
                         f'<<"{read}">>, <<"test">>)')

    def forbid(self):
        self.broker.eval(f'rabbit_auth_backend_internal:clear_permissions(<<"{self.name}">>, <<"/">>, <<"test">>)')

    def change_password(self, password):
        self.broker.eval(f'rabbit_auth_backend_internal:change_password(<<"{self.name}">>, <<"{password}">>, <<"test">>)')

    def delete(self):
        self.broker.eval(f'rabbit_auth_backend_internal:delete_user(<<"{self.name}">>, <<"test">>)')


@pytest.mark.parametrize("how,said", [("vhost", "530"), ("read", "403"), ("password", "403")])
def test_permissions_that_are_taken_away_are_said_and_waited_for(own, how, said):
    user = User(own.rabbitmq, own.queue.name)
    gate = hold_some(own, "held")
    sidecar = start(own, top={"broker": {"url": own.rabbitmq.url().replace("guest:guest", f"{user.name}:pw")}})
    own.queue.publish_many(["held"])
    gate.wait_for_waiting()
    if how == "vhost":
        user.forbid()
    elif how == "read":
        user.allow(read="^nothing$")
    else:
        user.change_password("other")
    mark = sidecar.mark()
    own.rabbitmq.close_connections("an operator")
    sidecar.wait_for("disconnected", since=mark, reason=lambda r: "an operator" in r)
    sidecar.wait_for("disconnected", since=mark, n=2, reason=lambda r: said in r)
    gate.open()
    own.wait_for_status("held", "completed")
    own.queue.forget_connection()
    own.queue.publish_many(["m1"])
    mark = sidecar.mark()
    line = sidecar.wait_for("stats", since=mark)
    assert line["state"] in ("disconnected", "waiting", "consuming")
    sidecar.wait_for("disconnected", since=mark, reason=lambda r: said in r)
    mark = sidecar.mark()
    user.change_password("pw")
    user.allow()
    sidecar.wait_for("consuming", since=mark)
    finish(own, sidecar, ["held", "m1"])
    user.delete()


# silence

@needs_failpoints
def test_another_active_consumer_is_waited_for_and_said(own):
    own.queue = own.new_queue("-single", arguments={"x-single-active-consumer": True})
    other = own.queue.hold_first([f"m{i}" for i in range(4)])
    sidecar = start(own, "stuck_ms=300,stuck_again_ms=300", queue=own.queue)
    for n in (1, 2):
        line = sidecar.wait_for("stuck", n=n)
        assert line["depth"] == 3 and line["nothing_for_ms"] >= 300 and "not empty" in line["reason"]
        sidecar.wait_for("disconnected", n=n, reason=lambda r: "not empty" in r)
        wait_for_state(sidecar, "stuck")
    assert sidecar.wait_for("standby")["depth"] == 3
    mark = sidecar.mark()
    wait_for_state(sidecar, "standby", mark, depth=3)
    hold_true(lambda: len(sidecar.find("stuck")) == 2 and len(sidecar.find("disconnected")) == 2, "it waits for its turn", 1)
    assert own.app.posts() == []
    other.close()
    mark = sidecar.mark()
    own.wait_for_effects([f"m{i}" for i in range(4)])
    wait_for_state(sidecar, "consuming", mark)
    finish(own, sidecar, [f"m{i}" for i in range(4)])


@pytest.mark.short("stuck")
@needs_failpoints
@pytest.mark.parametrize("state", ["stuck", "standby"])
def test_a_standby_gets_the_queue_when_the_active_replicas_application_dies(own, state):
    """Only the active consumer is delivered to: it must leave, or the healthy replica never gets a message."""
    own.queue = own.new_queue("-single", arguments={"x-single-active-consumer": True})
    ids = [f"m{i}" for i in range(30)]
    ended = threading.Event()
    own.app.handler = lambda request, reply: ended.wait(60) and 503
    active = start(own, queue=own.queue, pause_hold="1s", prefetch=4, forward={"concurrency": 4})
    own.queue.publish_many(ids)
    wait_until(lambda: len(own.app.posts()) == 4, "the active replica works", 30)
    healthy = own.new_application("-healthy")
    healthy.handler = healthy.commit_and_answer
    # The first silence makes it stuck; the second and third, where there is time for them, a standby.
    again = "600000" if state == "stuck" else "300"
    second = start(own, f"stuck_ms=300,stuck_again_ms={again}", queue=own.queue, app=healthy)
    wait_for_state(second, state)
    wait_until(lambda: own.rows("SELECT may_consume FROM onceward.replica WHERE may_consume ? %s AND queues::text LIKE %s",
                                own.queue.name, f'%"{state}"%'), "the standby is one that may consume", 20)
    own.app.die()
    ended.set()
    active.wait_for("paused", reason="application_down", deadline=40)
    wait_until(lambda: {e["message_id"] for e in second.find("completed")} == set(ids), "all are done by the healthy replica", 60)


@needs_failpoints
def test_a_single_active_consumer_keeps_its_queue_while_messages_are_parked(own):
    """Fresh credit would hand the queue to the waiting replica, which a classic queue then delivers nothing."""
    own.queue = own.new_queue("-single", arguments={"x-single-active-consumer": True})
    gate = threading.Event()
    own.app.handler = lambda request, reply: own.app.commit_and_answer(request, reply) if request.message_id == "m3" or gate.is_set() else 429
    active = start(own, queue=own.queue, prefetch=4, forward={"concurrency": 4}, retry={"backoff": "300ms", "max_backoff": "300ms", "max_attempts": 1000})
    assert active.wait_for("consuming")["prefetch"] == 4
    second = start(own, "stuck_ms=300,stuck_again_ms=300", queue=own.queue)
    own.queue.publish_many([f"m{i}" for i in range(10)])
    own.wait_for_status("m3", "completed")
    own.app.wait_for_posts(10)
    gate.set()
    own.wait_for_effects([f"m{i}" for i in range(10)])
    assert len(active.find("completed")) == 10 and not second.find("completed")


@pytest.mark.short("1")
@pytest.mark.parametrize("prefetch", [1, 4])
def test_a_standby_gets_the_queue_when_the_active_replica_loses_its_database(bed, prefetch):
    bed.queue = bed.new_queue("-single", arguments={"x-queue-type": "quorum", "x-single-active-consumer": True})
    proxy = bed.new_proxy(bed.postgres.port)
    database = {"url": bed.postgres.dsn(user="sidecar_login", port=proxy.port)}
    active = bed.sidecar(queue=bed.queue, prefetch=prefetch, forward={"concurrency": 1}, top={"database": database})
    active.wait_for("consuming")
    bed.queue.publish("m0")
    bed.wait_for_status("m0", "completed")
    second = bed.sidecar(queue=bed.queue, prefetch=prefetch, forward={"concurrency": 1})
    second.wait_for("consuming")
    proxy.stop()
    active.wait_for("paused", reason="database_down", deadline=30)
    ids = [f"m{i}" for i in range(1, 2 * prefetch + 8)]
    bed.queue.publish_many(ids)
    # The former consumer may have taken some before its cancel, and holds them.
    wait_until(lambda: len(second.find("completed")) >= len(ids) - 2 * prefetch, "the replica with a database has the rest", 40)
    proxy.mend()
    for message in ids:
        bed.wait_for_status(message, "completed")


@needs_failpoints
def test_a_queue_that_answers_nothing_is_said_and_consumed_again(own):
    """Its process hangs; the connection, with its heartbeats, is well, and stays. The queue gets another channel."""
    link = own.new_proxy(own.rabbitmq.port)
    own.queue.publish_many(["m1", "m2"])
    sidecar = start(own, "stuck_ms=500,stuck_again_ms=60000,answer_ms=700", top={"broker": {"url": own.rabbitmq.url(port=link.port)}})
    own.wait_for_effects(["m1", "m2"])
    sidecar.wait_for_quiet()
    own.rabbitmq.suspend(own.queue)
    try:
        mark = sidecar.mark()
        link.cut()
        sidecar.wait_for("connected", peer="broker", since=mark)
        line = sidecar.wait_for("stuck", since=mark)
        assert "does not answer" in line["reason"] and "depth" not in line
        wait_for_state(sidecar, "stuck", mark)
        sidecar.wait_for("stats", since=mark, depth=None, depth_reason=lambda r: "does not answer the broker" in r)
        sidecar.wait_for("disconnected", since=mark, reason=lambda r: "does not answer" in r)
    finally:
        own.rabbitmq.resume(own.queue)
    sidecar.wait_for("consuming", since=mark)
    assert len(sidecar.find("connected", peer="broker", since=mark)) == 1
    own.queue.forget_connection()
    own.queue.publish_many(["m3"])
    finish(own, sidecar, ["m1", "m2", "m3"])


def test_a_sidecar_whose_queue_answers_nothing_can_be_stopped(own):
    sidecar = start(own, top={"shutdown_grace": "1s"})
    own.rabbitmq.suspend(own.queue)
    try:
        assert sidecar.term(30) == 0
    finally:
        own.rabbitmq.resume(own.queue)


@pytest.mark.long
@needs_failpoints
def test_a_credit_that_was_used_up_for_long_is_no_silence(own):
    """No delivery could come: the time counts from when one can."""
    link = own.new_proxy(own.rabbitmq.port)
    ids = [f"m{i}" for i in range(3)]
    gate = hold_some(own, "m0")
    own.queue.publish_many(ids)
    sidecar = start(own, "stuck_ms=3000", prefetch=1, forward={"concurrency": 1}, top={"broker": {"url": own.rabbitmq.url(port=link.port)}})
    gate.wait_for_waiting()
    posted = own.app.posts()[0].at
    mark = sidecar.mark()
    wait_until(lambda: sidecar.find("stats", since=mark, depth=2) and sidecar.events[-1]["_at"] - posted > 3.2, "it was held for long", 30)
    link.freeze(up=False)
    gate.open()
    own.wait_for_status("m0", "completed")
    hold_true(lambda: not sidecar.find("stuck"), "the next one is not late yet", 1.3)
    link.thaw()
    finish(own, sidecar, ids)
    assert not sidecar.find("stuck")


@pytest.mark.long
@needs_failpoints
def test_what_was_in_the_queue_long_ago_is_no_reason(own):
    """The figures are rare, and the last depth is from before the messages came."""
    ids = [f"m{i}" for i in range(4)]
    gate = hold_some(own, "m0")
    own.queue.publish_many(ids)
    sidecar = start(own, "stuck_ms=2000", prefetch=1, forward={"concurrency": 1}, top={"log": {"stats_interval": "4s"}})
    gate.wait_for_waiting()
    sidecar.wait_for("stats")  # with it the depth is asked for
    wait_until(lambda: own.rabbitmq.counts(own.queue)["ready"] == 3, "three wait", 30)
    gate.open()
    own.wait_for_effects(ids)
    hold_true(lambda: not sidecar.find("stuck"), "there is nothing to deliver", 4.5)
    finish(own, sidecar, ids)


@needs_failpoints
def test_silence_is_noticed_between_the_figures(own):
    own.queue = own.new_queue("-single", arguments={"x-single-active-consumer": True})
    other = own.queue.hold_first(["m0", "m1", "m2"])
    sidecar = start(own, "stuck_ms=600", queue=own.queue, top={"log": {"stats_interval": "1h"}})
    assert sidecar.wait_for("stuck")["depth"] == 2
    other.close()
    own.wait_for_effects(["m0", "m1", "m2"])
    assert sidecar.term(30) == 0
    own.queue.assert_empty()
