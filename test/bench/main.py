"""The bench: private servers, Onceward beside what one would write by hand and beside the bounds, round by round."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time

import pika
import psycopg2

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "system")]

from rig import process  # noqa: E402

from lib import check, peer_groups, peers, plot, proofs, publish, report, scenarios, targets  # noqa: E402
from lib.bed import Bed  # noqa: E402
from lib.drain import Stalled  # noqa: E402

QUICK_MESSAGES = 16000
PEERS = "peers"  # not among the others: it takes the better part of an hour, and builds them


def parse(arguments):
    p = argparse.ArgumentParser(prog="test/bench/run", description="Measures Onceward beside the alternatives.")
    p.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="which (default: all that compare but peers); see --list")
    p.add_argument("--list", action="store_true", help="list the scenarios")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--messages", type=int, default=0, help="of the largest run (default: 200,000; with --quick 16,000)")
    p.add_argument("--rows", type=int, default=0, help="of the largest inbox (default: 10,000,000; with --quick 200,000)")
    p.add_argument("--seconds", type=int, default=0, help="of each steady rate (default: 12; with --quick 4)")
    p.add_argument("--quick", action="store_true", help="one round, few messages, the most important groups")
    p.add_argument("--targets", action="store_true", help="the shortest set of groups that shows what is aimed at, with a verdict each")
    p.add_argument("--publish", nargs="?", const="", metavar="FILE", help="measure nothing: write the figures of an earlier run with "
                   "--targets into test/README.md and README.md, and the plots (default: bench.json of --out)")
    p.add_argument("--check", action="store_true", help="only what does not depend on the machine: exit status 1 when it does not hold")
    p.add_argument("--without", action="append", default=[], metavar="CONTENDER", help="leave one out (node, python, …)")
    p.add_argument("--only", default="", metavar="TEXT", help="only groups whose title contains it")
    p.add_argument("--entries", default="", metavar="A,B", help="only these entries of the groups")
    p.add_argument("--add", action="store_true", help="add to what an earlier run has left in --out: rounds, groups, entries")
    p.add_argument("--binary", help="an onceward to measure (default: a release build of this tree)")
    p.add_argument("--out", default="", metavar="FOLDER", help="where the JSON and the plots go (default: .bench in the tree)")
    p.add_argument("--memory", type=int, default=0, metavar="GIB", help="of the database server, by a cgroup (retention)")
    p.add_argument("--minutes", type=float, default=1.0, help="of each outage (outages)")
    p.add_argument("--older", metavar="FILE", help="a build of the older program (versions; default: built from the history)")
    p.add_argument("--keep", action="store_true", help="keep the servers' files")
    o = p.parse_args(arguments)
    if o.quick:
        o.rounds = 1
    o.messages = o.messages or (QUICK_MESSAGES if o.quick else 200000)
    o.ids = o.rows  # retention has another default
    o.rows = o.rows or (200000 if o.quick else 10000000)
    o.seconds = o.seconds or (4 if o.quick else 12)
    o.proofs = [s for s in o.scenarios if s in proofs.NAMES]
    o.scenarios = [s for s in o.scenarios if s not in proofs.NAMES] if o.scenarios else list(scenarios.ALL)
    unknown = [s for s in o.scenarios if s not in scenarios.ALL and s != PEERS]
    if unknown:
        p.error(f"no such scenario: {', '.join(unknown)}; see --list")
    if o.proofs and o.scenarios:
        p.error(f"{', '.join(o.proofs)} and {', '.join(o.scenarios)} are not run together")
    o.peers = lambda names: [n for n in names if n not in o.without]
    o.out = o.out or os.path.join(ROOT, ".bench")
    return o


def say(text):
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def groups_of(o, bed):
    """(scenario, group) of what was asked for."""
    if PEERS in o.scenarios:
        peers.build(bed, o.without)
    found = [("targets", g) for g in targets.groups(o)] if o.targets else [
        (name, g) for name in o.scenarios for g in (peer_groups.groups(o, bed) if name == PEERS else scenarios.ALL[name](o))]
    if o.entries:
        for _, group in found:
            group.entries = [e for e in group.entries if e[0] in o.entries.split(",")]
    return [(name, g) for name, g in found if o.only in g.title and g.entries]


def run_group(bed, series, rounds):
    """Everybody once, then everybody again in the opposite order."""
    rounds = min(rounds, series.group.rounds or rounds)
    for number in range(rounds):
        order = series.group.entries if number % 2 == 0 else series.group.entries[::-1]
        for label, function in order:
            start = time.monotonic()
            try:
                result = function(bed)
            except (AssertionError, Stalled, OSError, psycopg2.Error, pika.exceptions.AMQPError) as e:
                result = {"faults": [f"round {number + 1}: {e}"]}
            series.add(label, result)
            rate = f"{result['rate']:,.0f}/s, " if result.get("rate") else ""
            say(f"{series.group.title}, round {number + 1}/{rounds}, {label}: {rate}{time.monotonic() - start:.0f} s")


def end(bed, keep):
    """Ends the servers; a second Ctrl-C does not leave half of them behind."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    bed.stop(keep)


def run_check(o):
    bed = Bed(say, o.binary and os.path.abspath(o.binary), [p for p in ("node",) if p not in o.without])
    try:
        bed.start(optional=("node",))
        for name, why in bed.missing.items():
            print(f"  without {name}, whose ratios are not checked: {why}", flush=True)
        return check.report(*check.check(bed, min(o.messages, QUICK_MESSAGES), "node" in bed.peers))
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    finally:
        end(bed, o.keep)


def run_proofs(o):
    """Each asks for something: exit status 1 when it falls short."""
    bed, done = Bed(say, o.binary and os.path.abspath(o.binary), ()), []
    try:
        bed.start()
        for name in o.proofs:
            start = time.monotonic()
            done.append((name, proofs.load(name).prove(bed, o)))
            say(f"{name}: {time.monotonic() - start:.0f} s")
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    finally:
        end(bed, o.keep)
    n_short = sum(verdicts.n_short() for _, verdicts in done)
    print(f"{sum(len(verdicts.rows) for _, verdicts in done)} measured, {n_short} fall short", flush=True)
    return 1 if n_short else 0


def main():
    o = parse(sys.argv[1:])
    if o.list:
        for name, function in scenarios.ALL.items():
            print(f"{name:12} {function.__doc__}")
        print(f"{PEERS:12} daprd, Redpanda Connect and a Node consumer beside it: what each costs, and what comes of faults")
        print("\nWith a verdict each, on its own: what is asked for, what was measured")
        for name in proofs.NAMES:
            print(f"{name:12} {proofs.load(name).__doc__.splitlines()[0]}")
        return 0
    if o.publish is not None:
        with open(o.publish or os.path.join(o.out, "bench.json"), encoding="utf-8") as f:
            for made in publish.publish(json.load(f), ROOT):
                say(f"wrote {made}")
        return 0
    process.interrupt_on_signals()
    if o.check:
        return run_check(o)
    if o.proofs:
        return run_proofs(o)
    bed = Bed(say, o.binary and os.path.abspath(o.binary), [p for p in ("node", "python") if p not in o.without])
    path = os.path.join(o.out, "bench.json")
    done, earlier = [], report.read(path) if o.add else None
    try:
        bed.start(optional=("node",) if PEERS in o.scenarios else ())
        for name, group in groups_of(o, bed):
            series = report.Series(name, group, earlier)
            done.append(series)
            run_group(bed, series, o.rounds)
            print("\n" + series.table() + "\n", flush=True)
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    finally:
        end(bed, o.keep)
        if done:
            os.makedirs(o.out, exist_ok=True)
            revision = subprocess.run(["git", "-C", HERE, "describe", "--always", "--dirty"], stdout=subprocess.PIPE,
                                      stderr=subprocess.DEVNULL, text=True).stdout.strip()
            document = report.write(path, done, {"rounds": o.rounds, "messages": o.messages, "rows": o.rows, "quick": o.quick,
                                                 "revision": revision}, earlier)
            for made in [path, *plot.write_all(o.out, document)]:
                say(f"wrote {made}")
            if o.targets:
                print(targets.table(document))
            if PEERS in o.scenarios:
                print("\n".join(peer_groups.tables(document)))
    return 1 if any(s.faults for s in done) else 0


if __name__ == "__main__":
    sys.exit(main())
