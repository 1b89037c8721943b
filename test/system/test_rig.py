"""The rig itself: what the other tests stand on must work, and must be able to fail."""

import http.client
import socket
import sys
import threading

import pytest

from rig.application import Application, Gate, Script
from rig.proxy import Proxy
from rig.queue import Queue
from rig.sidecar import Sidecar
from rig.wait import Overdue, wait_until


@pytest.fixture
def application(worker_database):
    worker_database.query("DROP SCHEMA IF EXISTS rig CASCADE")
    app = Application("rig", worker_database).start()
    app.handler = app.only_answer
    yield app
    app.stop()


def post(app, body=b"x", message_id="a", port=None):
    connection = http.client.HTTPConnection("127.0.0.1", port or app.port, timeout=40)
    try:
        connection.request("POST", "/messages", body, {"Onceward-Message-Id": message_id})
        return connection.getresponse().status
    finally:
        connection.close()


def test_the_servers_answer(worker_database, rabbitmq):
    assert worker_database.query("SELECT 1") == [(1,)]
    assert "guest" in rabbitmq.rabbitmqctl("list_users")


def test_a_queue_keeps_what_is_published(rabbitmq):
    queue = Queue(rabbitmq, "rig-queue").declare()
    queue.publish_many(["a", "b"])
    queue.wait_for_ready(2)
    assert queue.n_consumers == 0
    assert queue.get()[1].message_id == "a"
    queue.delete()
    queue.close()


def test_the_application_follows_its_script(application):
    application.handler = Script(500, 503, lambda request, reply: reply.close())
    assert post(application, b"one") == 500
    assert post(application, b"two") == 503
    with pytest.raises((http.client.BadStatusLine, ConnectionError)):
        post(application, b"three")
    assert [r.body for r in application.posts("a")] == [b"one", b"two", b"three"]
    assert post(application, message_id="b") == 500


def test_the_application_dies_and_comes_back(application):
    gate = Gate()
    application.handler = lambda request, reply: gate.wait()
    answers = []

    def one():
        try:
            answers.append(post(application))
        except (ConnectionError, http.client.HTTPException) as e:
            answers.append(type(e).__name__)

    thread = threading.Thread(target=one)
    thread.start()
    gate.wait_for_waiting()
    application.die()
    thread.join(40)
    assert len(answers) == 1 and not isinstance(answers[0], int)
    with pytest.raises(ConnectionRefusedError):
        post(application)
    gate.open()
    application.start()
    application.handler = application.only_answer
    assert post(application) == 204


def test_a_link_is_cut_frozen_and_mended(application):
    proxy = Proxy(application.port).start()
    assert post(application, port=proxy.port) == 204
    proxy.freeze(up=False)
    connection = socket.create_connection(("127.0.0.1", proxy.port), 5)
    connection.sendall(b"POST / HTTP/1.1\r\n\r\n")
    application.wait_for_posts(2)
    connection.settimeout(0.2)
    with pytest.raises(socket.timeout):
        connection.recv(1)
    proxy.thaw()
    connection.settimeout(40)
    assert connection.recv(12) == b"HTTP/1.1 204"
    proxy.cut()
    try:
        assert connection.recv(4096) in (b"", b" Scripted\r\nContent-Length: 0\r\n\r\n")
    except ConnectionResetError:
        pass
    connection.close()
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        post(application, port=proxy.port)
    proxy.mend()
    assert post(application, port=proxy.port) == 204
    proxy.stop()


FAKE = """#!{python}
import sys, time
print('{{"ts":"2026-01-01T00:00:00.000Z","level":"info","event":"ready","queue":"q","n":1}}', flush=True)
{more}
time.sleep(60)
"""


def test_a_tls_handshake_with_a_lines_end_in_it_is_no_request(application, monkeypatch):
    raised = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    with socket.create_connection(("127.0.0.1", application.port), 10) as client:
        client.sendall(b"\x16\x03\x01\x00\x09hello\r\n\r\n")
        assert client.recv(100) == b""
    assert raised == [] and application.requests == []


def fake_sidecar(folder, more):
    path = folder / "fake"
    path.write_text(FAKE.format(python=sys.executable, more=more))
    path.chmod(0o755)
    return Sidecar(str(path), str(folder), {}).start()


@pytest.mark.parametrize("line, fault", [
    ("print('hello', flush=True)", "not a line of JSON"),
    ("print('{\"level\":\"info\",\"event\":\"x\"}', flush=True)", "ts"),
    ("print('{\"ts\":\"2026-01-01T00:00:00.000Z\",\"level\":\"info\",\"event\":\"x\",\"f\":\"' + 'x' * 9000 + '\"}', flush=True)",
     "bytes"),
    ("print('{\"ts\":\"2026-01-01T00:00:00.000Z\",\"level\":\"info\",\"event\":\"x\",\"f\":\"body-marker\"}', flush=True)", "secret"),
    ("print('==1==ERROR: AddressSanitizer: heap-use-after-free', file=sys.stderr, flush=True)", "report on standard error"),
])
def test_a_bad_line_of_the_sidecar_is_seen(tmp_path, line, fault):
    sidecar = fake_sidecar(tmp_path, line)
    assert sidecar.wait_for("ready", n=1)["n"] == 1
    wait_until(lambda: any(fault in f for f in sidecar.check()), f"a fault: {fault}")
    sidecar.kill()


def test_a_sidecar_that_says_nothing_is_overdue(tmp_path):
    sidecar = fake_sidecar(tmp_path, "")
    sidecar.wait_for("ready")
    assert sidecar.check() == []
    with pytest.raises(Overdue):
        sidecar.wait_for("ready", n=2, deadline=0.2)
    with pytest.raises(AssertionError):
        sidecar.end()
