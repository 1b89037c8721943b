"""throughput beside bad answers, as ratios to none in the same run; an application that takes 5 of 64 at once

An application that takes 5 ms, 16 requests at once: the machine is not what bounds it, so the ratios are the limiter's. A second group has
the defaults of the configuration (prefetch 128, concurrency 16), a quorum queue and an application that takes 2 ms. What is decided is
measured in virtual time, too: test/sim --measured flow, flow-defaults, capacity."""

import os
import statistics
import time

from rig.wait import wait_until

from .. import plot
from ..stage import Stage
from ..verdicts import Verdicts

SECONDS, WARM_SECONDS = 3.0, 0.7
LEVELS = (0.1, 1, 2, 5, 10, 20)  # percent
KINDS = ((503, "503"), (429, "429"), (500, "500"), (0, "reset"), (502, "502"))
TARGETS = {("503", 2): 0.9, ("503", 5): 0.75, ("503", 10): 0.5, ("reset", 1): 0.5, ("502", 1): 0.5, ("429", 2): 0.85}
DEFAULTS = {("503", 2): 0.9, ("503", 5): 0.75, ("429", 2): 0.85, ("500", 2): 0.85, ("reset", 1): 0.6, ("502", 1): 0.6}
DEFAULTS_ROUNDS, DEFAULTS_BACKLOG = 5, 30000
CAPACITY, CAPACITY_MS, CAPACITY_SECONDS, CAPACITY_ROUNDS = 5, 20, 6.0, 2
BACKLOG = 16000


class Run:
    def __init__(self, stage, kind="classic", backlog=BACKLOG, **keys):
        """keys: of the queue's configuration."""
        self.stage = stage
        self.kind = kind
        self.backlog = backlog
        self.keys = keys
        self.n = 0

    def rate(self, seconds=SECONDS, concurrency=16, **app):
        """Good answers a second, of a sidecar, an application and a queue that are made for it: the claims of the sidecar, which is killed
        at the end, would delay the next one."""
        self.n += 1
        stage = self.stage
        queue = stage.queue(f"{self.kind}-{self.n}", kind=self.kind)
        stage.load(queue, self.backlog)
        stage.wait_for_ready(queue, self.backlog)
        app = stage.app(**app)
        sidecar = stage.sidecar({queue: {}}, app.url, name=queue, forward={"concurrency": concurrency}, **self.keys).start()
        wait_until(app.n_done, "the first good answer", 30)
        time.sleep(WARM_SECONDS)
        start, n = time.monotonic(), app.n_done()
        time.sleep(seconds)
        rate = (app.n_done() - n) / (time.monotonic() - start)
        share = app.n_bad() / max(1, app.n_bad() + app.n_done())
        sidecar.kill()
        app.stop()
        stage.channel.queue_delete(queue)
        return rate, share


def prove(bed, o):
    v = Verdicts("flow: good answers a second beside bad ones, as a ratio to none in the same run")
    with Stage(bed, "flow") as stage:
        run = Run(stage, prefetch=256)
        ratios, none = measure(run)
        v.tell("nothing bad, 16 at once, 5 ms each", ", ".join(f"{rate:,.0f}/s" for rate in none))
        for _, name in KINDS:
            for level, ratio in zip(LEVELS, ratios[name]):
                what = f"{level:g} % of answers {name}"
                if (name, level) in TARGETS:
                    v.least(what, ratio, TARGETS[name, level])
                else:
                    v.tell(what, f"{ratio:.2f}")
        capacity(run, v)
        defaults(Run(stage, kind="quorum", backlog=DEFAULTS_BACKLOG), v)
    v.document = {"levels": [0, *LEVELS], "ratios": {name: [1.0, *ratios[name]] for _, name in KINDS}, "none": none}
    path = os.path.join(o.out, "flow.svg")
    os.makedirs(o.out, exist_ok=True)
    with open(path, "w") as f:
        f.write(plot.lines("Throughput beside bad answers, of that without", "share of answers that are bad, %",
                           v.document["levels"], v.document["ratios"]))
    bed.say(f"wrote {path}")
    return v


def measure(run):
    none, rates = [], {}
    for answer, name in KINDS:
        none.append(run.rate(delay_ms=5)[0])
        rates[name] = [run.rate(delay_ms=5, bad=int(level * 1000), answer=answer)[0] for level in LEVELS]
    usual = statistics.median(none)
    return {name: [rate / usual for rate in found] for name, found in rates.items()}, none


def defaults(run, v):
    """Each rate beside that of a run without bad answers just before it: other work on the machine changes within seconds."""
    none, ratios = [], {case: [] for case in DEFAULTS}
    answers = {name: answer for answer, name in KINDS}
    for _ in range(DEFAULTS_ROUNDS):
        for name, level in DEFAULTS:
            none.append(run.rate(delay_ms=2)[0])
            ratios[name, level].append(run.rate(delay_ms=2, bad=int(level * 1000), answer=answers[name])[0] / none[-1])
    v.tell("at the defaults, nothing bad, 2 ms each", f"{min(none):,.0f} to {max(none):,.0f}/s")
    for (name, level), least in DEFAULTS.items():
        v.least(f"at the defaults, {level:g} % of answers {name}", statistics.median(ratios[name, level]), least)


def capacity(run, v):
    """Beside what 5 at once give that are never refused, in turn: what lies between an answer and the next request is not the limiter's."""
    rates, best, shares = [], [], []
    for _ in range(CAPACITY_ROUNDS):
        best.append(run.rate(CAPACITY_SECONDS, concurrency=CAPACITY, delay_ms=CAPACITY_MS)[0])
        rate, share = run.rate(CAPACITY_SECONDS, concurrency=64, delay_ms=CAPACITY_MS, capacity=CAPACITY)
        rates.append(rate)
        shares.append(share)
    most = CAPACITY * 1000 / CAPACITY_MS
    v.least(f"takes {CAPACITY} of 64 at once, 503 to the rest: of what {CAPACITY} at once give", sum(rates) / sum(best), 0.85)
    v.tell(f"of the {most:.0f}/s that it could do", f"{statistics.mean(rates) / most:.2f}; {CAPACITY} at once {statistics.mean(best) / most:.2f}")
    v.tell("of its answers 503", f"{statistics.mean(shares):.3f}")
