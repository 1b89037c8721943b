"""Events with their times, from the kubelet's and the sidecars' logs and the API server: a time line, in seconds since the scenario began."""

import datetime
import itertools
import re

from cluster import NAMESPACE

EVENTS = {"started", "ready", "draining", "drained", "stopped", "disconnected", "connected", "paused", "resumed", "reloaded"}
SAYS = {"SyncLoop ADD": "kubelet has the pod", "SyncLoop DELETE": "kubelet is to end it: hooks begin", "SyncLoop REMOVE": "the pod is gone",
        "Killing container with a grace period": "SIGTERM to", "Probe failed": "a probe fails:", "PreStop hook failed": "its hook failed:",
        "PreStop hook not completed in grace period": "its hook is not waited for any longer:"}
KUBELET = re.compile(rf'\w\d{{4}} (\d\d:\d\d:\d\d\.\d{{3}})\d* .*?\] "({"|".join(SAYS)})"(.*)')


def _of_sidecars(judge):
    for pod, line in judge.lines.lines[judge.line:]:
        if line.get("event") in EVENTS or (line.get("level") in ("warning", "error") and line.get("path") != "broker.url"):
            more = " ".join(f"{key}={line[key]}" for key in ("peer", "reason", "status", "took_ms") if key in line)
            yield line.get("ts", "")[11:23], pod, f"onceward: {line['event']} {more}".strip()


def _of_kubelet(cluster, since):
    ending = set()
    with open(f"{cluster.folder}/log/kubelet.log", errors="replace") as f:
        for line in f:
            found = KUBELET.match(line)
            if not found or found[1] < since:
                continue
            pod = re.search(rf'{NAMESPACE}/([a-z0-9-]+)', found[3])
            if not pod or found[2] == "SyncLoop DELETE" and pod[1] in ending:  # the second one is about its status
                continue
            if found[2] == "SyncLoop DELETE":
                ending.add(pod[1])
            more = " ".join(re.findall(r'containerName="([^"]*)"', found[3]) + re.findall(r"gracePeriod=\d+", found[3]))
            yield found[1], pod[1], f"{SAYS[found[2]]} {more}".strip()


def _s(text):
    hours, minutes, rest = text.split(":")
    return (int(hours) * 60 + int(minutes)) * 60 + float(rest)


def write(path, cluster, judge, outcome):
    since = datetime.datetime.fromtimestamp(judge.started, datetime.timezone.utc).strftime("%H:%M:%S.%f")[:12]
    rows = sorted(row for row in list(_of_sidecars(judge)) + list(_of_kubelet(cluster, since)) if row[0])
    with open(path, "w") as f:
        f.write(f"{outcome}\n")
        for (pod, what), group in itertools.groupby(rows, key=lambda row: row[1:]):
            times = [when for when, _, _ in group]
            f.write(f"{(_s(times[0]) - _s(since)) % 86400:8.3f}  {pod:32} {what}{f' ({len(times)} times)' * (len(times) > 1)}\n")
        for (pod, container, _), (code, reason) in sorted(judge.watch.since(judge.ends).items()):
            f.write(f"   ended  {pod:32} {container}: {code} {reason}\n")
