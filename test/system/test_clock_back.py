"""A database clock that steps back, or a standby that takes over and whose clock is behind: positions in the order of time leave nothing
behind."""

import json
import os
import uuid

import pytest

from rig import schema
from rig.bed import Bed
from rig.servers import PostgreSQL
from test_export import BURY, STORE_CLAIM, export
from test_process import make_clock
from test_replay import Idle, drain, replay

pytestmark = pytest.mark.long


class SteppedServer(PostgreSQL):
    """The clock is preloaded behind the change of the user: what it shares belongs to the server's user."""

    environment = {}

    def _as_owner(self, *arguments):
        command = super()._as_owner(*arguments)
        at = len(command) - len(arguments)
        return [*command[:at], "env", *(f"{name}={value}" for name, value in self.environment.items()), *command[at:]]


class Stepped(Bed):
    clock = None

    def arrive(self, *names):
        """Stores a message, with its row, and writes a dead letter for each name."""
        for name in names:
            claim = STORE_CLAIM.replace("ARRAY['x'::bytea]", "ARRAY[%s::bytea]")
            assert self.rows(claim, self.queue.name, [name], name.encode())[0]["answer"] == "claimed"
            assert self.rows(BURY, self.queue.name, [name])[0]["answer"] == "buried"


@pytest.fixture
def stepped(raw_postgres, certificates, rabbitmq, tmp_path, request):
    """On a database server of its own, whose clock is an hour ahead until a test sets it back."""
    folder = os.path.join(raw_postgres.folder, "stepped-" + uuid.uuid4().hex[:6])
    server = SteppedServer(folder, certificates).init()
    clock = make_clock(folder)
    clock.jump(3600)
    server.environment = clock.environment
    server.start()
    try:
        schema.migrate(server)
        bed = Stepped(request.node.name, tmp_path, server, rabbitmq)
        request.node.bed = bed
        bed.clock = clock
        bed.rows("INSERT INTO onceward.consumer (consumer, broker, vhost, queue) VALUES (%s, 'b', '/', %s)", bed.queue.name, bed.queue.name)
        yield bed
        bed.deinit()
    finally:
        server.stop()


def names(prefix):
    return [f"{prefix}{n}" for n in range(5)]


def test_a_replay_goes_on_with_what_arrives_behind_a_clock_that_was_set_back(stepped):
    idle, other = Idle(stepped), stepped.new_queue("-projection")
    arguments = ("--consumer", stepped.queue.name, "--to", other.name, "--name", "projection")
    stepped.arrive(*names("before"))
    assert "5 replayed" in replay(idle, *arguments)
    stepped.clock.jump(0)
    for prefix in ("behind", "later"):
        stepped.arrive(*names(prefix))
        assert "5 replayed" in replay(idle, *arguments)
    stepped.clock.jump(3600)
    stepped.arrive(*names("after"))
    assert "5 replayed" in replay(idle, *arguments)
    other.sync()
    assert [body.decode() for _, _, body in drain(other)] == names("before") + names("behind") + names("later") + names("after")


def test_an_export_goes_on_where_the_last_one_ended_though_the_clock_was_set_back(stepped, tmp_path):
    idle, found = Idle(stepped), {}
    since = ()
    for prefix, ahead in (("before", 3600), ("behind", 0), ("later", 0), ("after", 3600)):
        stepped.clock.jump(ahead)
        stepped.arrive(*names(prefix))
        path = str(tmp_path / prefix)
        export(idle, "--output", path, "--consumer", stepped.queue.name, *since)
        with open(path) as f:
            first, *lines, _ = [json.loads(line) for line in f]
        since = ("--since", first["until"])
        found[prefix] = sorted((line["kind"], line["message_id"]) for line in lines)
    for prefix, lines in found.items():
        assert lines == sorted((kind, name) for kind in ("row", "letter", "message") for name in names(prefix)), prefix


def test_an_export_that_cannot_record_its_horizon_says_that_the_clock_was_set_back(stepped):
    """A login that only reads moves no horizon: what lies before --since would be left out, and so it fails."""
    idle, only = Idle(stepped), ("--consumer", stepped.queue.name)
    role = f"reader_{uuid.uuid4().hex[:8]}"
    stepped.postgres.query(f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA onceward TO {role}; GRANT SELECT ON ALL TABLES IN SCHEMA onceward"
                           f" TO {role}; GRANT EXECUTE ON FUNCTION onceward.sidecar_schema() TO {role}")
    with open(idle.config_path) as f:
        config = json.load(f)
    config["database"]["url"] = stepped.postgres.dsn(user=role)
    with open(idle.config_path, "w") as f:
        json.dump(config, f)
    stepped.arrive(*names("before"))
    lines, said = export(idle, *only)
    assert len(lines) == 15
    until = said.split("from before ")[1].rstrip(".\n")
    stepped.clock.jump(0)
    stepped.arrive(*names("behind"))
    _, said = export(idle, *only, "--since", until, status=1)
    assert f"--since is {until}, and this server has committed everything only up to" in said and "clock was set back" in said
