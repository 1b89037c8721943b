"""Requests with several messages together with other features: store, results, the outbox, Retry-After, reload, kills, sizes."""

import collections
import copy
import json
import time

import psycopg2
import pytest

from rig.application import Gate
from rig.wait import wait_until
from test_batches import JSON, Applied, batches, completed, forward, not_charged, publish, start_with  # noqa: F401 - a fixture
from test_outbox import box, wait_for_nothing_waiting  # noqa: F401 - a fixture
from test_reload import reload
from test_store import STORE, stored

BOTH = pytest.mark.parametrize("completion", ["transaction", "response"])


def use(bed, batches, completion):
    bed.app.handler = batches.valid_ones if completion == "transaction" else batches.respond


# --- store, results, outbox ---

@BOTH
def test_each_message_of_a_request_is_stored_once(bed, batches, completion):
    use(bed, batches, completion)
    batches.fail = lambda m: {"status": 500} if m["id"] == "m0007" and m["attempt"] == 1 else None
    ids, sidecar = start_with(bed, 60, completion, **STORE)
    completed(bed, 60)
    assert sorted(r["message_id"] for r in stored(bed)) == ids
    assert all(json.loads(bytes(r["body"])) == {"id": r["message_id"]} for r in stored(bed))
    assert max(batches.sizes()) > 5
    bed.assert_once(*ids)


def test_results_are_found_by_ids_with_escapes(bed, batches):
    """Also where the application writes an id with other escapes than Onceward."""
    ids = ['q"uote', "back\\slash", "tab\there", "\u00e4\u20ac\U0001f600", "plain/slash", "two  blanks"]

    def handler(request, reply):
        batch = batches.seen(request)
        body = json.dumps({"failures": [{"id": i, "status": 500} for i in batch.ids if i == ids[3] and len(batches.batches) == 1],
                           "results": {i: {"of": i} for i in batch.ids}}, ensure_ascii=True).replace("/", "\\/")
        reply.status(200, body.encode(), {"Onceward-Batch": batch.count})

    bed.app.handler = handler
    for i in ids:
        bed.queue.publish(i, b"{}", content_type=JSON)
    bed.queue.wait_for_ready(len(ids))
    bed.sidecar(completion="response", forward=forward(), store_response="1KiB")
    completed(bed, len(ids))
    assert {i: json.loads(bed.row(i)["result"]) for i in ids} == {i: {"of": i} for i in ids}
    assert sorted(batches.times(i) for i in ids)[:-1] == [1] * (len(ids) - 1)


def test_a_result_that_is_too_large_is_left_out_for_its_message_alone(bed, batches):
    def handler(request, reply):
        batch = batches.seen(request)
        batches.reply(reply, batch, results={i: "x" * (3000 if i == "m0001" else 10) for i in batch.ids})

    bed.app.handler = handler
    ids, sidecar = start_with(bed, 5, "response", store_response="1KiB")
    completed(bed, 5)
    kept = {i: bed.row(i)["result"] for i in ids}
    assert all(kept[i] for i in ids if i != "m0001"), kept
    assert not kept["m0001"] or len(kept["m0001"]) <= 1024


def test_what_is_published_beside_a_request_goes_out_once(box):
    """One transaction completes all, and publishes an invoice for each. The application fails behind the commit, and the sidecar is killed."""
    made = Applied(box)

    def handler(request, reply):
        batch = made.seen(request)
        database = box.app.borrow()
        try:
            with database.cursor() as cursor:
                cursor.execute("SELECT onceward.complete_all(%s)", (batch.tokens,))
                made.ledger(cursor, batch.messages)
                cursor.executemany("SELECT onceward.publish(%s, 'invoices', '{}'::jsonb, %s)",
                                   [(box.exchange, "invoice-" + i) for i in batch.ids])
            database.commit()
        except psycopg2.Error:
            database.rollback()
            reply.status(409)
            return
        finally:
            box.app.give_back(database)
        if len(made.batches) % 3 == 1:
            reply.status(500)
        else:
            made.reply(reply, batch)

    box.app.handler = handler
    invoices = box.new_queue("-invoices")
    invoices.channel.queue_bind(invoices.name, box.exchange, "invoices")
    ids = publish(box, 100)
    box.queue.wait_for_ready(100)
    sidecar = box.sidecar(top={"outbox": {}}, forward=forward(20))
    wait_until(lambda: len(made.batches) >= 2, "two requests came")
    sidecar.kill()
    sidecar.start()
    completed(box, 100)
    box.assert_once(*ids)
    wait_for_nothing_waiting(box)
    found = collections.Counter()
    while (message := invoices.channel.basic_get(invoices.name, auto_ack=True))[0]:
        found[message[1].message_id] += 1
    assert set(found) == {"invoice-" + i for i in ids}  # a relay that was killed may send one again, with the same id


# --- answers ---

@BOTH
@pytest.mark.parametrize("status", [503, 409])
def test_retry_after_holds_for_the_message_that_it_names(bed, batches, completion, status):
    """Not now: it is not charged, and no other message waits for it."""
    refused = {}

    def fail(m):
        if m["id"] != "m0002" or time.monotonic() - refused.setdefault("at", time.monotonic()) > 1.9:
            return None
        return {"status": status, "retry_after": 2}

    use(bed, batches, completion)
    batches.fail = fail
    ids, sidecar = start_with(bed, 20, completion, retry={"backoff": "100ms"})
    completed(bed, 20)
    done = {i: bed.row(i)["completed_at"] for i in ids}
    assert all(done[i] < done["m0002"] for i in ids if i != "m0002")
    assert batches.times("m0002") == 2 and all(batches.times(i) == 1 for i in ids if i != "m0002")
    not_charged(bed, ids)
    bed.assert_once(*ids)


@BOTH
def test_424_is_not_charged(bed, batches, completion):
    """The rest behind a failure, which was not attempted."""
    def fail(m):
        if m["id"] == "m0004" and m["attempt"] == 1:
            return {"status": 500}
        return {"status": 424, "retry_after": 0} if m["id"] > "m0004" and len(batches.batches) == 1 else None

    use(bed, batches, completion)
    batches.fail = fail
    ids, sidecar = start_with(bed, 20, completion)
    completed(bed, 20)
    bed.assert_once(*ids)
    not_charged(bed, [i for i in ids if i != "m0004"])


@BOTH
@pytest.mark.parametrize("form", ["token", "aws"])
def test_other_ways_to_name_a_failure(bed, batches, completion, form):
    """By its token, or as AWS Lambda does."""
    def handler(request, reply):
        batch = batches.seen(request)
        bad = [m for m in batch.messages if m["id"] == "m0003" and m["attempt"] == 1]
        good = [m for m in batch.messages if m not in bad]
        if completion == "transaction":
            batches.transaction(good)
        else:
            batches.respond_for(good)
        entries = {"failures": [{"token": m["token"], "status": 500} for m in bad]} if form == "token" else \
            {"batchItemFailures": [{"itemIdentifier": m["id"]} for m in bad]}
        reply.status(200, json.dumps(entries).encode(), {"Onceward-Batch": batch.count})

    def respond_for(messages):
        database = bed.app.borrow()
        with database.cursor() as cursor:
            batches.ledger(cursor, messages)
        database.commit()
        bed.app.give_back(database)

    batches.respond_for = respond_for
    bed.app.handler = handler
    ids, sidecar = start_with(bed, 10, completion)
    completed(bed, 10)
    bed.assert_once(*ids)
    assert bed.row("m0003")["attempt"] == 2
    not_charged(bed, [i for i in ids if i != "m0003"])


def test_a_refusal_with_the_count_is_the_messages_own(bed, batches):
    """Before any good answer. Without the count, 422 may mean that the application does not know batches."""
    bed.app.handler = lambda request, reply: reply.status(422, b"", {"Onceward-Batch": batches.seen(request).count})
    publish(bed, 1)
    sidecar = bed.sidecar(forward=forward())
    sidecar.wait_for("dead", message_id="m0000", reason="permanent")
    assert not sidecar.find("paused")


# --- sizes ---

def test_a_request_stays_within_max_bytes(bed, batches):
    """A backlog of 1 KB messages with 4 KiB a request: three or fewer each."""
    sizes = []
    bed.app.handler = lambda request, reply: (sizes.append(len(request.body)), batches.all_or_nothing(request, reply))[1]
    ids = [f"m{i:04}" for i in range(40)]
    for i in ids:
        bed.queue.publish(i, json.dumps({"id": i, "fill": "x" * 1000}).encode(), content_type=JSON)
    bed.queue.wait_for_ready(40)
    bed.sidecar(forward=forward(max_bytes="4KiB"))
    completed(bed, 40)
    bed.assert_once(*ids)
    assert max(sizes) <= 4096 and 2 <= max(batches.sizes()) <= 3


# --- life ---

@BOTH
def test_a_reload_turns_batches_on_and_off(bed, batches, completion):
    """The application answers both forms. No message is lost or done twice."""
    forms = []

    def alone(request, reply):
        forms.append("single")
        return bed.app.commit_and_answer(request, reply)

    def several(request, reply):
        forms.append("batch")
        (batches.valid_ones if completion == "transaction" else batches.respond)(request, reply)

    bed.app.handler = lambda request, reply: (several if request.header("Onceward-Batch") else alone)(request, reply)
    ids = publish(bed, 20)
    sidecar = bed.sidecar(completion=completion)
    completed(bed, 20)
    assert set(forms) == {"single"}
    without = copy.deepcopy(sidecar.config)
    config = copy.deepcopy(without)
    config["queues"][bed.queue.name].setdefault("forward", {}).update(forward())
    reload(sidecar, config)
    del forms[:]
    ids += publish(bed, 20, start=20)
    completed(bed, 40)
    assert set(forms) == {"batch"}
    reload(sidecar, without)
    del forms[:]
    ids += publish(bed, 20, start=40)
    completed(bed, 60)
    assert set(forms) == {"single"}
    bed.assert_once(*ids)
    not_charged(bed, ids)


def test_a_kill_in_the_middle_of_a_response_repeats_without_charge(bed, batches):
    """The window in which `response` may repeat: the effects are there, and the answer has no reader."""
    gate = Gate()

    def handler(request, reply):
        batches.respond(request, reply) if len(batches.batches) else (batches.seen(request), gate.wait())

    bed.app.handler = handler
    ids = publish(bed, 30)
    bed.queue.wait_for_ready(30)
    first = bed.sidecar(completion="response", forward=forward(), token_window="2s")
    gate.wait_for_waiting()
    assert batches.sizes()[0] > 5
    first.kill()
    gate.open()
    bed.sidecar(completion="response", forward=forward(), token_window="2s")
    completed(bed, 30)
    bed.assert_once(*ids)  # the first request had no effects
    not_charged(bed, ids)
    assert all(batches.times(i) <= 2 for i in ids) and not bed.letters()


@pytest.mark.parametrize("end", [lambda reply: reply.reset(), lambda reply: reply.close(), lambda reply: reply.raw(b"garbage\r\n\r\n"),
                                 lambda reply: reply.status(502), lambda reply: reply.status(504)],
                         ids=["reset", "closed", "garbage", "502", "504"])
def test_an_application_that_ends_in_the_middle_charges_nobody(bed, batches, end):
    """Its transaction rolls back; the messages go in groups of eight, since one of them may have ended it."""
    died = []

    def handler(request, reply):
        batch = batches.seen(request)
        if not died and batch.count > 8:
            died.append(len(batches.batches))
            end(reply)
            return
        batches.transaction(batch.messages)
        batches.reply(reply, batch)

    bed.app.handler = handler
    ids, sidecar = start_with(bed, 50)
    completed(bed, 50)
    # Others may have come meanwhile, in a request of their own.
    suspects = set(batches.batches[died[0] - 1].ids)
    again = [b.count for b in batches.batches[died[0]:] if suspects & set(b.ids)]
    assert again and all(n <= 8 for n in again[:-(-len(suspects) // 8)]), batches.sizes()
    bed.assert_once(*ids)
    not_charged(bed, ids)
    assert not bed.letters()
