"""Onceward's promises about its speed: the shortest set of groups that shows them, and the result for each promise."""

import functools
import statistics

from . import growth
from .counts import counted, idle
from .latency import steady
from .plot import dig
from .scenarios import COSTS, COUNTED, DRAWN_COSTS, DRAWN_LATENCY, IDLE, LATENCY, MIB, RATE, SHARES, SLOW, Group, committed, entries, \
    slowed

DRAIN, CALLS, IDLES = "drain, 256 B, quorum", "calls of the consumer a message", "memory of an idle consumer"
TRANSACTION, STEADY, SLOWLY = "transaction, the application commits each message", "latency at 1,000/s, publish to POST", \
    "slow application, 5 ms, concurrency 64"
ROWS, QUEUES, COPIES = "growth: rows in the inbox", "growth: queues in one sidecar", "duplicates"


def groups(o):
    n = o.messages
    databases = growth.Databases()
    everybody = o.peers(("onceward", "onceward-unix", "node", "python", "forwards-only", "acks-only"))
    some = o.peers(("onceward", "node", "forwards-only"))
    return [
        Group(DRAIN, entries(everybody, n), [RATE[0], RATE[1], *COSTS[1:]], drawn=DRAWN_COSTS),
        Group(CALLS, [(name, functools.partial(counted, contender=name, count=min(n, 50000))) for name in some], COUNTED, rounds=1,
              drawn=()),
        Group(IDLES, [(f"{name}, {k} queue" + "s" * (k > 1), functools.partial(idle, contender=name, n_queues=k))
                      for name, k in (("onceward", 1), ("onceward", 6), ("node", 1), ("python", 1)) if name in everybody], IDLE, rounds=1,
              drawn=(("rss_idle", "anonymous memory, idle, MiB", MIB),)),
        Group(TRANSACTION, [(name, functools.partial(committed, contender=name, count=n // 6)) for name in o.peers(("onceward", "node"))],
              SHARES, rounds=2),
        Group(STEADY, [(name, functools.partial(steady, contender=name, rate=1000, seconds=o.seconds)) for name in some],
              LATENCY, drawn=DRAWN_LATENCY),
        Group(SLOWLY, [(name, functools.partial(slowed, contender=name, ms=5, count=n // 2)) for name in ("onceward", "forwards-only")],
              SLOW),
        Group(COPIES, [(f"{d} %", functools.partial(growth.drain, contender="onceward", count=n, duplicates=d)) for d in (0, 50, 99)],
              RATE),
        Group(QUEUES, [(f"{k} queue" + "s" * (k > 1), functools.partial(growth.drain, contender="onceward", count=n, n_queues=k))
                       for k in (1, 16)], RATE),
        Group(ROWS, [(f"{k:,} rows", functools.partial(growth.with_rows, databases=databases, rows=k, count=n)) for k in (0, o.rows)], RATE),
    ]


class Figures:
    """Medians out of the document of a run; None for what was not measured."""

    def __init__(self, document):
        self.groups = {g["title"]: g for g in document["groups"]}

    def rounds(self, title, label):
        """label: a name, or a place."""
        found = self.groups.get(title, {"entries": []})["entries"]
        if isinstance(label, int):
            return found[label]["rounds"] if label < len(found) else []
        return next((e["rounds"] for e in found if e["label"] == label), [])

    def value(self, title, label, key, factor=1.0):
        values = [v for v in (dig(r, key) for r in self.rounds(title, label)) if v is not None]
        return statistics.median(values) * factor if values else None

    def ratio(self, title, label, other, key="rate"):
        """The median over the rounds, each with the neighbour of its round."""
        pairs = [(dig(a, key), dig(b, key)) for a, b in zip(self.rounds(title, label), self.rounds(title, other))]
        ratios = [a / b for a, b in pairs if a is not None and b]
        return statistics.median(ratios) if ratios else None

    def difference(self, title, label, other, key):
        values = [self.value(title, x, key) for x in (label, other)]
        return values[0] - values[1] if None not in values else None


# (what, the figure, "least" or "most", the target, its format)
PROMISES = [
    ("drain: times the Node consumer", lambda f: f.ratio(DRAIN, "onceward", "node"), "least", 7, "{:.1f}"),
    ("drain: messages/s (where the Node consumer does 4,500)", lambda f: f.value(DRAIN, "onceward", "rate"), "least", 30000, "{:,.0f}"),
    ("drain: messages/s of the Node consumer", lambda f: f.value(DRAIN, "node", "rate"), None, None, "{:,.0f}"),
    ("transaction: the sidecar's share of all CPU", lambda f: f.value(TRANSACTION, "onceward", "share.consumer"), "most", 0.10, "{:.3f}"),
    ("drain: CPU of the sidecar over TCP, µs a message", lambda f: f.value(DRAIN, "onceward", "cpu_us.consumer"), "most", 16, "{:.1f}"),
    ("drain: the same over Unix sockets", lambda f: f.value(DRAIN, "onceward-unix", "cpu_us.consumer"), "most", 13, "{:.1f}"),
    ("drain: CPU, of the Node consumer's", lambda f: f.ratio(DRAIN, "onceward", "node", "cpu_us.consumer"), "most", 1 / 7, "{:.3f}"),
    ("drain: throughput, of the C forwarder without an inbox", lambda f: f.ratio(DRAIN, "onceward", "forwards-only"), "least", 0.8,
     "{:.2f}"),
    ("memory: idle with one queue, MiB", lambda f: f.value(IDLES, "onceward, 1 queue", "rss_idle", MIB), "most", 2.5, "{:.2f}"),
    ("memory: each further idle queue, MiB", lambda f: f.difference(IDLES, "onceward, 6 queues", "onceward, 1 queue", "rss_idle") * MIB / 5
     if f.rounds(IDLES, "onceward, 6 queues") else None, "most", 0.5, "{:.2f}"),
    ("memory: at peak in the drain, prefetch 1,024, MiB", lambda f: f.value(DRAIN, "onceward", "rss_peak", MIB), "most", 8, "{:.1f}"),
    ("database: commits a message", lambda f: f.value(DRAIN, "onceward", "commits"), "most", 0.02, "{:.4f}"),
    ("database: WAL bytes a message, without page images", lambda f: f.value(DRAIN, "onceward", "wal"), "most", 550, "{:.0f}"),
    ("database: HOT share of the updates", lambda f: f.value(DRAIN, "onceward", "hot"), "least", 0.95, "{:.3f}"),
    ("latency at 1,000/s: p50, ms", lambda f: f.value(STEADY, "onceward", "p50_ms"), "most", 1.0, "{:.2f}"),
    ("latency at 1,000/s: p99, ms", lambda f: f.value(STEADY, "onceward", "p99_ms"), "most", 4.0, "{:.2f}"),
    ("latency at 1,000/s: added to the C forwarder's p50, ms", lambda f: f.difference(STEADY, "onceward", "forwards-only", "p50_ms"), "most",
     0.7, "{:.2f}"),
    ("slow application, 5 ms × 64: of 12,800/s", lambda f: f.value(SLOWLY, "onceward", "of_possible"), "least", 0.95, "{:.3f}"),
    ("slow application: how full the machine was", lambda f: f.value(SLOWLY, "onceward", "busy"), None, None, "{:.2f}"),
    ("growth: {rows:,} rows, of the throughput at none", lambda f: f.ratio(ROWS, 1, 0), "least", 0.95, "{:.2f}"),
    ("growth: 16 queues, of the throughput of one", lambda f: f.ratio(QUEUES, 1, 0), "least", 0.95, "{:.2f}"),
    ("duplicates: 99 %, times the throughput of none", lambda f: f.ratio(COPIES, "99 %", "0 %"), "least", 2.5, "{:.2f}"),
    ("calls: allocations a message", lambda f: f.value(CALLS, "onceward", "allocations"), None, None, "{:.1f}"),
    ("calls: round trips to the database a message", lambda f: f.value(DRAIN, "onceward", "database_round_trips"), None, None, "{:.4f}"),
]


def verdicts(document):
    """[(what, figure, target, "yes" / "no" / "")], as text; only what was measured."""
    figures, rows = Figures(document), []
    for what, function, kind, target, form in PROMISES:
        value = function(figures)
        if value is None:
            continue
        held = kind and ("yes" if (value <= target if kind == "most" else value >= target) else "no")
        rows.append((what.format(**document["options"]), form.format(value), f"at {kind} {form.format(target)}" if kind else "", held or ""))
    return rows


def table(document):
    rows = verdicts(document)
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
    return "\n".join(f"  {what.ljust(widths[0])}  {value.rjust(widths[1])}  {target.ljust(widths[2])}  {held}"
                     for what, value, target, held in rows)
