"""sql/README.md and the contract for applications: the tests that they name exist, and their statements have the stated effect."""

import glob
import os
import re
import uuid

import pytest

from rig import inbox_sql, schema
from test_trust import Ground, run

CONTRACT = "deploy/guides/application.md"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def page(path="sql/README.md"):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def statements(marker, path="sql/README.md"):
    return re.search(rf"<!-- {marker} -->\n```sql\n(.*?)```", page(path), re.S).group(1)


def parties():
    """Name and text of each party."""
    part = re.search(r"<!-- parties -->\n(.*?)<!-- /parties -->", page(), re.S).group(1)
    return re.findall(r"^### (.*?)\n\n(.*?)(?=^### |\Z)", part, re.S | re.M)


def test_each_test_that_is_named_exists():
    there = set()
    for path in glob.glob(os.path.join(ROOT, "test", "system", "*.py")):
        with open(path, encoding="utf-8") as f:
            there |= set(re.findall(r"^def (test_\w+)\(", f.read(), re.M))
    named = set(re.findall(r"`(test_\w+)`", page()))
    assert len(named) > 30 and named <= there, f"named, and not there: {sorted(named - there)}"


def test_each_party_has_what_it_can_what_it_cannot_and_a_test():
    found = parties()
    assert len(found) >= 7
    for name, text in found:
        assert re.search(r"^- \*\*Can.*^- \*\*Cannot\*\* .*^- \*\*Shown by\*\* `test_", text, re.S | re.M), name


def test_each_function_has_its_place_in_the_table():
    table = page().split("## Functions\n")[1]
    files = {os.path.basename(path)[:-4] for path in glob.glob(os.path.join(ROOT, "sql", "functions", "*.sql"))}
    listed = set(re.findall(r"`(\w+)`", table.split("Each is a file")[0]))
    assert listed == files


@pytest.fixture
def ground(raw_postgres, tmp_path):
    database = raw_postgres.create_database(f"page_{uuid.uuid4().hex[:8]}")
    made = Ground(tmp_path, database)
    yield made
    made.deinit()
    raw_postgres.query(f'DROP DATABASE "{database.database}" WITH (FORCE)', database="postgres")


def test_a_schema_of_a_superuser_gets_an_owner_as_it_is_written(ground):
    """With another name in the owner's place: the other tests' owner is the servers'."""
    owner = "owner_" + uuid.uuid4().hex[:8]
    schema.migrate(ground.postgres, user="postgres")
    assert ground.check()["warn"]
    try:
        ground.postgres.query(statements("owner").replace("onceward_owner", owner)
                              .replace("DATABASE app", f'DATABASE "{ground.postgres.database}"'))
        checked = ground.check()
        assert not checked["warn"] and not checked["FAIL"], checked
        assert any(f"belong to {owner}," in line for line in checked["ok"]), checked
        assert ground.migrate(owner).returncode == 0
        done = ground.migrate("postgres")
        assert done.returncode == 1 and f"belongs to {owner}" in done.text, done.text
    finally:
        ground.postgres.query(f"REASSIGN OWNED BY {owner} TO postgres; DROP OWNED BY {owner}; DROP ROLE {owner}")


def test_where_the_roles_are_there_the_owner_needs_nothing_else(ground):
    """A managed service: no superuser, no CREATEROLE, a login that is a member of the owner."""
    owner = "owner_" + uuid.uuid4().hex[:8]
    schema.make_roles(ground.postgres)
    ground.postgres.query(f"CREATE ROLE {owner}")
    ground.postgres.query(f"GRANT {owner} TO {ground.mallory}")
    try:
        ground.postgres.query(statements("managed").replace("onceward_owner", owner)
                              .replace("DATABASE app", f'DATABASE "{ground.postgres.database}"'))
        url = ground.postgres.dsn(user=ground.mallory, options=f"-crole%3D{owner}")
        done = run("migrate", "--config", ground._path("sidecar_login"), "--database", url)
        assert done.returncode == 0 and "may not create roles" not in done.text and "was made" in done.text, done.text
        checked = ground.check()
        assert not checked["warn"] and not checked["FAIL"], checked
    finally:
        ground.postgres.query(f"DROP OWNED BY {owner} CASCADE; DROP ROLE {owner}")


@pytest.mark.parametrize("marker", ["batch all", "batch valid"])
def test_the_statements_of_a_batch_do_both_or_neither(raw_postgres, marker):
    database = raw_postgres.create_database(f"page_{uuid.uuid4().hex[:8]}")
    inbox_sql.load(database)
    database.query("CREATE TABLE charges (order_id text, cents integer); GRANT SELECT, INSERT ON charges TO app_login")
    inbox, app = inbox_sql.Inbox(database, "orders"), inbox_sql.Application(database)
    inbox.claim("a", "b")
    for n, statement in enumerate(s for s in statements(marker, CONTRACT).split(";") if s.strip() and s.strip() not in ("BEGIN", "COMMIT")):
        app.query(f"PREPARE p{n} AS {statement}")
    tokens = [inbox.token("a"), inbox.token("b")]
    for n, in app.query("SELECT name FROM pg_prepared_statements ORDER BY name"):
        arguments = ([tokens], [["a", "b"], [1, 2]])[int(n[1:])] if marker == "batch all" else [tokens, ["a", "b"], [1, 2]]
        app.query(f"EXECUTE {n} ({', '.join('%s' for _ in arguments)})", *arguments)
    assert sorted(map(tuple, app.query("SELECT * FROM charges"))) == [("a", 1), ("b", 2)]
    assert {inbox.row(i).status for i in "ab"} == {"completed"}
    inbox.close()
    app.close()
