"""Loki, fed by the OpenTelemetry collector as deploy/logs has it, with the rules of deploy/alerts in its ruler.

The cluster is one tenant. Every other one is a test: of prometheus_test.yaml, whose series are written as the lines that they would come
from, and of the recorded logs. Not run yet: a Loki takes long to build."""

import datetime
import json
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request

import yaml

from rig import process
from rig.wait import wait_until

URL = "http://127.0.0.1:3100"
CLUSTER = "cluster"  # the tenant that the collector writes to
LABEL = "k8s_container_name"  # what Loki's OTLP endpoint calls the label that others call container
MINUTE_NS = 60 * 10**9
RECORDS = {"faults.log": {"OncewardPaused", "OncewardDeadLetters", "OncewardSlowAnswers", "OncewardSilent"}, "healthy.log": {"OncewardSilent"}}
SILENCE_S = 300  # after the end of a record

CONFIGURATION = """
auth_enabled: true
server: {http_listen_address: 127.0.0.1, http_listen_port: 3100, grpc_listen_address: 127.0.0.1, log_level: warn}
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
  enable_api: true
analytics: {reporting_enabled: false}
"""


class Loki:
    def __init__(self, cluster):
        self.root, self.cluster, self.folder, self.children = cluster.root, cluster, os.path.join(cluster.folder, "loki"), []
        with open(os.path.join(self.root, "deploy/alerts/loki.yaml")) as f:
            self.text = f.read()
        self.rules = {rule["alert"]: rule for group in yaml.safe_load(self.text)["groups"] for rule in group["rules"]}

    def _run(self, name, *arguments):
        with open(os.path.join(self.cluster.folder, f"log/{name}.log"), "ab") as log:
            self.children.append(process.spawn([os.path.join(self.cluster.binaries, "bin", name), *arguments], stdout=log, stderr=log))

    def _write(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(text)
        return path

    def start(self):
        self._write(f"rules/{CLUSTER}/onceward.yaml", self.text.replace("{container=", f"{{{LABEL}="))
        self._run("loki", "-config.file", self._write("loki.yaml", CONFIGURATION.replace("FOLDER", self.folder)))
        with open(os.path.join(self.root, "deploy/logs/otel-collector.yaml")) as f:
            text = f.read().replace("/var/log/pods/", f"{self.cluster.folder}/log/pods/").replace("http://loki.monitoring.svc:3100", URL)
        config = yaml.safe_load(text)
        config["exporters"]["otlphttp/loki"]["headers"] = {"X-Scope-OrgID": CLUSTER}
        wait_until(self._is_ready, "Loki is ready", 180, 0.5)
        self._run("otelcol", "--config", self._write("otelcol.yaml", yaml.safe_dump(config)))

    def stop(self):
        for child in reversed(self.children):
            process.reap(child)

    @staticmethod
    def _is_ready():
        try:
            return urllib.request.urlopen(URL + "/ready", timeout=5).status == 200
        except OSError:
            return False

    @staticmethod
    def ask(tenant, path, body=None, **parameters):
        request = urllib.request.Request(f"{URL}{path}?{urllib.parse.urlencode(parameters)}", headers={"X-Scope-OrgID": tenant, "Content-Type": "application/json"},
                                         data=body and json.dumps(body).encode())
        try:
            answer = urllib.request.urlopen(request, timeout=60).read()
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path}: {error.code} {error.read().decode()}") from None
        return json.loads(answer) if answer else None

    def push(self, tenant, pods):
        """Lines, each with its time in ns, by pod."""
        for pod, lines in pods.items():
            self.ask(tenant, "/loki/api/v1/push", {"streams": [{"stream": {"namespace": "payments", "container": "onceward", "pod": pod},
                                                                "values": [[str(at), line] for at, line in sorted(lines)]}]})

    def alerts(self):
        """Those of the cluster that fire, as the ruler says."""
        found = self.ask(CLUSTER, "/prometheus/api/v1/alerts")["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in found if alert["state"] == "firing"}

    def count(self):
        """The cluster's lines."""
        found = self.ask(CLUSTER, "/loki/api/v1/query", query=f'sum(count_over_time({{{LABEL}="onceward"}}[12h]))')["data"]["result"]
        return int(found[0]["value"][1]) if found else 0

    def true_at(self, tenant, name, start_ns, end_ns, step_s):
        """The seconds at which the rule's expression has an answer, for each set of labels."""
        found = self.ask(tenant, "/loki/api/v1/query_range", query=self.rules[name]["expr"], start=start_ns, end=end_ns, step=step_s)
        return [[float(at) for at, _ in series["values"]] for series in found["data"]["result"]]

    def fires(self, tenant, name, start_ns, end_ns, step_s):
        """Whether it is true for as long as `for` says, somewhere in between."""
        steps = 1 + seconds(self.rules[name].get("for", "0s")) // step_s
        for times in self.true_at(tenant, name, start_ns, end_ns, step_s):
            for first in range(len(times) - steps + 1):
                if times[first + steps - 1] - times[first] <= (steps - 1) * step_s + 0.5:
                    return True
        return False


def seconds(text):
    return int(text[:-1]) * {"s": 1, "m": 60}[text[-1]]


def samples(text):
    """promtool's notation of a series: '0x2 5+10x3' is 0 0 0 5 15 25 35."""
    for part in text.split():
        first, step, times = re.fullmatch(r"(\d+)([+-]\d+)?(?:x(\d+))?", part).groups()
        yield from (int(first) + n * int(step or 0) for n in range(int(times or 0) + 1))


def lines_of(series, start_ns):
    """What sidecars would have written, had mtail made these series of it, by pod: a stats line a minute, and lines of other events."""
    pods = {}
    for entry in series:
        name, labels = re.fullmatch(r"onceward_(\w+)\{(.*)\}", entry["series"]).groups()
        labels, before = dict(re.findall(r'(\w+)="([^"]*)"', labels)), None
        minutes = pods.setdefault(labels["pod"], {})
        for minute, value in enumerate(samples(entry["values"])):
            said, queue = minutes.setdefault(minute, ({}, [])), labels.get("queue")
            more = value - before if before is not None else 0
            before = value
            if name == "lines_total":
                said[1].extend([{"level": labels["level"], "event": labels["event"], "queue": "q"}] * more)
            elif name != "stats_seconds":
                said[0].update({"queue": queue, name.replace("_total", ""): more if name.endswith("_total") else value})
            elif value == 60 * minute:
                said[0]["queue"] = queue
            if name == "dead_total":
                said[1].extend([{"level": "error", "event": "dead", "queue": queue, "reason": "attempts"}] * more)
    return {pod: [(start_ns + minute * MINUTE_NS + n, json.dumps(line)) for minute, (stats, others) in minutes.items()
                  for n, line in enumerate([{"level": "info", "event": "stats", **stats}] * bool(stats) + others)]
            for pod, minutes in pods.items()}


def shifted(path, end_ns):
    """A recorded log, moved so that it ends then; and when it began."""
    with open(path) as f:
        lines = f.read().splitlines()
    times = [int(datetime.datetime.fromisoformat(json.loads(line)["ts"].replace("Z", "+00:00")).timestamp() * 1000) * 10**6 for line in lines]
    move = end_ns - times[-1]
    return {"pod-1": [(at + move, line) for at, line in zip(times, lines)]}, times[0] + move


def rules_hold(loki):
    """deploy/alerts/loki.yaml in Loki: each alert in its fault and at rest, by the tests of prometheus.yaml, and on the recorded logs."""
    faults, now_ns = [], time.time_ns()
    groups = loki.ask(CLUSTER, "/prometheus/api/v1/rules")["data"]["groups"]
    if {rule["name"] for group in groups for rule in group["rules"]} != set(loki.rules):
        faults.append(f"the ruler has not taken all rules: {groups}")
    with open(os.path.join(loki.root, "deploy/alerts/prometheus_test.yaml")) as f:
        tests = yaml.safe_load(f)["tests"]
    start_ns = now_ns - 100 * MINUTE_NS
    for test in tests:
        tenant, asked = test["name"].replace(" ", "-"), test["alert_rule_test"][0]
        loki.push(tenant, lines_of(test["input_series"], start_ns))
        end_ns = start_ns + seconds(asked["eval_time"]) * 10**9 + 10**9
        before = seconds(loki.rules[asked["alertname"]].get("for", "0s"))
        if loki.fires(tenant, asked["alertname"], end_ns - before * 10**9, end_ns, 60) != bool(asked["exp_alerts"]):
            faults.append(f"not so: {test['name']}")
    for name, expected in RECORDS.items():
        end_ns = now_ns - (SILENCE_S + 10) * 10**9
        pods, begun_ns = shifted(os.path.join(loki.root, "test/system/records", name), end_ns)
        loki.push(name, pods)
        found = {alert for alert in loki.rules if loki.fires(name, alert, begun_ns + 30 * 10**9, end_ns + SILENCE_S * 10**9, 10)}
        early = {alert for alert in loki.rules if loki.fires(name, alert, begun_ns + 30 * 10**9, end_ns, 10)}
        if found != expected or early != expected - {"OncewardSilent"}:
            faults.append(f"{name}: {sorted(found)} fire, {sorted(early)} before its end")
    print(f"  {len(tests)} tests, {len(RECORDS)} records")
    return faults
