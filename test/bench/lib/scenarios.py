"""What is measured. A scenario is a list of groups; the entries of a group are run in turn, round by round, and compared.

An entry is (label, function): the function takes the bed and answers a dictionary of figures."""

import functools

from . import growth, outbox
from .application import committing, slow
from .counts import counted, idle
from .drain import drain
from .latency import steady

EVERYBODY = ("onceward", "onceward-unix", "node", "python", "forwards-only", "acks-only")


class Group:
    """columns: (key, title, digits). drawn: (key, unit, factor) of each plot. rounds: at most so many."""

    def __init__(self, title, entries, columns, reference=None, drawn=(("rate", "messages/s", 1.0),), rounds=None):
        self.title = title
        self.entries = entries
        self.columns = columns
        self.reference = reference or entries[0][0]
        self.drawn = drawn
        self.rounds = rounds


RATE = [("rate", "messages/s", 0), ("ratio", "of reference", 2), ("cpu_us.consumer", "CPU µs", 1), ("rss_peak", "RssAnon MiB", 1),
        ("seconds", "seconds", 1)]
COSTS = [("rate", "messages/s", 0), ("cpu_us.consumer", "CPU consumer", 1), ("cpu_us.backends", "its backends", 1),
         ("cpu_us.database", "database", 1), ("cpu_us.broker", "broker", 1), ("cpu_us.application", "application", 1),
         ("rss_peak", "RssAnon MiB", 1), ("wal", "WAL B", 0), ("wal_images", "images B", 0), ("commits", "commits", 4),
         ("hot", "HOT", 3), ("database_round_trips", "db trips", 4), ("broker_bytes_out", "B to broker", 1),
         ("broker_segments_out", "segments out", 3), ("broker_segments_in", "segments in", 3)]
STORED = [*COSTS[:1], ("ratio", "of that without", 2), *COSTS[1:]]
COUNTED = [("allocations", "allocations", 2), ("frees", "frees", 2), ("writes", "writes", 3), ("reads", "reads", 3),
           ("waits", "waits", 3), ("syncs", "pipeline syncs", 4)]
IDLE = [("rss_idle", "RssAnon MiB", 2), ("rss_file", "file pages MiB", 1)]


LATENCY = [("p50_ms", "p50 ms", 2), ("p99_ms", "p99 ms", 2), ("p999_ms", "p99.9 ms", 2), ("max_ms", "max ms", 1),
           ("cpu_us.consumer", "CPU µs", 1)]
SLOW = [("rate", "messages/s", 0), ("of_possible", "of concurrency / time", 3), ("busy", "of the machine", 2),
        ("cpu_us.consumer", "CPU µs", 1)]
SHARES = [("rate", "messages/s", 0), ("ratio", "of reference", 2), ("share.consumer", "consumer's CPU share", 3),
          ("cpu_us.consumer", "CPU consumer", 1), ("cpu_us.database", "database", 1), ("cpu_us.application", "application", 1),
          ("cpu_us.broker", "broker", 1), ("commits", "commits", 3)]


MIB = 1 / (1 << 20)
DRAWN_COSTS = (("rate", "messages/s", 1.0), ("cpu_us.consumer", "CPU of the consumer, µs a message", 1.0),
               ("rss_peak", "anonymous memory at peak, MiB", MIB))
DRAWN_LATENCY = (("p50_ms", "p50, ms", 1.0), ("p99_ms", "p99, ms", 1.0))


def entries(names, count, **fields):
    return [(name, functools.partial(drain, contender=name, count=count, **fields)) for name in names]


def committed(bed, contender, count, **fields):
    """A drain whose application commits each message; and whose share of the CPU was whose."""
    mode = "textbook" if contender != "onceward" else "complete"
    result = drain(bed, contender, count, completion="transaction", application=committing(mode), **fields)
    total = sum(result["cpu_us"][k] for k in ("consumer", "database", "application", "broker"))
    return dict(result, share={k: v / total for k, v in result["cpu_us"].items()})


def slowed(bed, contender, ms, count):
    result = drain(bed, contender, count, concurrency=64, prefetch=1024, application=slow(ms), n_processes=64)
    return dict(result, of_possible=result["rate"] / (64 * 1000 / ms))


def scenario_drain(o):
    """a backlog of 256 B, 4 KiB and 64 KiB, quorum and classic, application `return 204`"""
    groups = []
    for kind in ("quorum", "classic"):
        for size, part in ((256, 1), (4096, 0.5), (65536, 0.1)):
            if o.quick and (size > 256 or kind == "classic"):
                continue
            groups.append(Group(f"drain, {size} B, {kind}", entries(o.peers(EVERYBODY), int(o.messages * part), size=size,
                                                                    queue_type=kind), RATE))
    return groups


def scenario_costs(o):
    """CPU, memory, WAL, commits, HOT, allocations, bytes and packets of a message"""
    count = o.messages
    groups = [Group("costs of a message, 256 B, quorum, drain (CPU in µs)", entries(o.peers(EVERYBODY), count), COSTS,
                    drawn=DRAWN_COSTS)]
    groups.append(Group("calls of the consumer a message (counted by a preloaded library)", [
        (name, functools.partial(counted, contender=name, count=min(count, 50000)))
        for name in o.peers(("onceward", "forwards-only", "node"))], COUNTED, drawn=(("allocations", "allocations a message", 1.0),),
        rounds=1))
    groups.append(Group("memory of an idle consumer", [
        (f"{name}, {n} queue" + "s" * (n > 1), functools.partial(idle, contender=name, n_queues=n))
        for name, n in (("onceward", 1), ("onceward", 6), ("node", 1), ("python", 1)) if name in o.peers((name,))], IDLE,
        drawn=(("rss_idle", "anonymous memory, idle, MiB", MIB),), rounds=1))
    return groups


def scenario_transaction(o):
    """the same backlog; an application that commits its own row and onceward.complete in one transaction"""
    return [Group(f"transaction, 256 B, {kind}, application commits each message",
                  [(name, functools.partial(committed, contender=name, count=o.messages // 4, queue_type=kind))
                   for name in o.peers(("onceward", "node", "python", "forwards-only"))], SHARES)
            for kind in (("quorum",) if o.quick else ("quorum", "classic"))]


def scenario_latency(o):
    """steady rates: from publish to POST, and from publish to ack"""
    names = o.peers(("onceward", "node", "python", "forwards-only"))
    return [Group(f"latency at {rate}/s, publish to {'POST' if upto == 'post' else 'ack'}", [
        (name, functools.partial(steady, contender=name, rate=rate, seconds=o.seconds, upto=upto)) for name in names
        if not (rate > (100 if name == "python" else 1000) and name in ("node", "python"))], LATENCY, drawn=DRAWN_LATENCY)
        for rate in ((1000,) if o.quick else (100, 1000, 5000)) for upto in ("post", "ack")]


def scenario_slow(o):
    """an application that takes 5 ms, 100 ms, 1 s; concurrency 64"""
    groups = []
    for ms, most in ((5, 100000), (100, 6400), (1000, 640)):
        count = max(640, min(most, o.messages // (1 if ms < 100 else 10)))
        groups.append(Group(f"slow application, {ms} ms, concurrency 64", [
            (name, functools.partial(slowed, contender=name, ms=ms, count=count))
            for name in o.peers(("onceward", "forwards-only"))], SLOW))
    return groups


def scenario_duplicates(o):
    """copies of messages among the backlog: 0 %, 50 %, 99 %"""
    columns = RATE[:3] + [("ids", "different ids", 0)] + RATE[4:]
    groups = [Group("duplicates, onceward", [(f"{d} %", functools.partial(drain, contender="onceward", count=o.messages, duplicates=d))
                                             for d in (0, 50, 99)], columns)]
    if "node" in o.peers(("node",)) and not o.quick:
        groups.append(Group("duplicates, node", [(f"{d} %", functools.partial(drain, contender="node", count=o.messages, duplicates=d))
                                                 for d in (0, 50, 99)], columns))
    return groups


def scenario_store(o):
    """the same backlog without and with `store`: 256 B, 4 KiB of JSON, and 4 KiB that nothing compresses"""
    def one(**fields):
        return functools.partial(drain, contender="onceward", queue_type="quorum", **fields)

    groups = []
    for size, fill, part in ((256, "orders", 1), (4096, "orders", 0.5), (4096, "bytes", 0.5)):
        fields = {"count": int(o.messages * part), "size": size, "fill": fill}
        groups.append(Group(f"store, {size} B of {fill}", [("without", one(**fields)),
                                                           ("store", one(queue_options={"store": {"retention": "30d"}}, **fields))], STORED))
    return groups


def scenario_growth(o):
    """large inboxes, more queues, more sidecars, prefetch and concurrency, a purge, a long snapshot"""
    def one(**fields):
        return functools.partial(drain, contender="onceward", count=o.messages, **fields)

    databases = growth.Databases()
    sizes = (0, o.rows) if o.quick else (0, o.rows // 10, o.rows)
    groups = [
        Group("growth: rows in the inbox", [(f"{n:,} rows", functools.partial(growth.with_rows, databases=databases, rows=n, count=o.messages))
                                            for n in sizes], RATE),
        Group("growth: queues in one sidecar", [(f"{n} queues", one(n_queues=n)) for n in (1, 4, 16)],
              RATE + [("cpu_us.database", "database", 1), ("cpu_us.broker", "broker", 1)]),
        Group("growth: sidecars on one queue", [(f"{n} sidecars", one(n_sidecars=n)) for n in (1, 2, 4)], RATE),
        Group("growth: while something else goes on", [
            ("nothing", one()),
            ("a purge", functools.partial(growth.purging, rows=o.messages, count=o.messages)),
            ("a long snapshot", functools.partial(growth.with_snapshot, count=o.messages))],
            RATE + [("purged", "rows purged", 0), ("hot", "HOT", 3)]),
    ]
    for kind in (("quorum",) if o.quick else ("quorum", "classic")):
        steps = (1, 16, 64, 1024) if o.quick else (1, 4, 16, 64, 256, 1024)
        part = lambda n: max(200, o.messages // (20 if n < 16 else 4))
        groups.append(Group(f"growth: concurrency (and a prefetch of 1,024), {kind}", [
            (f"concurrency {n}", functools.partial(drain, contender="onceward", count=part(n), concurrency=n, queue_type=kind))
            for n in steps], RATE, "concurrency 64"))
        groups.append(Group(f"growth: prefetch (and a concurrency of up to 64), {kind}", [
            (f"prefetch {n}", functools.partial(drain, contender="onceward", count=part(n), prefetch=n, concurrency=min(n, 64),
                                                queue_type=kind)) for n in steps], RATE, "prefetch 1024"))
    return groups


def scenario_outbox(o):
    """publish beside an insert into a table of one's own and a DELETE … SKIP LOCKED; its polls, idle and beside a transaction that is open for long"""
    return [
        Group("outbox: transactions a second with a message each", [
            (label, functools.partial(outbox.transactions, label=label, seconds=o.seconds)) for label in outbox.SAYS],
            [("rate", "transactions/s", 0), ("ratio", "of a plain insert", 2), ("cpu_us.database", "database, CPU µs", 1), ("table_mib", "table MiB after it", 1)]),
        Group("outbox: a relay while nothing comes", [("four polls a second", functools.partial(outbox.idle, seconds=o.seconds))],
              [("cpu_ms", "ms of database CPU a second", 2), ("poll_ms", "poll, median ms", 2)], drawn=(), rounds=1),
        Group("outbox: a poll beside a transaction that stays open, 1,000/s", [
            (label, functools.partial(outbox.beside_old, label=label, seconds=3 * o.seconds)) for label in ("publish, relayed", "DELETE … SKIP LOCKED")],
            [("first_ms", "at first, median ms", 2), ("last_ms", "at last", 2), ("grown", "times", 2)], drawn=(), rounds=1),
    ]


ALL = {name[len("scenario_"):]: function for name, function in list(globals().items()) if name.startswith("scenario_")}
