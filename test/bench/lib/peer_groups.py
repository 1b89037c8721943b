"""The `peers` scenario: what each costs, and what comes of faults; and the two tables that are made of it."""

import functools

from . import faults, peers, peers_build
from .contenders import Case
from .drain import Drain
from .recorder import Recorder
from .scenarios import MIB, Group

COSTS = ("onceward", "onceward defaults", "daprd", "daprd bulk", "connect", "connect batches", "connect inbox", "connect dedupe", "node",
         "forwards-only")
COMMITTING = ("onceward", "onceward transaction", "daprd", "connect", "connect inbox", "node", "forwards-only")
STEADY = ("onceward", "onceward transaction", "daprd", "connect", "connect inbox", "node", "forwards-only")
IDLE = ("onceward", "daprd", "connect", "connect inbox", "node", "forwards-only")
FAULTS = ("onceward", "onceward transaction", "daprd", "daprd resiliency", "connect", "connect inbox", "connect dedupe", "node")
INBOX = {"onceward", "onceward transaction", "onceward defaults", "connect inbox", "node"}

SHORT = ("onceward", "onceward transaction", "daprd", "daprd bulk", "connect", "connect batches", "connect inbox", "node")
NAMES = {"onceward": "Onceward, `response`", "onceward transaction": "Onceward, `transaction`: the application commits, too", "daprd": "daprd",
         "daprd bulk": "daprd, 100 messages in a request", "connect": "Redpanda Connect", "connect batches": "Redpanda Connect, 100 in a request",
         "connect inbox": "Redpanda Connect, an inbox in SQL", "node": "Node, the textbook inbox"}
BEST = {"daprd": "daprd resiliency"}  # for faults it has a better configuration than for costs

DRAIN, COMMITS = "peers: drain, 256 B, quorum", "peers: drain, the application commits a row for each"
LATENCY, WAITS = f"peers: {faults.RATE}/s, publish to POST", "peers: idle, and from the start to the first POST"
KILLS, COPIES, REFUSED = "peers: five kill -9, and the application's", "peers: each tenth published twice", "peers: 2 % of 503"
AWAY, LIMITED = f"peers: away for {faults.AWAY_SECONDS} s", f"peers: away for {faults.AWAY_SECONDS} s, delivery limit 20"

RATES = [("rate", "messages/s", 0), ("ratio", "of reference", 2), ("cpu_us.consumer", "CPU µs", 1), ("rss_peak", "RssAnon MiB", 1)]
ENDS = [("lost", "lost", 0), ("dead", "dead letters", 0), ("twice", "effects twice", 0), ("posted_twice", "POSTed twice", 0), ("to_95_s", "95 % s", 1), ("to_99_s", "99 % s", 1),
        ("to_100_s", "100 % s", 1)]
AWAYS = ENDS[:4] + [("back_s", "first POST s", 2), ("end_s", "end s", 1), ("away_cpu_s", "CPU s", 2), ("away_broker_s", "broker CPU s", 2)]


def drained(bed, label, count, commits=False):
    """A backlog; nginx answers it, or an application that commits a row, or one that takes batches."""
    who = peers.MADE[label](bed)
    case = Case(completion=getattr(who, "completion", "response"))
    dsn = lambda drain: bed.postgres.dsn(user="bench_app", database=drain.case.database)
    if commits:
        case.application = lambda drain: Recorder(bed, who.app_mode, dsn(drain)).start()
    elif getattr(who, "bulk", False):
        case.application = lambda drain: Recorder(bed, "record", bulk=1).start()
    if commits and label == "node":
        who.share = 0.5
    return Drain(bed, who, case, count).run()


def groups(o, bed):
    def entries(labels, function, **fields):
        return [(label, functools.partial(function, label=label, **fields)) for label in labels
                if peers.is_there(bed, label) and peers.program(label) not in o.without]

    drain = functools.partial(drained, count=o.messages // 4)
    commits = functools.partial(drained, count=o.messages // 16, commits=True)
    wait = functools.partial(faults.latency, seconds=o.seconds)
    return [
        Group(DRAIN, entries(COSTS, drain), RATES),
        Group(COMMITS, entries(COMMITTING, commits), RATES),
        Group(LATENCY, entries(STEADY, wait), [("p50_ms", "p50 ms", 2), ("p99_ms", "p99 ms", 2), ("cpu_us.consumer", "CPU µs", 1)], drawn=()),
        Group(WAITS, entries(IDLE, faults.idle), [("rss_idle", "RssAnon MiB", 1), ("rss_file", "file pages MiB", 1), ("idle_cpu_ms_s", "CPU ms/s", 1),
                                                  ("start_ms", "start ms", 0)], drawn=(), rounds=1),
        Group(KILLS, entries(FAULTS, faults.kills), ENDS, drawn=(), rounds=1),
        Group(COPIES, entries(FAULTS, faults.copies), ENDS[:4], drawn=(), rounds=1),
        Group(REFUSED, entries(FAULTS, faults.refused), ENDS[:4] + [("of_undisturbed", "of undisturbed", 2), ("undisturbed", "messages/s without", 0)],
              drawn=(), rounds=1),
        Group(AWAY, entries(FAULTS, faults.away), AWAYS, drawn=(), rounds=1),
        Group(LIMITED, entries(FAULTS, functools.partial(faults.away, delivery_limit=20)), AWAYS, drawn=(), rounds=1),
    ]


# the tables

# How the columns of the two long tables are read.
COSTS_READ = """Costs: `×` is the rate relative to Onceward's, CPU is in µs a message, memory in MiB (`peak` and `anonymous`: anonymous
memory). `commits`: the application commits a row for each message. `500/s`: at that rate."""
ENDS_READ = """`killed`: five times kill -9, and the seconds until 99 % and all messages were done. `copies`: one of 10 messages
published twice. `503`: 2 % of the answers, and the rate relative to the undisturbed one. `away`: the application is
away for a while, with the seconds until its first message and of CPU meanwhile, then also with a delivery limit of 20.
`twice`: effects that happened twice."""


def says(label):
    return peers.SAYS[label].format(**{name: peers_build.version(name) for name in ("connect", "daprd")})


class Found:
    def __init__(self, document):
        self.medians = {(g["title"], e["label"]): e["median"] for g in document["groups"] for e in g["entries"]}
        self.rounds = {(g["title"], e["label"]): [r for r in e["rounds"] if "rate" in r or "lost" in r or "p50_ms" in r]
                       for g in document["groups"] for e in g["entries"]}

    def cell(self, title, label, key, form="{:,.0f}", factor=1.0):
        value = self.medians.get((title, label), {}).get(key)
        return "" if value is None else form.format(value * factor)

    def all(self, title, label, key, form="{:,.0f}"):
        """Each round's: of what is rare, no one stands for the others."""
        values = [r[key] for r in self.rounds.get((title, label), []) if r.get(key) is not None]
        return ", ".join(form.format(v) for v in values)

    def times(self, title, label, key, form="{:.2f}"):
        """Of Onceward's."""
        value, base = (self.medians.get((title, who), {}).get(key) for who in (label, "onceward"))
        return form.format(value / base) if value is not None and base else ""


def row(cells):
    return "| " + " | ".join(cells) + " |"


def table(head, rows):
    """Without the columns that nothing stands in."""
    kept = [i for i in range(len(head)) if i == 0 or any(cells[i] for cells in rows)]
    yield row([head[i] for i in kept])
    yield "|---" * len(kept) + "|"
    for cells in rows:
        yield row([cells[i] for i in kept])


def costs(found):
    head, rows = ["", "inbox", "messages/s", "×", "CPU", "peak", "commits: ×", "CPU", "publish to POST, ms", "500/s: CPU", "idle", "anonymous", "start, ms"], []
    labels = list(COSTS[:1]) + ["onceward transaction", *COSTS[1:]]
    for label in labels:
        if not any(who == label for _, who in found.medians):
            continue
        c = found.cell
        anon, files = (found.medians.get((WAITS, label), {}).get(k) for k in ("rss_idle", "rss_file"))
        rows.append([label, "yes" if label in INBOX else "its cache" if label == "connect dedupe" else "no", c(DRAIN, label, "rate"),
                   c(DRAIN, label, "ratio", "{:.2f}"), c(DRAIN, label, "cpu_us.consumer"), c(DRAIN, label, "rss_peak", "{:.0f}", MIB),
                   c(COMMITS, label, "ratio", "{:.2f}"), c(COMMITS, label, "cpu_us.consumer"), c(LATENCY, label, "p50_ms", "{:.1f}"), c(LATENCY, label, "cpu_us.consumer"),
                   f"{(anon + files) * MIB:.0f}" if anon else "", c(WAITS, label, "rss_idle", "{:.0f}", MIB), c(WAITS, label, "start_ms")])
    yield from table(head, rows)


def ends(found):
    head, rows = ["", "killed: lost", "twice", "99 %", "all", "copies: twice", "503: ×", "lost", "away: lost", "back", "CPU", "limit 20: lost"], []
    for label in FAULTS:
        if not any(who == label for _, who in found.medians):
            continue
        a = found.all
        rows.append([label, a(KILLS, label, "lost"), a(KILLS, label, "twice"), a(KILLS, label, "to_99_s"), a(KILLS, label, "to_100_s"),
                   a(COPIES, label, "twice"), found.cell(REFUSED, label, "of_undisturbed", "{:.2f}"), a(REFUSED, label, "lost"),
                   a(AWAY, label, "lost"), found.cell(AWAY, label, "back_s", "{:.1f}"), found.cell(AWAY, label, "away_cpu_s", "{:.1f}"),
                   a(LIMITED, label, "lost")])
    yield from table(head, rows)


def tables(document):
    """(what it costs, what comes of faults), as Markdown."""
    found = Found(document)
    return "\n".join(costs(found)) + "\n", "\n".join(ends(found)) + "\n"


def ranged(values):
    """0, or from to."""
    whole = [int(v.replace(",", "")) for v in values.split(", ") if v]
    return "" if not whole else f"{whole[0]:,}" if min(whole) == max(whole) else f"{min(whole):,} to {max(whole):,}"


def short(document):
    """The short table of test/README.md."""
    found = Found(document)
    head, rows = ["", "inbox", "×", "CPU, µs", "idle, MiB", "publish to POST, ms", "killed: lost", "twice", "copies: twice", "away: lost"], []
    for label in SHORT:
        if not any(who == label for _, who in found.medians):
            continue
        group, c, a, among = (COMMITS if label == "onceward transaction" else DRAIN), found.cell, found.all, BEST.get(label, label)
        anon, files = (found.medians.get((WAITS, label), {}).get(k) for k in ("rss_idle", "rss_file"))
        rows.append([NAMES[label], "yes" if label in INBOX else "no", c(group, label, "ratio", "{:.2f}"), c(group, label, "cpu_us.consumer"),
                   f"{(anon + files) * MIB:.0f}" if anon else "", c(LATENCY, label, "p50_ms", "{:.1f}"), ranged(a(KILLS, among, "lost")), ranged(a(KILLS, among, "twice")),
                   ranged(a(COPIES, among, "twice")), ranged(a(LIMITED, among, "lost"))])
    yield from table(head, rows)


def configured(document):
    """A line on each."""
    there = {e["label"] for g in document["groups"] for e in g["entries"]}
    return "\n".join(f"- **{label}**: {says(label)}." for label in peers.SAYS if label in there) + "\n"
