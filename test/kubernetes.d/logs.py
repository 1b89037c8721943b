"""The rules of deploy/alerts/loki.yaml, and the OpenTelemetry collector as deploy/logs has it.

`alerts` evaluates the rules with Loki's own engine (rules.go), without a Loki: on the tests of prometheus_test.yaml, whose series are written
as the lines that they would come from, and on the recorded logs. `logs` feeds a whole Loki with the cluster's lines: not run yet, since that
takes long to build."""

import datetime
import json
import os
import re
import subprocess
import urllib.parse
import urllib.request

import yaml

from rig import process
from rig.wait import wait_until

URL = "http://127.0.0.1:3100"
LABEL = "k8s_container_name"  # what Loki's OTLP endpoint calls the label that others call container
MINUTE_NS = 60 * 10**9
RECORDS = {"faults.log": {"OncewardPaused", "OncewardDeadLetters", "OncewardSlowAnswers", "OncewardSilent"}, "healthy.log": {"OncewardSilent"}}
SILENCE_S = 300  # after the end of a record

CONFIGURATION = """
auth_enabled: false
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
        with open(os.path.join(self.root, "deploy/alerts/loki.yaml")) as f:
            self._write("rules/fake/onceward.yaml", f.read().replace("{container=", f"{{{LABEL}="))
        self._run("loki", "-config.file", self._write("loki.yaml", CONFIGURATION.replace("FOLDER", self.folder)))
        with open(os.path.join(self.root, "deploy/logs/otel-collector.yaml")) as f:
            text = f.read().replace("/var/log/pods/", f"{self.cluster.folder}/log/pods/").replace("http://loki.monitoring.svc:3100", URL)
        wait_until(self._is_ready, "Loki is ready", 180, 0.5)
        self._run("otelcol", "--config", self._write("otelcol.yaml", text))

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
    def ask(path, **parameters):
        with urllib.request.urlopen(f"{URL}{path}?{urllib.parse.urlencode(parameters)}", timeout=60) as answer:
            return json.load(answer)["data"]

    def alerts(self):
        """Those that fire, as the ruler says."""
        return {alert["labels"]["alertname"] for alert in self.ask("/prometheus/api/v1/alerts")["alerts"] if alert["state"] == "firing"}

    def count(self):
        """The lines that are there."""
        found = self.ask("/loki/api/v1/query", query=f'sum(count_over_time({{{LABEL}="onceward"}}[12h]))')["result"]
        return int(found[0]["value"][1]) if found else 0


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
    return {pod: [(start_ns + minute * MINUTE_NS + n, json.dumps({"ts": f"{minute} {n}", **line})) for minute, (stats, others) in minutes.items()
                  for n, line in enumerate([{"level": "info", "event": "stats", **stats}] * bool(stats) + others)]
            for pod, minutes in pods.items()}


def recorded(path):
    """A recorded log by pod, when it began and when it ended, in ns."""
    with open(path) as f:
        lines = f.read().splitlines()
    times = [int(datetime.datetime.fromisoformat(json.loads(line)["ts"].replace("Z", "+00:00")).timestamp() * 1000) * 10**6 for line in lines]
    return {"pod-1": list(zip(times, lines))}, times[0], times[-1]


def lasts(rule, answers, step_s):
    """Whether one of its series is there for as long as `for` says."""
    steps = seconds(rule.get("for", "0s")) // step_s
    return any(times[n + steps] - times[n] < steps * step_s + 1 for times in answers for n in range(len(times) - steps))


def asked(rule, start_ns, end_ns, step_s, name=None):
    return {"name": name or rule["alert"], "expr": rule["expr"], "start": start_ns, "end": end_ns, "step": step_s}


def streams(pods):
    return {f'{{namespace="payments", container="onceward", pod="{pod}"}}': [{"at": at, "text": line} for at, line in sorted(lines)]
            for pod, lines in pods.items()}


def rules_hold(root, binaries):
    """deploy/alerts/loki.yaml by Loki's engine: each alert in its fault and at rest, by the tests of prometheus.yaml; and on recorded logs."""
    with open(os.path.join(root, "deploy/alerts/loki.yaml")) as f:
        rules = {rule["alert"]: rule for group in yaml.safe_load(f)["groups"] for rule in group["rules"]}
    with open(os.path.join(root, "deploy/alerts/prometheus_test.yaml")) as f:
        tests = {test["name"]: test for test in yaml.safe_load(f)["tests"]}
    start_ns, given = 1_700_000_000 * 10**9, {}
    for name, test in tests.items():
        wanted, = test["alert_rule_test"]
        rule, end_ns = rules[wanted["alertname"]], start_ns + seconds(wanted["eval_time"]) * 10**9 + 10**9
        given[name] = {"streams": streams(lines_of(test["input_series"], start_ns)),
                       "queries": [asked(rule, end_ns - seconds(rule.get("for", "0s")) * 10**9, end_ns, 60)]}
    for name in RECORDS:
        pods, begun_ns, end_ns = recorded(os.path.join(root, "test/system/records", name))
        given[name] = {"streams": streams(pods), "queries": [
            asked(rule, begun_ns + 30 * 10**9, until_ns, 10, alert + when) for alert, rule in rules.items()
            for when, until_ns in (("", end_ns), (" later", end_ns + SILENCE_S * 10**9))]}
    done = subprocess.run([os.path.join(binaries, "bin/rules")], input=json.dumps(given).encode(), stdout=subprocess.PIPE, check=True)
    answers = json.loads(done.stdout)
    faults = [f"not so: {name}" for name, test in tests.items() for wanted in test["alert_rule_test"]
              if lasts(rules[wanted["alertname"]], answers[name][wanted["alertname"]], 60) != bool(wanted["exp_alerts"])]
    for name, expected in RECORDS.items():
        later = {alert for alert, rule in rules.items() if lasts(rule, answers[name][alert + " later"], 10)}
        before = {alert for alert, rule in rules.items() if lasts(rule, answers[name][alert], 10)}
        if later != expected or before - expected or "OncewardSilent" in before:
            faults.append(f"{name}: {sorted(before)} fire before its end, {sorted(later)} in all")
    print(f"  {len(rules)} alerts, {len(tests)} tests, {len(RECORDS)} records")
    return faults
