"""Requests with several messages: both completions, partial failure, whole failure, crashes, answers that say nothing."""

import base64
import gzip
import json
import signal
import threading
import time

import psycopg2
import pytest

from rig.application import Gate
from rig.wait import wait_until
from test_commands import good

JSON = "application/json"


class Batch:
    """The messages of a request."""

    def __init__(self, request):
        self.count = int(request.header("Onceward-Batch"))
        self.messages = json.loads(request.body)["messages"]
        assert len(self.messages) == self.count and request.header("Content-Type") == JSON
        assert 0 < request.window_ms

    @property
    def ids(self):
        return [m["id"] for m in self.messages]

    @property
    def tokens(self):
        return [m["token"] for m in self.messages]


class Applied:
    """An application that takes batches. fail(id): None, or what it answers for that message: {"status": 500}."""

    def __init__(self, bed):
        self.bed = bed
        self.fail = lambda message: None
        self.lock = threading.Lock()
        self.batches = []

    def seen(self, request):
        batch = Batch(request)
        with self.lock:
            self.batches.append(batch)
        return batch

    def reply(self, reply, batch, failures=(), status=200, **more):
        body = json.dumps({"failures": list(failures), **more}).encode() if failures or more else b""
        reply.status(status, body, {"Onceward-Batch": batch.count})

    def ledger(self, cursor, messages):
        cursor.executemany("INSERT INTO app.ledger (application, message_id) VALUES (%s, %s)",
                           [(self.bed.app.name, m["id"]) for m in messages])

    def transaction(self, messages, function="complete_all", before_commit=None):
        """Completes and does the work of these messages in one transaction; of complete_valid those that it answers."""
        database = self.bed.app.borrow()
        try:
            with database.cursor() as cursor:
                cursor.execute(f"SELECT onceward.{function}(%s)", ([m["token"] for m in messages],))
                if function == "complete_valid":
                    valid = {row[0] for row in cursor.fetchall()}
                    messages = [m for m in messages if m["token"] in valid]
                self.ledger(cursor, messages)
                if before_commit:
                    before_commit()
            database.commit()
            return messages
        except BaseException:
            database.rollback()
            raise
        finally:
            self.bed.app.give_back(database)

    def all_or_nothing(self, request, reply):
        """`transaction`: one bad message is a failure of the whole."""
        batch = self.seen(request)
        bad = [self.fail(m) for m in batch.messages if self.fail(m)]
        if bad:
            reply.status(bad[0]["status"])
            return
        self.transaction(batch.messages)
        self.reply(reply, batch)

    def valid_ones(self, request, reply):
        """`transaction`: bad messages are named, the others are done."""
        batch = self.seen(request)
        failures = [{"id": m["id"], **self.fail(m)} for m in batch.messages if self.fail(m)]
        self.transaction([m for m in batch.messages if not self.fail(m)], "complete_valid")
        self.reply(reply, batch, failures)

    def respond(self, request, reply):
        """`response`: each message's effect by itself; failures are named."""
        batch = self.seen(request)
        failures = [{"id": m["id"], **self.fail(m)} for m in batch.messages if self.fail(m)]
        database = self.bed.app.borrow()
        with database.cursor() as cursor:
            self.ledger(cursor, [m for m in batch.messages if not self.fail(m)])
        database.commit()
        self.bed.app.give_back(database)
        self.reply(reply, batch, failures)

    def sizes(self):
        with self.lock:
            return [b.count for b in self.batches]

    def times(self, message_id):
        """In how many requests it was."""
        with self.lock:
            return sum(message_id in b.ids for b in self.batches)


@pytest.fixture
def batches(bed):
    made = Applied(bed)
    bed.app.handler = made.all_or_nothing
    return made


def forward(max_messages=100, concurrency=1, **more):
    return {"concurrency": concurrency, "batch": {"max_messages": max_messages, **more}}


def publish(bed, n, start=0, **options):
    ids = [f"m{i:04}" for i in range(start, start + n)]
    for i in ids:
        bed.queue.publish(i, json.dumps({"id": i}).encode(), content_type=JSON, **options)
    return ids


def completed(bed, n):
    wait_until(lambda: bed.statuses().get("completed", 0) == n, lambda: f"{n} completed: {bed.statuses()}")


def not_charged(bed, ids):
    found = {r["message_id"]: r["attempt"] for r in bed.rows(
        "SELECT message_id, attempt FROM onceward.inbox WHERE consumer = %s AND message_id = ANY (%s)", bed.queue.name, list(ids))}
    assert set(found.values()) == {1}, {i: n for i, n in found.items() if n != 1}


def start_with(bed, n, completion="transaction", max_messages=100, concurrency=1, **keys):
    """The messages wait in the queue before the sidecar starts."""
    ids = publish(bed, n)
    bed.queue.wait_for_ready(n)
    sidecar = bed.sidecar(completion=completion, forward=forward(max_messages, concurrency), **keys)
    return ids, sidecar


@pytest.mark.parametrize("completion", ["transaction", "response"])
def test_many_messages_go_in_one_request(bed, batches, completion):
    bed.app.handler = batches.all_or_nothing if completion == "transaction" else batches.respond
    ids, sidecar = start_with(bed, 200, completion)
    completed(bed, 200)
    bed.assert_once(*ids)
    not_charged(bed, ids)
    assert max(batches.sizes()) > 20 and sum(batches.sizes()) == 200
    first = batches.batches[0].messages[0]
    assert first["body"] == {"id": first["id"]} and first["queue"] == bed.queue.name and first["attempt"] == 1
    bed.assert_acked()


def test_one_message_leaves_at_once(bed, batches):
    sidecar = bed.sidecar(forward=forward())
    bed.queue.publish("m1", b'{"a": 1}', content_type=JSON)
    completed(bed, 1)
    assert batches.sizes() == [1]
    bed.assert_once("m1")


def test_tokens_have_the_consumer_name_of_the_rows(bed, batches):
    """`takes_over` names the consumer that the queue was registered with, whose rows go on under that name."""
    former = bed.sidecar(forward=forward())
    bed.queue.publish("m9999")
    former.wait_for("completed", message_id="m9999")
    assert former.term() == 0
    bed.sidecar(consumer="new-" + bed.name, takes_over=bed.queue.name, forward=forward())
    ids = publish(bed, 20)
    completed(bed, 21)
    bed.assert_once(*ids)
    not_charged(bed, ids)


def test_bodies_of_every_kind(bed, batches):
    bodies = {"json": (b'{"a": [1, "\xc3\xa4"]}', JSON), "broken": (b'{"a": ', JSON), "text": (b"hello", "text/plain"),
              "surrogate": (b'"\\ud800"', JSON), "deep": (b"[" * 65 + b"]" * 65, JSON), "bytes": (bytes(range(256)), JSON),
              "empty": (b"", JSON), 'i"d\\\u00e4': (b"null", "application/vnd.a+json")}
    for i, (body, kind) in bodies.items():
        bed.queue.publish(i, body, content_type=kind)
    bed.queue.publish("gzip", b"{}", content_type=JSON, content_encoding="gzip")
    bed.sidecar(forward=forward())
    completed(bed, 9)
    found = {m["id"]: m for b in batches.batches for m in b.messages}
    for i, (body, _) in bodies.items():
        if i in ("json", 'i"d\\\u00e4'):
            assert found[i]["body"] == json.loads(body) and "body_base64" not in found[i]
        else:
            assert base64.b64decode(found[i]["body_base64"]) == body and "body" not in found[i], i
    assert base64.b64decode(found["gzip"]["body_base64"]) == b"{}" and found["gzip"]["content_encoding"] == "gzip"
    bed.assert_once(*bodies, "gzip")


@pytest.mark.parametrize("completion", ["transaction", "response"])
def test_named_failures_are_those_of_these_messages_alone(bed, batches, completion):
    """One is dead at once, one is tried again; no other is tried twice or charged."""
    answers = {"m0003": {"status": 422, "error": "not an order"}, "m0050": {"status": 500}}
    tried = set()

    def fail(m):
        return answers.get(m["id"]) if m["id"] == "m0003" or m["attempt"] == 1 else None

    batches.fail = fail
    bed.app.handler = batches.valid_ones if completion == "transaction" else batches.respond
    ids, sidecar = start_with(bed, 100, completion)
    sidecar.wait_for("dead", message_id="m0003")
    completed(bed, 99)
    rest = [i for i in ids if i != "m0003"]
    bed.assert_once(*rest)
    not_charged(bed, [i for i in rest if i != "m0050"])
    assert bed.row("m0050")["attempt"] == 2
    assert all(batches.times(i) == 1 for i in rest if i != "m0050")
    letter, = bed.letters()
    assert letter["reason"] == "permanent" and letter["http_status"] == 422 and "not an order" in letter["last_error"]


def test_a_whole_failure_goes_in_halves_and_charges_the_culprit_alone(bed, batches):
    batches.fail = lambda m: {"status": 500} if m["id"] == "m0042" else None
    ids, sidecar = start_with(bed, 100, retry={"max_attempts": 2})
    sidecar.wait_for("dead", message_id="m0042")
    completed(bed, 99)
    rest = [i for i in ids if i != "m0042"]
    bed.assert_once(*rest)
    not_charged(bed, rest)
    letter, = bed.letters()
    assert letter["message_id"] == "m0042" and letter["attempts"] == 2
    # 100 messages may come in some requests at first; then at most 2 * ceil(log2 100) + 1 more, and its second attempt.
    n_first = next(n for n, b in enumerate(batches.batches) if "m0042" in b.ids) + 1
    assert len(batches.batches) <= n_first + 2 * 7 + 1 + 1 + 3, batches.sizes()


def test_a_whole_failure_in_response_lets_each_go_alone(bed, batches):
    """Halves would repeat the effects of the others at each level."""
    failed = []

    def handler(request, reply):
        batch = batches.seen(request)
        if "m0007" in batch.ids:
            failed.append(batch.count)
            reply.status(500)
            return
        batches.reply(reply, batch)

    bed.app.handler = handler
    ids, sidecar = start_with(bed, 30, "response", retry={"max_attempts": 2})
    sidecar.wait_for("dead", message_id="m0007")
    completed(bed, 29)
    assert failed[0] > 1 and failed[1:] == [1, 1]
    assert all(batches.times(i) <= 2 for i in ids if i != "m0007")


@pytest.mark.parametrize("what", ["no field", "wrong count", "unknown id", "no JSON", "mark", "compressed", "cut", "died"])
def test_an_answer_that_says_nothing_completes_nothing(bed, batches, what):
    """In `response` a 200 is not enough; three of them pause the queue, and an answer that is right ends the pause."""
    good = threading.Event()

    def handler(request, reply):
        batch = batches.seen(request)
        if good.is_set():
            batches.reply(reply, batch)
        elif what == "no field":
            reply.status(200)
        elif what == "wrong count":
            reply.status(200, b"", {"Onceward-Batch": batch.count + 1})
        elif what == "unknown id":
            batches.reply(reply, batch, [{"id": "M0001"}])
        elif what == "no JSON":
            reply.status(200, b"{", {"Onceward-Batch": batch.count})
        elif what in ("mark", "compressed"):  # a failure is named where it could be passed over
            body = json.dumps({"failures": [{"id": batch.ids[0]}]}).encode()
            body, field = (b"\xef\xbb\xbf" + body, {}) if what == "mark" else (gzip.compress(body), {"Content-Encoding": "gzip"})
            reply.status(200, body, {"Onceward-Batch": batch.count, **field})
        elif what == "died":  # behind the head, before the body that would have named a failure
            reply.raw(b"HTTP/1.1 200 OK\r\nOnceward-Batch: %d\r\n\r\n" % batch.count)
            reply.keep = False
        else:
            reply.status(200, b'{"failures": []' + b" " * 20_000 + b"}", {"Onceward-Batch": batch.count})

    bed.app.handler = handler
    ids = publish(bed, 30)
    settings = forward()
    settings["max_response"] = "10KiB"
    sidecar = bed.sidecar(completion="response", forward=settings)
    sidecar.wait_for("paused", reason="bad_answer")
    assert bed.statuses().get("completed", 0) == 0
    good.set()
    completed(bed, 30)
    sidecar.wait_for("resumed", reason="bad_answer")
    not_charged(bed, ids)
    assert not bed.letters()


@pytest.mark.short("400", "415")
@pytest.mark.parametrize("status", [400, 404, 405, 413, 415, 422])
def test_an_application_that_does_not_know_batches_kills_nothing(bed, batches, status):
    good = threading.Event()

    def handler(request, reply):
        batch = batches.seen(request)
        if good.is_set():
            batches.transaction(batch.messages)
            batches.reply(reply, batch)
        else:
            reply.status(status)

    bed.app.handler = handler
    ids, sidecar = start_with(bed, 30)
    sidecar.wait_for("paused", reason="no_batches")
    good.set()
    completed(bed, 30)
    bed.assert_once(*ids)
    not_charged(bed, ids)
    assert not bed.letters()


def test_rows_decide_where_the_answer_was_lost_or_wrong(bed, batches):
    """Committed, and then answered 500: what is completed is acked, and nothing is done twice."""

    def handler(request, reply):
        batch = batches.seen(request)
        batches.transaction(batch.messages)
        reply.status(500)

    bed.app.handler = handler
    ids, sidecar = start_with(bed, 50)
    completed(bed, 50)
    bed.assert_once(*ids)
    assert all(batches.times(i) == 1 for i in ids)
    bed.assert_acked()


def test_a_2xx_without_a_completion_is_a_failure_of_the_whole(bed, batches):
    """None completed: in halves. Some: the others failed by name."""

    def handler(request, reply):
        batch = batches.seen(request)
        good = [m for m in batch.messages if m["id"] != "m0005" or m["attempt"] > 1]
        if batch.count > 1 and "m0005" in batch.ids and len(batches.batches) < 3:
            good = []  # forgets its commit
        batches.transaction(good)
        batches.reply(reply, batch)

    bed.app.handler = handler
    ids, sidecar = start_with(bed, 20)
    completed(bed, 20)
    bed.assert_once(*ids)
    not_charged(bed, [i for i in ids if i != "m0005"])


def test_one_stale_token_does_not_spoil_the_others(bed, batches):
    """complete_valid answers the others; the stale one's row decides."""
    bed.app.handler = batches.valid_ones
    ids = publish(bed, 20)
    gate = Gate()

    def handler(request, reply):
        batch = batches.seen(request)
        if len(batches.batches) == 1:
            gate.wait()
        done = batches.transaction(batch.messages, "complete_valid")
        batches.reply(reply, batch)

    bed.app.handler = handler
    sidecar = bed.sidecar(forward=forward())
    gate.wait_for_waiting()
    stale = batches.batches[0].ids[0]
    bed.rows("UPDATE onceward.inbox SET token = gen_random_uuid(), status = 'waiting', next_attempt_at = clock_timestamp()"
             " WHERE consumer = %s AND message_id = %s RETURNING 1", bed.queue.name, stale)
    gate.open()
    completed(bed, 20)
    bed.assert_once(*ids)


def test_202_is_accepted_for_all_that_are_not_named(bed, batches):
    gate = Gate()

    def handler(request, reply):
        batch = batches.seen(request)
        named = [m for m in batch.messages if m["id"] == "m0001" and m["attempt"] == 1]
        rest = [m for m in batch.messages if m not in named]
        bed.app.later(lambda: (gate.wait(), batches.transaction(rest)))
        batches.reply(reply, batch, [{"id": m["id"], "status": 500} for m in named], status=202)

    bed.app.handler = handler
    ids, sidecar = start_with(bed, 20)
    gate.wait_for_waiting()
    gate.open()
    completed(bed, 20)
    bed.assert_once(*ids)
    assert bed.row("m0001")["attempt"] == 2


def test_not_now_for_the_whole_charges_nobody(bed, batches):
    """503: all again. 409 and its like: in halves, since one may be the cause."""
    n, halves = [], [409, 423, 425, 408]

    def handler(request, reply):
        batch = batches.seen(request)
        n.append(batch.count)
        if len(n) == 1:
            reply.status(503, b"", {"Retry-After": "0"})
        elif "m0004" in batch.ids and batch.count > 1:
            reply.status(halves[0], b"", {"Retry-After": "0"})
            halves.append(halves.pop(0))
        else:
            batches.transaction(batch.messages)
            batches.reply(reply, batch)

    bed.app.handler = handler
    ids, sidecar = start_with(bed, 20)
    completed(bed, 20)
    bed.assert_once(*ids)
    not_charged(bed, ids)
    with_it = [b.count for b in batches.batches[1:] if "m0004" in b.ids]
    assert all(after <= (before + 1) // 2 for before, after in zip(with_it[1:], with_it[2:])), with_it


def test_no_connection_charges_nobody(bed, batches):
    sidecar = bed.sidecar(completion="transaction", forward=forward())
    bed.app.stop()
    ids = publish(bed, 20)
    sidecar.wait_for("paused", reason="application_down")
    bed.app.start()
    completed(bed, 20)
    bed.assert_once(*ids)
    not_charged(bed, ids)


def test_a_large_message_goes_by_itself(bed, batches):
    ids = publish(bed, 10)
    bed.queue.publish("large", json.dumps("x" * 5000).encode(), content_type=JSON)
    more = publish(bed, 10, start=10)
    bed.sidecar(forward=forward(max_bytes="4KiB"))
    completed(bed, 21)
    assert [b.count for b in batches.batches if "large" in b.ids] == [1]
    bed.assert_once(*ids, "large", *more)


def test_413_makes_requests_smaller(bed, batches):
    def handler(request, reply):
        batch = batches.seen(request)
        if len(batches.batches) > 1 and len(request.body) > 3000:
            reply.status(413)
            return
        batches.transaction(batch.messages)
        batches.reply(reply, batch)

    bed.app.handler = handler
    sidecar = bed.sidecar(forward=forward())
    bed.queue.publish("first", b"{}", content_type=JSON)
    completed(bed, 1)
    ids = publish(bed, 100)
    completed(bed, 101)
    bed.assert_once("first", *ids)
    not_charged(bed, ids)
    assert not bed.letters()


def test_results_are_kept_by_id(bed, batches):
    def handler(request, reply):
        batch = batches.seen(request)
        batches.reply(reply, batch, results={i: {"invoice": i} for i in batch.ids if i != "m0001"})

    bed.app.handler = handler
    ids, sidecar = start_with(bed, 10, "response", store_response="1KiB")
    completed(bed, 10)
    assert json.loads(bed.row("m0002")["result"]) == {"invoice": "m0002"} and bed.row("m0001")["result"] is None


def test_the_message_that_kills_the_application_is_found(bed, batches):
    """After the crash the others go on, and the killer alone is charged."""

    def handler(request, reply):
        batch = batches.seen(request)
        if "m0013" in batch.ids:
            reply.reset()
            return
        batches.transaction(batch.messages)
        batches.reply(reply, batch)

    bed.app.handler = handler
    ids, sidecar = start_with(bed, 40, retry={"max_attempts": 2})
    sidecar.wait_for("dead", message_id="m0013")
    completed(bed, 39)
    rest = [i for i in ids if i != "m0013"]
    bed.assert_once(*rest)
    not_charged(bed, rest)


def test_a_window_without_an_answer_ends_with_small_requests(bed, batches):
    """One hangs: 20, then 8 at most, then alone; no other is charged."""
    gate = Gate()

    def handler(request, reply):
        batch = batches.seen(request)
        if "m0006" in batch.ids:
            gate.wait()
            return
        batches.transaction(batch.messages)
        batches.reply(reply, batch)

    bed.app.handler = handler
    ids, sidecar = start_with(bed, 20, token_window="2s", retry={"max_attempts": 1})
    completed(bed, 19)
    sidecar.wait_for("dead", message_id="m0006")
    hung = [b.count for b in batches.batches if "m0006" in b.ids]
    assert hung[0] > 8 and 1 < hung[1] <= 8 and hung[2] == 1, hung
    not_charged(bed, [i for i in ids if i != "m0006"])
    gate.open()


def test_a_killed_sidecar_loses_and_doubles_nothing(bed, batches):
    gate = Gate()

    def handler(request, reply):
        batch = batches.seen(request)
        batches.transaction(batch.messages)
        if len(batches.batches) == 1:
            gate.wait()
        batches.reply(reply, batch)

    bed.app.handler = handler
    ids = publish(bed, 50)
    first = bed.sidecar(forward=forward())
    gate.wait_for_waiting()
    first.kill()
    gate.open()
    bed.sidecar(forward=forward())
    completed(bed, 50)
    bed.assert_once(*ids)
    bed.assert_acked()


def test_a_drain_waits_for_a_request(bed, batches):
    gate = Gate()

    def handler(request, reply):
        batch = batches.seen(request)
        gate.wait()
        batches.transaction(batch.messages)
        batches.reply(reply, batch)

    bed.app.handler = handler
    ids = publish(bed, 10)
    sidecar = bed.sidecar(forward=forward())
    gate.wait_for_waiting()
    sidecar.signal(signal.SIGTERM)
    gate.open()
    sidecar.wait_for("stopped")
    n = sum(batches.sizes())
    assert bed.statuses().get("completed", 0) == n > 0
    bed.assert_once(*[i for b in batches.batches for i in b.ids])


def test_an_application_that_takes_fewer_messages_gets_fewer(bed, batches):
    """413 halves the size, which the log, the stats line and `status` show."""

    def handler(request, reply):
        batch = batches.seen(request)
        if batch.count > 10:
            reply.status(413)
            return
        batches.transaction(batch.messages)
        batches.reply(reply, batch)

    bed.app.handler = handler
    sidecar = bed.sidecar(forward=forward())
    ids = publish(bed, 1)
    completed(bed, 1)
    ids += publish(bed, 199, start=1)
    completed(bed, 200)
    bed.assert_once(*ids)
    not_charged(bed, ids)
    line = sidecar.wait_for("batch_size")
    assert line["batch_size"] < 100 and "413" in line["reason"]
    wait_until(lambda: any(1 <= s["batch_size"] < 100 for s in sidecar.find("stats")), "the stats line has it")
    of_status = lambda: [r["batch_size"] for r in json.loads(good("status", "--config", sidecar.config_path, "--json"))["replicas"]
                         if r["queue"] == bed.queue.name]
    wait_until(lambda: any(1 <= size < 100 for size in of_status()), "`status` has it")
    assert not bed.letters()
