"""The configuration's faults, each with its message: all at once, by key path, with what was expected."""

import copy
import json
import os
import re
import subprocess

import pytest

from rig import process, schema
from rig.wait import wait_until

GOOD = {
    "broker": {"url": "amqp://guest:guest@127.0.0.1:5672/"},
    "database": {"url": "postgresql://127.0.0.1/x"},
    "queues": {"orders": {"forward": {"url": "http://127.0.0.1:8080/"}}},
}


def check(folder, text, environment=None):
    path = os.path.join(str(folder), "config.json")
    with open(path, "w") as f:
        f.write(text if isinstance(text, str) else json.dumps(text))
    env = {"PATH": os.environ["PATH"], "ASAN_OPTIONS": "detect_leaks=1:exitcode=99", **(environment or {})}
    done = subprocess.run([schema.require_binary(), "check", "--config", path], stdin=subprocess.DEVNULL, env=env, timeout=30,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = done.stdout.decode(errors="replace")
    assert "Sanitizer" not in text and done.returncode in (0, 2), text
    return done.returncode, text


def changed(path, value):
    config = copy.deepcopy(GOOD)
    at = config
    keys = path.split(".")
    for key in keys[:-1]:
        at = at.setdefault(key, {})
    if value is REMOVED:
        del at[keys[-1]]
    else:
        at[keys[-1]] = value
    return config


REMOVED = object()


def test_a_good_file_passes(tmp_path):
    status, text = check(tmp_path, GOOD)
    assert status == 0, text


@pytest.mark.parametrize("path, value, expected", [
    ("broker.url", REMOVED, "missing"),
    ("database.url", REMOVED, "missing"),
    ("queues.orders.forward.url", REMOVED, "missing"),
    ("queues", REMOVED, "missing"),
    ("queues", {}, "queue"),
    ("broker.url", "http://x/", "amqp"),
    ("broker.url", 5, "string"),
    ("broker.uri", "amqp://x/", "unknown"),
    ("queue", {}, "unknown"),
    ("queues.orders.concurrency", 3, "unknown"),
    ("queues.orders.forward.url", "ftp://x/", "http"),
    ("queues.orders.forward.concurrency", 0, "1"),
    ("queues.orders.forward.concurrency", "16", "integer|number"),
    ("queues.orders.forward.concurrency", 1.5, "integer|number"),
    ("queues.orders.prefetch", 70000, "65535|range|between|at most"),
    ("queues.orders.prefetch", 8, "concurrency"),
    ("queues.orders.completion", "both", "transaction"),
    ("queues.orders.token_window", "30", "duration"),
    ("queues.orders.token_window", 30, "duration.*got a number"),
    ("queues.orders.token_window", "1s", "2s"),
    ("queues.orders.token_window", "-5s", "duration"),
    ("queues.orders.token_window", "30 s", "duration"),
    ("queues.orders.max_bytes", "64MB", "size"),
    ("queues.orders.max_bytes", "99999999999999GiB", "size|large|big"),
    ("queues.orders.message_id", ["property:nonsense"], "property"),
    ("queues.orders.message_id", ["body"], "property:|body-sha256|expected"),
    ("queues.orders.message_id", [], "1 to 16"),
    ("queues.orders.permanent_status", [99], "100|between|range|status"),
    ("queues.orders.retry.max_attempts", 0, "1"),
    ("queues.orders.retry.backoff", "1x", "duration"),
    ("queues.orders.on_body_mismatch", "ignore", "duplicate"),
    ("queues.orders.on_too_large", "drop", "reject"),
    ("log.level", "verbose", "warning"),
    ("log.messages", "some", "sampled"),
    ("database.prepared", "maybe", "auto"),
    ("broker.tls.verify", "yes", "boolean|true"),
    ("broker.password_file", "/nonexistent/secret", "No such file|read|open"),
    ("broker.password", "${NOT_SET_ANYWHERE}", "NOT_SET_ANYWHERE"),
    ("instance", "${UNCLOSED", r"\$\{|variable|}"),
    ("queues.orders.max_hold", "10s", "max_hold|window"),
    ("queues.orders.retention", "1s", "retry|retention"),
    ("defaults", {"forward": {"concurency": 1}}, "unknown"),
    ("queues.orders.forward.headers", {"Bad Name": "x"}, "header"),
    ("queues.orders.forward.headers", {"X-A": "a\r\nb"}, "header|control|line"),
])
def test_a_fault_is_named_by_its_key_path_with_what_was_expected(tmp_path, path, value, expected):
    status, text = check(tmp_path, changed(path, value))
    assert status == 2, text
    parent = path.rsplit(".", 1)[0]
    assert path in text or parent in text, text
    assert re.search(expected, text, re.I), text


def test_all_faults_are_listed_at_once(tmp_path):
    config = changed("queues.orders.token_window", "soon")
    config["broker"]["heartbeet"] = "1s"
    config["queues"]["orders"]["forward"]["concurrency"] = -1
    config["log"] = {"level": 7}
    config["queues"]["bills"] = {}
    status, text = check(tmp_path, config)
    assert status == 2
    for path in ("queues.orders.token_window", "broker.heartbeet", "queues.orders.forward.concurrency", "log.level", "queues.bills.forward"):
        assert path in text, f"{path} not in:\n{text}"


@pytest.mark.parametrize("text, expected", [
    ("", "JSON|empty|syntax|expected"),
    ("[]", "object"),
    ("{", "line|JSON"),
    ('{"broker": {"url": "amqp://x/", "url": "amqp://y/"}}', "twice|duplicate"),
    ("\xef\xbb\xbf{}", "JSON|expected|line"),
    ("broker:\n  url: amqp://x/\n", r"^[^:]*config\.json: expected \{ at the start: the configuration is JSON, not YAML"),
    ("{\n", r"^\S*config\.json, line 2, column 0: [^/]*$"),  # its path is said once
    ('{"broker": {"url": "amqp://x/"}} trailing', "line|JSON|end"),
])
def test_a_file_that_is_not_the_json_it_should_be(tmp_path, text, expected):
    status, out = check(tmp_path, text)
    assert status == 2 and re.search(expected, out, re.I), out


def test_two_entries_for_one_consumer_are_refused(tmp_path):
    config = copy.deepcopy(GOOD)
    config["queues"]["bills"] = {"consumer": "orders", "forward": {"url": "http://127.0.0.1/"}}
    status, text = check(tmp_path, config)
    assert status == 2 and "consumer" in text, text


def test_a_variable_and_a_secret_file_are_taken(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("amqp://guest:guest@127.0.0.1/\n")
    config = changed("instance", "pod-${POD} $${literal}")
    config["broker"] = {"url_file": str(secret)}
    status, text = check(tmp_path, config, {"POD": "7"})
    assert status == 0, text


def test_the_secret_of_an_operator_is_taken_file_by_file(bed, tmp_path):
    """As a mounted secret of RabbitMQ's operator has them: host, port, username and password, each in a file."""
    config = bed.config()
    parts = {"host": "127.0.0.1", "port": str(bed.rabbitmq.port), "user": "guest", "password": "guest"}
    for name, value in parts.items():
        (tmp_path / name).write_text(value)
    config["broker"] = {f"{name}_file": str(tmp_path / name) for name in parts}
    sidecar = bed.sidecar(config=config)
    bed.queue.publish("m1")
    bed.wait_for_status("m1", "completed")
    bed.assert_once("m1")
    config["broker"] = {**config["broker"], "vhost": "no-such-vhost"}
    (tmp_path / "other.json").write_text(json.dumps(config))
    done = subprocess.run([schema.require_binary(), "check", "--connect", "--config", str(tmp_path / "other.json")],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=60)
    assert done.returncode == 1 and f"broker amqp://127.0.0.1:{bed.rabbitmq.port}, vhost no-such-vhost" in done.stdout.decode(), done
    bed.assert_acked()


def test_a_secret_never_stands_in_a_message(tmp_path):
    config = changed("database.url", "postgresql://u:secret-marker@[bad/x")
    config["broker"]["url"] = "ampq://u:secret-marker@x/"
    status, text = check(tmp_path, config)
    assert status == 2 and "secret-marker" not in text, text


@pytest.mark.parametrize("url, said", [
    ("postgresql://h/?bogus=1", '"bogus"'),
    ("postgresql://u:secret-marker@h/x?sslmode=require&sslmodus=disable", '"sslmodus"'),
    ("host=h bogus=1", '"bogus"'),
    ("postgresql://u@h,[/x", "libpq"),
    ("host=h secret-marker", "libpq"),
    # Where the name may be a piece of the password, it is not repeated.
    ("postgresql://u:pa/x?secret-marker=1@h/x", "libpq"),
    ("postgresql://h/?password=1&secret-marker=2", "libpq"),
    ("host=h password=one secret-marker=two", "libpq"),
    ("postgresql://u:one@secret-marker@h/x", "more than one @"),
    # The password is cut at the first /: its parts would be host, port and database.
    ("postgresql://u:secret-marker/one@h/x", "the port is no number"),
    ("postgresql://u:12/secret-marker@h/x", "an @ behind a /"),
    ("postgresql://u:12#secret-marker/one@h/x", "the port is no number"),
    ("postgresql://u:p@one/secret-marker@h/x", "an @ behind a /"),
    ("host=h port=secret-marker", "the port is no number"),
])
def test_a_database_url_that_libpq_does_not_read(tmp_path, url, said):
    config = changed("database.url", url)
    config["queues"]["orders"]["prefetch"] = 0  # it is listed with the others
    status, text = check(tmp_path, config)
    assert status == 2 and re.search(rf"^database\.url: .*{said}", text, re.M) and "secret-marker" not in text, text
    assert "orders.prefetch" in text, text
    done = subprocess.run([schema.require_binary(), "run", "--config", str(tmp_path / "config.json")], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=30)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 2 and "secret-marker" not in str(done), done
    assert [e for e in events if e["event"] == "config_error" and e["path"] == "database.url"], done


@pytest.mark.parametrize("url", [
    "postgresql://u:a?b#c@h:5432/x", "postgresql://u:a%2Fb@h,g:5432,5433/x", "postgresql://h:,:5433/x", "postgresql:///x?user=u@corp&host=/a@b",
    "host=h port=5432,5433 password=a/b@c"])
def test_a_database_url_that_libpq_reads_as_it_is_meant(tmp_path, url):
    status, text = check(tmp_path, changed("database.url", url))
    assert status == 0, text


def test_a_warning_does_not_refuse(tmp_path):
    config = changed("shutdown_grace", "1s")
    status, text = check(tmp_path, config)
    assert status == 0 and "shutdown_grace" in text, text


def test_what_others_can_read_is_a_warning(tmp_path):
    """At a check and at the start; never a refusal."""
    path = tmp_path / "config.json"
    config = changed("database.url", "postgresql://u:secret-marker@db.example.com/x")
    config["broker"]["url"] = "amqp://u:secret-marker@mq.example.com/"
    config["queues"]["orders"]["forward"] = {"url": "http://app.example.com/", "authorization": "Bearer secret-marker"}
    path.write_text(json.dumps(config))

    def warnings(mode=0o600, environment=None):
        path.chmod(mode)
        done = subprocess.run([schema.require_binary(), "check", "--config", str(path)], stdin=subprocess.DEVNULL, timeout=30,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **(environment or {})})
        text = done.stderr.decode()
        assert done.returncode == 0 and "secret-marker" not in text + done.stdout.decode(), text
        assert all(line.startswith("warning: ") for line in text.splitlines())
        return text

    said = warnings()
    assert "broker.url: has no TLS" in said and "orders.forward.authorization: is sent without TLS" in said, said
    assert "database.url: has no sslmode" in said and len(said.splitlines()) == 3, said
    assert "can be read by every user" in warnings(0o644) and "can be written by every user" in warnings(0o666)
    assert "sslmode" not in warnings(environment={"PGSSLMODE": "verify-full"})
    config["state_file"] = str(tmp_path / "none" / "state")
    path.write_text(json.dumps(config))
    path.chmod(0o644)
    with open(tmp_path / "log", "wb") as log:
        child = process.spawn([schema.require_binary(), "run", "--config", str(path)], stdin=subprocess.DEVNULL, stdout=log,
                              stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: (tmp_path / "log").read_bytes().count(b'"limits"') >= 4, "four warnings at the start")
    finally:
        process.kill(child)
        process.reap(child)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert {"broker.url", "database.url", "queues.orders.forward.authorization", ""} <= {x.get("path") for x in lines if x["event"] == "limits"}

    config = copy.deepcopy(GOOD)
    for broker, database, mode in (("amqp://guest:guest@localhost/", "postgresql:///x", 0o644), ("amqp://[::1]/", "host=/run,127.0.0.1 dbname=x", 0o644),
                                   ("amqps://u@mq.example.com/", "host=db.example.com sslmode=prefer", 0o644),
                                   ("amqps://u:p@mq.example.com/", "postgresql://u@[::1]/x", 0o640)):
        config["broker"]["url"], config["database"]["url"] = broker, database
        path.write_text(json.dumps(config))
        assert warnings(mode) == "", (broker, database)
    config["broker"]["url"] = "${BROKER}"
    path.write_text(json.dumps(config))
    assert warnings(0o644, {"BROKER": "amqps://u:p@mq.example.com/"}) == ""


def test_a_file_that_is_not_there(tmp_path):
    done = subprocess.run([schema.require_binary(), "check", "--config", str(tmp_path / "none.json")], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30)
    assert done.returncode == 2 and b"none.json" in done.stdout


def test_run_refuses_a_bad_file_with_an_event_for_each_fault(tmp_path):
    config = changed("queues.orders.token_window", "soon")
    config["broker"]["heartbeet"] = "1s"
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    done = subprocess.run([schema.require_binary(), "run", "--config", str(path)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=30)
    assert done.returncode == 2, done
    events = [json.loads(line) for line in done.stdout.splitlines()]
    paths = {e.get("path") for e in events if e["event"] == "config_error"}
    assert paths >= {"queues.orders.token_window", "broker.heartbeet"}, done
