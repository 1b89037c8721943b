"""A pod starts in order, the sidecar first. What is not there yet is waited for, told at info, and no probe holds the others back."""

import os

import pytest
from test_commands import run

from rig.wait import hold_true, wait_until

THINGS = ["database_down", "disconnected", "application_down"]


def loud(sidecar, since=0):
    return [e for e in sidecar.events[since:] if e["level"] not in ("debug", "info")]


def asks(sidecar, question):
    return run("health", question, "--state", sidecar.config["state_file"]).status == 0


class Missing:
    """A bed whose servers and application are not there."""

    def __init__(self, bed):
        self.bed = bed
        self.database, self.broker = bed.new_proxy(bed.postgres.port), bed.new_proxy(bed.rabbitmq.port)
        for link in (self.database, self.broker):
            link.refuse()
        bed.app.refuse()
        self.top = {"broker": {"url": bed.rabbitmq.url(port=self.broker.port)},
                    "database": {"url": bed.postgres.dsn(user="sidecar_login", port=self.database.port)}}

    def sidecar(self, **options):
        return self.bed.sidecar(wait=False, top=self.top, **options)

    def come(self, what):
        {"database_down": self.database.mend, "disconnected": self.broker.mend, "application_down": self.bed.app.start}[what]()


@pytest.fixture
def missing(bed):
    return Missing(bed)


@pytest.mark.parametrize("order", [THINGS, THINGS[::-1]], ids=["servers-first", "application-first"])
def test_a_pod_that_starts_in_order_writes_no_warning(bed, missing, order):
    sidecar = missing.sidecar()
    for reason in THINGS:
        line = sidecar.wait_for("waiting", reason=reason)
        assert line["level"] == "info" and line["detail"] and line["queue"] == bed.queue.name
    assert asks(sidecar, "--started") and asks(sidecar, "--live") and not asks(sidecar, "--ready")
    for reason in order:
        missing.come(reason)
        hold_true(lambda: asks(sidecar, "--started"), "nothing holds the start back", 0.4)
    sidecar.wait_for("consuming", deadline=40)
    bed.queue.publish("m1")
    bed.wait_for_effects(["m1"])
    assert loud(sidecar) == [] and sidecar.find("ready")
    assert all(len(sidecar.find("waiting", reason=reason)) <= 3 for reason in THINGS), "it is said once, and when the reason changes"
    wait_until(lambda: asks(sidecar, "--ready"), "it is ready", 10, 0.1)


def test_what_was_there_once_is_missed_aloud_and_ready_all_the_same(bed, missing):
    for reason in THINGS:
        missing.come(reason)
    sidecar = missing.sidecar()
    sidecar.wait_for("consuming")
    since = sidecar.mark()
    for link in (missing.database, missing.broker):
        link.refuse()
        link.cut()
    for peer in ("database", "broker"):
        assert sidecar.wait_for("disconnected", since=since, peer=peer, deadline=40)["level"] == "warning"
    assert sidecar.wait_for("paused", since=since, reason="database_down")["level"] == "warning"
    assert not sidecar.find("waiting", since)
    wait_until(lambda: asks(sidecar, "--ready"), "it is ready", 10, 0.1)
    hold_true(lambda: all(asks(sidecar, q) for q in ("--started", "--live", "--ready")), "it stays so", 1.5)


def test_a_wait_that_lasts_is_a_warning(bed, missing):
    binary = os.environ.get("ONCEWARD_FAILPOINT_BINARY", "")
    if not os.access(binary, os.X_OK):
        pytest.skip("ONCEWARD_FAILPOINT_BINARY names no program")
    sidecar = missing.sidecar(binary=binary, environment={"ONCEWARD_FAILPOINT": "waiting_ms=1500,redial_last_ms=300"})
    for reason in THINGS:
        first = sidecar.wait_for("waiting", reason=reason)
        assert first["level"] == "info"
        for n in (1, 2):
            line = sidecar.wait_for("waiting", n=n, reason=reason, level="warning")
            assert line["_at"] - first["_at"] > 1.4 * n
    assert {e["event"] for e in loud(sidecar)} == {"waiting"}


REFUSED = {  # the key that is wrong: what the peer says to it, and the line's reason
    "database's password": (lambda bed: {"database": {"url": bed.postgres.dsn(user="with_password"), "password": "wrong"}}, "password authentication failed",
                            "database_down"),
    "database's role": (lambda bed: {"database": {"url": bed.postgres.dsn(user="nobody_at_all")}}, "nobody_at_all", "database_down"),
    "database's name": (lambda bed: {"database": {"url": bed.postgres.dsn(user="sidecar_login", database="none_such")}}, "none_such", "database_down"),
    "broker's password": (lambda bed: {"broker": {"url": bed.rabbitmq.url(), "password": "wrong"}}, "ACCESS_REFUSED", "disconnected"),
    "virtual host": (lambda bed: {"broker": {"url": bed.rabbitmq.url(vhost="none_such")}}, "NOT_ALLOWED", "disconnected"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_refused_login_is_a_warning_at_once(bed, what):
    """Whatever starts later, it does not get better by itself."""
    top, said, reason = REFUSED[what]
    sidecar = bed.sidecar(wait=False, top=top(bed))
    line = sidecar.wait_for("waiting", reason=reason)
    assert line["level"] == "warning" and said in line["detail"], line
    assert "LOCATION" not in line["detail"] and ".c:" not in line["detail"], "what is verbose about it is for nobody"
    assert line["message"].startswith(f"waiting before the first start ({reason}): ")
