"""Two versions of the program on one schema: in every rollout, and after a rollback.

What a program of version 1 calls must stay as it was, by name, arguments, columns and meaning: the functions of that version are listed here
as they were released, and most tests of the other files call them."""

import glob
import json
import os
import subprocess
import uuid

import pytest

from rig import schema
from rig.inbox_sql import SQL

# As pg_get_function_arguments and pg_get_function_result tell them: of version 1. Nothing here may change.
VERSION_1 = [
    ("complete(token text)", "text"),
    ("complete(token text, result text)", "text"),
    ("error_cut(p_text text)", "text"),
    ("error_shown(p_text text)", "text"),
    ("extend(token text, seconds double precision)", "timestamp with time zone"),
    ("letter_digest(p_consumer text, p_vhost text, p_queue text, p_message_id text, p_raw_id bytea, p_body bytea, p_content_type text,"
     " p_type text, p_properties text, p_headers text, p_exchange text, p_routing_key text, p_deaths bigint)", "bytea"),
    ("letter_revives(p_consumer text, p_message_id text, p_deaths bigint, p_revive integer)", "boolean"),
    ("sidecar_bury(p_consumer text, p_vhost text, p_queue text, p_max_attempts integer, p_grace_ms bigint, p_ids text[], p_tokens uuid[],"
     " p_fingerprints bytea[], p_types text[], p_statuses integer[], p_errors text[], p_reasons text[], p_rowless boolean[],"
     " p_redelivered boolean[], p_exhausted boolean[], p_attempts integer[], p_raw_ids bytea[], p_bodies bytea[], p_content_types text[],"
     " p_properties text[], p_headers text[], p_exchanges text[], p_routing_keys text[], p_deaths bigint[])",
     "TABLE(ord integer, answer text, letter_id bigint)"),
    ("sidecar_claim(p_consumer text, p_transaction boolean, p_window_ms bigint, p_grace_ms bigint, p_max_attempts integer, p_revive integer,"
     " p_instance text, p_own boolean, p_ids text[], p_tokens uuid[], p_fingerprints bytea[], p_types text[], p_deaths bigint[],"
     " p_max_window_ms bigint)",
     "TABLE(ord integer, answer text, attempt integer, wait_ms bigint, age_ms bigint, taken_over boolean, detail text)"),
    ("sidecar_fail(p_consumer text, p_ids text[], p_tokens uuid[], p_errors text[], p_statuses integer[], p_delays bigint[],"
     " p_only_expired boolean[], p_give_back boolean[] DEFAULT NULL::boolean[])", "TABLE(ord integer, answer text, wait_ms bigint)"),
    ("sidecar_figures(p_consumer text, OUT dead_letters bigint, OUT oldest_snapshot_ms bigint)", "record"),
    ("sidecar_holder(p_consumer text, p_id text, OUT pid bigint, OUT age_ms bigint, OUT application text, OUT state text)", "record"),
    ("sidecar_housekeep(p_consumer text, p_instance text, p_retention_ms bigint, p_late_ms bigint, p_from_page bigint, p_budget_us bigint,"
     " OUT purged bigint, OUT swept bigint, OUT orphans bigint, OUT next_page bigint, OUT took_us bigint, OUT away_ms bigint)", "record"),
    ("sidecar_look(p_consumer text, p_grace_ms bigint, p_ids text[], p_tokens uuid[], p_fingerprints bytea[])",
     "TABLE(ord integer, answer text, wait_ms bigint, detail text)"),
    ("sidecar_redrive(p_id bigint)", "text"),
    ("sidecar_register(p_consumer text, p_vhost text, p_queue text, p_takes_over text)", "text"),
    ("sidecar_release(p_consumer text, p_ids text[], p_tokens uuid[], p_errors text[], p_delays bigint[])", "TABLE(ord integer, answer text)"),
    ("sidecar_schema(OUT version integer, OUT oldest_compatible integer)", "record"),
    ("sidecar_settle(p_consumer text, p_ids text[], p_tokens uuid[], p_statuses integer[], p_results text[])",
     "TABLE(ord integer, answer text)"),
    ("sidecar_try(p_consumer text, OUT yes bigint)", "bigint"),
    ("token_read(p_token text)", "text[]"),
]


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


def test_what_a_program_of_version_1_calls_is_as_it_was(empty, tmp_path):
    schema.migrate(empty)
    there = dict(empty.query("SELECT p.proname || '(' || pg_get_function_arguments(p.oid) || ')', pg_get_function_result(p.oid)"
                             " FROM pg_proc p WHERE p.pronamespace = 'onceward'::regnamespace"))
    assert [(name, there.get(name)) for name, _ in VERSION_1] == VERSION_1
    version, oldest = empty.query("SELECT * FROM onceward.sidecar_schema()", user="sidecar_login")[0]
    assert version >= 1 and oldest == 1


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
