"""order per key: throughput at 1,000 keys beside an unordered queue, with one blocked key, of 16 partitions beside one, and of a single key

The application of the single key commits one transaction for each request, which has one message or up to 100."""

import hashlib
import statistics

import psycopg2

from rig.wait import wait_until

from ..contenders import ALL, Case
from ..drain import Drain
from ..recorder import Recorder
from ..verdicts import Verdicts

MESSAGES, ROUNDS, N_KEYS, SIZE = 64000, 5, 1000, 256
ALONE_SHARE = 16  # a single key without batches takes long: so many times fewer messages
ENTRY = "ordered"
MASK = (1 << 64) - 1


def first_message(prefix):
    """Id and body of the message with index 0: see loader.c."""
    state, words = (prefix << 40) & MASK, []
    for _ in range(2):
        state = (state + 0x9e3779b97f4a7c15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xbf58476d1ce4e5b9) & MASK
        z = ((z ^ (z >> 27)) * 0x94d049bb133111eb) & MASK
        words.append(z ^ (z >> 31))
    a, b = words
    name = f"{a >> 32:08x}-{a >> 16 & 0xffff:04x}-{a & 0xffff:04x}-{b >> 48:04x}-{b & 0xffffffffffff:012x}"
    start = f'{{"t":"{0:020d}","mid":"{name}","x":"'
    return name, (start + "x" * (SIZE - 2 - len(start)) + '"}').encode()


class Ordered(ALL["onceward"]):
    """The queues of the case as the partitions of one entry."""

    def config(self, case, index):
        config = super().config(case, index)
        name = case.queues[0] if len(case.queues) == 1 else f"q{{1..{len(case.queues)}}}"
        config["queues"] = {ENTRY: {"queue": name, "consumer": ENTRY}}
        config["defaults"].pop("prefetch" if case.is_ordered else "none", None)
        if case.is_ordered:
            config["defaults"]["order"] = {"key": ["routing_key"]}
        if case.is_batched:
            config["defaults"]["forward"]["batch"] = {"max_messages": 100}
        return config


class KeyDrain(Drain):
    """A drain through an exchange, with the routing keys in turn. blocked: the first message of key0 waits for a backoff of an hour."""

    def _prepare(self):
        case, bed = self.case, self.bed
        case.database = bed.new_database("t_onceward")
        self.broker = bed.rabbitmq.connect()
        self.channel = self.broker.channel()
        case.queues = [f"q{i + 1}" for i in range(case.n_queues)]
        self.channel.exchange_delete("bench")
        self.channel.exchange_declare("bench", "x-consistent-hash" if case.n_queues > 1 else "fanout", durable=True)
        arguments = {"x-queue-type": "quorum", "x-single-active-consumer": True}
        if int(self.broker._impl.server_properties["version"].split(".")[0]) >= 4:
            arguments["x-delivery-limit"] = -1
        for queue in case.queues:
            self.channel.queue_delete(queue)
            self.channel.queue_declare(queue, durable=True, arguments=arguments)
            self.channel.queue_bind(queue, "bench", "1")
        bed.load("-", self.count, SIZE, exchange="bench", keys=case.n_keys)
        wait_until(lambda: self._ready() == self.count, lambda: f"{self.count} messages ready, {self._ready()} are", 60)
        self.n_ids = self.count
        self.sql = psycopg2.connect(bed.postgres.dsn(database=case.database, application_name="bench"))
        self.sql.autocommit = True
        if case.blocked:
            self._block()
            self.n_ids -= self.count // N_KEYS
        bed.checkpoint()

    def _block(self):
        name, body = first_message(self.bed.n_prefixes)
        self.sql.cursor().execute(
            "INSERT INTO onceward.inbox (token, status, received_at, token_expires_at, max_expires_at, next_attempt_at, attempt, fingerprint,"
            " message_id, consumer, claimed_by) VALUES (gen_random_uuid(), 'failed', now(), now(), now(), now() + interval '1 hour', 1, %s, %s, %s, '')",
            (hashlib.sha256(body).digest()[:16], name, ENTRY))

    def _stop_politely(self):
        super()._stop_politely()
        if self.case.blocked:
            self.faults = [f for f in self.faults if "messages left" not in f]  # those of the blocked key


def measured(bed, count, **fields):
    case = Case(**{"concurrency": 16, "prefetch": 256, "is_ordered": True, "is_batched": False, "blocked": False, "n_queues": 1,
                   "n_keys": N_KEYS, **fields})
    if case.completion == "transaction":
        options = {"bulk": 1} if case.is_batched else {}
        case.application = lambda drain: Recorder(bed, "token", bed.postgres.dsn(user="bench_app", database=drain.case.database), **options).start()
    if case.n_keys == 1 and not case.is_batched:
        count //= ALONE_SHARE
    return KeyDrain(bed, Ordered(bed), case, count).run()


CASES = {
    "unordered queue": {"is_ordered": False},
    "ordered, 1,000 keys": {},
    "ordered, one key blocked": {"blocked": True},
    "unordered, 16 partitions": {"is_ordered": False, "n_queues": 16},
    "ordered, 16 partitions": {"n_queues": 16},
    "a single key": {"n_keys": 1, "completion": "transaction"},
    "a single key, batches": {"n_keys": 1, "completion": "transaction", "is_batched": True},
}


def prove(bed, o):
    v = Verdicts("order: per key, concurrency 16, prefetch 256")
    results = {name: [] for name in CASES}
    for number in range(o.rounds or ROUNDS):
        for name in list(CASES)[::1 if number % 2 == 0 else -1]:
            result = measured(bed, min(o.messages, MESSAGES), **CASES[name])
            results[name].append(result)
            bed.say(f"{name}: {result['rate']:,.0f}/s, µs of CPU a message: "
                    + ", ".join(f"{who} {us:.1f}" for who, us in result["cpu_us"].items() if who != "backends")
                    + "".join(f"; {fault}" for fault in result["faults"]))
    for name, all_of in results.items():
        cpu = {who: statistics.median(r["cpu_us"][who] for r in all_of) for who in ("consumer", "database", "broker")}
        v.tell(name, f"{statistics.median(r['rate'] for r in all_of):,.0f}/s; µs of CPU a message: "
               + ", ".join(f"{who} {us:.1f}" for who, us in cpu.items()))
    ratio = lambda a, b: statistics.median(x["rate"] / y["rate"] for x, y in zip(results[a], results[b]))
    v.least("1,000 keys: of the throughput without an order", ratio("ordered, 1,000 keys", "unordered queue"), 0.9)
    v.least("one blocked key: of the throughput without one", ratio("ordered, one key blocked", "ordered, 1,000 keys"), 0.95)
    v.tell("16 partitions: of the throughput of one", f"{ratio('ordered, 16 partitions', 'ordered, 1,000 keys'):.2f}")
    v.tell("a single key in batches of 100: of one message per request", f"{ratio('a single key, batches', 'a single key'):.1f}")
    v.tell("16 partitions without an order: of one", f"{ratio('unordered, 16 partitions', 'unordered queue'):.2f}")
    v.exactly("faults", sum(len(r["faults"]) for all_of in results.values() for r in all_of), 0)
    return v
