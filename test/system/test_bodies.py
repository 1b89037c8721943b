"""The request to the application: the body byte for byte, and headers that it can decode."""

import base64
import hashlib
import json
import os
import re
import urllib.parse

import pytest

from rig.application import Gate
from rig.fields import Typed
from rig.wait import wait_until

HEADER_NAME = re.compile(r"^[A-Za-z0-9-]+$")
UNRESERVED = re.compile(r"^([A-Za-z0-9._~-]|%[0-9A-F]{2})*$")


def quoted(text):
    data = text if isinstance(text, bytes) else text.encode()
    return urllib.parse.quote(data, safe="")


def only_post(bed, sidecar, message_id="m1"):
    sidecar.wait_for("completed", message_id=message_id, deadline=40)
    request, = bed.app.posts(message_id)
    return request


@pytest.mark.parametrize("completion", ["transaction", "response"])
@pytest.mark.parametrize("size", [0, 1, 255, 65536, 131064, 131065, 1 << 20, 16 << 20])
def test_a_body_arrives_byte_for_byte(bed, size, completion):
    bed.app.handler = bed.app.commit_and_answer if completion == "transaction" else bed.app.act_and_answer
    body = os.urandom(size)
    sidecar = bed.sidecar(completion=completion, token_window="20s")
    bed.queue.publish("m1", body)
    request = only_post(bed, sidecar)
    assert request.method == "POST" and request.target == "/messages"
    assert request.all("Content-Length") == [str(size)] and request.all("Transfer-Encoding") == []
    assert request.all("Expect") == []
    assert hashlib.sha256(request.body).digest() == hashlib.sha256(body).digest()
    assert bytes(bed.row("m1")["fingerprint"]) == hashlib.sha256(body).digest()[:16]
    bed.assert_once("m1")
    bed.assert_acked()


def test_bodies_with_every_byte_value(bed):
    sidecar = bed.sidecar()
    for name, body in {"m0": bytes(range(256)), "m1": b"\r\n\r\nGET / HTTP/1.1\r\n\r\n", "m2": b"\x00" * 1000, "m3": b"\xff" * 1000}.items():
        bed.queue.publish(name, body)
        assert only_post(bed, sidecar, name).body == body


@pytest.mark.parametrize("content_type, expected", [
    (None, "application/octet-stream"),
    ("application/json", "application/json"),
    ("text/plain; charset=utf-8", "text/plain; charset=utf-8"),
    ("application/vnd.acme.order.v1+json; profile=\"x y\"", "application/vnd.acme.order.v1+json; profile=\"x y\""),
    ("json", "application/octet-stream"),
    ("text/plain\r\nX-Injected: 1", "application/octet-stream"),
    ("\x00", "application/octet-stream"),
])
def test_content_types(bed, content_type, expected):
    sidecar = bed.sidecar()
    bed.queue.publish("m1", content_type=content_type)
    request = only_post(bed, sidecar)
    assert request.all("Content-Type") == [expected] and request.all("X-Injected") == []
    assert len(request.all("Content-Length")) == 1


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "compress", "identity"])
def test_content_encodings_of_http_are_kept(bed, encoding):
    sidecar = bed.sidecar()
    bed.queue.publish("m1", b"not really compressed", content_encoding=encoding)
    request = only_post(bed, sidecar)
    assert request.all("Content-Encoding") == [encoding] and request.body == b"not really compressed"


@pytest.mark.parametrize("encoding", ["UTF-8", "utf-8", "base64", "aws-chunked", "gzip, UTF-8", "x\r\ny", "ü"])
def test_other_content_encodings_go_where_they_do_no_harm(bed, encoding):
    sidecar = bed.sidecar()
    bed.queue.publish("m1", content_encoding=encoding)
    request = only_post(bed, sidecar)
    assert request.all("Content-Encoding") == [] and request.all("Amqp-Content-Encoding") == [quoted(encoding)]


def test_the_headers_of_the_contract(bed):
    sidecar = bed.sidecar(consumer="the consumer/ü", forward={"headers": {"X-Team": "payments"}})
    bed.queue.publish("m1", type="order.placed", app_id="shop 1", user_id="guest", correlation_id="c/1", reply_to="answers",
                      timestamp=1700000000, priority=4, expiration="60000",
                      headers={"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=1"})
    sidecar.wait_for("completed", message_id="m1")
    request, = bed.app.posts()
    expected = {
        "Idempotency-Key": '"m1"', "Onceward-Message-Id": "m1", "Onceward-Queue": quoted(bed.queue.name),
        "Onceward-Consumer": quoted("the consumer/ü"), "Onceward-Attempt": "1", "Onceward-Redelivered": "false",
        "Amqp-Exchange": "", "Amqp-Routing-Key": quoted(bed.queue.name), "Amqp-Type": "order.placed", "Amqp-App-Id": "shop%201",
        "Amqp-User-Id": "guest", "Amqp-Correlation-Id": "c%2F1", "Amqp-Reply-To": "answers", "Amqp-Timestamp": "1700000000",
        "Amqp-Priority": "4", "Amqp-Expiration": "60000", "X-Team": "payments", "tracestate": "a=1",
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    }
    for name, value in expected.items():
        if not (name == "Amqp-Exchange" and request.all(name) == []):
            assert request.all(name) == [value], name
    assert bed.row("m1", "the consumer/ü")["message_type"] == "order.placed"


def test_a_malformed_traceparent_is_not_passed_on_as_one(bed):
    sidecar = bed.sidecar()
    bed.queue.publish("m1", headers={"traceparent": "00-xyz", "tracestate": "a=1"})
    request = only_post(bed, sidecar)
    assert request.all("traceparent") == [] and request.all("tracestate") == []


@pytest.mark.parametrize("prefix", ["cloudEvents:", "cloudEvents_"])
def test_cloudevents_arrive_in_binary_mode(bed, prefix):
    sidecar = bed.sidecar(message_id=["cloudevents"])
    bed.queue.publish(None, content_type="application/json",
                      headers={prefix + k: v for k, v in {"id": "e-1", "source": "/shop", "type": "order.placed", "specversion": "1.0"}.items()})
    line = sidecar.wait_for("completed")
    request, = bed.app.posts()
    assert request.header("ce-id") == "e-1" and request.header("ce-type") == "order.placed"
    assert request.header("ce-specversion") == "1.0" and request.header("ce-source") in ("/shop", "%2Fshop")
    assert line["message_id"] == request.message_id


SCALARS = {"t": True, "b": -5, "B": 200, "s": -300, "u": 60000, "I": -70000, "i": 4000000000, "l": -(1 << 60), "L": (1 << 63) + 1,
           "f": 0.5, "d": 1e300, "T": 1700000000, "D": (2, 12345), "S": "text ü".encode(), "x": b"\x00\xff", "V": None}


def test_two_hundred_headers_of_every_kind_and_nested_tables(bed):
    table = {f"h-{kind}-{i}": Typed(kind, value) for i in range(12) for kind, value in SCALARS.items()}
    table["nested"] = {"list": [1, "two", {"three": Typed("l", 3)}, [Typed("V")]], "table": {"deep": {"deeper": True}}}
    table["bad name_here"] = "x"
    table["h-crlf"] = "a\r\nX-Injected: 1"
    assert len(table) > 190
    sidecar = bed.sidecar()
    bed.queue.publish("m1", headers=table)
    request = only_post(bed, sidecar)
    assert all(HEADER_NAME.match(name) for name, _ in request.headers)
    assert request.all("X-Injected") == []
    optional = [(n, v) for n, v in request.headers if n.startswith("Amqp-")]
    assert len(optional) <= 32 and sum(len(n) + len(v) for n, v in optional) <= 4096
    assert int(request.header("Onceward-Headers-Dropped")) > 100
    bed.assert_once("m1")
    bed.assert_acked()


@pytest.mark.parametrize("kind", sorted(SCALARS))
def test_a_header_of_kind(bed, kind):
    sidecar = bed.sidecar()
    bed.queue.publish("m1", headers={"x-value": Typed(kind, SCALARS[kind]), "t": {"inner": Typed(kind, SCALARS[kind])}})
    request = only_post(bed, sidecar)
    text = {"t": "true", "f": "0.5", "D": "123.45", "S": quoted("text ü")}.get(kind)
    values = request.all("Amqp-Header-x-value")
    if text is not None:
        assert values == [text]
    elif kind == "L" and values != [quoted(str(SCALARS[kind]))]:
        assert sidecar.find("connected", peer="broker")[0]["version"] >= "4"  # hands it on as a signed number
        assert values == [quoted(str(SCALARS[kind] - (1 << 64)))]
    elif kind in "bBsuIilLT":
        assert values == [quoted(str(SCALARS[kind]))]
    assert all(UNRESERVED.match(v) for v in values)
    encoded = request.header("Amqp-Headers")
    everything = json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    assert everything["x-value"] == everything["t"]["inner"]


def test_deeply_nested_tables_do_no_harm(bed):
    deep = "leaf"
    for _ in range(150):
        deep = [deep]
    sidecar = bed.sidecar()
    bed.queue.publish("m1", headers={"deep": deep})
    only_post(bed, sidecar)
    bed.assert_once("m1")


IDS = ["plain", "with space", "sl/ash", 'quo"te', "apo'strophe", "back\\slash", "{a,b}", "NULL", "{}", '"', "a,b", "ünï", "\U0001f600",
       "%41", "line\nbreak", "cr\r\nlf", "tab\t", "\x01\x7f", "\u2028", "x" * 255, "'; DROP TABLE x; --", "$1", "a=b&c=d", " lead", "trail "]


def test_ids_that_need_quoting_in_every_layer(bed):
    sidecar = bed.sidecar()
    bed.queue.publish_many(IDS)
    bed.wait_for_effects(IDS)
    sidecar.wait_for("completed", n=len(IDS))
    assert sorted(e["message_id"] for e in sidecar.find("completed")) == sorted(IDS)
    for request in bed.app.posts():
        assert request.header("Onceward-Message-Id") == quoted(request.message_id)
        assert request.header("Idempotency-Key") == f'"{quoted(request.message_id)}"'
        assert UNRESERVED.match(request.header("Onceward-Message-Id"))
    bed.assert_once(*IDS)
    bed.queue.publish_many(IDS)
    wait_until(lambda: sidecar.sum_of("duplicates") == len(IDS), "every copy was acked")
    assert len(bed.app.posts()) == len(IDS)
    bed.assert_acked()


def test_ids_that_need_quoting_die_and_fail_like_others(bed):
    bed.app.handler = lambda request, reply: 500 if request.attempt == 1 else 400
    sidecar = bed.sidecar(brake=0)
    bed.queue.publish_many(IDS)
    sidecar.wait_for("dead", n=len(IDS))
    assert sorted(letter["message_id"] for letter in bed.letters()) == sorted(IDS)
    bed.assert_acked()


def test_a_message_larger_than_max_message_is_held_while_others_pass(bed):
    sidecar = bed.sidecar(max_bytes="256KiB", max_message="512KiB")
    bed.queue.publish("large", b"x" * (600 << 10))
    sidecar.wait_for("too_large")
    bed.queue.publish("small", b"x")
    sidecar.wait_for("completed", message_id="small")
    assert bed.letters() == [] and bed.app.posts("large") == [] and not sidecar.find("paused")
    assert sidecar.term() == 0
    bed.queue.wait_for_ready(1)


def test_on_too_large_reject_rejects_it(bed):
    dlq = bed.new_queue("-dlq")
    bed.queue = bed.new_queue("-main", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dlq.name})
    sidecar = bed.sidecar(queue=bed.queue, max_bytes="256KiB", max_message="512KiB", on_too_large="reject")
    bed.queue.publish("large", b"x" * (600 << 10))
    bed.queue.publish("small", b"x")
    sidecar.wait_for("completed", message_id="small")
    dlq.wait_for_ready(1)
    wait_until(lambda: bed.queue.n_ready == 0, "nothing waits")
    assert bed.app.posts("large") == []


def test_large_headers_count_towards_max_bytes(bed):
    """A void takes a byte on the wire, and forty here: with a body of one byte each is larger than all that may be held."""
    gate = Gate()

    def handler(request, reply):
        gate.wait()
        return bed.app.commit_and_answer(request, reply)

    bed.app.handler = handler
    ids = [f"m{i}" for i in range(12)]
    bed.queue.publish_many(ids, body=b"x", headers={"voids": [Typed("V")] * 100_000})
    sidecar = bed.sidecar(max_bytes="1MiB", token_window="60s")
    gate.wait_for_waiting(1)
    line = sidecar.wait_for("stats", held_bytes=lambda n: n > 3_000_000, paused_reason="bytes_full", in_flight=1)
    assert line["held_bytes"] < 6_000_000
    assert "max_bytes" in sidecar.wait_for("paused", reason="bytes_full")["detail"]
    gate.open()
    bed.wait_for_effects(ids)
    sidecar.wait_for_quiet(60)
    assert {e["prefetch"] for e in sidecar.find("consuming")} <= {128, 1} and not sidecar.find("too_large")
    bed.assert_once(*ids)
    bed.assert_acked()


def test_ordinary_headers_leave_the_prefetch_alone(bed):
    sidecar = bed.sidecar(top={"log": {"level": "debug"}})
    ids = [f"m{i}" for i in range(300)]
    bed.queue.publish_many(ids, headers={f"h{i}": "x" * 20 for i in range(30)})
    bed.wait_for_effects(ids)
    sidecar.wait_for_quiet()
    assert {e["prefetch"] for e in sidecar.find("consuming")} == {128}
