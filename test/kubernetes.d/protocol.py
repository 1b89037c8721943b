"""What happened when, from the kubelet's and the sidecars' logs and the API server: a time line."""

import datetime
import re

from cluster import NAMESPACE

EVENTS = {"started", "ready", "draining", "drained", "stopped", "disconnected", "connected", "paused", "resumed"}
KUBELET = re.compile(rf'\w(\d{{4}}) (\d\d:\d\d:\d\d\.\d{{3}})\d* .*?\] "(SyncLoop (?:ADD|DELETE|REMOVE)|Killing container with a grace period'
                     rf'|Killing unwanted container|Probe failed|Container runtime is down)"(.*)')


def _of_sidecars(judge):
    for pod, line in judge.lines.lines[judge.line:]:
        if line.get("event") in EVENTS or line.get("level") in ("warning", "error"):
            more = " ".join(f"{key}={line[key]}" for key in ("reason", "status", "took_ms") if key in line)
            yield line.get("ts", "")[11:23], pod, f"sidecar says {line['event']} {more}".strip()


def _of_kubelet(cluster, since):
    with open(f"{cluster.folder}/log/kubelet.log", errors="replace") as f:
        for line in f:
            found = KUBELET.match(line)
            if not found or found[2] < since:
                continue
            pod = re.search(rf'{NAMESPACE}/([a-z0-9-]+)', found[4])
            if pod:
                more = " ".join(re.findall(r'containerName="[^"]*"|gracePeriod=\d+', found[4]))
                yield found[2], pod[1], f"kubelet: {found[3]} {more}".strip()


def write(path, cluster, judge):
    since = datetime.datetime.fromtimestamp(judge.started, datetime.timezone.utc).strftime("%H:%M:%S")
    rows = sorted(list(_of_sidecars(judge)) + list(_of_kubelet(cluster, since)))
    with open(path, "w") as f:
        f.writelines(f"{when} {pod:32} {what}\n" for when, pod, what in rows)
        for (pod, container, _), (code, reason) in sorted(judge.watch.since(judge.ends).items()):
            f.write(f"ended {pod} {container}: {code} {reason}\n")
