"""kill -9 at every failpoint, in both completions: started again, the outcome is the one that failpoint.def promises.

Needs a program built with -DONCEWARD_FAILPOINTS: ONCEWARD_FAILPOINT_BINARY."""

import json
import os
import re
import signal
import subprocess

import psycopg2
import pytest

from rig import crashes, process
from rig.application import Gate
from rig.wait import wait_until
from test_outbox import box, gauge, letters, publish_many, wait_for_nothing_waiting  # noqa: F401 - box is a fixture

POINTS, OUTCOMES = crashes.read()
BINARY = os.environ.get("ONCEWARD_FAILPOINT_BINARY", "")
needs_failpoints = pytest.mark.skipif(not os.access(BINARY, os.X_OK), reason="ONCEWARD_FAILPOINT_BINARY names no program")
MODES = ("transaction", "response")

# What must happen for a point to be reached, by the first word of its name.
SCENARIOS = {"fail": "fails", "revoke": "hangs", "release": "not_now", "bury": "dies", "reject": "dies", "return": "drained", "cancel": "drained",
             "close": "drained", "look": "copy", "renew": "renewed", "publish": "renewed"}
FORWARDED = 3  # turns of the worker until the request is surely on the wire


class Story:
    """Sends one message through one failpoint: the sidecar dies there, and is restarted."""

    def __init__(self, bed, mode, point):
        self.bed, self.mode, self.point = bed, mode, point
        self.outcome = getattr(point, mode)
        self.scenario = SCENARIOS.get(point.name.split("_")[0], "plain")
        self.gate = Gate()
        self.dead = False
        bed.app.handler = self.handle
        # In `transaction` the same instance takes its own claims over at once; in `response` it waits for the window.
        self.top = {"instance": "crash-matrix"}
        self.keys = {"completion": mode, "token_window": "2s", "retry": {"max_attempts": 5}, "forward": {"concurrency": 1}}

    def act(self, request):
        try:
            self.bed.app.commit(request, complete=self.mode == "transaction")
            return 200
        except psycopg2.Error:
            return 409  # taken over meanwhile

    def handle(self, request, reply):
        n = len(self.bed.app.posts(request.message_id))
        if self.scenario == "dies":
            return 422
        if n == 1 and self.scenario == "fails":
            return 500
        if n == 1 and self.scenario == "not_now":
            reply.status(429, headers={"Retry-After": "0"})
            return None
        if n == 1 and (self.scenario in ("hangs", "drained", "copy") or self.point.name == "forward_waiting"):
            self.gate.wait()
            if self.scenario == "hangs":
                return 500
        return self.act(request)

    # the sidecar that dies

    def killed(self, sidecar):
        wait_until(lambda: sidecar.child.poll() is not None, f"the sidecar is killed at {self.point.name}", 25)
        assert sidecar.child.returncode == -signal.SIGKILL
        sidecar._reader.join(40)
        process.reap(sidecar.child)
        sidecar.child = None
        self.dead = True

    def start_and_die(self):
        bed, n = self.bed, FORWARDED if self.point.name == "forward_waiting" else 1
        failpoint = {"ONCEWARD_FAILPOINT": f"{self.point.name}:kill:{n}"}
        if self.scenario == "copy":
            self.holder = bed.sidecar("holder", **{**self.keys, "token_window": "60s"})  # what it holds, it holds until the gate is open
            bed.queue.publish_many(["m1"])
            self.gate.wait_for_waiting()
            sidecar = bed.sidecar("victim", top=self.top, environment=failpoint, binary=BINARY, **self.keys)
            bed.queue.publish_many(["m1"] * 2)
        elif self.scenario == "renewed":  # redelivered three times on a queue with a limit of 5
            bed.queue = bed.new_queue("-renewed", arguments={"x-queue-type": "quorum", "x-delivery-limit": 5})
            bed.queue.publish_many(["m1"])
            for _ in range(3):
                bed.queue.wait_for_ready(1)
                bed.queue.channel.basic_reject(bed.queue.channel.basic_get(bed.queue.name)[0].delivery_tag, requeue=True)
            bed.queue.wait_for_ready(1)
            sidecar = bed.sidecar("victim", wait=False, queue=bed.queue, top=self.top, environment=failpoint, binary=BINARY, **self.keys)
        else:
            early = self.point.name.split("_")[0] in ("database", "broker", "consume")
            sidecar = bed.sidecar("victim", wait=not early, top=self.top, environment=failpoint, binary=BINARY, **self.keys)
            bed.queue.publish_many(["m1", "m2", "m3"] if self.scenario == "drained" else ["m1"])
        if self.scenario == "drained":
            self.gate.wait_for_waiting()
            sidecar.signal(signal.SIGTERM)
            if self.point.name == "close_before":
                sidecar.wait_for("draining")
                self.gate.open()
        self.killed(sidecar)
        self.gate.open()
        return sidecar

    def start_again(self, sidecar):
        sidecar.environment = {}
        sidecar.start()

    # what must have come of it

    def check(self):
        ids = ["m1", "m2", "m3"] if self.scenario == "drained" else ["m1"]
        for message_id in ids:
            self.bed.wait_for_status(message_id, "dead" if self.scenario == "dies" else "completed", 30)
        # The broker has seen the death of the first life, and delivered what that held.
        self.bed.queue.wait_for_consumers(len(self.bed.sidecars))
        self.bed.queue.wait_for_ready(0)
        self.bed.assert_acked()
        posts = self.bed.app.posts("m1")
        assert {p.header("Idempotency-Key") for p in posts} == {'"m1"'}
        assert len({p.token for p in posts}) == len(posts), "a token went out twice"
        effects = self.bed.app.effects()
        if self.mode == "transaction":
            assert all(effects.get(i, 0) == (self.scenario != "dies") for i in ids), effects
        getattr(self, "check_" + self.outcome.lower())([p.attempt for p in posts], effects.get("m1", 0), self.bed.letters())

    def check_nothing(self, attempts, effects, letters):
        assert (attempts[-1], effects, letters) in ((1, 1, []), (2, 1, []))

    def check_fresh(self, attempts, effects, letters):
        assert (attempts, effects, letters) == ([1], 1, [])

    def check_fresh_or_claimed(self, attempts, effects, letters):
        assert attempts in ([1], [2]) and (effects, letters) == (1, [])

    def check_claimed(self, attempts, effects, letters):
        assert (attempts, effects, letters) == ([2], 1, [])

    def check_forwarded(self, attempts, effects, letters):
        assert attempts in ([1], [2], [1, 2]) and (effects, letters) == (1, [])

    def check_forwarded_open(self, attempts, effects, letters):
        assert attempts in ([2], [1, 2]) and effects == len(attempts) and not letters

    def check_done(self, attempts, effects, letters):
        assert (attempts, effects, letters) == ([1], 1, [])

    def check_repeated(self, attempts, effects, letters):
        assert (attempts, effects, letters) == ([1, 2], 2, [])

    def check_repeated_or_done(self, attempts, effects, letters):
        assert attempts in ([1], [1, 2]) and effects == len(attempts) and not letters

    def check_retried(self, attempts, effects, letters):
        assert (attempts, effects, letters) == ([1, 2], 1, [])

    check_charged = check_retried

    def check_charged_or_back(self, attempts, effects, letters):
        assert attempts in ([1, 1], [1, 2]) and (effects, letters) == (1, [])

    def check_back(self, attempts, effects, letters):
        assert (attempts, effects, letters) == ([1, 1], 1, [])

    def check_dying(self, attempts, effects, letters):
        assert (attempts, effects) == ([1, 2], 0)
        assert [x["reason"] for x in letters] == ["permanent"]

    def check_dying_or_dead(self, attempts, effects, letters):
        assert attempts in ([1], [1, 2]) and effects == 0
        assert [x["reason"] for x in letters] == ["permanent"]

    def check_dead(self, attempts, effects, letters):
        assert (attempts, effects) == ([1], 0)
        assert [x["reason"] for x in letters] == ["permanent"]

    def check_returned(self, attempts, effects, letters):
        """Of m1 the application had the request; the others were only held."""
        assert attempts in ([1], [1, 2]) and not letters
        for message_id in ("m2", "m3"):
            assert [p.attempt for p in self.bed.app.posts(message_id)] == [1]

    def check_renewed(self, attempts, effects, letters):
        assert (attempts, effects, letters) == ([1], 1, [])

    def check_copy(self, attempts, effects, letters):
        assert (attempts, effects, letters) == ([1], 1, [])


RUN = [(p, mode) for p in POINTS for mode in MODES if getattr(p, mode) != "NEVER" and not p.name.startswith(("redrive", "migrate", "relay"))]


# The sidecar passes most points alike in both modes; claims, requests and completions are killed in both.
BOTH_MODES = ("claim", "forward", "complete", "settle", "reject")


@needs_failpoints
@pytest.mark.short(*[f"{p.name}-{mode}" for p, mode in RUN
                     if mode == "transaction" or p.transaction == "NEVER" or p.name.startswith(BOTH_MODES)])
@pytest.mark.parametrize("point,mode", RUN, ids=[f"{p.name}-{mode}" for p, mode in RUN])
def test_killed_there_it_comes_to_a_good_end(bed, point, mode):
    story = Story(bed, mode, point)
    sidecar = story.start_and_die()
    story.start_again(sidecar)
    story.check()


def test_every_point_is_met():
    """Each row of the table is run in some way."""
    tested = {p.name for p, _ in RUN} | {"redrive_before", "redrive_reset", "redrive_published", "redrive_confirmed", "redrive_deleted",
                                         "migrate_before", "migrate_committed", "relay_read", "relay_sent", "relay_confirmed", "relay_buried",
                                         "relay_written", "relay_turned"}
    assert tested == {p.name for p in POINTS}


# --- the outbox ---

RELAYS = [(p, n) for p in POINTS if p.name.startswith("relay") for n in ((1, 2) if p.name in ("relay_sent", "relay_confirmed", "relay_written") else (1,))]
N_ROWS = 1000  # more than the broker may have to confirm at once


@needs_failpoints
@pytest.mark.short(*[f"{p.name}-{n}" for p, n in RELAYS if n == 1])
@pytest.mark.parametrize("point, n", RELAYS, ids=[f"{p.name}-{n}" for p, n in RELAYS])
def test_a_relay_killed_there_leaves_nothing_out(box, point, n):
    """n: at the first, or the second time that it comes there."""
    ids = [f"m{i:04}" for i in range(N_ROWS)]
    publish_many(box, ids[:500])
    publish_many(box, ["nowhere"], key="nobody")
    publish_many(box, ids[500:])
    sidecar = box.sidecar("relay", wait=False, top={"queues": None, "outbox": {}, "instance": "relay"}, binary=BINARY,
                          environment={"ONCEWARD_FAILPOINT": f"{point.name}:kill:{n}"})
    wait_until(lambda: sidecar.child.poll() is not None, f"the relay is killed at {point.name}", 40)
    assert sidecar.child.returncode == -signal.SIGKILL
    sidecar._reader.join(40)
    process.reap(sidecar.child)
    sidecar.child = None
    done = [*ids[:500], "nowhere", *ids[500:]][:N_ROWS + 1 - gauge(box)["waiting"]]  # written as relayed
    letters_then = len(letters(box))
    sidecar.environment = {}
    sidecar.start()
    wait_for_nothing_waiting(box)
    found = []
    wait_until(lambda: collect(box, found) and set(found) >= set(ids), lambda: f"all are there: {len(set(found))} of {N_ROWS}")
    assert list(dict.fromkeys(found)) == ids, "the first copies are in order"
    assert [x["message_id"] for x in letters(box)] == ["nowhere"]
    assert all(found.count(i) == 1 for i in done if i != "nowhere"), "what was written as relayed came again"
    assert letters_then == 1 or "nowhere" not in done and point.name != "relay_buried"
    if point.transaction == "UNSENT":
        assert not done and found == ids
    elif point.name == "relay_written":
        assert done


def collect(box, found):
    """The messages in the queue now."""
    while (message := box.queue.channel.basic_get(box.queue.name, auto_ack=True))[0]:
        found.append(message[1].message_id)
    return True


# --- commands ---


def command(bed, *arguments, failpoint=None, binary=None):
    path = os.path.join(bed.folder, "command.json")
    with open(path, "w") as f:
        json.dump(bed.config(top={"database": {"url": bed.postgres.dsn()}}), f)
    environment = dict(os.environ, ONCEWARD_FAILPOINT=failpoint or "")
    return subprocess.run([BINARY, *arguments, "--config", path], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=60)


REDRIVES = [p for p in POINTS if p.name.startswith("redrive")]


@needs_failpoints
@pytest.mark.parametrize("point", REDRIVES, ids=[p.name for p in REDRIVES])
def test_redrive_killed_there_is_run_again(bed, point):
    bed.app.handler = lambda request, reply: 422
    sidecar = bed.sidecar(start=True)
    bed.queue.publish_many(["m1"])
    bed.wait_for_status("m1", "dead")
    sidecar.wait_for_nothing_held()
    assert sidecar.term() == 0
    done = command(bed, "dead", "redrive", "--consumer", bed.queue.name, failpoint=f"{point.name}:kill")
    assert done.returncode == -signal.SIGKILL, done.stdout
    letters, status, ready = len(bed.letters()), bed.status("m1"), bed.queue.n_ready
    if point.transaction == "LETTER":
        assert (letters, status, ready) == (1, "dead", 0)
    elif point.transaction == "LETTER_READY":
        assert (letters, status, ready) == (1, "waiting", 0)
    elif point.transaction == "LETTER_SENT":
        assert (letters, status) == (1, "waiting") and (ready == 1 or point.name == "redrive_published")
    else:
        assert (point.transaction, letters, status, ready) == ("REDRIVEN", 0, "waiting", 1)
    again = command(bed, "dead", "redrive", "--consumer", bed.queue.name)
    assert again.returncode == 0, again.stdout
    assert not bed.letters()
    bed.app.handler = bed.app.commit_and_answer
    sidecar.start()
    bed.wait_for_status("m1", "completed")
    sidecar.wait_for_nothing_held()
    bed.assert_acked()
    bed.assert_once("m1")
    assert not bed.letters()


@pytest.mark.long
@needs_failpoints
@pytest.mark.parametrize("point", REDRIVES, ids=[p.name for p in REDRIVES])
def test_redrive_under_an_id_that_is_found_now_killed_there_is_run_again(bed, point):
    """The message died without a row, since message_id looked elsewhere."""
    first = bed.sidecar(message_id=["header:elsewhere"], brake=0)
    bed.queue.publish_many(["m1"])
    first.wait_for("dead")
    first.wait_for_nothing_held()
    assert first.term() == 0
    done = command(bed, "dead", "redrive", "--consumer", bed.queue.name, failpoint=f"{point.name}:kill")
    assert done.returncode == -signal.SIGKILL, done.stdout
    assert len(bed.letters()) == (0 if point.name == "redrive_deleted" else 1)
    again = command(bed, "dead", "redrive", "--consumer", bed.queue.name)
    assert again.returncode == 0 and not bed.letters(), again.stdout
    second = bed.sidecar()
    bed.wait_for_status("m1", "completed")
    second.wait_for_nothing_held()
    bed.assert_acked()
    bed.assert_once("m1")
    assert not bed.letters()


@needs_failpoints
@pytest.mark.parametrize("name", ["migrate_before", "migrate_committed"])
def test_migrate_killed_there_is_run_again(bed, raw_postgres, name):
    point = next(p for p in POINTS if p.name == name)
    bed.postgres = raw_postgres.create_database(f"crash_{os.getpid()}_{name}")
    done = command(bed, "migrate", failpoint=f"{name}:kill")
    assert done.returncode == -signal.SIGKILL, done.stdout
    wait_until(lambda: not bed.rows("SELECT FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()", bed.postgres.database),
               "the server ends its session")
    there = bed.rows("SELECT to_regclass('onceward.schema_version') IS NOT NULL AS yes")[0]["yes"]
    assert there == (point.transaction == "MIGRATED")
    for _ in range(2):
        again = command(bed, "migrate")
        assert again.returncode == 0, again.stdout
    assert bed.rows("SELECT count(*)::int AS n FROM onceward.schema_version")[0]["n"] >= 1


# --- the build, and the table ---


@needs_failpoints
def test_a_failpoint_that_does_not_exist_is_refused():
    done = subprocess.run([BINARY, "version"], env=dict(os.environ, ONCEWARD_FAILPOINT="nowhere:kill"), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    assert done.returncode == 2 and b"nowhere:kill" in done.stdout


def strings_of(binary):
    with open(binary, "rb") as f:
        return {s.decode() for s in re.findall(rb"[ -~]{6,}", f.read())}


def test_a_release_has_no_failpoints():
    release = os.environ.get("ONCEWARD_RELEASE_BINARY", "")
    if not os.access(release, os.X_OK):
        pytest.skip("ONCEWARD_RELEASE_BINARY names no program")
    names = {p.name for p in POINTS} - {"delivered"}  # an ordinary word
    found = strings_of(release)
    assert not names & found and not any("ONCEWARD_FAILPOINT" in s for s in found)
    if os.access(BINARY, os.X_OK):
        assert names <= strings_of(BINARY), "the check itself finds nothing"


def test_the_page_has_the_table():
    """With ONCEWARD_UPDATE=1 it is written."""
    if os.environ.get("ONCEWARD_UPDATE"):
        crashes.update_page()
    assert crashes.on_page() == crashes.markdown(), "run this test with ONCEWARD_UPDATE=1"
