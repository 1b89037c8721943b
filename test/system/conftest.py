"""Fixtures of the system tests. See rig/ for what they hand out.

The servers are started once, by the process that was called, and are shared by all workers of pytest-xdist through the
environment; each worker has a database of its own. ONCEWARD_BINARY names the program under test, ONCEWARD_RELEASE_BINARY
one without sanitizers for the tests that measure."""

import json
import os
import sys
import uuid

import pytest

sys.path.insert(0, os.path.dirname(__file__))

from rig import order, process, schema, servers, sessions  # noqa: E402
from rig.bed import Bed  # noqa: E402

SERVERS = "ONCEWARD_TEST_SERVERS"
_started = None


def pytest_addoption(parser):
    parser.addoption("--keep-servers", action="store_true", help="leave the folder with the servers' logs")


def pytest_configure(config):
    config.addinivalue_line("markers", "alone: compares times or measures, so nothing may run beside it")
    config.addinivalue_line("markers", "deploy: what deploy/ ships; test/run leaves it to test/run --all")
    config.addinivalue_line("markers", "long: costly, of an area that is seldom touched; test/run leaves it to test/run --all")
    config.addinivalue_line("markers", "short(*cases): of the cases of this test, those that are not long")


def mark_long(items):
    """The cases that a `short` does not name are long."""
    missing = {}
    for item in items:
        marker = item.get_closest_marker("short")
        if not marker or not hasattr(item, "callspec"):
            continue
        left = missing.setdefault(item.nodeid.partition("[")[0], set(marker.args))
        left.discard(item.callspec.id)
        if item.callspec.id not in marker.args:
            item.add_marker(pytest.mark.long)
    wrong = [f"{name}[{case}]" for name, cases in missing.items() for case in cases]
    if wrong and not any("::" in argument for argument in items[0].config.args):
        raise pytest.UsageError("marked as short, but there is no such case: " + ", ".join(wrong))


@pytest.hookimpl(tryfirst=True)  # xdist looks at the groups after it
def pytest_collection_modifyitems(items):
    mark_long(items)
    order.share_servers(items)
    order.put_longest_first(items)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session):
    global _started
    if SERVERS in os.environ or session.config.option.collectonly:
        return
    process.interrupt_on_signals()
    _started = servers.Servers()
    try:
        _started.start()
    except BaseException:
        _started.stop(keep=True)
        raise
    os.environ[SERVERS] = json.dumps(_started.describe())


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    global _started
    if _started:
        _started.stop(keep=config.option.keep_servers)
        os.environ.pop(SERVERS, None)
        _started = None


def pytest_runtest_logreport(report):
    """The names of those that failed, each with what it said, for test/suite.py; with pytest-xdist the process that was called hears of all."""
    listed = os.environ.get("ONCEWARD_TEST_FAILED")
    if report.failed and listed and "PYTEST_XDIST_WORKER" not in os.environ:
        head, bracket, tail = report.nodeid.rpartition("]")
        with open(listed, "a") as f:
            said = getattr(getattr(report.longrepr, "reprcrash", None), "message", "").split("\n")[0][:200]
            f.write((head + bracket if bracket else tail.rpartition("@")[0] or tail) + "\t" + said + "\n")


@pytest.fixture(scope="session")
def described_servers():
    return json.loads(os.environ[SERVERS])


@pytest.fixture(scope="session")
def rabbitmq(described_servers):
    """The shared broker: url(), connect(), rabbitmqctl(…). Never restart it: other tests use it."""
    return servers.RabbitMQ.described(described_servers["rabbitmq"])


@pytest.fixture(scope="session")
def raw_postgres(described_servers):
    """The shared database server, without a schema: create_database(name)."""
    return servers.PostgreSQL.described(described_servers["postgres"])


@pytest.fixture(scope="session")
def worker_database(raw_postgres):
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    made = schema.database(raw_postgres, f"onceward_{worker}_{uuid.uuid4().hex[:6]}")
    made.sessions = sessions.Sessions(made)
    return made


@pytest.fixture
def postgres(worker_database):
    """This worker's database: dsn(), connect(), query(). Migrated as soon as the program exists."""
    return schema.ensure(worker_database)


@pytest.fixture
def fresh_postgres(raw_postgres):
    """A database for one test alone, migrated like `postgres`."""
    database = schema.database(raw_postgres, f"fresh_{uuid.uuid4().hex[:8]}")
    yield database
    raw_postgres.query(f'DROP DATABASE "{database.database}" WITH (FORCE)', database="postgres")


@pytest.fixture(scope="session")
def kept_database(raw_postgres):
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    return schema.database(raw_postgres, f"kept_{worker}_{uuid.uuid4().hex[:6]}")


@pytest.fixture
def emptied_postgres(kept_database):
    """A database without rows, for a test that leaves the schema and its grants as they are: a tenth of the cost of `fresh_postgres`."""
    schema.empty(kept_database)
    return kept_database


@pytest.fixture(scope="session")
def certificates(described_servers):
    return servers.Certificates(described_servers["rabbitmq"]["certificates"])


@pytest.fixture
def bed(request, tmp_path, postgres, rabbitmq):
    """A queue, an application with its ledger, and sidecars: see rig/bed.py."""
    schema.require_binary()
    made = Bed(request.node.name, tmp_path, postgres, rabbitmq)
    request.node.bed = made
    yield made
    made.deinit()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A failure shows the sidecars' logs and the ends of the servers' logs."""
    report = (yield).get_result()
    if report.failed and hasattr(item, "bed"):
        report.sections += item.bed.report()
    if report.failed and call.when == "call" and SERVERS in os.environ:
        described = json.loads(os.environ[SERVERS])
        report.sections.append(("PostgreSQL", process.tail(servers.PostgreSQL.described(described["postgres"]).log, 15)))
        report.sections.append(("RabbitMQ", process.tail(servers.RabbitMQ.described(described["rabbitmq"]).log, 10)))
