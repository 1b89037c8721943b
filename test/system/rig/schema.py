"""The schema in a test database: `onceward migrate`, and the roles of a real installation.

`onceward_owner` owns the schema and is no superuser; sidecars log in as `sidecar_login`, applications as `app_login`: so every test also
shows that the grants suffice."""

import contextlib
import fcntl
import json
import os
import subprocess
import tempfile

import pytest


def binary():
    return os.environ.get("ONCEWARD_BINARY", "")


def require_binary():
    if not os.access(binary(), os.X_OK):
        pytest.skip("ONCEWARD_BINARY names no program")
    return binary()


def quick_binary():
    """The release build where there is one. A hundred starts with sanitizers cost seconds, and find no more than a few do."""
    release = os.environ.get("ONCEWARD_RELEASE_BINARY", "")
    return release if os.access(release, os.X_OK) else require_binary()


def minimal_config(dsn, broker_url="amqp://guest:guest@127.0.0.1:1/"):
    return {"broker": {"url": broker_url}, "database": {"url": dsn},
            "queues": {"none": {"forward": {"url": "http://127.0.0.1:1/"}}}}


OWNER = "onceward_owner"


def _make_owner(postgres):
    for role, kind in ((OWNER, "LOGIN"), ("onceward_sidecar", "NOLOGIN"), ("onceward_app", "NOLOGIN")):
        if not postgres.query("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)):
            postgres.query(f"CREATE ROLE {role} {kind}")
    postgres.query(f'GRANT CREATE ON DATABASE "{postgres.database}" TO {OWNER}')


def _make_logins(postgres):
    for login, role in (("sidecar_login", "onceward_sidecar"), ("app_login", "onceward_app")):
        if not postgres.query("SELECT 1 FROM pg_roles WHERE rolname = %s", (login,)):
            postgres.query(f"CREATE ROLE {login} LOGIN IN ROLE {role}")
    postgres.query("GRANT pg_read_all_stats TO sidecar_login")  # as an administrator may: nothing else gives it


@contextlib.contextmanager
def _alone(postgres):
    """Roles belong to the cluster: one at a time makes them."""
    with open(os.path.join(postgres.folder, "migrate.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make_roles(postgres):
    """The roles that the README's set-up makes, with what they need in this database."""
    with _alone(postgres):
        _make_owner(postgres)
        _make_logins(postgres)


def migrate(postgres, user=OWNER):
    """Runs `onceward migrate` as its owner and makes the roles."""
    with tempfile.TemporaryDirectory() as folder, _alone(postgres):
        _make_owner(postgres)
        path = os.path.join(folder, "config.json")
        with open(path, "w") as f:
            json.dump(minimal_config(postgres.dsn(user=user)), f)
        done = subprocess.run([require_binary(), "migrate", "--config", path], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
        assert done.returncode == 0, "onceward migrate: " + done.stdout.decode(errors="replace")
        _make_logins(postgres)
        postgres.query("CREATE SCHEMA IF NOT EXISTS app AUTHORIZATION app_login")
        postgres.query("CREATE TABLE IF NOT EXISTS app.ledger (application text NOT NULL, message_id text NOT NULL, note text,"
                       " at timestamptz NOT NULL DEFAULT clock_timestamp())")
        postgres.query("ALTER TABLE app.ledger OWNER TO app_login")
    postgres.is_migrated = True
    return done.stdout.decode(errors="replace")


TEMPLATE = "onceward_template"


def database(postgres, name):
    """A new database with the schema, where the program exists: a copy of one that was migrated once, which costs a seventh."""
    if not os.access(binary(), os.X_OK):
        return postgres.create_database(name)
    with open(os.path.join(postgres.folder, "template.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not postgres.query("SELECT 1 FROM pg_database WHERE datname = %s", (TEMPLATE,), database="postgres"):
            begun = f"{TEMPLATE}_begun"
            postgres.query(f"DROP DATABASE IF EXISTS {begun} WITH (FORCE)", database="postgres")
            made = postgres.create_database(begun)
            migrate(made)
            made.close_looks()
            postgres.query(f"ALTER DATABASE {begun} RENAME TO {TEMPLATE}", database="postgres")
    made = postgres.create_database(name, TEMPLATE)
    made.query(f'GRANT CREATE ON DATABASE "{name}" TO {OWNER}')
    made.is_migrated = True
    return made


# Filled by the migration itself, and not by what the tests with an emptied database do.
KEPT_ROWS = ("schema_version", "outbox", "outbox_position")


def empty(postgres):
    """Deletes the rows of all tables; TRUNCATE would cost six times as much."""
    if not getattr(postgres, "tables", None):
        postgres.tables = [name for name, in postgres.query(
            "SELECT oid::regclass::text FROM pg_class WHERE relnamespace IN ('onceward'::regnamespace, 'app'::regnamespace)"
            " AND relkind IN ('r', 'p') AND NOT relispartition AND relname <> ALL (%s)", (list(KEPT_ROWS),))]
    postgres.query("; ".join(f"DELETE FROM {name}" for name in postgres.tables))


def ensure(postgres):
    """Migrates where it was not done yet and the program exists."""
    if not getattr(postgres, "is_migrated", False) and os.access(binary(), os.X_OK):
        migrate(postgres)
    return postgres
