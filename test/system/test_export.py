"""onceward export: rows, letters and stored messages as JSON lines, in order, and resumable."""

import json
import os
import signal
import subprocess
import time
import uuid

import pytest

from rig.wait import wait_until
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


def read(path):
    """The lines of a file that were exported, between its first and its last one."""
    with open(path) as f:
        first, *lines, last = [json.loads(line) for line in f]
    assert first["kind"] == "export" and last == {"kind": "end", "position": "end"}
    return lines


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
    assert good["body"] == '{"a": 1}' and good["headers"] == {"x-n": 5} and good["body_bytes"] == 8
    assert good["properties"]["type"] == "t" and good["properties"]["content_type"] == "application/json" and good["received_at"].endswith("Z")


def test_the_file_is_for_its_owner_alone(bed, idle, tmp_path):
    """The file contains bodies. An existing file keeps its mode."""
    path = tmp_path / "export"
    before = os.umask(0)
    try:
        export(idle, "--output", str(path), "--consumer", bed.queue.name)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_database_that_writes_times_otherwise(bed, idle):
    """Positions and times are text: their form is set by the session, not by the database."""
    fill(bed, 2)
    role = f"dated_{uuid.uuid4().hex[:8]}"
    bed.postgres.query(f"CREATE ROLE {role} LOGIN IN ROLE onceward_sidecar")
    try:
        for setting in ("DateStyle = 'SQL, DMY'", "IntervalStyle = 'sql_standard'", "bytea_output = 'escape'", "TimeZone = 'Asia/Kathmandu'"):
            bed.postgres.query(f"ALTER ROLE {role} SET {setting}")
        only = ("--consumer", bed.queue.name)
        lines, _ = export(idle, *only)
        with open(idle.config_path) as f:
            config = json.load(f)
        config["database"]["url"] = bed.postgres.dsn(user=role)
        with open(idle.config_path, "w") as f:
            json.dump(config, f)
        assert export(idle, *only)[0] == lines
        for line in lines:
            assert export(idle, *only, "--after", line["position"])[0] == lines[lines.index(line) + 1:]
    finally:
        bed.postgres.query(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_each_kind_alone_and_in_its_order(bed, idle):
    fill(bed, 12)
    only = ("--consumer", bed.queue.name)
    assert told(export(idle, *only, "--rows")[0]) == [("row", m) for m in sorted(f"m{i}" for i in range(1, 13))]
    assert told(export(idle, *only, "--letters")[0]) == [("letter", f"d{i}") for i in range(1, 13)]
    assert told(export(idle, *only, "--messages")[0]) == [("message", f"m{i}") for i in range(1, 13)]
    bed.rows("UPDATE onceward.inbox SET received_at = now() - interval '1 hour' WHERE consumer = %s AND message_id = 'm1'", bed.queue.name)
    bed.rows("UPDATE onceward.dead_letter SET died_at = now() - interval '1 hour' WHERE consumer = %s AND message_id = 'd1'", bed.queue.name)
    for kind, n_young in (("--rows", 11), ("--letters", 11), ("--messages", 0)):
        assert len(export(idle, *only, kind, "--since", "30m")[0]) == n_young
        assert len(export(idle, *only, kind, "--since", "2h", "--until", "30m")[0]) == 12 - n_young


def test_it_goes_on_behind_any_line(bed, idle):
    fill(bed, 3)
    only = ("--consumer", bed.queue.name)
    lines, _ = export(idle, *only)
    assert len(lines) == 9
    for i, line in enumerate(lines):
        assert export(idle, *only, "--after", line["position"])[0] == lines[i + 1:]


@pytest.mark.parametrize("cut", [1, 30, 40, 700, 2000])
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
    assert len(read(path)) == 9


def test_a_file_that_has_all_is_refused_with_what_to_type(bed, idle, tmp_path):
    """Newer rows belong anywhere in its order: they would be left out, and so go into another file."""
    fill(bed, 3)
    path, next_path = str(tmp_path / "archive.jsonl"), str(tmp_path / "next.jsonl")
    only = ("--consumer", bed.queue.name)
    export(idle, *only, "--output", path)
    bed.rows("INSERT INTO onceward.inbox (consumer, message_id, status, attempt, token, fingerprint, received_at, token_expires_at,"
             " max_expires_at, claimed_by) VALUES (%s, 'a', 'completed', 1, gen_random_uuid(), '\\x00', clock_timestamp(), now(), now(), 'a')",
             bed.queue.name)
    with open(path) as f:
        whole = f.read()
    _, said = export(idle, *only, "--output", path, status=1)
    until = json.loads(whole.splitlines()[0])["until"]
    assert f"later entries into another file: --since {until}" in said
    with open(path) as f:
        assert f.read() == whole
    export(idle, *only, "--since", until, "--output", next_path)
    assert told(read(next_path)) == [("row", "a")]


def test_since_and_until_stay_those_of_the_first_run(bed, idle, tmp_path):
    """"2s" ago is another time when it goes on, and what has come meanwhile belongs to the next one."""
    fill(bed, 3)
    path = str(tmp_path / "archive.jsonl")
    arguments = ("--consumer", bed.queue.name, "--since", "2s", "--rows", "--output", path)
    export(idle, *arguments)
    with open(path) as f:
        lines = f.read().splitlines(keepends=True)
    assert len(lines) == 5 and json.loads(lines[0])["asked"]["since"] == "2s"
    with open(path, "w") as f:
        f.writelines(lines[:2])
    bed.rows("INSERT INTO onceward.inbox (consumer, message_id, status, attempt, token, fingerprint, received_at, token_expires_at,"
             " max_expires_at, claimed_by) VALUES (%s, 'm9', 'completed', 1, gen_random_uuid(), '\\x00', clock_timestamp(), now(), now(), 'a')",
             bed.queue.name)
    wait_until(lambda: bed.rows("SELECT clock_timestamp() > max(received_at) + interval '3 s' AS yes FROM onceward.inbox WHERE consumer = %s",
                                bed.queue.name)[0]["yes"], "all are older than two seconds")
    export(idle, *arguments)
    with open(path) as f:
        assert f.readlines() == lines


def test_a_file_of_other_options_is_left_alone(bed, idle, tmp_path):
    fill(bed, 3)
    path = str(tmp_path / "archive.jsonl")
    export(idle, "--consumer", bed.queue.name, "--rows", "--output", path)
    with open(path) as f:
        whole = f.read()
    for other in (["--letters"], [], ["--rows", "--until", "2h"]):
        _, said = export(idle, "--consumer", bed.queue.name, *other, "--output", path, status=1)
        assert "was begun with other options" in said and f'"consumer":"{bed.queue.name}"' in said
        with open(path) as f:
            assert f.read() == whole


CLAIM = ("SELECT answer FROM onceward.sidecar_claim_many(true, 'a', 5, false, NULL, 2000, ARRAY[%s], '{10s}', '{20s}', '{8}', '{3}', '{1}', %s::text[],"
         " ARRAY[gen_random_uuid()], ARRAY['\\x00'::bytea], NULL, NULL, NULL)")
STORE_CLAIM = ("SELECT answer FROM onceward.sidecar_claim_store_many(true, 'a', 5, false, NULL, 2000, ARRAY[%s], '{10s}', '{20s}', '{8}', '{3}',"
               " '{1}', %s::text[], ARRAY[gen_random_uuid()], ARRAY['\\x00'::bytea], NULL, NULL, NULL, '{1}', NULL, NULL, NULL, ARRAY['x'::bytea])")
BURY = ("SELECT answer FROM onceward.sidecar_bury_many('a', 5, false, NULL, 2000, ARRAY[%s], '{/}', '{q}', '{true}', '{10s}', '{20s}', '{8}', '{1}',"
        " %s::text[], ARRAY[NULL::uuid], ARRAY['\\x00'::bytea], '{NULL}', '{NULL}', '{NULL}', '{no_id}', '{true}', '{false}', '{false}', '{1}', '{NULL}',"
        " ARRAY['x'::bytea], '{NULL}', '{NULL}', '{NULL}', '{\"\"}', '{q}', '{0}', '{NULL}')")


@pytest.mark.parametrize("sql, kinds", [(CLAIM, ["row"]), (STORE_CLAIM, ["row", "message"]), (BURY, ["letter"])], ids=["claim", "store", "bury"])
def test_what_is_not_committed_yet_is_waited_for(bed, idle, sql, kinds):
    """The message has an earlier time than the end of the export, and the next export begins with that time."""
    fill(bed, 2)
    connection = bed.postgres.connect(user="sidecar_login", autocommit=False)
    with connection.cursor() as cursor:
        cursor.execute(sql, (bed.queue.name, ["late"]))
        assert cursor.fetchone()[0] in ("claimed", "buried")
    child = subprocess.Popen([idle.binary, "export", "--config", idle.config_path, "--consumer", bed.queue.name], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    looks = lambda: bed.rows("SELECT count(*)::int AS n FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
                             " AND query LIKE '%%l.virtualtransaction = ANY%%'")[0]["n"]
    wait_until(looks, "it looks whether that has ended", 40)
    assert child.poll() is None
    connection.commit()
    connection.close()
    out, said = child.communicate(timeout=60)
    lines = [json.loads(line) for line in out.decode().splitlines()]
    assert [line["kind"] for line in lines if line["message_id"] == "late"] == kinds, said


def test_an_application_that_has_completed_is_not_waited_for(bed, idle):
    """Its transaction may be long, and changes a row that was there."""
    fill(bed, 2)
    bed.rows(CLAIM, bed.queue.name, ["open"])
    connection = bed.postgres.connect(autocommit=False)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE onceward.inbox SET status = 'completed' WHERE consumer = %s AND message_id = 'open'", (bed.queue.name,))
    try:
        lines, _ = export(idle, "--consumer", bed.queue.name, "--rows")
        assert len(lines) == 3
    finally:
        connection.rollback()
        connection.close()


@pytest.mark.long
def test_killed_and_run_again_nothing_is_missing_or_twice(bed, idle, tmp_path):
    fill(bed, 3000)
    path = str(tmp_path / "archive.jsonl")
    arguments = [idle.binary, "export", "--config", idle.config_path, "--consumer", bed.queue.name, "--output", path]
    sizes = [0]
    for _ in range(3):
        child = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while child.poll() is None and not (os.path.exists(path) and os.path.getsize(path) > sizes[-1] + 50000):
            time.sleep(0.001)
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL, "it had ended before"
        sizes.append(os.path.getsize(path))
    export(idle, *arguments[4:])
    assert told(read(path)) == [("row", m) for m in sorted(f"m{i}" for i in range(1, 3001))] + \
        [("letter", f"d{i}") for i in range(1, 3001)] + [("message", f"m{i}") for i in range(1, 3001)]


@pytest.mark.parametrize("arguments, said", [
    (["--since", "soon"], '--since "soon" is not a duration'),
    (["--until", "x"], '--until "x" is not'),
    (["--after", "row.zz"], '"row.zz" is not a position'),
    (["--after", "letter.1", "--output", "f"], "--after is for standard output"),
    (["--after", "letter.1", "--since", "2h"], "expected --since and --until as that run printed them"),
    (["--after", "letter.1", "--until", "2h"], "expected --since and --until as that run printed them"),
    (["more"], '"more" is one argument too many'),
])
def test_wrong_arguments(idle, arguments, said):
    assert said in export(idle, *arguments, status=2)[1]


def test_a_file_of_something_else_is_left_alone(idle, tmp_path):
    path = tmp_path / "other"
    for text in ("hello\n", "hello", "a\nb"):
        path.write_text(text)
        assert "was not written by" in export(idle, "--output", str(path), status=1)[1]
        assert path.read_text() == text


def test_a_full_disk_is_said(idle, bed):
    fill(bed)
    assert "cannot write to /dev/full" in export(idle, "--output", "/dev/full", "--consumer", bed.queue.name, status=1)[1]


def test_a_login_that_only_reads_is_enough(bed, idle):
    fill(bed)
    role = f"reader_{uuid.uuid4().hex[:8]}"
    bed.postgres.query(f"CREATE ROLE {role} LOGIN")
    try:
        bed.postgres.query(f"GRANT USAGE ON SCHEMA onceward TO {role}; GRANT SELECT ON ALL TABLES IN SCHEMA onceward TO {role};"
                           f" GRANT EXECUTE ON FUNCTION onceward.sidecar_schema() TO {role}")
        with open(idle.config_path) as f:
            config = json.load(f)
        config["database"]["url"] = bed.postgres.dsn(user=role)
        with open(idle.config_path, "w") as f:
            json.dump(config, f)
        lines, _ = export(idle, "--consumer", bed.queue.name)
        assert len(lines) == 9
    finally:
        bed.postgres.query(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_consumer_that_does_not_exist_is_an_error_and_an_empty_one_is_not(bed, idle):
    path = os.path.join(bed.folder, "typo.jsonl")
    lines, said = export(idle, "--consumer", "typo", "--output", path, status=1)
    assert not lines and 'onceward export: there is no consumer "typo"' in said and not os.path.exists(path), said
    assert "0 rows, 0 letters" in export(idle, "--consumer", bed.queue.name)[1]


def test_an_export_of_compacted_rows_fails_unless_they_are_allowed(bed, idle):
    """The configuration has no compact_after any more: the database knows what was moved."""
    fill(bed)
    here = ("--consumer", bed.queue.name)
    assert "have replaced them" not in export(idle, *here)[1]
    bed.rows("UPDATE onceward.consumer SET compacted_to = now() - interval '2 hours' WHERE consumer = %s", bed.queue.name)
    for arguments in ((), ("--rows",), ("--rows", "--since", "3h")):
        lines, said = export(idle, *here, *arguments, status=1)
        assert len(lines) >= 3 and "have replaced them" in said and "--allow-compacted" in said
        lines, said = export(idle, *here, *arguments, "--allow-compacted")
        assert len(lines) >= 3 and "have replaced them" in said
    for arguments in (("--since", "1h"), ("--letters",), ("--messages",)):
        assert "have replaced them" not in export(idle, *here, *arguments)[1]
    bed.rows("INSERT INTO onceward.consumer (consumer, broker, vhost, queue) VALUES ('another', 'b', '/', 'another')")
    assert "have replaced them" not in export(idle, "--consumer", "another")[1]
    assert "have replaced them" in export(idle, status=1)[1]


def test_an_export_after_compaction_was_switched_off(bed):
    sidecar = bed.sidecar(retention="30d", compact_after="2h")
    bed.queue.publish("m1")
    bed.wait_for_status("m1", "completed")
    bed.rows("UPDATE onceward.inbox SET completed_at = completed_at - interval '3 hours', received_at = received_at - interval '3 hours'"
             " WHERE consumer = %s", bed.queue.name)
    wait_until(lambda: bed.row("m1") is None, "the row is moved", 60)
    assert sidecar.term() == 0
    off = bed.sidecar()
    lines, said = export(off, "--rows", "--since", "5d", "--consumer", bed.queue.name, status=1)
    assert not lines and "may be missing" in said
    assert "missing" not in export(off, "--rows", "--since", "110m", "--consumer", bed.queue.name)[1]
