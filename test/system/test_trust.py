"""The schema in one hand: what applications call runs as its owner, so nobody else may own, replace or add a piece of it.

Each test makes what an attacker could have made, or an administrator by mistake, and both `migrate` and `check --connect` must refuse it,
naming whose it is and what to do."""

import json
import os
import subprocess
import time
import uuid

import psycopg2
import pytest

from rig import schema
from rig.inbox_sql import Application, Inbox, Letter, Session, answers

def run(*arguments):
    done = subprocess.run([schema.require_binary(), *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=60)
    done.text = done.stdout.decode(errors="replace")
    assert "Sanitizer" not in done.text, done.text
    return done


class Ground:
    """A database, and a role that has no business in it but may CREATE there."""

    def __init__(self, folder, postgres):
        self.folder = folder
        self.postgres = postgres
        self.mallory = "mallory_" + uuid.uuid4().hex[:8]
        postgres.query(f"CREATE ROLE {self.mallory} LOGIN")
        postgres.query(f'GRANT CREATE ON DATABASE "{postgres.database}" TO {self.mallory}')

    def _path(self, user):
        path = os.path.join(str(self.folder), f"{user}.json")
        with open(path, "w") as f:
            json.dump(schema.minimal_config(self.postgres.dsn(user=user)), f)
        return path

    def migrate(self, user=schema.OWNER):
        return run("migrate", "--config", self._path(user))

    def check(self, user="sidecar_login"):
        """The lines about the database, by their mark."""
        done = run("check", "--config", self._path(user), "--connect")
        lines = [line for line in done.text.splitlines() if " database" in line]
        return {mark: [line for line in lines if line.startswith(mark)] for mark in ("ok", "warn", "FAIL")}

    def as_mallory(self, sql):
        return self.postgres.query(sql.format(mallory=self.mallory), user=self.mallory)

    def sql(self, sql):
        """By somebody who may."""
        for statement in sql.format(mallory=self.mallory, owner=schema.OWNER).split(";;"):
            self.postgres.query(statement)

    def is_superuser(self):
        return self.postgres.query("SELECT rolsuper FROM pg_roles WHERE rolname = %s", (self.mallory,))[0][0]

    def deinit(self):
        self.postgres.query(f"DROP OWNED BY {self.mallory} CASCADE")
        self.postgres.query(f"DROP ROLE {self.mallory}")


@pytest.fixture
def ground(raw_postgres, tmp_path):
    """Not migrated."""
    database = raw_postgres.create_database(f"trust_{uuid.uuid4().hex[:8]}")
    made = Ground(tmp_path, database)
    yield made
    made.deinit()
    raw_postgres.query(f'DROP DATABASE "{database.database}" WITH (FORCE)', database="postgres")


@pytest.fixture
def migrated(ground):
    schema.migrate(ground.postgres)
    return ground


ESCALATE = "ALTER ROLE {mallory} SUPERUSER"


@pytest.mark.parametrize("user", ["postgres", schema.OWNER])
def test_a_schema_that_somebody_made_first_is_not_adopted(ground, user):
    schema.make_roles(ground.postgres)
    ground.as_mallory("CREATE SCHEMA onceward")
    done = ground.migrate(user)
    assert done.returncode == 1 and f"schema onceward belongs to {ground.mallory}, not to {user}" in done.text, done.text
    assert "--database" in done.text and "left as it was" in done.text and "drop it or rename it" in done.text
    assert ground.postgres.query("SELECT count(*)::int FROM pg_class WHERE relnamespace = 'onceward'::regnamespace") == [(0,)]


def test_nothing_of_such_a_schema_is_run(ground):
    """A view in the place of a table, that calls a function as whoever reads it: as the superuser who migrates."""
    ground.as_mallory("CREATE SCHEMA onceward")
    ground.as_mallory("CREATE FUNCTION onceward.f() RETURNS integer LANGUAGE plpgsql AS $$ BEGIN " + ESCALATE + "; RETURN 1; END $$")
    ground.as_mallory("CREATE VIEW onceward.schema_version AS SELECT onceward.f() AS version, 1 AS oldest_compatible")
    ground.as_mallory("GRANT USAGE ON SCHEMA onceward TO PUBLIC")
    ground.as_mallory("GRANT SELECT ON onceward.schema_version TO PUBLIC")
    ground.as_mallory("CREATE FUNCTION onceward.sidecar_schema(OUT version integer, OUT oldest_compatible integer) LANGUAGE plpgsql AS $$"
                      " BEGIN " + ESCALATE + "; version := 1; oldest_compatible := 1; END $$")
    assert ground.migrate("postgres").returncode == 1
    assert not ground.is_superuser()
    assert any(f"postgres is a superuser, and what {ground.mallory} puts into schema onceward would run as it" in line
               for line in ground.check("postgres")["FAIL"])
    assert not ground.is_superuser()


TAMPERED = {
    "schema": ("ALTER SCHEMA onceward OWNER TO {mallory}", "belongs to", None),
    "table": ("ALTER TABLE onceward.inbox OWNER TO {mallory}", "table onceward.inbox belongs to {mallory}",
              "ALTER TABLE onceward.inbox OWNER TO {owner}"),
    "function": ("ALTER FUNCTION onceward.token_read(text, integer) OWNER TO {mallory}", "function onceward.token_read(pg_catalog.text,integer) belongs to {mallory}",
                 "ALTER FUNCTION onceward.token_read(pg_catalog.text,integer) OWNER TO {owner}"),
    "a sequence of its own": ("CREATE SEQUENCE onceward.s;;ALTER SEQUENCE onceward.s OWNER TO {mallory}", "sequence onceward.s belongs to {mallory}",
                              "ALTER SEQUENCE onceward.s OWNER TO {owner}"),
    "a type": ("CREATE TYPE onceward.mood AS ENUM ('a');;ALTER TYPE onceward.mood OWNER TO {mallory}", "type onceward.mood belongs to {mallory}",
               "ALTER TYPE onceward.mood OWNER TO {owner}"),
    "a view": ("CREATE VIEW onceward.v AS SELECT 1 AS x;;ALTER VIEW onceward.v OWNER TO {mallory}", "view onceward.v belongs to {mallory}",
               "ALTER VIEW onceward.v OWNER TO {owner}"),
    "an operator": ("CREATE OPERATOR onceward.=== (FUNCTION = texteq, LEFTARG = text, RIGHTARG = text);;"
                    "ALTER OPERATOR onceward.=== (text, text) OWNER TO {mallory}", "operator onceward.===", "OWNER TO {owner}"),
    "create": ("GRANT CREATE ON SCHEMA onceward TO {mallory}", "{mallory} may CREATE in schema onceward",
               "REVOKE CREATE ON SCHEMA onceward FROM {mallory}"),
    "create by everybody": ("GRANT CREATE ON SCHEMA onceward TO PUBLIC", "PUBLIC may CREATE", "REVOKE CREATE ON SCHEMA onceward FROM PUBLIC"),
    "another function of the name": ("CREATE FUNCTION onceward.token_read(varchar) RETURNS text[] LANGUAGE sql AS 'SELECT NULL::text[]';;"
                                     "ALTER FUNCTION onceward.token_read(varchar) OWNER TO {owner}",
                                     "function onceward.token_read(character varying) has the name of one of ours", "DROP FUNCTION"),
    "a trigger": ("CREATE SCHEMA m;;CREATE FUNCTION m.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';;"
                  "ALTER FUNCTION m.f() OWNER TO {mallory};;"
                  "CREATE TRIGGER t BEFORE UPDATE ON onceward.inbox FOR EACH ROW EXECUTE FUNCTION m.f()", "trigger t on table onceward.inbox calls",
                  "drop it"),
    "the right to make triggers": ("GRANT TRIGGER ON onceward.inbox TO {mallory}", "{mallory} may put triggers on onceward.inbox",
                                   "REVOKE TRIGGER ON onceward.inbox FROM {mallory}"),
    "a default": ("CREATE SCHEMA m;;CREATE FUNCTION m.f() RETURNS text LANGUAGE sql AS 'SELECT 1::text';;ALTER FUNCTION m.f() OWNER TO {mallory};;"
                  "ALTER TABLE onceward.inbox ALTER COLUMN result SET DEFAULT m.f()", "default value for column result of table onceward.inbox calls",
                  "drop it"),
    "a constraint": ("CREATE SCHEMA m;;CREATE FUNCTION m.f(text) RETURNS boolean LANGUAGE sql AS 'SELECT true';;"
                     "ALTER FUNCTION m.f(text) OWNER TO {mallory};;ALTER TABLE onceward.inbox ADD CONSTRAINT k CHECK (m.f(status))",
                     "constraint k on table onceward.inbox calls", "drop it"),
    "an index": ("CREATE SCHEMA m;;CREATE FUNCTION m.f(text) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT 1::text';;"
                 "ALTER FUNCTION m.f(text) OWNER TO {mallory};;CREATE INDEX odd ON onceward.consumer (m.f(queue))", "index onceward.odd calls",
                 "drop it"),
    "a rule": ("CREATE RULE r AS ON DELETE TO onceward.consumer DO ALSO SELECT 1", "rule r changes what is done to onceward.consumer", "DROP RULE"),
    "an heir": ("CREATE SCHEMA m;;CREATE TABLE m.heir () INHERITS (onceward.inbox);;ALTER TABLE m.heir OWNER TO {mallory}",
                "m.heir of {mallory} inherits from onceward.inbox", "NO INHERIT"),
    "an extension": ("CREATE EXTENSION hstore SCHEMA onceward", "extension hstore of postgres has put things into schema onceward",
                     "ALTER EXTENSION hstore SET SCHEMA"),
    "a view in the place of a table": ("ALTER TABLE onceward.consumer RENAME TO kept;;CREATE VIEW onceward.consumer AS SELECT * FROM onceward.kept;;"
                                       "ALTER VIEW onceward.consumer OWNER TO {owner}", "onceward.consumer is no ordinary table", "restore"),
}
for table in ("horizon", "letter_lock", "outbox_parked", "history_begun"):
    TAMPERED[f"a view in the place of {table}"] = (TAMPERED["a view in the place of a table"][0].replace("consumer", table),
                                                   f"onceward.{table} is no ordinary table", "restore")


@pytest.mark.parametrize("what", list(TAMPERED))
def test_a_schema_in_more_than_one_hand_is_refused(migrated, what):
    sql, said, remedy = TAMPERED[what]
    migrated.sql(sql)
    said, remedy = (text and text.format(mallory=migrated.mallory, owner=schema.OWNER) for text in (said, remedy))
    done = migrated.migrate()
    assert done.returncode == 1 and said in done.text and (remedy or "") in done.text, done.text
    checked = migrated.check()
    assert any(said in line and (remedy or "") in line for line in checked["FAIL"]), checked


@pytest.mark.short("table", "function", "create")
@pytest.mark.parametrize("what", ["table", "function", "a sequence of its own", "a type", "a view", "create", "create by everybody",
                                  "the right to make triggers"])
def test_the_remedy_that_is_named_is_one(migrated, what):
    sql, _, remedy = TAMPERED[what]
    migrated.sql(sql)
    migrated.sql(remedy)
    assert migrated.migrate().returncode == 0
    checked = migrated.check()
    assert not checked["FAIL"] and not checked["warn"], checked


def test_all_of_it_belongs_to_a_role_that_is_no_superuser(migrated):
    """As the README sets it up: then even a hole in a function stays in the schema."""
    owners = migrated.postgres.query(
        "SELECT DISTINCT o::regrole::text FROM (SELECT nspowner AS o FROM pg_namespace WHERE nspname = 'onceward'"
        " UNION SELECT relowner FROM pg_class WHERE relnamespace = 'onceward'::regnamespace"
        " UNION SELECT proowner FROM pg_proc WHERE pronamespace = 'onceward'::regnamespace) x")
    assert owners == [(schema.OWNER,)]
    assert migrated.postgres.query("SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = %s", (schema.OWNER,)) == [(False,)]
    checked = migrated.check()
    assert not checked["warn"] and not checked["FAIL"]
    assert any(f"all in it belong to {schema.OWNER}, and no other role may add to it" in line for line in checked["ok"]), checked
    application = Application(migrated.postgres)
    with pytest.raises(Exception, match="not a transaction token"):
        application.complete("x")
    application.close()


def test_a_superuser_as_owner_is_a_warning(ground):
    said = schema.migrate(ground.postgres, user="postgres")
    assert "-- Warning: postgres owns schema onceward and is a superuser" in said, said
    assert ground.migrate("postgres").returncode == 0
    checked = ground.check()
    assert not checked["FAIL"] and len(checked["warn"]) == 1 and "postgres owns schema onceward and is a superuser" in checked["warn"][0], checked
    assert "sql/README.md" in checked["warn"][0]


def test_an_application_that_is_the_owner_is_a_warning(ground):
    """The easy way: one login for everything."""
    schema.make_roles(ground.postgres)
    assert ground.migrate(ground.mallory).returncode == 0
    assert not ground.check()["warn"]
    ground.sql("GRANT onceward_app TO {mallory}")
    checked = ground.check()
    assert not checked["FAIL"] and len(checked["warn"]) == 1, checked
    assert f"login {ground.mallory} is an application's, and may act as {ground.mallory}, who owns schema onceward" in checked["warn"][0]


def test_who_else_may_change_rows_is_a_warning(migrated):
    migrated.sql("GRANT UPDATE, DELETE ON onceward.inbox TO {mallory}")
    migrated.sql("GRANT SELECT ON onceward.inbox TO {mallory}")
    checked = migrated.check()
    assert not checked["FAIL"] and len(checked["warn"]) == 1, checked
    assert f"{migrated.mallory} may DELETE, UPDATE onceward.inbox: REVOKE DELETE, UPDATE ON onceward.inbox FROM {migrated.mallory}" in checked["warn"][0]
    assert migrated.migrate().returncode == 0


@pytest.mark.parametrize("may", ["UPDATE (status)", "INSERT (token, status)", "REFERENCES"])
def test_who_may_do_so_by_a_column_or_a_foreign_key_is_a_warning_too(migrated, may):
    """A role that refers to a row can keep it there, and locked."""
    migrated.sql(f"GRANT {may} ON onceward.inbox TO {{mallory}}")
    checked = migrated.check()
    assert not checked["FAIL"] and len(checked["warn"]) == 1, checked
    word = may.split()[0]
    assert f"{migrated.mallory} may {word} onceward.inbox: REVOKE {word} ON onceward.inbox FROM {migrated.mallory}" in checked["warn"][0]
    migrated.sql(f"REVOKE {word} ON onceward.inbox FROM {{mallory}}")
    assert not migrated.check()["warn"]


def test_an_extension_that_another_team_puts_there_is_one_line_with_its_remedy(migrated):
    """PostgreSQL asks for CREATE in the database, and not in the schema, before it makes a trusted one."""
    migrated.as_mallory("CREATE EXTENSION hstore SCHEMA onceward")
    done = migrated.migrate()
    said = f"extension hstore of {migrated.mallory} has put things into schema onceward"
    assert done.returncode == 1 and said in done.text and "faults" not in done.text, done.text
    assert len([line for line in migrated.check()["FAIL"] if said in line]) == len(migrated.check()["FAIL"]) == 1
    migrated.sql("CREATE SCHEMA another;;ALTER EXTENSION hstore SET SCHEMA another")
    assert migrated.migrate().returncode == 0 and not migrated.check()["FAIL"]


def test_default_privileges_of_the_owner_let_nobody_into_a_new_schema(ground):
    schema.make_roles(ground.postgres)
    ground.sql("ALTER DEFAULT PRIVILEGES FOR ROLE {owner} GRANT ALL ON SCHEMAS TO {mallory};;"
               "ALTER DEFAULT PRIVILEGES FOR ROLE {owner} GRANT ALL ON SCHEMAS TO PUBLIC")
    try:
        done = ground.migrate()
    finally:
        ground.sql("ALTER DEFAULT PRIVILEGES FOR ROLE {owner} REVOKE ALL ON SCHEMAS FROM {mallory};;"
                   "ALTER DEFAULT PRIVILEGES FOR ROLE {owner} REVOKE ALL ON SCHEMAS FROM PUBLIC")
    assert done.returncode == 0, done.text
    with pytest.raises(psycopg2.errors.InsufficientPrivilege):
        ground.as_mallory("CREATE FUNCTION onceward.f() RETURNS integer LANGUAGE sql AS 'SELECT 1'")
    assert not ground.check()["FAIL"]


def test_a_sidecar_may_change_the_rows_and_read_the_letters_of_every_consumer(migrated):
    """So that nobody takes two logins for a boundary: it is said in sql/README.md, and here it is shown."""
    theirs = Inbox(migrated.postgres, "theirs")
    theirs.claim("m1")
    theirs.bury(("m1", Letter(body=b"secret")))
    migrated.sql("GRANT onceward_sidecar TO {mallory}")
    ours = Session(migrated.postgres, migrated.mallory)
    assert bytes(ours.value("SELECT body FROM onceward.dead_letter WHERE consumer = 'theirs'")) == b"secret"
    ours.query("UPDATE onceward.inbox SET status = 'completed' WHERE consumer = 'theirs'")
    assert theirs.row("m1").status == "completed"
    for session in (theirs, ours):
        session.close()


def test_another_team_sees_and_changes_nothing(migrated):
    theirs = Session(migrated.postgres, migrated.mallory)
    functions = migrated.postgres.query("SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = 'onceward'::regnamespace")
    tables = migrated.postgres.query("SELECT relname FROM pg_class WHERE relnamespace = 'onceward'::regnamespace AND relkind IN ('r', 'S')")
    assert len(functions) > 20 and len(tables) >= 7
    tried = [f"SELECT * FROM onceward.{table}" for table, in tables] + ["SELECT onceward.complete('x')", "CREATE TABLE onceward.x ()",
             "DELETE FROM onceward.inbox", "ALTER SCHEMA onceward RENAME TO x", "DROP SCHEMA onceward CASCADE",
             f"ALTER SCHEMA onceward OWNER TO {migrated.mallory}", "CREATE TABLE mine () INHERITS (onceward.inbox)",
             "CREATE TRIGGER t BEFORE INSERT ON onceward.inbox FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()"]
    for statement in tried:
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            theirs.query(statement)
    assert not theirs.value("SELECT bool_or(has_function_privilege(p.oid, 'EXECUTE')) FROM pg_proc p JOIN pg_namespace n"
                            " ON n.oid = p.pronamespace WHERE n.nspname = 'onceward'")
    theirs.close()


def test_another_teams_advisory_locks_stop_nothing(migrated):
    """Every login of the database may take them: so nothing of ours depends on one but `migrate`, which fails aloud."""
    theirs = Session(migrated.postgres, migrated.mallory)
    theirs.query("SELECT pg_advisory_lock(1869505329, k) FROM generate_series(0, 127) k")
    ours, other = Inbox(migrated.postgres, "ours"), Inbox(migrated.postgres, "ours", "b")
    ours.register(("ours", "/", "q", None))
    assert answers(ours.bury(*((None, Letter(reason="no_message_id", rowless=True, body=bytes([n]))) for n in range(100)))) == ["buried"] * 100
    assert ours.housekeep().away_ms == 0
    days = ours.query("SELECT * FROM onceward.sidecar_make_messages('{ours}', '{86400000}', %s)", int(time.time() * 1000))[0]
    assert (days.made, days.busy) == (8, False)
    # Whoever is in the middle of a claim is seen by exports.
    ours.begin()
    ours.claim("m1")
    assert other.value("SELECT count(*) FROM pg_locks WHERE relation = 'onceward.horizon'::regclass AND mode = 'RowExclusiveLock' AND pid = %s",
                       ours.pid) == 1
    ours.commit()
    assert migrated.postgres.query("SELECT proname FROM pg_proc WHERE pronamespace = 'onceward'::regnamespace AND prosrc ~ 'advisory'") == []
    for session in (theirs, ours, other):
        session.close()


def test_an_owner_behind_a_role_option_is_the_one_who_counts(ground):
    """A login that becomes the owner, as a managed service or a group of administrators has it."""
    schema.make_roles(ground.postgres)
    ground.sql("GRANT {owner} TO {mallory}")
    path = ground._path("postgres")
    url = ground.postgres.dsn(user=ground.mallory, options=f"-crole%3D{schema.OWNER}")
    done = run("migrate", "--config", path, "--database", url)
    assert done.returncode == 0 and "was created" in done.text, done.text
    assert ground.postgres.query("SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'onceward'") == [(schema.OWNER,)]
    assert run("migrate", "--config", path, "--database", url).returncode == 0
    assert run("migrate", "--config", path, "--database", ground.postgres.dsn(user=ground.mallory)).returncode == 1
