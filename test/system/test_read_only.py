"""A database that nothing can be written to: what only reads works there, what writes says why it does not."""

import json
import uuid

import pytest
from test_commands import Place, good, run

from rig import schema
from rig.private import Private
from rig.process import free_port
from rig.queue import Queue
from rig.wait import wait_until

pytestmark = pytest.mark.long

WRITES = [["migrate"], ["dead", "redrive", "--all"], ["dead", "discard", "--all"]]


@pytest.fixture(scope="module")
def servers(certificates):
    """A primary and its standby."""
    schema.require_binary()
    made = Private(certificates)
    try:
        primary = made.postgres()
        yield primary, made.unstarted().init_standby(primary).start()
    finally:
        made.stop()


@pytest.fixture
def place(tmp_path, servers, rabbitmq):
    queue = Queue(rabbitmq, "one-way-" + uuid.uuid4().hex[:8]).declare()
    yield Place(tmp_path, servers[0], rabbitmq, queue)
    servers[0].query("TRUNCATE onceward.inbox, onceward.dead_letter")
    queue.delete()
    queue.close()


def everything_that_reads(path, letter, host):
    assert f"letter        {letter}\n" in good("dead", "show", "--config", path, letter)
    assert json.loads(good("dead", "show", "--config", path, "--json", letter))["body"] == "hello"
    assert "answered 500" in good("dead", "list", "--config", path)
    assert "m1" in good("status", "--config", path) and json.loads(good("status", "--config", path, "--json"))["dead_letters"]
    done = run("check", "--config", path, "--connect")
    assert done.status == 1 and f"database {host}: " in done.out and "schema onceward fits" in done.out, done.text
    return [line for line in done.out.splitlines() if line.startswith("FAIL database")]


def test_what_reads_works_on_a_standby_and_what_writes_is_refused(place, servers):
    primary, standby = servers
    place.row("m1", "failed")
    letter = place.letter("m1")
    written = primary.query("SELECT pg_current_wal_lsn()")[0][0]
    wait_until(lambda: standby.query("SELECT pg_last_wal_replay_lsn() >= %s", (written,))[0][0], "the standby has it all")
    for attributes in ({}, {"target_session_attrs": "read-write"}, {"target_session_attrs": "primary"}):
        path = place.write(top={"database": {"url": standby.dsn(user="sidecar_login", **attributes)}})
        fail, = everything_that_reads(path, letter, f"127.0.0.1:{standby.port}/postgres")
        assert "read-only: the server is a standby, so the sidecar cannot run with it" in fail
    path = place.write(top={"database": {"url": standby.dsn(user="sidecar_login")}})
    for arguments in WRITES:
        done = run(*arguments, "--config", path)
        assert done.status == 1 and "cannot connect" in done.err and "session is read-only" in done.err and done.out == "", done.text
    assert place.letters() == [letter]


def test_what_reads_works_where_transactions_are_read_only_by_default(place, servers):
    place.row("m1", "failed")
    letter = place.letter("m1")
    servers[0].query("ALTER ROLE sidecar_login SET default_transaction_read_only = on")
    try:
        fail, = everything_that_reads(place.path, letter, f"127.0.0.1:{servers[0].port}/postgres")
        assert "read-only: default_transaction_read_only is on, so the sidecar cannot run with it" in fail
        for arguments in WRITES:
            done = run(*arguments, "--config", place.path)
            assert done.status == 1 and "session is read-only" in done.err and done.out == "", done.text
    finally:
        servers[0].query("ALTER ROLE sidecar_login RESET default_transaction_read_only")
    assert place.letters() == [letter]


def hosts(*ports):
    return f"postgresql://sidecar_login@{','.join(f'127.0.0.1:{port}' for port in ports)}/postgres"


def test_of_several_hosts_one_that_can_be_written_is_preferred(place, servers):
    primary, standby = (server.port for server in servers)
    dead = free_port()

    def where(*ports):
        out = run("check", "--config", place.write(top={"database": {"url": hosts(*ports)}}), "--connect").out
        lines = [line for line in out.splitlines() if " database 127.0.0.1:" in line]
        assert lines and any("read-only" in line for line in lines) == (primary not in ports), out
        return int(lines[0].split("127.0.0.1:")[1].split("/")[0])

    assert where(standby, primary) == where(primary, standby) == where(dead, standby, primary) == where(standby, dead, primary) == primary
    assert where(standby, dead) == where(dead, standby) == where(standby, standby) == standby
