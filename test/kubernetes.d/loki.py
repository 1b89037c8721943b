"""A whole Loki with its ruler, and the OpenTelemetry collector as deploy/logs has it.

In the cluster the collector carries the lines of the pods to it (scenario `logs`). `ruler_holds` needs no cluster: each recorded log is a
tenant's, and comes in real time. Of a long one that is the end alone, as much as the `for` of its alerts wants; what was before that is pushed
at once, dated accordingly."""

import json
import os
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import alerts
from rig import process
from rig.wait import wait_until

LABEL = "k8s_container_name"  # what Loki's OTLP endpoint calls the label that others call container
TENANT = "fake"  # what Loki calls the one that there is without tenants
LOOK_S = 5  # between two evaluations, and two looks at what fires
SILENT_S = 180
LIVE_S = 600

CONFIGURATION = """
auth_enabled: TENANTS
server: {http_listen_address: 127.0.0.1, http_listen_port: PORT, grpc_listen_address: 127.0.0.1, grpc_listen_port: GRPC, log_level: warn}
common:
  instance_addr: 127.0.0.1
  path_prefix: FOLDER
  storage: {filesystem: {chunks_directory: FOLDER/chunks, rules_directory: FOLDER/none}}
  replication_factor: 1
  ring: {kvstore: {store: inmemory}}
schema_config: {configs: [{from: 2020-10-24, store: tsdb, object_store: filesystem, schema: v13, index: {prefix: index_, period: 24h}}]}
ruler:
  storage: {type: local, local: {directory: FOLDER/rules}}
  rule_path: FOLDER/ruler
  evaluation_interval: 5s
  poll_interval: 2s
  enable_api: true
analytics: {reporting_enabled: false}
"""


class Loki:
    def __init__(self, root, binaries, folder, with_tenants=False):
        self.root, self.binaries, self.folder, self.children, self.with_tenants = root, binaries, folder, [], with_tenants
        self.port = process.free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def _run(self, name, *arguments):
        with open(os.path.join(self.folder, f"{name}.log"), "ab") as log:
            self.children.append(process.spawn([os.path.join(self.binaries, "bin", name), *arguments], stdout=log, stderr=log))

    def _write(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(text)
        return path

    def start(self):
        text = CONFIGURATION.replace("FOLDER", self.folder).replace("PORT", str(self.port)).replace("GRPC", str(process.free_port()))
        os.makedirs(os.path.join(self.folder, "rules"), exist_ok=True)
        self._run("loki", "-config.file", self._write("loki.yaml", text.replace("TENANTS", str(self.with_tenants).lower())))
        wait_until(self._is_ready, lambda: "Loki is ready:\n" + process.tail(os.path.join(self.folder, "loki.log")), 180, 0.5)

    def start_collector(self, pods):
        """pods: the folder in which kubelet writes."""
        with open(os.path.join(self.root, "deploy/logs/otel-collector.yaml")) as f:
            text = f.read().replace("/var/log/pods/", pods + "/").replace("http://loki.monitoring.svc:3100", self.url)
        self._run("otelcol", "--config", self._write("otelcol.yaml", text))

    def rule(self, tenant=TENANT, label="container"):
        """From now on the rules are evaluated; not before there is a stats line, since without any OncewardSilent is right to fire."""
        with open(os.path.join(self.root, "deploy/alerts/loki.yaml")) as f:
            text = f.read()
        if label != "container":  # as deploy/logs/README.md has it for what comes by OTLP
            text = re.sub(r"\bnamespace\b", "k8s_namespace_name", text.replace("{container=", f"{{{label}="))
        self._write(f"rules/{tenant}/onceward.yaml", text)

    def stop(self):
        for child in reversed(self.children):
            process.reap(child)

    def _is_ready(self):
        try:
            return urllib.request.urlopen(self.url + "/ready", timeout=5).status == 200
        except OSError:
            return False

    def _request(self, path, tenant, data=None):
        request = urllib.request.Request(self.url + path, data, {"X-Scope-OrgID": tenant, "Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path}: {error.code} {error.read().decode(errors='replace')}") from None

    def push(self, tenant, pods):
        """pods: by name lines and their times, in ns."""
        streams = [{"stream": {"namespace": "payments", "container": "onceward", "pod": pod}, "values": [[str(at), line] for at, line in lines]}
                   for pod, lines in pods.items() if lines]
        if streams:
            self._request("/loki/api/v1/push", tenant, json.dumps({"streams": streams}).encode())

    def alerts(self, tenant=TENANT):
        """The labels of those that fire, as the ruler says."""
        data = json.loads(self._request("/prometheus/api/v1/alerts", tenant))["data"]
        return [alert["labels"] for alert in data["alerts"] if alert["state"] == "firing"]

    def firing(self, tenant=TENANT):
        return {labels["alertname"] for labels in self.alerts(tenant)}

    def health(self, tenant=TENANT):
        """The expressions that the ruler could not evaluate, by rule; and the number of evaluated rules."""
        groups = json.loads(self._request("/prometheus/api/v1/rules", tenant))["data"]["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        return {rule["name"]: rule["lastError"] for rule in rules if rule.get("lastError")}, sum(rule["health"] == "ok" for rule in rules)

    def count(self, container="onceward"):
        """The lines of such containers that have come through the collector."""
        query = urllib.parse.urlencode({"query": f'sum(count_over_time({{{LABEL}="{container}"}}[12h]))'})
        found = json.loads(self._request(f"/loki/api/v1/query?{query}", TENANT))["data"]["result"]
        return int(found[0]["value"][1]) if found else 0


class Replay:
    """A recorded log as a tenant's: its last `live_s` come in real time."""

    def __init__(self, loki, name, live_s):
        self.loki, self.tenant, self.fired, self.faults, self.heard = loki, name.split(".")[0], set(), [], False
        pods, self.begun_ns, self.end_ns = alerts.recorded(os.path.join(loki.root, alerts.RECORDS, name))
        self.lines = sorted((at, pod, line) for pod, lines in pods.items() for at, line in lines)
        self.shift_ns = time.time_ns() - max(self.begun_ns, self.end_ns - live_s * 10**9)

    def _push_due(self):
        pods, now = {}, time.time_ns()
        while self.lines and self.lines[0][0] + self.shift_ns <= now:
            at, pod, line = self.lines.pop(0)
            pods.setdefault(pod, []).append((at + self.shift_ns, line))
            self.heard |= '"event":"stats"' in line or '"event":"outbox"' in line
        self.loki.push(self.tenant, pods)

    def run(self):
        while not self.heard:
            self._push_due()
            time.sleep(0.2)
        self.loki.rule(self.tenant)
        while self.lines:
            time.sleep(1)
            self._push_due()
            self.fired |= self.loki.firing(self.tenant)
        failed, n_ok = self.loki.health(self.tenant)
        self.faults += [f"{self.tenant}: {rule} is not evaluated: {error}" for rule, error in failed.items()]
        self.faults += [] if n_ok else [f"{self.tenant}: no rule was evaluated"]
        wait_until(lambda: "OncewardSilent" in self.loki.firing(self.tenant), f"{self.tenant}: OncewardSilent fires after the record's end",
                   SILENT_S + 60, LOOK_S)


def _play(replay, expected):
    try:
        replay.run()
        if replay.fired != expected:
            replay.faults.append(f"{replay.tenant}: {sorted(replay.fired)} fired, not {sorted(expected)}")
    except Exception as error:  # noqa: BLE001 - the others go on
        replay.faults.append(f"{replay.tenant}: {type(error).__name__}: {error}")
    print(f"  {replay.tenant}: {', '.join(sorted(replay.fired)) or 'nothing'}; after its end OncewardSilent", flush=True)


def live_s(rules, expected):
    """How much of a record is to come in real time."""
    return max([LIVE_S, *(90 + alerts.seconds(rules[name].get("for", "0s")) for name in expected)])


def ruler_holds(root, binaries, folder):
    """deploy/alerts/loki.yaml in the ruler of a whole Loki, on recorded logs, each a tenant's: what fires, and when it has ended, silence."""
    loki = Loki(root, binaries, os.path.join(folder, "ruler"), with_tenants=True)
    rules, expected = alerts.rules(root), alerts.expected(root)
    try:
        loki.start()
        replays = {name: Replay(loki, name, live_s(rules, wanted)) for name, wanted in expected.items()}
        threads = [threading.Thread(target=_play, args=(replay, expected[name])) for name, replay in replays.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        loki.stop()
    return [fault for replay in replays.values() for fault in replay.faults]
