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
MESSAGES, ROUNDS = 24000, 2


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
    rates = {1: [], 16: []}
    for number in range(ROUNDS):
        for n in (1, 16) if number % 2 == 0 else (16, 1):
            result = drain(bed, "onceward", MESSAGES, n_queues=n)
            rates[n].append(result["rate"])
            bed.say(f"{n} queues: {result['rate']:,.0f}/s, {result['cpu_us']['consumer']:.1f} µs of CPU a message")
            v.tell(f"{n} queue{'s' * (n > 1)}, drain of {MESSAGES:,}", f"{result['rate']:,.0f}/s")
    v.least("16 queues: of the throughput of one", statistics.median(a / b for a, b in zip(rates[16], rates[1])), 0.95)
    return v
