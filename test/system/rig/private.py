"""Database servers that a test may break, and beds on them. A test file imports the fixtures that it uses.

The broker stays the shared one."""

import os
import shutil
import tempfile

import psycopg2
import pytest

from . import schema, servers
from .bed import Bed


class Private:
    """Makes servers in one temporary folder and ends them."""

    def __init__(self, certificates):
        self.folder = tempfile.mkdtemp(prefix="onceward-private-")
        os.chmod(self.folder, 0o755)
        self.certificates = certificates
        self.made = []

    def postgres(self, **options):
        """A migrated server. options: see PostgreSQL.init."""
        server = self.unstarted()
        server.init(**options).start()
        schema.migrate(server)
        return server

    def unstarted(self):
        server = servers.PostgreSQL(os.path.join(self.folder, f"postgresql{len(self.made)}"), self.certificates)
        self.made.append(server)
        return server

    def stop(self):
        for server in self.made:
            server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def private(certificates):
    """Servers for one test alone."""
    schema.require_binary()
    made = Private(certificates)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def private_postgres(certificates):
    """A server for the tests of a file; each must leave it running and unchanged."""
    schema.require_binary()
    made = Private(certificates)
    try:
        yield made.postgres()
    finally:
        made.stop()


@pytest.fixture
def bed_on(request, tmp_path, rabbitmq):
    """Makes a bed on the given server. Its applications keep no connections, so none is stale after a restart."""
    beds = []

    def make(postgres):
        bed = PatientBed(request.node.name, tempfile.mkdtemp(dir=tmp_path), postgres, rabbitmq)
        beds.append(bed)
        request.node.bed = bed
        return bed

    yield make
    for bed in beds:
        bed.deinit()


class PatientBed(Bed):
    """A bed whose database may be away: its handlers may fail, and looking waits. Its sidecars use TLS, as the default of libpq is."""

    DATABASE = {}

    def __init__(self, *parts):
        super().__init__(*parts)
        self.expects_errors = True
        self.answered = []  # the message ids that were answered with 204, for `completion: response`
        self.app.give_back = lambda database: database.close()

    def rows(self, sql, *parameters):
        return patiently(lambda: super(PatientBed, self).rows(sql, *parameters))

    def answer(self, request, reply):
        """An application of `completion: response` that needs no database."""
        self.answered.append(request.message_id)
        return 204

    def assert_answered_once(self, ids):
        """No message was sent again after its answer; all rows say so."""
        assert sorted(self.answered) == sorted(ids)
        assert self.statuses() == {"completed": len(ids)}


def patiently(work, deadline=120.0):
    from .wait import wait_until
    answers = []

    def attempt():
        try:
            answers.append(work())
            return True
        except psycopg2.OperationalError:
            return False

    wait_until(attempt, "the database answers", deadline, 0.1)
    return answers[0]
