"""The rules of deploy/alerts/loki.yaml, evaluated by Loki's own engine (rules.go), without a Loki: on the tests of prometheus_test.yaml, whose
series are written as the lines that they would come from, and on the recorded logs. So are the dashboard's queries."""

import datetime
import gzip
import json
import os
import re
import subprocess

import yaml

MINUTE_NS = 60 * 10**9
DRAWN = ("chaos.gz", "unsent.gz", "lags.gz")  # records with which each panel of the dashboard has something to show, by one or the other
UNRECORDED = r"unwrap (partitions(_active)?|batch_size|unkeyed)\b"  # no record is of a consumer with several queues or with batches
VARIABLES = {"$namespace": ".*", "$queue": ".+", "$__interval_ms": "30000", "$__interval": "30s"}
RECORDS = "test/system/records"  # alerts.json there: which alerts fire in each before its end
SILENCE_S = 300  # after the end of a record


def rules(root):
    """By their names."""
    with open(os.path.join(root, "deploy/alerts/loki.yaml")) as f:
        return {rule["alert"]: rule for group in yaml.safe_load(f)["groups"] for rule in group["rules"]}


def expected(root):
    """By the names of the records."""
    with open(os.path.join(root, RECORDS, "alerts.json")) as f:
        return {name: set(wanted) for name, wanted in json.load(f).items()}


def seconds(text):
    return int(text[:-1]) * {"s": 1, "m": 60}[text[-1]]


def samples(text):
    """promtool's notation of a series: '0x2 5+10x3' is 0 0 0 5 15 25 35. None: nothing is scraped."""
    for part in text.split():
        if part in ("stale", "_"):
            yield None
            continue
        first, step, times = re.fullmatch(r"(\d+)([+-]\d+)?(?:x(\d+))?", part).groups()
        yield from (int(first) + n * int(step or 0) for n in range(int(times or 0) + 1))


def lines_of(series, start_ns):
    """The log lines from which mtail would make these series, by pod: a stats line a minute, and lines of other events."""
    pods = {}
    for entry in series:
        name, labels = re.fullmatch(r"onceward_(\w+)\{(.*)\}", entry["series"]).groups()
        labels, before = dict(re.findall(r'(\w+)="([^"]*)"', labels)), None
        minutes = pods.setdefault(labels["pod"], {})
        for minute, value in enumerate(samples(entry["values"])):
            if value is None:
                continue
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
    pods = {}
    with (gzip.open if path.endswith(".gz") else open)(path, "rt") as f:
        for text in f.read().splitlines():
            pod, line = text[:text.index("{")].strip() or "pod-1", text[text.index("{"):]
            at = datetime.datetime.fromisoformat(json.loads(line)["ts"].replace("Z", "+00:00"))
            pods.setdefault(pod, []).append((int(at.timestamp() * 1000) * 10**6, line))
    times = [at for lines in pods.values() for at, _ in lines]
    return pods, min(times), max(times)


def lasts(rule, answers, step_s):
    """Whether one of its series is there for as long as `for` says."""
    steps = seconds(rule.get("for", "0s")) // step_s
    return any(times[n + steps] - times[n] < steps * step_s + 1 for times in answers for n in range(len(times) - steps))


def asked(rule, start_ns, end_ns, step_s, name=None):
    return {"name": name or rule["alert"], "expr": rule["expr"], "start": start_ns, "end": end_ns, "step": step_s}


def streams(pods):
    return {f'{{namespace="payments", container="onceward", pod="{pod}"}}': [{"at": at, "text": line} for at, line in sorted(lines)]
            for pod, lines in pods.items()}


def dashboard(root):
    """The queries of deploy/dashboards/onceward.json, by panel."""
    found = {}
    with open(os.path.join(root, "deploy/dashboards/onceward.json")) as f:
        for panel in json.load(f)["panels"]:
            for target in panel["targets"]:
                expr = target["expr"]
                for name, value in VARIABLES.items():
                    expr = expr.replace(name, value)
                found[f"{panel['title']}, {target['refId']}"] = {"alert": "", "expr": expr}
    return found


def rules_hold(root, binaries):
    """deploy/alerts/loki.yaml by Loki's engine: each alert in its fault and at rest, by the tests of prometheus.yaml; and on recorded logs, where
    each query of the dashboard has an answer, too."""
    known, wanted_in = rules(root), expected(root)
    with open(os.path.join(root, "deploy/alerts/prometheus_test.yaml")) as f:
        tests = {f"{test['name']} {n}": test for n, test in enumerate(yaml.safe_load(f)["tests"])}
    start_ns, given = 1_700_000_000 * 10**9, {}
    for name, test in tests.items():
        wanted, = test["alert_rule_test"]
        rule, end_ns = known[wanted["alertname"]], start_ns + seconds(wanted["eval_time"]) * 10**9 + 10**9
        given[name] = {"streams": streams(lines_of(test["input_series"], start_ns)),
                       "queries": [asked(rule, end_ns - seconds(rule.get("for", "0s")) * 10**9, end_ns, 60)]}
    for name in wanted_in:
        pods, begun_ns, end_ns = recorded(os.path.join(root, RECORDS, name))
        given[name] = {"streams": streams(pods), "queries": [
            asked(rule, begun_ns + 30 * 10**9, until_ns, 10, alert + when) for alert, rule in known.items()
            for when, until_ns in (("", end_ns), (" later", end_ns + SILENCE_S * 10**9))]}
    for drawn in DRAWN:
        pods, begun_ns, end_ns = recorded(os.path.join(root, RECORDS, drawn))
        given["dashboard " + drawn] = {"streams": streams(pods), "queries": [asked(query, begun_ns, end_ns, 10, name) for name, query in dashboard(root).items()]}
    done = subprocess.run([os.path.join(binaries, "bin/rules")], input=json.dumps(given).encode(), stdout=subprocess.PIPE, check=True)
    answers = json.loads(done.stdout)
    faults = [f"not so: {name}" for name, test in tests.items() for wanted in test["alert_rule_test"]
              if lasts(known[wanted["alertname"]], answers[name][wanted["alertname"]], 60) != bool(wanted["exp_alerts"])]
    for name, wanted in wanted_in.items():
        fired = {alert for alert, rule in known.items() if lasts(rule, answers[name][alert], 10)}
        if fired != wanted or not lasts(known["OncewardSilent"], answers[name]["OncewardSilent later"], 10):
            faults.append(f"{name}: before its end {sorted(fired)} fire, not {sorted(wanted)}; or OncewardSilent does not after it")
    shown = dashboard(root)
    faults += [f"the dashboard shows nothing: {name}" for name, query in shown.items()
               if not re.search(UNRECORDED, query["expr"]) and not any(answers["dashboard " + drawn][name] for drawn in DRAWN)]
    print(f"  {len(shown)} queries of the dashboard, {len(known)} alerts, {len(tests)} tests, {len(wanted_in)} records")
    return faults
