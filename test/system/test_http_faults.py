"""An HTTP server that misbehaves: nothing is sent twice by itself, nothing hangs, nothing is misread."""

import pytest

from rig.application import Gate, Script
from rig.wait import hold_true, wait_until


def warmed(bed, **keys):
    """A sidecar with a kept-alive connection to the application."""
    handler, bed.app.handler = bed.app.handler, bed.app.only_answer if keys.get("completion") == "response" else bed.app.commit_and_answer
    sidecar = bed.sidecar(forward={"concurrency": 1}, **keys)
    bed.queue.publish("warm")
    sidecar.wait_for("completed", message_id="warm")
    bed.app.handler = handler
    return sidecar


@pytest.mark.parametrize("completion", ["transaction", "response"])
@pytest.mark.parametrize("misdeed", ["close", "reset"])
def test_a_server_that_reads_the_request_and_closes_the_kept_alive_connection_gets_it_once_a_token(bed, completion, misdeed):
    bed.app.handler = Script(lambda request, reply: getattr(reply, misdeed)(),
                             bed.app.commit_and_answer if completion == "transaction" else bed.app.act_and_answer)
    sidecar = warmed(bed, completion=completion, token_window="3s")
    bed.queue.publish("m1", b"x" * 1000)
    sidecar.wait_for("completed", message_id="m1")
    posts = bed.app.posts("m1")
    assert posts[0].connection == bed.app.posts("warm")[0].connection, "the connection was kept"
    assert len(posts) == 2 and posts[0].token != posts[1].token, "the second POST was decided, with a token of its own"
    bed.assert_once("m1")
    bed.assert_acked()


def test_a_server_that_closed_the_idle_connection_costs_nothing(bed):
    sidecar = bed.sidecar()
    for i in range(5):
        bed.queue.publish(f"m{i}")
        sidecar.wait_for("completed", message_id=f"m{i}")
        with bed.app._lock:
            for conn in bed.app._connections:
                conn.shutdown(2)
        wait_until(lambda: not bed.app._connections, "the server closed what was idle")
    assert {r.attempt for r in bed.app.posts()} == {1}
    assert bed.letters() == []
    bed.assert_once(*[f"m{i}" for i in range(5)])


def test_connections_are_kept_alive(bed):
    sidecar = bed.sidecar(forward={"concurrency": 4})
    ids = [f"m{i}" for i in range(200)]
    bed.queue.publish_many(ids)
    bed.wait_for_effects(ids)
    assert len({r.connection for r in bed.app.posts()}) <= 8
    sidecar.wait_for_quiet()


def slow_drip(request, reply):
    reply.drip(b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 400, 0.02)
    reply.close()


def endless_headers(request, reply):
    reply.raw(b"HTTP/1.1 500 Oh\r\n")
    for _ in range(200):
        reply.raw(b"X-More: " + b"y" * 8000 + b"\r\n")
    reply.close()


def endless_body(request, reply):
    reply.raw(b"HTTP/1.1 500 Oh\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(400):
        reply.raw(b"10000\r\n" + b"z" * 65536 + b"\r\n")
    reply.raw(b"0\r\n\r\n")


def bad_chunks(request, reply):
    reply.raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnothex\r\n")
    reply.close()


def only_continue(request, reply):
    reply.raw(b"HTTP/1.1 100 Continue\r\n\r\n")
    reply.close()


def status_line_of_nonsense(request, reply):
    reply.raw(b"HTTP/1.1 abc def\r\n\r\n")
    reply.close()


def status_999(request, reply):
    reply.status(999)


def nul_in_a_header(request, reply):
    reply.raw(b"HTTP/1.1 500 \x00\xff\r\nX-A: \x00\r\nContent-Length: 0\r\n\r\n")


def two_answers(request, reply):
    reply.raw(b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


@pytest.mark.parametrize("completion", ["transaction", "response"])
@pytest.mark.parametrize("misdeed", [slow_drip, endless_headers, endless_body, bad_chunks, only_continue, status_line_of_nonsense,
                                     status_999, nul_in_a_header, two_answers], ids=lambda f: f.__name__)
def test_a_misbehaving_answer_is_no_completion_and_the_message_goes_through_later(bed, misdeed, completion):
    bed.app.handler = Script(misdeed, bed.app.commit_and_answer if completion == "transaction" else bed.app.act_and_answer)
    sidecar = bed.sidecar(completion=completion, token_window="2s", commit_grace="100ms", retry={"max_attempts": 5})
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    assert len(bed.app.posts("m1")) == 2
    bed.assert_once("m1")
    bed.assert_acked()


def test_an_informational_answer_before_the_real_one_is_passed_over(bed):
    def handler(request, reply):
        bed.app.commit(request)
        reply.raw(b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    bed.app.handler = handler
    sidecar = bed.sidecar()
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    assert len(bed.app.posts()) == 1 and sidecar.find("answer_contradicts_row") == []


def test_a_large_successful_response_is_a_success(bed):
    bed.app.handler = lambda request, reply: bed.app.commit(request, complete=False) or reply.status(200, b"r" * (8 << 20))
    sidecar = bed.sidecar(completion="response", forward={"max_response": "16KiB"})
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    assert len(bed.app.posts()) == 1
    bed.assert_once("m1")


def test_an_answer_before_the_body_was_sent_is_taken(bed):
    """A server that refuses from the headers alone, and closes."""
    import socket
    import threading

    listener = socket.create_server(("127.0.0.1", 0))
    tokens = []

    def serve():
        while True:
            try:
                conn, _ = listener.accept()
            except OSError:
                return
            data = conn.recv(4096)
            if data:
                tokens.append(data)
                conn.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                conn.shutdown(socket.SHUT_WR)
                conn.settimeout(2)
                try:
                    while conn.recv(1 << 20):
                        pass
                except OSError:
                    pass
            conn.close()

    threading.Thread(target=serve, daemon=True).start()
    sidecar = bed.sidecar(forward={"url": f"http://127.0.0.1:{listener.getsockname()[1]}/"}, token_window="10s")
    bed.queue.publish("m1", b"x" * (4 << 20))
    sidecar.wait_for("dead", message_id="m1")
    assert len(tokens) == 1 and bed.letters()[0]["http_status"] == 413 if "http_status" in bed.letters()[0] else True
    listener.close()


def test_a_proxy_in_the_environment_is_not_asked(bed):
    sidecar = bed.sidecar(environment={"http_proxy": "http://127.0.0.1:9/", "ALL_PROXY": "http://127.0.0.1:9/"})
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")


@pytest.mark.parametrize("status", [502, 504])
def test_a_gateway_that_lost_its_application_makes_suspects_not_charges(bed, status):
    bed.app.handler = Script(status, bed.app.commit_and_answer)
    sidecar = bed.sidecar(forward={"concurrency": 4})
    ids = [f"m{i}" for i in range(4)]
    bed.queue.publish_many(ids)
    bed.wait_for_effects(ids)
    sidecar.wait_for_quiet()
    assert bed.letters() == []
    bed.assert_once(*ids)


def test_a_poison_message_takes_no_neighbours_along(bed):
    def handler(request, reply):
        if request.message_id == "poison":
            bed.app.die()
            bed.app.start()
            return
        return bed.app.commit_and_answer(request, reply)

    bed.app.handler = handler
    bed.expects_errors = True
    ids = [f"m{i}" for i in range(30)]
    bed.queue.publish_many(ids[:15] + ["poison"] + ids[15:])
    sidecar = bed.sidecar(retry={"max_attempts": 2, "backoff": "20ms", "max_backoff": "50ms"})
    sidecar.wait_for("dead", message_id="poison", deadline=40)
    bed.wait_for_effects(ids)
    sidecar.wait_for_quiet()
    assert [letter["message_id"] for letter in bed.letters()] == ["poison"]
    bed.assert_once(*ids)
    bed.assert_acked()


def test_no_more_requests_are_out_than_concurrency_allows(bed):
    gate = Gate()

    def handler(request, reply):
        gate.wait()
        return bed.app.commit_and_answer(request, reply)

    bed.app.handler = handler
    sidecar = bed.sidecar(forward={"concurrency": 3}, token_window="20s")
    bed.queue.publish_many([f"m{i}" for i in range(30)])
    gate.wait_for_waiting(3)
    hold_true(lambda: len(bed.app.posts()) == 3, "three at once", 0.5)
    assert bed.statuses().get("processing", 0) <= 12, "claimed is only what can be forwarded soon"
    gate.open()
    sidecar.wait_for("completed", n=30)
