"""The process itself: signals, a standard output that nobody takes, descriptors that run out, a clock that jumps; and the small
commands that ask it."""

import calendar
import contextlib
import fcntl
import glob
import json
import os
import resource
import signal
import subprocess
import tempfile
import threading
import time
import uuid

import pytest

from test_commands import run
from rig import process, schema, servers
from rig.application import Gate, Script
from rig.bed import merge
from rig.sidecar import Sidecar
from rig.wait import hold_true, wait_until

COMPLETIONS = ["transaction", "response"]


def well_behaved(bed, completion):
    return bed.app.commit_and_answer if completion == "transaction" else bed.app.act_and_answer


def started(bed, sidecar):
    """For sidecars of another kind than the bed's own."""
    bed.sidecars.append(sidecar)
    sidecar.start()
    sidecar.wait_for("consuming")
    return sidecar


def configured(bed, top=None, **keys):
    return {**bed.config(top, **keys), "state_file": os.path.join(bed.folder, "state")}


def say(*arguments):
    done = subprocess.run([schema.require_binary(), *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=60)
    text = done.stdout.decode(errors="replace")
    assert done.returncode in (0, 1, 2) and "Sanitizer" not in text and "runtime error" not in text, text
    return done.returncode, text


# signals

@pytest.mark.parametrize("completion", COMPLETIONS)
def test_a_second_signal_ends_the_grace_at_once(bed, completion):
    gate = Gate()
    bed.app.handler = lambda request, reply: gate.wait()
    sidecar = bed.sidecar(completion=completion, token_window="60s", top={"shutdown_grace": "60s"})
    bed.queue.publish("m1")
    gate.wait_for_waiting()
    sidecar.signal(signal.SIGTERM)
    sidecar.wait_for("draining")
    hold_true(lambda: sidecar.child.poll() is None, "it waits for what is in flight", 0.5)
    sidecar.signal(signal.SIGTERM)
    assert sidecar.wait() == 0
    row = bed.row("m1")
    assert row["status"] == "waiting" and row["attempt"] == 0, "a shutdown is not charged"
    assert bed.queue.n_ready == 1 and sidecar.find("drained") and sidecar.find("stopped", status=0)
    gate.open()


@pytest.mark.parametrize("completion, answer", [("transaction", 200), ("response", 200), ("response", 500)])
def test_what_a_stopped_sidecar_writes_late_changes_nothing(bed, completion, answer):
    """SIGSTOP for longer than the window, and an answer that waits for it in its socket. It wakes up while the other one is at work."""
    gate, other_gate = Gate(), Gate()
    refused = []

    def late(request, reply):
        gate.wait()
        if completion == "transaction":
            refused.append(bed.app.try_commit(request))
        return answer

    def held(request, reply):
        other_gate.wait()
        return well_behaved(bed, completion)(request, reply)

    bed.app.handler = Script(late, held)
    # The default heartbeat would keep the broker from giving the message to the other for longer than the test lasts.
    keys = dict(completion=completion, token_window="2s", top={"broker": {"heartbeat": "2s"}})
    first = bed.sidecar(**keys)
    bed.queue.publish("m1")
    gate.wait_for_waiting()
    first.freeze()
    other = bed.sidecar(**merge(keys, {"token_window": "20s"}))
    other_gate.wait_for_waiting(deadline=60)
    token = bed.row("m1")["token"]
    gate.open()
    if completion == "transaction":
        wait_until(lambda: refused, "the late handler ended")
        assert refused == ["OW001"]
    mark = first.mark()
    first.thaw()
    first.wait_for_quiet()
    first.wait_for("disconnected", peer="broker", since=mark, deadline=40)
    row = bed.row("m1")
    assert row["status"] == "processing" and row["token"] == token and row["attempt"] + (row["takeovers"] or 0) == 2, "the late answer wrote nothing"
    assert not first.find("completed") and not first.find("retry")
    other_gate.open()
    other.wait_for("completed", message_id="m1")
    assert len(bed.app.posts()) == 2 and bed.letters() == []
    bed.assert_once("m1")
    first.wait_for_quiet()
    bed.assert_acked()


@pytest.mark.short("forward_before-transaction", "forward_sent-response")
@pytest.mark.parametrize("completion", COMPLETIONS)
@pytest.mark.parametrize("point", ["forward_before", "forward_sent"])
def test_a_sidecar_that_is_stopped_before_it_has_sent_sends_nothing_when_its_window_is_over(bed, completion, point):
    """The sidecar wakes up with a token that another replica has taken over and works on."""
    binary = os.environ.get("ONCEWARD_FAILPOINT_BINARY", "")
    if not os.access(binary, os.X_OK):
        pytest.skip("ONCEWARD_FAILPOINT_BINARY names no program")
    gate = Gate()
    bed.app.handler = lambda request, reply: gate.wait() or well_behaved(bed, completion)(request, reply)
    keys = dict(completion=completion, top={"broker": {"heartbeat": "2s"}})
    first = bed.sidecar(binary=binary, environment={"ONCEWARD_FAILPOINT": point + ":stop"}, token_window="2s", **keys)
    bed.queue.publish("m1")
    wait_until(lambda: is_stopped(first.pid), "it has stopped itself", 20)
    other = bed.sidecar(token_window="20s", **keys)
    gate.wait_for_waiting(deadline=60)
    mark = first.mark()
    first.thaw()
    first.wait_for("disconnected", peer="broker", since=mark, deadline=40)
    first.wait_for_quiet()
    hold_true(lambda: len(bed.app.posts()) == 1, "one POST, the other's", 0.5)
    gate.open()
    other.wait_for("completed", message_id="m1")
    assert [r.attempt for r in bed.app.posts()] == [2] and bed.letters() == []
    bed.assert_once("m1")
    first.wait_for_quiet()
    bed.assert_acked()


def is_stopped(pid):
    with open(f"/proc/{pid}/stat") as f:
        return f.read().rsplit(")", 1)[1].split()[0] == "T"


# standard output

class Muffled(Sidecar):
    """Its standard output is a small pipe, which a test may stop reading."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.flows = threading.Event()
        self.flows.set()

    def _read(self, pipe):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096)
        rest = b""
        with open(self.log_path, "ab") as copy:
            while True:
                self.flows.wait()
                try:
                    data = os.read(pipe.fileno(), 4096)
                except OSError:
                    data = b""
                copy.write(data)
                copy.flush()
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._take(line + b"\n")
                if not data:
                    break
        with self._news:
            self._news.notify_all()


def flood(bed, n, name):
    """So many messages with long ids, hence long lines, all completed in the end."""
    ids = [f"{name}{i:04}-" + "x" * 240 for i in range(n)]
    bed.queue.publish_many(ids)
    wait_until(lambda: bed.statuses().get("completed", 0) >= n, lambda: f"{n} are completed: {bed.statuses()}", 60, 0.1)
    return ids


def test_a_standard_output_that_nobody_reads_stops_no_message_and_loses_no_life_cycle_line(bed):
    bed.app.handler = bed.app.only_answer
    n = 1200  # lines of 400 bytes: more than the pipe and the room for such lines
    link = bed.new_proxy(bed.rabbitmq.port)
    config = configured(bed, completion="response", top={"broker": {"url": bed.rabbitmq.url(port=link.port)}, "log": {"stats_interval": "100ms"}})
    # Figures come for ever: they must not take the room of what happens rarely. Here they come in crowds.
    config["queues"].update({f"none{i}-{bed.name}": config["queues"][bed.queue.name] for i in range(20)})
    sidecar = started(bed, Muffled(schema.require_binary(), bed.folder, config))
    sidecar.wait_for("stats")
    sidecar.flows.clear()
    flood(bed, n, "a")
    hold_true(lambda: sidecar.child.poll() is None, "it runs on while figures gather", 2.5)
    mark = sidecar.mark()
    link.cut()
    wait_until(lambda: bed.queue.n_consumers == 1, "it consumes again", 40)
    sidecar.flows.set()
    sidecar.wait_for("disconnected", since=mark, peer="broker", deadline=40)
    sidecar.wait_for("consuming", since=mark, queue=bed.queue.name)
    since = sidecar.mark()
    dropped = sidecar.wait_for("stats", n=2, since=since, queue=bed.queue.name, completed_total=n)["dropped_lines_total"]
    said = len(sidecar.find("completed"))
    assert said < n <= said + dropped, f"{said} of {n} said, {dropped} dropped"
    assert sidecar.term() == 0
    assert sidecar.find("draining") and sidecar.find("stopped")


def test_a_standard_output_that_nobody_reads_does_not_hold_up_the_end(bed):
    bed.app.handler = bed.app.only_answer
    sidecar = started(bed, Muffled(schema.require_binary(), bed.folder, configured(bed, completion="response")))
    sidecar.flows.clear()
    flood(bed, 100, "a")
    sidecar.signal(signal.SIGTERM)
    try:
        assert sidecar.child.wait(60) == 0
    finally:
        sidecar.flows.set()
    assert sidecar.wait() == 0
    bed.queue.assert_empty()


class Unheard(Sidecar):
    """No process reads its output: the reader is gone after the first lines, or the disk is full."""

    def close_output(self):
        self.reads = False

    def _read(self, pipe):
        self.reads = True
        with pipe:
            for line in pipe:
                self._take(line)
                if not self.reads:
                    break
        with self._news:
            self._news.notify_all()


def test_a_standard_output_whose_reader_is_gone_stops_no_message(bed):
    bed.app.handler = bed.app.only_answer
    sidecar = started(bed, Unheard(schema.require_binary(), bed.folder, configured(bed, completion="response")))
    sidecar.close_output()
    wait_until(lambda: not sidecar._reader.is_alive(), "the reader is gone")
    flood(bed, 200, "a")
    ticks = cpu_ticks(sidecar.pid)
    hold_true(lambda: sidecar.child.poll() is None, "it runs on", 1.0)
    assert cpu_ticks(sidecar.pid) - ticks < 50, "it does not spin"
    assert sidecar.term() == 0
    bed.queue.assert_empty()


def cpu_ticks(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def test_a_log_on_a_disk_that_was_full_goes_on_with_whole_lines_when_there_is_room(bed, tmp_path):
    """The limit of a file's size stands for the disk's: a write beyond it is cut in the middle of a line."""
    bed.app.handler = bed.app.only_answer
    path = tmp_path / "log"
    config = configured(bed, completion="response", top={"log": {"messages": "all", "stats_interval": "100ms"}})

    class ToFile(Sidecar):
        def start(self):
            with open(path, "wb"):
                pass
            return super().start()

    # A shell hands the file over: the rig's own pipe stays for nothing.
    script = os.path.join(bed.folder, "to-file")
    with open(script, "w") as f:
        f.write(f'#!/bin/sh\nexec "{schema.require_binary()}" "$@" >>"{path}"\n')
    os.chmod(script, 0o755)
    sidecar = ToFile(script, bed.folder, config)
    bed.sidecars.append(sidecar)
    sidecar.start()
    wait_until(lambda: b'"consuming"' in path.read_bytes(), "it consumes", 30)
    limits = resource.prlimit(sidecar.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(sidecar.pid, resource.RLIMIT_FSIZE, (path.stat().st_size + 700, limits[1]))
    flood(bed, 50, "a")
    resource.prlimit(sidecar.pid, resource.RLIMIT_FSIZE, limits)
    bed.queue.publish("after")
    wait_until(lambda: b'"message_id":"after"' in path.read_bytes(), "the log goes on", 30)
    assert sidecar.term() == 0
    torn = 0
    last = {}
    for line in path.read_bytes().splitlines():
        try:
            last = json.loads(line)
        except ValueError:
            torn += 1
            assert line.count(b'"ts"') == 1, f"it spoils the next one: {line}"
            continue
        if last["event"] == "stats":
            dropped = last["dropped_lines_total"]
    assert last["event"] == "stopped" and torn <= 1 and dropped >= 40, f"{torn} torn lines, {dropped} dropped"


# descriptors

def is_state_file(sidecar, n):
    """The file is replaced every second: that number is free again in a moment."""
    try:
        return os.readlink(f"/proc/{sidecar.pid}/fd/{n}").startswith(sidecar.config["state_file"] + ".next")
    except FileNotFoundError:
        return True


@contextlib.contextmanager
def without_descriptors(sidecar):
    """Open descriptors stay; no new one can be opened."""
    soft, hard = resource.prlimit(sidecar.pid, resource.RLIMIT_NOFILE)
    used = {int(n) for n in os.listdir(f"/proc/{sidecar.pid}/fd") if not is_state_file(sidecar, n)}
    resource.prlimit(sidecar.pid, resource.RLIMIT_NOFILE, (min(set(range(len(used) + 1)) - used), hard))
    try:
        yield
    finally:
        if sidecar.child:
            resource.prlimit(sidecar.pid, resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_without_descriptors_for_new_http_connections_it_pauses_and_charges_nobody(bed, completion):
    bed.app.handler = well_behaved(bed, completion)
    sidecar = bed.sidecar(completion=completion, retry={"max_attempts": 2})
    n_open = len(os.listdir(f"/proc/{sidecar.pid}/fd"))
    bed.queue.publish("warm")
    sidecar.wait_for("completed", message_id="warm")
    bed.app.die()
    bed.app.start()
    wait_until(lambda: not bed.app._connections and len(os.listdir(f"/proc/{sidecar.pid}/fd")) <= n_open,
               "its connections to the application are closed")
    ids = [f"m{i}" for i in range(20)]
    with without_descriptors(sidecar):
        bed.queue.publish_many(ids)
        line = sidecar.wait_for("paused", reason="application_down")
        assert "open files" in line["detail"], line
        hold_true(lambda: sidecar.child.poll() is None, "it lives", 0.5)
        failing = sidecar.wait_for("state_file_failed")
        assert failing["path"] == sidecar.config["state_file"] and "open files" in failing["reason"]
        assert bed.app.posts("m0") == []
    sidecar.wait_for("resumed", reason="application_down", deadline=40)
    bed.wait_for_effects(ids)
    sidecar.wait_for_quiet()
    assert {r.attempt for r in bed.app.posts()} == {1} and len(bed.app.posts()) == 21 and bed.letters() == []
    bed.assert_once(*ids)
    bed.assert_acked()


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_without_descriptors_for_lost_connections_it_says_so_and_recovers(bed, completion):
    bed.app.handler = well_behaved(bed, completion)
    broker, database = bed.new_proxy(bed.rabbitmq.port), bed.new_proxy(bed.postgres.port)
    sidecar = bed.sidecar(completion=completion, top={"broker": {"url": bed.rabbitmq.url(port=broker.port)},
                                                      "database": {"url": bed.postgres.dsn(user="sidecar_login", port=database.port)}})
    ids = [f"m{i}" for i in range(40)]
    bed.queue.publish_many(ids[:20])
    bed.wait_for_effects(ids[:20])
    sidecar.wait_for_quiet()
    with without_descriptors(sidecar):
        mark = sidecar.mark()
        soft, hard = resource.prlimit(sidecar.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(sidecar.pid, resource.RLIMIT_NOFILE, (3, hard))  # what the lost connections free must not be used either
        broker.cut()
        database.cut()
        bed.queue.publish_many(ids[20:])
        for peer in ("broker", "database"):
            sidecar.wait_for("disconnected", since=mark, peer=peer, reason=lambda text: "open files" in text, deadline=40)
        ticks, start = cpu_ticks(sidecar.pid), time.monotonic()
        hold_true(lambda: sidecar.child.poll() is None, "it lives", 1.0)
        spent = (cpu_ticks(sidecar.pid) - ticks) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - start)
        assert spent < 0.5, f"it spins: {spent:.0%} of a core"
    bed.wait_for_effects(ids)
    sidecar.wait_for_quiet()
    assert {r.attempt for r in bed.app.posts()} == {1} and len(bed.app.posts()) == 40 and bed.letters() == []
    bed.assert_once(*ids)
    assert say("health", "--live", "--state", sidecar.config["state_file"])[0] == 0
    bed.assert_acked()


# what asks the process

GARBAGE = [b"", b"\0" * 100, b"{", b"null", b"[]", b"\xff\xfe{}", b"{" * 5000, b'{"pid":0,"written_ms":%d,"queues":[%s]}', b'{"pid":-1,"written_ms":%d,"queues":[%s]}',
           b'{"pid":"sleep","written_ms":%d,"queues":[%s]}', b'{"pid":{},"written_ms":%d,"queues":[%s]}', b'{"pid":PID,"written_ms":%d,"queues":[]}',
           b'{"pid":PID,"written_ms":%d,"queues":[{"queue":"a","ready":true,"fits":true}]}', b'{"pid":PID,"written_ms":%d,"queues":{"queue":"a"}}',
           b'{"pid":4294967296,"written_ms":%d,"queues":[%s]}', b'{"pid":PIDTWICE,"written_ms":%d,"queues":[%s]}',
           b'{"pid":99999999999999999999999,"written_ms":%d,"queues":[%s]}', b'{"pid":PID,"written_ms":%d,"queues":[%s']


@pytest.mark.parametrize("number", range(len(GARBAGE)))
def test_a_state_file_of_garbage_is_neither_healthy_nor_drained_and_nobody_is_signalled(tmp_path, number):
    child = process.spawn(["sleep", "60"])
    text = GARBAGE[number].replace(b"PIDTWICE", b"%d" % (child.pid + (1 << 32))).replace(b"PID", b"%d" % child.pid)
    text = text.replace(b"%d", b"%d" % (time.time() * 1000)).replace(b"%s", b'{"queue":"a","turned_ms_ago":1,"ready":true,"fits":true}')
    path = tmp_path / "state"
    path.write_bytes(text)
    for arguments in (["health", "--live"], ["health", "--ready"], ["drain"]):
        status, said = say(*arguments, "--state", path)
        assert status == 1 and "is not the state of a sidecar" in said, said
    assert say("drain", "--state", tmp_path)[0] == 1, "a folder"
    assert child.poll() is None
    process.kill(child)


@pytest.mark.parametrize("moved", [-3600_000, 3600_000], ids=["behind", "ahead"])
def test_the_age_of_the_state_file_is_not_told_by_a_clock_that_jumps(bed, moved):
    """A file whose writer saw another time of day than its reader does; and one that is old by the clock that never jumps."""
    sidecar = bed.sidecar()
    state = sidecar.config["state_file"]
    wait_until(lambda: say("health", "--ready", "--state", state)[0] == 0, "it is ready", 20, 0.1)
    with open(state) as f:
        seen = json.load(f)
    path = state + ".copy"
    for name, change, status in (("other time of day", {"written_ms": seen["written_ms"] + moved}, 0),
                                 ("old", {"written_ms": seen["written_ms"] + moved, "written_monotonic_ms": seen["written_monotonic_ms"] - 60_000}, 1)):
        with open(path, "w") as f:
            json.dump({**seen, **change}, f)
        assert say("health", "--live", "--state", path)[0] == status, name


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_drain_waits_for_what_is_in_flight_and_a_second_drain_does_not_hurry_it(bed, completion):
    gate = Gate()
    bed.app.handler = lambda request, reply: gate.wait() or well_behaved(bed, completion)(request, reply)
    sidecar = bed.sidecar(completion=completion, token_window="30s", top={"shutdown_grace": "30s"})
    state = sidecar.config["state_file"]
    bed.queue.publish("m1")
    gate.wait_for_waiting()
    drains = []
    for _ in range(2):
        drains.append(process.spawn([schema.require_binary(), "drain", "--state", state], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE))
        sidecar.wait_for("draining")
        wait_until(lambda: json.load(open(state))["draining"], "the state file says so", 20)
    hold_true(lambda: sidecar.child.poll() is None and all(d.poll() is None for d in drains), "they wait", 0.7)
    gate.open()
    assert [d.communicate(timeout=20)[0].splitlines()[1:] for d in drains] == [[b"drained"]] * 2
    for drain in drains:
        assert process.reap(drain) == 0
    assert sidecar.child.poll() is None
    assert json.load(open(state))["drained"] and len(bed.app.posts()) == 1
    assert sidecar.term(5) == 0 and json.load(open(state))["ended"]
    bed.assert_once("m1")
    bed.queue.assert_empty()


# the clock

@pytest.fixture
def clock(tmp_path):
    """A clock that a test sets while the program runs: for a program that is started with its environment. The monotonic one goes on."""
    return make_clock(str(tmp_path))


def make_clock(folder):
    library = next(iter(glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")), None)
    if not library:
        pytest.skip("libfaketime is not installed")
    return Clock(library, os.path.join(folder, "clock"))


class Clock:
    def __init__(self, library, path):
        self.path = path
        self.environment = {"LD_PRELOAD": library, "FAKETIME_TIMESTAMP_FILE": path, "FAKETIME_NO_CACHE": "1",
                            "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_DISABLE_SHM": "1"}
        self.jump(0)

    def jump(self, seconds):
        """So far from the real time from now on."""
        with open(self.path + ".new", "w") as f:
            f.write(f"{seconds:+d}\n")
        os.chmod(self.path + ".new", 0o644)
        os.rename(self.path + ".new", self.path)


@pytest.fixture
def release():
    """A preloaded clock and a sanitizer do not go together."""
    path = os.environ.get("ONCEWARD_RELEASE_BINARY", "")
    if not os.access(path, os.X_OK):
        pytest.skip("ONCEWARD_RELEASE_BINARY names no program")
    return path


HOUR = 3600


def seconds_off(line):
    """How far the clock of the line's writer was from that of this machine when the line was read."""
    then = calendar.timegm(time.strptime(line["ts"][:19], "%Y-%m-%dT%H:%M:%S"))
    return then - (time.time() - (time.monotonic() - line["_at"]))


@pytest.mark.short("transaction-ahead", "transaction-back")
@pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["ahead", "back"])
@pytest.mark.parametrize("completion", COMPLETIONS)
def test_the_clock_of_the_sidecar_may_jump(bed, clock, release, completion, jump):
    """The sidecar uses the monotonic clock and the database's: nothing is due earlier or later."""
    gate = Gate()
    slow = lambda request, reply: gate.wait() or well_behaved(bed, completion)(request, reply)  # noqa: E731
    failing = Script(500, well_behaved(bed, completion))
    bed.app.handler = lambda request, reply: (slow if request.message_id == "slow" else failing)(request, reply)
    sidecar = bed.sidecar(binary=release, environment=clock.environment, completion=completion, token_window="20s",
                          retry={"backoff": "2s", "max_backoff": "2s"})
    ids = [f"m{i}" for i in range(12)]
    bed.queue.publish("slow")
    gate.wait_for_waiting()
    bed.queue.publish_many(ids)
    sidecar.wait_for("retry", n=10)
    clock.jump(jump)
    state = sidecar.config["state_file"]
    hold_true(lambda: say("health", "--live", "--state", state)[0] == 0, "it is live", 1.0)
    bed.wait_for_effects(ids)
    gate.open()
    sidecar.wait_for("completed", message_id="slow")
    since = sidecar.mark()
    assert abs(seconds_off(sidecar.wait_for("stats", since=since, n=2)) - jump) < 60, "the jump was real"
    assert bed.letters() == [] and len(bed.app.posts()) == 25
    bed.assert_once("slow", *ids)
    assert sidecar.term() == 0
    bed.queue.assert_empty()


class OtherTimes(servers.PostgreSQL):
    """A server whose clock a test sets."""

    def __init__(self, folder, certificates, clock):
        super().__init__(folder, certificates)
        self.clock = clock

    def _as_owner(self, *arguments):
        whole = super()._as_owner(*arguments)
        program = len(whole) - len(arguments)  # not before what changes the user: the clock's library marks it as the first user's
        return [*whole[:program], "env", *(f"{k}={v}" for k, v in self.clock.environment.items()), *whole[program:]]


@pytest.fixture(scope="module")
def other_times(raw_postgres, certificates):
    schema.require_binary()
    folder = os.path.join(raw_postgres.folder, "other-times-" + uuid.uuid4().hex[:6])
    os.makedirs(folder)
    clock = make_clock(folder)
    server = OtherTimes(os.path.join(folder, "server"), certificates, clock).init().start()
    schema.migrate(server)
    yield server
    server.stop()


@pytest.fixture
def timed(bed, other_times):
    """A bed on that server."""
    from rig.bed import Bed

    made = Bed(bed.name, tempfile.mkdtemp(dir=bed.folder), other_times, bed.rabbitmq)
    bed.sidecars = made.sidecars  # shown on a failure
    other_times.clock.jump(0)
    yield made
    bed.sidecars = []
    made.deinit()
    other_times.clock.jump(0)


def fails_once(bed, completion, **slow):
    failing = Script(500, well_behaved(bed, completion))
    return lambda request, reply: slow.get(request.message_id, failing)(request, reply)


@pytest.mark.short("transaction")
@pytest.mark.xdist_group("other_times")
@pytest.mark.parametrize("completion", COMPLETIONS)
def test_the_clock_of_the_database_may_jump_ahead(timed, other_times, completion):
    """Tokens expire and retries are due an hour early. What is in flight completes all the same."""
    gate = Gate()

    def slow(request, reply):
        gate.wait()
        return well_behaved(timed, completion)(request, reply)

    timed.app.handler = fails_once(timed, completion, slow=slow)
    sidecar = timed.sidecar(completion=completion, token_window="30s", retry={"backoff": "2s", "max_backoff": "2s"})
    timed.queue.publish("slow")
    gate.wait_for_waiting()
    ids = [f"m{i}" for i in range(12)]
    timed.queue.publish_many(ids)
    sidecar.wait_for("retry", n=10)
    other_times.clock.jump(HOUR)
    assert timed.row("slow")["left"].total_seconds() < -HOUR + 60, "the jump was real"
    gate.open()
    sidecar.wait_for("completed", message_id="slow")
    timed.queue.publish("slow")
    sidecar.wait_for("duplicate", message_id="slow")
    timed.wait_for_effects(ids)
    sidecar.wait_for_quiet()
    assert len(timed.app.posts()) == 25 and timed.letters() == []
    timed.assert_once("slow", *ids)
    timed.assert_acked()


@pytest.mark.xdist_group("other_times")
def test_a_clock_that_jumps_past_the_retention_makes_the_inbox_forget_nothing(timed, other_times):
    """Half a minute of a wrong clock at the database, and then the copies come."""
    sidecar = timed.sidecar(retention="2h")
    ids = [f"m{i}" for i in range(20)]
    timed.queue.publish_many(ids)
    timed.wait_for_effects(ids)
    sidecar.wait_for_quiet()
    other_times.clock.jump(3 * HOUR)
    line = sidecar.wait_for("clocks_differ", n=2, deadline=30)
    assert abs(line["ahead_ms"] - 3 * HOUR * 1000) < 60_000 and line["level"] == "warning"
    timed.queue.publish_many(ids)
    sidecar.wait_for("duplicate", n=10)
    wait_until(lambda: sum(e["duplicates"] for e in sidecar.find("stats")) == 20, "all copies are known")
    other_times.clock.jump(0)
    assert not sidecar.find("purged") and len(timed.app.posts()) == 20
    timed.assert_once(*ids)
    timed.assert_acked()


@pytest.mark.xdist_group("other_times")
def test_the_clock_of_the_database_may_jump_ahead_and_a_copy_takes_a_live_token_over(timed, other_times):
    """The database's clock is the one that counts. The first holder, whose window is not over by any other, is fenced off."""
    gate = Gate()
    refused = []

    def late(request, reply):
        gate.wait()
        refused.append(timed.app.try_commit(request))
        return 500

    timed.app.handler = Script(late, timed.app.commit_and_answer)
    first = timed.sidecar(token_window="60s")
    timed.queue.publish("m1")
    gate.wait_for_waiting()
    first.freeze()  # so that the copy goes to the other one, which does not see it in flight
    timed.queue.publish("m1")
    other_times.clock.jump(HOUR)
    other = timed.sidecar(token_window="60s")
    first.thaw()
    for _ in range(4):
        timed.queue.publish("m1")
    other.wait_for("taken_over", message_id="m1", deadline=40)
    other.wait_for("completed", message_id="m1")
    gate.open()
    wait_until(lambda: refused, "the late handler ended")
    assert refused[0] in ("OW001", "OW003")
    first.wait_for_quiet()
    other.wait_for_quiet()
    assert len(timed.app.posts()) == 2 and timed.letters() == []
    timed.assert_once("m1")
    timed.assert_acked()


@pytest.mark.short("transaction")
@pytest.mark.xdist_group("other_times")
@pytest.mark.parametrize("completion", COMPLETIONS)
def test_the_clock_of_the_database_may_jump_back(timed, other_times, completion):
    """Retries are due an hour late, and it is said; when the clock is put right they are not waited for any longer."""
    gate = Gate()

    def slow(request, reply):
        gate.wait()
        return well_behaved(timed, completion)(request, reply)

    timed.app.handler = fails_once(timed, completion, slow=slow)
    sidecar = timed.sidecar(completion=completion, token_window="30s", retry={"backoff": "2s", "max_backoff": "2s"})
    timed.queue.publish("slow")
    gate.wait_for_waiting()
    ids = [f"m{i}" for i in range(12)]
    timed.queue.publish_many(ids)
    sidecar.wait_for("retry", n=10)
    mark = sidecar.mark()
    other_times.clock.jump(-HOUR)
    gate.open()
    sidecar.wait_for("completed", message_id="slow")
    timed.queue.publish("new")
    line = sidecar.wait_for("parked", since=mark, why="not_due", wait_ms=lambda ms: ms > 1000 * (HOUR - 60))
    assert line["last_error"] == "answered 500"
    sidecar.wait_for("completed", message_id="new")
    assert not sidecar.find("dead")
    other_times.clock.jump(0)
    timed.wait_for_effects(["slow", *ids, "new"])
    sidecar.wait_for_quiet()
    assert len(timed.app.posts()) == 27 and timed.letters() == []
    timed.assert_once("slow", "new", *ids)
    timed.assert_acked()


def test_health_consuming_is_false_until_the_database_was_reached_and_true_from_then_on(bed):
    def asked(sidecar, question):
        return run("health", question, "--state", sidecar.config["state_file"])

    wrong = bed.sidecar(wait=False, top={"database": {"url": "postgresql://nobody@127.0.0.1:1/none"}})
    wait_until(lambda: asked(wrong, "--ready").status == 0, "it waits for something outside", 30, 0.2)
    done = asked(wrong, "--consuming")
    assert done.status == 1 and "has not consumed yet" in done.out, done.text
    wrong.kill()
    sidecar = bed.sidecar()
    wait_until(lambda: asked(sidecar, "--consuming").status == 0, "it has consumed", 30, 0.2)
    assert asked(sidecar, "--consuming").out == "consuming\n"
