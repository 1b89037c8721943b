"""A database that is there and does not do what is asked of it: full, busy, locked, forbidden, or with another schema.

The queue pauses and says why, nothing is charged, and it goes on by itself when the cause is gone."""

import contextlib
import os

import psycopg2
import pytest

from rig import schema
from rig.application import Gate
from rig.disk import Disk, DiskError
from rig.private import bed_on, private, private_postgres  # noqa: F401 - fixtures
from rig.wait import hold_true, wait_until

PAUSED_WITHIN = 60.0  # seconds, on a busy machine; errors that last are said after two


def assert_paused(sidecar, since, *said):
    """The sidecar logs the reason once, and repeats it in its figures."""
    line = sidecar.wait_for("paused", reason="database_down", since=since, deadline=PAUSED_WITHIN)
    assert any(text in line["detail"] for text in said), line
    # A try now and then may work, on a disk that has room for one row more.
    stats = sidecar.wait_for("stats", since=sidecar.mark(), state="paused", deadline=PAUSED_WITHIN)
    assert stats["paused_reason"] == "database_down" and stats["paused_detail"], stats
    return line


def assert_no_charge(bed, ids):
    """Each message was sent once and completed in its first attempt."""
    assert sorted(r.message_id for r in bed.app.posts()) == sorted(ids)
    assert {r.attempt for r in bed.app.posts()} == {1} and bed.letters() == []
    assert bed.rows("SELECT max(attempt) AS most FROM onceward.inbox WHERE consumer = %s", bed.queue.name)[0]["most"] == 1


def wait_for_all(bed, sidecar, ids, deadline=60):
    wait_until(lambda: bed.statuses() == {"completed": len(ids)}, lambda: f"all are completed; there are {bed.statuses()}", deadline, 0.1)
    sidecar.wait_for_quiet()


def hold_first(bed, gate):
    """A handler of response completion that keeps the message `held` at the gate."""

    def handler(request, reply):
        if request.message_id == "held":
            gate.wait()
        return bed.answer(request, reply)

    return handler


# a full disk

def disk_in(private, server, size):
    """A disk at a folder of the server's own, on which it will run."""
    folder = os.path.join(private.folder, f"disk{server.port}")
    os.mkdir(folder)
    try:
        disk = Disk(folder, size)
    except DiskError as e:
        pytest.skip(f"mounting is not allowed here: {e}")
    server.inside = disk.inside
    return disk


def test_a_disk_without_room_for_rows(bed_on, private):
    server = private.unstarted()
    disk = disk_in(private, server, "4m")
    try:
        server.init().start()
        server.own(disk.path())
        schema.migrate(server)
        server.query(f"CREATE TABLESPACE small LOCATION '{disk.folder}'")
        server.query("ALTER TABLE onceward.inbox SET TABLESPACE small; ALTER INDEX onceward.inbox_pkey SET TABLESPACE small")
        bed = bed_on(server)
        bed.app.handler = bed.answer
        sidecar = bed.sidecar(completion="response", token_window="60s")
        bed.queue.publish_many(["before"])
        sidecar.wait_for("completed", message_id="before")
        disk.fill()
        mark = sidecar.mark()
        ids = [f"m{i}" for i in range(100)]
        bed.queue.publish_many(ids)  # more than the rest of the last page takes
        assert_paused(sidecar, mark, "No space left", "53100")
        sidecar.wait_for("database_error", sqlstate="53100", since=mark)
        n = len(bed.app.posts())
        assert n < len(ids)
        assert len(sidecar.find("resumed", mark)) <= 3, "it says so only when it is so: a row or two may still have found room"
        mark = sidecar.mark()
        disk.empty()
        wait_for_all(bed, sidecar, ["before"] + ids)
        sidecar.wait_for("stats", since=mark, state="consuming", deadline=120)  # where a last row had found room it had resumed before
        assert_no_charge(bed, ["before"] + ids)
        bed.assert_acked()
    finally:
        server.stop()
        disk.stop()


@pytest.mark.long
def test_a_disk_without_room_for_the_log(bed_on, private):
    """The server itself ends then, and does not come up again before there is room."""
    server = private.unstarted()
    disk = disk_in(private, server, "40m")
    try:
        server.own(disk.path())
        wal = disk.folder + "/wal"
        server.init(initdb=("--wal-segsize=1", "--waldir=" + wal), max_wal_size="8MB", min_wal_size="2MB",
                    checkpoint_timeout="1h").start()
        schema.migrate(server)
        server.query("CREATE TABLE noise (what text)")
        bed = bed_on(server)
        gate = Gate()
        bed.app.handler = hold_first(bed, gate)
        sidecar = bed.sidecar(completion="response", token_window="60s")
        bed.queue.publish("held")
        gate.wait_for_waiting()
        disk.fill(spare=64 * 1024)
        mark = sidecar.mark()
        with contextlib.suppress(psycopg2.Error):
            server.query("INSERT INTO noise SELECT repeat(md5(g::text), 30) FROM generate_series(1, 100000) g")
        ids = [f"m{i}" for i in range(50)]
        bed.queue.publish_many(ids)
        gate.open()
        wait_until(lambda: "held" in bed.answered, "it is answered")
        assert_paused(sidecar, mark, "No space", "refused", "recovery", "starting up", "closed", "terminat")
        disk.empty()
        server.stop()
        server.start()
        sidecar.wait_for("resumed", reason="database_down", since=mark, deadline=60)
        wait_for_all(bed, sidecar, ["held"] + ids)
        assert_no_charge(bed, ["held"] + ids)
        bed.assert_acked()
    finally:
        server.stop()
        disk.stop()


# no connection left

def test_all_connections_are_taken(bed_on, private):
    server = private.postgres(max_connections=10)
    bed = bed_on(server)
    bed.app.handler = bed.answer
    sidecar = bed.sidecar(completion="response")
    taken = []

    def take_all():
        """Everybody else is quicker than the sidecar, in the end."""
        server.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'sidecar_login'")
        server.close_looks()
        try:
            while True:
                taken.append(server.connect(user="app_login"))
        except psycopg2.OperationalError:
            return len(taken) == 10 - 3  # three are kept for superusers; who is about to log in has one, and is not listed yet

    mark = sidecar.mark()
    wait_until(take_all, "no connection is left for the sidecar", 30)
    bed.queue.publish_many(["m1", "m2"])
    assert_paused(sidecar, mark, "connection slots", "too many clients")
    assert bed.app.posts() == []
    for connection in taken:
        connection.close()
    sidecar.wait_for("resumed", reason="database_down", since=mark, deadline=60)
    wait_for_all(bed, sidecar, ["m1", "m2"])
    assert_no_charge(bed, ["m1", "m2"])
    bed.assert_acked()


# statements that do not end

@pytest.mark.parametrize("what", ["INSERT", "UPDATE"])
def test_statements_that_time_out(bed_on, private_postgres, what):
    """A user's trigger on the table, for example: on INSERT claims are slow, on UPDATE completions."""
    server = private_postgres
    bed = bed_on(server)
    bed.app.handler = bed.answer
    sidecar = bed.sidecar(completion="response", token_window="60s", top={"database": {"statement_timeout": "500ms"}})
    ids = [f"m{i}" for i in range(20)]
    mark = sidecar.mark()
    server.query("CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(5); RETURN NEW; END $$")
    try:
        server.query(f"CREATE TRIGGER slow BEFORE {what} ON onceward.inbox FOR EACH ROW EXECUTE FUNCTION slow()")
        bed.queue.publish_many(ids)
        assert_paused(sidecar, mark, "57014")
        assert sidecar.find("database_error", mark, sqlstate="57014")
    finally:
        server.query("DROP FUNCTION slow CASCADE")
    sidecar.wait_for("resumed", reason="database_down", since=mark, deadline=60)
    wait_for_all(bed, sidecar, ids)
    assert_no_charge(bed, ids)
    bed.assert_acked()


@pytest.mark.parametrize("completion", ["transaction", "response"])
def test_somebody_locks_the_whole_table(bed_on, private_postgres, completion):
    """A migration that waits, or was forgotten. No statement waits behind it for long, so the link stays usable."""
    server = private_postgres
    bed = bed_on(server)
    gate = Gate()

    def accepted(request, reply):
        """The work is done later, beside the answer."""
        def work():
            if request.message_id == "held":
                gate.wait()
            bed.app.commit(request)

        bed.app.later(work)
        return 202

    bed.app.handler = accepted if completion == "transaction" else hold_first(bed, gate)
    sidecar = bed.sidecar(completion=completion, token_window="60s")
    bed.queue.publish("held")
    gate.wait_for_waiting()
    mark = sidecar.mark()
    ids = [f"m{i}" for i in range(20)]
    other = server.connect(autocommit=False)
    try:
        with other.cursor() as cursor:
            cursor.execute("LOCK TABLE onceward.inbox IN ACCESS EXCLUSIVE MODE")
        bed.queue.publish_many(ids)
        gate.open()
        assert_paused(sidecar, mark, "lock timeout")
        assert sidecar.find("database_error", mark, sqlstate="55P03")
        assert not sidecar.find("disconnected", mark) and not sidecar.find("database_error", mark, sqlstate="57014")
    finally:
        other.close()
    sidecar.wait_for("resumed", reason="database_down", since=mark, deadline=60)
    wait_for_all(bed, sidecar, ["held"] + ids)
    assert_no_charge(bed, ["held"] + ids)
    if completion == "transaction":
        bed.assert_once("held", *ids)
    bed.assert_acked()


# forbidden

@pytest.mark.parametrize("reconnects", [False, True], ids=["connected", "reconnecting"])
def test_the_role_loses_its_permissions_and_gets_them_back(bed_on, private_postgres, reconnects):
    server = private_postgres
    bed = bed_on(server)
    gate = Gate()
    bed.app.handler = hold_first(bed, gate)
    sidecar = bed.sidecar(completion="response", token_window="60s")
    bed.queue.publish("held")
    gate.wait_for_waiting()
    mark = sidecar.mark()
    ids = [f"m{i}" for i in range(20)]
    server.query("REVOKE onceward_sidecar FROM sidecar_login")
    try:
        if reconnects:
            server.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'sidecar_login'")
            refused = sidecar.wait_for("paused", reason="refused", since=mark)
            assert "GRANT onceward_sidecar TO sidecar_login" in refused["detail"]
        bed.queue.publish_many(ids)
        gate.open()
        if not reconnects:
            assert_paused(sidecar, mark, "permission denied")
        wait_until(lambda: "held" in bed.answered, "it is answered")
        hold_true(lambda: bed.answered == ["held"], "nothing else is begun", 0.5)
    finally:
        server.query("GRANT onceward_sidecar TO sidecar_login")
    sidecar.wait_for("resumed", since=mark, deadline=60)
    wait_for_all(bed, sidecar, ["held"] + ids)
    assert_no_charge(bed, ["held"] + ids)
    bed.assert_acked()


# constraints

@pytest.mark.parametrize("constraint, undo, code", [
    ("ALTER TABLE onceward.inbox ALTER alive_since SET NOT NULL", "ALTER TABLE onceward.inbox ALTER alive_since DROP NOT NULL", "23502"),
    ("ALTER TABLE onceward.inbox ADD CONSTRAINT theirs CHECK (claimed_by = 'nobody') NOT VALID",
     "ALTER TABLE onceward.inbox DROP CONSTRAINT theirs", "23514"),
    ("CREATE UNIQUE INDEX theirs ON onceward.inbox (claimed_by, consumer) WHERE message_id LIKE 'm%'", "DROP INDEX onceward.theirs", "23505"),
], ids=["not-null", "check", "unique"])
def test_a_constraint_that_somebody_added_kills_no_message(bed_on, private_postgres, constraint, undo, code):
    server = private_postgres
    bed = bed_on(server)
    bed.app.handler = bed.answer
    sidecar = bed.sidecar(completion="response")
    mark = sidecar.mark()
    ids = [f"m{i}" for i in range(20)]
    server.query("TRUNCATE onceward.inbox; " + constraint)
    try:
        bed.queue.publish_many(ids)
        sidecar.wait_for("database_error", since=mark, sqlstate=code)
        if code != "23505":  # one row is no conflict: what works for a try is the messages' own matter
            assert_paused(sidecar, mark, code)
    finally:
        server.query(undo)
    wait_for_all(bed, sidecar, ids)
    assert_no_charge(bed, ids)
    bed.assert_acked()


def test_letters_that_cannot_be_written_stop_nobody_in_silence(bed_on, private_postgres):
    """Claims work, letters do not: what is tried has a letter, too. It is told once, and goes on by itself."""
    server = private_postgres
    bed = bed_on(server)
    bed.app.handler = lambda request, reply: 400 if request.message_id.startswith("bad") else bed.answer(request, reply)
    sidecar = bed.sidecar(completion="response")
    mark = sidecar.mark()
    server.query("ALTER TABLE onceward.dead_letter ADD CONSTRAINT theirs CHECK (queue = 'none') NOT VALID")
    ids = [f"{'bad' if i % 40 == 0 else 'm'}{i}" for i in range(400)]
    try:
        bed.queue.publish_many(ids)
        assert_paused(sidecar, mark, "23514")
        assert len(sidecar.find("paused", mark, reason="database_down")) == 1
    finally:
        server.query("ALTER TABLE onceward.dead_letter DROP CONSTRAINT theirs")
    wait_until(lambda: bed.statuses() == {"completed": 390, "dead": 10}, lambda: f"all are done; there are {bed.statuses()}", 90, 0.1)
    assert len(bed.letters()) == 10
    bed.assert_acked()


def test_one_letter_that_is_refused_stops_nobody(bed_on, private_postgres):
    """The others go on, their letters too; it is told, held, and written when it can be."""
    server = private_postgres
    bed = bed_on(server)
    bed.app.handler = lambda request, reply: 400 if request.message_id.startswith("bad") else bed.answer(request, reply)
    sidecar = bed.sidecar(completion="response")
    mark = sidecar.mark()
    server.query("ALTER TABLE onceward.dead_letter ADD CONSTRAINT theirs CHECK (message_id <> 'bad40') NOT VALID")
    ids = [f"{'bad' if i % 40 == 0 else 'm'}{i}" for i in range(400)]
    try:
        bed.queue.publish_many(ids)
        wait_until(lambda: bed.statuses() == {"completed": 390, "dead": 9, "processing": 1}, lambda: f"the others are done; there are {bed.statuses()}", 60, 0.1)
        sidecar.wait_for("database_error", n=2, since=mark, message_id="bad40", sqlstate="23514")
        assert {line["message_id"] for line in sidecar.find("database_error", mark)} == {"bad40"}
        assert not sidecar.find("paused", mark)
    finally:
        server.query("ALTER TABLE onceward.dead_letter DROP CONSTRAINT theirs")
    wait_until(lambda: bed.statuses() == {"completed": 390, "dead": 10}, lambda: f"all are done; there are {bed.statuses()}", 60, 0.1)
    assert len(bed.letters()) == 10
    bed.assert_acked()


@pytest.mark.parametrize("code", ["55P03", "XX001", "42501", "53200", "P0001"])
def test_one_claim_that_is_refused_stops_nobody(bed_on, private_postgres, code):
    """A broken page, somebody's trigger: whatever the code, those that went with it in one statement go on without it, and what comes
    behind them, too."""
    server = private_postgres
    bed = bed_on(server)
    bed.app.handler = bed.answer
    sidecar = bed.sidecar(completion="response", forward={"concurrency": 16})
    first, others, later = ([f"{name}{i}" for i in range(n)] for name, n in (("w", 100), ("m", 60), ("n", 20)))
    bed.queue.publish_many(first)
    wait_for_all(bed, sidecar, first)
    mark = sidecar.mark()
    server.query(f"""CREATE FUNCTION theirs() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                         IF NEW.message_id = 'bad' THEN RAISE EXCEPTION 'not this one' USING ERRCODE = '{code}'; END IF;
                         RETURN NEW; END $$""")
    try:
        server.query("CREATE TRIGGER theirs BEFORE INSERT ON onceward.inbox FOR EACH ROW EXECUTE FUNCTION theirs()")
        bed.queue.publish_many(others[:30] + ["bad"] + others[30:])
        wait_until(lambda: set(others) <= set(bed.answered), "the others are done", 10)
        bed.queue.publish_many(later)
        wait_until(lambda: set(later) <= set(bed.answered), "those behind them are done", 10)
        sidecar.wait_for("database_error", since=mark, message_id="bad", sqlstate=code)
        assert not sidecar.find("paused", mark)
    finally:
        server.query("DROP FUNCTION theirs CASCADE")
    ids = first + others + later + ["bad"]
    wait_for_all(bed, sidecar, ids)
    assert_no_charge(bed, ids)
    bed.assert_acked()


# another schema

@pytest.mark.parametrize("change, undo", [
    ("ALTER SCHEMA onceward RENAME TO later", "ALTER SCHEMA later RENAME TO onceward"),
    ("UPDATE onceward.schema_version SET version = version - 100, oldest_compatible = -200",
     "UPDATE onceward.schema_version SET version = version + 100, oldest_compatible = 1"),
], ids=["missing", "too-old"])
def test_a_migration_is_waited_for_without_an_error(bed_on, private_postgres, change, undo):
    """Sidecars and the migration may be started at once."""
    server = private_postgres
    bed = bed_on(server)
    bed.app.handler = bed.answer
    bed.queue.publish("m1")
    server.query("TRUNCATE onceward.inbox; " + change)
    try:
        sidecar = bed.sidecar(wait=False, completion="response")
        assert "onceward migrate" in sidecar.wait_for("waiting", reason="database_down")["detail"]
        hold_true(lambda: bed.queue.n_consumers == 0, "it does not consume", 0.5)
        assert bed.queue.n_ready == 1
    finally:
        server.query(undo)
    wait_for_all(bed, sidecar, ["m1"])
    assert not [e for e in sidecar.events if e["level"] == "error"] and not sidecar.find("paused")
    assert_no_charge(bed, ["m1"])


@pytest.mark.parametrize("change, undo, said", [
    ("INSERT INTO onceward.schema_version (version, oldest_compatible) VALUES (999, 998)",
     "DELETE FROM onceward.schema_version WHERE version = 999", "update onceward"),
    ("ALTER TABLE onceward.inbox ALTER alive_since SET NOT NULL", "ALTER TABLE onceward.inbox ALTER alive_since DROP NOT NULL",
     "onceward.inbox.alive_since may not be NULL"),
    ("ALTER TABLE onceward.dead_letter RENAME digest TO hash", "ALTER TABLE onceward.dead_letter RENAME hash TO digest",
     "onceward.dead_letter.digest is missing"),
    ("ALTER TABLE onceward.inbox ADD more text NOT NULL", "ALTER TABLE onceward.inbox DROP more", "onceward.inbox.more may not be NULL"),
], ids=["too-new", "not-null", "renamed", "added"])
def test_a_schema_that_does_not_fit_is_waited_for(bed_on, private_postgres, change, undo, said):
    server = private_postgres
    bed = bed_on(server)
    bed.app.handler = bed.answer
    bed.queue.publish("m1")
    server.query("TRUNCATE onceward.inbox; " + change)
    try:
        sidecar = bed.sidecar(wait=False, completion="response")
        assert said in sidecar.wait_for("refused")["reason"]
        assert said in sidecar.wait_for("paused", reason="refused")["detail"]
        hold_true(lambda: bed.queue.n_consumers == 0, "it does not consume", 0.5)
        assert bed.queue.n_ready == 1 and bed.statuses() == {}
    finally:
        server.query(undo)
    sidecar.wait_for("resumed", reason="refused", deadline=60)
    wait_for_all(bed, sidecar, ["m1"])
    assert_no_charge(bed, ["m1"])
    bed.assert_acked()


def test_a_newer_schema_that_is_compatible_is_used(bed_on, private_postgres):
    server = private_postgres
    bed = bed_on(server)
    server.query("INSERT INTO onceward.schema_version (version, oldest_compatible) VALUES (999, 1)")
    try:
        sidecar = bed.sidecar()
        bed.queue.publish("m1")
        sidecar.wait_for("completed", message_id="m1")
        bed.assert_once("m1")
        bed.assert_acked()
    finally:
        server.query("DELETE FROM onceward.schema_version WHERE version = 999")
