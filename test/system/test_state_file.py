"""The state file on the sidecar's side: one sidecar at a time has it, it carries the sidecar's name through its restarts, and one that
cannot be written is an error."""

import json
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import time

import pytest
from test_commands import ENVIRONMENT, Place, good, place, run  # noqa: F401 - a fixture
from test_drain import told

from rig import process, schema
from rig.application import Gate
from rig.bed import merge
from rig.wait import hold_true, wait_until


def written(sidecar):
    """The first word of its present life."""
    def its_own():
        try:
            return told(sidecar) if told(sidecar)["pid"] == sidecar.pid else None
        except (OSError, ValueError):
            return None
    return wait_until(its_own, "its state is written", 20)


# one at a time

def test_a_second_sidecar_with_the_file_is_refused_and_names_the_first(bed):
    first = bed.sidecar()
    state = first.config["state_file"]
    second = bed.sidecar(config=merge(first.config, {}), start=False)
    second.start()
    assert second.wait() == 1
    line, = second.find("state_file_failed")
    assert (line["level"], line["path"]) == ("error", state) and f"another sidecar, process {first.pid}, runs with it" == line["reason"]
    assert second.find("stopped", status=1) and not second.find("started") and not second.find("connected")
    assert told(first)["pid"] == first.pid
    bed.queue.wait_for_consumers(1)
    since = first.mark()
    wait_until(lambda: run("health", "--ready", "--state", state).status == 0, "the first is not harmed", 10, 0.1)
    first.kill()
    assert os.path.exists(state + ".lock")
    second.start()
    second.wait_for("consuming")
    assert not first.find("state_file_failed", since)


def test_a_lock_that_is_removed_is_taken_again(bed):
    """An operator removes the file: a second sidecar must not run with it for long."""
    sidecar = bed.sidecar()
    state = sidecar.config["state_file"]
    os.unlink(state + ".lock")
    wait_until(lambda: os.path.exists(state + ".lock"), "it is there again")
    second = bed.sidecar(config=merge(sidecar.config, {}), start=False)
    second.start()
    assert second.wait() == 1 and str(sidecar.pid) in second.find("state_file_failed")[0]["reason"]
    assert good("drain", "--state", state).endswith("drained\n")


def test_the_file_beside_it_is_for_its_own_user_and_nothing_is_written_through_a_link(bed):
    sidecar = bed.sidecar(start=False)
    state = sidecar.config["state_file"]
    victim = os.path.join(bed.folder, "victim")
    with open(victim, "w") as f:
        f.write("precious")
    os.symlink(victim, state)
    for name in (".next", ".1", f".{os.getpid()}"):
        os.symlink(victim, state + name)
    sidecar.start()
    sidecar.wait_for("consuming")
    written(sidecar)
    with open(victim) as f:
        assert f.read() == "precious"
    assert not os.path.islink(state) and stat.S_IMODE(os.stat(state + ".lock").st_mode) == 0o600
    assert sidecar.end() is None

    os.unlink(state + ".lock")
    os.symlink(victim, state + ".lock")
    sidecar.start()
    line = sidecar.wait_for("state_file_failed")
    assert line["level"] == "error" and ".lock" in line["reason"]
    sidecar.wait_for("consuming", n=2)  # it works on, without it
    with open(victim) as f:
        assert f.read() == "precious"


# the name

@pytest.mark.parametrize("end", ["term", "kill", "drain"])
def test_a_sidecar_keeps_its_name_through_restarts_and_each_start_raises_its_number(bed, end):
    sidecar = bed.sidecar()
    names = set()
    for n in (1, 2, 3):
        seen = written(sidecar)
        assert seen["start"] == n
        names |= {seen["instance"], sidecar.find("started")[-1]["instance"]}
        bed.queue.publish(f"m{n}")
        assert bed.wait_for_status(f"m{n}", "completed")["claimed_by"].split("/")[0] == seen["instance"]
        if end == "kill":
            sidecar.kill()
        elif end == "term":
            assert sidecar.term() == 0
        else:
            good("drain", "--state", sidecar.config["state_file"])
            assert sidecar.term() == 0
        sidecar.start()
        sidecar.wait_for("consuming", n=n + 1)
    assert len(names) == 1


def test_the_name_is_the_configured_one_and_another_begins_anew(bed):
    sidecar = bed.sidecar(top={"instance": "pod-1"})
    for name, start in (("pod-1", 1), ("pod-1", 2), ("pod-2", 1), ("pod-2", 2), (None, 3)):
        assert (written(sidecar)["instance"], written(sidecar)["start"]) == (name or "pod-2", start)
        sidecar.kill()
        sidecar.config = merge(sidecar.config, {"instance": {("pod-1", 2): "pod-2", ("pod-2", 2): None}.get((name, start), name)})
        sidecar.start()
        sidecar.wait_for("consuming", n=sidecar.n_starts)


@pytest.mark.parametrize("left", [b"", b"\0\0\0", b"{", b'{"instance": 5, "start": "x"}', b'{"pid": 1, "ended": true, "status": 0, "instance": "", "start": -5}',
                                  b'{"pid": 1, "ended": true, "status": 0, "instance": "a", "start": 9223372036854775807}'])
def test_what_is_left_there_may_be_anything(bed, left):
    sidecar = bed.sidecar(start=False)
    with open(sidecar.config["state_file"], "wb") as f:
        f.write(left)
    sidecar.start()
    sidecar.wait_for("consuming")
    seen = written(sidecar)
    assert seen["instance"] and seen["start"] == 1


def test_two_sidecars_make_themselves_different_names(bed):
    assert len({written(bed.sidecar())["instance"] for _ in range(3)}) == 3


# not to be written

def test_a_file_that_cannot_be_written_is_an_error_and_the_messages_go_on(bed):
    sidecar = bed.sidecar(top={"state_file": "/proc/onceward/state"})
    line, = sidecar.find("state_file_failed")
    assert line["level"] == "error" and line["path"] == "/proc/onceward/state" and not sidecar.find("limits")
    bed.queue.publish("m1")
    bed.wait_for_effects(["m1"])
    assert sidecar.term() == 0


def test_a_file_that_comes_to_be_unwritable_is_an_error_once_and_again_after_it_was_well(bed):
    folder = os.path.join(bed.folder, "run")
    sidecar = bed.sidecar(top={"state_file": os.path.join(folder, "state")})
    for n in (1, 2):
        written(sidecar)
        assert len(sidecar.find("state_file_failed")) == n - 1
        os.rename(folder, folder + ".away")
        with open(folder, "w"):  # in its place, so that root cannot write there either
            pass
        line = sidecar.wait_for("state_file_failed", n=n)
        assert line["level"] == "error" and line["path"] == sidecar.config["state_file"]
        hold_true(lambda: len(sidecar.find("state_file_failed")) == n, "it is said once", 1.2)
        os.unlink(folder)
        os.rename(folder + ".away", folder)
        before = os.stat(sidecar.config["state_file"]).st_mtime_ns
        wait_until(lambda: os.stat(sidecar.config["state_file"]).st_mtime_ns > before, "it is written again")
        wait_until(lambda: run("health", "--live", "--state", sidecar.config["state_file"]).status == 0, "it is live", 10, 0.1)
    assert good("drain", "--state", sidecar.config["state_file"]).endswith("drained\n")


def test_check_tries_it(place):  # noqa: F811
    path = os.path.join(str(place.folder), "folder", "state")
    done = run("check", "--connect", "--config", place.write(top={"state_file": path}))
    assert f"ok   state file: {path}: can be written\n" in done.out, done.text
    assert not os.path.exists(os.path.dirname(path)), "nothing is left behind"
    done = run("check", "--connect", "--config", place.write(top={"state_file": "/proc/onceward/state"}))
    assert done.status == 1 and "FAIL state file: /proc/onceward/state: " in done.out, done.text
    done = run("check", "--connect", "--config", place.write(top={"state_file": str(place.folder)}))
    assert done.status == 1 and f"FAIL state file: {place.folder}: " in done.out, done.text


def test_check_says_who_has_it(bed):
    sidecar = bed.sidecar()
    done = run("check", "--connect", "--config", sidecar.config_path)
    assert f"ok   state file: {sidecar.config['state_file']}: a sidecar runs with it, process {sidecar.pid}\n" in done.out, done.text
    sidecar.signal(signal.SIGHUP)
    sidecar.wait_for("reloaded")
    assert good("drain", "--exit", "--state", sidecar.config["state_file"]) and sidecar.wait() == 0


def test_a_second_start_within_the_grace_of_the_first_says_until_when(bed):
    gate = Gate()
    bed.app.handler = lambda request, reply: gate.wait() or bed.app.commit_and_answer(request, reply)
    first = bed.sidecar(top={"shutdown_grace": "1m"})
    bed.queue.publish("m1")
    gate.wait_for_waiting()
    first.signal(signal.SIGTERM)
    first.wait_for("draining")
    wait_until(lambda: told(first)["state"] == "draining", "it says so", 10, 0.1)
    second = bed.sidecar(config=merge(first.config, {}), start=False)
    second.start()
    assert second.wait() == 1
    reason = second.find("state_file_failed")[0]["reason"]
    assert re.fullmatch(rf"another sidecar, process {first.pid}, runs with it: it drains until 2\d{{3}}-\d\d-\d\dT[\d:]+Z at the latest", reason), reason
    gate.open()
    assert first.wait() == 0


# where it lies without the key

class User:
    """A user of this machine without a name, and a configuration that it may read. Broker and database are away."""

    def __init__(self, folder):
        self.number = random.randrange(200_000, 2_000_000_000)
        self.private = f"/tmp/onceward-{self.number}"
        self.config = os.path.join(folder, "config.json")
        os.chmod(folder, 0o755)
        with open(self.config, "w") as f:
            json.dump({"broker": {"url": "amqp://127.0.0.1:1/"}, "database": {"url": "postgresql://127.0.0.1:1/none"},
                       "queues": {"orders": {"forward": {"url": "http://127.0.0.1:1/"}}}}, f)
        os.chmod(self.config, 0o644)

    def start(self, *arguments, **environment):
        return process.spawn([schema.require_binary(), *arguments], user=self.number, group=self.number, extra_groups=[], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**ENVIRONMENT, **environment})

    def run(self, *arguments, **environment):
        child = self.start(*arguments, **environment)
        text = child.communicate(timeout=60)[0].decode()
        return process.reap(child), text

    def forget(self):
        if os.path.islink(self.private):
            os.unlink(self.private)
        else:
            shutil.rmtree(self.private, ignore_errors=True)


@pytest.fixture
def user():
    if os.geteuid():
        pytest.skip("only root may become another user")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        made = User(folder)
        yield made
        made.forget()


@pytest.mark.parametrize("where", ["private", "session"])
def test_without_the_key_each_command_of_a_user_finds_the_same_writable_place(user, where):
    environment, path = {}, f"{user.private}/state"
    if where == "session":
        runtime = os.path.join(os.path.dirname(user.config), "run")
        os.mkdir(runtime, 0o700)
        os.chown(runtime, user.number, user.number)
        environment, path = {"XDG_RUNTIME_DIR": runtime}, f"{runtime}/onceward/state"
    _, text = user.run("check", "--connect", "--config", user.config, **environment)
    assert f"ok   state file: {path}: can be written\n" in text, text
    assert not os.path.exists(os.path.dirname(path)), "nothing is left behind"
    sidecar = user.start("run", "--config", user.config, **environment)
    try:
        wait_until(lambda: user.run("health", "--started", **environment)[0] == 0, "it is found", 40, 0.2)
        assert json.load(open(path))["pid"] == sidecar.pid
        if where == "private":
            other = os.path.join(os.path.dirname(user.config), "session")
            os.mkdir(other, 0o700)
            os.chown(other, user.number, user.number)
            assert user.run("health", "--started", XDG_RUNTIME_DIR=other)[0] == 0, "a shell may have what a service lacks"
            assert stat.S_IMODE(os.stat(user.private).st_mode) == 0o700
        status, text = user.run("drain", "--exit", **environment)
        assert status == 0 and f"process {sidecar.pid}, queue orders" in text, text
        log = sidecar.communicate(timeout=30)[0].decode()
        assert sidecar.returncode == 0 and "state_file_failed" not in log, log
    finally:
        process.reap(sidecar)


def test_two_sidecars_with_the_default_both_consume_and_the_second_has_no_state_file(bed):
    runtime = os.path.join(bed.folder, "runtime")
    os.mkdir(runtime, 0o700)
    first, second = (bed.sidecar(start=False, environment={"XDG_RUNTIME_DIR": runtime}) for _ in range(2))
    for sidecar in (first, second):
        sidecar.config = merge(sidecar.config, {"state_file": None})
        sidecar.start()
        sidecar.wait_for("consuming")
    bed.queue.wait_for_consumers(2)
    line, = second.find("state_file_failed")
    assert line["level"] == "warning" and line["path"] == f"{runtime}/onceward/state" and not first.find("state_file_failed")
    assert line["reason"] == (f"set state_file, so that health, drain and reload find this sidecar: another sidecar, process {first.pid}, "
                              "runs with it"), line
    assert json.load(open(line["path"]))["pid"] == first.pid
    done = run("check", "--connect", "--config", second.config_path, environment={"XDG_RUNTIME_DIR": runtime})
    assert f"warn state file: {line['path']}: a sidecar runs with it, process {first.pid}. Set state_file" in done.out, done.text
    second.signal(signal.SIGHUP)
    second.wait_for("reloaded")
    second.wait_for("consuming", n=2)
    assert second.term() == 0 and json.load(open(line["path"]))["pid"] == first.pid


@pytest.mark.parametrize("trap", ["theirs", "link", "open"])
def test_a_folder_that_another_user_laid_out_is_neither_written_nor_believed(user, trap):
    """Its name under /tmp can be known beforehand."""
    if trap == "link":
        target = os.path.join(os.path.dirname(user.config), "target")
        os.mkdir(target, 0o700)
        os.chown(target, user.number, user.number)
        os.symlink(target, user.private)
    else:
        os.mkdir(user.private, 0o700)
        os.chmod(user.private, 0o777)
        if trap == "open":
            os.chown(user.private, user.number, user.number)
    with open(os.path.join(user.private, "state"), "w") as f:  # as one that is well
        json.dump({"pid": 1, "state": "running", "written_ms": time.time() * 1000,
                   "queues": [{"queue": "q", "turned_ms_ago": 0, "live": True, "ready": True, "fits": True}]}, f)
    os.chmod(os.path.join(user.private, "state"), 0o666)
    before = sorted(os.listdir(user.private))
    _, text = user.run("check", "--connect", "--config", user.config)
    assert f"FAIL state file: {user.private}/state: " in text and "may enter" in text, text
    for command in (("health", "--live"), ("drain",)):
        status, text = user.run(*command)
        assert status == 1 and "may enter" in text, text
    sidecar = user.start("run", "--config", user.config)
    try:
        lines = iter(lambda: json.loads(sidecar.stdout.readline()), None)
        failed = next(line for line in lines if line["event"] == "state_file_failed")
        assert "may enter" in failed["reason"], failed
        sidecar.terminate()
        assert sidecar.wait(30) == 0 and sorted(os.listdir(user.private)) == before
    finally:
        process.reap(sidecar)
