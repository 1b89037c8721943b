"""Two database servers in database.url, a primary and its streaming replica: the work moves on with the role of the primary."""

import pytest

from rig.application import Gate
from rig.private import bed_on, private  # noqa: F401 - fixtures
from rig.servers import PostgreSQL
from rig.wait import wait_until

HOLD = [f"m{i}" for i in range(30, 38)]
IDS = [f"m{i}" for i in range(100)]


class Pair(PostgreSQL):
    """Both servers as one for everybody who connects: whoever of them takes writes."""

    def __init__(self, first, second):
        super().__init__(first.folder, first.certificates, first.port)
        self.servers = (first, second)

    def dsn(self, user="postgres", database=None, port=None, **parameters):
        parameters.setdefault("target_session_attrs", "read-write")
        return super().dsn(user, database, port, **parameters).replace(
            f":{self.port}/", f":{self.servers[0].port},127.0.0.1:{self.servers[1].port}/")

    def query(self, *arguments, **named):
        """On a new session each time: which of the two is the primary may have changed."""
        self.close_looks()
        return super().query(*arguments, **named)


@pytest.fixture
def pair(private):
    primary = private.postgres()
    standby = private.unstarted().init_standby(primary).start()
    made = Pair(primary, standby)
    made.is_migrated = True
    return made


def begin(bed, completion):
    """A sidecar at work, eight of its messages held by the application. Answers it, and the gate."""
    gate = Gate()

    def handler(request, reply):
        held = request.message_id in HOLD and len(bed.app.posts(request.message_id)) == 1
        if completion == "transaction":
            bed.app.commit(request, before_commit=gate.wait if held else None)
            return 200
        if held:
            gate.wait()
        return bed.answer(request, reply)

    bed.app.handler = handler
    sidecar = bed.sidecar(completion=completion, token_window="60s", prefetch=100)
    bed.queue.publish_many(IDS)
    gate.wait_for_waiting(len(HOLD))
    bed.app.wait_for_posts(50)
    return sidecar, gate


def end(bed, completion, sidecar, standby):
    """Everything went through once, on the new primary, and so does what comes later."""
    later = [f"later{i}" for i in range(20)]
    bed.queue.publish_many(later)
    ids = IDS + later
    if completion == "transaction":
        bed.wait_for_effects(ids)
        sidecar.wait_for_quiet()
        bed.assert_once(*ids)
    else:
        wait_until(lambda: len(bed.answered) >= len(ids), lambda: f"{len(bed.answered)} of {len(ids)} are answered", 60)
        sidecar.wait_for_quiet()
        bed.assert_answered_once(ids)
    # A server that stops ends sessions one by one: what an application's cost it, before the sidecar's own had ended, is charged.
    assert {r.attempt for r in bed.app.posts()} <= {1, 2} and bed.letters() == []
    assert sessions(standby) == 1
    bed.assert_acked()


def sessions(server):
    return server.query("SELECT count(*)::int FROM pg_stat_activity WHERE usename = 'sidecar_login'")[0][0]


@pytest.mark.short("transaction")
@pytest.mark.parametrize("completion", ["transaction", "response"])
def test_the_primary_stops_and_its_replica_is_promoted(bed_on, pair, completion):
    bed = bed_on(pair)
    primary, standby = pair.servers
    sidecar, gate = begin(bed, completion)
    primary.stop()  # it sends everything to its replica before it ends
    gate.open()
    sidecar.wait_for("disconnected", peer="database")
    paused = sidecar.wait_for("paused", reason="database_down")
    assert "read-only" in paused["detail"] or "standby" in paused["detail"] or "refused" in paused["detail"], paused
    mark = sidecar.mark()
    standby.query("SELECT pg_promote()")
    sidecar.wait_for("resumed", reason="database_down", since=mark, deadline=60)
    end(bed, completion, sidecar, standby)


@pytest.mark.long
@pytest.mark.parametrize("completion", ["transaction", "response"])
def test_the_primary_becomes_read_only_and_stays_up(bed_on, pair, completion):
    """As an operator does it who moves the role away, or a provider: sessions are not ended, statements are refused."""
    bed = bed_on(pair)
    primary, standby = pair.servers
    sidecar, gate = begin(bed, completion)
    primary.query("ALTER SYSTEM SET default_transaction_read_only = on")
    primary.query("SELECT pg_reload_conf()")
    gate.open()
    lost = sidecar.wait_for("disconnected", peer="database")
    assert "read-only" in lost["reason"]
    sidecar.wait_for("paused", reason="database_down")
    wait_until(lambda: not primary.query("SELECT FROM pg_stat_activity WHERE usename IN ('app_login', 'sidecar_login')"
                                         " AND backend_xid IS NOT NULL"), "nobody writes to the old primary any more")
    written = primary.query("SELECT pg_current_wal_lsn()")[0][0]
    wait_until(lambda: standby.query("SELECT pg_last_wal_replay_lsn() >= %s", (written,))[0][0], "the replica has it all")
    mark = sidecar.mark()
    standby.query("SELECT pg_promote()")
    sidecar.wait_for("resumed", reason="database_down", since=mark, deadline=60)
    end(bed, completion, sidecar, standby)
    assert sessions(primary) == 0


@pytest.mark.long
def test_an_idle_sidecar_finds_out_with_its_next_message(bed_on, pair):
    bed = bed_on(pair)
    primary, standby = pair.servers
    sidecar = bed.sidecar()
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    primary.query("ALTER SYSTEM SET default_transaction_read_only = on")
    primary.query("SELECT pg_reload_conf()")
    written = primary.query("SELECT pg_current_wal_lsn()")[0][0]
    wait_until(lambda: standby.query("SELECT pg_last_wal_replay_lsn() >= %s", (written,))[0][0], "the replica has it all")
    standby.query("SELECT pg_promote()")
    bed.queue.publish("m2")
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m2", deadline=40)
    sidecar.wait_for("duplicate", message_id="m1", deadline=40)
    sidecar.wait_for_quiet()
    assert [(r.message_id, r.attempt) for r in bed.app.posts()] == [("m1", 1), ("m2", 1)]
    bed.assert_once("m1", "m2")
    bed.assert_acked()


@pytest.mark.long
@pytest.mark.parametrize("then", ["silence", "closed"])
def test_a_primary_that_can_no_longer_be_reached_is_given_up(bed_on, pair, then):
    """As behind a firewall that forgot the connection: nothing answers, nothing is refused. Or what stands before it (a mesh, a
    balancer) takes each new connection and closes it without a word."""
    bed = bed_on(pair)
    primary, standby = pair.servers
    link = bed.new_proxy(primary.port)
    bed.app.handler = bed.answer
    url = pair.dsn(user="sidecar_login").replace(f":{primary.port},", f":{link.port},")
    sidecar = bed.sidecar(completion="response", token_window="60s",
                          top={"database": {"url": url, "statement_timeout": "500ms", "connect_timeout": "2s"}})
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    written = primary.query("SELECT pg_current_wal_lsn()")[0][0]
    wait_until(lambda: standby.query("SELECT pg_last_wal_replay_lsn() >= %s", (written,))[0][0], "the replica has it all")
    link.freeze()
    mark = sidecar.mark()
    standby.query("SELECT pg_promote()")
    if then == "closed":
        primary.stop()
    bed.postgres = standby
    bed.queue.publish_many(["m1", "m2"])
    assert "no answer in time" in sidecar.wait_for("disconnected", peer="database", since=mark, deadline=40)["reason"]
    sidecar.wait_for("completed", message_id="m2", deadline=60)
    sidecar.wait_for("duplicate", message_id="m1", deadline=60)
    sidecar.wait_for_quiet()
    bed.assert_answered_once(["m1", "m2"])
    assert sessions(standby) == 1
    bed.assert_acked()
