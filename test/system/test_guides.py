"""The guides: their statements run, their configurations are accepted."""

import json
import re
import subprocess
import textwrap
import uuid

import pytest

from rig import inbox_sql, pages, schema
from rig.private import private  # noqa: F401 - a fixture

GUIDES = [page for page in pages.all_pages() if page.startswith("deploy/guides/")]
MINIMAL = {"broker": {"url": "amqp://localhost/"}, "database": {"url": "postgresql://localhost/app"}}
TABLES = """CREATE TABLE charges (order_id text, cents integer); CREATE TABLE invoices (order_id text, cents integer);
            GRANT SELECT, INSERT ON charges, invoices TO app_login"""


def blocks(page, language):
    """Each block of code with the marker before it, also inside a list."""
    found = re.findall(rf"^( *)(?:<!-- sql: (\w+) -->\n *)?```{language}\n(.*?)^ *```", pages.read(page), re.S | re.M)
    return [(marker, textwrap.dedent(indent + code)) for indent, marker, code in found]


STATEMENTS = {marker: code for page in GUIDES for marker, code in blocks(page, "sql") if marker}


@pytest.fixture
def database(raw_postgres):
    made = raw_postgres.create_database(f"guide_{uuid.uuid4().hex[:8]}")
    inbox_sql.load(made)
    made.query(TABLES)
    yield made
    raw_postgres.query(f'DROP DATABASE "{made.database}" WITH (FORCE)', database="postgres")


@pytest.mark.parametrize("name, completes", [("publish", True), ("reply", True), ("mail", True), ("extend", False)])
def test_the_statements_of_a_guide_run_as_the_application(database, name, completes):
    inbox, app = inbox_sql.Inbox(database, "orders"), inbox_sql.Application(database)
    try:
        inbox.claim("a")
        for statement in STATEMENTS[name].replace("{token}", inbox.token("a")).split(";"):
            if statement.strip():
                app.query(statement.strip())
        assert inbox.row("a").status == ("completed" if completes else "processing")
        published = sum(database.query(f"SELECT count(*) FROM onceward.outbox_{n}")[0][0] for n in range(3))
        assert published == completes
    finally:
        inbox.close()
        app.close()


def test_completion_and_work_in_one_statement(database):
    inbox, app = inbox_sql.Inbox(database, "orders"), inbox_sql.Application(database)
    try:
        inbox.claim("a")
        app.query("PREPARE work AS " + pages.code("deploy/guides/application.md", "one statement"))
        app.query("EXECUTE work (%s, 'order-1', 250)", inbox.token("a"))
        assert inbox.row("a").status == "completed" and app.query("SELECT * FROM charges") == [("order-1", 250)]
    finally:
        inbox.close()
        app.close()


def test_the_configurations_of_the_guides_are_accepted():
    n = 0
    for page in [*GUIDES, "conf/README.md", "deploy/oncall/commands.md"]:
        for _, code in blocks(page, "json"):
            config = json.loads(code) if code.startswith("{") else {}
            if not {"queues", "outbox"} & set(config) or "bindings" in config:  # the latter: definitions of the broker
                continue
            n += 1
            said = subprocess.run([schema.require_binary(), "check", "--config", "-"], input=json.dumps({**MINIMAL, **config}).encode(),
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            assert said.returncode == 0, f"{page}: {code}\n{said.stdout.decode()}"
    assert n > 8


def test_uninstalling_leaves_neither_schema_nor_roles(private):
    server = private.unstarted().init().start()
    server.query("CREATE DATABASE app")
    server.query("CREATE ROLE onceward_owner LOGIN; GRANT CREATE ON DATABASE app TO onceward_owner; CREATE ROLE onceward_sidecar;"
                 " CREATE ROLE onceward_app; CREATE ROLE payments_sidecar LOGIN IN ROLE onceward_sidecar")
    url = f"postgresql://onceward_owner@127.0.0.1:{server.port}/app"
    subprocess.run([schema.require_binary(), "migrate", "--database", url], check=True, stdout=subprocess.DEVNULL)
    for statement in STATEMENTS["uninstall"].split(";"):
        if statement.strip():
            server.query(statement.strip(), database="app")
    assert server.query("SELECT count(*) FROM pg_roles WHERE rolname LIKE 'onceward%'") == [(0,)]
