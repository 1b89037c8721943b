"""What operators do from outside: pause, resume, retry, give-up, on every replica, across restarts and interruptions of the database.

The commands write into the database, and each sidecar reads it there within five seconds."""

import json
import os
import subprocess

import pytest

from rig import schema
from rig.application import Gate
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
    return [bed.sidecar(**keys), bed.sidecar(**keys)]


def test_a_pause_holds_on_all_replicas_and_across_restarts(bed, operator):
    first, second = two(bed)
    done = operator("pause", "--reason", "deploy", "--by", "ann", "--json")
    assert done.json == {"consumer": bed.queue.name, "by": "ann", "changed": 1, "replicas": 2}
    for sidecar in (first, second):
        line = sidecar.wait_for("paused", reason="operator", deadline=SOON)
        assert line["by"] == "ann" and line["detail"] == "ann: deploy"
        sidecar.wait_for("stats", state="paused", paused_reason="operator")
    bed.queue.wait_for_consumers(0)
    bed.queue.publish_many([f"m{n}" for n in range(10)])
    first.term()
    third = bed.sidecar("third", wait=False)
    third.wait_for("paused", reason="operator", by="ann")
    fourth = bed.sidecar("fourth", wait=False)
    fourth.wait_for("paused", reason="operator")
    hold_true(lambda: bed.queue.n_ready == 10 and not bed.app.posts(), "nothing is taken", 1.0)
    assert not third.find("consuming") and not fourth.find("consuming")
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
    """One of two does not reach the database when the lever is pulled: it reads it when it does, and nothing is lost meanwhile."""
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
    assert done.out.startswith("1 row of ")
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
    second = bed.sidecar("second", brake=3)
    bed.app.handler = bed.app.commit_and_answer
    bed.wait_for_status("new", "completed")
    assert not second.find("lever") and len(bed.letters()) == 8
    bed.assert_once("new")


@pytest.mark.parametrize("command, arguments, words", [
    ("pause", ["--reason", "two\nlines"], "a line of text"),
    ("pause", ["m1"], "one argument too many"),
    ("resume", ["--reason", "x"], "usage"),
    ("give-up", [], "name messages by ID"),
    ("give-up", ["m1", "--held"], "not both"),
    ("retry", ["--held"], "usage"),
])
def test_what_makes_no_sense_is_refused(operator, command, arguments, words):
    assert words in operator(command, *arguments, expect=2).err


def test_a_consumer_that_nobody_knows_is_refused(bed, operator):
    bed.sidecar()
    for command in ("pause", "resume", "retry"):
        done = operator(command, "--consumer", "typo", expect=1)
        assert 'there is no consumer "typo"' in done.err
    assert not bed.rows("SELECT FROM onceward.control WHERE consumer = 'typo'")
