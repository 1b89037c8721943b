"""requests with 100 messages beside Redpanda Connect's batches and daprd's bulk subscription: drains, CPU, latency, the SQL functions

All contenders drain the same kind of backlog in turn, in rounds: first to an application that answers at once, then to one that commits
one transaction for each request. A drain has --messages, or a tenth of them with one in a request: below 10 s, the rates of one contender
differ by a third between rounds. The peers have no inbox, so their application inserts its rows only. The latency is that of Onceward
at 500/s without batches and with them; the application answers at once. Ratios are of the same round, and the median round counts.

With --quick one round with fewer messages."""

import statistics
import time

import psycopg2

from rig import process

from .. import peers
from ..contenders import Case
from ..drain import Drain, Stalled
from ..recorder import Recorder
from ..verdicts import Verdicts

SIZE, CONCURRENCY = 100, 8  # as many requests at once as Connect
RATE, SECONDS, WARM_SECONDS = 500, 12, 2
SQL_BATCHES = 200


class Several(peers.Once):
    """Requests with up to SIZE messages."""

    bulk = True

    def __init__(self, bed, completion="response", **forward):
        super().__init__(bed, completion, prefetch=2 * CONCURRENCY * SIZE)
        self.forward = {"concurrency": CONCURRENCY, "batch": {"max_messages": SIZE}, **forward}

    def config(self, case, index):
        config = super().config(case, index)
        config["defaults"]["forward"].update(self.forward)
        return config


MADE = {
    "onceward": peers.Once, "onceward batches": Several, "onceward transaction": lambda bed: peers.Once(bed, "transaction"),
    "onceward transaction batches": lambda bed: Several(bed, "transaction"), "connect batches": peers.MADE["connect batches"],
    "daprd bulk": peers.MADE["daprd bulk"],
}
AT_ONCE = ("onceward batches", "connect batches", "daprd bulk", "onceward")
COMMITTING = ("onceward transaction batches", "onceward batches", "connect batches", "daprd bulk", "onceward transaction")


def drained(bed, label, count, commits):
    """A backlog, and an application that answers at once, or commits once for each request."""
    who = MADE[label](bed)
    who.share = 1.0 if getattr(who, "bulk", False) else 0.1
    case = Case(completion=who.completion)
    mode = who.app_mode if commits else "record"
    options = {"bulk": 1} if getattr(who, "bulk", False) else {}
    case.application = lambda drain: Recorder(bed, mode, bed.postgres.dsn(user="bench_app", database=drain.case.database), **options).start()
    return Drain(bed, who, case, count).run()


def rounds_of(bed, o, labels, count, commits):
    """{label: [result of each round]}, in turn."""
    found = {label: [] for label in labels}
    for number in range(o.rounds):
        for label in labels[::1 if number % 2 == 0 else -1]:
            try:
                found[label].append(drained(bed, label, count, commits))
            except (AssertionError, Stalled, OSError) as e:
                found[label].append({"rate": 0.0, "cpu_us": {}, "faults": [str(e)]})
            result = found[label][-1]
            bed.say(f"{'committing' if commits else 'at once'}, round {number + 1}, {label}: {result['rate']:,.0f}/s, "
                    f"{result['cpu_us'].get('consumer', 0):.1f} us of CPU a message {' '.join(result['faults'])}")
    return found


def ratio(found, label, to, value):
    """The median of the rounds; None: one of them has no figure."""
    pairs = [(value(a), value(b)) for a, b in zip(found[label], found[to]) if a["rate"] and b["rate"]]
    return statistics.median(a / b for a, b in pairs) if pairs else None


def rate(result):
    return result["rate"]


def cpu(result):
    return result["cpu_us"]["consumer"]


def told(found):
    return "; ".join(f"{label} {statistics.median(map(rate, results)):,.0f}/s, {statistics.median(r['cpu_us'].get('consumer', 0) for r in results):.0f} us"
                     for label, results in found.items())


def stamped(bed, label):
    """p50 from publish to POST, in ms."""
    who = MADE[label](bed)
    case = Case(completion=who.completion, queues=["steady"], database=bed.new_database(who.template))
    broker = bed.rabbitmq.connect()
    channel = broker.channel()
    channel.queue_delete("steady")
    channel.queue_declare("steady", durable=True, arguments={"x-queue-type": "quorum"})
    app, children = Recorder(bed, stamps=True, **({"bulk": 1} if getattr(who, "bulk", False) else {})).start(), []
    try:
        case.app_url, case.app_socket = app.url, None
        children = who.start(case)
        n = RATE * (WARM_SECONDS + SECONDS)
        while not channel.queue_declare("steady", passive=True).method.consumer_count:
            time.sleep(0.05)
        bed.load("steady", n, rate=RATE)
        end = time.monotonic() + 30
        while app.n_done() < n and time.monotonic() < end:
            time.sleep(0.05)
        app.stop()
        values = sorted(app.stamps()[RATE * WARM_SECONDS:])
        return values[len(values) // 2] / 1000
    finally:
        for child in children:
            process.reap(child, ((15, 15.0),))
        app.stop()
        channel.queue_delete("steady")
        broker.close()
        bed.drop_database(case.database)


def backend_ns(pid):
    with open(f"/proc/{pid}/schedstat", encoding="ascii") as f:
        return int(f.read().split()[0])


CLAIM = """
INSERT INTO claimed SELECT k, array_agg('c:' || k || ':' || i), array_agg(gen_random_uuid()) FROM generate_series(1, %(n)s) k, generate_series(1, %(size)s) i GROUP BY k;
SELECT count(*) FROM claimed b, onceward.sidecar_claim_many(true, 'bench', 1, false, '{}', 0, ARRAY['c'], ARRAY[interval '1 hour'], ARRAY[interval '1 hour'],
    ARRAY[8], ARRAY[0], array_fill(1, ARRAY[%(size)s]), b.ids, b.tokens, array_fill('\\x00112233445566778899aabbccddeeff'::bytea, ARRAY[%(size)s]),
    NULL::text[], array_fill(0::bigint, ARRAY[%(size)s]), array_fill(false, ARRAY[%(size)s]));
"""


def functions(bed):
    """The server's CPU of complete_all for SIZE tokens, and of sidecar_settle_many for as many rows, in turn in one session: us each."""
    name = bed.new_database("t_onceward")
    connection = psycopg2.connect(bed.postgres.dsn(database=name, application_name="bench"))
    connection.autocommit = True
    cursor = connection.cursor()
    try:
        pid = connection.get_backend_pid()
        cursor.execute("CREATE TEMP TABLE claimed (k int, ids text[], tokens uuid[])")
        cursor.execute(CLAIM, {"n": SQL_BATCHES, "size": SIZE})
        cursor.execute("""CREATE TEMP TABLE t AS SELECT b.k, array_agg('ow1.' || key || '.' || secret) AS tokens
            FROM claimed b, unnest(b.ids, b.tokens) i (id, token),
            LATERAL (SELECT translate(encode(convert_to('c', 'UTF8') || '\\x00'::bytea || convert_to(i.id, 'UTF8'), 'base64'), E'+/=\\n', '-_') AS key,
                            translate(encode(uuid_send(i.token), 'base64'), '+/=', '-_') AS secret) x GROUP BY b.k""")
        took = {True: [], False: []}
        for k in range(1, SQL_BATCHES + 1):
            start = backend_ns(pid)
            if k % 2:
                cursor.execute("SELECT onceward.complete_all(t.tokens) FROM t WHERE t.k = %s", (k,))
            else:
                cursor.execute("SELECT FROM claimed b, onceward.sidecar_settle_many('{c}', array_fill(1, ARRAY[%s]), b.ids, b.tokens, array_fill(200, ARRAY[%s]),"
                               " NULL) WHERE b.k = %s", (SIZE, SIZE, k))
            took[bool(k % 2)].append(backend_ns(pid) - start)
        cursor.execute("SELECT count(*) FROM onceward.inbox WHERE status = 'completed'")
        assert cursor.fetchone()[0] == SQL_BATCHES * SIZE
        return statistics.median(took[True]) / 1000, statistics.median(took[False]) / 1000
    finally:
        connection.close()
        bed.drop_database(name)


def prove(bed, o):
    verdicts = Verdicts("batch: requests with 100 messages")
    count = o.messages
    peers.build(bed, o.without)
    there = lambda labels: [label for label in labels if peers.is_there(bed, label)]
    parts = {"commit": lambda: prove_commits(bed, o, verdicts, there(COMMITTING), count),
             "drain": lambda: prove_at_once(bed, o, verdicts, there(AT_ONCE), count),
             "latency": lambda: prove_latency(bed, o, verdicts), "functions": lambda: prove_functions(bed, verdicts)}
    for name, part in parts.items():
        if o.only in name:
            part()
    return verdicts


def prove_commits(bed, o, verdicts, labels, count):
    found = rounds_of(bed, o, labels, count, True)
    ours = "onceward transaction batches"
    if "connect batches" in found:
        verdicts.least("transaction, batches, both commit: x Connect's", ratio(found, ours, "connect batches", rate) or 0, 1.0)
        verdicts.most("its CPU of the consumer: x Connect's", ratio(found, ours, "connect batches", cpu) or 99, 0.5)
    if "daprd bulk" in found:
        verdicts.tell("transaction, batches, both commit: x daprd's bulk", f"{ratio(found, ours, 'daprd bulk', rate) or 0:.2f}")
    verdicts.tell("transaction, batches: x transaction without batches", f"{ratio(found, ours, 'onceward transaction', rate) or 0:.2f}")
    verdicts.tell("medians", told(found))
    verdicts.document["commit"] = found


def prove_at_once(bed, o, verdicts, labels, count):
    found = rounds_of(bed, o, labels, count, False)
    ours = "onceward batches"
    if "connect batches" in found:
        verdicts.least("response, batches, at once: x Connect's", ratio(found, ours, "connect batches", rate) or 0, 1.2)
    if "daprd bulk" in found:
        verdicts.tell("response, batches, at once: x daprd's bulk", f"{ratio(found, ours, 'daprd bulk', rate) or 0:.2f}")
    verdicts.tell("response, batches: x response without batches", f"{ratio(found, ours, 'onceward', rate) or 0:.2f}")
    verdicts.tell("medians", told(found))
    verdicts.document["at once"] = found


def prove_latency(bed, o, verdicts):
    found = {"onceward": [], "onceward batches": []}
    for number in range(o.rounds):
        for label in list(found)[::1 if number % 2 == 0 else -1]:
            found[label].append(stamped(bed, label))
    spread = max(found["onceward"]) - min(found["onceward"])
    before, after = (statistics.median(values) for values in found.values())
    text = "; ".join(f"{label} " + ", ".join(f"{v:.2f}" for v in values) for label, values in found.items())
    verdicts.add(f"p50 from publish to POST at {RATE}/s, ms", "within the spread", text, after <= before + max(spread, 0.1 * before))


def prove_functions(bed, verdicts):
    all_us, settle_us = functions(bed)
    verdicts.most(f"server CPU, {SIZE} messages: complete_all x sidecar_settle_many", all_us / settle_us, 1.5)
    verdicts.tell("us a batch", f"{all_us:.0f} and {settle_us:.0f}")
