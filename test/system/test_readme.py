"""The README is tested as it stands: its examples run against the real servers, its tables are those of the program."""

import http.client
import json
import os
import re
import socket
import subprocess
import uuid

import pytest

from rig import process, schema
from rig.private import private  # noqa: F401 - a fixture
from rig.queue import Queue
from rig.wait import wait_until

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def readme():
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
        return f.read()


def example(language):
    found = re.search(rf"<!-- example: {language} -->\n```{language}\n(.*?)```", readme(), re.S)
    assert found, f"the README has no example in {language}"
    return found.group(1)


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), 0.2).close()
        return True
    except OSError:
        return False


COMMANDS = {
    "python": ("application.py", lambda path, port: ["/usr/bin/python3", path]),
    "php": ("application.php", lambda path, port: ["php", "-S", f"127.0.0.1:{port}", path]),
}


class Example:
    """An example of the README as a process."""

    def __init__(self, language, folder, **environment):
        name, command = COMMANDS[language]
        path = folder / name
        path.write_text(example(language))
        self.language = language
        self.port = process.free_port()
        self.child = process.spawn(command(str(path), self.port), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, env=dict(os.environ, PORT=str(self.port), **environment))

    def __enter__(self):
        wait_until(lambda: answers(self.port), f"the {self.language} example listens")
        return self

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()

    def post(self, body, token="ow1.none"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("POST", "/payments", body, {"Onceward-Token": token, "Content-Type": "application/json"})
        status = connection.getresponse().status
        connection.close()
        return status


def addresses(dsn):
    """The same database for psycopg2 and for PDO."""
    parts = re.match(r"postgres(?:ql)?://(?P<user>[^:@]+)(?::[^@]*)?@(?P<host>[^:/]+):(?P<port>\d+)/(?P<database>[^?]+)", dsn)
    return {"DATABASE_URL": dsn, "DATABASE_PDO": "pgsql:host={host};port={port};dbname={database};user={user}".format(**parts.groupdict())}


@pytest.fixture
def charges(bed):
    """The examples' own table, where their role finds it. Its name."""
    schema_name = "readme_" + uuid.uuid4().hex[:8]
    role = f"ALTER ROLE app_login IN DATABASE \"{bed.postgres.database}\""
    bed.postgres.query(f"CREATE SCHEMA {schema_name} AUTHORIZATION app_login")
    bed.postgres.query(f"CREATE TABLE {schema_name}.charges (order_id text, cents integer)")
    bed.postgres.query(f"ALTER TABLE {schema_name}.charges OWNER TO app_login")
    bed.postgres.query(f"{role} SET search_path = {schema_name}, app")
    yield f"{schema_name}.charges"
    bed.postgres.query(f"{role} RESET search_path")
    bed.postgres.query(f"DROP SCHEMA {schema_name} CASCADE")


WRONG = [b'{"id": "o9", "cents": ', b"\xff", b"5", b"[]", b"null", b'{"cents": 250}', b""]


@pytest.mark.parametrize("language", sorted(COMMANDS))
def test_the_example_books_each_order_once_and_refuses_what_is_wrong(bed, charges, tmp_path, language):
    with Example(language, tmp_path, **addresses(bed.postgres.dsn(user="app_login"))) as application:
        sidecar = bed.sidecar(forward={"url": f"http://127.0.0.1:{application.port}/payments"})
        for order in ("o1", "o2", "o1", "o3", "o2"):
            bed.queue.publish(order, json.dumps({"id": order, "cents": 250}).encode())
        bed.queue.publish("wrong", WRONG[0])
        wait_until(lambda: sum(e["completed_total"] + e["duplicates_total"] + e["dead_total"] for e in sidecar.find("stats")[-1:]) == 6,
                   "all six deliveries are settled")
        booked = bed.rows(f"SELECT order_id, cents FROM {charges} ORDER BY 1")
        assert [(b["order_id"], b["cents"]) for b in booked] == [("o1", 250), ("o2", 250), ("o3", 250)]
        letter, = bed.letters()
        assert (letter["message_id"], letter["reason"], letter["attempts"]) == ("wrong", "permanent", 1)
        bed.assert_acked()
        assert [application.post(body) for body in WRONG] == [400] * len(WRONG)
        assert application.post(b'{"id": "o9", "cents": 1}') == 500  # the token is none
    assert len(bed.rows(f"SELECT order_id FROM {charges}")) == 3


@pytest.mark.parametrize("language", sorted(COMMANDS))
def test_the_example_answers_without_its_database(tmp_path, language):
    with Example(language, tmp_path, **addresses(f"postgresql://u@127.0.0.1:{process.free_port()}/x")) as application:
        assert application.post(b'{"id": "o1", "cents": 1}') == 503
        assert application.post(WRONG[0]) == 400


@pytest.mark.parametrize("marker, options", [
    ("events", ["--markdown"]), ("reasons", ["--markdown", "--reasons"]), ("stats", ["--markdown", "--stats"]),
    ("codes", ["--markdown", "--codes"]), ("keys", ["--markdown", "--keys"])])
def test_the_tables_of_the_log_are_current(marker, options):
    made = subprocess.run([schema.require_binary(), "explain", *options], check=True, stdout=subprocess.PIPE).stdout.decode()
    stands = re.search(rf"<!-- {marker} -->\n(.*?)<!-- /{marker} -->", readme(), re.S).group(1)
    assert stands == made, f"put the output of `onceward explain {' '.join(options)}` between the markers"


def test_the_table_of_commands_is_complete():
    listed = subprocess.run([schema.require_binary(), "--help"], check=True, stdout=subprocess.PIPE).stdout.decode()
    for command in re.findall(r"^  (\w+) ", listed, re.M):
        assert re.search(rf"^\| `onceward {command}\b", readme(), re.M), f"the README's table lacks {command}"


def shell(text, **environment):
    done = subprocess.run(["sh", "-euc", text], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60,
                          env=dict(os.environ, **environment))
    return done.returncode, done.stdout.decode(errors="replace")


def heard(listener):
    """What the next connection says at once."""
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(2)
        try:
            return connection.recv(4096)
        except OSError:
            return b""


def test_the_set_up_works_as_it_is_written(private, rabbitmq, tmp_path):
    """Its lines, in their order, with the program that is there and the ports of the rig."""
    server = private.unstarted().init()
    with open(os.path.join(server.data, "pg_hba.conf"), "w") as f:
        f.write("host all postgres all trust\nhost all all all scram-sha-256\n")  # so the passwords count
    server.start()
    server.query("CREATE DATABASE app")
    stands = re.search(r"<!-- set-up -->\n```sh\n(.*?)```", readme(), re.S).group(1)
    build, *steps, run = stands.splitlines()
    assert build.startswith("meson setup build") and "onceward check" in steps[-1] and "onceward run" in run

    queue = Queue(rabbitmq, "readme-" + uuid.uuid4().hex[:8]).declare()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(30)
    with open(os.path.join(ROOT, "conf", "minimal.json")) as f:
        config = f.read()
    for here, there in ((":5672/", f":{rabbitmq.port}/"), (":5432/", f":{server.port}/"), ("//localhost:", "//127.0.0.1:"),
                        ("@localhost:", "@127.0.0.1:"), ('"payments": {', f'"{queue.name}": {{'), (":8080/", f":{listener.getsockname()[1]}/")):
        config = config.replace(here, there)
    path = tmp_path / "minimal.json"
    path.write_text(config.replace("{", f'{{ "state_file": "{tmp_path}/state",', 1))
    text = "\n".join(steps).replace("build/onceward", schema.require_binary()).replace("conf/minimal.json", str(path))
    status, said = shell(text.replace("@localhost:5432/", f"@127.0.0.1:{server.port}/"))
    assert status == 0 and said.rstrip().endswith("Everything answers."), said

    # The application's login may complete tokens; both are refused what the owner may.
    psql = f"psql postgresql://payments_app:change-me-too@127.0.0.1:{server.port}/app -c"
    status, said = shell(f'{psql} "SELECT onceward.complete(\'x\')"')
    assert status == 1 and "not a transaction token" in said, said
    status, said = shell(f'{psql} "SELECT * FROM onceward.inbox"')
    assert status == 1 and "permission denied" in said, said
    status, said = shell(f"{schema.require_binary()} migrate --config {path}")
    assert status == 1 and "--database" in said, said

    # And the sidecar runs with it.
    queue.publish("m1")
    child = process.spawn([schema.require_binary(), "run", "--config", str(path)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: b"POST /payments" in heard(listener), "the message is sent", 30)
    finally:
        process.reap(child)
        listener.close()
        queue.delete()
        queue.close()


def test_the_smallest_configuration_is_the_sample():
    stands = re.search(r"```json\n(.*?)```", readme(), re.S).group(1)
    with open(os.path.join(ROOT, "conf", "minimal.json")) as f:
        assert json.loads(stands) == json.load(f)
