"""An application that fails in every way that an application can: what is charged, what is said; and that nothing is lost or
doubled by it. Plain, over TLS and over a Unix socket."""

import os
import re
import socket
import ssl
import struct
import tempfile
import threading
import time

import pytest

from rig.application import Gate, Mortal, Script
from rig.wait import hold_true, wait_until

COMPLETIONS = ["transaction", "response"]
FORMS = ["plain", "tls", "unix"]
# Where a test takes its time: each form and each completion, not each pair.
SOME = [("transaction", "plain"), ("transaction", "unix"), ("response", "tls")]


def well_behaved(bed, completion):
    return bed.app.commit_and_answer if completion == "transaction" else bed.app.act_and_answer


def take_form(bed, form, certificates):
    """The bed's application in another form; answers the keys of the sidecar that belong to it."""
    if form == "tls":
        bed.app = bed.new_application("-tls", tls=certificates)
        return {"tls": {"ca_file": certificates.ca}}
    if form == "unix":
        bed.app = bed.new_application("-unix", unix_socket=os.path.join(tempfile.mkdtemp(prefix="ow-"), "app.sock"))
    return {}


# after the request was sent

def reset(request, reply):
    reply.reset()


def close(request, reply):
    reply.close()


def reset_in_the_head(request, reply):
    reply.raw(b"HTTP/1.1 200 OK\r\nContent-Len")
    reply.reset()


def close_in_the_head(request, reply):
    reply.raw(b"HTTP/1.1 500 Oh\r\nContent-Len")
    reply.close()


def close_in_the_body_of_a_success(request, reply):
    reply.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
    reply.close()


def close_in_the_chunks_of_a_success(request, reply):
    reply.raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
    reply.close()


def close_in_the_body_of_an_error(request, reply):
    reply.raw(b"HTTP/1.1 500 Oh\r\nContent-Length: 100\r\n\r\nhalf")
    reply.close()


def another_protocol(request, reply):
    reply.raw(b"SSH-2.0-OpenSSH_9.2p1\r\n")
    reply.close()


def an_alert_of_tls(request, reply):
    reply.raw(b"\x15\x03\x03\x00\x02\x02\x46")
    reply.close()


def garbage(request, reply):
    reply.raw(bytes(range(256)) * 64)
    reply.close()


def no_head_at_all(request, reply):
    reply.raw(b"<html>hello</html>")
    reply.close()


def switching_protocols(request, reply):
    reply.raw(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nwhatever")
    reply.close()


def hang(request, reply):
    time.sleep(6)
    reply.close()


def drip_of_the_head(request, reply):
    reply.drip(b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 30 + b"\r\nContent-Length: 0\r\n\r\n", 0.1)


def drip_of_the_body(request, reply):
    reply.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n")
    reply.drip(b"x" * 50, 0.1)


def huge_error(request, reply):
    reply.status(500, b"e" * (4 << 20))


# What each of them means: charged or not, and which line says so.
DIED, CHARGED, OVER = "died", "charged", "over"
# In an order in which the lines of a kind stay below their limit of ten a second.
FAULTS = [(reset, DIED), (close, DIED), (reset_in_the_head, DIED), (close_in_the_head, DIED), (close_in_the_body_of_a_success, DIED),
          (hang, OVER), (close_in_the_chunks_of_a_success, DIED), (another_protocol, DIED), (an_alert_of_tls, DIED), (garbage, DIED),
          (drip_of_the_head, OVER), (no_head_at_all, DIED), (switching_protocols, DIED), (close_in_the_body_of_an_error, CHARGED),
          (huge_error, CHARGED), (drip_of_the_body, OVER)]


def one_fault(bed, sidecar, name, verdict):
    """Publishes the message of that name, waits for its end, and answers what is wrong."""
    mark = sidecar.mark()
    bed.queue.publish(name)
    sidecar.wait_for("completed", message_id=name, deadline=30)
    attempts = [r.attempt for r in bed.app.posts(name)]
    lines = [e for e in sidecar.events[mark:] if e.get("message_id") == name]
    said = {e["event"] for e in lines}
    wanted = {DIED: ([1, 1], {"alone", "given_back"}, {"retry", "token_expired"}), CHARGED: ([1, 2], {"retry"}, {"alone", "given_back"}),
              OVER: ([1, 2], {"token_expired"}, {"alone", "given_back"})}[verdict]
    wrong = []
    if attempts != wanted[0]:
        wrong.append(f"attempts {attempts}, not {wanted[0]}")
    if not wanted[1] <= said or said & wanted[2]:
        wrong.append(f"said {sorted(said)}, not {sorted(wanted[1])} without {sorted(wanted[2])}")
    if any(e["event"] in wanted[1] and not e.get("error") for e in lines):
        wrong.append("a line without its error")
    return [f"{name}: {text}" for text in wrong]


@pytest.mark.short("transaction-plain", "response-tls")
@pytest.mark.parametrize("completion, form", [*SOME, ("response", "plain")])
def test_each_misdeed_after_the_request_has_its_verdict_and_loses_nothing(bed, certificates, form, completion):
    keys = take_form(bed, form, certificates)
    misdeeds = {f.__name__: f for f, _ in FAULTS}
    once = Script(lambda request, reply: misdeeds[request.message_id](request, reply), well_behaved(bed, completion))
    bed.app.handler = once
    # A window that lasts for what takes its time, without waiting for long where it must end.
    sidecar = bed.sidecar(completion=completion, token_window="4s", commit_grace="50ms", forward=keys,
                          retry={"max_attempts": 5, "backoff": "10ms", "max_backoff": "20ms"})
    wrong = []
    for misdeed, verdict in FAULTS:
        wrong += one_fault(bed, sidecar, misdeed.__name__, verdict)
    assert not wrong, "\n".join(wrong)
    assert bed.letters() == []
    bed.assert_once(*misdeeds)
    bed.assert_acked()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("completion", COMPLETIONS)
def test_what_is_odd_and_still_an_answer_is_taken(bed, certificates, form, completion):
    keys = take_form(bed, form, certificates)

    def act(request):
        bed.app.commit(request, complete=completion == "transaction")

    def drip(request, reply):
        act(request)
        reply.drip(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 0.02)

    def huge(request, reply):
        act(request)
        reply.status(200, b"r" * (8 << 20))

    def reset_behind(request, reply):
        act(request)
        reply.status(204)
        reply.reset()

    def garbage_behind(request, reply):
        act(request)
        reply.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n\x00garbage\r\n\r\n")

    def until_the_end(request, reply):
        act(request)
        reply.raw(b"HTTP/1.1 200 OK\r\n\r\nno length, so it ends with the connection")
        reply.end()

    def announced_close(request, reply):
        act(request)
        reply.status(200, b"bye", {"Connection": "close"})
        reply.keep = False

    odd = {f.__name__: f for f in (drip, huge, reset_behind, garbage_behind, until_the_end, announced_close)}
    bed.app.handler = lambda request, reply: odd.get(request.message_id, well_behaved(bed, completion))(request, reply)
    sidecar = bed.sidecar(completion=completion, token_window="10s", forward=keys)
    ids = []
    for name in odd:
        for message_id in (name, "after-" + name):  # what it leaves of the connection must not spoil the next
            bed.queue.publish(message_id)
            sidecar.wait_for("completed", message_id=message_id)
            ids.append(message_id)
            if message_id in ("reset_behind", "until_the_end", "announced_close"):  # the next must not meet the close on its way
                wait_until(lambda: bed.app.posts(message_id)[0].connection in bed.app.closed, "its connection is closed")
    assert {r.attempt for r in bed.app.posts()} == {1} and len(bed.app.posts()) == len(ids)
    assert not sidecar.find("paused") and not sidecar.find("alone") and not sidecar.find("answer_contradicts_row")
    bed.assert_once(*ids)
    bed.assert_acked()


@pytest.mark.parametrize("form", FORMS)
def test_a_redirect_is_not_followed(bed, certificates, form):
    """Neither the token nor the body goes where somebody else says."""
    keys = take_form(bed, form, certificates)
    other = bed.new_application("-other")
    bed.app.handler = Script(lambda request, reply: reply.status(int(request.message_id), headers={"Location": other.url}),
                             bed.app.commit_and_answer)
    sidecar = bed.sidecar(forward=keys)
    for status in ("301", "302", "303", "307", "308"):
        bed.queue.publish(status)
        line = sidecar.wait_for("retry", message_id=status)
        assert status in line["error"]
        sidecar.wait_for("completed", message_id=status)
        assert [r.attempt for r in bed.app.posts(status)] == [1, 2] and other.posts() == []
        bed.assert_once(status)


# before the request

@pytest.mark.parametrize("completion, form", SOME)
def test_an_application_that_refuses_pauses_the_queue_and_charges_nobody(bed, certificates, form, completion):
    keys = take_form(bed, form, certificates)
    bed.app.handler = well_behaved(bed, completion)
    sidecar = bed.sidecar(completion=completion, forward=keys, retry={"max_attempts": 1})
    bed.queue.publish("m0")
    sidecar.wait_for("completed", message_id="m0")
    bed.app.die()
    ids = [f"m{i}" for i in range(1, 30)]
    bed.queue.publish_many(ids)
    line = sidecar.wait_for("paused", reason="application_down")
    assert line["detail"]
    hold_true(lambda: not sidecar.find("dead") and not sidecar.find("retry"), "nobody is charged", 0.5)
    bed.app.start()
    sidecar.wait_for("resumed", reason="application_down", deadline=30)
    bed.wait_for_effects(["m0", *ids])
    sidecar.wait_for_quiet()
    assert {r.attempt for r in bed.app.posts()} == {1} and len(bed.app.posts()) == 30 and bed.letters() == []
    bed.assert_once("m0", *ids)
    bed.assert_acked()


@pytest.mark.parametrize("completion, form", SOME)
def test_an_application_that_resets_each_new_connection_kills_nobody(bed, certificates, form, completion):
    """As a proxy does whose upstream is gone. Without TLS the connect succeeds, so the probe without a URL calls it ready each time."""
    keys = take_form(bed, form, certificates)
    bed.app.handler = well_behaved(bed, completion)
    ids = [f"m{i}" for i in range(12)]
    n_greeted = []

    def slam(conn):
        n_greeted.append(1)
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return True

    bed.app.greet = slam
    sidecar = bed.sidecar(wait=False, completion=completion, forward=keys, token_window="10s", retry={"max_attempts": 8, "backoff": "500ms", "max_backoff": "2s"})
    bed.queue.publish_many(ids)
    sidecar.wait_for("waiting" if form == "tls" else "paused", reason="application_down", deadline=30)
    wait_until(lambda: len(n_greeted) > 3, "it was tried several times", 30)
    bed.app.greet = None
    bed.wait_for_effects(ids)
    sidecar.wait_for_quiet()
    assert bed.letters() == []
    assert len(bed.app.posts()) == 12
    bed.assert_once(*ids)
    bed.assert_acked()


def test_an_application_that_does_not_finish_the_handshake_is_down(bed, certificates):
    """The application accepts and stays silent, like a hanging process. No request was sent, so no message is charged."""
    keys = take_form(bed, "tls", certificates)
    gate = Gate()
    bed.app.greet = lambda conn: gate.wait() or True
    sidecar = bed.sidecar(wait=False, forward={**keys, "connect_timeout": "300ms"}, token_window="10s", retry={"max_attempts": 1})
    bed.queue.publish_many([f"m{i}" for i in range(5)])
    sidecar.wait_for("waiting", reason="application_down", deadline=30)
    hold_true(lambda: not sidecar.find("ready"), "the probe is not content with a connect", 1.0)
    bed.app.greet = None
    gate.open()
    ids = [f"m{i}" for i in range(5)]
    bed.wait_for_effects(ids)
    sidecar.wait_for_quiet()
    assert {r.attempt for r in bed.app.posts()} == {1} and bed.letters() == []
    bed.assert_once(*ids)


@pytest.mark.parametrize("fault", ["untrusted", "plain"])
def test_a_failed_handshake_is_an_application_that_is_down(bed, certificates, fault):
    if fault == "untrusted":
        take_form(bed, "tls", certificates)
        forward = {"tls": {"ca_file": certificates.other_ca}}
    else:
        forward = {"url": bed.app.url.replace("http://127.0.0.1", "https://localhost"), "tls": {"ca_file": certificates.ca}}
    sidecar = bed.sidecar(wait=False, forward=forward, retry={"max_attempts": 1})
    bed.queue.publish("m1")
    line = sidecar.wait_for("waiting", reason="application_down", deadline=30)
    assert line["detail"]
    hold_true(lambda: not sidecar.find("ready"), "the probe is not content with a connect", 0.5)
    assert bed.app.posts() == [] and bed.letters() == [] and not sidecar.find("retry")
    row = bed.row("m1")
    assert row is None or row["attempt"] == 0 or row["status"] == "processing"


@pytest.mark.parametrize("size", [10, 100000])
def test_a_client_certificate_that_is_missing_is_told(bed, certificates, size):
    """With TLS 1.3 that is said behind the handshake: each connect and each probe succeeds, and no request can be sent. What is larger than
    a record may be on its way by then."""
    keys = take_form(bed, "tls", certificates)
    bed.app.tls.load_verify_locations(certificates.ca)
    bed.app.tls.verify_mode = ssl.CERT_REQUIRED
    ids = [f"m{i}" for i in range(10)]
    for message_id in ids:
        bed.queue.publish(message_id, os.urandom(size))
    sidecar = bed.sidecar(wait=False, forward=keys, ready={"interval": "1s"}, retry={"max_attempts": 1 if size == 10 else 3})
    sidecar.wait_for("paused", reason="application_down", deadline=10)
    sidecar.wait_for("given_back", error=lambda error: "does not accept the client certificate: certificate required" in error)
    sidecar.wait_for("stats", paused_detail=lambda detail: "certificate required" in detail)
    wait_until(lambda: len(sidecar.find("given_back")) >= 7, "its tries have become rare", 30)
    n, began = bed.app.n_connections, sidecar.mark()
    hold_true(lambda: bed.app.n_connections < n + 15 and not sidecar.find("resumed", began), "a probe and a try a second", 2.0)
    bed.app.tls.verify_mode = ssl.CERT_NONE
    bed.wait_for_effects(ids)
    sidecar.wait_for("resumed", reason="application_down")
    sidecar.wait_for_quiet()
    assert len(sidecar.find("paused", reason="application_down")) == 1 or size > 10
    # Where a record of it was on its way it may have been a crash: it goes alone, and is charged once in a max_backoff at most.
    assert bed.letters() == [] and len(sidecar.find("retry")) <= (size > 10)
    assert all("Send failure" in line["error"] for line in sidecar.find("alone"))
    bed.assert_once(*ids)


def test_a_full_backlog_is_a_connection_that_is_not_made_in_time(bed):
    """The kernel throws the SYN away: neither refused nor accepted."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    port = listener.getsockname()[1]
    fillers = []
    for _ in range(4):
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex(("127.0.0.1", port))
        fillers.append(s)
    sidecar = bed.sidecar(wait=False, forward={"url": f"http://127.0.0.1:{port}/", "connect_timeout": "300ms"})
    bed.queue.publish("m1")
    line = sidecar.wait_for("waiting", reason="application_down", deadline=30)
    assert "in time" in line["detail"], line
    for s in (*fillers, listener):
        s.close()


def test_what_gets_no_connection_within_its_window_is_not_charged(bed):
    """A long job has the application, and its Unix socket's backlog is full: what could not be sent is given back. The window of the
    long job is extended, so that the application goes on being there, and busy."""
    path = os.path.join(tempfile.mkdtemp(prefix="ow"), "app.sock")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(0)
    taken = []

    def accept():
        while not taken:
            conn, _ = listener.accept()
            head = conn.recv(65536).decode()
            token = re.search(r"Onceward-Token: (\S+)", head)
            if token:
                bed.rows("SELECT onceward.extend(%s, 60)", token.group(1))
                taken.append(conn)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    sidecar = bed.sidecar(forward={"unix_socket": path, "concurrency": 4}, token_window="2s", top={"shutdown_grace": "1s"})
    bed.queue.publish("m1")
    wait_until(lambda: taken, "the application has the first message", 30)
    others = ["m2", "m3", "m4"]
    bed.queue.publish_many(others)  # one lies in the backlog, sent
    paused = sidecar.wait_for("paused", reason="application_down", deadline=40)
    assert "no connection" in paused["detail"] or "cannot connect" in paused["detail"], paused  # by a kernel that says so at once
    wait_until(lambda: not [i for i in others if bed.status(i) == "processing"], "the windows of the others have ended", 30)
    rows = [bed.row(i) for i in others]
    unsent = [r for r in rows if r["attempt"] == 0]
    assert len(unsent) == 2 and all(r["status"] == "waiting" for r in unsent), rows
    assert not [r for r in unsent if "no answer within the window" in (r["last_error"] or "")], rows
    assert bed.letters() == []
    listener.close()
    for conn in taken:
        conn.close()


# kept connections

@pytest.mark.short("transaction-plain", "response-tls")
@pytest.mark.parametrize("completion, form", SOME)
def test_connections_that_close_just_when_the_next_request_arrives_lose_and_double_nothing(bed, certificates, form, completion):
    """A server whose keep-alive ends after a few milliseconds races each request against its own close."""
    keys = take_form(bed, form, certificates)

    def handler(request, reply):
        bed.app.commit(request, complete=completion == "transaction")
        reply.status(200)
        n = int(request.message_id[1:])
        if n % 3:
            time.sleep(n % 7 / 1000)
            reply.close()

    bed.app.handler = handler
    sidecar = bed.sidecar(completion=completion, forward={**keys, "concurrency": 4}, token_window="20s")
    ids = [f"m{i}" for i in range(60)]
    bed.queue.publish_many(ids)
    bed.wait_for_effects(ids)
    sidecar.wait_for_quiet()
    assert bed.letters() == [] and not sidecar.find("bug")
    bed.assert_once(*ids)
    bed.assert_acked()


# up and down

@pytest.mark.short("transaction-plain", "response-tls")
@pytest.mark.parametrize("completion, form", SOME)
def test_an_application_that_comes_and_goes_kills_no_message_and_doubles_none(bed, certificates, form, completion):
    """Up for a second, down for a second, and work in its hands whenever it dies. What knows nothing of the inbox dies before it has its
    effect, or when its answer has become a completed row: between the two the message is done again, as it must be."""
    keys = take_form(bed, form, certificates)
    ends, at_work = threading.Event(), threading.Lock()

    def handler(request, reply):
        time.sleep(0.05)
        if completion == "transaction":
            return bed.app.commit_and_answer(request, reply)
        with at_work:
            if not bed.app.serves(request.connection):
                return reply.close()
            bed.app.commit(request, complete=False)
            reply.status(204)
            bed.wait_for_status(request.message_id, "completed", 60)

    bed.app.handler = handler
    bed.expects_errors = completion == "transaction"  # its connection is gone in the middle

    def flap():
        while not ends.wait(1.0):
            with at_work:
                bed.app.die()
            ends.wait(1.0)
            bed.app.start()

    sidecar = bed.sidecar(completion=completion, forward={**keys, "concurrency": 4}, token_window="20s",
                          retry={"max_attempts": 4, "backoff": "100ms", "max_backoff": "500ms"})
    thread = threading.Thread(target=flap, daemon=True)
    thread.start()
    ids, deadline = [], time.monotonic() + 60
    try:
        while len(sidecar.find("paused")) < 2:
            assert time.monotonic() < deadline, "the sidecar saw the application die twice"
            if bed.queue.n_ready < 60:
                more = [f"m{len(ids) + i}" for i in range(15)]
                bed.queue.publish_many(more)
                ids += more
            ends.wait(0.3)
    finally:
        ends.set()
        thread.join(70)
    bed.wait_for_effects(ids)
    sidecar.wait_for_quiet()
    assert bed.letters() == [] and not sidecar.find("bug")
    bed.assert_once(*ids)
    bed.assert_acked()


# in the middle of its transaction

@pytest.mark.parametrize("point", ["before_commit", "in_commit", "after_commit"])
def test_an_application_killed_around_its_commit_has_its_effect_once(bed, point):
    """SIGKILL to a real process with a real transaction. Whether the commit arrived is what its row says."""
    app = Mortal(bed.app.name, bed.postgres, bed.folder, "m3", point).start()
    try:
        sidecar = bed.sidecar(forward={"url": app.url, "concurrency": 4}, token_window="20s")
        ids = [f"m{i}" for i in range(8)]
        bed.queue.publish_many(ids)
        bed.wait_for_effects(ids)
        sidecar.wait_for_quiet()
        assert app.n_starts == 2
        posts = app.posts("m3")
        if point == "before_commit":
            assert posts == [1, 1], "not charged: it was not known to be its doing"
        elif point == "after_commit":
            assert posts == [1], "the row says that it is done"
        else:
            assert posts in ([1], [1, 1])
        if posts == [1]:
            assert sidecar.find("answer_contradicts_row", message_id="m3")
        assert bed.letters() == []
        bed.assert_once(*ids)
        bed.assert_acked()
    finally:
        app.stop()


def test_a_row_that_stays_locked_is_named_with_its_holder_in_each_interval(bed):
    """The application hangs between complete and its commit."""
    gate = Gate()
    pids = []

    def handler(request, reply):
        database = bed.app.borrow()
        with database.cursor() as cursor:
            cursor.execute("SET application_name = 'billing worker 7'")
        database.commit()
        pids.append(database.info.backend_pid)
        bed.app.give_back(database)
        bed.app.commit(request, before_commit=gate.wait)
        return 200

    bed.app.handler = handler
    sidecar = bed.sidecar(token_window="2s", top={"log": {"stats_interval": "500ms"}})
    bed.queue.publish("m1")
    gate.wait_for_waiting()
    lines = [sidecar.wait_for("row_locked", n=n, message_id="m1", deadline=30) for n in (1, 2, 3)]
    for line in lines:
        assert line["pid"] == pids[0] and line["application"] == "billing worker 7" and re.match("idle in transaction", line["state"])
    assert [line["locked_ms"] for line in lines] == sorted(line["locked_ms"] for line in lines)
    assert 0.4 <= lines[2]["_at"] - lines[1]["_at"], "once an interval"
    assert not sidecar.find("retry") and len(bed.app.posts()) == 1
    # What the advice says is done: its transaction is gone, and the message is tried again.
    bed.expects_errors = True
    bed.app.handler = bed.app.commit_and_answer
    bed.postgres.query("SELECT pg_terminate_backend(%s)", (pids[0],))
    gate.open()
    sidecar.wait_for("completed", message_id="m1", deadline=30)
    wait_until(lambda: len(bed.app.posts()) == 2, "it was tried again")
    bed.assert_once("m1")
    bed.assert_acked()
