"""Conditions that must hold on any machine, however slow or busy: ratios with a wide margin, and counts."""

import statistics

from .counts import counted
from .drain import drain

# name, what it must be at most (or at least), as in: the drain of 256 B, quorum, `response`
LIMITS = [
    ("commits a message", "most", 0.05),
    ("WAL bytes a message, without images", "most", 580),
    ("HOT share", "least", 0.95),
    ("round trips to the database a message", "most", 0.08),
    ("allocations a message", "most", 25),
    ("RssAnon at peak, MiB", "most", 8),
    ("throughput, times the Node consumer's", "least", 3),
    ("CPU, of the Node consumer's", "most", 0.3),
    ("duplicates 99 %, times the throughput of none", "least", 0.4),
    ("throughput, of the forwarder without an inbox", "least", 0.15),
]


def check(bed, messages, with_node=True, rounds=2):
    """Answers [(name, value, limit text, held)]."""
    values = {name: [] for name, _, _ in LIMITS}
    faults = []

    def add(name, value):
        if value is not None:
            values[name].append(value)

    for _ in range(rounds):
        ours = drain(bed, "onceward", messages)
        add("commits a message", ours["commits"])
        add("WAL bytes a message, without images", ours["wal"])
        add("HOT share", ours["hot"])
        add("round trips to the database a message", ours["database_round_trips"])
        add("RssAnon at peak, MiB", ours["rss_peak"] / (1 << 20))
        copies = drain(bed, "onceward", messages, duplicates=99)
        add("duplicates 99 %, times the throughput of none", copies["rate"] / ours["rate"])
        forwarder = drain(bed, "forwards-only", messages)
        add("throughput, of the forwarder without an inbox", ours["rate"] / forwarder["rate"])
        faults += ours["faults"] + copies["faults"] + forwarder["faults"]
        if with_node:
            node = drain(bed, "node", messages)
            add("throughput, times the Node consumer's", ours["rate"] / node["rate"])
            add("CPU, of the Node consumer's", ours["cpu_us"]["consumer"] / node["cpu_us"]["consumer"])
            faults += node["faults"]
    calls = counted(bed, "onceward", messages)
    add("allocations a message", calls["allocations"])
    rows = []
    for name, kind, limit in LIMITS:
        if values[name]:
            value = statistics.median(values[name])
            rows.append((name, value, f"at {kind} {limit:g}", value <= limit if kind == "most" else value >= limit))
    return rows, faults


def report(rows, faults):
    """Ends with `N passed, N failed`: see test/suite.py. Answers the exit status."""
    width = max((len(name) for name, *_ in rows), default=0)
    for name, value, limit, held in rows:
        print(f"  {name.ljust(width)}  {value:10.4g}  {limit:14}  {'holds' if held else 'DOES NOT HOLD'}")
    for fault in faults:
        print(f"  ! {fault}")
    failed = len(faults) + sum(not held for *_, held in rows)
    print(f"{len(rows) + len(faults) - failed} passed, {failed} failed", flush=True)
    return 1 if failed or not rows else 0
