"""The applications of deploy/examples, as they stand there, against the real servers."""

import http.client
import json
import os
import re
import socket
import subprocess
import uuid

import pytest

from rig import pages, process
from rig.wait import wait_until

EXAMPLES = os.path.join(pages.ROOT, "deploy", "examples")


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), 0.2).close()
        return True
    except OSError:
        return False


COMMANDS = {
    "python": lambda folder, port: ["/usr/bin/python3", f"{folder}/application.py"],
    "php": lambda folder, port: ["php", "-S", f"127.0.0.1:{port}", f"{folder}/application.php"],
}


class Example:
    """An example as a process."""

    def __init__(self, language, **environment):
        self.language = language
        self.port = process.free_port()
        self.child = process.spawn(COMMANDS[language](os.path.join(EXAMPLES, language), self.port), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
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
    schema_name = "examples_" + uuid.uuid4().hex[:8]
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
def test_the_example_books_each_order_once_and_refuses_what_is_wrong(bed, charges, language):
    with Example(language, **addresses(bed.postgres.dsn(user="app_login"))) as application:
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
def test_the_example_answers_without_its_database(language):
    with Example(language, **addresses(f"postgresql://u@127.0.0.1:{process.free_port()}/x")) as application:
        assert application.post(b'{"id": "o1", "cents": 1}') == 503
        assert application.post(WRONG[0]) == 400
