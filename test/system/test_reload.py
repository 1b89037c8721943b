"""SIGHUP, or `onceward reload`: what is out finishes, and the program starts anew in its own place, with its file as it is then and with
nothing lost or doubled. A file that is not valid changes nothing."""

import copy
import glob
import json
import os
import re
import signal
import subprocess
import threading
import time

import pytest

from rig import process
from rig.bed import merge
from rig.wait import hold_true, wait_until
from test_commands import run

PATIENCE = 40.0


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


def reload(sidecar, config):
    """Answers the line. It is the same process, and the lock was never free."""
    pid, started = sidecar.pid, json.load(open(sidecar.config["state_file"]))["process_started"]
    since = hang_up(sidecar, config)
    line = sidecar.wait_for("reloaded", since=since, deadline=PATIENCE)
    assert line["queues"] == list(config["queues"]) and line["level"] == "info" and line["took_ms"] >= 0
    for name in config["queues"]:
        sidecar.wait_for("consuming", since=since, queue=name, deadline=PATIENCE)
    told = json.load(open(sidecar.config["state_file"]))
    assert sidecar.pid == pid and told["process_started"] == started
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
    """No message is held or queued after the sidecars have ended."""
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


# what takes effect

def test_the_whole_file_takes_effect_in_the_same_process(bed):
    """Queues come, go and are renamed; nothing of the life before is left open."""
    other, config = two_queues(bed)
    alone = merge(config, {"queues": {other.name: None}})
    sidecar = start(bed, alone)
    state = sidecar.config["state_file"]
    before = json.load(open(state))
    other.publish_many(["b1"])
    reload(sidecar, config)
    bed.wait_for_status("b1", "completed", consumer=other.name)
    n_open = len(os.listdir(f"/proc/{sidecar.pid}/fd"))
    reload(sidecar, alone)
    other.wait_for_consumers(0)
    other.publish_many(["b2"])
    renamed = copy.deepcopy(alone)
    renamed["queues"] = {"entry": merge(alone["queues"][bed.queue.name], {"queue": bed.queue.name, "prefetch": 77})}
    renamed["log"]["messages"] = "none"
    renamed["shutdown_grace"] = "7s"
    reload(sidecar, renamed)
    assert sidecar.find("consuming")[-1]["prefetch"] == 77
    bed.queue.publish_many(["a1"])
    bed.wait_for_status("a1", "completed")
    other.wait_for_ready(1)
    after = json.load(open(state))
    assert (after["instance"], after["start"]) == (before["instance"], before["start"] + 3)
    assert (after["reload"]["begun"], after["reload"]["ended"]) == (3, 3)
    wait_until(lambda: len(os.listdir(f"/proc/{sidecar.pid}/fd")) <= n_open, "nothing of the lives before is left open", PATIENCE)
    assert not sidecar.find("completed", message_id="a1") and len(sidecar.find("stopped")) == 0
    assert_once(bed, ["b1", "a1"])
    since = sidecar.mark()
    sidecar.end()
    assert [e["grace_ms"] for e in sidecar.find("draining", since)] == [7000]
    assert json.load(open(state))["ended"]


def test_work_in_flight_finishes_first(bed):
    gate = Gate(bed.app)
    config = bed.config(forward={"concurrency": 2}, token_window="30s")
    sidecar = start(bed, config)
    ids = [f"m{i}" for i in range(6)]
    bed.queue.publish_many(["first"])
    bed.app.wait_for_posts(1)
    gate.open.set()
    bed.wait_for_status("first", "completed")
    gate.open.clear()
    bed.queue.publish_many(ids)
    bed.app.wait_for_posts(3)
    since = hang_up(sidecar, merge(config, {"queues": {bed.queue.name: {"prefetch": 99}}}))
    assert sidecar.wait_for("draining", since=since)["grace_ms"] == 30000, "requests that are out have their window"
    bed.queue.wait_for_ready(4)
    assert not sidecar.find("reloaded") and len(bed.app.posts()) == 3
    gate.open.set()
    sidecar.wait_for("reloaded", since=since)
    assert sidecar.wait_for("consuming", since=since)["prefetch"] == 99
    assert_once(bed, ["first", *ids])
    assert {r.attempt for r in bed.app.posts()} == {1} and len(bed.app.posts()) == 7
    assert_nothing_left(bed)


def test_now_means_the_grace_and_work_that_outlasts_it_is_given_back_uncharged(bed):
    """The next life does it; what the first request still tries changes nothing."""
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
    done = run("reload", "--now", "--state", sidecar.config["state_file"])
    assert done.status == 0 and f"\nreloaded\n  queues: {bed.queue.name}\n" in done.out, done.text
    bed.wait_for_status("m1", "completed")
    gate.set()
    wait_until(lambda: refused, "the first one tried", PATIENCE)
    assert refused == ["OW003"] or refused == ["OW001"]
    assert_once(bed, ["m1"])
    assert [r.attempt for r in bed.app.posts()] == [1, 1]
    assert_nothing_left(bed)


@pytest.mark.short("transaction")
@pytest.mark.parametrize("completion", ["transaction", "response"])
def test_reloads_under_load(bed, completion):
    """Two queues are full of work each time, and the last reload is to another application."""
    second = bed.new_application("-2")
    other, config = two_queues(bed, completion=completion, token_window="60s", prefetch=40)
    ids = {queue: [] for queue in (bed.queue, other)}

    def publish(n):
        for queue, names in ids.items():
            more = [f"{queue.name}-{len(names) + i}" for i in range(n)]
            queue.publish_many(more)
            names += more

    def handler(app):
        def handle(request, reply):
            time.sleep(0.01)
            app.commit(request, complete=completion == "transaction")
            return 204
        return handle

    bed.app.handler, second.handler = handler(bed.app), handler(second)
    sidecar = start(bed, config)
    for url in (bed.app.url, bed.app.url, second.url):
        n = len(bed.app.posts())
        publish(150)
        bed.app.wait_for_posts(n + 60, deadline=PATIENCE)
        config = copy.deepcopy(config)
        for queue in config["queues"].values():
            queue["forward"]["url"] = url
        reload(sidecar, config)
    n_first = len(bed.app.posts())
    assert_once(bed, ids[bed.queue] + ids[other])
    assert len(bed.app.posts()) == n_first and second.posts()
    assert not sidecar.find("dead") and {r.attempt for r in bed.app.posts() + second.posts()} == {1}
    assert_nothing_left(bed)


def test_secrets_are_read_anew(bed, tmp_path):
    secret = tmp_path / "key"
    secret.write_text("s3cret-1\n")
    config = bed.config(forward={"headers": {"X-Key_file": str(secret)}})
    sidecar = start(bed, config)
    secret.write_text("s3cret-2\n")
    bed.queue.publish_many(["m1"])
    assert bed.app.wait_for_posts(1)[0].header("X-Key") == "s3cret-1"
    reload(sidecar, config)
    bed.queue.publish_many(["m2"])
    assert bed.app.wait_for_posts(2)[1].header("X-Key") == "s3cret-2"


# what is not taken

def test_an_invalid_file_changes_nothing_and_every_fault_is_listed(bed):
    config = bed.config()
    sidecar = start(bed, config)
    state = sidecar.config["state_file"]
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
    since = hang_up(sidecar, merge(config, {"state_file": state + ".other"}))
    assert "state_file" in sidecar.wait_for("reload_refused", since=since)["reason"]
    # What the check lets through, and the library refuses that makes the connections.
    since = hang_up(sidecar, merge(config, {"state_file": state, "queues": {bed.queue.name: {"forward": {"url": "http://a;b/"}}}}))
    sidecar.wait_for("reload_refused", since=since)
    assert len(sidecar.find("config_error", since, queue=bed.queue.name)) == 1
    bed.queue.publish_many(["m1"])
    bed.wait_for_status("m1", "completed")
    assert both(bed, sidecar) == before and not sidecar.find("reloaded") and not sidecar.find("draining")
    reload(sidecar, merge(config, {"state_file": state}))


def test_a_file_that_comes_to_have_faults_while_work_finishes_changes_nothing(bed):
    """All has been given back by then: it goes on as it was, and is ready all the while."""
    gate = Gate(bed.app)
    config = bed.config(token_window="30s")
    sidecar = start(bed, config)
    state = sidecar.config["state_file"]
    wait_until(lambda: run("health", "--ready", "--state", state).status == 0, "it is ready", PATIENCE)
    bed.queue.publish_many(["m1"])
    bed.app.wait_for_posts(1)
    since = hang_up(sidecar, merge(config, {"queues": {bed.queue.name: {"prefetch": 77}}}))
    sidecar.wait_for("draining", since=since)
    write(sidecar, merge(config, {"state_file": state, "queues": {bed.queue.name: {"prefetch": 0}}}))
    gate.open.set()
    sidecar.wait_for("reload_refused", since=since)
    assert sidecar.wait_for("consuming", since=since)["prefetch"] == sidecar.find("consuming")[0]["prefetch"]
    assert run("health", "--ready", "--state", state).status == 0
    bed.queue.publish_many(["m2"])
    assert_once(bed, ["m1", "m2"])
    reload(sidecar, merge(config, {"state_file": state, "queues": {bed.queue.name: {"prefetch": 78}}}))
    assert sidecar.find("consuming")[-1]["prefetch"] == 78 and len(sidecar.find("reloaded")) == 1
    assert_nothing_left(bed)


def test_a_signal_before_the_start_waits(bed):
    """The signal does not end the process, which is still reading its configuration and has no handlers yet."""
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


# several things at once

def test_whoever_asks_during_a_reload_is_answered_by_it_with_the_file_as_it_is_then(bed):
    gate = Gate(bed.app)
    config = bed.config(token_window="30s")
    sidecar = start(bed, config)
    state, name = sidecar.config["state_file"], bed.queue.name
    bed.queue.publish_many(["m1"])
    bed.app.wait_for_posts(1)
    since = hang_up(sidecar, merge(config, {"queues": {name: {"prefetch": 77}}}))
    sidecar.wait_for("draining", since=since)
    write(sidecar, merge(config, {"state_file": state, "queues": {name: {"prefetch": 78}}}))
    asked = process.spawn([sidecar.binary, "reload", "--state", state], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    wait_until(lambda: json.load(open(state))["reload"]["begun"] == 2, "it was heard", PATIENCE)
    hold_true(lambda: not sidecar.find("reloaded") and asked.poll() is None, "the first is not over", 0.3)
    gate.open.set()
    sidecar.wait_for("consuming", since=since, prefetch=78)
    assert asked.wait(PATIENCE) == 0 and process.reap(asked) == 0
    assert len(sidecar.find("reloaded")) == 1
    assert_once(bed, ["m1"])
    bed.queue.wait_for_consumers(1)


def test_several_signals_at_once(bed):
    config = bed.config()
    sidecar = start(bed, config)
    write(sidecar, merge(config, {"queues": {bed.queue.name: {"prefetch": 77}}}))
    for _ in range(5):
        sidecar.signal(signal.SIGHUP)
    sidecar.wait_for("consuming", prefetch=77)
    bed.queue.publish_many(["m1"])
    assert_once(bed, ["m1"])
    assert 1 <= len(sidecar.find("reloaded")) <= 5
    bed.queue.wait_for_consumers(1)


def test_sigterm_during_a_reload(bed):
    """The sidecar ends within the grace: a command that waits for the reload learns that it does not happen."""
    config = bed.config(top={"shutdown_grace": "300ms"}, token_window="60s")
    bed.expects_errors = True  # m1 is committed after its token has ended
    gate = Gate(bed.app)
    sidecar = start(bed, config)
    bed.queue.publish_many(["m1"])
    bed.app.wait_for_posts(1)
    since = hang_up(sidecar, merge(config, {"queues": {bed.queue.name: {"prefetch": 77}}}))
    sidecar.wait_for("draining", since=since)
    sidecar.signal(signal.SIGTERM)
    sidecar.wait_for("reload_refused", since=since)
    sidecar.signal(signal.SIGHUP)
    assert sidecar.wait() == 0
    assert not sidecar.find("reloaded") and not sidecar.find("connected", since)
    assert bed.row("m1")["status"] == "waiting"
    gate.open.set()
    bed.queue.wait_for_ready(1)


def test_live_and_ready_during_a_reload(bed):
    """Also when what the new file names is down."""
    gate = Gate(bed.app)
    config = bed.config(token_window="30s")
    sidecar = start(bed, config)
    state = sidecar.config["state_file"]

    def fails():
        return [flag for flag in ("--started", "--live", "--ready") if run("health", flag, "--state", state).status]

    wait_until(lambda: not fails(), "live and ready", PATIENCE)
    bed.queue.publish_many(["m1"])
    bed.app.wait_for_posts(1)
    n_written = json.load(open(state))["written_ms"]
    down = bed.new_application("-down")
    down.refuse()
    other = bed.new_queue("-b")
    since = hang_up(sidecar, {**config, "queues": {name: merge(config["queues"][bed.queue.name], {"forward": {"url": down.url}})
                                                   for name in (bed.queue.name, other.name)}})
    sidecar.wait_for("draining", since=since)
    wait_until(lambda: json.load(open(state))["written_ms"] > n_written + 1500 or fails(), "the state file is kept", PATIENCE)
    assert not fails()
    gate.open.set()
    while not sidecar.find("reloaded", since):
        assert not fails()
    written = json.load(open(state))["written_ms"]
    wait_until(lambda: json.load(open(state))["written_ms"] > written, "the state file is kept", PATIENCE)
    assert {q["queue"]: q["consumed"] for q in json.load(open(state))["queues"]} == {bed.queue.name: True, other.name: False}, (
        "a queue that was reached stays so; the new one waits for its application")
    assert not fails(), "a pod that was ready stays so, while its new application is down"
    assert_once(bed, ["m1"])
    assert run("drain", "--exit", "--state", state).status == 0
    assert sidecar.wait() == 0
