"""Versions of the schema: what a migration must be, and what it gives to whom."""

import glob
import json
import os
import subprocess
import uuid

import pytest

from rig import schema
from rig.inbox_sql import SQL


@pytest.fixture
def empty(raw_postgres):
    database = raw_postgres.create_database(f"versions_{uuid.uuid4().hex[:8]}")
    schema.make_roles(database)
    yield database
    raw_postgres.query(f'DROP DATABASE "{database.database}" WITH (FORCE)', database="postgres")


def migrate(postgres, folder):
    path = os.path.join(str(folder), "config.json")
    with open(path, "w") as f:
        json.dump(schema.minimal_config(postgres.dsn(user=schema.OWNER)), f)
    done = subprocess.run([schema.require_binary(), "migrate", "--config", path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=60)
    assert done.returncode == 0, done.stdout
    return done.stdout.decode()


def test_default_privileges_of_the_owner_give_nobody_a_trigger(empty, tmp_path):
    """An administrator who has given a team all on all tables has not meant that its triggers run in complete()."""
    team = "team_" + uuid.uuid4().hex[:8]
    empty.query(f"CREATE ROLE {team}")
    empty.query(f"ALTER DEFAULT PRIVILEGES FOR ROLE {schema.OWNER} GRANT ALL ON TABLES TO {team}")
    try:
        migrate(empty, tmp_path)
        assert empty.query("SELECT bool_or(has_table_privilege(%s, oid, 'TRIGGER')), bool_and(has_table_privilege(%s, oid, 'SELECT'))"
                           " FROM pg_class WHERE relnamespace = 'onceward'::regnamespace AND relkind = 'r'", (team, team)) == [(False, True)]
    finally:
        empty.query(f"DROP OWNED BY {team}")
        empty.query(f"DROP ROLE {team}")


def test_each_migration_is_one_file_that_ends_with_its_version():
    names = sorted(glob.glob(os.path.join(SQL, "[0-9]*.sql")))
    assert [int(os.path.basename(name)[:4]) for name in names] == list(range(1, len(names) + 1))
    for number, name in enumerate(names, 1):
        with open(name, encoding="utf-8") as f:
            assert f"INSERT INTO onceward.schema_version (version, oldest_compatible) VALUES ({number}, 1);" in f.read()
