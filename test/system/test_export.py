"""onceward export: rows, letters and stored messages as JSON lines, in order, and resumable."""

import json
import os
import signal
import subprocess

import pytest

from test_replay import Idle, put
from test_store import STORE


@pytest.fixture
def idle(bed):
    return Idle(bed)


def export(sidecar, *arguments, status=0):
    done = subprocess.run([sidecar.binary, "export", "--config", sidecar.config_path, *arguments], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    assert done.returncode == status, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.decode().splitlines()], done.stderr.decode()


def fill(bed, n=3):
    """Rows and messages of one consumer, and letters."""
    put(bed, n)
    bed.rows("INSERT INTO onceward.inbox (consumer, message_id, status, attempt, token, fingerprint, received_at, token_expires_at,"
             " max_expires_at, claimed_by) SELECT %s, 'm' || i, 'completed', 1, gen_random_uuid(), '\\x00', now(), now(), now(), 'a'"
             " FROM generate_series(1, %s) i", bed.queue.name, n)
    bed.rows("INSERT INTO onceward.dead_letter (consumer, vhost, queue, message_id, rowless, reason, attempts, body, exchange,"
             " routing_key, deaths, died_at) SELECT %s, '/', 'q', 'd' || i, false, 'attempts', 1, '\\x00ff', '', 'q', 0, now()"
             " FROM generate_series(1, %s) i", bed.queue.name, n)


def told(lines):
    return [(line["kind"], line["message_id"]) for line in lines]


def test_all_three_kinds_whole(bed):
    """Of messages that went the whole way."""
    bed.app.handler = lambda request, reply: 400 if request.message_id == "dead" else bed.app.commit_and_answer(request, reply)
    sidecar = bed.sidecar(**STORE)
    bed.queue.publish("good", b'{"a": 1}', headers={"x-n": 5}, type="t", content_type="application/json")
    bed.queue.publish("dead", b"\x00\xff")
    sidecar.wait_for("dead", message_id="dead")
    bed.wait_for_status("good", "completed")
    lines, said = export(sidecar, "--consumer", bed.queue.name)
    assert [line["kind"] for line in lines] == ["row", "row", "letter", "message", "message"] and "2 rows, 1 letters, 2 messages" in said
    row = next(line for line in lines if line["kind"] == "row" and line["message_id"] == "good")
    assert row["status"] == "completed" and row["received_at"] and row["message_type"] == "t" and "token" not in row
    letter = lines[2]
    assert letter["message_id"] == "dead" and letter["body_base64url"] == "AP8" and letter["reason"]
    good = next(line for line in lines if line["kind"] == "message" and line["message_id"] == "good")
    assert good["body"] == '{"a": 1}' and good["headers"] == {"x-n": 5} or good["headers"]["x-n"]
    assert good["properties"]["type"] == "t" and good["received_at"].endswith("Z")


def test_each_kind_alone_and_in_its_order(bed, idle):
    fill(bed, 12)
    only = ("--consumer", bed.queue.name)
    assert told(export(idle, *only, "--rows")[0]) == [("row", m) for m in sorted(f"m{i}" for i in range(1, 13))]
    assert told(export(idle, *only, "--letters")[0]) == [("letter", f"d{i}") for i in range(1, 13)]
    assert told(export(idle, *only, "--messages")[0]) == [("message", f"m{i}") for i in range(1, 13)]
    assert not export(idle, *only, "--messages", "--since", "30m")[0] and len(export(idle, *only, "--since", "2h", "--until", "30m")[0]) == 12


def test_it_goes_on_behind_any_line(bed, idle):
    fill(bed, 3)
    only = ("--consumer", bed.queue.name)
    lines, _ = export(idle, *only)
    assert len(lines) == 9
    for i, line in enumerate(lines):
        assert export(idle, *only, "--after", line["position"])[0] == lines[i + 1:]


@pytest.mark.parametrize("cut", [0, 1, 40, 700])
def test_a_file_that_was_cut_anywhere_is_completed(bed, idle, tmp_path, cut):
    fill(bed, 3)
    path = str(tmp_path / "archive.jsonl")
    arguments = ("--consumer", bed.queue.name, "--output", path)
    export(idle, *arguments)
    with open(path, "rb") as f:
        whole = f.read()
    with open(path, "wb") as f:
        f.write(whole[:len(whole) - cut])
    export(idle, *arguments)
    with open(path, "rb") as f:
        assert f.read() == whole
    assert len(whole.splitlines()) == 9


def test_killed_and_run_again_nothing_is_missing_or_twice(bed, idle, tmp_path):
    fill(bed, 3000)
    path = str(tmp_path / "archive.jsonl")
    arguments = [idle.binary, "export", "--config", idle.config_path, "--consumer", bed.queue.name, "--output", path]
    sizes = [0]
    for _ in range(3):
        child = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while child.poll() is None and not (os.path.exists(path) and os.path.getsize(path) > sizes[-1] + 50000):
            pass
        child.send_signal(signal.SIGKILL)
        child.wait()
        sizes.append(os.path.getsize(path))
    export(idle, *arguments[4:])
    with open(path) as f:
        lines = [json.loads(line) for line in f]
    assert told(lines) == [("row", m) for m in sorted(f"m{i}" for i in range(1, 3001))] + \
        [("letter", f"d{i}") for i in range(1, 3001)] + [("message", f"m{i}") for i in range(1, 3001)]


@pytest.mark.parametrize("arguments, said", [
    (["--since", "soon"], '--since "soon" is not a duration'),
    (["--until", "x"], '--until "x" is not'),
    (["--after", "row.zz"], '"row.zz" is no position'),
    (["--after", "letter.1", "--output", "f"], "--after is for standard output"),
    (["more"], '"more" is one argument too many'),
])
def test_wrong_arguments(idle, arguments, said):
    assert said in export(idle, *arguments, status=2)[1]


def test_a_file_of_something_else_is_left_alone(idle, tmp_path):
    path = tmp_path / "other"
    path.write_text("hello\n")
    assert "expected a file of its own" in export(idle, "--output", str(path), status=1)[1]
    assert path.read_text() == "hello\n"


def test_a_full_disk_is_said(idle, bed):
    fill(bed)
    assert "cannot write to /dev/full" in export(idle, "--output", "/dev/full", "--consumer", bed.queue.name, status=1)[1]


def test_a_login_that_only_reads_is_enough(bed, idle, tmp_path):
    fill(bed)
    lines, _ = export(idle, "--consumer", bed.queue.name)
    assert len(lines) == 9
