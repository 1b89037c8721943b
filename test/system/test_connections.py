"""Connections: lost and made again for ever, verified by default; and the end, when it is asked for."""

import os
import signal
import tempfile

import pytest

from rig import schema, servers
from rig.application import Gate
from rig.wait import hold_true, wait_until


@pytest.fixture(scope="module")
def own_servers():
    """Servers that these tests may stop and start."""
    schema.require_binary()
    made = servers.Servers("onceward-own-")
    try:
        made.start()
        schema.migrate(made.postgres)
        yield made
    finally:
        made.stop()


@pytest.fixture
def own(bed, own_servers):
    """A bed on those servers."""
    from rig.bed import Bed
    made = Bed(bed.name, tempfile.mkdtemp(dir=bed.folder), own_servers.postgres, own_servers.rabbitmq)
    bed.sidecars = made.sidecars  # shown on a failure
    yield made
    bed.sidecars = []
    made.deinit()


# broker

@pytest.mark.long
@pytest.mark.xdist_group("own_servers")
def test_a_broker_that_restarts_is_consumed_again_and_work_in_flight_is_not_repeated(own):
    gate = Gate()

    def handler(request, reply):
        if request.message_id == "held":
            gate.wait()
        return own.app.commit_and_answer(request, reply)

    own.app.handler = handler
    sidecar = own.sidecar(token_window="60s")
    own.queue.channel.confirm_delivery()
    own.queue.publish("held")  # confirmed, so it survives
    gate.wait_for_waiting()
    own.rabbitmq.stop()
    sidecar.wait_for("disconnected", peer="broker")
    gate.open()
    own.wait_for_status("held", "completed")
    mark = sidecar.mark()
    own.rabbitmq.start()
    sidecar.wait_for("consuming", since=mark, deadline=60)
    wait_until(lambda: sidecar.find("duplicate", message_id="held"), "its redelivery is acked")
    own.queue.forget_connection()
    own.queue.publish("next")
    sidecar.wait_for("completed", message_id="next")
    assert len(own.app.posts("held")) == 1
    own.assert_once("held", "next")
    own.assert_acked()


@pytest.mark.parametrize("times", [3])
def test_a_broker_connection_that_is_cut_again_and_again_loses_and_doubles_nothing(bed, times):
    link = bed.new_proxy(bed.rabbitmq.port)
    sidecar = bed.sidecar(top={"broker": {"url": bed.rabbitmq.url(port=link.port)}})
    ids = [f"m{i}" for i in range(300)]
    bed.queue.publish_many(ids)
    for n in range(times):
        bed.app.wait_for_posts(60 * (n + 1))
        mark = sidecar.mark()
        link.cut()
        sidecar.wait_for("disconnected", peer="broker", since=mark)
        sidecar.wait_for("consuming", since=mark)
    bed.wait_for_effects(ids)
    sidecar.wait_for_quiet()
    assert len(bed.app.posts()) == 300 and {r.attempt for r in bed.app.posts()} == {1}
    bed.assert_once(*ids)
    bed.assert_acked()


def test_a_broker_link_that_freezes_is_given_up_after_its_heartbeats(bed):
    link = bed.new_proxy(bed.rabbitmq.port)
    sidecar = bed.sidecar(top={"broker": {"url": bed.rabbitmq.url(port=link.port), "heartbeat": "2s"}})
    link.freeze()
    sidecar.wait_for("disconnected", peer="broker", deadline=20)
    link.cut()
    mark = sidecar.mark()
    link.thaw()
    sidecar.wait_for("consuming", since=mark, deadline=30)
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")


def test_a_broker_that_is_not_there_yet_is_waited_for(bed):
    link = bed.new_proxy(bed.rabbitmq.port)
    link.refuse()
    sidecar = bed.sidecar(wait=False, top={"broker": {"url": bed.rabbitmq.url(port=link.port)}})
    sidecar.wait_for("waiting", reason="disconnected")
    link.mend()
    sidecar.wait_for("consuming", deadline=30)


# database

@pytest.mark.long
@pytest.mark.xdist_group("own_servers")
def test_a_database_that_restarts_pauses_the_queue_and_charges_nobody(own):
    sidecar = own.sidecar(token_window="60s", pause_hold="1s")
    own.queue.publish("m0")
    sidecar.wait_for("completed", message_id="m0")
    own.postgres.crash()
    sidecar.wait_for("disconnected", peer="database")
    own.queue.publish_many([f"m{i}" for i in range(1, 30)])
    sidecar.wait_for("paused", reason="database_down")
    own.app._databases.clear()
    own.postgres.start()
    sidecar.wait_for("resumed", deadline=40)
    ids = [f"m{i}" for i in range(30)]
    own.wait_for_effects(ids)
    sidecar.wait_for_quiet()
    assert {r.attempt for r in own.app.posts()} == {1}
    own.assert_once(*ids)
    own.assert_acked()


def test_a_database_connection_that_is_cut_again_and_again_loses_and_doubles_nothing(bed):
    link = bed.new_proxy(bed.postgres.port)
    sidecar = bed.sidecar(top={"database": {"url": bed.postgres.dsn(user="sidecar_login", port=link.port)}})
    ids = [f"m{i}" for i in range(300)]
    bed.queue.publish_many(ids)
    for n in range(3):
        bed.app.wait_for_posts(60 * (n + 1))
        mark = sidecar.mark()
        link.cut()
        sidecar.wait_for("connected", peer="database", since=mark)
    bed.wait_for_effects(ids)
    sidecar.wait_for_quiet()
    assert bed.letters() == []
    bed.assert_once(*ids)
    bed.assert_acked()


def test_a_database_session_that_is_terminated_is_replaced(bed):
    sidecar = bed.sidecar()
    mark = sidecar.mark()
    bed.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'sidecar_login' AND datname = current_database()")
    sidecar.wait_for("connected", peer="database", since=mark)
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    assert [r.attempt for r in bed.app.posts()] == [1]


def test_a_failure_while_the_database_was_lost_is_given_back(bed):
    """The application's transaction may have been aborted by the same loss."""
    link = bed.new_proxy(bed.postgres.port)
    once = []

    def handler(request, reply):
        if not once:
            once.append(1)
            link.cut()
            wait_until(lambda: sidecar.find("disconnected", peer="database"), "the sidecar has noticed")
            return 500
        return bed.app.commit_and_answer(request, reply)

    bed.app.handler = handler
    sidecar = bed.sidecar(token_window="20s", top={"database": {"url": bed.postgres.dsn(user="sidecar_login", port=link.port)}})
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    assert [r.attempt for r in bed.app.posts()] == [1, 1]
    bed.assert_once("m1")
    bed.assert_acked()


def test_a_database_that_is_read_only_is_waited_for(fresh_postgres, bed):
    schema.migrate(fresh_postgres)
    name = fresh_postgres.database
    bed.queue.publish("m1")
    fresh_postgres.query(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on', database="postgres")
    sidecar = bed.sidecar(wait=False, completion="response", top={"database": {"url": fresh_postgres.dsn(user="sidecar_login")}})
    sidecar.wait_for("waiting", reason="database_down")
    bed.app.handler = bed.app.only_answer
    fresh_postgres.query(f'ALTER DATABASE "{name}" RESET default_transaction_read_only', database="postgres")
    sidecar.wait_for("completed", message_id="m1", deadline=40)
    assert [r.attempt for r in bed.app.posts()] == [1]
    sidecar.end()


def test_another_default_isolation_does_no_harm(fresh_postgres, bed):
    schema.migrate(fresh_postgres)
    fresh_postgres.query(f"ALTER DATABASE \"{fresh_postgres.database}\" SET default_transaction_isolation = 'serializable'", database="postgres")
    bed.app.postgres = fresh_postgres
    sidecar = bed.sidecar(top={"database": {"url": fresh_postgres.dsn(user="sidecar_login")}})
    ids = [f"m{i}" for i in range(50)]
    bed.app.handler = bed.app.only_answer
    bed.queue.publish_many(ids)
    bed.app.wait_for_posts(50)
    assert not [e for e in sidecar.events if e.get("sqlstate") == "40001"]
    sidecar.kill()


# TLS

def test_tls_to_the_broker_is_verified_by_default(bed, certificates):
    sidecar = bed.sidecar(wait=False, top={"broker": {"url": bed.rabbitmq.tls_url(), "tls": {"ca_file": certificates.other_ca}}})
    sidecar.wait_for("waiting", reason="disconnected")
    hold_true(lambda: not sidecar.find("consuming"), "it does not consume", 0.5)
    sidecar.kill()
    good = bed.sidecar(top={"broker": {"url": bed.rabbitmq.tls_url(), "tls": {"ca_file": certificates.ca}}})
    bed.queue.publish("m1", b"x" * 300000)
    good.wait_for("completed", message_id="m1")
    assert bed.app.posts()[0].body == b"x" * 300000


def test_tls_to_the_broker_unverified_when_it_is_said(bed, certificates):
    sidecar = bed.sidecar(top={"broker": {"url": bed.rabbitmq.tls_url(), "tls": {"verify": False}}})
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")


def test_tls_to_the_database_is_verified(bed, certificates):
    url = bed.postgres.dsn(user="sidecar_login", sslmode="verify-full", sslrootcert=certificates.other_ca).replace("127.0.0.1", "localhost")
    sidecar = bed.sidecar(wait=False, top={"database": {"url": url}})
    sidecar.wait_for("waiting", reason="database_down")
    sidecar.kill()
    sidecar = bed.sidecar(top={"database": {"url": url.replace(certificates.other_ca, certificates.ca)}})
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    assert bed.rows("SELECT 1 FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE datname = current_database() "
                    "AND usename = 'sidecar_login' AND ssl")


# secrets

def test_passwords_come_from_the_configuration_and_files(bed, tmp_path):
    password = bed.postgres.PASSWORD
    if not bed.postgres.query("SELECT 1 FROM pg_roles WHERE rolname = 'with_password'"):
        bed.postgres.query("CREATE ROLE with_password LOGIN IN ROLE onceward_sidecar PASSWORD %s", (password,))
    secret, broker = tmp_path / "secret", tmp_path / "broker"
    secret.write_text(password + "\n")
    broker.write_text("guest")
    sidecar = bed.sidecar(top={
        "broker": {"url": bed.rabbitmq.url().replace("guest:guest", "wrong:wrong"), "user": "guest", "password_file": str(broker)},
        "database": {"url": bed.postgres.dsn(user="with_password"), "password_file": str(secret)}})
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")


def test_a_wrong_password_is_said_without_the_password(bed):
    sidecar = bed.sidecar(wait=False, top={"broker": {"url": bed.rabbitmq.url(), "password": "secret-marker"}})
    sidecar.wait_for("waiting", reason="disconnected")


# the application

def test_the_application_over_a_unix_socket(bed):
    folder = tempfile.mkdtemp(prefix="ow-")
    app = bed.new_application("-unix", unix_socket=os.path.join(folder, "app.sock"))
    sidecar = bed.sidecar(app=app)
    bed.queue.publish_many([f"m{i}" for i in range(50)])
    sidecar.wait_for("completed", n=50)
    assert len(app.posts()) == 50 and app.effects("m7") == 1
    app.die()
    bed.queue.publish("later")
    sidecar.wait_for("paused")
    app.start()
    sidecar.wait_for("completed", message_id="later")
    bed.assert_acked()


# the end

@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_what_is_in_flight_finishes_and_the_rest_is_given_back(bed, number):
    gate = Gate()

    def handler(request, reply):
        gate.wait()
        return bed.app.commit_and_answer(request, reply)

    bed.app.handler = handler
    sidecar = bed.sidecar(forward={"concurrency": 4}, prefetch=20, token_window="20s", top={"shutdown_grace": "20s"})
    bed.queue.publish_many([f"m{i}" for i in range(30)])
    gate.wait_for_waiting(4)
    bed.queue.wait_for_ready(10)
    sidecar.signal(number)
    sidecar.wait_for("draining")
    bed.queue.wait_for_ready(26)
    gate.open()
    assert sidecar.wait() == 0
    assert sidecar.find("drained") and sidecar.find("stopped")
    assert len(bed.app.posts()) == 4 and bed.statuses().get("completed") == 4
    assert bed.queue.n_ready == 26
    bed.sidecar()
    bed.wait_for_effects([f"m{i}" for i in range(30)])
    assert {r.attempt for r in bed.app.posts()} == {1}


def test_at_the_end_of_the_grace_tokens_are_released_and_nothing_is_charged(bed):
    gate = Gate()
    refused = []

    def handler(request, reply):
        gate.wait()
        refused.append(bed.app.try_commit(request))

    bed.app.handler = handler
    sidecar = bed.sidecar(token_window="60s", top={"shutdown_grace": "1s"})
    bed.queue.publish("m1")
    gate.wait_for_waiting()
    assert sidecar.term() == 0
    row = bed.row("m1")
    assert row["status"] == "waiting" and row["attempt"] == 0
    gate.open()
    wait_until(lambda: refused, "the handler ended")
    assert refused == ["OW001"] and bed.app.effects() == {}
    bed.app.handler = bed.app.commit_and_answer
    bed.sidecar().wait_for("completed", message_id="m1")
    assert bed.app.posts()[-1].attempt == 1
    bed.assert_once("m1")


def test_at_the_end_of_the_grace_response_completion_holds_its_messages_back_until_the_window_would_have_ended(bed):
    gate = Gate()
    bed.app.handler = lambda request, reply: gate.wait()
    sidecar = bed.sidecar(completion="response", token_window="20s", top={"shutdown_grace": "1s"})
    bed.queue.publish("m1")
    gate.wait_for_waiting()
    assert sidecar.term() == 0
    row = bed.rows("SELECT status, attempt, next_attempt_at - clock_timestamp() AS wait FROM onceward.inbox WHERE consumer = %s",
                   bed.queue.name)[0]
    assert row["status"] == "waiting" and row["attempt"] == 0, "a shutdown is not charged"
    assert row["wait"].total_seconds() > 10, "the application may still be at work: no second POST before its window is over"
    assert bed.queue.n_ready == 1
    gate.open()


def test_sigterm_ends_a_sidecar_that_has_no_connections(bed):
    sidecar = bed.sidecar(wait=False, top={"broker": {"url": "amqp://guest:guest@127.0.0.1:1/"},
                                           "database": {"url": "postgresql://127.0.0.1:1/x"}})
    sidecar.wait_for("waiting", reason="disconnected")
    assert sidecar.term() == 0


def test_sigterm_ends_a_sidecar_whose_servers_are_frozen(bed):
    broker, database = bed.new_proxy(bed.rabbitmq.port), bed.new_proxy(bed.postgres.port)
    sidecar = bed.sidecar(top={"broker": {"url": bed.rabbitmq.url(port=broker.port)}, "shutdown_grace": "1s",
                               "database": {"url": bed.postgres.dsn(user="sidecar_login", port=database.port)}})
    broker.freeze()
    database.freeze()
    assert sidecar.term(30) == 0


def test_a_rolling_restart_under_load_charges_nobody(bed):
    """Every rollout used to dead-letter or duplicate what was in flight."""
    ids = [f"m{i}" for i in range(300)]
    bed.queue.publish_many(ids)
    sidecars = [bed.sidecar(), bed.sidecar()]
    for n in range(4):
        bed.app.wait_for_posts(50 * (n + 1))
        assert sidecars[n % 2].term() == 0
        sidecars[n % 2].start()
    bed.wait_for_effects(ids)
    for sidecar in sidecars:
        sidecar.wait_for_quiet()
    assert len(bed.app.posts()) == 300 and {r.attempt for r in bed.app.posts()} == {1}
    bed.assert_once(*ids)
    bed.assert_acked()
