"""The metrics page: the figures of the log's lines under the names that deploy/logs gives them; and clients that are slow, many or
hostile, beside which messages go on."""

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import time

import pytest

from rig.application import Gate
from rig.wait import hold_true, wait_until

CONNECTIONS, ACCEPTED_A_SECOND = 8, 32  # src/sidecar/metrics.c
MTAIL = os.path.join(os.path.dirname(__file__), "../../deploy/logs/onceward.mtail")
SAMPLE = re.compile(r'^(\w+)(?:\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\})? (-?\d+(?:\.\d+)?)$')


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture
def port():
    return free_port()


def with_page(bed, port, top=None, **keys):
    return bed.sidecar(top={"metrics": {"listen": f"127.0.0.1:{port}"}, **(top or {})}, **keys)


def ask(port, method="GET", path="/metrics"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer, body


def samples(text):
    """(name, labels) to value; the page is in the text format."""
    found, typed = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            assert name not in typed, f"{name}: a metric's lines stand together"
            typed[name] = kind
        if line.startswith("#"):
            continue
        name, labels, value = SAMPLE.match(line).groups()
        labels = tuple(sorted(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or "")))
        assert typed[name] == ("counter" if name.endswith("_total") else "gauge") and (name, labels) not in found
        found[name, labels] = float(value)
    return found


def page(port):
    return samples(ask(port)[1])


def value(port, name, **labels):
    return page(port).get((name, tuple(sorted(labels.items()))))


def mtail_labels():
    """Each metric of deploy/logs/onceward.mtail with its labels, without those of the pod: Prometheus adds them."""
    with open(MTAIL) as f:
        return {name: set(labels.split(", ")) - {"namespace", "pod"} for name, labels in re.findall(r"^(?:counter|gauge) (\w+) by (.*)$", f.read(), re.M)}


# What it says.

def test_the_page_has_the_metrics_of_the_log(bed, port, fresh_postgres):
    bed.app.handler = bed.app.act_and_answer
    sidecar = with_page(bed, port, top={"outbox": {}, "database": {"url": fresh_postgres.dsn(user="sidecar_login")}}, completion="response")
    for i in range(20):
        bed.queue.publish(f"m{i}")
    wait_until(lambda: value(port, "onceward_completed_total", queue=bed.queue.name) == 20, "20 are completed")
    wait_until(lambda: value(port, "onceward_end_to_end_ms_p99", queue=bed.queue.name), "the latency of the latest line")
    found, wanted = page(port), mtail_labels()
    for name, labels in found:
        assert {key for key, _ in labels} == {label for label in wanted[name] if label}, name
    missing = set(wanted) - {name for name, _ in found}
    with_keys = {"onceward_partitions", "onceward_partitions_active", "onceward_batch_size", "onceward_unkeyed_total"}
    assert missing <= {"onceward_oldest_snapshot_ms", "onceward_outbox_relay_ms_p50", "onceward_outbox_relay_ms_p99"} | with_keys, "null, or nothing was relayed"
    assert found["onceward_state", (("queue", bed.queue.name), ("state", "consuming"))] == 1
    assert sum(v for (name, _), v in found.items() if name == "onceward_state") == 1
    assert found["onceward_lines_total", (("event", "consuming"), ("level", "info"))] == len(sidecar.find("consuming"))
    assert abs(found["onceward_stats_seconds", (("queue", bed.queue.name),)] - time.time()) < 60


def test_page_and_line_agree(bed, port):
    bed.app.handler = bed.app.act_and_answer
    sidecar = with_page(bed, port, completion="response")
    for i in range(5):
        bed.queue.publish(f"m{i}")
    wait_until(lambda: sidecar.find("stats", completed_total=5, held=0, depth=0, dead_letters=0), "a line in which all is done")
    wait_until(lambda: value(port, "onceward_completed_total", queue=bed.queue.name) == 5 and value(port, "onceward_held", queue=bed.queue.name) == 0,
               "a page that is as late")
    line = sidecar.find("stats", completed_total=5, held=0, depth=0, dead_letters=0)[0]
    found = page(port)
    for key in ("received", "completed", "duplicates", "retried", "given_back", "dead"):
        assert found[f"onceward_{key}_total", (("queue", bed.queue.name),)] == line[f"{key}_total"], key
    for key in ("in_flight", "accepted", "parked", "held_bytes", "paused_for_ms", "dead_letters"):
        assert found[f"onceward_{key}", (("queue", bed.queue.name),)] == line[key], key


def test_promtool_reads_the_page(bed, port, fresh_postgres):
    if not shutil.which("promtool"):
        pytest.skip("promtool is not here")
    with_page(bed, port, top={"outbox": {}, "database": {"url": fresh_postgres.dsn(user="sidecar_login")}}, completion="response")
    done = subprocess.run(["promtool", "check", "metrics"], input=ask(port)[1].encode(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    # 3: complaints about names and units, of which the page has those of the log
    assert done.returncode in (0, 3) and b"error while linting" not in done.stdout, done.stdout.decode()


def test_without_the_key_there_is_no_socket(bed):
    sidecar = bed.sidecar()
    listening = subprocess.run(["ss", "-Hltnp"], stdout=subprocess.PIPE).stdout.decode()
    assert f"pid={sidecar.pid}," not in listening


def test_a_queue_with_an_odd_name_is_a_label(bed, port):
    odd = 'a"b\\c'
    config = bed.config(top={"metrics": {"listen": f"127.0.0.1:{port}"}})
    config["queues"] = {odd: {**config["queues"][bed.queue.name], "queue": bed.queue.name}}
    bed.sidecar(config=config)
    assert value(port, "onceward_received_total", queue='a\\"b\\\\c') == 0


# HTTP.

def test_other_requests_have_their_answer(bed, port):
    with_page(bed, port)
    for method, path, status in ("GET", "/metrics?name=x", 200), ("HEAD", "/metrics", 200), ("GET", "/", 404), ("GET", "/metricsx", 404), ("POST", "/metrics", 405):
        answer, body = ask(port, method, path)
        assert answer.status == status and (len(body) > 0) == (status == 200 and method == "GET"), (method, path)
    assert ask(port)[0].getheader("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"


def test_six_is_served_like_four(bed, port):
    with socket.socket(socket.AF_INET6) as s:
        try:
            s.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 here")
    bed.sidecar(top={"metrics": {"listen": f"[::1]:{port}"}})
    connection = http.client.HTTPConnection("::1", port, timeout=30)
    connection.request("GET", "/metrics")
    assert connection.getresponse().status == 200
    connection.close()


def test_an_address_that_is_taken_is_logged_and_tried_again(bed, port):
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        sidecar = with_page(bed, port)
        line = sidecar.wait_for("metrics_failed")
        assert line["address"] == f"127.0.0.1:{port}" and line["reason"] == "Address already in use" and line["level"] == "warning"
    wait_until(lambda: answers(port), "the page is there after the other one has ended")
    assert len(sidecar.find("metrics_failed")) == 1


def answers(port):
    try:
        return ask(port)[0].status == 200
    except OSError:
        return False


def test_the_page_survives_a_reload(bed, port):
    sidecar = with_page(bed, port)
    assert answers(port)
    sidecar.signal(1)
    sidecar.wait_for("reloaded")
    wait_until(lambda: answers(port), "the page is there again")
    other = free_port()
    sidecar.config["metrics"]["listen"] = f"127.0.0.1:{other}"
    with open(sidecar.config_path, "w") as f:
        json.dump(sidecar.config, f)
    mark = sidecar.mark()
    sidecar.signal(1)
    sidecar.wait_for("reloaded", since=mark)
    wait_until(lambda: answers(other) and not answers(port), "the page has moved")


# Clients that do harm.

def connected(port, n, hello=b""):
    made = []
    for _ in range(n):
        s = socket.create_connection(("127.0.0.1", port), timeout=30)
        s.sendall(hello)
        made.append(s)
    return made


def n_open(sidecar, port):
    """Connections that the sidecar has accepted and not closed."""
    with open("/proc/net/tcp") as f:
        inodes = {line.split()[9] for line in f if line.split()[1] == f"0100007F:{port:04X}" and line.split()[3] != "0A"}
    folder = f"/proc/{sidecar.pid}/fd"
    links = set()
    for fd in os.listdir(folder):
        try:
            links.add(os.readlink(os.path.join(folder, fd)))
        except FileNotFoundError:
            pass
    return sum(f"socket:[{inode}]" in links for inode in inodes)


def goes_on(bed, prefix, n=20):
    ids = [f"{prefix}{i}" for i in range(n)]
    for message_id in ids:
        bed.queue.publish(message_id)
    bed.wait_for_effects(ids)
    for message_id in ids:
        bed.wait_for_status(message_id, "completed")
    bed.assert_once(*ids)


def test_slow_clients_are_bounded_in_number_and_time(bed, port):
    """Half a request each, and nothing more; the page answers others as soon as they are thrown out."""
    bed.app.handler = bed.app.commit_and_answer
    sidecar = with_page(bed, port)
    slow = connected(port, 40, b"GET /metrics HT")
    most = 0

    def all_ended():
        nonlocal most
        most = max(most, n_open(sidecar, port))
        return most == CONNECTIONS
    wait_until(all_ended, lambda: f"{CONNECTIONS} are accepted; there were {most}")
    hold_true(lambda: n_open(sidecar, port) <= CONNECTIONS, "no more at once", 1)
    goes_on(bed, "beside")
    for s in slow[:CONNECTIONS]:
        assert s.recv(1) == b"", "closed without an answer"
    for s in slow:
        s.close()
    wait_until(lambda: answers(port), "others are answered again")
    assert most <= CONNECTIONS


def test_a_client_that_does_not_read_is_ended(bed, port):
    config = bed.config(top={"metrics": {"listen": f"127.0.0.1:{port}"}})
    keys = config["queues"].pop(bed.queue.name)
    config["queues"] = {f"{i:03}{'q' * 240}": keys for i in range(40)}  # not there: a page is larger than the buffers of a socket
    sidecar = bed.sidecar(config=config, wait=False)
    wait_until(lambda: answers(port), "the page is there")
    n_bytes = len(ask(port)[1])
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    s.connect(("127.0.0.1", port))
    s.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    wait_until(lambda: n_open(sidecar, port) == 1, "it is accepted")
    wait_until(lambda: n_open(sidecar, port) == 0, "it is closed")
    received = 0
    while True:
        data = s.recv(65536)
        if not data:
            break
        received += len(data)
    s.close()
    assert received < n_bytes and answers(port)


def test_garbage_is_refused(bed, port):
    bed.app.handler = bed.app.commit_and_answer
    sidecar = with_page(bed, port)
    for garbage, status in (b"\x16\x03\x01\x00\xa5\x01\r\n\r\n", b"400"), (b"GET /" + b"x" * 5000, b"431"), (b"A: b\n" * 1000, b"431"), (b"GET /metrics SMTP/1.1\r\n\r\n", b"400"):
        s, = connected(port, 1, garbage)
        assert s.recv(16).split()[1] == status, garbage[:20]
        s.close()
    for _ in range(5):
        s, = connected(port, 1, b"GET /met")
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset
        s.close()
    wait_until(lambda: n_open(sidecar, port) == 0, "all are closed")
    goes_on(bed, "after")


def test_a_flood_of_connections_is_accepted_slowly(bed, port):
    """Clients wait in the kernel. Messages go on, and the sidecar does not spin."""
    bed.app.handler = bed.app.commit_and_answer
    sidecar = with_page(bed, port)
    began, end, done = time.monotonic(), time.monotonic() + 4, 0
    while time.monotonic() < end:
        try:
            done += ask(port)[0].status == 200
        except OSError:
            pass
    seconds = time.monotonic() - began
    assert 0 < done <= ACCEPTED_A_SECOND * (seconds + 2), f"{done} in {seconds:.1f} s"
    goes_on(bed, "beside")
    assert sidecar.child.poll() is None


def test_a_sidecar_that_drains_still_answers(bed, port):
    gate = Gate()
    bed.app.handler = lambda request, reply: gate.wait() and bed.app.commit_and_answer(request, reply)
    sidecar = with_page(bed, port, token_window="60s", top={"shutdown_grace": "60s"})
    bed.queue.publish("m1")
    gate.wait_for_waiting()
    sidecar.signal(15)
    sidecar.wait_for("draining")
    wait_until(lambda: value(port, "onceward_state", queue=bed.queue.name, state="draining") == 1, "the page says that it drains")
    gate.open()
