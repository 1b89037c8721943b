"""The log: what every line has, in each format; the trace of a message; how much an idle queue writes."""

import json
import os
import re
import signal
import subprocess

import pytest

from rig import process, schema
from test_commands import good

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"
EVENTS = os.path.join(os.path.dirname(__file__), "../../include/onceward/base/events.def")


def templates():
    """Each event's message template, as it stands in the table."""
    with open(EVENTS) as f:
        found = re.findall(r'^EVENT\(\w+, "(\w+)", \w+, \w+,\n\s+"([^"]*)",', f.read(), re.M)
    assert len(found) > 30
    return dict(found)


def message(template, line):
    """The message that a template makes of a line's fields."""
    def field(match):
        key = re.search(r"\{(\w+)\}", match[0])[1]
        value = line.get(key)
        return "" if value in (None, "") else match[0].strip("[]").replace("{" + key + "}", str(value))
    return re.sub(r"\[[^]]*\]|\{\w+\}", field, template)


def test_every_lines_message_holds_its_facts(bed):
    """Not a fixed sentence: the cause is where a reader looks first."""
    bed.app.handler = lambda request, reply: 400 if request.message_id == "bad" else 200
    sidecar = bed.sidecar(completion="response")
    bed.queue.publish("m1")
    bed.queue.publish("bad")
    sidecar.wait_for("completed", message_id="m1")
    assert sidecar.wait_for("dead")["message"] == "dead-lettered (permanent): answered 400"
    sidecar.wait_for("stats", completed_total=1)
    bed.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'sidecar_login' AND datname = current_database()")
    assert sidecar.wait_for("disconnected")["message"].startswith("disconnected from the database: ")
    sidecar.wait_for("connected", n=3)
    known = templates()
    for line in list(sidecar.events):
        assert line["message"] == message(known[line["event"]], line)
        assert list(line)[:5] == ["ts", "level", "event", "message", "queue"]


def test_what_is_said_of_a_message_names_its_trace(bed):
    bed.app.handler = lambda request, reply: 400 if request.message_id == "bad" else 500 if request.attempt == 1 else 200
    sidecar = bed.sidecar(completion="response", retry={"backoff": "10ms"})
    bed.queue.publish("good", headers={"traceparent": TRACEPARENT})
    bed.queue.publish("bad", headers={"traceparent": TRACEPARENT})
    bed.queue.publish("plain")
    bed.queue.publish("broken", headers={"traceparent": "00-" + TRACE_ID})
    for event, message_id in ("retry", "good"), ("completed", "good"), ("dead", "bad"):
        assert sidecar.wait_for(event, message_id=message_id)["trace_id"] == TRACE_ID
    for message_id in "plain", "broken":
        assert "trace_id" not in sidecar.wait_for("completed", message_id=message_id)
    bed.queue.publish("good", headers={"traceparent": TRACEPARENT})
    assert sidecar.wait_for("duplicate", message_id="good")["trace_id"] == TRACE_ID
    listed, = [json.loads(line) for line in good("dead", "list", "--json", "--config", sidecar.config_path, "--consumer", bed.queue.name).splitlines()]
    assert listed["message_id"] == "bad" and listed["trace_id"] == TRACE_ID
    assert re.search(rf"^trace id +{TRACE_ID}$", good("dead", "show", "--config", sidecar.config_path, str(listed["letter"])), re.M)
    redriven = json.loads(good("dead", "redrive", "--json", "--dry-run", "--config", sidecar.config_path, "--consumer", bed.queue.name).splitlines()[0])
    assert redriven["message_id"] == "bad" and redriven["trace_id"] == TRACE_ID


def test_an_idle_queue_writes_every_sixth_stats_line(bed):
    sidecar = bed.sidecar(top={"log": {"stats_interval": "200ms"}})
    sidecar.wait_for_quiet()
    since = sidecar.mark()
    sidecar.wait_for("stats", n=4, since=since)
    idle = [line["_at"] for line in sidecar.find("stats", since)]
    steps = [b - a for a, b in zip(idle[1:], idle[2:])]
    assert min(steps) > 0.8, steps  # never at an interval or two; a machine that stands still makes it later, not sooner
    bed.queue.publish("m1")
    busy = sidecar.wait_for("stats", since=since, completed=1)
    assert busy["completed_total"] == 1
    bed.app.stop()
    bed.queue.publish("m2")
    sidecar.wait_for("paused", since=since)
    since = sidecar.mark()
    sidecar.wait_for("stats", n=4, since=since)
    paused = [line["_at"] for line in sidecar.find("stats", since)]
    assert min(b - a for a, b in zip(paused, paused[1:])) < 0.8  # what does not go on is said at each interval


@pytest.mark.parametrize("name, keys, level", [
    ("ecs", ["@timestamp", "log.level", "event.action", "message", "queue"], "info"),
    ("gcp", ["time", "severity", "event", "message", "queue"], "INFO"),
    ("text", None, "info")])
def test_the_first_line_is_in_the_configured_format(tmp_path, name, keys, level):
    config = {"broker": {"url": "amqp://localhost:1/"}, "database": {"url": "postgresql://localhost:1/none"}, "log": {"format": name},
              "state_file": str(tmp_path / "state"), "queues": {"q": {"forward": {"url": "http://127.0.0.1:1/"}}}}
    path = tmp_path / "onceward.json"
    path.write_text(json.dumps(config))
    child = process.spawn([schema.require_binary(), "run", "--config", str(path)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL)
    try:
        first = child.stdout.readline().decode()
        if keys:
            line = json.loads(first)
            assert list(line)[:5] == keys and line[keys[1]] == level and line[keys[2]] == "started"
        else:
            assert re.match(r"^\d{4}-\d\d-\d\dT[\d:.]+Z info    started: version \S+, queues: 1 event=started version=\S+ instance=\S+ pid=\d+", first), first
        second = child.stdout.readline().decode()  # it hears a signal by now
        child.send_signal(signal.SIGTERM)
        rest = [second, *child.stdout.read().decode().splitlines()]
        assert rest and all(line.startswith("{") == bool(keys) for line in rest)
        assert child.wait(40) == 0
    finally:
        process.reap(child)
