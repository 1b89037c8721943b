"""What is measured. A scenario is a list of groups; the entries of a group are run in turn, round by round, and compared.

An entry is (label, function): the function takes the bed and answers a dictionary of figures."""

import functools

from .counts import counted, idle
from .drain import drain

EVERYBODY = ("onceward", "onceward-unix", "node", "python", "forwards-only", "acks-only")


class Group:
    def __init__(self, title, entries, columns, reference=None):
        self.title = title
        self.entries = entries
        self.columns = columns
        self.reference = reference or entries[0][0]


RATE = [("rate", "messages/s", 0), ("ratio", "of reference", 2), ("cpu_us.consumer", "CPU µs", 1), ("rss_peak", "RssAnon MiB", 1),
        ("seconds", "seconds", 1)]
COSTS = [("rate", "messages/s", 0), ("cpu_us.consumer", "CPU consumer", 1), ("cpu_us.backends", "its backends", 1),
         ("cpu_us.database", "database", 1), ("cpu_us.broker", "broker", 1), ("cpu_us.application", "application", 1),
         ("rss_peak", "RssAnon MiB", 1), ("wal", "WAL B", 0), ("wal_images", "images B", 0), ("commits", "commits", 4),
         ("hot", "HOT", 3), ("database_round_trips", "db trips", 4), ("broker_bytes_out", "B to broker", 1),
         ("broker_segments_out", "segments out", 3), ("broker_segments_in", "segments in", 3)]
COUNTED = [("allocations", "allocations", 2), ("frees", "frees", 2), ("writes", "writes", 3), ("reads", "reads", 3),
           ("waits", "waits", 3), ("syncs", "pipeline syncs", 4)]
IDLE = [("rss_idle", "RssAnon MiB", 2), ("rss_file", "file pages MiB", 1)]


def entries(names, count, **fields):
    return [(name, functools.partial(drain, contender=name, count=count, **fields)) for name in names]


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
    groups = [Group("costs of a message, 256 B, quorum, drain (CPU in µs)", entries(o.peers(EVERYBODY), count), COSTS)]
    groups.append(Group("calls of the consumer a message (counted by a preloaded library)", [
        (name, functools.partial(counted, contender=name, count=min(count, 50000)))
        for name in o.peers(("onceward", "forwards-only", "node"))], COUNTED))
    groups.append(Group("memory of an idle consumer", [
        (f"{name}, {n} queue" + "s" * (n > 1), functools.partial(idle, contender=name, n_queues=n))
        for name, n in (("onceward", 1), ("onceward", 5), ("node", 1), ("python", 1)) if name in o.peers((name,))], IDLE))
    return groups


ALL = {name[len("scenario_"):]: function for name, function in list(globals().items()) if name.startswith("scenario_")}
