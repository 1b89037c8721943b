"""The README is tested as it stands: its examples run against the real servers, its tables are those of the program."""

import json
import os
import re
import socket
import subprocess
import uuid

import pytest

from rig import process, schema
from rig.wait import wait_until

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def readme():
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
        return f.read()


def example(language):
    found = re.search(rf"<!-- example: {language} -->\n```{language}\n(.*?)```", readme(), re.S)
    assert found, f"the README has no example in {language}"
    return found.group(1)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


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


@pytest.mark.parametrize("language", sorted(COMMANDS))
def test_the_example_books_each_order_once(bed, tmp_path, language):
    name, command = COMMANDS[language]
    path = tmp_path / name
    path.write_text(example(language))
    schema_name = "readme_" + uuid.uuid4().hex[:8]
    bed.postgres.query(f"CREATE SCHEMA {schema_name} AUTHORIZATION app_login")
    bed.postgres.query(f"CREATE TABLE {schema_name}.charges (order_id text, cents integer)")
    bed.postgres.query(f"ALTER TABLE {schema_name}.charges OWNER TO app_login")
    bed.postgres.query(f"ALTER ROLE app_login IN DATABASE \"{bed.postgres.database}\" SET search_path = {schema_name}, app")
    port = free_port()
    dsn = bed.postgres.dsn(user="app_login")
    parts = re.match(r"postgres(?:ql)?://(?P<user>[^:@]+)(?::[^@]*)?@(?P<host>[^:/]+):(?P<port>\d+)/(?P<database>[^?]+)", dsn)
    pdo = "pgsql:host={host};port={port};dbname={database};user={user}".format(**parts.groupdict()) if parts else dsn
    child = process.spawn(command(str(path), port), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          env=dict(os.environ, PORT=str(port), DATABASE_URL=dsn, DATABASE_PDO=pdo))
    try:
        wait_until(lambda: answers(port), f"the {language} example listens")
        sidecar = bed.sidecar(forward={"url": f"http://127.0.0.1:{port}/payments"})
        for order in ("o1", "o2", "o1", "o3", "o2"):
            bed.queue.publish(order, json.dumps({"id": order, "cents": 250}).encode())
        wait_until(lambda: sum(e["completed_total"] + e["duplicates_total"] for e in sidecar.find("stats")[-1:]) == 5,
                   "all five deliveries are settled")
        booked = bed.rows(f"SELECT order_id, cents FROM {schema_name}.charges ORDER BY 1")
        assert [(b["order_id"], b["cents"]) for b in booked] == [("o1", 250), ("o2", 250), ("o3", 250)]
        bed.assert_acked()
    finally:
        child.kill()
        child.wait()
        bed.postgres.query(f"ALTER ROLE app_login IN DATABASE \"{bed.postgres.database}\" RESET search_path")
        bed.postgres.query(f"DROP SCHEMA {schema_name} CASCADE")


def test_the_table_of_events_is_current():
    made = subprocess.run([schema.require_binary(), "explain", "--markdown"], check=True, stdout=subprocess.PIPE).stdout.decode()
    stands = re.search(r"<!-- events -->\n(.*?)<!-- /events -->", readme(), re.S).group(1)
    assert stands == made, "put the output of `onceward explain --markdown` between the markers"


def test_the_smallest_configuration_is_the_sample():
    stands = re.search(r"```json\n(.*?)```", readme(), re.S).group(1)
    with open(os.path.join(ROOT, "conf", "minimal.json")) as f:
        assert json.loads(stands) == json.load(f)
