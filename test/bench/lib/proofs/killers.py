"""a message that ends the application, which comes back after 0.1, 2 and 20 s, with and without nginx before it

Six at once: what takes time here is waiting. In virtual time: test/sim --measured killers. Backoffs are short, for the same reason."""

import threading

from ..stage import Stage
from ..verdicts import Verdicts

ATTEMPTS = 8
GOOD = 200
RESTARTS = (0.1, 2.0, 20.0)
RETRY = {"max_attempts": ATTEMPTS, "backoff": "200ms", "max_backoff": "1s"}
PATIENCE = 235


class Case:
    def __init__(self, bed, restart_seconds, fronted):
        self.name = f"back after {restart_seconds:g} s{', behind nginx' if fronted else ''}"
        self.stage = stage = Stage(bed, "killers")
        self.app = stage.mortal(restart_seconds=restart_seconds, obeys=1, pool=4)
        self.queue = stage.queue()
        half = [f"good-{i}" for i in range(GOOD)]
        stage.publish(self.queue, [*half[:GOOD // 2], "kills-all", *half[GOOD // 2:]])
        url = stage.front(self.app) if fronted else self.app.url
        forward = {"url": url}
        ready = {"ready": {"url": url + "ready"}} if fronted else {}
        self.sidecar = stage.sidecar({self.queue: {"forward": forward, **ready}}, completion="transaction", retry=RETRY).start()
        self.seconds = None

    def wait(self):
        try:
            self.sidecar.wait_for("dead", deadline=PATIENCE, message_id="kills-all")
            self.stage.wait_for_completed(GOOD, 40)
        except AssertionError:
            pass  # the verdicts say it

    def say(self, v):
        stage = self.stage
        v.exactly(f"{self.name}: dead; the neighbours done", (stage.n_letters(), stage.n_completed()), (1, GOOD))
        v.most(f"{self.name}: crashes", self.app.n_crashes, ATTEMPTS + 1, "{:d}")
        if self.app.n_crashes > ATTEMPTS + 1:
            for e in self.sidecar.events:
                if e.get("message_id") == "kills-all":
                    print("      ", {k: w for k, w in e.items() if k in ("ts", "event", "attempt", "error", "reason", "next_ms", "charged")})
        v.exactly(f"{self.name}: neighbours charged, doubled", (stage.n_charged(), stage.n_doubled()), (0, 0))


def prove(bed, o):
    v = Verdicts(f"killers: one message among {GOOD} ends the application each time; max_attempts {ATTEMPTS}")
    cases = []
    try:
        for fronted in (False, True):
            for restart_seconds in RESTARTS:
                cases.append(Case(bed, restart_seconds, fronted))
        threads = [threading.Thread(target=case.wait) for case in cases]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for case in cases:
            case.say(v)
    finally:
        for case in cases:
            case.stage.__exit__()
    return v
