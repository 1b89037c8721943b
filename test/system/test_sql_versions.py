"""Versions of the schema: what a migration must be, and two versions of the program on one schema, as in every rollout and after a rollback.

There is one version. So the newer program is made up: the same objects with one migration and one function more, those of next/."""

import glob
import json
import os
import subprocess
import uuid

import pytest

from rig import schema
from rig.inbox_sql import SQL
from test_store import fresh_bed  # noqa: F401 - a fixture


@pytest.fixture
def empty(raw_postgres):
    database = raw_postgres.create_database(f"versions_{uuid.uuid4().hex[:8]}")
    schema.make_roles(database)
    yield database
    raw_postgres.query(f'DROP DATABASE "{database.database}" WITH (FORCE)', database="postgres")


def run(postgres, folder, *arguments, binary=None, user=schema.OWNER, status=0):
    path = os.path.join(str(folder), "config.json")
    with open(path, "w") as f:
        json.dump(schema.minimal_config(postgres.dsn(user=user)), f)
    done = subprocess.run([binary or schema.require_binary(), *arguments, "--config", path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=60)
    assert done.returncode == status, done.stdout
    return done.stdout.decode()


def migrate(postgres, folder, **options):
    return run(postgres, folder, "migrate", **options)


@pytest.fixture
def newer():
    path = os.path.join(os.path.dirname(schema.require_binary()), "test", "system", "onceward_next")
    if not os.access(path, os.X_OK):
        pytest.skip("onceward_next was not built")
    return path


def has_both(postgres):
    """The schema of the newer program, whole."""
    return postgres.query("SELECT onceward.made_up(), EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'onceward.inbox'::regclass AND"
                          " attname = 'made_up'), max(version) FROM onceward.schema_version") == [(2, True, 2)]


def test_two_versions_run_side_by_side_on_the_newer_schema(fresh_bed, newer, tmp_path):
    bed, postgres = fresh_bed, fresh_bed.postgres
    older = bed.sidecar("older")
    bed.queue.publish_many(["before"])
    bed.wait_for_effects(["before"])
    # A newer program waits for its migration.
    said = run(postgres, tmp_path, "check", "--connect", binary=newer, user="sidecar_login", status=1)
    assert "the schema has version 1, this program needs 2: run `onceward migrate`" in said
    assert "from version 1 to 2" in migrate(postgres, tmp_path, binary=newer) and has_both(postgres)
    assert postgres.query("SELECT version, oldest_compatible FROM onceward.schema_version ORDER BY 1") == [(1, 1), (2, 1)]
    # The older one goes on, beside the newer one, and starts again: a rollback.
    bed.sidecar("newer", binary=newer)
    bed.queue.publish_many([f"beside{n}" for n in range(40)])
    bed.wait_for_effects(["before"] + [f"beside{n}" for n in range(40)])
    assert older.term() == 0
    bed.sidecar("rolled-back")
    bed.queue.publish_many(["after"])
    bed.wait_for_effects(["before", "after"] + [f"beside{n}" for n in range(40)])
    # Its migrate leaves the newer schema alone, and the newer one may be run again.
    assert "newer than this program" in migrate(postgres, tmp_path) and has_both(postgres)
    assert "version 2" in migrate(postgres, tmp_path, binary=newer) and has_both(postgres)


def test_a_schema_that_serves_no_older_programs_refuses_them(empty, newer, tmp_path):
    migrate(empty, tmp_path)
    migrate(empty, tmp_path, binary=newer)
    empty.query("UPDATE onceward.schema_version SET oldest_compatible = 2 WHERE version = 2")
    assert "needs a program that knows version 2; this one knows 1" in migrate(empty, tmp_path, status=1) and has_both(empty)
    said = run(empty, tmp_path, "check", "--connect", user="sidecar_login", status=1)
    assert "serves programs from version 2 on, this one has 1: update onceward" in said
    assert "version 2" in migrate(empty, tmp_path, binary=newer)


def test_a_new_schema_of_the_newer_program_has_run_all_migrations(empty, newer, tmp_path):
    migrate(empty, tmp_path, binary=newer)
    assert has_both(empty) and empty.query("SELECT version FROM onceward.schema_version ORDER BY applied_at, version") == [(1,), (2,)]


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
