"""What operators do from outside: pause, resume, retry, give-up, on every replica, across restarts and interruptions of the database.

The commands write into the database, and each sidecar reads it there within five seconds."""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
import time
from collections import Counter

import pytest

from rig import schema
from rig.application import Gate, Script
from rig.wait import hold_true, wait_until

SOON = 12.0  # five seconds are promised; the machine has other work


class Done:
    def __init__(self, done):
        self.status, self.out, self.err = done.returncode, done.stdout.decode(), done.stderr.decode()
        assert "Sanitizer" not in self.err and "runtime error" not in self.err, self.err

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def operator(bed):
    """Types a command with the bed's configuration; it must be done, unless another status is expected."""
    path = os.path.join(bed.folder, "operator.json")

    def type_(command, *arguments, expect=0, consumer=True):
        with open(path, "w", encoding="utf-8") as f:
            json.dump(bed.config(), f)
        of = ["--consumer", bed.queue.name] if consumer else []
        done = Done(subprocess.run([schema.require_binary(), command, "--config", path, *of, *arguments], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, timeout=60, check=False))
        assert done.status == expect, (done.status, done.out, done.err)
        return done

    return type_


def two(bed, **keys):
    """With the intervals of users."""
    return [bed.sidecar(environment={"ONCEWARD_FAILPOINT": ""}, **keys) for _ in range(2)]


def test_a_pause_holds_on_all_replicas_and_across_restarts(bed, operator):
    first, second = two(bed)
    done = operator("pause", "--reason", "deploy", "--by", "ann", "--json")
    assert done.json == {"consumer": bed.queue.name, "by": "ann", "changed": 1, "replicas": 2}
    for sidecar in (first, second):
        line = sidecar.wait_for("paused", reason="operator", deadline=SOON)
        assert line["by"] == "ann" and line["detail"] == "ann: deploy"
        sidecar.wait_for("stats", state="paused", paused_reason="operator")
    bed.queue.publish_many([f"m{n}" for n in range(10)])
    first.term()
    wait_until(lambda: bed.queue.n_ready >= 9, "a paused replica keeps one delivery, so that the queue has a consumer")
    third = bed.sidecar("third", wait=False)
    third.wait_for("paused", reason="operator", by="ann")
    fourth = bed.sidecar("fourth", wait=False)
    fourth.wait_for("paused", reason="operator")
    hold_true(lambda: bed.queue.n_ready >= 9 and not bed.app.posts(), "nothing more is taken", 1.0)
    assert not third.find("consuming") and not fourth.find("consuming")
    wait_until(lambda: subprocess.run([schema.require_binary(), "health", "--consuming", "--state", third.config["state_file"]], timeout=60,
                                      check=False).returncode == 0, "a rollout does not wait for the operator")
    assert "is not paused" in operator("resume", "--by", "bob").out
    for sidecar in (second, third, fourth):
        assert sidecar.wait_for("resumed", reason="operator", deadline=SOON)["by"] == "bob"
    for n in range(10):
        bed.wait_for_status(f"m{n}", "completed")
    bed.assert_acked()
    for n in range(10):
        bed.assert_once(f"m{n}")
    assert "was not paused" in operator("resume").out


def test_what_is_out_when_a_pause_comes_may_finish(bed, operator):
    gate = Gate()
    bed.app.handler = lambda request, reply: bed.app.commit(request, before_commit=gate.wait) and 200
    sidecar = bed.sidecar()
    bed.queue.publish("m1")
    gate.wait_for_waiting()
    operator("pause")
    sidecar.wait_for("paused", reason="operator", deadline=SOON)
    gate.open()
    sidecar.wait_for("completed", message_id="m1")
    bed.assert_once("m1")


def test_levers_while_the_database_is_away_for_a_sidecar(bed, operator):
    """A replica that cannot reach the database when the command is given reads it later, and nothing is lost meanwhile."""
    proxy = bed.new_proxy(bed.postgres.port)
    away = bed.config()
    away["database"]["url"] = bed.postgres.dsn(user="sidecar_login", port=proxy.port)
    first, second = bed.sidecar(), bed.sidecar(config=away)
    proxy.stop()
    second.wait_for("disconnected", peer="database")
    operator("pause", "--by", "ann")
    first.wait_for("paused", reason="operator", deadline=SOON)
    assert not second.find("paused", reason="operator")
    bed.queue.publish("m1")
    proxy.mend()
    second.wait_for("paused", reason="operator", by="ann")
    hold_true(lambda: not bed.app.posts(), "nothing is sent", 1.0)
    # The pause that it knows holds while the database is away again.
    mark = second.mark()
    proxy.stop()
    second.wait_for("disconnected", since=mark, peer="database")
    proxy.mend()
    second.wait_for("connected", since=mark, peer="database")
    operator("resume")
    first.wait_for("resumed", reason="operator", deadline=SOON)
    second.wait_for("resumed", reason="operator", deadline=SOON)
    bed.wait_for_status("m1", "completed")
    bed.assert_once("m1")


LONG = {"retry": {"max_attempts": 3, "backoff": "1h", "max_backoff": "1h"}, "retention": "3650d"}


def test_a_retry_makes_everything_due_at_once(bed, operator):
    bed.app.handler = lambda request, reply: reply.status(500)
    sidecar = bed.sidecar(**LONG)
    bed.queue.publish_many(["m1", "m2", "m3"])
    for message in ("m1", "m2", "m3"):
        sidecar.wait_for("retry", message_id=message)
    bed.app.handler = bed.app.commit_and_answer
    done = operator("retry", "m2", "--by", "ann")
    assert done.out.startswith("1 waiting message of ")
    assert sidecar.wait_for("lever", deadline=SOON, lever="retry")["by"] == "ann"
    bed.wait_for_status("m2", "completed")
    assert bed.status("m1") == bed.status("m3") == "failed"
    mark = sidecar.mark()
    assert operator("retry", "--json").json["rows"] == 2
    sidecar.wait_for("lever", deadline=SOON, since=mark, lever="retry")
    for message in ("m1", "m3"):
        bed.wait_for_status(message, "completed")
        bed.assert_once(message)
    bed.assert_acked()


def test_what_is_given_up_becomes_a_letter_and_can_be_redriven(bed, operator):
    bed.app.handler = lambda request, reply: reply.status(500)
    sidecar = bed.sidecar(**LONG)
    bed.queue.publish_many(["m1", "m2"])
    for message in ("m1", "m2"):
        sidecar.wait_for("retry", message_id=message)
    done = operator("give-up", "m1", "later", "--by", "ann", "--json")
    assert {m["message_id"]: m["answer"] for m in done.json["messages"]} == {"m1": "at_hand", "later": "unseen"}
    line = sidecar.wait_for("lever", deadline=SOON, lever="give_up")
    assert (line["by"], line["n"]) == ("ann", 1)
    sidecar.wait_for("dead", message_id="m1", reason="operator")
    bed.queue.publish("later", b"whole")
    sidecar.wait_for("dead", message_id="later", reason="operator")
    letter, = bed.letters("later")
    assert (letter["reason"], bytes(letter["body"]), letter["last_error"]) == ("operator", b"whole", "given up by ann")
    assert "500" in bed.letters("m1")[0]["last_error"], "its own last error stays"
    assert [r.message_id for r in bed.app.posts()].count("later") == 0
    assert bed.status("m2") == "failed", "nobody has given that up"
    bed.app.handler = bed.app.commit_and_answer
    operator("dead", expect=2)
    path = os.path.join(bed.folder, "operator.json")
    redriven = Done(subprocess.run([schema.require_binary(), "dead", "redrive", "--config", path], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, timeout=60, check=False))
    assert redriven.status == 0, redriven.err
    for message in ("m1", "later"):
        bed.wait_for_status(message, "completed")
        bed.assert_once(message)
    assert operator("give-up", "m1", expect=1).out.count("is completed")


def test_what_is_held_while_everything_fails_can_be_given_up(bed, operator):
    """Once by each replica, with what it had then; what comes later is not meant."""
    bed.app.handler = lambda request, reply: reply.status(400)
    sidecar = bed.sidecar(brake=3)
    old = [f"old{n}" for n in range(8)]
    bed.queue.publish_many(old)
    sidecar.wait_for("paused", reason="everything_fails")
    wait_until(lambda: len({r.message_id for r in bed.app.posts()}) == 8, "each was tried")
    assert not bed.letters()
    operator("give-up", "--held", "--by", "ann")
    bed.queue.publish("new")
    line = sidecar.wait_for("lever", deadline=SOON, lever="give_up_held")
    assert (line["by"], line["n"]) == ("ann", 8)
    for message in old:
        sidecar.wait_for("dead", message_id=message, reason="operator")
    wait_until(lambda: any(r.message_id == "new" for r in bed.app.posts()), "the new one is tried")
    assert len(bed.letters()) == 8 and bed.status("new") != "dead"
    # A replica that starts later does not do it again.
    sidecar.term()
    bed.app.handler = bed.app.commit_and_answer
    second = bed.sidecar("second", brake=3)
    bed.wait_for_status("new", "completed")
    assert not second.find("lever") and len(bed.letters()) == 8
    bed.assert_once("new")


@pytest.mark.parametrize("why", ["no ids", "other bodies", "no attempts left"])
def test_what_waits_to_die_while_everything_fails_can_be_given_up(bed, operator, why):
    """Each state in which a message is held for its letter alone."""
    ids = [f"m{n}" for n in range(8)]
    bed.app.handler = bed.app.commit_and_answer if why == "other bodies" else Script(500)
    sidecar = bed.sidecar(brake=3, retry={"max_attempts": 1})
    if why == "other bodies":
        bed.queue.publish_many(ids)
        sidecar.wait_for("completed", n=8)
        bed.queue.publish_many(ids, body=b"another")
    else:
        bed.queue.publish_many([None] * 8 if why == "no ids" else ids)
    sidecar.wait_for("paused", reason="no_message_ids" if why == "no ids" else "everything_fails")
    sidecar.wait_for("stats")
    wait_until(lambda: sidecar.find("stats")[-1]["held"] + len(bed.letters()) >= 8, "all of them are here")
    if why == "no attempts left":  # what was never tried has not failed, and is not held
        wait_until(lambda: {r.message_id for r in bed.app.posts()} == set(ids), "each was tried", 60)
    n_dead = len(bed.letters())
    operator("give-up", "--held", "--by", "ann")
    line = sidecar.wait_for("lever", deadline=SOON, lever="give_up_held")
    if line["n"] < 8 - n_dead:  # one was tried at that moment
        operator("give-up", "--held", "--by", "ann")
    wait_until(lambda: len(bed.letters()) == 8, lambda: f"all are dead, of {bed.letters()}", 30)
    wait_until(lambda: len(sidecar.find("dead", reason="operator")) == 8 - n_dead, "each is logged")
    bed.assert_acked()


def test_status_shows_who_is_alive_and_what_they_do(bed, operator):
    first, second = two(bed)
    bed.queue.publish_many(["m1", "m2"])
    operator("pause", "--reason", "deploy", "--by", "ann")
    operator("give-up", "m9", "--by", "bob")
    for sidecar in (first, second):
        sidecar.wait_for("paused", reason="operator", deadline=SOON)

    def shown():
        found = [r for r in operator("status", "--json", consumer=False).json["replicas"] if r["queue"] == bed.queue.name]
        return len(found) == 2 and all(r["state"] == "paused" for r in found) and found

    replicas = wait_until(shown, "both are shown as paused", deadline=SOON)
    for r in replicas:
        assert (r["consumer"], r["reason"], r["detail"]) == (bed.queue.name, "operator", "ann: deploy")
        assert r["seen_ms"] < 15_000 and r["paused_for_ms"] > 0 and r["in_flight"] == 0 and r["limit"] >= 1 and r["version"]
    lever, = [x for x in operator("status", "--json", consumer=False).json["levers"] if x["consumer"] == bed.queue.name]
    assert (lever["reason"], lever["by"], lever["give_up"], lever["give_up_by"]) == ("deploy", "ann", 1, "bob")
    text = operator("status", consumer=False).out
    assert "paused (operator)" in text and "by ann: deploy; 1 message to be given up." in text
    # Whoever is gone is not shown for long.
    second.kill()
    bed.rows("UPDATE onceward.replica SET seen_at = seen_at - interval '20 s' WHERE instance = %s", second.find("started")[0]["instance"])
    found = [r["instance"] for r in operator("status", "--json", consumer=False).json["replicas"] if r["queue"] == bed.queue.name]
    assert found == [first.find("started")[0]["instance"]]
    once = operator("top", consumer=False).out
    assert "operator for " in once and "\x1b" not in once


def test_the_rates_and_the_limit_are_shown(bed, operator):
    bed.app.handler = bed.app.commit_and_answer
    sidecar = bed.sidecar(forward={"concurrency": 4})
    assert all("limit" in line for line in [sidecar.wait_for("stats")])
    n = 0

    def shown():
        nonlocal n
        bed.queue.publish_many([f"m{k}" for k in range(n, n + 20)])
        n += 20
        r, = [r for r in operator("status", "--json", consumer=False).json["replicas"] if r["queue"] == bed.queue.name]
        return r["completed_per_s"] and r["received_per_s"] and r["forward_ms_p50"] and r["limit"] == 4 and r

    r = wait_until(shown, "rates, latencies and the limit", interval=0.3)
    assert r["forward_ms_p50"] <= r["forward_ms_p99"] and r["end_to_end_ms_p99"] and r["dead"] == 0
    sidecar.wait_for("stats", limit=4)


def test_a_low_limit_is_shown_with_its_reason_and_without_a_flood_of_lines(bed, operator):
    """An application that takes four requests at once and answers 429 to the others, as many do."""
    at_once = threading.Semaphore(4)

    def handler(request, reply):
        if not at_once.acquire(blocking=False):
            return 429
        try:
            time.sleep(0.05)
            return bed.app.act_and_answer(request, reply)
        finally:
            at_once.release()

    bed.app.handler = handler
    sidecar = bed.sidecar(completion="response", retry={"backoff": "100ms", "max_backoff": "200ms"})
    n = 0

    def shown():
        nonlocal n
        bed.queue.publish_many([f"m{k}" for k in range(n, n + 50)])
        n += 50
        r, = [r for r in operator("status", "--json", consumer=False).json["replicas"] if r["queue"] == bed.queue.name]
        return r["limit_reason"] == "answered 429" and r

    assert wait_until(shown, "the reason", deadline=60, interval=0.3)["limit"] < 16
    assert sidecar.wait_for("stats", limit_reason="answered 429")["limit"] < 16
    assert f"low limit of {bed.queue.name}: answered 429" in operator("status", consumer=False).out
    sidecar.wait_for("completed", n=n, deadline=60)
    sidecar.term()
    lines, refused = sidecar.find("given_back"), sum(line["given_back"] for line in sidecar.find("stats"))
    print(f"{n} messages, {refused} answers of 429, {len(lines)} lines")
    assert not sidecar.find("retry") and not bed.letters()
    seconds = Counter(line["ts"][:19] for line in lines)
    assert sum(seconds.values()) <= 10 + len(seconds)


class Screen:
    """A command on a terminal of its own."""

    def __init__(self, arguments, columns, lines, environment):
        surroundings = {**os.environ, "NO_COLOR": "", "TERM": "xterm", **environment}
        self.pid, self.fd = pty.fork()
        if not self.pid:
            try:
                os.execve(arguments[0], arguments, surroundings)
            finally:
                os._exit(127)  # never two of this process
        self.resize(columns, lines)
        self.text = ""
        threading.Thread(target=self._read, daemon=True).start()

    def resize(self, columns, lines):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def _read(self):
        try:
            while data := os.read(self.fd, 65536):
                self.text += data.decode(errors="replace")
        except OSError:
            pass

    def end(self, key):
        os.write(self.fd, key)
        wait_until(lambda: os.waitpid(self.pid, os.WNOHANG) != (0, 0) or None, "it ends")


@pytest.mark.parametrize("environment, coloured", [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_top_lives_on_a_terminal_until_q(bed, operator, environment, coloured):
    bed.sidecar()
    operator("resume")  # writes the configuration
    screen = Screen([schema.require_binary(), "top", "--config", os.path.join(bed.folder, "operator.json")], 160, 40, environment)
    wait_until(lambda: "consuming" in screen.text and "FORWARD P50/P99" in screen.text, lambda: screen.text)
    assert ("\x1b[32mconsuming" in screen.text) == coloured and ("\x1b[1m" in screen.text) == coloured
    seen = len(screen.text)
    screen.resize(40, 12)
    wait_until(lambda: "STATE" in screen.text[seen:] and "P50" not in screen.text[seen:].rsplit("onceward top", 1)[-1], lambda: screen.text)
    assert "\x1b[?1049h" in screen.text and "\x1b[?1049l" not in screen.text
    os.write(screen.fd, b"\x1a")  # Ctrl-Z: the shell has its terminal meanwhile
    wait_until(lambda: os.waitpid(screen.pid, os.WNOHANG | os.WUNTRACED)[0] or None, "it stops")
    wait_until(lambda: screen.text.endswith("\x1b[?25h\x1b[?1049l"), lambda: repr(screen.text[-80:]))
    seen = len(screen.text)
    os.kill(screen.pid, signal.SIGCONT)
    wait_until(lambda: "\x1b[?1049h" in screen.text[seen:] and "STATE" in screen.text[seen:], lambda: repr(screen.text[seen:]))
    screen.end(b"q")
    wait_until(lambda: screen.text.endswith("\x1b[?25h\x1b[?1049l"), lambda: repr(screen.text[-80:]))


@pytest.mark.parametrize("command, arguments, words", [
    ("pause", ["--reason", "two\nlines"], "a line of text"),
    ("pause", ["m1"], "one argument too many"),
    ("resume", ["--reason", "x"], "--help"),
    ("give-up", [], "ID… | --held is missing"),
    ("give-up", ["m1", "--held"], "ID… | --held: give one of them"),
    ("retry", ["--held"], "--help"),
])
def test_what_makes_no_sense_is_refused(operator, command, arguments, words):
    assert words in operator(command, *arguments, expect=2).err


def test_a_consumer_that_nobody_knows_is_refused(bed, operator):
    bed.sidecar()
    for command in ("pause", "resume", "retry"):
        done = operator(command, "--consumer", "typo", expect=1)
        assert 'there is no consumer "typo"' in done.err
    assert not bed.rows("SELECT FROM onceward.control WHERE consumer = 'typo'")
