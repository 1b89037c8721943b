"""many queues in one sidecar: connections, threads, memory, CPU while idle; throughput of 16 beside one"""

import os
import re
import statistics
import subprocess
import time

from rig.wait import wait_until

from .. import probe
from ..drain import drain
from ..stage import Stage
from ..verdicts import Verdicts

MIB = 1 << 20
IDLE_SECONDS = 10.0
MESSAGES, ROUNDS = 64000, 2


def cpu_ns(pid):
    """User and system time of all its threads."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat") as f:
            total += int(f.read().split()[0])
    return total


def n_threads(pid):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"^Threads:\s+(\d+)", f.read(), re.M).group(1))


def n_connections(pid, port):
    out = subprocess.run(["ss", "-tnpH", "state", "established", f"dport = :{port}"], stdout=subprocess.PIPE, text=True).stdout
    return sum(f"pid={pid}," in line for line in out.splitlines())


def idle(bed, v, n):
    with Stage(bed, "idle") as stage:
        queues = [stage.queue(f"q{i}", kind="classic") for i in range(n)]
        app = stage.app()
        sidecar = stage.sidecar(queues, app.url).start()
        wait_until(lambda: len(sidecar.find("consuming")) >= n, "all queues consume", 60, 0.05)
        time.sleep(2.0)  # what the start made to do
        start, used = time.monotonic(), cpu_ns(sidecar.pid)
        time.sleep(IDLE_SECONDS)
        used = (cpu_ns(sidecar.pid) - used) / 1e6 / (time.monotonic() - start)
        v.exactly(f"{n} queues: database backends", len(probe.Database(bed.admin).backends(stage.database)), 1)
        v.exactly(f"{n} queues: broker connections", n_connections(sidecar.pid, bed.rabbitmq.port), 1)
        v.most(f"{n} queues: threads", n_threads(sidecar.pid), 4, "{:d}")
        v.most(f"{n} queues: anonymous memory idle, MiB", probe.rss_anon(sidecar.pid) / MIB, 4 if n <= 64 else 6)
        if n <= 64:
            v.most(f"{n} queues: CPU idle, ms a second", used, 2)
        else:
            v.tell(f"{n} queues: CPU idle, ms a second", f"{used:.2f}")


def prove(bed, o):
    v = Verdicts("queues: many in one sidecar")
    idle(bed, v, 64)
    idle(bed, v, 150)
    throughput(bed, v)
    return v


def throughput(bed, v):
    """Onceward's, and that of a plain consumer without an inbox: what 16 queues instead of one cost the broker is nobody's fault here."""
    results = {(name, n): [] for name in ("onceward", "forwards-only") for n in (1, 16)}
    for number in range(ROUNDS):
        for name, n in list(results) if number % 2 == 0 else list(results)[::-1]:
            result = drain(bed, name, MESSAGES, n_queues=n)
            results[name, n].append(result)
            bed.say(f"{name}, {n} queues: {result['rate']:,.0f}/s, µs of CPU a message: "
                    + ", ".join(f"{who} {us:.1f}" for who, us in result["cpu_us"].items() if who != "backends"))
    for name, n in results:
        all_of = results[name, n]
        cpu = {who: statistics.median(r["cpu_us"][who] for r in all_of) for who in ("consumer", "database", "broker")}
        v.tell(f"{name}, {n} queue{'s' * (n > 1)}", f"{statistics.median(r['rate'] for r in all_of):,.0f}/s; µs of CPU a message: "
               + ", ".join(f"{who} {us:.1f}" for who, us in cpu.items()))
    ratio = {name: statistics.median(a["rate"] / b["rate"] for a, b in zip(results[name, 16], results[name, 1]))
             for name in ("onceward", "forwards-only")}
    v.tell("16 queues: of the throughput of one, the plain consumer", f"{ratio['forwards-only']:.2f}")
    v.least("16 queues: of the throughput of one", ratio["onceward"], 0.95)
