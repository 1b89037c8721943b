"""The outbox's tables: their turns, what reading costs, crashes and restores, and races on real servers.

ONCEWARD_OUTBOX_SEEDS=40 runs each race with as many seeds, ONCEWARD_OUTBOX_SECONDS=20 each for longer."""

import os
import re
import signal
import subprocess
import time
import uuid

import pytest

from rig import inbox_sql, outbox
from rig.inbox_sql import Application
from rig.outbox import Relay, left, race
from rig.outbox_bed import app, drop, pg, publish, relay, server, sessions  # noqa: F401
from rig.pooler import PgBouncer
from rig.servers import PostgreSQL
from rig.wait import wait_until

SEEDS = range(1, 1 + int(os.environ.get("ONCEWARD_OUTBOX_SEEDS", "1")))
SECONDS = float(os.environ.get("ONCEWARD_OUTBOX_SECONDS", "2.5"))


# the tables' turns


def turns(relay, until):
    """The answers until one of these."""
    said = []
    wait_until(lambda: said.append(relay.turn()) or said[-1] in until, lambda: f"the tables turn: {said[-5:]}", 20)
    return said


def test_what_was_confirmed_is_emptied_and_then_it_rests(pg, app, relay):
    for _ in range(3):
        publish(app, None)
        relay.drain()
        assert turns(relay, {"rests"})[-2] == "emptied"
        assert left(pg) == [0, 0, 0] and pg.query("SELECT count(*)::int FROM onceward.outbox_position")[0][0] <= 2
    publish(app, None)
    assert relay.turn(1 << 23, 60000) == "rests", "not for so little"


def test_nothing_is_emptied_that_somebody_writes_to_or_nobody_confirmed(pg, app, relay, sessions):
    writer = sessions(Application, pg)
    writer.begin()
    publish(writer, "early")
    publish(app, "1")
    relay.drain()
    assert turns(relay, {"waits"})[-1] == "waits"
    publish(writer, "late")  # in the table of another turn
    publish(app, "2")
    assert relay.drain() == ["2"] and relay.turn() == "waits" and sum(left(pg)) == 2
    writer.commit()
    assert relay.turn() == "waits", "what was committed is not confirmed"
    assert relay.drain() == ["early", "late"]
    assert "emptied" in turns(relay, {"rests"}) and left(pg) == [0, 0, 0]


def test_who_publishes_while_a_turn_goes_on_is_not_forgotten(pg, relay, sessions):
    """A turn has its id, by the lease's row, before it takes the snapshot up to which the position may go on."""
    relay.lease()
    assert relay.turn() == "turned"
    relay.begin()
    relay.query("SELECT pg_current_xact_id()")
    late = sessions(Application, pg)
    late.begin()
    publish(late, "late")
    assert relay.turn() == "waits"
    relay.commit()
    late.commit()
    assert pg.query("SELECT max(floor)::int FROM onceward.outbox_position")[0][0] == 2, "the position went on"
    assert relay.gauge().waiting == 1
    relay.forget()
    assert relay.drain() == ["late"]


def test_an_old_snapshot_writes_to_the_table_of_now(pg, app, relay, sessions):
    """The turn must not be read in a snapshot that began before."""
    relay.lease()
    turns(relay, {"rests"})
    old = sessions(Application, pg)
    old.begin("REPEATABLE READ")
    old.query("SELECT 1")
    publish(app, None)
    relay.drain()
    assert [relay.turn(), relay.turn()] == ["turned", "turned"]
    publish(old, "old")
    turns(relay, {"emptied"})  # the former table: nobody is in it
    old.commit()
    assert relay.drain() == ["old"]


def test_a_turn_that_jumps_empties_nothing_that_is_written_to(pg, app, relay, sessions):
    for jump in (1, 2, 3, 5, 32):
        writer = sessions(Application, pg)
        writer.begin()
        publish(writer, f"open {jump}")
        relay.turn()
        pg.query("SELECT setval('onceward.outbox_turn', (SELECT last_value + %s FROM onceward.outbox_turn))", (jump,))
        publish(app, f"after {jump}")
        assert relay.drain() == [f"after {jump}"]
        for _ in range(4):
            assert relay.turn() != "emptied"
        writer.commit()
        assert relay.drain() == [f"open {jump}"]
    turns(relay, {"rests"})
    assert left(pg) == [0, 0, 0]


def test_a_dump_that_reads_is_not_waited_for(pg, app, relay):
    publish(app, None)
    relay.drain()
    dump = pg.connect(autocommit=False)
    dump.cursor().execute("LOCK TABLE onceward.outbox_0, onceward.outbox_1, onceward.outbox_2 IN ACCESS SHARE MODE")
    assert turns(relay, {"busy"})[-1] == "busy"
    publish(app, None)
    assert len(relay.drain()) == 1
    dump.close()
    turns(relay, {"rests"})
    assert left(pg) == [0, 0, 0]


@pytest.mark.long
def test_polls_do_not_grow_dearer_under_an_old_transaction(pg, app, relay, sessions):
    old = sessions(Application, pg)
    old.begin("REPEATABLE READ")
    old.query("SELECT pg_current_xact_id()")

    def pages():
        publish(app, None)
        relay.step()
        assert relay.write() == "written"
        return relay.pages("SELECT * FROM onceward.sidecar_outbox_read(%s, NULL, 256, 1000000, 1000000)", relay.batch)

    relay.lease()
    before = [pages() for _ in range(20)][-1]
    for _ in range(200):
        pages()
        relay.lease() if _ % 40 == 0 else None
    assert pages() <= before + 12, "as the trees grow"
    assert relay.pages("SELECT * FROM onceward.sidecar_outbox_read(NULL, NULL, 256, 1000000, 1000000)") <= before + 20


@pytest.mark.long
def test_turns_do_not_grow_dearer_by_the_positions_that_an_old_snapshot_keeps(pg, app, relay, sessions):
    def many():
        pg.query("INSERT INTO onceward.outbox_position (lease, system_identifier, table_oid, done, floor, done_by, turned, turned_by, turned_at,"
                 " emptied) SELECT p.lease, p.system_identifier, p.table_oid, p.done, p.floor, p.done_by, p.turned, p.turned_by, p.turned_at,"
                 " p.emptied FROM (SELECT * FROM onceward.outbox_position ORDER BY lease DESC, n DESC LIMIT 1) p, generate_series(1, 5000)")

    def cost():
        return relay.pages("SELECT onceward.sidecar_outbox_turn(%s, 8388608, 3600000)", relay.number_of_lease)

    publish(app, None)
    relay.drain()
    turns(relay, {"rests"})
    old = sessions(Application, pg)
    old.begin("REPEATABLE READ")
    old.query("SELECT 1")
    publish(app, None)
    relay.drain()
    before = [cost() for _ in range(3)][-1]
    many()
    relay.turn(1 << 23, 3600000)
    assert cost() <= before + 5, "while there is nothing to empty none is looked at"
    turns(relay, {"emptied"})
    assert relay.turn(1 << 23, 3600000) == "rests" and cost() <= before + 5
    assert pg.query("SELECT count(*)::int FROM onceward.outbox_position")[0][0] <= 2


VISITED = ("SELECT sum(pg_stat_get_xact_tuples_returned(c.oid))::int FROM pg_class c"
           " WHERE c.relnamespace = 'onceward'::regnamespace AND c.relkind = 'i' AND c.relname ~ '^outbox_[012]_'")


# as sidecar_outbox_turn has it
WAITS_FOR_ONE = ("SELECT w.n FROM (SELECT * FROM onceward.outbox_position ORDER BY lease DESC, n DESC LIMIT 1) p,"
                 " onceward.outbox_waiting(p.done, p.floor, p.done_by, p.upto, p.last, 1) w")


def visited(session, sql, *parameters):
    """How many entries of the outbox's indexes the call goes through, of rows that it sees or not."""
    session.begin()  # within one transaction the counts stay in the session
    before = session.value(VISITED)
    session.query(sql, *parameters)
    n = session.value(VISITED) - before
    session.commit()
    return n


@pytest.mark.long
@pytest.mark.parametrize("where", ["in the list of the snapshot", "above its xmax"])
def test_a_page_of_one_large_transaction_costs_a_page(pg, app, relay, sessions, where):
    """Its numbers are below the floor: the relay went on while it published."""
    n, read = 20000, "SELECT * FROM onceward.sidecar_outbox_read(%s, %s, 256, 1000000, 1000000)"
    other = sessions(Application, pg)
    relay.lease()
    relay.step()
    app.begin()
    app.query("SELECT onceward.publish('e', 'r', '1'::jsonb, 'large ' || g) FROM generate_series(1, %s) g", n)
    relay.step()
    expected = [f"large {i}" for i in range(1, n + 1)]
    publish(other, "other")
    if where == "in the list of the snapshot":
        relay.step()
        relay.write()
    else:
        assert visited(relay, read, relay.batch, None) < 50, "what is open is not looked through"
        expected.append("other")
    app.commit()
    publish(other, "behind")
    expected.append("behind")
    del relay.sent[:]
    costs = []
    while relay.sent[-1:] != ["behind"]:
        costs.append(visited(relay, read, relay.batch, relay.after))
        assert relay.step() and relay.write() == "written"
        if len(costs) % 10 == 0:
            assert relay.gauge().waiting >= min(10001, len(expected) - len(relay.sent)) and visited(relay, WAITS_FOR_ONE) < 50
    assert relay.sent == expected and relay.drain() == [] and relay.gauge().waiting == 0
    assert max(costs) < 1000, ("a page of 256, from each of a few places", costs)


# crashes and restores


def test_what_a_relay_remembers_is_worth_nothing_after_a_crash(pg, sessions):
    relay, app = sessions(Relay, pg), sessions(Application, pg)
    publish(app, "1")
    relay.lease()
    relay.step()
    batch, lease = relay.batch, relay.number_of_lease
    pg.server.kill()
    pg.server.start()
    relay = sessions(Relay, pg)
    assert relay.read(batch) == ([], None) and relay.read(None) == ([], None)
    relay.number_of_lease = lease
    assert relay.lease().answer == "held"
    assert relay.read(batch) == ([], None)
    assert relay.value("SELECT onceward.sidecar_outbox_write(%s, %s, NULL)", relay.number_of_lease, batch) == "stale"
    publish(sessions(Application, pg), "2")
    assert relay.drain() == ["1", "2"]


@pytest.mark.parametrize("kind", ["jsonb", "bytea"])
def test_what_a_crash_takes_back_was_not_sent(pg, sessions, kind):
    """An application that does not wait for its commits: those with a message are waited for all the same."""
    pg.query(outbox.LEDGER)
    relay, app = sessions(Relay, pg), sessions(Application, pg)
    assert relay.lease().answer == "held"  # and waited for, with all before it
    app.query("SET synchronous_commit = off")
    relay.query("SET synchronous_commit = off")  # or it would write what the application has left to be written
    writer, = pg.query("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")[0]
    os.kill(writer, signal.SIGSTOP)  # what a commit does not write stays unwritten
    app.query(f"WITH p AS (SELECT onceward.publish('e', 'r', '1'::{kind}, '{kind}')) INSERT INTO public.ledger SELECT '{kind}' FROM p")
    sent = [row.message_id for row in relay.read(None)[0]]
    pg.server.kill()
    pg.server.start()
    assert sent == [kind] and pg.query("SELECT id FROM public.ledger") == [(kind,)]


@pytest.mark.long
def test_the_turns_survive_kills_between_any_two_steps(pg, sessions):
    for step in range(4):
        relay, app, writer = sessions(Relay, pg, number=step + 1), sessions(Application, pg), sessions(Application, pg)
        publish(app, f"a{step}")
        relay.drain()
        for _ in range(step):
            relay.turn()
        writer.begin()
        publish(writer, "never")
        publish(app, f"b{step}")
        pg.server.kill()
        pg.server.start()
        relay = sessions(Relay, pg, number=100 + step)
        publish(sessions(Application, pg), f"c{step}")
        assert [i for i in relay.drain() if not i.startswith("a")] == [f"b{step}", f"c{step}"]
        turns(relay, {"rests"})
        assert left(pg) == [0, 0, 0] and relay.lease(want=False).answer == "free"


def dumped(postgres):
    program = os.path.join(PostgreSQL.programs(), "pg_dump")
    said = subprocess.run([program, postgres.dsn()], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout.decode()
    return re.sub(r"^\\(un)?restrict .*$", "", said, flags=re.M)  # that is for a whole dump


def load(postgres, text):
    subprocess.run(["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-o", os.devnull, postgres.dsn()], input=text.encode(), check=True)


@pytest.mark.short("the same server")
@pytest.mark.parametrize("where", ["another server", "the same server"])
def test_from_a_dump_everything_that_is_there_is_sent_again(pg, app, relay, raw_postgres, postgres, sessions, where):  # postgres: makes the roles
    sent = [publish(app, f"sent{i}") for i in range(3)]
    relay.drain()
    open_, waiting = sessions(Application, pg), [publish(app, f"waiting{i}") for i in range(3)]
    open_.begin()
    publish(open_, "open")
    text = dumped(pg)
    copy = (raw_postgres if where == "another server" else pg).create_database(f"copy_{uuid.uuid4().hex[:8]}")
    try:
        half = text.index("ADD CONSTRAINT")
        half = text.rindex("ALTER TABLE", 0, half)
        load(copy, text[:half])  # data, and no index yet
        copy.query(inbox_sql.files()[-1])  # a dump lets nobody in before its end
        other = sessions(Relay, copy)
        assert other.lease().restored and other.read(None) == ([], None) and other.gauge().restored
        assert other.restore() == "loading"
        load(copy, text[half:])
        publish(sessions(Application, copy), "new")
        number = copy.query("SELECT last_value FROM onceward.outbox_number")
        said = [other.restore(2)]
        while said[-1] != "done":
            said.append(other.restore(2))
        assert copy.query("SELECT last_value FROM onceward.outbox_number") == number, "what waits is counted by it"
        assert said == ["more"] * (len(said) - 1) + ["done"] and not other.lease().restored and other.restore() == "done"
        publish(sessions(Application, copy), "newer")
        assert other.drain() == sent + waiting + ["new", "newer"]
        open_.rollback()  # of this server, though of another database
        assert turns(other, {"rests"}) and left(copy) == [0, 0, 0]
    finally:
        drop(copy)


def test_numbers_that_are_there_twice_after_a_restore_lose_nothing(pg, app, relay):
    """A copy of the tables without the sequences, into which applications publish before a relay comes."""
    ids = [publish(app, f"old{i}") for i in range(4)]
    pg.query("UPDATE onceward.outbox_position SET system_identifier = 5")
    pg.query("SELECT setval('onceward.outbox_number', 1)")
    ids += [publish(app, f"new{i}") for i in range(2)]
    assert relay.lease().restored
    while relay.restore() != "done":
        pass
    ids += [publish(app, "last")]
    # Far behind what is there: somebody may have drawn numbers between the look at them and the change of the sequence.
    assert pg.query("SELECT last_value > 1000000 FROM onceward.outbox_number")[0][0]
    assert sorted(relay.drain(rows=1)) == sorted(ids)


@pytest.mark.long
def test_a_large_backlog_is_restored_at_a_constant_cost_a_call_whoever_goes_on(pg, app, relay, sessions):
    n = 5000
    app.query("SELECT onceward.publish('e', 'r', '1'::jsonb, g::text) FROM generate_series(1, %s) g", n)
    pg.query("UPDATE onceward.outbox_position SET system_identifier = 5")
    other = sessions(Relay, pg, "b")
    assert relay.lease().restored and relay.restore(100) == "more"
    costs = []
    for holder in (relay, other):
        if holder is other:
            pg.query("UPDATE onceward.outbox SET held_until = clock_timestamp()")
            assert other.lease().restored and relay.restore() == "lost"
        costs += [visited(holder, "SELECT onceward.sidecar_outbox_restore(%s, 100)", holder.number_of_lease) for _ in range(25)]
    assert max(costs) < 1000, ("100 rows, by the index of each table", costs)
    assert other.restore() == "done" and other.drain() == [str(i) for i in range(1, n + 1)]


@pytest.mark.short("system_identifier = 5")
@pytest.mark.parametrize("of", ["system_identifier = 5", "table_oid = 5", "resending = 1000"])
def test_a_holder_whose_pooler_is_switched_to_a_copy_empties_and_writes_nothing_there(pg, app, relay, of):
    """The copy has his lease, and a position far above all ids of its server. He comes before he asks for the lease again."""
    publish(app, "old")
    relay.lease()
    assert relay.step() == 1
    pg.query(f"UPDATE onceward.outbox_position SET done = '5000000:5000000:', floor = 1000, done_by = '5000001', {of}")
    publish(app, "new")
    assert [relay.turn() for _ in range(4)] == ["waits"] * 4
    assert sum(left(pg)) == 2 and relay.write() == "stale"
    assert relay.lease().restored
    while relay.restore() != "done":
        pass
    assert relay.drain() == ["old", "new"]
    turns(relay, {"rests"})
    assert left(pg) == [0, 0, 0]


# races


@pytest.mark.short("2-1")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("relays", [1, 2])
def test_a_race_loses_nothing_and_keeps_the_order(pg, seed, relays):
    wrong, counts = race(pg, seed, SECONDS, relays, kill=True)
    assert wrong == {} and counts["committed"] > 20, counts


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_a_race_with_a_server_that_is_killed(pg, seed):
    moments = iter([.3, .6, .9])
    left_over = [next(moments)]
    begun = time.monotonic()

    def meanwhile():
        if left_over[0] is not None and time.monotonic() - begun > left_over[0] * SECONDS:
            pg.server.kill()
            pg.server.start()
            left_over[0] = next(moments, None)

    wrong, counts = race(pg, seed, SECONDS, meanwhile=meanwhile, jump=False)
    assert wrong == {} and counts["committed"] > 5, counts


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_a_race_through_a_pooler(pg, seed):
    pooler = PgBouncer(pg, default_pool_size=30).start()
    try:
        through = pooler.client()
        through.is_pooler = True
        wrong, counts = race(pg, seed, SECONDS, 2, kill=True, through=through)
        assert wrong == {} and counts["committed"] > 20, counts
    finally:
        pooler.stop()
