"""Shared by the tests of the outbox's functions: a server that may be killed, a database of its own for each test, and sessions in it."""

import uuid

import pytest

from . import inbox_sql
from .inbox_sql import Application
from .outbox import Relay
from .private import Private


def database_on(server):
    made = server.create_database(f"outbox_{uuid.uuid4().hex[:8]}")
    inbox_sql.load(made)
    return made


def drop(database):
    database.query(f'DROP DATABASE "{database.database}" WITH (FORCE)', database="postgres")


@pytest.fixture(scope="module")
def shared(raw_postgres):
    """For what publish answers, which leaves nothing behind that another test would mind."""
    made = database_on(raw_postgres)
    yield made
    drop(made)


@pytest.fixture
def sessions():
    made = []

    def make(kind, *arguments, **named):
        made.append(kind(*arguments, **named))
        return made[-1]

    yield make
    for session in made:
        session.close()


@pytest.fixture
def relay(pg, sessions):
    return sessions(Relay, pg)


@pytest.fixture
def app(pg, sessions):
    return sessions(Application, pg)


@pytest.fixture(scope="module")
def server(certificates):
    """A server that may be killed."""
    made = Private(certificates)
    try:
        server = made.unstarted().init().start()
        yield server
    finally:
        made.stop()


@pytest.fixture
def pg(server):
    """On a server of its own: a transaction that writes, in any database of a server, keeps the tables from being emptied."""
    if server.child is None:
        server.start()
    made = database_on(server)
    made.server = server
    yield made
    if server.child is None:
        server.start()
    for name, in made.query("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
        made.query("ROLLBACK PREPARED %s", (name,))
    drop(made)


def publish(session, message_id, exchange="e", body="1"):
    return session.value("SELECT onceward.publish(%s, 'r', %s::jsonb, %s)", exchange, body, message_id)
