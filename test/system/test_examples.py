"""The applications of deploy/examples, as they stand there, against the real servers.

In test/run those whose packages are Debian's, where they are installed; with ONCEWARD_EXAMPLES=all (test/examples) also those that are built
with packages from elsewhere, and each of their paths."""

import collections
import json
import os
import subprocess
import uuid

import pytest

from rig import examples, process, schema
from rig.wait import wait_until

pytestmark = pytest.mark.deploy

KINDS = examples.KINDS + (examples.LOCKED if os.environ.get("ONCEWARD_EXAMPLES") else [])
PATHS = slice(None if os.environ.get("ONCEWARD_EXAMPLES") else -2, None)  # the first of three does nothing that the second does not
CASES = [pytest.param(kind, path, id=f"{kind.name}-{path.strip('/').replace('/', '-')}") for kind in KINDS for path in kind.paths[PATHS]]
TRIED = CASES if os.environ.get("ONCEWARD_EXAMPLES") else [c for c in CASES if c.values[0].name in ("python", "php")]  # seconds each
WRONG = [b'{"id": "o9", "cents": ', b"\xff", b"5", b"[]", b"null", b'"o9"', b'{"cents": 250}', b"", b'{"id": "o9"}', b'{"id": null, "cents": 250}',
         b'{"id": "o9", "cents": null}', b'{"id": ["o9"], "cents": 250}', b'{"id": {}, "cents": 250}', b'{"id": "o9", "cents": "many"}',
         b'{"id": "o9", "cents": [250]}', b'{"id": "o9", "cents": 2.5}']
REFUSALS = {400, 415, 422}  # of permanent_status
BATCH_KINDS = examples.BATCHES + (examples.LOCKED_BATCHES if os.environ.get("ONCEWARD_EXAMPLES") else [])
BATCHES = [pytest.param(kind, path, id=f"{kind.name}{path.replace('/payments/', '-')}") for kind in BATCH_KINDS for path in kind.paths]
N_ORDERS, N_KILLS = (150, 2) if os.environ.get("ONCEWARD_EXAMPLES") else (60, 1)


@pytest.fixture
def charges(bed):
    """The examples' own table, where their role finds it. Its name."""
    schema_name = "examples_" + uuid.uuid4().hex[:8]
    role = f"ALTER ROLE app_login IN DATABASE \"{bed.postgres.database}\""
    bed.postgres.query(f"CREATE SCHEMA {schema_name} AUTHORIZATION app_login")
    bed.postgres.query(f"CREATE TABLE {schema_name}.charges (order_id text NOT NULL, cents integer NOT NULL)")
    bed.postgres.query(f"ALTER TABLE {schema_name}.charges OWNER TO app_login")
    bed.postgres.query(f"{role} SET search_path = {schema_name}, app")
    yield f"{schema_name}.charges"
    bed.postgres.query(f"{role} RESET search_path")
    bed.postgres.query(f"DROP SCHEMA {schema_name} CASCADE")


@pytest.fixture
def invoices(bed):
    """The queue of the exchange that the examples publish to; with the invoices of others, who run beside this one."""
    queue = bed.new_queue("-invoices")
    queue.channel.exchange_declare("invoices", "direct", durable=True)
    queue.channel.queue_bind(queue.name, "invoices", "created")
    return queue


def invoices_of(queue, orders):
    """How many came for each order, once nothing waits in the outbox. Also that each has an id of its own."""
    found = collections.Counter()
    ids = set()
    while (message := queue.channel.basic_get(queue.name, auto_ack=True))[0]:
        invoice = json.loads(message[2])
        if invoice["order"] in orders:
            assert invoice["cents"] == 250
            found[invoice["order"]] += 1
            ids.add(message[1].message_id)
    assert len(ids) == sum(found.values())
    return found


def example(kind, folder, dsn, **environment):
    if not examples.is_there(kind):
        pytest.skip(f"{kind.name}: not installed here")
    return examples.Example(kind, dsn, str(folder / f"{kind.name}.log"), **environment)


def settled(sidecar):
    return sum(e["completed_total"] + e["duplicates_total"] + e["dead_total"] for e in sidecar.find("stats")[-1:])


@pytest.mark.parametrize("kind, path", CASES)
def test_the_example_books_each_order_once_and_refuses_what_is_wrong(bed, charges, invoices, tmp_path, kind, path):
    """Orders and copies, while the application is killed now and then: the ledger has each of them once, and so has the queue of invoices."""
    orders = [f"{uuid.uuid4().hex[:8]}-{i}" for i in range(N_ORDERS)]
    with example(kind, tmp_path, bed.postgres.dsn(user="app_login")) as application:
        sidecar = bed.sidecar(top={"outbox": {}}, forward={"url": application.url(path)}, retry={"backoff": "50ms"})
        for order in orders + orders[::3]:
            bed.queue.publish(order, json.dumps({"id": order, "cents": 250}).encode(), content_type="application/json")
        bed.queue.publish("wrong", WRONG[0], content_type="application/json")
        for kill in range(N_KILLS):
            seen = (kill + 1) * N_ORDERS // (N_KILLS + 2)
            wait_until(lambda: bed.rows(f"SELECT count(*) FROM {charges}")[0]["count"] >= seen, f"{seen} orders are booked")
            application.kill()
            application.start()
        wait_until(lambda: settled(sidecar) == len(orders) + len(orders[::3]) + 1, lambda: f"all is settled: {application.said()}", 60)
        booked = sorted(r["order_id"] for r in bed.rows(f"SELECT order_id FROM {charges} WHERE cents = 250"))
        assert booked == sorted(orders)
        wait_until(lambda: not bed.rows("SELECT waiting FROM onceward.sidecar_outbox_gauge()")[0]["waiting"], "nothing waits in the outbox")
        assert invoices_of(invoices, orders) == (collections.Counter(orders) if "invoiced" in kind.name + path else {})
        letter, = bed.letters()
        assert (letter["message_id"], letter["reason"], letter["attempts"]) == ("wrong", "permanent", 1)
        bed.assert_acked()
        answers = {body: application.post(path, body) for body in WRONG}
        assert set(answers.values()) <= REFUSALS, answers
        assert application.post(path, b'{"id": "o9", "cents": 1}') == 500  # the token is none
    assert len(bed.rows(f"SELECT order_id FROM {charges}")) == N_ORDERS


@pytest.mark.parametrize("kind, path", CASES)
def test_the_example_answers_without_its_database(tmp_path, kind, path):
    with example(kind, tmp_path, f"postgresql://u@127.0.0.1:{process.free_port()}/x") as application:
        assert application.post(path, b'{"id": "o1", "cents": 1}') == 503
        assert application.post(path, WRONG[0]) in REFUSALS


def test_the_example_of_response_passes_the_key_on(bed, tmp_path):
    """The example tells the provider which calls are repeats, and its caller the provider's answer."""
    kind = next(k for k in examples.KINDS if k.name == "python")._replace(name="python-response", run="/usr/bin/python3 {folder}/response.py")
    provider = bed.new_application("-provider")
    said = [503, 204]
    heard = []

    def answer(request, reply):
        heard.append((request.header("Idempotency-Key"), json.loads(request.body)))
        return said[min(len(heard), len(said)) - 1]

    provider.handler = answer
    with example(kind, tmp_path, bed.postgres.dsn(user="app_login"), PROVIDER_URL=provider.url) as application:
        bed.sidecar(completion="response", forward={"url": application.url("/payments")}, retry={"backoff": "50ms"})
        bed.queue.publish("o1", b'{"id": "o1", "cents": 250}')
        bed.wait_for_status("o1", "completed")
        assert heard == [('"o1"', {"reference": "o1", "cents": 250})] * 2
        assert application.post("/payments", WRONG[0]) == 400


def member(i, body, token="ow1.none"):
    return {"token": token, "id": i, "queue": "q", "attempt": 1, "redelivered": False, "content_type": "application/json", **body}


@pytest.mark.parametrize("kind, path", BATCHES)
def test_the_example_of_batches_books_each_order_once(bed, charges, tmp_path, kind, path):
    """Orders, copies and a wrong message, while the application is killed: the ledger has each order once, and the wrong one is dead."""
    orders = [f"{uuid.uuid4().hex[:8]}-{i}" for i in range(N_ORDERS)]
    with example(kind, tmp_path, bed.postgres.dsn(user="app_login")) as application:
        for order in orders + orders[::3]:
            bed.queue.publish(order, json.dumps({"id": order, "cents": 250}).encode(), content_type="application/json")
        bed.queue.publish("wrong", WRONG[0], content_type="application/json")
        bed.queue.wait_for_ready(len(orders) + len(orders[::3]) + 1)
        sidecar = bed.sidecar(forward={"url": application.url(path), "concurrency": 2, "batch": {"max_messages": 10}},
                              retry={"backoff": "50ms"})
        for kill in range(N_KILLS):
            seen = (kill + 1) * N_ORDERS // (N_KILLS + 2)
            wait_until(lambda: bed.rows(f"SELECT count(*) FROM {charges}")[0]["count"] >= seen, f"{seen} orders are booked")
            application.kill()
            application.start()
        wait_until(lambda: settled(sidecar) == len(orders) + len(orders[::3]) + 1, lambda: f"all is settled: {application.said()}", 60)
        assert sorted(r["order_id"] for r in bed.rows(f"SELECT order_id FROM {charges} WHERE cents = 250")) == sorted(orders)
        letter, = bed.letters()
        assert (letter["message_id"], letter["reason"], letter["attempts"]) == ("wrong", "permanent", 1)
        bed.assert_acked()
        good, bad = member("a", {"body": {"id": "o9", "cents": 1}}), member("b", {"body_base64": "e30="})
        assert application.post_batch(path, [good, good])[0] == 500  # no token, twice
        if path.endswith("all"):
            assert application.post_batch(path, [good, bad])[:2] == (422, "2")
        else:
            status, count, failures = application.post_batch(path, [bad, bad])
            assert (status, count) == (200, "2") and [(f["id"], f["status"]) for f in failures] == [("b", 422)] * 2
    assert len(bed.rows(f"SELECT order_id FROM {charges}")) == N_ORDERS


@pytest.fixture
def charges_by_message(bed, charges):
    """The table that the example of batches with `response` needs."""
    bed.postgres.query(f"ALTER TABLE {charges} ADD message_id text PRIMARY KEY")
    return charges


def test_the_example_of_batches_with_response_books_each_order_once(bed, charges_by_message, tmp_path):
    """An application killed between its commit and its answer does not insert again, and each row keeps its own result."""
    charges, kind = charges_by_message, examples.RESPONSE_BATCH
    orders = [f"{uuid.uuid4().hex[:8]}-{i}" for i in range(N_ORDERS)]
    with example(kind, tmp_path, bed.postgres.dsn(user="app_login")) as application:
        for i, order in enumerate(orders):
            bed.queue.publish(order, json.dumps({"id": order, "cents": i}).encode(), content_type="application/json")
        bed.queue.publish("wrong", WRONG[0], content_type="application/json")
        bed.queue.wait_for_ready(len(orders) + 1)
        sent = {order: member(order, {"body": {"id": order, "cents": i}}) for i, order in enumerate(orders)}
        assert application.post_batch("/payments", [sent[order] for order in orders[::3]])[:2] == (200, str(len(orders[::3])))  # the lost answer
        sidecar = bed.sidecar(completion="response", store_response="1KiB", retry={"backoff": "50ms"},
                              forward={"url": application.url("/payments"), "concurrency": 2, "batch": {"max_messages": 10}})
        application.kill()
        application.start()
        wait_until(lambda: settled(sidecar) == len(orders) + 1, lambda: f"all is settled: {application.said()}", 60)
        assert sorted(r["order_id"] for r in bed.rows(f"SELECT order_id FROM {charges}")) == sorted(orders)
        assert {order: json.loads(bed.row(order)["result"]) for order in orders} == {order: {"cents": i} for i, order in enumerate(orders)}
        letter, = bed.letters()
        assert (letter["message_id"], letter["reason"], letter["attempts"]) == ("wrong", "permanent", 1)
        bed.assert_acked()
        bed.postgres.query(f"ALTER TABLE {charges} DROP CONSTRAINT charges_pkey")
        assert application.post_batch("/payments", [sent[orders[0]]])[:2] == (500, "1")  # repeats would not be recognised


@pytest.mark.parametrize("kind, path", BATCHES + [pytest.param(examples.RESPONSE_BATCH, "/payments", id="python-response")])
def test_the_example_of_batches_answers_without_its_database(tmp_path, kind, path):
    with example(kind, tmp_path, f"postgresql://u@127.0.0.1:{process.free_port()}/x") as application:
        assert application.post_batch(path, [member("a", {"body": {"id": "o1", "cents": 1}})])[:2] == (503, "1")
        for envelope in b"", b"[", b"[]", b'{"messages": 1}', b'{"messages": [{"token": 1' + b"7" * 5000 + b"}]}", b"[" * 100000:
            assert application.post(path, envelope) in (400, 500)


@pytest.mark.parametrize("kind, path", BATCHES)
def test_the_example_of_batches_keeps_its_side_of_the_contract(bed, charges, tmp_path, kind, path):
    keeps_its_side(bed, charges, tmp_path, kind, path, "transaction")


def test_the_example_of_batches_with_response_keeps_its_side_of_the_contract(bed, charges_by_message, tmp_path):
    keeps_its_side(bed, charges_by_message, tmp_path, examples.RESPONSE_BATCH, "/payments", "response")


def keeps_its_side(bed, charges, tmp_path, kind, path, completion):
    message, config = tmp_path / "message.json", tmp_path / "config.json"
    message.write_text('{"id": "{{id}}", "cents": 250}')
    with example(kind, tmp_path, bed.postgres.dsn(user="app_login")) as application:
        config.write_text(json.dumps(bed.config(completion=completion, forward={"url": application.url(path), "content_type": "application/json",
                                                                                "concurrency": 4, "batch": {"max_messages": 100}})))
        done = subprocess.run(
            [schema.require_binary(), "try", "--config", str(config), "--queue", bed.queue.name, "--message", str(message), "--effect",
             f"SELECT count(*) FROM {charges} WHERE order_id = $1", "--effect-database", bed.postgres.dsn(user="postgres")],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False)
        assert done.returncode == 0 and b" breaks" not in done.stdout and b"advice" not in done.stdout, done.stdout.decode() + application.said()


@pytest.mark.parametrize("kind, path", TRIED)
def test_the_example_keeps_its_side_of_the_contract(bed, charges, tmp_path, kind, path):
    """As `onceward try` sees it, which also says what it would mend."""
    message, config = tmp_path / "message.json", tmp_path / "config.json"
    message.write_text('{"id": "{{id}}", "cents": 250}')
    with example(kind, tmp_path, bed.postgres.dsn(user="app_login")) as application:
        config.write_text(json.dumps(bed.config(forward={"url": application.url(path), "content_type": "application/json"})))
        assert application.post(path, b'{"id": "o9", "cents": 1}') == 500  # what is made at the first request is there
        done = subprocess.run(
            [schema.require_binary(), "try", "--config", str(config), "--queue", bed.queue.name, "--message", str(message), "--effect",
             f"SELECT count(*) FROM {charges} WHERE order_id = $1", "--effect-database", bed.postgres.dsn(user="postgres")],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False)
        assert done.returncode == 0, done.stdout.decode() + application.said()
