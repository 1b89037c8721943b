"""a sidecar that is killed in a drain of 10,000: how much later everything is done

With the defaults; but in `response` the delivery limit is told (none), or what comes for the third time would be stored whole
before its window is over: the broker might drop it. In virtual time: test/sim --measured kills. What a kill at each single step leads to: test/system/test_crash_matrix.py."""

import time

from rig.wait import wait_until

from ..stage import Stage
from ..verdicts import Verdicts

MESSAGES, KILLS = 10000, 5
WINDOW_SECONDS = 30  # the default


def fill(stage, name):
    queue = stage.queue(name)
    stage.load(queue, MESSAGES)
    stage.wait_for_ready(queue, MESSAGES)
    return queue


def drained(stage, app, queue, sidecars, kill=None, patience=90):
    """Seconds from the first answer until every row is completed. kill: called with each moment's number of answers."""
    before = app.n_done()
    for sidecar in sidecars:
        sidecar.start()
    wait_until(lambda: app.n_done() > before, "the first answer", 30, 0.002)
    start = time.monotonic()
    while True:
        n = app.n_done() - before
        if kill:
            kill(n)
        if n >= MESSAGES * 0.95 and stage.n_completed(queue) >= MESSAGES:  # an answer to one that was killed does not count
            return time.monotonic() - start
        if time.monotonic() - start > patience:
            raise AssertionError(f"{stage.n_completed(queue):,} of {MESSAGES:,} completed after {patience} s")
        time.sleep(0.005 if n < MESSAGES * 0.95 else 0.05)


def restarting(sidecar):
    """Kills it each time that another sixth is done, and starts it again at once."""
    def look(n):
        if len(look.killed) < KILLS and n >= MESSAGES * (len(look.killed) + 1) // (KILLS + 1):
            sidecar.kill()
            look.killed.append(time.monotonic())
            sidecar.start()

    look.killed = []
    return look


def ended(v, stage, what, queue):
    v.exactly(f"{what}: doubled", stage.n_doubled(), 0)
    v.exactly(f"{what}: charged, dead, left in the queue", (stage.n_charged(), stage.n_letters(), stage.n_ready(queue)), (0, 0, 0))


def one(bed, v, completion, within):
    with Stage(bed, "kills") as stage:
        app = stage.app(commits=True) if completion == "transaction" else stage.app(delay_ms=2)
        seconds = []
        for name in ("without", "with"):
            queue = fill(stage, name)
            told = {"delivery_limit": 0} if completion == "response" else {}
            sidecar = stage.sidecar([queue], app.url, name=name, completion=completion, **told)
            look = restarting(sidecar) if name == "with" else None
            seconds.append(drained(stage, app, queue, [sidecar], look))
            if look:
                after = time.monotonic() - look.killed[-1]
            sidecar.kill()
        v.most(f"{completion}, killed {KILLS} times: seconds later ({seconds[0]:.1f} without)", seconds[1] - seconds[0], within)
        v.tell(f"{completion}: seconds after the last kill", f"{after:.1f}")
        if completion == "transaction":
            ended(v, stage, completion, queue)


def replicas(bed, v):
    with Stage(bed, "replicas") as stage:
        app = stage.app(commits=True)
        queue = fill(stage, "queue")
        both = [stage.sidecar([queue], app.url, name=name, completion="transaction") for name in ("one", "two")]
        at = []

        def kill(n):
            if not at and n >= MESSAGES // 3:
                both[0].kill()
                at.append(time.monotonic())

        drained(stage, app, queue, both, kill)
        v.most("two replicas, one killed for good: seconds after the kill", time.monotonic() - at[0], 20)
        both[1].kill()
        ended(v, stage, "two replicas", queue)


def prove(bed, o):
    v = Verdicts(f"kills: a drain of {MESSAGES:,}, all done so much later")
    one(bed, v, "transaction", 3)
    replicas(bed, v)
    one(bed, v, "response", WINDOW_SECONDS + 3)
    return v
