"""The output and the recording of the demo (deploy/demo.d), the installing and building before it (test/packages.sh), with commands
that only pretend, and the demo itself."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

import pytest

from rig import pages, process
from rig.wait import wait_until

sys.path.insert(0, os.path.join(pages.ROOT, "deploy", "demo.d"))

import demo  # noqa: E402
import ordered  # noqa: E402
import screen  # noqa: E402
import watch  # noqa: E402

FRAMES = [(0.0, ["Starting <it> & all"]), (1.0, ["1 s", "  booked 10"]), (1.5, ["2 s", "  booked 20"])]


def shares(text):
    """When each frame is seen, in percent."""
    return [(float(a), float(b)) for a, b in re.findall(r"@keyframes k\d+\{.*?\{opacity:\d\}([\d.]+)%,([\d.]+)%\{opacity:1\}", text)]


def test_a_recording_as_svg_shows_one_frame_at_a_time():
    text = screen.svg(FRAMES)
    groups = [e for e in xml.etree.ElementTree.fromstring(text).iter() if e.tag.endswith("}g")]
    assert [[t.text for t in g] for g in groups] == [lines for _, lines in FRAMES]
    assert [g.get("opacity") for g in groups] == ["0", "0", "1"]  # where nothing moves, the end is seen
    seen = shares(text)
    total = FRAMES[-1][0] + screen.LAST
    assert len(seen) == 3 and all(abs(begin - 100 * at / total) < 0.01 for (begin, _), (at, _) in zip(seen, FRAMES))
    assert all(end <= begin for (_, end), (begin, _) in zip(seen, seen[1:]))


def test_a_recording_as_asciicast_is_one():
    head, *rest = [json.loads(line) for line in screen.asciicast(FRAMES).splitlines()]
    assert head["version"] == 2 and head["width"] > 80 and [at for at, _, _ in rest] == [0.0, 1.0, 1.5]
    assert all(kind == "o" for _, kind, _ in rest) and rest[-1][2].endswith("2 s\r\n  booked 20")


def test_a_recording_has_no_long_pauses():
    assert [at for at, _ in screen.shortened([(10, []), (11, []), (31, []), (32, [])])] == [0, 1, 1 + screen.PAUSE, 2 + screen.PAUSE]


def test_a_long_recording_is_thinned_and_keeps_its_end():
    frames = [(i, [str(i)]) for i in range(150)]
    thin = screen.thinned(frames)
    assert thin[0] == frames[0] and thin[-1] == frames[-1] and len(thin) <= screen.FRAMES + 1 and screen.thinned(frames[:3]) == frames[:3]


def test_the_screen_keeps_what_was_said_and_the_last_view(capsys, tmp_path):
    shown = screen.Screen(record=str(tmp_path / "a.cast"))
    shown.say("begin")
    shown.show(["1"])
    shown.show(["2"], last=True)
    shown.say("end")
    shown.save()
    assert shown.frames[-1][1] == ["begin", "2", "end"]
    assert json.loads((tmp_path / "a.cast").read_text().splitlines()[-1])[2].endswith("begin\r\n2\r\nend")
    assert capsys.readouterr().out.split("\n")[:3] == ["begin", "2", "end"]


def test_the_view_sums_up_the_logs(tmp_path):
    stats = {"event": "stats", "ts": "2026-01-01T00:00:00.000Z", "state": "consuming", "completed": 20, "in_flight": 3, "parked": 1,
             "retried_total": 4, "duplicates_total": 5, "dead_total": 0, "forward_ms_p50": 1.25, "forward_ms_p99": None}
    paused = {"event": "paused", "ts": "2026-01-01T00:00:01.500Z", "reason": "overloaded"}
    taken = [{"event": "taken_over", "ts": f"2026-01-01T00:00:00.{i}00Z", "message_id": f"m{i}"} for i in range(3)]
    (tmp_path / "a").write_text("".join(json.dumps(e) + "\n" for e in [stats, *taken, stats, paused]) + '{"event": "sta')  # killed in the middle
    lines = watch.log_view(lambda name: str(tmp_path / name), ["a", "b"])
    assert lines[0].split() == "sidecar state done/s at work held retried duplicates dead p50 ms p99 ms".split()
    assert lines[1].split() == "a consuming 40 3 1 4 5 0 1.2 -".split() and lines[2].split()[:2] == ["b", "starting"]
    assert lines[-2:] == ["00:00:00.200  a  taken_over    m2  (3 times)", "00:00:01.500  a  paused        overloaded"]


def test_the_counts_of_the_end_add_up():
    *lines, last = demo.sums(published=5000, distinct=3335, posts=3436, retried=101, booked=3334, dead=1, duplicates=4940)
    for line in lines:
        whole, *parts = [int(n) for n in re.findall(r"\d+", line)]
        assert len(parts) == 2 and whole == sum(parts), line
    assert "4940 duplicates stopped" in last and len(re.findall(r"\d+", last)) == 1


# before the demo

FAKES = {
    "id": "echo 0",
    "dpkg-query": 'for name in "$@"; do :; done; [ -e "$FAKES/$name.installed" ] && echo installed',
    "apt-get": """echo "apt-get $*" >>"$FAKES/log"
if [ -e "$FAKES/offline" ]; then
    for n in 1 2 3 4 5 6 7 8 9; do echo "E: Failed to fetch http://deb.example.com/$n  Could not resolve 'deb.example.com'" >&2; done
    exit 100
fi
if [ -e "$FAKES/locked" ]; then
    echo "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)" >&2
    exit 100
fi
[ "$1" = install ] || exit 0
echo "pmstatus:x:50:Installing"
for name in "$@"; do case $name in -* | install | *=* | *::*) ;; *) touch "$FAKES/$name.installed" ;; esac; done
mkdir -p "$UNITS/multi-user.target.wants" "$UNITS/sockets.target.wants" "$RUNLEVELS/rc2.d"
ln -sf /lib/systemd/system/rabbitmq-server.service "$UNITS/multi-user.target.wants"
ln -sf /lib/systemd/system/epmd.socket "$UNITS/sockets.target.wants"
ln -sf ../init.d/nginx "$RUNLEVELS/rc2.d/S01nginx"
[ -e "$POLICY" ] && echo "no server is started" >>"$FAKES/log"
while [ -e "$FAKES/slow-apt" ]; do sleep 0.05; done
""",
    "update-rc.d": 'echo "update-rc.d $*" >>"$FAKES/log"',
    "meson": 'for folder in "$@"; do case $folder in */tree) mkdir -p "$folder"; echo >"$folder/build.ninja" ;; esac; done',
    "ninja": """echo begin >>"$FAKES/log"
while [ -e "$FAKES/slow" ]; do sleep 0.05; done
[ ! -e "$FAKES/faulty" ] || exit 1
echo end >>"$FAKES/log"
""",
}


@pytest.fixture
def fakes(tmp_path):
    """Runs a line of shell behind test/packages.sh, where the commands of a machine only pretend."""
    folder = tmp_path / "fakes"
    folder.mkdir()
    for name, text in FAKES.items():
        (folder / name).write_text("#!/bin/sh\n" + text + "\n")
        (folder / name).chmod(0o755)
    (tmp_path / "tmp").mkdir()
    environment = dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}", FAKES=str(folder), POLICY=str(folder / "policy-rc.d"), TMPDIR=str(tmp_path / "tmp"),
                       UNITS=str(folder / "units"), RUNLEVELS=str(folder / "runlevels"), PACKAGES_LOCK=str(folder))

    def run(*command):
        return process.spawn(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def start(line):
        return run("sh", "-euc", f'root={pages.ROOT}; . "$root/test/packages.sh"; trap packages_cleanup EXIT; {line}')

    start.folder, start.environment, start.run = folder, environment, run
    start.left = lambda: os.listdir(environment["TMPDIR"])
    start.log = lambda: (folder / "log").read_text().split("\n")[:-1] if (folder / "log").exists() else []
    return start


def ended(child):
    said = child.communicate(timeout=60)[0].decode()
    return child.returncode, said


def test_new_servers_are_neither_started_nor_enabled_at_boot(fakes):
    (fakes.folder / "python3.installed").touch()
    units = fakes.folder / "units" / "multi-user.target.wants"
    units.mkdir(parents=True)
    (units / "mine.service").symlink_to("/lib/systemd/system/mine.service")
    status, said = ended(fakes("packages_install rabbitmq-server postgresql python3; echo \"installed:$packages_installed\""))
    assert status == 0 and "Installing: rabbitmq-server postgresql\n" in said and "installed: rabbitmq-server postgresql\n" in said, said
    assert "no server is started" in fakes.log() and not (fakes.folder / "policy-rc.d").exists()
    assert "update-rc.d nginx disable" in fakes.log()
    assert [name for _, _, files in os.walk(fakes.folder / "units") for name in files] == ["mine.service"], "only what was enabled before"


def test_two_runs_install_one_after_the_other(fakes):
    """Otherwise the first one would remove the policy-rc.d of the second one."""
    (fakes.folder / "slow-apt").touch()
    first = fakes("packages_install rabbitmq-server")
    wait_until(lambda: "no server is started" in fakes.log(), "the first installs")
    second = fakes("packages_install rabbitmq-server postgresql")
    assert second.stdout.readline() == b"Another run installs packages: waiting for it\n"
    (fakes.folder / "slow-apt").unlink()
    assert ended(first)[0] == 0
    status, said = ended(second)
    assert status == 0 and "Installing: postgresql\n" in said, said
    assert fakes.log().count("no server is started") == 2 and not (fakes.folder / "policy-rc.d").exists()


def test_another_apt_is_waited_for(fakes):
    (fakes.folder / "locked").touch()
    child = fakes("packages_install rabbitmq-server")
    assert child.stdout.readline() == b"Installing: rabbitmq-server\n" and child.stdout.readline() == b"Another apt is running: waiting for it\n"
    (fakes.folder / "locked").unlink()
    assert ended(child)[0] == 0 and (fakes.folder / "rabbitmq-server.installed").exists() and not fakes.left()


def test_without_a_network_the_last_line_is_a_sentence(fakes):
    (fakes.folder / "offline").touch()
    status, said = ended(fakes("packages_install rabbitmq-server"))
    lines = said.strip().split("\n")
    assert status == 100 and len(lines) <= 5 and "is there a network?" in lines[-1] and "--no-install" in lines[-1], said
    assert not fakes.left()


@pytest.mark.parametrize("script", ["deploy/demo"])
def test_without_installing_the_missing_packages_are_named(fakes, script):
    done = subprocess.run([os.path.join(pages.ROOT, script), "--no-install"], env=fakes.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=60, check=False)
    said = done.stdout.decode().strip().split("\n")
    assert done.returncode == 1 and said[-1].startswith("These packages are missing: gcc ") and "rabbitmq-server" in said[-1], said
    assert said[0].startswith("This takes about four minutes") and len(said) == 7, "what will happen, in five lines"


def test_two_builds_in_one_folder_wait_for_each_other(fakes, tmp_path):
    (fakes.folder / "slow").touch()
    first = fakes(f"build_tree {tmp_path}/tree -Dx=1")
    wait_until(lambda: fakes.log() == ["begin"], "the first builds")
    second = fakes(f"build_tree {tmp_path}/tree -Dx=1")
    line = second.stdout.readline().decode()
    assert line.startswith("Another build runs in ") and "waiting" in line, line
    (fakes.folder / "slow").unlink()
    assert ended(first) == (0, "") and ended(second) == (0, "") and fakes.log() == ["begin", "end"] * 2


# interrupts

PURGE = "To remove the packages that were installed for this: apt-get purge "


@pytest.fixture
def tree(fakes, tmp_path):
    """A tree whose builds are the fakes', and whose gates and tests take as long as there is the file `slow`."""
    for name in "test/run", "test/packages.sh", "deploy/demo":
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(pages.path(name), tmp_path / "tree" / name)
    (tmp_path / "tree/test/gates").write_text('#!/bin/sh\necho "gates $$" >>"$FAKES/log"\nwhile [ -e "$FAKES/slow" ]; do sleep 0.05; done\n')
    (tmp_path / "tree/test/gates").chmod(0o755)
    (tmp_path / "tree/test/suite.py").write_text('import sys\nprint(*sys.argv[1:], sep="\\n")\n')
    (fakes.folder / "slow").touch()
    return tmp_path / "tree"


def is_running(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as f:
            return bool(f.read())  # none: it has ended, and its parent has not asked yet
    except FileNotFoundError:
        return False


def interrupted(child):
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does
    status, said = ended(child)
    return status, said.strip().split("\n")


def test_interrupted_gates_and_builds_have_not_failed(fakes, tree):
    child = fakes.run(str(tree / "test/run"))
    gates = int(wait_until(lambda: [line for line in fakes.log() if line.startswith("gates")], "the gates run")[0].split()[1])
    wait_until(lambda: fakes.log().count("begin") == 2, "both builds run")
    status, said = interrupted(child)
    assert status == 130 and said[-2:] == ["Interrupted.", "0 passed, 0 failed"] and said[-3].startswith(PURGE + "gcc "), said
    assert not fakes.left() and "end" not in fakes.log() and not is_running(gates)


def test_failed_builds_have_failed(fakes, tree):
    (fakes.folder / "slow").unlink()
    (fakes.folder / "faulty").touch()
    status, said = ended(fakes.run(str(tree / "test/run")))
    assert status == 1 and said.strip().split("\n")[-1] == "0 passed, 1 failed" and PURGE in said and not fakes.left(), said


def test_the_suite_is_told_what_was_installed(fakes, tree):
    (fakes.folder / "slow").unlink()
    status, said = ended(fakes.run(str(tree / "test/run"), "--quick"))
    assert status == 0 and "--installed= gcc " in said and " rabbitmq-server " in said, said


@pytest.mark.parametrize("where", ["slow-apt", "slow"])
def test_an_interrupted_demo_leaves_nothing_and_names_its_packages(fakes, tree, where):
    (fakes.folder / where).touch()
    child = fakes.run(str(tree / "deploy/demo"))
    wait_until(lambda: ("begin" if where == "slow" else "no server is started") in fakes.log(), "it installs, or builds")
    status, said = interrupted(child)
    assert status == 130 and said[-2] == "Stopped." and said[-1].startswith(PURGE + "gcc "), said
    assert not fakes.left() and not (fakes.folder / "policy-rc.d").exists() and not os.listdir(fakes.folder / "units" / "sockets.target.wants")


def test_a_demo_that_does_not_build_leaves_nothing_and_names_its_packages(fakes, tree):
    (fakes.folder / "slow").unlink()
    (fakes.folder / "faulty").touch()
    tree.chmod(0o555)  # the build is in a temporary folder, unless this is root's
    status, said = ended(fakes.run(str(tree / "deploy/demo")))
    tree.chmod(0o755)
    assert status == 1 and said.strip().split("\n")[-1].startswith(PURGE + "gcc ") and not fakes.left(), said


# the whole

@pytest.mark.alone
@pytest.mark.parametrize("kind, victims", [("--plain", [victim for _, victim in demo.KILLS]), ("--ordered", ordered.VICTIMS)])
def test_the_demo_books_everything_once(kind, victims):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o1777)  # PostgreSQL has a user of its own
        done = subprocess.run([pages.path("deploy/demo"), "--no-install", "--plain", kind], env=dict(os.environ, TMPDIR=folder), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600, check=False)
        left = os.listdir(folder)
    said = done.stdout.decode()
    assert not left
    assert done.returncode == 0 and f"\n{(ordered.OrderedDemo if kind == '--ordered' else demo.Demo).END}\n" in said, said[-3000:]
    for victim in set(victims):
        sort, _, name = victim.partition(" ")
        sentence = {"sidecar": f"Sidecar {name} is killed with -9", "application": f"The {name} application is killed with -9",
                    "database": "PostgreSQL is killed with -9", "broker": "RabbitMQ is killed with -9"}[sort]
        assert said.count(sentence) == victims.count(victim), f"{sentence}\n{said}"
    for back in "PostgreSQL is back after", "RabbitMQ is back after", "The shop application has died, and is started again":
        assert back in said, said
    count = lambda what: int(re.search(rf"^ +(\d+) {what}", said, re.M)[1])
    assert [count(f"{whose} {what}") for whose in ("orders", "invoices") for what in ("lost", "doubled")] == [0] * 4 and count("left in the outbox") == 0
    assert count("orders published") == demo.N_MESSAGES and count("orders ended") == demo.N_DISTINCT and count("invoices booked") == demo.N_DISTINCT - 1
    assert count("kill -9 of sidecar") == sum(victim.startswith("sidecar") for victim in victims)
    assert count("seconds to the first figure") <= 60
    if kind == "--ordered":
        assert all(re.search(rf"^ +{what} +0$", said, re.M) for what in ("inversions", "gaps", "doubled"))
        assert f"Each of {ordered.N_ACCOUNTS} accounts has the numbers from 1 on, each right behind the one before." in said
