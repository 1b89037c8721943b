"""The state file on the sidecar's side: one sidecar at a time has it, it carries the sidecar's name through its restarts, and one that
cannot be written is an error."""

import json
import os
import signal
import stat

import pytest
from test_commands import Place, good, place, run  # noqa: F401 - a fixture
from test_drain import told

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
    """Somebody tidies up: a second sidecar must not come to run with it for long."""
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
