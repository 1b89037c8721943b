"""`onceward drain` and `onceward reload`: they ask the process that has the state file locked, and nobody else. A sidecar that was drained
stays, idle and healthy, until SIGTERM: in a container that is what lets a preStop hook end before its container does."""

import hashlib
import json
import os
import signal
import subprocess
import time

import pytest
from test_commands import ENVIRONMENT, good, run
from test_reload import write

from rig import process, schema
from rig.application import Gate
from rig.bed import merge
from rig.sidecar import Sidecar
from rig.wait import hold_true, wait_until

QUESTIONS = ("--started", "--live", "--ready")


def told(sidecar):
    with open(sidecar.config["state_file"]) as f:
        return json.load(f)


def healthy(sidecar, *questions):
    return all(run("health", question, "--state", sidecar.config["state_file"]).status == 0 for question in questions or QUESTIONS)


def spawn(*arguments, **options):
    return process.spawn([schema.require_binary(), *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, env=ENVIRONMENT, **options)


def said(child, deadline=20):
    text = child.communicate(timeout=deadline)[0].decode()
    return process.reap(child), text


# drain

def test_a_drained_sidecar_stays_idle_and_healthy_until_sigterm(bed):
    sidecar = bed.sidecar(top={"shutdown_grace": "10m"})
    state = sidecar.config["state_file"]
    bed.queue.publish("m1")
    bed.wait_for_effects(["m1"])
    wait_until(lambda: healthy(sidecar), "it is healthy", 40, 0.1)
    first, last = good("drain", "--state", state).splitlines()
    assert last == "drained"
    assert first == f"draining instance {told(sidecar)['instance']}, process {sidecar.pid}, queue {bed.queue.name}"
    assert (told(sidecar)["state"], told(sidecar)["drained"], told(sidecar)["draining"]) == ("drained", True, True)
    bed.queue.wait_for_consumers(0)
    bed.queue.publish("m2")
    since = sidecar.mark()
    sidecar.wait_for("stats", since=since, n=3, state="drained", held=0, in_flight=0)
    assert healthy(sidecar) and not sidecar.find("connected", since) and not sidecar.find("stopped")
    assert bed.queue.n_ready == 1 and bed.queue.n_consumers == 0
    start = time.monotonic()
    assert good("drain", "--state", state).splitlines()[-1] == "drained" and time.monotonic() - start < 60, "nothing is waited for"
    assert sidecar.child.poll() is None
    assert sidecar.term() == 0
    assert len(sidecar.find("draining")) == len(sidecar.find("drained")) == 1 and told(sidecar)["state"] == "ended"


@pytest.mark.parametrize("kind", ["queue", "outbox"])
def test_status_shows_a_drained_sidecar_until_it_ends_and_no_longer(bed, kind):
    """As long as a pod's grace lasts. A sidecar that relays only has no queue to be shown with."""
    sidecar = bed.sidecar(wait=kind == "queue", top={"instance": "the-last"} if kind == "queue" else {"instance": "the-last", "queues": None, "outbox": {}})
    sidecar.wait_for("connected", peer="database")
    wait_until(lambda: bed.rows("SELECT 1 AS there FROM onceward.replica WHERE instance = 'the-last'"), "it has called", 40, 0.1)
    good("drain", "--state", sidecar.config["state_file"])

    def calls():
        return bed.rows("SELECT counter FROM onceward.replica WHERE instance = 'the-last'")[0]["counter"]

    def shown():
        return "the-last" in good("status", "--config", sidecar.config_path)
    before = calls()
    wait_until(lambda: calls() >= before + 2, "it calls while it stays", 40, 0.2)
    assert shown()
    assert sidecar.term() == 0
    bed.rows("UPDATE onceward.replica SET seen_at = seen_at - interval '15 s' WHERE instance = 'the-last' RETURNING 1")
    assert not shown()


def test_a_drain_of_several_queues_waits_for_all_of_them(bed):
    gate = Gate()
    bed.app.handler = lambda request, reply: (request.message_id == "slow" and gate.wait()) or bed.app.commit_and_answer(request, reply)
    config = bed.config(top={"shutdown_grace": "30s"}, token_window="30s")
    other = bed.new_queue("-b")
    config["queues"][other.name] = config["queues"][bed.queue.name]
    sidecar = bed.sidecar(config=config)
    sidecar.wait_for("consuming", queue=other.name)
    other.publish("slow")
    gate.wait_for_waiting()
    drain = spawn("drain", "--state", sidecar.config["state_file"])
    sidecar.wait_for("drained", queue=bed.queue.name)
    hold_true(lambda: drain.poll() is None and not told(sidecar)["drained"], "it waits for the other", 0.5)
    assert told(sidecar)["state"] == "draining" and healthy(sidecar, "--started", "--live")
    gate.open()
    status, text = said(drain)
    assert status == 0 and text.splitlines()[0].endswith(f", queues {bed.queue.name}, {other.name}"), text
    assert {q["queue"] for q in told(sidecar)["queues"]} == {bed.queue.name, other.name}


def test_drain_before_anything_was_reached(bed):
    """Broker and database are away; it is ended in the same hour as it was started."""
    config = bed.config(top={"broker": {"url": "amqp://guest:guest@127.0.0.1:1/"}, "database": {"url": "postgresql://x@127.0.0.1:1/x"}})
    sidecar = bed.sidecar(config=config, wait=False)
    wait_until(lambda: os.path.exists(sidecar.config["state_file"]), "it has started")
    assert good("drain", "--state", sidecar.config["state_file"]).splitlines()[-1] == "drained"
    assert healthy(sidecar) and sidecar.child.poll() is None
    assert sidecar.term(5) == 0


@pytest.mark.parametrize("n", [1, 2], ids=["once", "twice"])
def test_sigterm_during_a_drain_lets_it_finish_and_a_second_one_does_not(bed, n):
    gate = Gate()

    def handler(request, reply):
        gate.wait()
        return bed.app.commit_and_answer(request, reply) if n == 1 else (bed.app.try_commit(request), 500)[1]

    bed.app.handler = handler
    sidecar = bed.sidecar(token_window="60s", top={"shutdown_grace": "60s"})
    bed.queue.publish("m1")
    gate.wait_for_waiting()
    drain = spawn("drain", "--state", sidecar.config["state_file"])
    sidecar.wait_for("draining")
    sidecar.signal(signal.SIGTERM)
    hold_true(lambda: sidecar.child.poll() is None and drain.poll() is None, "both wait", 0.7)
    if n == 2:
        sidecar.signal(signal.SIGTERM)
        assert sidecar.wait() == 0 and bed.row("m1")["status"] == "waiting"
        gate.open()
    else:
        gate.open()
        assert sidecar.wait() == 0
        bed.assert_once("m1")
    assert said(drain)[0] == 0
    assert len(sidecar.find("draining")) == 1


def test_drain_exit_never_shortens_the_grace(bed):
    gate = Gate()
    bed.app.handler = lambda request, reply: gate.wait() or bed.app.commit_and_answer(request, reply)
    sidecar = bed.sidecar(token_window="60s", top={"shutdown_grace": "60s"})
    state = sidecar.config["state_file"]
    bed.queue.publish("m1")
    gate.wait_for_waiting()
    drains = [spawn("drain", *flags, "--state", state) for flags in ([], ["--exit"], ["--exit"])]
    sidecar.wait_for("draining")
    hold_true(lambda: sidecar.child.poll() is None and all(d.poll() is None for d in drains), "all wait", 0.7)
    gate.open()
    assert [said(drain)[0] for drain in drains] == [0, 0, 0]
    assert sidecar.wait() == 0
    bed.assert_once("m1")


# who is asked

HOLDER = """
import fcntl, os, signal, sys
lock = open(sys.argv[1] + '.lock', 'w')
fcntl.lockf(lock, fcntl.LOCK_EX)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP})
print('up', flush=True)
for _ in range(int(sys.argv[2])):
    print(signal.sigwait({signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP}).name, flush=True)
signal.pause()
"""


def write_state(path, pid, **more):
    with open(f"/proc/{pid}/stat") as f:
        started = int(f.read().rsplit(")", 1)[1].split()[19])
    with open(str(path) + ".new", "w") as f:
        json.dump({"pid": pid, "process_started": started, "written_ms": int(time.time() * 1000), "draining": False, "instance": "x-1",
                   "queues": [{"queue": "a", "turned_ms_ago": 5, "ready": True, "fits": True}], **more}, f)
    os.rename(str(path) + ".new", path)


def test_the_process_that_has_the_lock_is_asked_and_not_the_one_that_the_file_names(tmp_path):
    path = tmp_path / "state"
    innocent = process.spawn(["sleep", "600"])
    holder = process.spawn(["python3", "-c", HOLDER, str(path), "1"], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"up\n"
    write_state(path, innocent.pid)
    drain = spawn("drain", "--state", path)
    hold_true(lambda: drain.poll() is None and innocent.poll() is None, "it waits for the word of the one that has the lock", 0.5)
    write_state(path, holder.pid)
    assert holder.stdout.readline() == b"SIGUSR1\n"
    hold_true(lambda: drain.poll() is None, "it waits until that has drained", 0.3)
    write_state(path, holder.pid, draining=True, drained=True, state="drained")
    status, text = said(drain)
    assert (status, text) == (0, f"draining instance x-1, process {holder.pid}, queue a\ndrained\n")
    assert innocent.poll() is None and holder.poll() is None
    process.kill(holder)
    done = run("drain", "--state", path)
    assert done.status == 0 or "was killed" in done.err, done.text
    write_state(path, innocent.pid)
    for command in (["drain"], ["drain", "--exit"], ["reload"]):
        done = run(*command, "--state", path)
        assert done.status == 1 and "was killed" in done.err and innocent.poll() is None, done.text
    process.kill(innocent)


def test_a_sidecar_that_hangs_or_ends_badly_is_said(tmp_path):
    path = tmp_path / "state"
    holder = process.spawn(["python3", "-c", HOLDER, str(path), "1"], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"up\n"
    write_state(path, holder.pid, written_ms=int(time.time() * 1000) - 60_000)
    for command in ("drain", "reload"):
        done = run(command, "--state", path)
        assert done.status == 1 and "it hangs" in done.err, done.text
    write_state(path, holder.pid)
    drain = spawn("drain", "--state", path)
    assert holder.stdout.readline() == b"SIGUSR1\n"
    write_state(path, holder.pid, ended=True, status=3, state="ended", queues=[])
    process.kill(holder)
    status, text = said(drain)
    assert status == 1 and "has ended with status 3" in text, text


@pytest.mark.parametrize("by", ["option", "environment", "broken"])
def test_the_configuration_says_which_state_file_is_meant(bed, by):
    """Also one that has come to have faults: the sidecar goes on with what it has read."""
    sidecar = bed.sidecar()
    path = sidecar.config_path
    if by == "broken":
        with open(path, "w") as f:
            json.dump({**sidecar.config, "queues": 5, "state_file": "${STATE_HERE}"}, f)
    given = [] if by == "environment" else ["--config", path]
    environment = {**ENVIRONMENT, "ONCEWARD_CONFIG": path if by == "environment" else "/nowhere", "STATE_HERE": sidecar.config["state_file"]}

    def asked(*arguments):
        done = subprocess.run([schema.require_binary(), *arguments, *given], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=30, env=environment)
        return done.returncode, done.stdout.decode()

    wait_until(lambda: asked("health", "--ready")[0] == 0, "it is ready", 40, 0.1)
    if by != "broken":
        status, text = asked("reload")
        assert status == 0 and f"process {sidecar.pid}, queue {bed.queue.name}\nreloaded\n" in text, text
    status, text = asked("drain")
    assert status == 0 and f"process {sidecar.pid}, queue {bed.queue.name}\n" in text, text
    assert sidecar.find("drained") and sidecar.term(5) == 0


def test_a_file_that_is_no_json_ends_no_sidecar(tmp_path):
    """A command that has to guess looks at the default path, and changes nothing there."""
    path = tmp_path / "config"
    path.write_text('{"state_file": "/somewhere", ')
    for command in (["drain"], ["drain", "--exit"], ["reload"]):
        done = run(*command, "--config", path)
        assert done.status == 1 and "--state" in done.err, done.text
    done = run("health", "--live", "--config", path)
    assert "reading /run/onceward/state instead" in done.err, done.text


# in a container

def namespace():
    """A process-id namespace of its own, as each container has one."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *user, "--fork", "--pid", "--mount-proc", "--kill-child"]
    if subprocess.run([*command, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("no process-id namespace can be made here")
    return command


class Contained(Sidecar):
    """The first process of its namespace."""

    @property
    def first(self):
        """Its number out here."""
        return wait_until(lambda: process.children(self.pid), "it has started")[0]

    def exec(self, *arguments):
        """As `kubectl exec`, and as kubelet runs hooks and probes."""
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        done = subprocess.run(["nsenter", "--target", str(self.first), *user, "--pid", "--mount", schema.require_binary(), *arguments],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, env=ENVIRONMENT)
        return done.returncode, done.stdout.decode()


READ_ONLY = """
mount -t tmpfs -o mode=0755 tmpfs "$FOLDER" && mount -o remount,ro,bind / && mount -o remount,ro,bind "$(stat -c %m "$FOLDER/..")" &&
! touch "$FOLDER/../touched" 2>/dev/null || exit 3
"""


def contained(bed, config, read_only=False):
    folder = os.path.join(bed.folder, "run")
    os.makedirs(folder, exist_ok=True)
    script = os.path.join(bed.folder, "contained")
    with open(script + ".inside", "w") as f:
        f.write(f'#!/bin/sh\nFOLDER={folder}\n{READ_ONLY if read_only else ""}\nexec "{schema.require_binary()}" "$@"\n')
    with open(script, "w") as f:
        f.write(f'#!/bin/sh\nexec {" ".join(namespace())} "{script}.inside" "$@"\n')
    for path in (script, script + ".inside"):
        os.chmod(path, 0o755)
    sidecar = Contained(script, bed.folder, {**config, "state_file": os.path.join(folder, "state")})
    bed.sidecars.append(sidecar)
    sidecar.start()
    sidecar.wait_for("consuming")
    return sidecar


def test_the_first_process_of_a_container_is_drained_and_the_hook_ends_well(bed):
    sidecar = contained(bed, bed.config())
    state = sidecar.config["state_file"]
    bed.queue.publish("m1")
    bed.wait_for_effects(["m1"])
    wait_until(lambda: sidecar.exec("health", "--ready", "--state", state)[0] == 0, "it is ready", 40, 0.1)
    for _ in range(2):
        status, text = sidecar.exec("drain", "--state", state)
        assert status == 0, f"{status}: {text}"
        first, last = text.splitlines()
        assert ", process 1, queue " in first and last == "drained"
    for question in QUESTIONS:
        assert sidecar.exec("health", question, "--state", state)[0] == 0, question
    assert sidecar.child.poll() is None and sidecar.find("drained") and told(sidecar)["state"] == "drained"
    status, text = sidecar.exec("reload", "--state", state)
    assert status == 1 and "was drained" in text, text
    os.kill(sidecar.first, signal.SIGTERM)
    assert sidecar.wait() == 0 and sidecar.find("stopped", status=0)
    bed.assert_once("m1")
    bed.queue.assert_empty()


def test_a_container_whose_root_is_read_only_but_for_the_folder_of_the_state_file(bed):
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    sidecar = contained(bed, bed.config(), read_only=True)
    state = sidecar.config["state_file"]
    wait_until(lambda: sidecar.exec("health", "--ready", "--state", state)[0] == 0, "it is ready", 20, 0.1)
    assert not os.path.exists(state), "or its folder is none of its own"
    assert sidecar.exec("reload", "--state", state)[0] == 0
    status, text = sidecar.exec("drain", "--state", state)
    assert status == 0 and text.endswith("\ndrained\n"), text
    assert all(sidecar.exec("health", question, "--state", state)[0] == 0 for question in QUESTIONS)
    assert not sidecar.find("state_file_failed")
    os.kill(sidecar.first, signal.SIGTERM)
    assert sidecar.wait(5) == 0


def test_a_container_that_starts_again_has_the_same_name_and_believes_nothing_of_its_last_life(bed):
    """Its number is 1 again, and the file of its last life is there."""
    lives = []
    for n in (1, 2):
        sidecar = contained(bed, bed.config())
        state = sidecar.config["state_file"]
        wait_until(lambda: sidecar.exec("health", "--ready", "--state", state)[0] == 0, "it is ready", 40, 0.1)
        lives.append(told(sidecar))
        if n == 1:
            os.kill(sidecar.first, signal.SIGKILL)
            sidecar.wait()
            sidecar.child = None
    assert [life["pid"] for life in lives] == [1, 1] and lives[0]["instance"] == lives[1]["instance"]
    assert [life["start"] for life in lives] == [1, 2]
    os.kill(sidecar.first, signal.SIGTERM)
    assert sidecar.wait() == 0


# reload

def test_reload_says_how_it_went_and_what_is_wrong(bed):
    sidecar = bed.sidecar()
    state = sidecar.config["state_file"]
    name = bed.queue.name
    assert good("reload", "--state", state).splitlines()[1:3] == ["reloaded", f"  queues: {name}"]
    write(sidecar, merge(sidecar.config, {"queues": {name: {"prefetch": 77}}, "instance": "other"}))
    out = good("reload", "--now", "--state", state).splitlines()
    assert out[1:3] == ["reloaded", f"  queues: {name}"], out
    sidecar.wait_for("consuming", prefetch=77)
    assert told(sidecar)["instance"] == "other"
    write(sidecar, merge(sidecar.config, {"queues": {name: {"prefetch": 0, "brake": "x"}}}))
    done = run("reload", "--state", state)
    assert done.status == 1 and "\nconfig_error\n" in done.out, done.text
    assert f"  queues.{name}.prefetch: " in done.out and f"  queues.{name}.brake: " in done.out and "old configuration stays" in done.out
    assert [line["unchanged"] for line in sidecar.find("reloaded")] == [True, False] and len(sidecar.find("reload_refused")) == 1 and healthy(sidecar)
    good("drain", "--state", state)
    assert "was drained" in run("reload", "--state", state).out


def test_logs_reload_and_status_name_the_digest_of_the_file_unless_it_holds_passwords(bed):
    def digest(s):
        with open(s.config_path, "rb") as f:
            return hashlib.sha256(f.read()).hexdigest()[:12]

    def shown():
        found = json.loads(good("status", "--config", sidecar.config_path, "--json"))["replicas"]
        return [r["config"] for r in found if r["queue"] == bed.queue.name and r["instance"] == told(sidecar)["instance"]]

    holds = bed.sidecar(top={"database": {"password": "secret"}})
    assert "config" not in holds.find("started")[0]
    said = good("reload", "--state", holds.config["state_file"])
    assert said.splitlines()[-1] == "  configuration unchanged: the file is the same as before"
    assert holds.term() == 0
    sidecar = bed.sidecar()
    first = digest(sidecar)
    assert sidecar.find("started")[0]["config"] == first
    wait_until(lambda: shown() == [first], "status shows it", 20, 0.2)
    assert good("reload", "--state", sidecar.config["state_file"]).splitlines()[-1] == \
        f"  configuration {first}, unchanged: the file is the same as before"
    write(sidecar, merge(sidecar.config, {"shutdown_grace": "6s"}))
    assert good("reload", "--state", sidecar.config["state_file"]).splitlines()[-1] == f"  configuration {digest(sidecar)}, changed"
    sidecar.wait_for("reloaded", 2)
    assert [line["config"] for line in sidecar.find("reloaded")] == [first, digest(sidecar)] and first != digest(sidecar)


def test_reload_of_a_sidecar_that_is_drained_meanwhile_is_refused(bed):
    gate = Gate()
    bed.app.handler = lambda request, reply: gate.wait() or bed.app.commit_and_answer(request, reply)
    sidecar = bed.sidecar(top={"shutdown_grace": "30s"}, token_window="30s")
    state, name = sidecar.config["state_file"], bed.queue.name
    bed.queue.publish("m1")
    gate.wait_for_waiting()
    write(sidecar, merge(sidecar.config, {"queues": {name: {"prefetch": 77}}}))
    reload = spawn("reload", "--state", state)
    sidecar.wait_for("draining")
    drain = spawn("drain", "--state", state)
    status, text = said(reload)
    assert status == 1 and "config_error" in text and "drained" in text, text
    gate.open()
    assert said(drain)[0] == 0 and told(sidecar)["state"] == "drained"
    assert len(sidecar.find("consuming")) == 1 and sidecar.term(5) == 0
    bed.assert_once("m1")
