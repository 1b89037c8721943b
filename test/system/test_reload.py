"""SIGHUP: the file is read anew. What did not change is not touched, what changed starts again with nothing lost or doubled, and a
file that is not valid changes nothing."""

import copy
import glob
import json
import os
import re
import resource
import signal
import threading
import time

import pytest

from rig.bed import merge
from rig.wait import hold_true, wait_until
from test_commands import run
from test_neighbours import Mortal

PATIENCE = 40.0
LISTS = ("changed_keys", "needs_restart", "unchanged", "changed", "added", "removed")


def write(sidecar, config):
    """As an orchestrator replaces a mounted file: whole."""
    sidecar.config = config if isinstance(config, str) else merge(config, {"state_file": config.get("state_file") or
                                                                          sidecar.config["state_file"]})
    with open(sidecar.config_path + ".next", "w") as f:
        f.write(config if isinstance(config, str) else json.dumps(sidecar.config, indent=1))
    os.rename(sidecar.config_path + ".next", sidecar.config_path)


def hang_up(sidecar, config):
    """Answers the place in the log before it."""
    write(sidecar, config)
    since = sidecar.mark()
    sidecar.signal(signal.SIGHUP)
    return since


def reload(sidecar, config, **lists):
    """Answers the line, which must have these lists, and the others empty but for `unchanged`."""
    since = hang_up(sidecar, config)
    line = sidecar.wait_for("reloaded", since=since, deadline=PATIENCE)
    for name in LISTS:
        if name in lists or name != "unchanged":
            assert line[name] == lists.get(name, []), f"{name} of {line}"
    assert line["level"] == ("warning" if lists.get("needs_restart") else "info")
    return line


def connections(sidecar, port):
    """The sidecar's own ends of its connections to a server: two looks see whether one was made anew."""
    inodes = set()
    for path in glob.glob(f"/proc/{sidecar.pid}/fd/*"):
        try:
            found = re.match(r"socket:\[(\d+)\]", os.readlink(path))
        except OSError:
            continue
        if found:
            inodes.add(found[1])
    ends = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{sidecar.pid}/net/{table}") as f:
            for line in f.readlines()[1:]:
                fields = line.split()
                if fields[9] in inodes and int(fields[2].rpartition(":")[2], 16) == port:
                    ends.add(fields[1] + " " + fields[9])
    return ends


def both(bed, sidecar):
    return connections(sidecar, bed.rabbitmq.port), connections(sidecar, bed.postgres.port)


def two_queues(bed, app=None, **keys):
    other = bed.new_queue("-b")
    config = bed.config(**keys)
    config["queues"][other.name] = merge(config["queues"][bed.queue.name], {"forward": {"url": (app or bed.app).url}})
    return other, config


def start(bed, config):
    """All its queues consume when this returns."""
    sidecar = bed.sidecar(config=config)
    for name in config["queues"]:
        sidecar.wait_for("consuming", queue=name)
    return sidecar


def effects(bed):
    """How often each message took effect, in whatever application."""
    return {r["message_id"]: r["n"] for r in bed.rows("SELECT message_id, count(*)::int AS n FROM app.ledger "
                                                      "WHERE application LIKE %s GROUP BY 1", bed.name + "%")}


def assert_once(bed, ids, deadline=PATIENCE):
    wanted = set(ids)
    wait_until(lambda: wanted <= set(effects(bed)), lambda: f"effects; missing {sorted(wanted - set(effects(bed)))[:5]}", deadline, 0.1)
    found = effects(bed)
    assert {i: n for i, n in found.items() if n != 1} == {}
    assert set(found) == wanted


def assert_nothing_left(bed):
    """Nothing is held and nothing is queued, once the sidecars have ended in peace."""
    for sidecar in bed.sidecars:
        if sidecar.child is not None:
            sidecar.end()
    for queue in bed.queues:
        queue.assert_empty()


class Gate:
    """An application that commits only when it is let."""

    def __init__(self, app):
        self.app = app
        self.open = threading.Event()
        app.handler = self

    def __call__(self, request, reply):
        assert self.open.wait(60)
        return self.app.commit_and_answer(request, reply)


# what takes effect at once

def test_the_log_changes_at_once_and_nothing_else(bed):
    config = bed.config()
    sidecar = start(bed, config)
    before = both(bed, sidecar)
    assert len(before[0]) == len(before[1]) == 1
    quiet = merge(config, {"log": {"level": "warning"}})
    reload(sidecar, quiet, changed_keys=["log.level"], unchanged=[bed.queue.name])
    since = sidecar.mark()
    bed.queue.publish_many(["m1"])
    bed.wait_for_status("m1", "completed")
    hold_true(lambda: sidecar.mark() == since, "no line below the level", 0.6)

    since = sidecar.mark()
    reload(sidecar, merge(config, {"log": {"messages": "none", "stats_interval": "1h"}}),
           changed_keys=["log.level", "log.messages", "log.stats_interval"], unchanged=[bed.queue.name])
    sidecar.wait_for("stats", since=since)  # the last one for an hour
    bed.queue.publish_many(["m2"])
    bed.wait_for_status("m2", "completed")
    line = reload(sidecar, config, changed_keys=["log.messages", "log.stats_interval"])
    bed.queue.publish_many(["m3"])
    sidecar.wait_for("completed", message_id="m3")
    sidecar.wait_for("stats", n=2, since=sidecar.mark())
    assert not sidecar.find("completed", message_id="m2") and line["took_ms"] < 5000
    assert both(bed, sidecar) == before
    assert len(sidecar.find("connected")) == 2 and not sidecar.find("draining")
    assert_once(bed, ["m1", "m2", "m3"])


def test_a_new_grace_holds_for_a_worker_that_runs(bed):
    config = bed.config()
    sidecar = start(bed, config)
    reload(sidecar, merge(config, {"shutdown_grace": "7s"}), changed_keys=["shutdown_grace"], unchanged=[bed.queue.name])
    sidecar.end()
    assert [e["grace_ms"] for e in sidecar.find("draining")] == [7000]


def test_nothing_changed(bed):
    config = bed.config()
    sidecar = start(bed, config)
    before = both(bed, sidecar)
    for _ in range(3):
        reload(sidecar, config, unchanged=[bed.queue.name])
    hold_true(lambda: len(sidecar.find("reloaded")) == 3, "one for each signal", 1.5)
    assert both(bed, sidecar) == before and len(sidecar.find("connected")) == 2


# queues that change

def test_only_the_queue_that_changed_starts_again(bed):
    other, config = two_queues(bed)
    sidecar = start(bed, config)
    before = both(bed, sidecar)
    changed = merge(config, {"queues": {bed.queue.name: {"retry": {"max_attempts": 2}}}})
    key = f"queues.{bed.queue.name}.retry.max_attempts"
    since = sidecar.mark()
    reload(sidecar, changed, changed_keys=[key], changed=[bed.queue.name], unchanged=[other.name])
    sidecar.wait_for("consuming", since=since, queue=bed.queue.name)
    after = both(bed, sidecar)
    for old, new in zip(before, after):
        assert len(old) == len(new) == 2 and len(old & new) == 1
    assert not [e for e in sidecar.events[since:] if e.get("queue") == other.name and e["event"] != "stats"]
    assert len(sidecar.find("drained", since, queue=bed.queue.name)) == 1

    bed.app.handler = lambda request, reply: 500
    for queue, name in ((bed.queue, "here"), (other, "there")):
        queue.publish_many([name])
        bed.wait_for_status(name, "dead", consumer=queue.name)
    assert (len(bed.app.posts("here")), len(bed.app.posts("there"))) == (2, 3)


def test_work_in_flight_finishes_first(bed):
    gate = Gate(bed.app)
    config = bed.config(forward={"concurrency": 2})
    sidecar = start(bed, config)
    ids = [f"m{i}" for i in range(6)]
    bed.queue.publish_many(ids)
    bed.app.wait_for_posts(2)
    since = hang_up(sidecar, merge(config, {"queues": {bed.queue.name: {"prefetch": 99}}}))
    sidecar.wait_for("draining", since=since)
    bed.queue.wait_for_ready(4)
    assert not sidecar.find("reloaded") and len(bed.app.posts()) == 2
    gate.open.set()
    sidecar.wait_for("reloaded", since=since)
    assert sidecar.wait_for("consuming", since=since)["prefetch"] == 99
    assert_once(bed, ids)
    assert {r.attempt for r in bed.app.posts()} == {1} and len(bed.app.posts()) == 6
    order = [e["event"] for e in sidecar.events[since:] if e["event"] in ("draining", "drained", "reloaded", "connected", "consuming")]
    assert order[:2] == ["draining", "drained"]
    assert_nothing_left(bed)


def test_work_that_outlasts_the_grace_is_given_back_uncharged(bed):
    """The successor does it; what the first request still tries changes nothing."""
    gate, refused = threading.Event(), []

    def handler(request, reply):
        if len(bed.app.posts("m1")) > 1:
            return bed.app.commit_and_answer(request, reply)
        assert gate.wait(60)
        refused.append(bed.app.try_commit(request))
        return 500

    bed.app.handler = handler
    config = bed.config(top={"shutdown_grace": "200ms"}, token_window="30s")
    sidecar = start(bed, config)
    bed.queue.publish_many(["m1"])
    bed.app.wait_for_posts(1)
    reload(sidecar, merge(config, {"queues": {bed.queue.name: {"prefetch": 77}}}),
           changed_keys=[f"queues.{bed.queue.name}.prefetch"], changed=[bed.queue.name])
    bed.wait_for_status("m1", "completed")
    gate.set()
    wait_until(lambda: refused, "the first one tried", PATIENCE)
    assert refused == ["OW003"] or refused == ["OW001"]
    assert_once(bed, ["m1"])
    assert [r.attempt for r in bed.app.posts()] == [1, 1]
    assert_nothing_left(bed)


@pytest.mark.parametrize("completion", ["transaction", "response"])
def test_reloads_under_load(bed, completion):
    """Three reloads change one of two queues that are both full of work."""
    other, config = two_queues(bed, top={"shutdown_grace": "60s"}, completion=completion, token_window="60s", prefetch=40)
    ids = {queue: [] for queue in (bed.queue, other)}

    def publish(n):
        for queue, names in ids.items():
            more = [f"{queue.name}-{len(names) + i}" for i in range(n)]
            queue.publish_many(more)
            names += more

    def handler(request, reply):
        time.sleep(0.01)
        bed.app.commit(request, complete=completion == "transaction")
        return 204

    bed.app.handler = handler
    sidecar = start(bed, config)
    before = both(bed, sidecar)
    for attempts in (5, 6, 7):
        n = len(bed.app.posts())
        publish(150)
        bed.app.wait_for_posts(n + 60, deadline=PATIENCE)
        config = merge(config, {"queues": {bed.queue.name: {"retry": {"max_attempts": attempts}}}})
        since = sidecar.mark()
        reload(sidecar, config, changed_keys=[f"queues.{bed.queue.name}.retry.max_attempts"], changed=[bed.queue.name],
               unchanged=[other.name])
        sidecar.wait_for("consuming", since=since, queue=bed.queue.name, deadline=PATIENCE)  # before it is replaced in its turn
    assert_once(bed, ids[bed.queue] + ids[other])
    for old, new in zip(before, both(bed, sidecar)):
        assert len(old & new) == 1
    assert len(sidecar.find("connected", queue=other.name)) == 2 and len(sidecar.find("connected", queue=bed.queue.name)) == 8
    assert not sidecar.find("dead") and {r.attempt for r in bed.app.posts()} == {1}
    assert_nothing_left(bed)


def test_another_application_under_load(bed):
    second = bed.new_application("-2")
    for app in (bed.app, second):
        app.handler = lambda request, reply, app=app: (time.sleep(0.01), app.commit_and_answer(request, reply))[1]
    config = bed.config(prefetch=20)
    sidecar = start(bed, config)
    ids = [f"m{i}" for i in range(300)]
    bed.queue.publish_many(ids)
    bed.app.wait_for_posts(60)
    reload(sidecar, merge(config, {"queues": {bed.queue.name: {"forward": {"url": second.url}}}}),
           changed_keys=[f"queues.{bed.queue.name}.forward.url"], changed=[bed.queue.name])
    n_first = len(bed.app.posts())
    assert_once(bed, ids)
    assert len(bed.app.posts()) == n_first and len(second.posts()) == len(ids) - n_first > 0
    assert_nothing_left(bed)


def test_queues_come_and_go(bed):
    other, config = two_queues(bed)
    alone = merge(config, {"queues": {other.name: None}})
    sidecar = start(bed, alone)
    before = both(bed, sidecar)
    other.publish_many(["b1"])
    since = sidecar.mark()
    reload(sidecar, config, added=[other.name], unchanged=[bed.queue.name])
    sidecar.wait_for("consuming", since=since, queue=other.name)
    bed.wait_for_status("b1", "completed", consumer=other.name)
    reload(sidecar, alone, removed=[other.name], unchanged=[bed.queue.name])
    other.wait_for_consumers(0)
    other.publish_many(["b2"])
    assert both(bed, sidecar) == before
    renamed = copy.deepcopy(alone)
    renamed["queues"] = {"entry": merge(alone["queues"][bed.queue.name], {"queue": bed.queue.name})}
    reload(sidecar, renamed, added=["entry"], removed=[bed.queue.name])
    bed.queue.publish_many(["a1"])
    bed.wait_for_status("a1", "completed")
    other.wait_for_ready(1)
    assert_once(bed, ["b1", "a1"])


def test_a_name_moves_only_when_its_holder_has_ended(bed):
    """With an instance, a new worker takes rows of its consumer name for its own of a former life: it waits for the old one."""
    gate = Gate(bed.app)
    config = bed.config(top={"instance": "pod-1"})
    sidecar = start(bed, config)
    bed.queue.publish_many(["m1"])
    bed.app.wait_for_posts(1)
    renamed = copy.deepcopy(config)
    renamed["queues"] = {"entry": merge(config["queues"][bed.queue.name], {"queue": bed.queue.name})}
    since = hang_up(sidecar, renamed)
    sidecar.wait_for("draining", since=since)
    hold_true(lambda: not sidecar.find("connected", since) and bed.queue.n_consumers <= 1, "the new one waits", 0.5)
    gate.open.set()
    sidecar.wait_for("consuming", since=since, queue="entry")
    assert_once(bed, ["m1"])
    assert [r.attempt for r in bed.app.posts()] == [1]


def test_what_all_queues_depend_on(bed):
    other, config = two_queues(bed)
    sidecar = start(bed, config)
    before = both(bed, sidecar)
    n_open = len(os.listdir(f"/proc/{sidecar.pid}/fd"))
    for more, key in (({"broker": {"heartbeat": "20s"}}, "broker.heartbeat"), ({"database": {"prepared": "off"}}, "database.prepared")):
        config = merge(config, more)
        since = sidecar.mark()
        reload(sidecar, config, changed_keys=[key], changed=[bed.queue.name, other.name], unchanged=[])
        for name in config["queues"]:
            sidecar.wait_for("consuming", since=since, queue=name)
        after = both(bed, sidecar)
        assert [len(x) for x in after] == [2, 2] and not before[0] & after[0] and not before[1] & after[1]
        before = after
    wait_until(lambda: len(os.listdir(f"/proc/{sidecar.pid}/fd")) <= n_open, "nothing of the old workers is left open", PATIENCE)
    for queue in (bed.queue, other):
        queue.publish_many([queue.name + "-m"])
    assert_once(bed, [bed.queue.name + "-m", other.name + "-m"])


def test_secrets(bed, tmp_path):
    """A secret's file is read at every use, so its content is no change; a secret's value is never written."""
    secret = tmp_path / "authorization"
    secret.write_text("Bearer s3cret-1\n")
    config = bed.config(forward={"authorization_file": str(secret), "headers": {"X-Key_file": str(secret)}})
    sidecar = start(bed, config)
    before = both(bed, sidecar)
    headers = f"queues.{bed.queue.name}.forward.headers"
    authorization = f"queues.{bed.queue.name}.forward.authorization"
    secret.write_text("Bearer s3cret-2\n")
    reload(sidecar, config, changed_keys=[headers], changed=[bed.queue.name])
    plain = merge(config, {"queues": {bed.queue.name: {"forward": {"headers": None}}}})
    reload(sidecar, plain, changed_keys=[headers], changed=[bed.queue.name])
    wait_until(lambda: [len(x) for x in both(bed, sidecar)] == [1, 1], "connected", PATIENCE)
    middle = both(bed, sidecar)
    assert not before[0] & middle[0]
    secret.write_text("Bearer s3cret-3\n")
    reload(sidecar, plain, unchanged=[bed.queue.name])
    assert both(bed, sidecar) == middle
    inline = merge(plain, {"queues": {bed.queue.name: {"forward": {"authorization_file": None, "authorization": "Bearer s3cret-4"}}}})
    reload(sidecar, inline, changed_keys=[authorization], changed=[bed.queue.name])
    bed.queue.publish_many(["m1"])
    assert bed.app.wait_for_posts(1)[0].header("Authorization") == "Bearer s3cret-4"


def test_a_killer_is_alone_across_queues_after_a_reload(bed):
    """The application that queues share is known to the workers that were started later, too."""
    other, config = two_queues(bed, completion="response", retry={"max_attempts": 4})
    sidecar = start(bed, config)
    for prefetch in (77, 78):
        config = merge(config, {"queues": {other.name: {"prefetch": prefetch}}})
        reload(sidecar, config, changed_keys=[f"queues.{other.name}.prefetch"], changed=[other.name], unchanged=[bed.queue.name])
        sidecar.wait_for("consuming", queue=other.name, prefetch=prefetch)
    Mortal(bed)
    bed.queue.publish_many(["killer"])
    other.publish_many(["neighbour"])
    bed.wait_for_status("killer", "dead", 60)
    row = bed.wait_for_status("neighbour", "completed", 30, consumer=other.name)
    assert row["attempt"] == 1 and {p.attempt for p in bed.app.posts("neighbour")} == {1}


# what is not taken

def test_an_invalid_file_changes_nothing_and_every_fault_is_listed(bed):
    config = bed.config()
    sidecar = start(bed, config)
    before = both(bed, sidecar)
    bad = merge(config, {"shutdown_grace": "soon", "queues": {bed.queue.name: {"prefetch": 0, "colour": "red"}}})
    since = hang_up(sidecar, bad)
    refused = sidecar.wait_for("reload_refused", since=since)
    assert refused["level"] == "error" and "onceward check" in refused["advice"]
    paths = {e["path"] for e in sidecar.find("config_error", since)}
    assert paths == {"shutdown_grace", f"queues.{bed.queue.name}.prefetch", f"queues.{bed.queue.name}.colour"}
    since = hang_up(sidecar, "{")
    sidecar.wait_for("reload_refused", since=since)
    assert len(sidecar.find("config_error", since)) == 1
    os.unlink(sidecar.config_path)
    since = sidecar.mark()
    sidecar.signal(signal.SIGHUP)
    sidecar.wait_for("reload_refused", since=since)
    bed.queue.publish_many(["m1"])
    bed.wait_for_status("m1", "completed")
    assert both(bed, sidecar) == before and not sidecar.find("reloaded")
    sidecar.config = config
    reload(sidecar, config | {"state_file": os.path.join(bed.folder, sidecar.name + ".state")}, unchanged=[bed.queue.name])


def test_a_queue_that_could_not_be_started_is_refused_before_any_is_drained(bed):
    """The check of URLs lets through what the library refuses that makes the connections."""
    other, config = two_queues(bed)
    sidecar = start(bed, config)
    before = both(bed, sidecar)
    queues = {bed.queue.name: {"prefetch": 77}, other.name: {"forward": {"url": "http://a;b/"}}}
    since = hang_up(sidecar, merge(config, {"log": {"level": "error"}, "queues": queues}))
    sidecar.wait_for("reload_refused", since=since)
    assert len(sidecar.find("config_error", since, queue=other.name)) == 1
    assert both(bed, sidecar) == before and not sidecar.find("draining")
    sidecar.wait_for("stats", since=sidecar.mark())
    reload(sidecar, config, unchanged=[bed.queue.name, other.name])


def test_a_signal_before_the_start_waits(bed):
    """It does not end the process, whose signals nobody listens to yet: it is in the middle of reading its configuration."""
    pipe = os.path.join(bed.folder, "key")
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)
    sidecar = bed.sidecar(wait=False, forward={"headers": {"X-Key_file": pipe}})
    try:
        wait_until(lambda: any(os.path.realpath(fd) == os.path.realpath(pipe) for fd in glob.glob(f"/proc/{sidecar.pid}/fd/*")),
                   "it reads the key", PATIENCE)
        sidecar.signal(signal.SIGHUP)
        hold_true(lambda: sidecar.child.poll() is None, "it lives", 0.2)
        os.write(writer, b"key")
    finally:
        os.close(writer)
    sidecar.wait_for("reload_refused")  # the pipe is empty now
    sidecar.wait_for("consuming")
    bed.queue.publish_many(["m1"])
    assert_once(bed, ["m1"])
    assert bed.app.posts()[0].header("X-Key") == "key"


def test_what_needs_a_restart_is_named_and_the_rest_is_applied(bed):
    config = bed.config(top={"instance": "pod-1"})
    sidecar = start(bed, config)
    state = sidecar.config["state_file"]
    changed = merge(sidecar.config, {"instance": "pod-2", "state_file": state + ".other", "queues": {bed.queue.name: {"prefetch": 77}}})
    for again in (False, True):
        since = hang_up(sidecar, changed)
        line = sidecar.wait_for("reloaded", since=since)
        assert line["needs_restart"] == ["instance", "state_file"] and line["level"] == "warning"
        assert line["changed"] == ([] if again else [bed.queue.name])
    sidecar.wait_for("consuming", prefetch=77)
    assert not os.path.exists(state + ".other")
    bed.queue.publish_many(["m1"])
    assert bed.wait_for_status("m1", "completed")["claimed_by"].startswith("pod-1/")
    reload(sidecar, merge(changed, {"instance": None, "state_file": state}), needs_restart=["instance"])
    sidecar.end()
    assert json.load(open(state))["ended"]


# several things at once

def test_a_signal_during_a_reload_is_remembered(bed):
    gate = Gate(bed.app)
    config = bed.config()
    sidecar = start(bed, config)
    bed.queue.publish_many(["m1"])
    bed.app.wait_for_posts(1)
    name = bed.queue.name
    since = hang_up(sidecar, merge(config, {"queues": {name: {"prefetch": 77}}}))
    sidecar.wait_for("draining", since=since)
    last = merge(config, {"queues": {name: {"prefetch": 78}}})
    hang_up(sidecar, last)
    hang_up(sidecar, last)
    hold_true(lambda: not sidecar.find("reloaded"), "the first is not over", 0.3)
    gate.open.set()
    sidecar.wait_for("reloaded", n=2, since=since)
    sidecar.wait_for("consuming", since=since, prefetch=78)
    assert [e["changed"] for e in sidecar.find("reloaded")] == [[name], [name]]
    assert_once(bed, ["m1"])
    bed.queue.wait_for_consumers(1)


def test_two_signals_at_once(bed):
    config = bed.config()
    sidecar = start(bed, config)
    write(sidecar, merge(config, {"queues": {bed.queue.name: {"prefetch": 77}}}))
    for _ in range(5):
        sidecar.signal(signal.SIGHUP)
    sidecar.wait_for("consuming", prefetch=77)
    bed.queue.publish_many(["m1"])
    assert_once(bed, ["m1"])
    assert 1 <= len(sidecar.find("reloaded")) <= 5 and len(sidecar.find("connected")) == 4


@pytest.mark.parametrize("removed", [False, True], ids=["changed", "removed"])
def test_sigterm_during_a_reload(bed, removed):
    gate = Gate(bed.app)
    other, config = two_queues(bed)
    sidecar = start(bed, config)
    bed.queue.publish_many(["a1"])
    other.publish_many(["b1"])
    bed.app.wait_for_posts(2)
    since = hang_up(sidecar, merge(config, {"queues": {bed.queue.name: None if removed else {"prefetch": 77}}}))
    sidecar.wait_for("draining", since=since, queue=bed.queue.name)
    sidecar.signal(signal.SIGTERM)
    sidecar.wait_for("draining", since=since, queue=other.name)
    sidecar.signal(signal.SIGHUP)
    sidecar.wait_for("reload_refused", since=since)
    gate.open.set()
    assert sidecar.wait() == 0
    assert not sidecar.find("reloaded") and not sidecar.find("connected", since)
    assert len(sidecar.find("drained", since)) == 2
    assert_once(bed, ["a1", "b1"])
    assert_nothing_left(bed)


def test_live_and_ready_during_a_reload(bed):
    gate = Gate(bed.app)
    other, config = two_queues(bed)
    alone = merge(config, {"queues": {other.name: None}})
    sidecar = start(bed, alone)
    state = sidecar.config["state_file"]

    def fails():
        return [flag for flag in ("--live", "--ready") if run("health", flag, "--state", state).status]

    wait_until(lambda: not fails(), "live and ready", PATIENCE)
    bed.queue.publish_many(["m1"])
    bed.app.wait_for_posts(1)
    n_written = json.load(open(state))["written_ms"]
    since = hang_up(sidecar, merge(config, {"queues": {bed.queue.name: {"prefetch": 77}}}))
    sidecar.wait_for("draining", since=since)
    sidecar.wait_for("consuming", since=since, queue=other.name)
    wait_until(lambda: json.load(open(state))["written_ms"] > n_written + 1500 or fails(), "the state file is kept", PATIENCE)
    assert not fails()
    assert {q["queue"] for q in json.load(open(state))["queues"]} == {bed.queue.name, other.name}
    gate.open.set()
    while not sidecar.find("consuming", since, queue=bed.queue.name):
        assert not fails()
    sidecar.wait_for("reloaded", since=since)
    assert not fails()
    assert_once(bed, ["m1"])

    down = bed.new_application("-down")
    down.refuse()
    since = hang_up(sidecar, merge(config, {"queues": {bed.queue.name: {"forward": {"url": down.url}}}}))
    sidecar.wait_for("reloaded", since=since)
    written = json.load(open(state))["written_ms"]
    wait_until(lambda: json.load(open(state))["written_ms"] > written, "the state file is kept", PATIENCE)
    assert not fails(), "a pod that was ready stays so, while its new application is down"
    assert run("drain", "--exit", "--state", state).status == 0
    assert sidecar.wait() == 0


def test_a_queue_that_cannot_be_started_after_a_reload_is_said_again_and_again(bed):
    """Files run out between the check of the new configuration and the start with it."""
    gate = Gate(bed.app)
    config = bed.config()
    sidecar = start(bed, config)
    state = sidecar.config["state_file"]
    bed.queue.publish_many(["m1"])
    bed.app.wait_for_posts(1)
    other = bed.new_queue("-b")
    moved = copy.deepcopy(config)
    moved["queues"] = {other.name: merge(config["queues"][bed.queue.name], {"queue": other.name, "consumer": bed.queue.name,
                                                                                "takes_over": bed.queue.name})}
    since = hang_up(sidecar, moved)
    sidecar.wait_for("draining", since=since)
    before = resource.prlimit(sidecar.pid, resource.RLIMIT_NOFILE)
    signals = next(int(fd) for fd in os.listdir(f"/proc/{sidecar.pid}/fd")
                   if "signalfd" in os.readlink(f"/proc/{sidecar.pid}/fd/{fd}"))
    resource.prlimit(sidecar.pid, resource.RLIMIT_NOFILE, (signals + 3, before[1]))  # its lock, and one more: the state file is still written
    gate.open.set()
    line = sidecar.wait_for("config_error", since=since, n=3, queue=other.name)
    assert "next_try_ms" in line and line["reason"]
    line = sidecar.wait_for("reloaded", since=since)
    assert line["not_started"] == [other.name] and line["level"] == "warning"
    wait_until(lambda: "could not be started" in run("health", "--ready", "--state", state).out, "it is not ready", PATIENCE)
    assert run("health", "--live", "--state", state).status == 0
    resource.prlimit(sidecar.pid, resource.RLIMIT_NOFILE, before)
    since = sidecar.mark()
    sidecar.wait_for("consuming", since=since, queue=other.name)
    wait_until(lambda: run("health", "--ready", "--state", state).status == 0, "it is ready", PATIENCE)
    other.publish_many(["m2"])
    assert_once(bed, ["m1", "m2"])
