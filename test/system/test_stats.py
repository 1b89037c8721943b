"""The stats and outbox lines: their fields are those of the table, which `explain` and the README are made from."""

import os
import re

import pytest

from rig import schema
from rig.application import Gate
from test_commands import explained, good, run

ENDINGS = {"VALUE": [""], "COUNT": ["", "_total"], "LATENCY": ["_p50", "_p99", "_max"], "BATCH": ["_p50", "_max"], "QUANTILES": ["_p50", "_p99"]}
OF_EVERY_LINE = ["ts", "level", "event", "message", "queue"]
WITH_A_PAUSE = {"paused_reason", "paused_detail"}
WITH_BAD_ANSWERS = {"limit_reason"}  # see test_pauses.py
WITH_A_RANGE = {"partitions", "partitions_active"}  # see test_partitions.py
WITH_BATCHES = {"batch_size"}  # see test_batches.py
WITH_ORDER = {"unkeyed", "unkeyed_total"}  # see test_order.py


def source():
    with open(os.path.join(os.path.dirname(__file__), "../../include/onceward/core/stats.def")) as f:
        return f.read()


def fields(macro="STAT"):
    """Of the source: the keys of each field of the stats line; OUTBOX: of the outbox line."""
    found = [(name, [name + ending for ending in ENDINGS[kind]])
             for name, kind in re.findall(rf'^{macro}\(\w+, "(\w+)", (\w+),', source(), re.M)]
    assert len(found) > 10
    return dict(found)


def states():
    found = re.findall(r'^STATE\(\w+, "(\w+)",', source(), re.M)
    assert len(found) > 8
    return found


def keys(macro="STAT"):
    return [key for of_field in fields(macro).values() for key in of_field]


@pytest.mark.parametrize("macro, line", [("STAT", "stats"), ("OUTBOX", "outbox")])
def test_each_field_is_explained_and_in_the_documentation(macro, line):
    listed = good("explain")
    table = good("explain", "--markdown", "--stats").split("\n### ")[line == "outbox"]
    for name, of_field in fields(macro).items():
        texts = {explained(key) for key in of_field}
        if name not in of_field:
            texts.add(explained(name))
        in_line = {re.search(rf"^.*\(field of {line}\)\n(?:  .{{10,}}\n){{2,3}}", text, re.M).group(0) for text in texts}
        assert len(in_line) == 1 and in_line.pop().startswith(of_field[0]), texts
        assert re.search(rf"^{of_field[0]}(, _\w+)* +\S", listed, re.M)
        assert "\n#### " + ", ".join(f"`{key}`" for key in of_field) + "\n" in table
    assert table.count("\n#### ") == table.count("\n**What to do:** ") == len(fields(macro))
    assert f"FIELD OF {line.upper()}" in listed and good("explain", "--stats") in listed


def test_each_state_is_explained_and_in_the_documentation():
    listed = good("explain")
    of_states = good("explain", "--markdown", "--stats").split("\n### ")[2]
    for state in states():
        assert re.search(rf"^{state} \(state of a queue, in stats\)\n  .{{10,}}\n  .{{10,}}\n", good("explain", state), re.M)
        assert re.search(rf"^{state} +\S", listed, re.M) and f"\n#### `{state}`\n\n" in of_states
    assert of_states.count("\n#### ") == of_states.count("\n**What to do:** ") == len(states())
    assert listed.index("\nstuck ") < listed.index("FIELD OF STATS")


def test_no_advice_says_that_an_operators_pause_ends_by_itself():
    for name in "paused", "paused_reason":
        for sentence in re.findall(r"[^.]*goes on by itself[^.]*", good("explain", name)):
            assert "onceward resume" in sentence, sentence


def test_each_reason_is_explained_and_in_the_documentation():
    with open(os.path.join(os.path.dirname(__file__), "../../include/onceward/core/reasons.def")) as f:
        text = f.read()
    pauses, deaths = good("explain", "--markdown", "--reasons").split("\n### ")
    listed = good("explain", "--reasons")
    for macro, of_what, table in (("PAUSE", "pause", pauses), ("DEAD", "dead letter", deaths)):
        names = re.findall(rf'^{macro}\(\w+, "(\w+)",', text, re.M)
        assert len(names) >= 8 and table.count("\n#### ") == table.count("\n**What to do:** ") == len(names)
        for name in names:
            assert re.search(rf"^{name} \(reason of a {of_what}\)\n  .{{10,}}\n  .{{10,}}\n", explained(name), re.M)
            assert re.search(rf"^{name} +\S", listed, re.M) and f"\n#### `{name}`\n\n" in table
    assert listed in good("explain")


def test_what_is_an_event_and_a_field_too_is_explained_as_both():
    out = good("explain", "dead")
    assert out.startswith("dead (error)") and "\ndead, _total (field of stats)" in out
    assert "forward_ms" in run("explain", "forward").err


def test_a_line_has_the_fields_of_the_table_in_its_order_and_each_of_them_is_written(bed):
    link = bed.new_proxy(bed.rabbitmq.port)
    link.refuse()
    gate = Gate()

    def handler(request, reply):
        if request.message_id == "first":  # it is seen alive
            return 204
        if len(bed.app.posts("suspect")) == 1:
            reply.reset()
            return None
        gate.wait()
        return 204

    bed.app.handler = handler
    sidecar = bed.sidecar(wait=False, top={"broker": {"url": bed.rabbitmq.url(port=link.port)}}, completion="response",
                          token_window="60s", max_message="1KiB", ready={"interval": "20ms"})
    sidecar.wait_for("stats", depth=None, depth_reason="not connected")
    link.mend()
    sidecar.wait_for("consuming", deadline=40)
    bed.queue.publish("first")
    bed.wait_for_status("first", "completed")
    bed.queue.publish("suspect")
    gate.wait_for_waiting()
    sidecar.wait_for("stats", state="suspects", state_detail=lambda text: text)
    gate.open()
    bed.wait_for_status("suspect", "completed", 30)
    bed.queue.publish("large", b"x" * 2000)
    sidecar.wait_for("stats", held=1, parked=1)
    good("pause", "--config", sidecar.config_path, "--consumer", bed.queue.name, "--reason", "a look")
    sidecar.wait_for("stats", state="paused", paused_reason="operator", paused_detail=lambda text: text)
    sidecar.term()
    order = OF_EVERY_LINE + keys()
    seen = set()
    for line in sidecar.find("stats"):
        has = [key for key in line if not key.startswith("_")]
        assert has == [key for key in order if key in line], "fields that are not in the table, or out of its order"
        assert set(order) - set(has) <= WITH_A_PAUSE | WITH_A_RANGE | WITH_BATCHES | WITH_ORDER | WITH_BAD_ANSWERS | {"state_detail", "depth_reason", "oldest_snapshot_reason"}
        assert ("depth_reason" in has) == (line["depth"] is None)
        assert ("oldest_snapshot_reason" in has) == (line["oldest_snapshot_ms"] is None)
        assert line["state"] in states()
        seen |= set(has)
    assert seen - WITH_BAD_ANSWERS == set(order) - WITH_A_RANGE - WITH_BATCHES - WITH_ORDER - WITH_BAD_ANSWERS, f"never written: {set(order) - seen}"
