"""What `deploy/demo --watch` shows beside its count: what the sidecars say in their logs.

Not `onceward top`: its figures are those that each sidecar writes into the database every five seconds, and no sidecar of the demo lives for
long. With --keep it is shown afterwards."""

import json
import os
import subprocess
import threading

TAIL = 64 * 1024  # bytes of a log that are read
NEWS = ("disconnected", "paused", "resumed", "taken_over", "dead", "draining", "drained", "stopped", "outbox_held", "outbox_left")
N_NEWS = 5
HEADS = ("sidecar", "state", "done/s", "at work", "held", "retried", "duplicates", "dead", "p50 ms", "p99 ms")


def events(path):
    """The last lines of a log, as objects."""
    try:
        with open(path, "rb") as f:
            size = f.seek(0, os.SEEK_END)
            f.seek(max(size - TAIL, 0))
            lines = f.read().split(b"\n")
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue  # cut, at either end
    return found


def text(value):
    return "-" if value is None else str(round(value, 1) if isinstance(value, float) else value)


def row(name, lines):
    stats = [e for e in lines if e["event"] == "stats"][-10:]
    if not stats:
        return (name, "starting") + ("-",) * (len(HEADS) - 2)
    last = stats[-1]
    done = sum(e.get("completed") or 0 for e in stats)  # of a second: a line each 100 ms
    return (name, *map(text, (last.get("state"), done, last.get("in_flight"), last.get("parked"), last.get("retried_total"),
                              last.get("duplicates_total"), last.get("dead_total"), last.get("forward_ms_p50"), last.get("forward_ms_p99"))))


def log_view(path_of, names):
    """A line a sidecar, and the last news of all."""
    rows, news = [HEADS], []
    for name in names:
        lines = events(path_of(name))
        rows.append(row(name, lines))
        news += [(e["ts"], name, e["event"], e.get("reason") or e.get("message_id") or "") for e in lines if e["event"] in NEWS]
    widths = [max(len(r[i]) for r in rows) for i in range(len(HEADS))]
    table = ["  ".join(cell.ljust(width) if i < 2 else cell.rjust(width) for i, (cell, width) in enumerate(zip(r, widths))) for r in rows]
    return table + [""] + told(sorted(news))[-N_NEWS:]


def told(news):
    """A line each; what happens many times in a row is one, with its count."""
    rows = []
    for at, name, event, what in news:
        if rows and rows[-1][1:3] == [name, event]:
            rows[-1] = [at, name, event, what, rows[-1][4] + 1]
        else:
            rows.append([at, name, event, what, 1])
    return [f"{at[11:23]}  {name}  {event:13} {what}" + (f"  ({n} times)" if n > 1 else "") for at, name, event, what, n in rows]


class Watch:
    """`top` is asked for on a thread of its own: what takes its time does not hold up the demo."""

    def __init__(self, binary, config, path_of):
        self.binary, self.config, self.path_of = binary, config, path_of
        self.top = []
        self._ended = threading.Event()

    def begin_top(self):
        threading.Thread(target=self._ask, daemon=True).start()

    def _ask(self):
        while not self._ended.wait(1):
            done = subprocess.run([self.binary, "top", "--once", "--config", self.config], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, check=False)
            if done.returncode == 0:
                self.top = done.stdout.decode(errors="replace").rstrip("\n").split("\n")

    def view(self, names):
        return log_view(self.path_of, sorted(names))

    def end(self):
        self._ended.set()
