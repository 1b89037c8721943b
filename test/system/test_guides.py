"""The guides: their statements and commands run, their configurations are accepted."""

import json
import os
import re
import subprocess
import textwrap
import uuid

import pytest

from rig import inbox_sql, pages, schema
from rig.bed import merge
from rig.private import private  # noqa: F401 - a fixture
from rig.wait import wait_until

GUIDES = [page for page in pages.all_pages() if page.startswith("deploy/guides/")]
MINIMAL = {"broker": {"url": "amqp://localhost/"}, "database": {"url": "postgresql://localhost/app"}}
TABLES = """CREATE TABLE charges (order_id text, cents integer); CREATE TABLE invoices (order_id text, cents integer);
            GRANT SELECT, INSERT ON charges, invoices TO app_login"""


def blocks(page, language):
    """Each block of code with the marker before it, also inside a list."""
    found = re.findall(rf"^( *)(?:<!-- sql: (\w+) -->\n *)?```{language}\n(.*?)^ *```", pages.read(page), re.S | re.M)
    return [(marker, textwrap.dedent(indent + code)) for indent, marker, code in found]


# Each page with blocks of commands, and where they run.
COMMANDS = {
    "deploy/guides/ids.md": "here",
    "deploy/guides/upgrade.md": "here",
    "deploy/guides/try.md": "test_examples.py, against an example",
    "deploy/guides/batches.md": "test_examples.py, against an example for batches",
    "deploy/guides/consumer.md": "try: test_examples.py; check: here, as in ids.md",
    "deploy/guides/long-jobs.md": "beside a sidecar",
    "deploy/guides/overload.md": "beside a sidecar",
    "deploy/guides/publish.md": "beside a sidecar",
    "deploy/guides/replies.md": "beside a sidecar",
    "deploy/guides/side-effects.md": "beside a sidecar",
    "deploy/guides/millions.md": "beside a sidecar",
    "deploy/guides/order.md": "nowhere: rabbitmqadmin needs the management plugin. Its definitions file is imported here",
}


def commands(page, beginning):
    """The lines of the page's block of commands that begins so."""
    block, = [code for _, code in blocks(page, "sh") if code.startswith(beginning)]
    return block.replace("\\\n", " ").strip().split("\n")


def shell(line, folder=None, **environment):
    """The program that is tested, in place of the installed one."""
    done = subprocess.run(line.replace("onceward ", schema.require_binary() + " ", 1), shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=60, cwd=folder, env={**os.environ, **environment}, check=False)
    assert done.returncode == 0, f"{line}\n{done.stdout.decode()}"
    return done.stdout.decode()


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


def test_the_statements_that_publish_in_the_order_of_a_row(database):
    database.query("CREATE TABLE account (id text, balance integer); INSERT INTO account VALUES ('acc-1', 1000); "
                   "GRANT SELECT, UPDATE ON account TO app_login")
    app = inbox_sql.Application(database)
    try:
        for statement in ("BEGIN", *STATEMENTS["order"].strip().rstrip(";").split(";"), "COMMIT"):
            app.query(statement)
        assert sum(database.query(f"SELECT count(*) FROM onceward.outbox_{n}")[0][0] for n in range(3)) == 1
    finally:
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


def test_each_block_of_commands_runs_or_says_why_not():
    assert {page for page in GUIDES if blocks(page, "sh")} == set(COMMANDS)


def test_the_commands_that_correct_a_message_id(bed):
    """A message dies without an id; with the sources of the page, and its commands, it goes through."""
    sidecar = bed.sidecar()
    bed.queue.publish(None, b'{"order": {"number": 7}}')
    sidecar.wait_for("dead", reason="no_message_id")
    page = "deploy/guides/ids.md"
    sources = json.loads(blocks(page, "json")[0][1])["queues"]["orders"]["message_id"]
    with open(sidecar.config_path, "w", encoding="utf-8") as f:
        json.dump(merge(sidecar.config, {"queues": {bed.queue.name: {"message_id": sources}}}), f)
    reload, redrive = commands(page, "onceward reload")
    said = shell(reload.replace("FILE", sidecar.config_path))
    assert "reloaded" in said, said
    shell(redrive.replace("FILE", sidecar.config_path))
    wait_until(lambda: bed.status("7") == "completed", "the message is completed under its own id")


def test_the_command_that_shows_the_id_of_a_message(bed, tmp_path):
    bed.queue.publish(None, b'{"order": {"number": 7}}')
    bed.queue.sync()
    page = "deploy/guides/ids.md"
    path = tmp_path / "config.json"
    path.write_text(json.dumps(bed.config(message_id=json.loads(blocks(page, "json")[0][1])["queues"]["orders"]["message_id"],
                                          top={"state_file": str(tmp_path / "state")})))
    line, = commands(page, "onceward check")
    said = shell(line.replace("FILE", str(path)))
    assert re.search(r"\b7\b.*json:/order/number|json:/order/number.*\b7\b", said), said
    assert commands("deploy/guides/consumer.md", "onceward try")[1] == line
    bed.queue.get()


# Output of the commands then; the consumer "mails" of side-effects.md has no dead letters.
SHOWN = {"check": "Everything answers", "reload": "reloaded", "status": "relay", "top": "LIMIT", "dead list": "No dead letters", "dead redrive": "No dead letters"}


@pytest.mark.parametrize("page", [page for page, where in COMMANDS.items() if where == "beside a sidecar"])
def test_the_commands_of_a_guide_run_beside_a_sidecar(bed, page):
    sidecar = bed.sidecar(top={"outbox": {}})
    sidecar.wait_for("outbox", state="relaying")
    bed.rows("INSERT INTO onceward.consumer (consumer, broker, vhost, queue) VALUES ('mails', 'b', '/', 'mails') ON CONFLICT DO NOTHING")
    lines = [line for _, code in blocks(page, "sh") for line in code.strip().split("\n")]
    assert lines
    for line in lines:
        said = shell(line.replace("FILE", sidecar.config_path))
        name = " ".join(line.split()[1:3 if " dead " in line else 2])
        assert said and SHOWN.get(name, "") in said, f"{line}\n{said}"


def test_the_broker_takes_the_definitions_of_the_guide_on_order(rabbitmq, tmp_path):
    code, = [code for _, code in blocks("deploy/guides/order.md", "json") if "bindings" in json.loads(code)]
    name = f"guide-{uuid.uuid4().hex[:8]}"
    path = tmp_path / "definitions.json"
    path.write_text(code.replace("payments", name))
    tmp_path.chmod(0o755)
    rabbitmq.rabbitmqctl("import_definitions", str(path))
    channel = rabbitmq.connect().channel()
    channel.confirm_delivery()
    channel.basic_publish(name, name, b"{}", mandatory=True)  # an error, unless the exchange leads to the queue
    channel.queue_delete(name + "-0")
    channel.exchange_delete(name)


def test_uninstalling_leaves_neither_schema_nor_roles(private):
    server = private.unstarted().init().start()
    server.query("CREATE DATABASE app")
    server.query("CREATE ROLE onceward_owner LOGIN; GRANT CREATE ON DATABASE app TO onceward_owner; CREATE ROLE onceward_sidecar;"
                 " CREATE ROLE onceward_app; CREATE ROLE payments_sidecar LOGIN IN ROLE onceward_sidecar")
    for line in commands("deploy/guides/upgrade.md", "onceward migrate"):
        shell(line.replace("@db.example.com/", f"@127.0.0.1:{server.port}/"))
    for statement in STATEMENTS["uninstall"].split(";"):
        if statement.strip():
            server.query(statement.strip(), database="app")
    assert server.query("SELECT count(*) FROM pg_roles WHERE rolname LIKE 'onceward%'") == [(0,)]
