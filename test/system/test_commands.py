"""The commands for operators: migrate, check, status, dead, explain; and what all of them have in common.

The rows and letters are put into the tables here, so that each test says exactly what there is. The tests of the sidecar itself
(test_dead.py) bring letters through a whole life."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid

import psycopg2
import pytest

from rig import process, schema
from rig.application import Gate
from rig.proxy import Proxy
from rig.queue import Queue
from rig.wait import wait_until

SECRET = "s3cret-marker"
ENVIRONMENT = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8",
               "ASAN_OPTIONS": "detect_leaks=1:exitcode=99", "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:exitcode=98"}
COMMANDS = ["run", "check", "migrate", "status", "top", "dead", "pause", "resume", "retry", "give-up", "forget", "health", "drain", "reload", "replay", "export", "try", "explain", "example",
            "schema", "completion", "version"]


class Done:
    def __init__(self, done):
        self.status = done.returncode
        self.raw = done.stdout
        self.out = done.stdout.decode(errors="replace")
        self.err = done.stderr.decode(errors="replace")
        self.text = self.out + self.err
        assert "Sanitizer" not in self.text and "runtime error" not in self.text, self.text
        assert self.status in (0, 1, 2), self.text
        assert SECRET not in self.text


def run(*arguments, timeout=60, environment=None, program=None):
    return Done(subprocess.run([program or schema.require_binary(), *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, timeout=timeout, env={**ENVIRONMENT, **(environment or {})}))


def good(*arguments, **options):
    done = run(*arguments, **options)
    assert done.status == 0, done.text
    return done.out


def explained(name):
    return good("explain", name, program=schema.quick_binary())


class Place:
    """A database, a queue that nobody consumes, and a configuration that names both."""

    def __init__(self, folder, postgres, rabbitmq, queue):
        self.folder = folder
        self.postgres = postgres
        self.rabbitmq = rabbitmq
        self.queue = queue
        self.path = self.write()

    def write(self, name="config.json", user="sidecar_login", top=None, **keys):
        config = {"broker": {"url": self.rabbitmq.url()}, "database": {"url": self.postgres.dsn(user=user)},
                  "state_file": os.path.join(str(self.folder), "state"), "queues": {self.queue.name: {"forward": {"url": "http://127.0.0.1:1/"}, **keys}},
                  **(top or {})}
        path = os.path.join(str(self.folder), name)
        with open(path, "w") as f:
            json.dump(config, f)
        return path

    def row(self, message_id, status, attempt=1, age="1 hour", error=None, next_attempt="0 s", window="30 s", fingerprint="\\xabcd"):
        self.postgres.query(
            "INSERT INTO onceward.inbox (consumer, message_id, status, attempt, token, fingerprint, received_at, alive_since,"
            " token_expires_at, max_expires_at, next_attempt_at, completed_at, claimed_by, last_error)"
            " VALUES (%s, %s, %s, %s, gen_random_uuid(), %s, now() - %s::interval, now(), now() + %s::interval, now(),"
            " now() + %s::interval, now(), 'instance-1', %s)",
            (self.queue.name, message_id, status, attempt, fingerprint, age, window, next_attempt, error))

    def letter(self, message_id="m1", reason="attempts", body=b"hello", rowless=False, age="5 min", consumer=None, queue=None,
               error="answered 500", properties=None, headers=None, raw_id=None, vhost="/"):
        return self.postgres.query(
            "INSERT INTO onceward.dead_letter (consumer, vhost, queue, message_id, raw_id, rowless, reason, attempts, http_status,"
            " last_error, fingerprint, body, content_type, properties, headers, exchange, routing_key, deaths, digest, died_at)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s, 8, 500, %s, '\\xabcd', %s, 'text/plain', %s, %s, 'shop', 'new', 0, %s,"
            " now() - %s::interval) RETURNING id",
            (consumer or self.queue.name, vhost, queue or self.queue.name, message_id, raw_id, rowless, reason, error, body,
             json.dumps(properties if properties is not None else {"message_id": message_id, "delivery_mode": 2}
                        if message_id else {}), json.dumps(headers or {}), uuid.uuid4().bytes if rowless else None, age))[0][0]

    def status_of(self, message_id):
        found = self.postgres.query("SELECT status, attempt FROM onceward.inbox WHERE consumer = %s AND message_id = %s",
                                    (self.queue.name, message_id))
        return found[0] if found else None

    def letters(self):
        return [i for i, in self.postgres.query("SELECT id FROM onceward.dead_letter ORDER BY id")]


@contextlib.contextmanager
def made_place(folder, postgres, rabbitmq):
    schema.require_binary()
    queue = Queue(rabbitmq, "commands-" + uuid.uuid4().hex[:8]).declare()
    yield Place(folder, postgres, rabbitmq, queue)
    queue.delete()
    queue.close()


@pytest.fixture
def place(tmp_path, emptied_postgres, rabbitmq):
    with made_place(tmp_path, emptied_postgres, rabbitmq) as made:
        yield made


@pytest.fixture
def fresh_place(tmp_path, fresh_postgres, rabbitmq):
    """For a test that changes the schema or its grants."""
    with made_place(tmp_path, fresh_postgres, rabbitmq) as made:
        yield made


# what all have in common

@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_on_standard_output_and_no_failure(command):
    for arguments in ([command, "--help"], ["help", command]):
        done = run(*arguments)
        assert done.status == 0 and "usage: onceward " + command in done.out and done.err == ""


def test_the_program_itself_has_help_and_a_version():
    out = good("--help")
    assert all(re.search(rf"^  {command}\b", out, re.M) for command in COMMANDS)
    assert good("version") == good("--version") and re.match(r"^onceward \d+\.\d+\.\d+ \(schema \d+\)$", good("version").strip())


@pytest.mark.parametrize("arguments, said", [
    ([], "onceward "),
    (["sleep"], "sleep"),
    (["--frobnicate"], "--frobnicate"),
    (["help", "sleep"], "sleep"),
    (["check"], "--config FILE is missing"),
    (["migrate"], "--config FILE is missing"),
    (["status"], "--config FILE is missing"),
    (["status", "--json"], "--config FILE is missing"),
    (["status", "--xml", "--config", "x"], "--xml"),
    (["check", "--config"], "--config"),
    (["check", "--config", "x", "y"], '"y"'),
    (["version", "please"], "onceward "),
    (["schema", "now"], "onceward "),
    (["example", "--completion", "both"], '"both"'),
    (["example", "me"], "onceward "),
    (["completion"], "onceward "),
    (["completion", "tcsh"], '"tcsh" is not bash|zsh|fish'),
    (["health"], "onceward "),
    (["health", "--live", "--ready"], "give one of them"),
    (["drain", "now"], "onceward "),
    (["drain", "--state", "a", "--config", "b"], "give one"),
    (["health", "--started", "--live"], "onceward "),
    (["reload", "--exit"], "onceward "),
    (["explain", "no_such_event"], "no_such_event"),
    (["explain", "paused", "resumed"], "onceward "),
    (["explain", "--stats", "depth"], "nothing else with it"),
    (["try", "--markdown", "--strict"], "nothing else with it"),
    (["try", "--queue", "q", "--effect-database", "postgresql://h/d", "--config", "x"], "--effect-database is for --effect"),
    (["migrate", "--database", "host=h", "--database-file", "x"], "give one of them"),
    (["dead"], "list|show|redrive|discard"),
    (["dead", "bury", "--config", "x"], "list|show|redrive|discard"),
    (["dead", "list"], "--config FILE is missing"),
    (["dead", "list", "one", "--config", "x"], '"one"'),
    (["dead", "list", "-1", "--config", "x"], "onceward "),
    (["dead", "show", "--config", "x"], "ID"),
    (["dead", "show", "1", "2", "--body", "raw", "--config", "x"], "one ID"),
    (["dead", "show", "1", "--body", "cooked", "--config", "x"], "raw"),
    (["dead", "discard", "--config", "x"], "--all"),
    (["dead", "discard", "--config", "x", "--dry-run"], "--all"),
    (["dead", "redrive", "--all", "--rate", "fast", "--config", "x"], "10/s"),
    (["dead", "redrive", "--all", "--rate", "0/s", "--config", "x"], "10/s"),
    (["dead", "redrive", "--all", "--since", "yesterday", "--config", "x"], "--since"),
    *[(["dead", "list", "--since", since, "--config", "x"], f'--since "{since}"') for since in (
        "2026-13-45", "2026-00-01", "2026-02-29", "2026-04-31", "0000-01-01", "2026-01-31x", "2026-01-31T", "2026-01-31T24:00:00Z",
        "2026-01-31T03:60", "2026-01-31T03:00:61Z", "2026-01-31T03:00:00.Z", "2026-01-31T03:00:00+25:00", "2026-01-31 03:00 CET", "9999999d")],
    (["dead", "redrive", "--all", "--limit", "1x", "--config", "x"], "--limit"),
    (["dead", "redrive", "1", "2", "--new-id=a", "--config", "x"], "one ID"),
    (["dead", "discard", "1", "--new-id", "--config", "x"], "--new-id is not for `discard`"),
    (["dead", "list", "--rate", "1/s", "--config", "x"], "--rate"),
    (["dead", "show", "1", "--body", "raw", "--json", "--config", "x"], "--json"),
    (["migrate", "--config", "x", "y"], '"y"'),
    (["migrate", "--config", "x", "--database", "postgresql://u@h/d?nothing=1"], 'the parameter "nothing"'),
    (["migrate", "--config", "/nonexistent/config.json", "--database", "host=h"], "config.json"),
    (["migrate", "--database", "host=h", "y"], '"y"'),
    (["migrate", "--database-file", "/nonexistent/uri"], "/nonexistent/uri"),
    (["status", "--config", "/nonexistent/config.json"], "config.json"),
    (["dead", "list", "--config", "/nonexistent/config.json"], "config.json"),
])
def test_usage_errors_are_on_standard_error_with_status_2(arguments, said):
    done = run(*arguments)
    assert done.status == 2 and said in done.err and done.out == "", done.text


def test_the_option_may_be_written_in_both_ways(place):
    assert good("check", "--config=" + place.path) == good("check", "--config", place.path)


def test_a_database_that_does_not_answer_is_a_failure_with_its_reason(place):
    path = place.write(top={"database": {"url": f"postgresql://u:{SECRET}@127.0.0.1:1/x", "connect_timeout": "2s"}})
    for arguments in (["status"], ["migrate"], ["dead", "list"]):
        done = run(*arguments, "--config", path)
        assert done.status == 1 and "refused" in done.err, done.text


def closed(*arguments, close="", output=None, timeout=60):
    """Runs with descriptors closed as the shell closes them ("<&- >&-")."""
    return subprocess.run(["sh", "-c", f'exec "$@" {close}', "sh", schema.require_binary(), *map(str, arguments)], timeout=timeout,
                          stdin=subprocess.DEVNULL, stdout=output or subprocess.DEVNULL, stderr=subprocess.PIPE, env=ENVIRONMENT)


@pytest.mark.parametrize("arguments", [["version"], ["--help"], ["explain"], ["check", "--config", "CONFIG"],
                                       ["status", "--config", "CONFIG"], ["dead", "list", "--config", "CONFIG"]])
def test_an_output_that_cannot_be_written_is_a_failure(place, arguments):
    arguments = [place.path if a == "CONFIG" else a for a in arguments]
    good(*arguments)
    with open("/dev/full", "wb") as full:
        for done in (closed(*arguments, output=full), closed(*arguments, close=">&-")):
            assert done.returncode == 1 and b"cannot write to standard output" in done.stderr, done


def test_missing_standard_descriptors_are_not_given_to_sockets(bed):
    """Files that the program opens must not become standard output, which the log is written to."""
    path = os.path.join(bed.folder, "config.json")
    with open(path, "w") as f:
        json.dump({**bed.config(), "state_file": os.path.join(bed.folder, "state")}, f)
    child = process.spawn(["sh", "-c", 'exec "$0" run --config "$1" <&- >&- 2>&-', schema.require_binary(), path], env=ENVIRONMENT)
    try:
        bed.queue.publish("m1")
        bed.wait_for_status("m1", "completed")
        for fd in "012":
            assert os.readlink(f"/proc/{child.pid}/fd/{fd}") == "/dev/null"
        bed.assert_once("m1")
    finally:
        child.terminate()
        assert child.wait(60) == 0
        process.reap(child)


def test_the_configuration_may_be_named_by_the_environment_or_be_standard_input(place):
    place.letter("m1")
    named = {**ENVIRONMENT, "ONCEWARD_CONFIG": place.path}

    def start(*arguments, env=ENVIRONMENT, given=None):
        done = subprocess.run([schema.require_binary(), *arguments], input=given or b"", stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=60, env=env)
        return Done(done)

    with open(place.path, "rb") as f:
        text = f.read()
    for arguments in (["check"], ["status"], ["dead", "list"], ["dead", "redrive", "--dry-run"], ["migrate", "--database", place.postgres.dsn(user=schema.OWNER)]):
        done = start(*arguments, env=named)
        assert done.status == 0, (arguments, done.text)
        done = start(*arguments, "--config", "-", given=text)
        assert done.status == 0, (arguments, done.text)
        done = start(*arguments, "--config", "/nonexistent/c.json", env=named)  # what is said counts
        assert done.status == 2 and "/nonexistent/c.json" in done.err, done.text
    done = start("check", "--config", "-", given=b"{")
    assert done.status == 2 and done.err.startswith("standard input, line 1"), done.text
    done = start("run", env={**ENVIRONMENT, "ONCEWARD_CONFIG": "/nonexistent/c.json"})
    assert done.status == 2 and '"config_error"' in done.out, done.text
    done = start("check", env={**ENVIRONMENT, "ONCEWARD_CONFIG": ""})
    assert done.status == 2 and "ONCEWARD_CONFIG is not set" in done.err, done.text


def test_check_as_json(place):
    done = run("check", "--json", "--connect", "--config", place.path)
    lines = json_lines(done.out)
    assert done.status == 1 and done.err == "" and all(set(x) - {"path"} == {"result", "where", "text"} for x in lines), done.text
    assert lines[0]["result"] == "ok" and lines[0]["where"] == "configuration"
    assert [x for x in lines if x["where"].startswith("application of") and x["result"] == "fail"]
    assert [x for x in lines if x["where"].startswith("broker ") and x["result"] == "ok"]
    done = run("check", "--json", "--config", place.write(prefetch=0, max_hold="31m", shutdown_grace=7))
    faults = {x["path"]: x["result"] for x in json_lines(done.out)}
    name = f"queues.{place.queue.name}."
    assert done.status == 2 and faults[name + "prefetch"] == faults[name + "shutdown_grace"] == "fail" and faults[name + "max_hold"] == "warn"


def test_check_shows_what_applies_and_where_it_came_from(place, tmp_path):
    (tmp_path / "user").write_text("guest")
    config = {"broker": {"host": "127.0.0.1", "port": place.rabbitmq.port, "user_file": str(tmp_path / "user"), "password": SECRET},
              "database": {"url": f"postgresql://u:{SECRET}@127.0.0.1/x"},
              "log": {"level": "${LEVEL}"},
              "defaults": {"brake": 7, "retry": {"max_backoff": "90s"}, "message_id": ["cloudevents", ["property:type", "header:x"]],
                           "ready": {"url": f"http://127.0.0.1/ok?code={SECRET}"}},
              "queues": {"a": {"forward": {"url": f"http://127.0.0.1/?key={SECRET}", "authorization": SECRET, "concurrency": 3,
                                           "headers": {"X-Source": "me", "X-Api-Key": SECRET, "X-Auth": SECRET, "X-Signature": SECRET,
                                                       "X-Mounted_file": str(tmp_path / "user"), "X-Variable": "${LEVEL}"}}, "brake": 9},
                         "b": {"forward": {"url": "http://127.0.0.1/"}, "consumer": "c", "store_response": "2KiB", "completion": "response"}}}
    path = tmp_path / "effective.json"
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    done = Done(subprocess.run([schema.require_binary(), "check", "--effective", "--json", "--config", str(path)], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, env={**ENVIRONMENT, "LEVEL": "warning"}))
    assert done.status == 0, done.text
    values = {x["path"]: (x["text"], x["from"]) for x in json_lines(done.out) if x["where"] == "effective"}
    expected = {
        "broker.host": ("127.0.0.1", "given"), "broker.port": (str(place.rabbitmq.port), "given"), "broker.user": ("guest", "given, by file"),
        "broker.password": ("***", "given"), "database.url": ("postgresql://u:***@127.0.0.1/x", "given"),
        "log.level": ("warning", "given, environment"), "broker.heartbeat": ("10s", "default"), "broker.tls.verify": ("true", "default"),
        "queues.a.brake": ("9", "given"), "queues.b.brake": ("7", "defaults"), "queues.a.retry.max_backoff": ("90s", "defaults"),
        "queues.a.retry.backoff": ("1s", "default"), "queues.a.retry.max_age": ("off", "default"), "queues.a.queue": ("a", "default"),
        "queues.b.consumer": ("c", "given"), "queues.a.forward.authorization": ("***", "given"),
        "queues.a.forward.url": ("http://127.0.0.1/?***", "given"),
        "queues.a.forward.headers": ('{"X-Source": "me", "X-Api-Key": "***", "X-Auth": "***", "X-Signature": "***",'
                                    ' "X-Mounted": "***", "X-Variable": "***"}', "given"),
        "queues.b.ready.url": ("http://127.0.0.1/ok?***", "defaults"), "queues.b.store_response": ("2KiB", "given"),
        "queues.a.store_response": ("none", "default"), "queues.b.completion": ("response", "given"), "queues.b.forward.concurrency": ("16", "default"),
        "queues.a.message_id": ('["cloudevents", ["property:type", "header:x"]]', "defaults"), "queues.a.permanent_status": ("[400, 410, 413, 415, 422]", "default"),
        "queues.a.vhost": ("(the URL's)", "default"),
    }
    assert {k: values.get(k) for k in expected} == expected
    keys = len(good("explain", "--keys").splitlines()) - 1
    of_queue = len([k for k in values if k.startswith("queues.a.")])
    assert len(values) == keys + of_queue and len([k for k in values if k.startswith("queues.b.")]) == of_queue
    table = good("check", "--effective", "--config", place.path)
    assert re.search(r"^KEY +VALUE +FROM$", table, re.M) and re.search(r"^shutdown_grace +25s +default$", table, re.M)
    bad = run("check", "--effective", "--config", place.write(prefetch=0))
    assert bad.status == 2 and "prefetch" in bad.err


# schema, example, completion, the manual

def test_the_schema_is_that_of_the_documentation():
    with open(os.path.join(os.path.dirname(__file__), "../../conf/onceward.schema.json")) as f:
        assert good("schema") == f.read()


@pytest.mark.parametrize("completion", [None, "response", "transaction"])
def test_the_example_is_valid_and_explained(completion):
    done = run("example", *(["--completion", completion] if completion else []))
    config = json.loads(done.out)
    assert done.status == 0 and config["queues"]["payments"]["completion"] == (completion or "response")
    checked = subprocess.run([schema.require_binary(), "check", "--config", "-"], input=done.raw, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             timeout=60, env=ENVIRONMENT)
    assert checked.returncode == 0 and b"warning" not in checked.stdout, checked.stdout

    def leaves(value, path):
        return [x for k, v in value.items() for x in leaves(v, path + [k])] if isinstance(value, dict) else [".".join(path)]

    keys = [path.replace("queues.payments.", "queues.<name>.") for path in leaves(config, [])]
    assert sorted(keys) == sorted(line for line in done.err.splitlines() if not line.startswith(" "))
    for key in keys:
        assert f"{key}\n    {good('explain', key).splitlines()[1].strip()}\n" in done.err
    with open(os.path.join(os.path.dirname(__file__), "../../conf/payments.json")) as f:
        set_up = json.load(f)
    queue, of_set_up = config["queues"]["payments"], set_up["queues"]["payments"]
    assert all(config[key] == set_up[key] for key in ("broker", "database")) and queue["forward"]["url"] == of_set_up["forward"]["url"]
    for key in ("message_id", "retention"):
        value = queue[key] if isinstance(queue[key], str) else json.dumps(queue[key])
        assert re.search(rf"default:? `?{re.escape(value)}", good("explain", f"queues.<name>.{key}")), f"{key} is not the default"


@pytest.mark.parametrize("options, file", [([], "batch.py"), (["--completion", "transaction"], "batch.py"),
                                           (["--completion", "response"], "batch_response.py")])
def test_the_application_for_batches_is_that_of_the_examples(options, file):
    """test_examples.py runs it."""
    done = run("example", "--batch", *options)
    with open(os.path.join(os.path.dirname(__file__), "../../deploy/examples/python", file)) as f:
        assert done.status == 0 and done.out == f.read()
    setting = json.loads("{%s}" % re.search(r'^ +("completion".*\n.*)$', done.err, re.M).group(1))
    config = json.loads(good("example"))
    config["queues"]["payments"].update(setting)
    assert setting["completion"] == (options or ["transaction"])[-1]
    checked = subprocess.run([schema.require_binary(), "check", "--config", "-"], input=json.dumps(config).encode(), stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, timeout=60, env=ENVIRONMENT)
    assert checked.returncode == 0, checked.stdout


def test_each_shell_completes_every_command_and_option():
    fish = good("completion", "fish")
    zsh = good("completion", "zsh")
    for command in COMMANDS:
        said = set(re.findall(r"--([a-z][a-z-]+)", good(command, "--help", program=schema.quick_binary()))) - {"help"}
        made = set(re.findall(rf"__fish_seen_subcommand_from {command}' -l ([a-z-]+)", fish))
        others = {"dead": {"reasons"}, "completion": set(), "example": {"connect", "config", "keys"}}  # those of other commands
        assert said - others.get(command, set()) == made, command
        assert f"-a {command} " in fish and f"    {command}) _arguments" in zsh
    script = 'source <("$0" completion bash); COMP_WORDS=("${@}"); COMP_CWORD=$(($# - 1)); _onceward; echo "${COMPREPLY[@]}"'

    def complete(*words):
        done = subprocess.run(["bash", "-euc", script, schema.quick_binary(), "onceward", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=60, env=ENVIRONMENT)
        assert done.returncode == 0 and done.stderr == b"", done
        return done.stdout.decode().split()

    assert set(COMMANDS) <= set(complete(""))
    assert complete("dr") == ["drain"] and complete("check", "--co") == ["--config", "--connect"]
    assert complete("dead", "re") == ["redrive"] and complete("completion", "f") == ["fish"]
    assert complete("example", "--completion", "t") == ["transaction"] and "/etc/passwd" in complete("check", "--config", "/etc/passw")
    assert "/etc/passwd" in complete("export", "--output", "/etc/passw")
    for option in ("--until", "--to", "--after", "--name", "--type", "--id"):  # their values nobody knows
        assert complete("replay", option, "") == [], option


def test_texts_for_a_terminal_have_no_links_of_the_pages():
    keys = good("explain", "--keys")
    texts = [good("schema"), good("help", "--man"), good("explain"), keys, good("explain", "ow001"), run("example").err,
             *(good("explain", key) for key in ("consumer_timeout", "queue", "forward.batch.max_messages", "broker.delivery_limit"))]
    assert not [text for text in texts if "](" in text]


def test_the_manual_page_has_everything_and_is_well_formed(tmp_path):
    page = tmp_path / "onceward.1"
    page.write_text(good("help", "--man"))
    if shutil.which("groff"):
        done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", str(page)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        assert done.returncode == 0 and done.stderr == b"", done
    text = page.read_text().replace("\\-", "-")
    for command in COMMANDS:
        assert f".SS {command}\n" in text and f"usage: onceward {command}" in text
    for listed in (good("explain", "--keys"), good("explain", "--codes")):
        for name in re.findall(r"^([a-z][\w.<>]+|OW\d+) ", listed, re.M):
            assert f"\n.B {name}\n" in text, name


# check --sample

def test_a_sample_tells_which_id_is_found_and_goes_back(place):
    place.queue.publish("m1", b"{}")
    place.queue.publish("m2", b"{}")
    for arguments in ([], ["--connect"]):
        assert "m1" not in run("check", *arguments, "--config", place.path).text
    assert place.queue.get()[0].redelivered is False  # nothing was taken
    for _ in range(2):
        done = run("check", "--connect", "--sample", "--config", place.path)
        assert 'ok   broker' in done.out and 'a message has the id "m2", from property:message_id' in done.out, done.text
        assert "counts as a delivery" in done.out
        place.queue.wait_for_ready(1)
    method, properties, body = place.queue.get()
    assert (method.redelivered, properties.message_id, body) == (True, "m2", b"{}")
    done = run("check", "--connect", "--sample", "--config", place.path)
    assert "no message is ready" in done.out, done.text
    done = run("check", "--sample", "--config", place.path)
    assert done.status == 2 and "--connect" in done.err
    assert "delivery" in good("check", "--help")


def test_a_sample_of_a_quorum_queue_counts_once_and_is_still_there(place):
    queue = Queue(place.rabbitmq, place.queue.name + "-quorum", arguments={"x-queue-type": "quorum"}).declare()
    try:
        queue.publish("m1", b"x" * 300_000)  # more than a frame
        path = place.write(top={"queues": {queue.name: {"forward": {"url": "http://127.0.0.1:1/"}}}})
        done = run("check", "--connect", "--sample", "--config", path)
        assert 'a message has the id "m1", from property:message_id' in done.out, done.text
        queue.wait_for_ready(1)
        _, properties, body = queue.get()
        # From RabbitMQ 4.3 on what is given back is counted apart, and no limit is on that.
        counts = {k: v for k, v in properties.headers.items() if k in ("x-delivery-count", "x-acquired-count")}
        assert counts in ({"x-delivery-count": 1}, {"x-acquired-count": 1}) and body == b"x" * 300_000
    finally:
        queue.delete()
        queue.close()


@pytest.mark.parametrize("options, says", [
    ({"auto_delete": True}, "when its last consumer leaves: declare it without auto-delete"),
    ({"arguments": {"x-expires": 600000}}, "after 600000 ms without a consumer: declare it without x-expires"),
    ({"arguments": {"x-queue-type": "quorum", "x-delivery-limit": 20}}, "no x-dead-letter-exchange"),
    ({"arguments": {"x-queue-type": "quorum", "x-delivery-limit": 20, "x-dead-letter-exchange": "amq.fanout"}}, None),
    ({}, None),
], ids=["auto-delete", "expires", "no-exchange", "exchange", "plain"])
def test_a_queue_that_loses_messages_is_warned_about(place, options, says):
    queue = Queue(place.rabbitmq, place.queue.name + "-declared", **options).declare()
    try:
        path = place.write(top={"queues": {queue.name: {"forward": {"url": "http://127.0.0.1:1/"}}}})
        done = run("check", "--json", "--connect", "--config", path)
        warnings = [x["text"] for x in json_lines(done.out) if x["result"] == "warn" and re.search("broker deletes|x-dead-letter", x["text"])]
        assert len(warnings) == (says is not None) and (says or "") in "".join(warnings), done.text
    finally:
        queue.delete()
        queue.close()


@pytest.mark.parametrize("limit, keys", [(0, {}), (0, {"delivery_limit": 0}), (4, {})], ids=["none-left", "told-none", "few"])
def test_a_delivery_limit_that_cannot_be_protected_fails(place, limit, keys):
    """With 0 the broker drops a message at its first return; the key delivery_limit says 0 for a queue without a limit."""
    queue = Queue(place.rabbitmq, place.queue.name + "-small", arguments={"x-queue-type": "quorum", "x-delivery-limit": limit}).declare()
    try:
        path = place.write(top={"queues": {queue.name: {"forward": {"url": "http://127.0.0.1:1/"}, **keys}}})
        done = run("check", "--json", "--connect", "--config", path)
        failed = [x["text"] for x in json_lines(done.out) if x["result"] == "fail"]
        assert any(f"its delivery limit is {limit} (x-delivery-limit of the queue); expected at least 5" in text for text in failed), done.text
        assert done.status == 1
    finally:
        queue.delete()
        queue.close()


@pytest.mark.parametrize("limit, keys, fails_at, says", [
    (5, {"delivery_limit": 5}, 2, "delivery limit is 5"),
    (5, {}, 2, "delivery limit is 5"),
    (None, {}, 1, "delivery limit is not known (set delivery_limit)"),
    (0, {}, 0, "not taken: with a delivery limit of 0"),
], ids=["told", "read", "unknown", "none-left"])
def test_a_sample_near_the_delivery_limit_says_not_to_look_again(place, limit, keys, fails_at, says):
    if limit is None and place.rabbitmq.version() >= (4,):
        pytest.skip("RabbitMQ 4 has a limit of its own, which is known")
    counted = place.rabbitmq.version() < (4, 3)
    queue = Queue(place.rabbitmq, place.queue.name + "-limit", arguments={"x-queue-type": "quorum", **({} if limit is None else {"x-delivery-limit": limit})}).declare()
    try:
        queue.publish("m1", b"{}")
        path = place.write(top={"queues": {queue.name: {"forward": {"url": "http://127.0.0.1:1/"}, **keys}}})
        for n in range(3):
            done = run("check", "--connect", "--sample", "--config", path)
            line, = [x for x in done.out.splitlines() if "sample of queue" in x]
            assert done.out.index("returns it") < done.out.index("sample of queue"), "what it costs is said before it is done"
            assert line.startswith("FAIL") == (says in line) == (counted and n >= fails_at), (n, line)
            assert ("counts as a delivery" in line) == (counted and limit != 0), line
            assert f"delivered {n} time" in line or n < fails_at or limit == 0 or not counted
            queue.wait_for_ready(1)
    finally:
        queue.delete()
        queue.close()


@pytest.mark.parametrize("source, properties, body, said", [
    (["header:x-order"], {"message_id": "secret-1"}, b"{}", '["property:message_id"]'),
    (["property:message_id"], {"headers": {"x-request-id": "secret-1", "region": "secret-2"}}, b"", '["header:x-request-id"]'),
    (["property:message_id"], {"correlation_id": "secret-1", "content_type": "application/json"}, b'{"id": "secret-3"}',
     '["json:/id"], ["property:correlation_id"]'),
    (["property:message_id"], {"headers": {"cloudEvents:id": "secret-1", "cloudEvents:source": "/s"}}, b"", '["cloudevents"]'),
    (["property:message_id"], {"type": "order", "headers": {"bad\x1b[2Jid": [1]}}, b"text", "body-sha256"),
    (["json:/order/id"], {}, b'{"order": {"number": "secret-1", "lines": []}}', "Its body has at /order the members number, lines"),
    (["json:/order"], {}, b'{"order": true, "number": 1}', "Its body has at /order no object, and no string or integer for an id"),
    (["json:/id"], {}, b"secret-1", "Its body is not JSON"),
])
def test_a_sample_without_an_id_tells_what_would_find_one(place, source, properties, body, said):
    place.queue.publish(None if "message_id" not in properties else properties.pop("message_id"), body, **properties)
    done = run("check", "--connect", "--sample", "--config", place.write(message_id=source))
    line, = [x for x in done.out.splitlines() if "sample of queue" in x]
    assert done.status == 1 and line.startswith("FAIL") and "has no id: looked for " + source[0] in line and said in line, done.text
    assert "secret-" not in line and "\x1b" not in line
    for name in (*properties.get("headers", {}), *(p for p in properties if p != "headers")):
        assert name.replace("\x1b", "\\x1b") in line, line
    place.queue.wait_for_ready(1)


# explain

def test_every_event_of_the_source_is_explained_and_in_the_documentation():
    path = os.path.join(os.path.dirname(__file__), "../../include/onceward/base/events.def")
    with open(path) as f:
        events = re.findall(r'^EVENT\(\w+, "(\w+)"', f.read(), re.M)
    assert len(events) > 30
    listed = good("explain")
    table = good("explain", "--markdown")
    for event in events:
        out = explained(event)
        lines = out.splitlines()
        assert lines[0].startswith(event + " (") and all(len(line) > 10 and line[0] == " " for line in lines[1:3]), out
        assert re.search(rf"^{event} ", listed, re.M) and f"\n### `{event}`\n\n*" in table and f"[`{event}`](#{event})" in table
    assert table.count("\n**What to do:** ") == table.count("### `") == len(events)


def test_what_is_lost_and_what_goes_on_is_explained():
    """too_large is said for both values of on_too_large; three of the pauses stop consuming alone."""
    for line in good("explain", "too_large").splitlines():
        assert not re.search("hold|reject", line) or "dead-letter exchange" in line, line
    paused = good("explain", "paused")
    assert "No message is forwarded" not in paused and "starts no new messages" in paused
    assert all(reason in paused for reason in ("parked_full", "too_large", "bytes_full"))


def test_a_misspelt_event_is_guessed():
    assert "paused" in run("explain", "pause").err


def test_every_error_that_the_functions_raise_is_explained_and_no_other():
    folder = os.path.join(os.path.dirname(__file__), "../../sql/functions")
    raised = set()
    for name in os.listdir(folder):
        if not name.startswith("sidecar_") and name != "time_mark.sql":  # OW010 is for sidecars: see pipeline.c
            with open(os.path.join(folder, name)) as f:
                raised |= set(re.findall(r"ERRCODE = '(OW\d\d\d)'", f.read()))
    assert raised == set(re.findall(r"OW\d\d\d(?= )", good("explain", "--codes"))) >= {"OW001", "OW002", "OW003"}
    for code in raised:
        assert good("explain", code) == good("explain", code.lower()) and good("explain", code).startswith(code + " (error"), code


def test_every_key_of_the_configuration_is_explained():
    path = os.path.join(os.path.dirname(__file__), "../../src/config/keys.def")
    with open(path) as f:
        keys = re.findall(r'^KEY\((\w+), "([\w.]+)"', f.read(), re.M)
    listed = good("explain", "--keys")
    assert len(keys) > 60 and listed in good("explain")
    for scope, key in keys:
        shown = ("queues.<name>." if scope == "QUEUE" else "") + key
        assert re.search(rf"^{re.escape(shown)} \(configuration key\)\n  .{{10,}}\n  .*\.$", explained(key), re.M), key
        assert re.search(rf"^{re.escape(shown)} ", listed, re.M)
    backoff = good("explain", "retry.backoff")
    assert "default: 1s" in backoff and "duration 1ms to 1d" in backoff
    for name in ("backoff", "RETRY.Backoff", "queues.orders.retry.backoff", "queues.<name>.retry.backoff", "defaults.retry.backoff",
                 "retry.backoff_file"):
        assert good("explain", name) == backoff, name
    assert good("explain", "connect_timeout").count("(configuration key)") == 3
    assert "did you mean max_parked?" in run("explain", "max_parkt").err


def test_the_endings_of_stats_are_explained_and_case_does_not_matter():
    assert "99th percentile" in good("explain", "p99") and "forward_ms" in good("explain", "_p99")
    assert "since the queue was started" in good("explain", "total")
    for name in ("paused", "forward_ms_p99", "everything_fails", "consuming", "p50"):
        assert good("explain", name.upper()).lower() == good("explain", name).lower()


# migrate

# version() of each begins like this; 24 bytes, as what they replace
ENGINES = {"CockroachDB": b"CockroachDB CCL v25.2.0 ", "YugabyteDB": b"PostgreSQL 15.12-YB-2025"}


@pytest.fixture
def as_another(empty):
    """The database behind a proxy that gives its version another name."""
    proxies = []

    def made(engine):
        proxy = Proxy(empty.port).start()
        proxies.append(proxy)
        version = empty.query("SELECT version()")[0][0].encode()
        proxy.rewrites = [(version[:24], ENGINES[engine])]
        return empty.dsn(port=proxy.port, sslmode="disable")
    yield made
    for proxy in proxies:
        proxy.stop()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_server_that_is_not_postgresql_is_refused_by_name(tmp_path, empty, as_another, engine):
    path = os.path.join(str(tmp_path), "config.json")
    with open(path, "w") as f:
        json.dump(schema.minimal_config(as_another(engine)), f)
    done = run("migrate", "--config", path)
    assert done.status == 1 and f"{engine} is not supported: its advisory locks" in done.text, done.text
    assert not empty.query("SELECT FROM pg_namespace WHERE nspname = 'onceward'"), "nothing was made"
    done = run("check", "--config", path, "--connect")
    fail, = [line for line in done.out.splitlines() if line.startswith("FAIL") and "database" in line]
    assert done.status == 1 and f"{engine} is not supported" in fail, done.text


@pytest.mark.parametrize("has_jobs, name", [(True, "Aurora DSQL"), (False, "A server without PL/pgSQL")])
def test_a_server_without_plpgsql_is_refused(tmp_path, empty, has_jobs, name):
    empty.query("DROP EXTENSION plpgsql")
    if has_jobs:
        empty.query("CREATE SCHEMA sys; CREATE TABLE sys.jobs ()")
    done = run("migrate", "--config", config_for(tmp_path, empty))
    assert done.status == 1 and f"{name} is not supported" in done.text, done.text


@pytest.fixture
def empty(raw_postgres):
    database = raw_postgres.create_database(f"empty_{uuid.uuid4().hex[:8]}")
    yield database
    raw_postgres.query(f'DROP DATABASE "{database.database}" WITH (FORCE)', database="postgres")


def config_for(folder, postgres, user="postgres"):
    path = os.path.join(str(folder), "config.json")
    with open(path, "w") as f:
        json.dump(schema.minimal_config(postgres.dsn(user=user)), f)
    return path


def test_migrate_makes_the_schema_and_a_second_time_changes_nothing(tmp_path, empty):
    path = config_for(tmp_path, empty)
    assert "was created, version" in good("migrate", "--config", path)
    before = empty.query("SELECT version, applied_at FROM onceward.schema_version")
    empty.query("INSERT INTO onceward.consumer (consumer, broker, vhost, queue) VALUES ('c', 'b', '/', 'q')")
    again = good("migrate", "--config", path)
    assert "is at version" in again and all(line.startswith("--") for line in again.splitlines())
    assert empty.query("SELECT version, applied_at FROM onceward.schema_version") == before
    assert empty.query("SELECT queue FROM onceward.consumer") == [("q",)]
    assert empty.query("SELECT has_function_privilege('onceward_app', 'onceward.complete(text)', 'EXECUTE'),"
                       " has_table_privilege('onceward_app', 'onceward.inbox', 'SELECT')") == [(True, False)]


def test_migrate_needs_no_configuration_where_the_database_is_named(tmp_path, empty):
    assert "was created, version" in good("migrate", "--database", empty.dsn())
    (tmp_path / "uri").write_text(empty.dsn() + "\n")
    assert "is at version" in good("migrate", "--database-file", tmp_path / "uri")


def test_migrate_puts_a_function_right_that_was_changed(tmp_path, empty):
    path = config_for(tmp_path, empty)
    good("migrate", "--config", path)
    before = empty.query("SELECT md5(prosrc) FROM pg_proc WHERE oid = 'onceward.complete(text)'::regprocedure")
    empty.query("CREATE OR REPLACE FUNCTION onceward.complete(token text) RETURNS text LANGUAGE sql AS $$ SELECT 'x'::text $$")
    good("migrate", "--config", path)
    assert empty.query("SELECT md5(prosrc) FROM pg_proc WHERE oid = 'onceward.complete(text)'::regprocedure") == before


def test_many_may_migrate_at_once(tmp_path, raw_postgres):
    """In one database, and in two databases of one server, which share the roles."""
    databases = [raw_postgres.create_database(f"race_{uuid.uuid4().hex[:8]}") for _ in range(2)]
    try:
        children = []
        for i, database in enumerate(databases):
            folder = tmp_path / str(i)
            folder.mkdir()
            path = config_for(folder, database)
            children += [process.spawn([schema.require_binary(), "migrate", "--config", path], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=ENVIRONMENT) for _ in range(4)]
        outs = [child.communicate(timeout=60)[0].decode() for child in children]
        assert [child.returncode for child in children] == [0] * 8, outs
        assert sum("was created" in out for out in outs) == 2
        for database in databases:
            assert database.query("SELECT count(*)::int FROM onceward.schema_version WHERE version = 1") == [(1,)]
        for child in children:
            process.reap(child)
    finally:
        for database in databases:
            raw_postgres.query(f'DROP DATABASE "{database.database}" WITH (FORCE)', database="postgres")


def test_migrate_does_not_wait_for_an_application_in_the_middle_of_its_transaction(place):
    place.row("m1", "processing")
    connection = place.postgres.connect(autocommit=False)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE onceward.inbox SET status = 'completed' WHERE message_id = 'm1'")
        cursor.execute("SELECT onceward.sidecar_schema()")
    start = time.monotonic()
    good("migrate", "--config", config_for(place.folder, place.postgres, user=schema.OWNER))
    assert time.monotonic() - start < 40  # the other side of the lock is this thread's
    connection.commit()
    connection.close()
    assert place.status_of("m1") == ("completed", 1)


def test_two_at_once_take_turns(tmp_path, empty):
    """The lock of another migration is waited for, and then what it did is seen."""
    path = config_for(tmp_path, empty)
    holder = empty.connect(autocommit=False)
    with holder.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (int.from_bytes(b"onceward", "big"),))
    child = process.spawn([schema.require_binary(), "migrate", "--config", path], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=ENVIRONMENT)
    wait_until(lambda: empty.query("SELECT 1 FROM pg_locks JOIN pg_database d ON d.oid = database "
                                   "WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted"), "it waits")
    assert empty.query("SELECT to_regclass('onceward.inbox')") == [(None,)]
    holder.rollback()
    holder.close()
    out = child.communicate(timeout=60)[0].decode()
    assert child.returncode == 0 and "was created" in out, out
    process.reap(child)


@pytest.fixture
def no_roles(raw_postgres, tmp_path, certificates):
    """A server of its own: roles belong to all databases of a server."""
    from rig.servers import PostgreSQL

    folder = os.path.join(raw_postgres.folder, "no-roles-" + uuid.uuid4().hex[:6])
    server = PostgreSQL(folder, certificates).init().start()
    yield server
    server.stop()


def test_without_createrole_the_statements_for_an_administrator_are_printed(tmp_path, no_roles):
    no_roles.query("CREATE ROLE owner LOGIN")
    database = no_roles.create_database("app")
    database.query("ALTER DATABASE app OWNER TO owner")
    path = config_for(tmp_path, database, user="owner")
    out = good("migrate", "--config", path)
    assert "may not create roles" in out and "was created, version" in out
    assert database.query("SELECT 1 FROM pg_roles WHERE rolname LIKE 'onceward%'") == []
    # What it printed is SQL as a whole.
    database.query(out)
    assert database.query("SELECT has_function_privilege('onceward_app', 'onceward.complete(text)', 'EXECUTE'),"
                          " has_table_privilege('onceward_sidecar', 'onceward.inbox', 'UPDATE')") == [(True, True)]
    assert "may not create roles" not in good("migrate", "--config", path)
    assert "GRANT onceward_app TO" in good("migrate", "--config", path)


def test_what_an_owner_needs_is_to_create_in_the_database_and_to_make_roles(tmp_path, no_roles):
    no_roles.query("CREATE ROLE owner LOGIN CREATEROLE")
    database = no_roles.create_database("app")
    database.query("GRANT CREATE ON DATABASE app TO owner")
    path = config_for(tmp_path, database, user="orders_sidecar")
    out = good("migrate", "--config", path, "--database", database.dsn(user="owner"))
    assert "was created, version" in out and "may not create roles" not in out
    assert "No login of a sidecar has the role onceward_sidecar yet: CREATE ROLE name LOGIN" in out and "IN ROLE onceward_app" in out
    database.query("CREATE ROLE orders_sidecar LOGIN IN ROLE onceward_sidecar", user="owner")
    database.query("CREATE ROLE orders_app LOGIN IN ROLE onceward_app", user="owner")
    assert "role orders_sidecar may do all that the sidecar does" in run("check", "--config", path, "--connect").out
    assert "No login" not in good("migrate", "--config", path, "--database", database.dsn(user="owner"))


def test_check_names_missing_rights_and_functions_that_the_sidecars_functions_need(tmp_path, no_roles):
    database = no_roles.create_database("app")
    path = config_for(tmp_path, database)
    good("migrate", "--config", path)
    database.query("CREATE ROLE orders_sidecar LOGIN IN ROLE onceward_sidecar")
    path = config_for(tmp_path, database, user="orders_sidecar")
    assert "may do all that the sidecar does" in run("check", "--config", path, "--connect").out
    database.query("REVOKE EXECUTE ON FUNCTION onceward.time_mark, onceward.lever_retry FROM onceward_sidecar")
    database.query("DROP FUNCTION onceward.history_print")
    out = run("check", "--config", path, "--connect").out
    assert "lacks EXECUTE on onceward.lever_retry(text,text[],text), EXECUTE on onceward.time_mark(bigint,text[])" in out, out
    assert "the function onceward.history_print is missing" in out, out
    database.query("REVOKE UPDATE ON onceward.control FROM onceward_sidecar; REVOKE ALL ON SEQUENCE onceward.outbox_turn FROM onceward_sidecar")
    out = run("check", "--config", path, "--connect").out
    assert "UPDATE on onceward.control" in out and "SELECT on onceward.outbox_turn" in out, out


def test_migrate_by_another_login_than_the_configured_one(tmp_path, empty):
    path = config_for(tmp_path, empty, user="nobody_at_all")
    done = run("migrate", "--config", path)
    assert done.status == 1 and "nobody_at_all" in done.err, done.text
    assert "was created, version" in good("migrate", "--config", path, "--database", empty.dsn())


def test_migrate_as_somebody_who_may_not_changes_nothing_and_says_why(tmp_path, place):
    done = run("migrate", "--config", config_for(tmp_path, place.postgres, user="sidecar_login"))
    assert done.status == 1 and "sidecar_login" in done.err and "left as it was" in done.err and "--database" in done.err, done.text


def test_a_newer_schema_is_left_alone_or_refused(tmp_path, empty):
    path = config_for(tmp_path, empty)
    good("migrate", "--config", path)
    empty.query("INSERT INTO onceward.schema_version (version, oldest_compatible) VALUES (999, 1)")
    empty.query("CREATE OR REPLACE FUNCTION onceward.complete(token text) RETURNS text LANGUAGE sql AS $$ SELECT 'new'::text $$")
    out = good("migrate", "--config", path)
    assert "newer than this program" in out and "999" in out
    assert empty.query("SELECT onceward.complete('x')") == [("new",)]
    empty.query("INSERT INTO onceward.schema_version (version, oldest_compatible) VALUES (1000, 1000)")
    done = run("migrate", "--config", path)
    assert done.status == 1 and "1000" in done.err and "newer onceward" in done.err, done.text
    assert empty.query("SELECT onceward.complete('x')") == [("new",)]


# check

def test_check_says_ok_for_each_thing_that_answers(place):
    listener = socket.create_server(("127.0.0.1", 0))
    path = place.write(forward={"url": f"http://127.0.0.1:{listener.getsockname()[1]}/"})
    out = good("check", "--config", path, "--connect")
    listener.close()
    lines = [line for line in out.splitlines() if line]
    assert all(line.startswith(("ok   ", "hint ")) for line in lines[:-1]) and lines[-1] == "Everything answers.", out
    for part in ("configuration", "PostgreSQL", "READ COMMITTED", "schema onceward", "may do all", "is new",
                 f"queue {place.queue.name} exists", "takes connections"):
        assert part in out, out
    assert f"amqp://127.0.0.1:{place.rabbitmq.port}" in out and "guest" not in out


def test_check_finds_each_thing_that_is_wrong_and_goes_on(fresh_place):
    fresh_place.postgres.query("INSERT INTO onceward.consumer (consumer, broker, vhost, queue) VALUES ('held', 'b', '/', 'another')")
    fresh_place.postgres.query("REVOKE DELETE ON onceward.dead_letter FROM onceward_sidecar")
    fresh_place.postgres.query("ALTER FUNCTION onceward.sidecar_look_many RENAME TO look_gone")
    path = fresh_place.write(queue="missing-" + fresh_place.queue.name, consumer="held")
    done = run("check", "--config", path, "--connect")
    fails = [line for line in done.out.splitlines() if line.startswith("FAIL")]
    assert done.status == 1 and len(fails) == 5, done.text
    for part in ('belongs to queue "another"', "DELETE on onceward.dead_letter", "sidecar_look_many is missing",
                 "queue missing-" + fresh_place.queue.name, "http://127.0.0.1:1/"):
        assert any(part in line for line in fails), done.text
    assert "5 failures have" in done.out


def test_check_without_a_schema_says_migrate(tmp_path, empty, rabbitmq):
    path = config_for(tmp_path, empty)
    done = run("check", "--config", path, "--connect")
    assert done.status == 1 and "onceward migrate" in done.out, done.text


def test_check_finds_another_isolation_only_where_it_cannot_be_pinned(place):
    place.postgres.query("CREATE ROLE serial LOGIN IN ROLE onceward_sidecar")
    place.postgres.query("ALTER ROLE serial SET default_transaction_isolation = 'serializable'")
    try:
        out = run("check", "--config", place.write(user="serial"), "--connect").out
        assert "ok   database" in out and "READ COMMITTED" in out
    finally:
        place.postgres.query("DROP ROLE serial")


def test_check_never_shows_a_password(place):
    path = place.write(top={"database": {"url": f"postgresql://with_password:{SECRET}@127.0.0.1:{place.postgres.port}/x"},
                            "broker": {"url": f"amqp://guest:{SECRET}@127.0.0.1:{place.rabbitmq.port}/"}})
    done = run("check", "--config", path, "--connect")
    assert done.status == 1 and done.out.count("FAIL") == 3, done.text


def test_check_of_a_wrong_file_is_status_2(place):
    path = place.write(completion="maybe", prefetch=-1)
    done = run("check", "--config", path, "--connect")
    assert done.status == 2 and "completion" in done.err and "prefetch" in done.err and "FAIL" not in done.out


# status

def test_status_shows_nothing_that_acts_on_a_terminal(place):
    """Replicas of other teams write their states themselves, also where a number is expected."""
    evil = "\x9b31m\u202eoverride\u2066\x7f"
    place.postgres.query("INSERT INTO onceward.replica (instance, number, counter, version, queues, seen_at) VALUES (%s, 1, 1, %s, %s::json,"
                         " clock_timestamp() + interval '1 hour')",
                         (evil, evil, json.dumps([{"queue": evil, "consumer": evil, "state": evil, "reason": evil, "in_flight": evil,
                                                   "depth": {evil: 1}, "limit": 4}], ensure_ascii=False)))
    place.postgres.query("INSERT INTO onceward.control (consumer, paused, reason, by, since) VALUES (%s, true, %s, %s, now())", (evil,) * 3)
    out, shown = (good("status", "--config", place.path, *more) for more in (["--json"], []))
    for text in (out, shown):
        assert "override" in text and not set(evil) & set(text) - set("31moverride")
    replica, = [r for r in json.loads(out)["replicas"] if r["instance"] == evil]
    assert (replica["queue"], replica["in_flight"], replica["depth"], replica["limit"]) == (evil, None, None, 4)


def test_status_of_an_empty_inbox(place):
    out = good("status", "--config", place.path)
    assert re.search(rf"^{place.queue.name} +0 +0 +0 +0 +0 +0 +0 +-$", out, re.M), out
    assert "Nothing is unfinished." in out and "There are no dead letters." in out
    seen = json.loads(good("status", "--config", place.path, "--json"))
    assert seen["consumers"] == [{"consumer": place.queue.name, "processing": 0, "failed": 0, "waiting": 0,
                                  "held": 0, "completed": 0, "dead": 0, "dead_letters": 0, "oldest_unfinished_ms": None}]
    assert seen["oldest_unfinished"] == [] and seen["dead_letters"] == []


def test_status_of_one_id_shows_its_row_its_history_entry_and_its_dead_letter(place):
    consumer = place.queue.name
    place.postgres.query("INSERT INTO onceward.consumer (consumer, broker, vhost, queue, number) VALUES (%s, 'b', '/', %s, 31000)"
                         " ON CONFLICT (consumer) DO UPDATE SET number = 31000", (consumer, consumer))
    place.postgres.query("INSERT INTO onceward.inbox (token, status, received_at, token_expires_at, max_expires_at, next_attempt_at, attempt, fingerprint,"
                         " message_id, consumer, claimed_by, last_error) VALUES (gen_random_uuid(), 'failed', now(), now(), now(), now() + interval '1 hour', 2,"
                         " '\\x00', 'tried', %s, 'me', 'HTTP 500')", (consumer,))
    place.postgres.query("INSERT INTO onceward.history SELECT onceward.history_hash(%s, 'moved'), 0, 31000, 8000", (consumer,))
    place.postgres.query("INSERT INTO onceward.dead_letter (consumer, vhost, queue, message_id, rowless, reason, attempts, last_error, body, exchange, routing_key,"
                         " deaths, died_at, digest) VALUES (%s, '/', %s, 'moved', true, 'mismatch', 0, 'another body', '', '', '', 0, now(), '')", (consumer,) * 2)
    shown = {id: good("status", "--config", place.path, "--id", id) for id in ("tried", "moved", "new")}
    assert re.search(rf"^{consumer} +failed +2 .* in (59|60) min +- +HTTP 500", shown["tried"], re.M), shown["tried"]
    assert re.search(rf"^{consumer} +completed, compacted .* 2021-11-26", shown["moved"], re.M), shown["moved"]
    assert re.search(rf"^{consumer} +dead letter \d+: mismatch", shown["moved"], re.M), shown["moved"]
    assert "No consumer has a row" in shown["new"]
    row, = json.loads(good("status", "--config", place.path, "--id", "tried", "--json"))["kept"]
    assert (row["kept_as"], row["state"], row["attempt"], row["last_error"]) == ("row", "failed", 2, "HTTP 500")
    place.postgres.query("DELETE FROM onceward.history WHERE consumer = 31000")


def test_status_names_paused_replicas_and_depth_before_it_calls_anything_finished(place):
    queue = place.queue.name
    for instance, depth in (("pod-1", 1867), ("pod-2", 1868)):
        state = {"queue": queue, "consumer": queue, "state": "paused", "reason": "application_down", "detail": "connection refused by app:80",
                 "paused_for_ms": 13000, "depth": depth}
        place.postgres.query("INSERT INTO onceward.replica (instance, number, counter, version, queues, seen_at) VALUES (%s, 1, 1, '1', %s::json,"
                             " clock_timestamp() + interval '1 hour')", (instance, json.dumps([state])))
    place.postgres.query("UPDATE onceward.replica SET host = instance WHERE instance = 'pod-1'")
    out = good("status", "--config", place.path)
    assert out.count("at the broker") == 1 and f"\n1868 messages wait at the broker in {queue}.\n" in out, out
    for instance in ("pod-1", "pod-2"):
        assert f"\n{queue} is paused on {instance} for 13 s: application_down, connection refused by app:80.\n" in out, out
    assert "No row is unfinished." in out and "Nothing is unfinished" not in out
    assert out.index("1868") < out.index("No row is unfinished")


def test_status_names_pods_beside_the_instances_of_rows_and_queues(place):
    queue, uid = place.queue.name, "0b6e1a3c-7d2f"
    state = {"queue": queue, "consumer": queue, "state": "paused", "reason": "application_down", "detail": "refused", "paused_for_ms": 13000}
    place.postgres.query("INSERT INTO onceward.replica (instance, number, counter, version, host, queues, seen_at) VALUES (%s, 7, 1, '1', 'payments-x1', %s::json,"
                         " clock_timestamp() + interval '1 hour')", (uid, json.dumps([state])))
    place.row("p1", "processing")
    place.row("p2", "processing")
    place.postgres.query("INSERT INTO onceward.consumer (consumer, broker, vhost, queue) VALUES (%s, 'b', '/', %s)", (queue, queue))
    place.postgres.query("UPDATE onceward.inbox SET claimed_by = %s || '/7' WHERE consumer = %s AND message_id = 'p1'", (uid, queue))
    out, more = (good("status", "--config", place.path, *id) for id in ([], ["--id", "p1"]))
    assert f"{queue} is paused on {uid} (payments-x1) for 13 s" in out and f" {uid}/7 (payments-x1) " in out and out.count("payments-x1") == 3, out
    assert re.search(rf"^{queue} +processing .* {uid}/7 \(payments-x1\)", more, re.M), more
    assert "payments-x1" not in good("status", "--config", place.path, "--id", "p2")
    row, = json.loads(good("status", "--config", place.path, "--id", "p1", "--json"))["kept"]
    assert (row["holder"], row["host"]) == (f"{uid}/7", "payments-x1")
    hosts = {r["message_id"]: r["host"] for r in json.loads(good("status", "--config", place.path, "--json"))["oldest_unfinished"]}
    assert hosts == {"p1": "payments-x1", "p2": None}


def test_status_counts_and_names_the_ten_oldest(place):
    for i in range(12):
        place.row(f"f{i:02}", "failed", attempt=2, age=f"{100 - i} min", error="answered 500 \x1b[2J", next_attempt="4 min")
    place.row("p1", "processing", age="3 hours", window="-10 min")
    place.row("waiting-one", "waiting", age="1 s")
    place.row("c1", "completed")
    place.row("d1", "dead")
    place.letter("d1")
    place.letter(None, consumer="somebody else", rowless=True, reason="no_message_id")
    out = good("status", "--config", place.path)
    assert re.search(rf"^{place.queue.name} +1 +12 +1 +0 +1 +1 +1 +3 h 0 min$", out, re.M), out
    assert re.search(r"^somebody else \* +0 +0 +0 +0 +0 +0 +1 +-$", out, re.M) and "not in this configuration" in out
    oldest = out.split("The oldest unfinished:\n")[1].split("\n\n")[0].splitlines()
    assert len(oldest) == 11 and " p1 " in oldest[1] and "token ended 10 min ago" in oldest[1] and "instance-1" in oldest[1]
    assert [re.search(r" (f\d\d) ", line)[1] for line in oldest[2:]] == [f"f{i:02}" for i in range(9)]
    assert re.search(r"failed +2 +in 3 min \d+ s|failed +2 +in 4 min", oldest[2]) and "answered 500 \\x1b[2J" in oldest[2]
    assert "\x1b" not in out and "waiting-one" not in out
    assert re.search(r"^somebody else +no_message_id +1 +5 min", out, re.M), out
    seen = json.loads(good("status", "--config", place.path, "--json"))
    assert len(seen["oldest_unfinished"]) == 10 and seen["oldest_unfinished"][1]["last_error"] == "answered 500 \x1b[2J"
    assert seen["oldest_unfinished"][0]["state"] == "processing" and seen["oldest_unfinished"][0]["token_window_ms"] < -500000


def test_status_knows_the_outbox_of_the_configuration(place):
    """Its dead letters have the consumer onceward-outbox. Without an outbox in the configuration, they belong to another configuration."""
    place.letter("d1", consumer="onceward-outbox")
    for outbox, mark in (({}, r" \*"), ({"outbox": {}}, "")):
        out = good("status", "--config", place.write(top=outbox))
        assert re.search(rf"^onceward-outbox{mark} +0 +0 +0 +0 +0 +0 +1 +-$", out, re.M), out
        assert ("not in this configuration" in out) == (not outbox), out


def test_status_says_how_rows_that_nobody_comes_for_are_forgotten(place):
    for i in range(3):
        place.row(f"f{i}", "failed", next_attempt="-8 days", window="-8 days")
    place.row("w", "waiting", next_attempt="-11 min", window="-11 min")
    place.row("young", "waiting", next_attempt="-9 min", window="-9 min")
    place.row("c", "completed", next_attempt="-8 days", window="-8 days")
    out = good("status", "--config", place.path)
    assert f"4 rows of {place.queue.name} overdue, the first for 8 d" in out, out
    sql = re.search(r"SELECT onceward.orphans_remove\(consumer, '7 days'\)", out)[0].replace("consumer", f"'{place.queue.name}'")
    seen, = json.loads(good("status", "--config", place.path, "--json"))["overdue"]
    assert (seen["consumer"], seen["count"]) == (place.queue.name, 4) and seen["due_for_ms"] > 600_000_000
    assert place.postgres.query(sql, user="sidecar_login") == [(3,)]
    assert place.status_of("f0") is None and place.status_of("w") == ("waiting", 1)
    assert "\n1 row of" in good("status", "--config", place.path)


def test_status_counts_an_overdue_row_whose_times_have_no_beginning(fresh_place):
    """Both were changed by hand."""
    fresh_place.row("m1", "failed", next_attempt="-1 hour", window="-1 hour")
    fresh_place.postgres.query("UPDATE onceward.inbox SET next_attempt_at = '-infinity', token_expires_at = '-infinity'")
    seen, = json.loads(good("status", "--config", fresh_place.path, "--json"))["overdue"]
    assert (seen["count"], seen["due_for_ms"]) == (1, 0)
    fresh_place.row("m2", "failed", next_attempt="-1 hour", window="-1 hour")
    seen, = json.loads(good("status", "--config", fresh_place.path, "--json"))["overdue"]
    assert seen["count"] == 2 and 3_600_000 <= seen["due_for_ms"] < 3_900_000
    assert "2 rows of" in good("status", "--config", fresh_place.path)


def test_status_names_who_holds_the_lock(fresh_place):
    fresh_place.row("m1", "processing")
    fresh_place.row("m2", "processing")
    connection = fresh_place.postgres.connect(autocommit=False, user="app_login", application_name="billing")
    try:
        fresh_place.postgres.query("GRANT USAGE ON SCHEMA onceward TO app_login")
        fresh_place.postgres.query("GRANT ALL ON onceward.inbox TO app_login")
        with connection.cursor() as cursor:
            cursor.execute("UPDATE onceward.inbox SET status = 'completed' WHERE message_id = 'm1'")
        pid = connection.info.backend_pid
        out = good("status", "--config", fresh_place.path)
        assert f"Row m1 is locked by pid {pid} (application billing, user app_login" in out, out
        assert f"pg_terminate_backend({pid})" in out and out.count("is locked") == 1
        seen = json.loads(good("status", "--config", fresh_place.path, "--json"))
        by_id = {r["message_id"]: r for r in seen["oldest_unfinished"]}
        assert by_id["m1"]["lock_pid"] == pid and by_id["m1"]["lock_application"] == "billing" and by_id["m2"]["lock_pid"] is None
    finally:
        connection.close()


# dead list and show

def test_a_letter_whose_message_was_completed_since_says_so(place):
    """By its row, or by the entry that has replaced it; of another body it does not."""
    letters = {name: place.letter(name) for name in ("dead", "completed", "compacted", "other-body", "gone")}
    place.row("dead", "dead")
    place.row("completed", "completed")
    for name, fingerprint in (("compacted", "\\xabcd"), ("other-body", "\\x1234")):
        place.postgres.query("INSERT INTO onceward.history SELECT onceward.history_hash(%s, %s), onceward.history_print(%s), 1, 9000",
                             (place.queue.name, name, fingerprint))
    for name, letter in letters.items():
        out = good("dead", "show", "--config", place.path, str(letter))
        assert ("completed since" in out) == (name in ("completed", "compacted")), out
    out = good("dead", "redrive", "--config", place.path, "--dry-run", str(letters["compacted"]))
    assert "was completed meanwhile" in out


def test_dead_refuses_a_consumer_that_does_not_exist(place):
    """A consumer exists if the configuration has it, or if the database has its record, a row or a dead letter."""
    commands = [("list",), ("list", "--json"), ("show", "--json"), ("redrive",), ("redrive", "--dry-run"), ("discard",)]
    for words in commands:
        done = run("dead", *words, "--config", place.path, "--consumer", "typo")
        assert done.status == 1 and not done.out and 'onceward dead: there is no consumer "typo"' in done.err, done.text
    place.letter("a", consumer="letters")
    place.postgres.query("INSERT INTO onceward.consumer (consumer, broker, vhost, queue) VALUES ('recorded', 'b', '/', 'recorded')")
    place.row("m1", "completed")
    place.postgres.query("UPDATE onceward.inbox SET consumer = 'rows'")
    for consumer in ("letters", "recorded", "rows", place.queue.name):
        good("dead", "list", "--config", place.path, "--consumer", consumer)
    assert run("dead", "list", "--config", place.path, "--consumer", "onceward-outbox").status == 1
    good("dead", "list", "--config", place.write(top={"outbox": {}}), "--consumer", "onceward-outbox")


def test_dead_list_is_a_table_and_filters(place):
    old = place.letter("a", age="3 days")
    new = place.letter("b", reason="permanent", error="answered 400\nsecond \u202eline")
    other = place.letter("c", consumer="other")
    out = good("dead", "list", "--config", place.path)
    lines = out.splitlines()
    assert lines[0].split()[:4] == ["ID", "DIED", "CONSUMER", "REASON"]
    assert [int(line.split()[0]) for line in lines[1:4]] == [old, new, other] and "3 d 0 h ago" in lines[1]
    assert "answered 400\\nsecond \\u202eline" in lines[2]
    assert f"dead redrive --config {place.path} ID" in out

    def ids(*arguments):
        out = good("dead", "list", "--config", place.path, *arguments)
        return [int(m) for m in re.findall(r"^ *(\d+)  ", out, re.M)]

    assert ids("--consumer", "other") == [other]
    assert ids("--reason", "permanent") == [new]
    assert ids("--since", "2h") == [new, other]
    assert ids("--since", "2020-01-01T00:00:00Z") == [old, new, other]
    for since in ("2024-02-29", "2020-01-01T00:00", "2020-01-01 00:00:60", "2020-01-01t23:59:59.999999999z", "2020-01-01T00:00:00+05:30",
                  "2020-01-01T00:00-08", "3650d"):
        assert ids("--since", since) == [old, new, other], since
    assert ids("--since", "2099-01-01") == []
    assert ids("--older", "2h") == [old] and ids("--older", "2099-01-01") == [old, new, other] and ids("--older", "2020-01-01") == []
    assert ids("--older", "1m", "--since", "2h") == [new, other] and ids("--older", "1m", "--consumer", "other") == [other]
    assert ids(old, other) == [old, other]
    assert ids("--limit", "1") == [old]
    assert "3 in all" in good("dead", "list", "--config", place.path, "--limit", "1")
    assert "No dead letters that match." in good("dead", "list", "--config", place.path, "--reason", "none")


def test_dead_list_of_many_pages(place):
    place.letter()
    place.postgres.query("INSERT INTO onceward.dead_letter (consumer, vhost, queue, message_id, rowless, reason, attempts, body,"
                         " exchange, routing_key, deaths, died_at) SELECT consumer, vhost, queue, 'x' || n, false, reason, 1, body, '',"
                         " 'k', 0, now() FROM onceward.dead_letter, generate_series(1, 449) n")
    out = good("dead", "list", "--config", place.path)
    assert len(re.findall(r"^ *\d+  ", out, re.M)) == 50 and "450 in all" in out
    out = good("dead", "list", "--config", place.path, "--limit", "0")
    assert len(re.findall(r"^ *\d+  ", out, re.M)) == 450 and "in all" not in out


def test_dead_show_has_everything(place):
    letter = place.letter("m\x1b1", headers={"region": "north"}, body="grüße\tan\nalle".encode())
    out = good("dead", "show", "--config", place.path, letter)
    for part in (f"letter        {letter}\n", place.queue.name, "m\\x1b1", "answered 500", "attempts      8",
                 "shop", "routing key   new", "text/plain", '"region": "north"', "abcd", "HTTP status   500", "\ngrüße\tan\nalle\n"):
        assert part in out, out
    assert re.search(r"^died +\S+Z, \d+ min( \d+ s)? ago$", out, re.M), out
    assert "\x1b" not in out


def test_dead_show_of_a_body_that_is_not_text(place):
    body = b"\x00\xff\x1b[2J" + bytes(range(256)) * 5
    letter = place.letter(body=body)
    out = good("dead", "show", "--config", place.path, letter)
    assert "--body raw" in out and "00 ff 1b 5b" in out and "\x1b" not in out
    assert run("dead", "show", "--config", place.path, "--body", "raw", letter).raw == body


def test_dead_show_of_an_empty_body_and_of_none(place):
    letter = place.letter(body=b"", rowless=True, message_id=None, raw_id=b"\xff\x00", reason="invalid_message_id")
    out = good("dead", "show", "--config", place.path, letter)
    assert "0 B" in out and "ff00" in out and "--new-id" in out
    assert run("dead", "show", "--config", place.path, "--body", "raw", letter).raw == b""
    done = run("dead", "show", "--config", place.path, letter + 1000)
    assert done.status == 1 and f"there is no dead letter {letter + 1000}:" in done.err


def test_dead_show_of_a_closed_output_fails(place):
    letter = place.letter(body=b"x" * 100000)
    with open("/dev/full", "wb") as full:
        done = subprocess.run([schema.require_binary(), "dead", "show", "--config", place.path, "--body", "raw", str(letter)],
                              stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, env=ENVIRONMENT, timeout=30)
    assert done.returncode == 1 and done.stderr.count(b"cannot write") == 1


def test_an_id_that_does_not_exist_is_said(place):
    letter = place.letter("m1")
    for action, status in (("list", 1), ("show", 1), ("redrive", 0), ("discard", 1)):
        dry_run = ["--dry-run"] if action in ("redrive", "discard") else []
        done = run("dead", action, "--config", place.path, *dry_run, letter, letter, letter + 7, 9223372036854775807)
        assert done.status == status and done.err.count("there is no dead letter") == 2, done.text
        assert f"there is no dead letter {letter + 7}:" in done.err and "letter 9223372036854775807:" in done.err, done.text
        assert run("dead", action, "--config", place.path, *dry_run, letter).status == 0
    done = run("dead", "list", "--config", place.path, letter, "--reason", "permanent")
    assert done.status == 1 and f"there is no dead letter {letter} that matches" in done.err, done.text


def test_every_dead_command_says_that_the_schema_is_missing(tmp_path, empty):
    path = config_for(tmp_path, empty)
    for arguments in (["list"], ["show", "1"], ["redrive", "--all"], ["discard", "1"], ["list", "--json"]):
        done = run("dead", *arguments, "--config", path)
        assert done.status == 1 and "run `onceward migrate`" in done.err and "relation" not in done.text and done.out == "", done.text


def json_lines(out):
    return [json.loads(line) for line in out.splitlines()]


def test_dead_list_and_show_as_json(place):
    letters = [place.letter(f"m{i}", body=b"gr\xc3\xbc\xc3\x9fe\n", headers={"n": 1}) for i in range(60)]
    raw = place.letter(None, body=b"\xff\x00", raw_id=b"\xff", rowless=True, reason="invalid_message_id", properties={})
    seen = json_lines(good("dead", "list", "--config", place.path, "--json"))
    assert [s["letter"] for s in seen] == letters + [raw] and all("body" not in s for s in seen)
    assert good("dead", "list", "--config", place.path, "--json", "--reason", "none") == ""
    first, last = json_lines(good("dead", "show", "--config", place.path, "--json", letters[0], raw))
    assert (first["consumer"], first["message_id"], first["reason"], first["attempts"], first["http_status"], first["body"]) == (
        place.queue.name, "m0", "attempts", 8, 500, "grüße\n")
    assert first["headers"] == {"n": 1} and first["properties"]["message_id"] == "m0" and first["body_bytes"] == 8
    assert last["message_id"] is None and last["raw_id_hex"] == "ff" and last["body_base64url"] == "_wA" and last["rowless"] is True


def test_redrive_and_discard_as_lines_of_the_log(place):
    place.row("m1", "dead")
    place.row("m2", "completed")
    letters = [place.letter("m1"), place.letter("m2"), place.letter(None, rowless=True, reason="no_message_id"),
               place.letter("m4", queue="gone-" + place.queue.name)]
    expected = [("redriven", "info", "m1"), ("discarded", "info", "m2"), ("letter_left", "warning", None)]
    for dry_run in (["--dry-run"], []):
        done = run("dead", "redrive", "--config", place.path, "--json", *dry_run, "--all")
        lines = json_lines(done.out)
        assert done.status == 1 and [(e["event"], e["level"], e["message_id"]) for e in lines[:3]] == expected, done.text
        assert [e["letter"] for e in lines] == letters and all(e["consumer"] == place.queue.name for e in lines)
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", e["ts"]) for e in lines)
        assert all(e.get("dry_run", False) == bool(dry_run) for e in lines)
        assert lines[0]["queue"] == place.queue.name and "--new-id" in lines[2]["reason"]
    assert lines[3]["event"] == "letter_left" and "there is no queue" in lines[3]["reason"]
    line, = json_lines(good("dead", "redrive", "--config", place.path, "--json", letters[2], "--new-id=n1"))
    assert (line["event"], line["message_id"], line["letter"]) == ("redriven", "n1", letters[2])
    line, = json_lines(good("dead", "discard", "--config", place.path, "--json", letters[3]))
    assert (line["event"], line["message_id"], line["letter"]) == ("discarded", "m4", letters[3])
    assert place.letters() == [] and [place.queue.get()[1].message_id for _ in range(2)] == ["m1", "n1"]


# dead discard

def test_discard_deletes_the_letter_and_leaves_the_row(place):
    place.row("m1", "dead")
    first, second, third = place.letter("m1"), place.letter("m2"), place.letter("m3", reason="permanent")
    assert "would be discarded" in good("dead", "discard", "--config", place.path, "--dry-run", first)
    assert place.letters() == [first, second, third]
    out = good("dead", "discard", "--config", place.path, first)
    assert f"letter {first} ({place.queue.name}, message m1): discarded" in out and "1 discarded" in out
    assert place.letters() == [second, third] and place.status_of("m1") == ("dead", 1)
    good("dead", "discard", "--config", place.path, "--reason", "permanent")
    assert place.letters() == [second]
    good("dead", "discard", "--config", place.path, "--all")
    assert place.letters() == []


def test_discard_by_age(place):
    """How dead_letter is kept small: by a person, or by a timer of theirs."""
    old, older, young = place.letter("m1", age="31 days"), place.letter("m2", age="90 days"), place.letter("m3", age="29 days")
    foreign = place.letter("m4", age="90 days", consumer="other")
    assert "2 would be discarded" in good("dead", "discard", "--config", place.path, "--older", "30d", "--dry-run")
    done = run("dead", "discard", "--config", place.path, "--older", "30d")
    assert done.status == 0 and "2 discarded" in done.out and "left alone" in done.out, done.text
    assert place.letters() == [young, foreign] and old < older
    done = run("dead", "discard", "--config", place.path, "--older", "soon")
    assert done.status == 2 and '--older "soon"' in done.err, done.text


def test_what_changes_letters_leaves_those_of_other_configurations(place):
    _, other, named = place.letter("m1"), place.letter("m2", consumer="other"), place.letter("m3", consumer="other")
    done = run("dead", "discard", "--config", place.path, "--all")
    assert done.status == 0 and "1 discarded" in done.out and f"letter {other}" not in done.out, done.text
    assert "\n2 of consumers that this configuration does not have were left alone" in done.out and place.letters() == [other, named]
    place.letter("m4", consumer="other")
    mine = place.letter("m5")
    for arguments in (["--all", "--dry-run"], ["--reason", "attempts", "--limit", "1"]):
        done = run("dead", "redrive", "--config", place.path, *arguments)
        assert done.status == 0 and f"letter {mine} " in done.out and f"letter {other} " not in done.out, done.text
        assert "3 of consumers that this configuration does not have" in done.out, done.text
    assert mine not in place.letters() and len(place.letters()) == 3 and place.queue.get()[1].message_id == "m5"
    done = run("dead", "redrive", "--config", place.path, "--consumer", "other")
    assert done.status == 1 and done.out.count("does not have its consumer") == 3, done.text
    good("dead", "discard", "--config", place.path, named)
    done = run("dead", "redrive", "--config", place.path, other)
    assert done.status == 1 and "does not have its consumer" in done.out and other in place.letters(), done.text
    assert place.queue.n_ready == 0
    good("dead", "discard", "--config", place.path, "--consumer", "other")
    assert place.letters() == []


# dead redrive

def test_redrive_resets_the_row_publishes_and_deletes_the_letter(place):
    place.row("m1", "dead", attempt=8)
    letter, other = place.letter("m1", body=b"\x00\xff", headers={"n": 5, "deep": {"a": [1, "x"]}}), place.letter("m2")
    out = good("dead", "redrive", "--config", place.path, letter)
    assert f"letter {letter} ({place.queue.name}, message m1): redriven to {place.queue.name}" in out and "1 redriven" in out
    assert place.status_of("m1") == ("waiting", 0) and place.letters() == [other]
    method, properties, body = place.queue.get()
    assert (body, properties.message_id, properties.delivery_mode) == (b"\x00\xff", "m1", 2)
    assert properties.headers == {"n": 5, "deep": {"a": [1, "x"]}} and method.exchange == ""
    assert place.queue.get() is None


def test_redrive_of_a_completed_row_publishes_nothing(place):
    place.row("m1", "completed")
    place.letter("m1")
    out = good("dead", "redrive", "--config", place.path, "--all")
    assert "was completed meanwhile" in out and place.letters() == [] and place.queue.n_ready == 0
    assert place.status_of("m1") == ("completed", 1)


@pytest.mark.parametrize("status", ["waiting", "failed", "processing"])
def test_redrive_that_was_interrupted_is_run_again(place, status):
    """The row was reset, perhaps it is in work already: it is left as it is, and the message is published."""
    place.row("m1", status, attempt=1)
    letter = place.letter("m1")
    good("dead", "redrive", "--config", place.path, letter)
    assert place.status_of("m1") == (status, 1) and place.letters() == [] and place.queue.get()[1].message_id == "m1"
    done = run("dead", "redrive", "--config", place.path, letter)
    assert done.status == 0 and f"there is no dead letter {letter}: it never existed, or was redriven" in done.err and place.queue.n_ready == 0


def test_redrive_of_a_purged_row(place):
    place.letter("m1")
    good("dead", "redrive", "--config", place.path, "--consumer", place.queue.name)
    assert place.queue.get()[1].message_id == "m1" and place.letters() == []


def test_redrive_dry_run_changes_nothing(place):
    place.row("m1", "dead")
    place.row("m2", "completed")
    letters = [place.letter("m1"), place.letter("m2"), place.letter(None, rowless=True)]
    done = run("dead", "redrive", "--config", place.path, "--all", "--dry-run")
    assert "m1): would be redriven" in done.out and "m2): was completed meanwhile: the dead letter would be deleted" in done.out
    assert "--new-id" in done.out and done.status == 1
    assert place.letters() == letters and place.status_of("m1") == ("dead", 1) and place.queue.n_ready == 0


def test_redrive_of_a_letter_without_a_row_needs_an_id(place):
    letter = place.letter(None, rowless=True, reason="no_message_id")
    done = run("dead", "redrive", "--config", place.path, letter)
    assert done.status == 1 and "--new-id" in done.out and place.letters() == [letter] and place.queue.n_ready == 0
    good("dead", "redrive", "--config", place.path, letter, "--new-id", "given")
    assert place.queue.get()[1].message_id == "given" and place.letters() == []
    numeric = place.letter(None, rowless=True, reason="no_message_id")
    good("dead", "redrive", "--config", place.path, numeric, "--new-id=42")
    assert place.queue.get()[1].message_id == "42"


def test_a_generated_id_is_the_same_when_it_is_repeated(place):
    for _ in range(2):
        place.letter(None, rowless=True, reason="no_message_id")
    said = run("dead", "redrive", "--config", place.path, "--reason", "no_message_id", "--dry-run", "--new-id").out
    ids = re.findall(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", said)
    assert len(set(ids)) == 2
    good("dead", "redrive", "--config", place.path, "--reason", "no_message_id", "--new-id")
    assert [place.queue.get()[1].message_id for _ in range(2)] == ids


def test_a_new_id_goes_where_the_queue_looks_for_it(place):
    path = place.write(message_id=["header:key", "property:message_id"])
    letter = place.letter(None, rowless=True, headers={"key": ""}, reason="invalid_message_id")
    good("dead", "redrive", "--config", path, letter, "--new-id=k1")
    assert place.queue.get()[1].headers["key"] == "k1"
    path = place.write(message_id=["json:/id"])
    letter = place.letter(None, rowless=True, body=b'{"id": null}', reason="no_message_id")
    done = run("dead", "redrive", "--config", path, letter, "--new-id=k1")
    assert done.status == 1 and "cannot be given a new id" in done.out and place.letters() == [letter]


def test_redrive_finds_the_id_that_was_there_all_the_time(place):
    """The message died without an id, or as another body, because message_id looked elsewhere; it is published unchanged, also with --new-id."""
    place.row("m2", "dead")
    place.row("m3", "completed")
    place.row("m4", "waiting", fingerprint="\\x00")
    letters = [place.letter(None, rowless=True, reason="no_message_id", properties={"message_id": f"m{i}", "type": "order"},
                            headers={"n": i}) for i in (1, 2, 3)]
    letters += [place.letter("order", rowless=True, reason="body_mismatch", properties={"message_id": "m4", "type": "order"}),
                place.letter("order", rowless=True, reason="body_mismatch", properties={"message_id": "m5", "type": "order"})]
    for dry_run in (["--dry-run"], []):
        done = run("dead", "redrive", "--config", place.path, "--new-id", *dry_run)
        assert done.status == 1 and "3 would be" in done.out or "3 redriven, 1 completed meanwhile, 1 left" in done.out, done.text
        assert re.search(rf"letter {letters[3]} .*another body", done.out), done.text
        assert re.search(rf"letter {letters[0]} .*redriven to {place.queue.name} with its id m1$", done.out, re.M), done.text
    assert place.letters() == [letters[3]] and place.status_of("m2") == ("waiting", 0)
    for i in (1, 2, 5):
        _, properties, _ = place.queue.get()
        assert (properties.message_id, properties.type) == (f"m{i}", "order") and (i == 5 or properties.headers == {"n": i})
    assert place.queue.get() is None
    done = run("dead", "redrive", "--config", place.path, letters[3], "--new-id=m6")
    assert done.status == 1 and 'has the id "m4"' in done.out and place.letters() == [letters[3]], done.text


def test_redrive_under_another_id_looks_at_the_row_that_it_died_under(place):
    """The message has an id where message_id looks now, but had another one before."""
    path = place.write(message_id=["header:key"])
    for status in ("dead", "completed", "processing"):
        place.row(f"old-{status}", status)
    letters = {status: place.letter(f"old-{status}", headers={"key": f"k-{status}"}) for status in ("dead", "completed", "processing")}
    for dry_run in (["--dry-run"], []):
        done = run("dead", "redrive", "--config", path, *dry_run)
        assert done.status == 1 and re.search(r"old-processing\): left: .* under the id that it died under", done.out), done.text
        assert "old-completed): was completed meanwhile" in done.out
        assert f"old-dead): {'would be redriven' if dry_run else 'redriven'} to {place.queue.name} with its id k-dead" in done.out
    assert place.letters() == [letters["processing"]] and place.status_of("old-dead") == ("dead", 1)
    assert place.queue.get()[1].headers == {"key": "k-dead"} and place.queue.get() is None


def test_a_letter_whose_id_is_found_no_more_keeps_it_with_new_id(place):
    place.row("m1", "dead")
    letter = place.letter("m1")
    path = place.write(message_id=["property:correlation_id"])
    done = run("dead", "redrive", "--config", path, letter)
    assert done.status == 1 and "--new-id" in done.out and "property:correlation_id" in done.out, done.text
    assert place.letters() == [letter] and place.status_of("m1") == ("dead", 1) and place.queue.n_ready == 0
    good("dead", "redrive", "--config", path, letter, "--new-id")
    _, properties, _ = place.queue.get()
    assert (properties.message_id, properties.correlation_id) == ("m1", "m1")
    assert place.letters() == [] and place.status_of("m1") == ("waiting", 0)


def test_redrive_leaves_what_belonged_to_the_first_journey(place):
    """An expired message would vanish again, another user's name is refused, CC makes copies, and a delivery count looks like a limit."""
    elsewhere = Queue(place.rabbitmq, place.queue.name + "-cc").declare()
    place.letter("m1", properties={"message_id": "m1", "expiration": "1", "user_id": "alice", "priority": 3, "type": "t",
                                   "timestamp": 1700000000},
                 headers={"CC": [elsewhere.name], "x-delivery-count": 19, "x-death": [{"count": 3}], "keep": "me"})
    good("dead", "redrive", "--config", place.path, "--all")
    _, properties, _ = place.queue.get()
    assert properties.headers == {"keep": "me"} and properties.expiration is None and properties.user_id is None
    assert (properties.priority, properties.type, properties.timestamp) == (3, "t", 1700000000)
    assert elsewhere.n_ready == 0
    elsewhere.delete()
    elsewhere.close()


def test_redrive_to_a_queue_that_is_gone_leaves_the_letter(place):
    place.row("m1", "dead")
    letter = place.letter("m1", queue="gone-" + place.queue.name)
    there = place.letter("m2")
    done = run("dead", "redrive", "--config", place.path, "--all")
    assert done.status == 1 and f"there is no queue gone-{place.queue.name}" in done.out, done.text
    assert place.letters() == [letter] and there not in place.letters() and place.queue.get()[1].message_id == "m2"


def test_redrive_goes_to_the_queue_that_took_over(place):
    place.letter("m1", queue="old-name")
    good("dead", "redrive", "--config", place.write(takes_over="old-name"), "--all")
    assert place.queue.get()[1].message_id == "m1"


def test_redrive_without_a_broker_touches_nothing(place):
    place.row("m1", "dead")
    letter = place.letter("m1")
    path = place.write(top={"broker": {"url": f"amqp://u:{SECRET}@127.0.0.1:1/"}})
    done = run("dead", "redrive", "--config", path, letter)
    assert done.status == 1 and "refused" in done.err, done.text
    assert place.letters() == [letter] and place.status_of("m1") == ("dead", 1)


def test_redrive_leaves_a_row_whose_lock_an_application_holds(place):
    place.row("m1", "dead")
    letter = place.letter("m1")
    connection = place.postgres.connect(autocommit=False)
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM onceward.inbox WHERE message_id = 'm1' FOR UPDATE")
    done = run("dead", "redrive", "--config", place.path, letter)
    connection.close()
    assert done.status == 1 and "holds the lock" in done.out and place.letters() == [letter]


def test_redrive_keeps_to_the_rate(place):
    for i in range(6):
        place.letter(f"m{i}")
    start = time.monotonic()
    good("dead", "redrive", "--config", place.path, "--all", "--rate", "10/s")
    assert time.monotonic() - start >= 0.5 and place.queue.n_ready == 6


def test_an_interrupted_redrive_ends_behind_a_letter_and_can_be_run_again(place):
    for i in range(5):
        place.row(f"m{i}", "dead")
        place.letter(f"m{i}")
    child = process.spawn([schema.require_binary(), "dead", "redrive", "--config", place.path, "--all", "--rate", "2/s"],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=ENVIRONMENT)
    wait_until(lambda: len(place.letters()) == 4, "the first letter is redriven")
    child.send_signal(signal.SIGINT)
    out = child.communicate(timeout=30)[0].decode()
    assert child.returncode == 1 and "ended early" in out, out
    process.reap(child)
    left = len(place.letters())
    assert 3 <= left <= 4 and place.queue.n_ready == 5 - left
    good("dead", "redrive", "--config", place.path, "--all")
    assert place.letters() == [] and place.queue.n_ready == 5


def test_killed_anywhere_redrive_loses_nothing(place):
    """kill -9 between any two steps: each message is at the broker or its letter is there."""
    for i in range(30):
        place.row(f"m{i}", "dead")
        place.letter(f"m{i}")
    for _ in range(4):
        child = process.spawn([schema.require_binary(), "dead", "redrive", "--config", place.path, "--all", "--rate", "100/s"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
        before = len(place.letters())
        wait_until(lambda: len(place.letters()) < before or child.poll() is not None, "it moves")
        process.kill(child)
    good("dead", "redrive", "--config", place.path, "--all")
    seen = set()
    while place.queue.n_ready:
        seen.add(place.queue.get()[1].message_id)
    assert seen == {f"m{i}" for i in range(30)} and place.letters() == []


# health and drain

def state_file(folder, pid=1, age=0.0, draining=False, process_started=None, **queue):
    path = os.path.join(str(folder), "state")
    with open(path, "w") as f:
        json.dump({"pid": pid, **({"process_started": process_started} if process_started else {}), "written_ms": int((time.time() - age) * 1000), "draining": draining,
                   "queues": [{"queue": "a", "turned_ms_ago": 5, "ready": True, "fits": True},
                              {"queue": "b", "turned_ms_ago": 5, "ready": True, "fits": True, **queue}]}, f)
    return path


@pytest.mark.parametrize("state, live, ready", [
    ({}, "live", "ready"),
    ({"ready": False}, "live", "b: has not started yet"),
    ({"ready": False, "fits": False}, "live", "b: cannot be consumed as configured"),
    ({"ready": False, "failed": True}, "live", "b: could not be started"),
    ({"fits": False, "failed": True}, "live", "ready"),  # what is now is not asked
    ({"turned_ms_ago": 31000}, "b: its main loop has not run", "ready"),
    ({"turned_ms_ago": 20000, "age": 15}, "b: its main loop has not run", "ready"),
    ({"age": 60}, "written 6", "written 6"),  # and what passes until it is read
])
def test_health_by_the_state_file(tmp_path, state, live, ready):
    path = state_file(tmp_path, **state)
    for flag, said in (("--started", "started" if live == "live" else live), ("--live", live), ("--ready", ready)):
        done = run("health", flag, "--state", path)
        assert said in done.out and done.status == (0 if said == flag[2:] else 1), done.text


def test_health_of_a_process_that_has_ended_or_is_another(tmp_path):
    child = process.spawn(["sleep", "60"])
    with open(f"/proc/{child.pid}/stat") as f:
        started = int(f.read().rsplit(")", 1)[1].split()[19])
    for flag in ("--live", "--ready"):
        assert run("health", flag, "--state", state_file(tmp_path, pid=child.pid)).status == 0
        assert run("health", flag, "--state", state_file(tmp_path, pid=child.pid, process_started=started)).status == 0
        done = run("health", flag, "--state", state_file(tmp_path, pid=child.pid, process_started=started - 1))
        assert done.status == 1 and "is not running any more" in done.out, done.text
    done = run("drain", "--state", state_file(tmp_path, pid=child.pid, process_started=started - 1))
    assert done.status == 1 and "left over" in done.err and child.poll() is None, done.text
    process.kill(child)
    done = run("health", "--live", "--state", state_file(tmp_path, pid=child.pid, process_started=started))
    assert done.status == 1 and "is not running any more" in done.out, done.text


def test_a_sidecar_that_was_killed_is_not_live_from_then_on(bed):
    sidecar = bed.sidecar()
    state = sidecar.config["state_file"]
    wait_until(lambda: run("health", "--ready", "--state", state).status == 0, "health --ready", 10, 0.2)
    with open(state) as f:
        seen = json.load(f)
    sidecar.kill()
    wait_until(lambda: run("health", "--live", "--state", state).status == 1, "it is not live", 5, 0.1)
    assert time.time() * 1000 - seen["written_ms"] < 20000 and seen["process_started"] > 0


def test_health_and_drain_without_a_sidecar(tmp_path):
    for arguments in (["health", "--live"], ["health", "--ready"], ["drain"]):
        done = run(*arguments, "--state", tmp_path / "none")
        assert done.status == 1 and "no sidecar is running here" in done.err, done.text
    (tmp_path / "other").write_text('{"some": "thing"}')
    assert "not the state" in run("health", "--live", "--state", tmp_path / "other").err


def test_drain_does_not_signal_a_process_by_an_old_file(tmp_path):
    child = process.spawn(["sleep", "60"])
    done = run("drain", "--state", state_file(tmp_path, pid=child.pid, age=60))
    assert done.status == 1 and "left over" in done.err and child.poll() is None, done.text
    process.kill(child)
    done = run("drain", "--state", state_file(tmp_path, pid=child.pid))
    assert done.status == 1 and "was killed" in done.err, done.text


def test_health_and_drain_of_a_running_sidecar(bed):
    sidecar = bed.sidecar(start=False)
    state = sidecar.config["state_file"]
    assert run("health", "--live", "--state", state).status == 1
    sidecar.start()
    sidecar.wait_for("consuming")
    for flag in ("--started", "--live", "--ready"):
        wait_until(lambda: run("health", flag, "--state", state).status == 0, f"health {flag}", 40, 0.2)
    assert good("drain", "--exit", "--state", state).splitlines()[1:] == ["drained"]
    assert sidecar.wait() == 0 and sidecar.find("drained")
    for flags in ([], ["--exit"]):
        assert good("drain", *flags, "--state", state) == "the sidecar has ended already\n"
    for flag in ("--started", "--live", "--ready"):
        done = run("health", flag, "--state", state)
        assert done.status == 1 and "has ended with status 0" in done.out, done.text
    assert "Exit status 0: it has drained" in good("drain", "--help")


def test_drain_of_a_sidecar_that_is_killed_is_a_failure(bed):
    """Before it is asked, and while it is waited for."""
    gate = Gate()
    bed.app.handler = lambda request, reply: gate.wait() or 500
    sidecar = bed.sidecar(token_window="30s", top={"shutdown_grace": "30s"})
    state = sidecar.config["state_file"]
    bed.queue.publish("m1")
    gate.wait_for_waiting()
    drain = process.spawn([schema.require_binary(), "drain", "--state", state], stderr=subprocess.PIPE, env=ENVIRONMENT)
    sidecar.wait_for("draining")
    sidecar.kill()
    assert b"was killed" in drain.communicate(timeout=20)[1] and drain.returncode == 1
    process.reap(drain)
    gate.open()
    done = run("drain", "--state", state)
    assert done.status == 1 and "was killed" in done.err, done.text


def test_drain_of_a_sidecar_that_ended_badly_is_a_failure(tmp_path):
    path = tmp_path / "state"
    path.write_text('{"pid": 12, "written_ms": 1, "ended": true, "status": 1}')
    done = run("drain", "--state", path)
    assert done.status == 1 and "process 12, has ended with status 1" in done.err, done.text


# through a pooler

@pytest.fixture
def pooler(place):
    """PgBouncer in transaction mode, where settings of a session are nobody's."""
    program = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin")
    if not program:
        pytest.skip("pgbouncer is not installed")
    port = process.free_port()
    folder = tempfile.mkdtemp(prefix="onceward-pooler-")
    os.chmod(folder, 0o777)
    path = os.path.join(folder, "pgbouncer.ini")
    with open(path, "w") as f:
        f.write(f"[databases]\n{place.postgres.database} = host=127.0.0.1 port={place.postgres.port} user={schema.OWNER}\n"
                f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\npool_mode = transaction\n"
                f"default_pool_size = 1\nunix_socket_dir =\n")
    user = ["-u", "postgres"] if os.geteuid() == 0 else []
    with open(os.path.join(folder, "log"), "wb") as log:
        child = process.spawn([program, *user, path], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_until(lambda: listens(port), lambda: "pgbouncer listens: " + process.tail(os.path.join(folder, "log")))
        yield port
    finally:
        process.kill(child)
        shutil.rmtree(folder)


def listens(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def test_every_command_works_through_a_pooler(place, pooler):
    other = psycopg2.connect(place.postgres.dsn(port=pooler))  # whose settings the pool keeps
    other.autocommit = True
    with other.cursor() as cursor:
        cursor.execute("SET default_transaction_isolation = 'serializable'; SET search_path = nowhere; SET synchronous_commit = off")
    other.close()
    path = place.write(top={"database": {"url": place.postgres.dsn(port=pooler)}})
    place.row("m1", "dead")
    letter, other_letter = place.letter("m1"), place.letter("m2")
    assert "is at version" in good("migrate", "--config", path)
    assert f"{place.queue.name}" in good("status", "--config", path)
    assert "m1" in good("dead", "list", "--config", path) and "hello" in good("dead", "show", "--config", path, letter)
    good("dead", "redrive", "--config", path, letter)
    good("dead", "discard", "--config", path, other_letter)
    assert place.status_of("m1") == ("waiting", 0) and place.letters() == []
    done = run("check", "--config", path, "--connect")
    assert "through a pooler" in done.out and "default_transaction_isolation" in done.out, done.text


# what is missing

@pytest.mark.parametrize("arguments", [["check"], ["health"], ["status", "--nope"], ["dead"], ["pause", "x"], ["drain", "x"], ["migrate"], ["explain", "--nope"],
                                       ["run", "x"], ["export", "x"], ["try", "--nope"]], ids=" ".join)
def test_a_wrong_call_prints_one_line_and_where_the_help_is(arguments):
    done = run(*arguments)
    first, last = done.err.splitlines()
    assert done.status == 2 and first and last == f"see `onceward {arguments[0]} --help`", done.text
    assert good(arguments[0], "--help").startswith("usage: ")


def test_check_names_what_partitions_share_once(place):
    path = place.write(queue=place.queue.name + "-{0..3}", consumer="orders")
    done = run("check", "--config", path, "--connect")
    assert done.out.count("messages without a content type") == done.out.count("application of ") == 1, done.out
    assert done.out.count("-3") >= 1, "each partition is looked for at the broker"


def test_advice_is_not_called_ok(place):
    done = run("check", "--config", place.path)
    line, = [x for x in done.out.splitlines() if "messages without a content type" in x]
    assert line.startswith("hint queue "), line
