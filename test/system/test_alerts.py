"""What is made of the log: alerts, metrics, the dashboard, a format for lnav. Fields and events in them exist; rules fire in their fault
and rest otherwise, by promtool; and two recorded logs go the whole way, through mtail and the rules.

The records, test/system/records, are of sidecars with the default intervals. faults.log: after a while the application was away for two
and a half minutes, then refused three messages, then took 26 s for each, then the sidecar was killed. healthy.log: messages all the time,
then a stop in order. chaos.gz and calm.gz are of `test/chaos --record FILE.gz`, with all its faults, and with `--calm`; the others of
`test/chaos --each FOLDER`: a minute of good work, and then one fault for as long as its alert needs, in real time. alerts.json says which
alerts fire in each before its end."""

import datetime
import gzip
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from rig import pages
from test_log import templates
from test_stats import fields, keys, states

pytestmark = pytest.mark.deploy

yaml = pytest.importorskip("yaml", reason="without python3-yaml no rule can be read")

HERE = os.path.dirname(os.path.abspath(__file__))
DEPLOY = os.path.join(HERE, "../../deploy")
RECORDS = os.path.join(HERE, "records")
PROGRAM = os.path.join(DEPLOY, "logs/onceward.mtail")
STEP_S, LONG_STEP_S, LONG_S = 10, 60, 900  # between two looks at a record, and at one that is long
SILENCE_S = 300  # after its end
EACH = ("away", "overloaded", "fails", "refuses", "slow", "outgrown", "later", "open_transaction", "unread", "no_broker", "no_queue", "unsent", "lags")
HEALTHY_S = 60  # of each of these, at its beginning


def need(tool):
    if not shutil.which(tool):
        pytest.skip(f"{tool} is not here")


def rules(name):
    with open(os.path.join(DEPLOY, "alerts", name)) as f:
        return {rule["alert"]: rule for group in yaml.safe_load(f)["groups"] for rule in group["rules"]}


def metrics():
    with open(PROGRAM) as f:
        return set(re.findall(r"^(?:counter|gauge) (\w+) by", f.read(), re.M))


def known_fields():
    return set(keys()) | set(keys("OUTBOX")) | {"ts", "level", "event", "message", "queue", "reason", "message_id", "trace_id", "error", "__error__", "container", "namespace", "pod"}


def test_what_is_made_from_the_table_is_current():
    program = os.path.join(DEPLOY, "generate.py")
    if os.environ.get("ONCEWARD_UPDATE"):
        subprocess.run([sys.executable, program], check=True)
    done = subprocess.run([sys.executable, program, "--check"], stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr.decode()


def test_both_collections_have_the_same_alerts_and_say_what_to_do():
    prometheus, loki = rules("prometheus.yaml"), rules("loki.yaml")
    assert list(prometheus) == list(loki) and len(prometheus) >= 9
    with open(os.path.join(DEPLOY, "logs/README.md")) as f:
        assert re.findall(r"^\| `(Onceward\w+)` \|", f.read(), re.M) == list(prometheus)
    for name in prometheus:
        for rule in prometheus[name], loki[name]:
            assert rule["labels"]["severity"] in ("warning", "critical") and set(rule["annotations"]) == {"summary", "runbook", "runbook_url"}
            assert set(re.findall(r"onceward explain ([a-z_]+)", rule["annotations"]["runbook"])) <= set(templates()) | set(fields()) | set(fields("OUTBOX")) | set(states())
        assert prometheus[name]["annotations"]["runbook"] == loki[name]["annotations"]["runbook"]


def on_call():
    """An entry for each alert, made from its annotations; its runbook_url leads there."""
    text = ""
    for name, rule in {**rules("prometheus.yaml"), **rules("kubernetes.yaml")}.items():
        says = re.sub(r"\{\{ if [^}]*\}\}(.*?)\{\{ else \}\}(.*?)\{\{ end \}\}", r"\1, or \2", rule["annotations"]["summary"])
        says = re.sub(r" ?\{\{ \$labels\.queue \}\}", "", says).replace("Queue, or T", "Queue, or t").replace("{{ $labels.event }}", "EVENT")
        says = says.replace("The sidecar of {{ $labels.pod }}", "The sidecar of a pod")
        does = re.sub(r"onceward (?:check --connect|status|explain \w+|dead \w+(?: ID)?|health --live)|dead show ID|kubectl get pods|SELECT [^;]*", r"`\g<0>`",
                      rule["annotations"]["runbook"].replace("{{ $labels.event }}", "EVENT"))
        paragraphs = f"*{rule['labels']['severity']}.* {says}", f"**What to do:** {does}"
        text += f"### `{name}`\n\n" + "".join(pages.wrap(p) + "\n\n" for p in paragraphs)
    return text


def test_the_page_for_operators_has_each_alert():
    if os.environ.get("ONCEWARD_UPDATE"):
        pages.put("deploy/oncall/operate.md", "alerts", on_call())
    assert pages.part("deploy/oncall/operate.md", "alerts") == on_call(), "run this test with ONCEWARD_UPDATE=1"
    assert "{{" not in on_call()


@pytest.mark.parametrize("name", ["prometheus.yaml", "loki.yaml", "kubernetes.yaml"])
def test_a_runbook_url_leads_to_the_entry_of_its_alert(name):
    for alert, rule in rules(name).items():
        assert rule["annotations"]["runbook_url"] == f"deploy/oncall/operate.md#{alert.lower()}"
        assert f"### `{alert}`\n" in on_call()


def test_an_alert_asks_for_what_exists():
    for name, rule in rules("prometheus.yaml").items():
        asked = set(re.findall(r"\bonceward_\w+", rule["expr"]))
        assert asked and asked <= metrics(), name
        assert all("namespace" in labels for labels in re.findall(r"by \(([^)]*)\)", rule["expr"])), f"{name}: one namespace would hide another"
        assert set(re.findall(r'event!?="(\w+)"', rule["expr"])) <= set(templates())
    for name, rule in rules("loki.yaml").items():
        assert set(re.findall(r'event!?="(\w+)"', rule["expr"])) <= set(templates()), name
        for pipeline in re.findall(r"\{(.*?)\[", rule["expr"]):
            given = set(re.search(r"\| json ([\w, ]+?) \|", pipeline)[1].split(", "))
            asked = set(re.findall(r"unwrap (\w+)", pipeline)) | set(re.findall(r"\| (\w+)!?=", pipeline)) - {"__error__"}
            assert asked and asked <= given <= known_fields(), f"{name}: a field that is asked for is not among those that json gives"
        for labels, given in re.findall(r"by \(([^)]*)\) \((?:\w+\()?\{[^}]*\} \| json ([\w, ]+?) \|", rule["expr"]):
            assert set(labels.split(", ")) <= set(given.split(", ")) | {"namespace"}, name
        assert "namespace" in labels, f"{name}: one namespace would hide another"


def test_the_dashboard_asks_for_what_exists():
    with open(os.path.join(DEPLOY, "dashboards/onceward.json")) as f:
        board = json.load(f)
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    unwrapped = {event: {field for expr in asked if f'event="{event}"' in expr for field in re.findall(r"unwrap (\w+)", expr)}
                 for event in ("stats", "outbox")}
    assert unwrapped == {event: {key for key in keys(macro) if not key.endswith("_total") and not re.search(r"^state|detail$|reason$|^holder$|^error$", key)}
                         for event, macro in (("stats", "STAT"), ("outbox", "OUTBOX"))}, "each number of these lines is shown, and no other"
    assert all(re.findall(r'event="(\w+)"', expr) in ([], ["stats"], ["outbox"]) and expr.count("(") == expr.count(")") for expr in asked)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def with_otlp(path):
    """A file as the sed of loki.yaml makes it for Loki's OTLP endpoint, where labels have other names."""
    with open(os.path.join(DEPLOY, "alerts/loki.yaml")) as f:
        command, = re.findall(r"^#   (sed '.*') FILE$", f.read(), re.M)
    return subprocess.run(f"{command} {path}", shell=True, check=True, stdout=subprocess.PIPE, cwd=DEPLOY).stdout.decode()


@pytest.mark.parametrize("path", ["alerts/loki.yaml", "dashboards/onceward.json"])
def test_no_label_of_others_is_left_for_otlp(path):
    made = with_otlp(path)
    exprs = re.findall(r'"(?:expr|stream|label)": "((?:[^"\\]|\\.)*)"', made) if path.endswith("json") else [
        rule["expr"] for group in yaml.safe_load(made)["groups"] for rule in group["rules"]]
    assert exprs and any("k8s_container_name=" in expr for expr in exprs)
    for expr in exprs:
        assert not re.search(r"[{ ,(\"]container\b|(?<!\$)\b(namespace|pod)\b", expr), expr


def test_rules_fire_in_their_fault_and_rest_otherwise():
    need("promtool")
    with open(os.path.join(DEPLOY, "alerts/prometheus_test.yaml")) as f:
        tests = yaml.safe_load(f)["tests"]
    names = set(rules("prometheus.yaml"))
    assert {t["name"] for t in tests} == {f"{name} {does}" for name in names - OF_LINES for does in ("fires", "rests")}
    assert OF_LINES <= set().union(*(fires for _, fires in CASES.values())) <= names
    for command in ["check", "rules", "prometheus.yaml"], ["test", "rules", "prometheus_test.yaml"]:
        done = subprocess.run(["promtool", *command], cwd=os.path.join(DEPLOY, "alerts"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout.decode()


def test_the_rules_of_kubernetes_fire_in_their_fault_and_rest_otherwise():
    need("promtool")
    with open(os.path.join(DEPLOY, "alerts/kubernetes_test.yaml")) as f:
        tests = yaml.safe_load(f)["tests"]
    assert {t["name"] for t in tests} == {f"{name} {does}" for name in rules("kubernetes.yaml") for does in ("fires", "rests")}
    for command in ["check", "rules", "kubernetes.yaml"], ["test", "rules", "kubernetes_test.yaml"]:
        done = subprocess.run(["promtool", *command], cwd=os.path.join(DEPLOY, "alerts"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout.decode()


def test_the_operators_object_has_all_rules():
    with open(os.path.join(DEPLOY, "kubernetes/monitoring/rules.yaml")) as f:
        thing = yaml.safe_load(f)
    found = {rule["alert"]: rule for group in thing["spec"]["groups"] for rule in group["rules"]}
    assert found == {**rules("prometheus.yaml"), **rules("kubernetes.yaml")}


def test_the_dashboard_of_metrics_asks_for_what_exists():
    with open(os.path.join(DEPLOY, "dashboards/onceward-metrics.json")) as f:
        panels = json.load(f)["panels"]
    with open(os.path.join(DEPLOY, "logs/onceward.mtail")) as f:
        declared = set(re.findall(r"^(?:gauge|counter) (\w+)", f.read(), re.M))
    asked = {name for p in panels for t in p["targets"] for name in re.findall(r"\bonceward_\w+", t["expr"])}
    assert asked <= declared and {"onceward_depth", "onceward_completed_total", "onceward_outbox_lag_ms", "onceward_state"} <= asked
    need("promtool")
    exprs = sorted({t["expr"].replace("$__rate_interval", "1m") for p in panels for t in p["targets"]})
    group = yaml.safe_dump({"groups": [{"name": "g", "rules": [{"record": f"r{i}", "expr": expr} for i, expr in enumerate(exprs)]}]})
    done = subprocess.run(["promtool", "check", "rules", "/dev/stdin"], input=group.encode(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout.decode()


# Records.

def record(name):
    """Its lines, each with its time."""
    with (gzip.open if name.endswith(".gz") else open)(os.path.join(RECORDS, name), "rt") as f:
        lines = f.read().splitlines(keepends=True)
    return [(datetime.datetime.fromisoformat(json.loads(line[line.index("{"):])["ts"].replace("Z", "+00:00")).timestamp(), line) for line in lines]


def mtail(path, program=PROGRAM, found=lambda value, gone_at: value):
    """The metrics that mtail makes of a log: name with its labels to value, and when it forgets that, as `found` says."""
    done = subprocess.run(["mtail", "--one_shot", "--one_shot_format=json", "--progs", program, "--logs", str(path), "--logtostderr",
                           "--address", "127.0.0.1", "--port", "0"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr.decode()
    values = {}
    for metric in (metric for metrics_of_name in json.loads(done.stdout).values() for metric in metrics_of_name):
        for one in metric.get("LabelValues") or []:
            labels = ",".join(f'{key}="{label}"' for key, label in sorted(zip(metric["Keys"], one.get("Labels") or [])))
            # "Expiry" is missing where nothing says after how long it is deleted
            gone_at = (one["Value"]["Time"] + one["Expiry"]) / 1e9 if one.get("Expiry") else float("inf")
            values[metric["Name"], labels] = found(one["Value"].get("Value", 0), gone_at)
    return values


def in_steps(prefixes, folder):
    """The series that mtail makes of that many lines, by step, of all steps at once: each step's lines are in files like the kubelet's, of pods of their own."""
    program = os.path.join(folder, "onceward.mtail")
    with open(PROGRAM) as f, open(program, "w") as to:
        to.write(f.read().replace(r"\/var\/log\/pods\/", folder.replace("/", r"\/") + r"\/pods\/"))
    shutil.rmtree(os.path.join(folder, "pods"), ignore_errors=True)
    for step, lines in prefixes.items():
        pods = {}
        for line in lines:
            pods.setdefault(place_of(line), []).append(line[line.index("{"):])
        for (namespace, pod), said in pods.items():
            path = os.path.join(folder, "pods", f"{namespace}_{step}.{pod}_uid", "onceward")
            os.makedirs(path)
            with open(os.path.join(path, "0.log"), "w") as f:
                f.writelines(said)
    found = {}
    for (name, labels), value in mtail(os.path.join(folder, "pods/*/onceward/*.log"), program, lambda *pair: pair).items():
        step, = re.findall(r'pod="(\d+)\.', labels)
        found.setdefault(int(step), {})[name, re.sub(r'pod="\d+\.', 'pod="', labels)] = value
    return found


def place_of(line):
    """Namespace and pod, which stand before a record's line where it has several: NAMESPACE/POD, or POD."""
    *namespace, pod = (line[:line.index("{")].strip() or "pod").split("/")
    return (namespace or ["payments"])[0], pod


def expected(name):
    with open(os.path.join(RECORDS, "alerts.json")) as f:
        return set(json.load(f)[name])


def step_s(lines):
    return LONG_STEP_S if lines[-1][0] - lines[0][0] > LONG_S else STEP_S


def series_of(lines, folder, interval=None, silence_s=SILENCE_S):
    """The series that Prometheus would have scraped: each metric's values, one per step, from the first line to silence_s after the last."""
    interval = interval or step_s(lines)
    start, end = lines[0][0], lines[-1][0] + silence_s
    steps = int((end - start) / interval) + 1
    prefixes, series = {}, {}
    for step in range(steps):
        seen = [line for at, line in lines if at <= start + step * interval]
        if not step or len(seen) > len(prefixes[max(prefixes)]):
            prefixes[step] = seen
    found, values = in_steps(prefixes, folder), {}
    for step in range(steps):
        values = found.get(step, values)
        there = {key: value for key, (value, gone_at) in values.items() if gone_at > start + step * interval}
        for key in there.keys() | series.keys():
            of_key = series.setdefault(key, ["_"] * step)
            # promtool's clock begins at 0; what is not scraped any more is stale at once
            of_key.append("stale" if key not in there else str(there[key] - start if key[0] == "onceward_stats_seconds" else there[key]))
    return series


def fired(series, folder, interval, until_s=None, from_s=0):
    """The alerts that fire at some step, by promtool: it is asked to find none, and says which there were."""
    first = int(from_s / interval)
    steps = int(until_s / interval) + 1 if until_s else max(map(len, series.values()))
    tests = {"rule_files": [os.path.join(DEPLOY, "alerts/prometheus.yaml")], "evaluation_interval": f"{interval}s", "tests": [{
        "interval": f"{interval}s",
        "input_series": [{"series": f"{name}{{{labels}}}", "values": " ".join(values[:steps])} for (name, labels), values in series.items()],
        "alert_rule_test": [{"alertname": name, "eval_time": f"{step * interval}s", "exp_alerts": []}
                            for name in rules("prometheus.yaml") for step in range(first, steps, 1 if interval > STEP_S else 3)]}]}
    path = os.path.join(folder, "test.yaml")
    with open(path, "w") as f:
        json.dump(tests, f)
    done = subprocess.run(["promtool", "test", "rules", path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = done.stdout.decode()
    names = re.findall(r"alertname: (\w+), time: (\w+)", text)
    assert bool(done.returncode) == bool(names), text
    return {name for name, _ in names}


def both_ends(name, folder):
    """The alerts that fire before a record's end, and all that fire, with SILENCE_S after it. And its series."""
    lines = record(name)
    series, interval = series_of(lines, folder), step_s(lines)
    return fired(series, folder, interval, lines[-1][0] - lines[0][0]), fired(series, folder, interval), series


def test_each_alert_fires_in_a_recorded_fault():
    with open(os.path.join(RECORDS, "alerts.json")) as f:
        wanted = json.load(f)
    assert set(wanted) | {"alerts.json"} == set(os.listdir(RECORDS)) and {f"{name}.gz" for name in EACH} <= set(wanted)
    assert set().union(*wanted.values()) | {"OncewardSilent"} == set(rules("prometheus.yaml"))


@pytest.mark.parametrize("name", EACH)
def test_a_record_of_one_fault_fires_its_alert_alone(tmp_path, name):
    need("mtail")
    need("promtool")
    name, folder = f"{name}.gz", str(tmp_path)
    lines = record(name)
    before, _, series = both_ends(name, folder)
    assert before == expected(name)
    assert fired(series, folder, step_s(lines), HEALTHY_S) == set(), "as long as all is well"


def test_a_record_of_faults_fires_what_it_should(tmp_path):
    need("mtail")
    need("promtool")
    before, later, _ = both_ends("faults.log", str(tmp_path))
    assert before == expected("faults.log") and later == before | {"OncewardSlowAnswers", "OncewardSilent"}  # answers were slow at its end


def test_a_healthy_record_fires_nothing_until_it_ends(tmp_path):
    need("mtail")
    need("promtool")
    before, later, _ = both_ends("healthy.log", str(tmp_path))
    assert before == expected("healthy.log") == set() and later == {"OncewardSilent"}


def test_a_chaos_run_fires_what_it_should(tmp_path):
    need("mtail")
    need("promtool")
    before, later, _ = both_ends("chaos.gz", str(tmp_path))
    assert before == expected("chaos.gz") and later == before | {"OncewardSilent"}


def test_a_calm_run_of_many_pods_fires_nothing_until_it_ends(tmp_path):
    need("mtail")
    need("promtool")
    before, later, series = both_ends("calm.gz", str(tmp_path))
    assert before == expected("calm.gz") == set() and later == {"OncewardSilent"}
    assert len({key[1] for key in series if key[0] == "onceward_completed_total"}) >= 8, "a series for each queue of each pod"


# Cases: lines as sidecars write them, through mtail and the rules of Prometheus, and as they are through those of Loki, by its own engine.

OF_LINES = {"OncewardNotConsuming", "OncewardOutboxStalled"}  # their tests are here, and not in prometheus_test.yaml
ENGINE = os.path.join(os.environ.get("ONCEWARD_KUBERNETES", "/var/tmp/onceward-kubernetes"), "bin/rules")  # test/run --kubernetes builds it
START = 1_700_000_000
CASE_STEP_S = 30
CALM = {"state": "consuming", "paused_for_ms": 0, "received": 0, "completed": 0, "retried": 0, "dead": 0, "forward_ms_p99": None, "depth": 0,
        "oldest_snapshot_ms": 0, "oldest_unfinished_ms": 0, "dropped_lines": 0}
AT_REST = {"state": "relaying", "holder": "a", "published": 0, "letters": 0, "waiting": 0, "lag_ms": 0, "dead_letters": 0}


def said(place, at_s, event="stats", level="info", **more):
    at = datetime.datetime.fromtimestamp(START + at_s, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return START + at_s, f"{place} " + json.dumps({"ts": at, "level": level, "event": event, **more}, separators=(",", ":")) + "\n"


def figures(place, minutes, every_s=60, **more):
    """Stats lines of a queue, from one minute to another; a value may be a function of the seconds since the first."""
    return [said(place, at_s, queue="q", **{key: value(at_s - minutes[0] * 60) if callable(value) else value for key, value in {**CALM, **more}.items()})
            for at_s in range(minutes[0] * 60, minutes[1] * 60, every_s)]


def outboxes(place, minutes, **more):
    return [said(place, at_s, "outbox", **{key: value(at_s) if callable(value) else value for key, value in {**AT_REST, **more}.items()})
            for at_s in range(minutes[0] * 60, minutes[1] * 60, 60)]


def ms(seconds):
    return 1000 * seconds


PAUSED = {"state": "paused", "paused_for_ms": ms, "every_s": 10}
AWAY = {"state": "disconnected", "depth": None, "every_s": 10}
NO_DATABASE = {**PAUSED, "paused_reason": "database_down"}
CASES = {  # name: lines, and what fires at some time before the last of them
    "no broker": (figures("p/a", (0, 3)) + figures("p/a", (3, 12), **AWAY), {"OncewardNotConsuming"}),
    "no queue": (figures("p/a", (0, 3)) + figures("p/a", (3, 12), state="no_queue", depth=None), {"OncewardNotConsuming"}),
    "wrong password from the start": (figures("p/a", (0, 10), **AWAY), {"OncewardNotConsuming"}),
    "the database refuses the login": (figures("p/a", (0, 10), **NO_DATABASE), {"OncewardNotConsuming", "OncewardPaused"}),
    "one has no database, the other no broker": (figures("p/a", (0, 10), **NO_DATABASE) + figures("p/b", (0, 10), **AWAY), {"OncewardNotConsuming"}),
    "one has no database, the other consumes": (figures("p/a", (0, 10), **NO_DATABASE) + figures("p/b", (0, 10)), set()),
    "another replica consumes": (figures("p/a", (0, 12)) + figures("p/b", (0, 12), **AWAY), set()),
    "standby": (figures("p/a", (0, 12), state="standby"), set()),
    "a short cut": (figures("p/a", (0, 3)) + figures("p/a", (3, 4), **AWAY) + figures("p/a", (4, 12)), set()),
    "all pods end in order": (figures("p/a", (0, 4)) + [said("p/a", 241, queue="q", **{**CALM, "state": "drained"})] + outboxes("p/b", (0, 12)),
                              {"OncewardSilent"}),
    "paused": (figures("p/a", (0, 10), **PAUSED), {"OncewardPaused"}),
    "masked: staging is well, production is paused": (figures("staging/s", (0, 10)) + figures("production/a", (0, 10), **PAUSED), {"OncewardPaused"}),
    "masked: production has no broker": (figures("staging/s", (0, 10)) + figures("production/a", (0, 10), **AWAY), {"OncewardNotConsuming"}),
    "masked: production is silent": (figures("staging/s", (0, 12)) + figures("production/a", (0, 4)), {"OncewardSilent"}),
    "masked: nothing completes in production": (
        figures("staging/s", (0, 14), 10, completed=9) + figures("production/a", (0, 14), 10, depth=7), {"OncewardNothingCompletes"}),
    "a pod's first line is an error": (figures("p/a", (0, 12)) + [said("p/b", 360, "config_error", "error")], {"OncewardErrors"}),
    "a death in a pod's first line": (figures("p/a", (0, 16)) + [said("p/b", 361, "dead", "error", queue="q", reason="attempts")]
                                      + figures("p/b", (7, 8), dead=1) + figures("p/b", (8, 16)), {"OncewardDeadLetters"}),
    "a pod that is gone left a backlog": (figures("p/old", (0, 5), 10, depth=50, completed=5) + figures("p/new", (5, 18)), set()),
    "a pod that is gone was not paused": (figures("p/old", (0, 5)) + figures("p/new", (5, 11), **PAUSED), {"OncewardPaused"}),
    "one slow message": (figures("p/a", (0, 3)) + figures("p/a", (3, 4), forward_ms_p99=26000.5) + figures("p/a", (4, 15)), set()),
    "an outbox alone": (outboxes("p/a", (0, 12)) + outboxes("p/b", (0, 12), state="standby"), set()),
    "a masked outbox alone is silent": (figures("p/c", (0, 12)) + outboxes("p/a", (0, 4)), {"OncewardSilent"}),
    "the outbox waits": (outboxes("p/a", (0, 10), waiting=4, lag_ms=ms), {"OncewardOutboxStalled"}),
    "nobody relays": (outboxes("p/a", (0, 10), state="disconnected", holder=None, waiting=None, lag_ms=None), {"OncewardOutboxStalled"}),
    "masked: nobody relays in production": (outboxes("staging/s", (0, 10)) + outboxes("production/a", (0, 10), state="standby"),
                                            {"OncewardOutboxStalled"}),
    "a letter of the outbox": (outboxes("p/a", (0, 3)) + [said("p/a", 175, "outbox_letter", "warning", letter=1, reason="unroutable")]
                               + outboxes("p/a", (3, 4), letters=1) + outboxes("p/a", (4, 10)), {"OncewardDeadLetters"}),
    "a letter in an outbox's first line": (figures("p/b", (0, 12)) + [said("p/a", 480, "outbox_letter", "warning", letter=1, reason="unroutable")]
                                           + outboxes("p/a", (9, 10), letters=1) + outboxes("p/a", (10, 12)), {"OncewardDeadLetters"}),
}


@pytest.mark.parametrize("name", CASES)
def test_prometheus_in_a_case(tmp_path, name):
    need("mtail")
    need("promtool")
    lines, fires = CASES[name]
    assert fired(series_of(sorted(lines), str(tmp_path), CASE_STEP_S, 0), str(tmp_path), CASE_STEP_S) == fires


def ask_loki(asked):
    """By Loki's engine: the alerts that fire, by case. asked: by case lines, and the seconds since START between which it is looked."""
    if not os.access(ENGINE, os.X_OK):
        pytest.skip("Loki's engine is not here: test/run --kubernetes builds it")
    known, given = rules("loki.yaml"), {}
    for case, (lines, from_s, until_s) in asked.items():
        streams = {}
        for at, line in sorted(lines):
            namespace, pod = place_of(line)
            streams.setdefault(f'{{namespace="{namespace}", container="onceward", pod="{pod}"}}', []).append(
                {"at": int(at * 1000) * 10**6, "text": line[line.index("{"):].strip()})
        given[case] = {"streams": streams, "queries": [{"name": name, "expr": rule["expr"], "start": (START + from_s) * 10**9,
                                                        "end": (START + until_s) * 10**9, "step": CASE_STEP_S} for name, rule in known.items()]}
    done = subprocess.run([ENGINE], input=json.dumps(given).encode(), stdout=subprocess.PIPE, check=True)
    return {case: {name for name, series in answers.items() if any(lasts(times, known[name].get("for", "0s")) for times in series)}
            for case, answers in json.loads(done.stdout).items()}


def lasts(times, how_long):
    """Whether one after another of the steps are so long."""
    steps = int(how_long[:-1]) * {"s": 1, "m": 60}[how_long[-1]] // CASE_STEP_S
    return any(times[n + steps] - times[n] <= steps * CASE_STEP_S for n in range(len(times) - steps))


def test_loki_in_each_case():
    found = ask_loki({case: (lines, 60, int(max(lines)[0] - START)) for case, (lines, _) in CASES.items()})
    assert {case: fires for case, (_, fires) in CASES.items()} == found


def test_loki_draws_many_pods_with_many_queues():
    """60 pods of 16 queues each, without more series than Loki answers with."""
    if not os.access(ENGINE, os.X_OK):
        pytest.skip("Loki's engine is not here: test/run --kubernetes builds it")
    with open(os.path.join(DEPLOY, "dashboards/onceward.json")) as f:
        exprs = {f"{panel['title']} {target['refId']}": target["expr"] for panel in json.load(f)["panels"] if panel["type"] != "logs"
                 for target in panel["targets"]}
    for name, value in (("$namespace", ".*"), ("$queue", ".+"), ("$__interval_ms", "60000"), ("$__interval", "60s")):
        exprs = {key: expr.replace(name, value) for key, expr in exprs.items()}
    of_stats = dict.fromkeys((key for key in keys() if not re.search("detail$|reason$", key)), 1)
    of_outbox = dict.fromkeys(keys("OUTBOX"), 1)
    streams = {f'{{namespace="p", container="onceward", pod="{pod}"}}': [
        {"at": START * 10**9 + n, "text": line[line.index("{"):].strip()} for n, (_, line) in enumerate(
            [said("p", 0, "outbox", **of_outbox)] + [said("p", 0, **{**of_stats, "queue": f"q{q}", "state": "consuming"}) for q in range(16)])]
        for pod in range(60)}
    given = {"many": {"streams": streams, "queries": [{"name": name, "expr": expr, "start": START * 10**9, "end": (START + 30) * 10**9, "step": 30}
                                                      for name, expr in exprs.items()]}}
    done = subprocess.run([ENGINE], input=json.dumps(given).encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr.decode()
    answers = json.loads(done.stdout)["many"]
    assert {name for name, series in answers.items() if not series} == set() and all(len(series) <= 16 for series in answers.values())


def test_silence_lasts(tmp_path):
    """While nothing comes back the alert fires: by Prometheus for a day, by Loki for an hour of one queue, and for good where nothing writes."""
    lines, down_s = figures("p/a", (0, 5)), 3000
    assert ask_loki({"down": (lines, down_s, down_s + 600), "for long": (lines, 20000, 20600)}) == {"down": {"OncewardSilent"}, "for long": {"OncewardSilent"}}
    need("mtail")
    need("promtool")
    series = series_of(lines, str(tmp_path), 600, 80000)
    assert fired(series, str(tmp_path), 600, from_s=79000) == {"OncewardSilent"}


def test_silence_of_mtail_itself(tmp_path):
    need("promtool")
    assert fired({("up", 'job="other"'): ["1"] * 40}, str(tmp_path), CASE_STEP_S) == {"OncewardSilent"}


def test_mtail_counts_what_the_lines_say(tmp_path):
    need("mtail")
    for name in "faults.log", "healthy.log":
        lines = [json.loads(line) for _, line in record(name)]
        stats = [line for line in lines if line["event"] == "stats"]
        found = mtail(os.path.join(RECORDS, name))
        queue, = {line["queue"] for line in stats}
        labels = f'namespace="",pod="",queue="{queue}"'
        for key in "received", "completed", "dead", "retried":
            assert found[f"onceward_{key}_total", labels] == sum(line[key] for line in stats) == stats[-1][key + "_total"], key
        for key in "depth", "parked", "held_bytes", "paused_for_ms":
            assert found.get(("onceward_" + key, labels)) == stats[-1][key], f"{key}: null is no value"
        assert {k[0] for k in found} <= metrics() and found["onceward_state", labels + f',state="{stats[-1]["state"]}"'] == 1
        n = sum(line["event"] == "stats" for line in lines)
        assert found["onceward_lines_total", 'event="stats",level="info",namespace="",pod=""'] == n


def test_mtail_in_a_cluster_is_called_as_the_page_says(tmp_path):
    need("promtool")
    with open(os.path.join(DEPLOY, "logs/mtail.yaml")) as f:
        thing, policy = yaml.safe_load_all(f)
    with open(os.path.join(DEPLOY, "logs/kustomization.yaml")) as f:
        made = yaml.safe_load(f)
    pod = thing["spec"]["template"]
    container, = pod["spec"]["containers"]
    assert thing["kind"] == "DaemonSet" and thing["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["spec"]["volumes"]}
    port, = container["ports"]
    assert {container[probe]["httpGet"]["port"] for probe in ("readinessProbe", "livenessProbe")} == {port["name"]}
    assert policy["spec"]["podSelector"] == {"matchLabels": pod["metadata"]["labels"]} and policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    rule, = policy["spec"]["ingress"]
    assert rule["from"] and rule["ports"] == [{"port": port["containerPort"], "protocol": "TCP"}] and "egress" not in policy["spec"]
    maps = {m["name"]: m["files"] for m in made["configMapGenerator"]}
    program, = next(v["configMap"] for v in pod["spec"]["volumes"] if "configMap" in v).values()
    assert made["resources"] == ["mtail.yaml"] and maps[program] == ["onceward.mtail"]
    with open(os.path.join(DEPLOY, "logs/README.md")) as f:
        command, = re.findall(r"^(mtail --progs .*)$", f.read(), re.M)
    for option, value in re.findall(r"--(\w+) '?([^' ]+)'?", command):
        given, = [arg.split("=", 1)[1] for arg in container["args"] if arg.startswith(f"--{option}=")]
        assert given == value or option == "progs" and given == "/etc/mtail/" + value
    with open(os.path.join(DEPLOY, "logs/scrape.yaml")) as f:
        job, = yaml.safe_load(f)["scrape_configs"]
    with open(os.path.join(DEPLOY, "logs/podmonitor.yaml")) as f:
        monitor = yaml.safe_load(f)["spec"]
    assert job["honor_labels"] and monitor["podMetricsEndpoints"][0]["honorLabels"], "else namespace and pod would be mtail's own"
    assert monitor["selector"]["matchLabels"] == {"app": job["relabel_configs"][0]["regex"]} == pod["metadata"]["labels"]
    del job["kubernetes_sd_configs"]  # Debian's promtool is built without it
    with open(tmp_path / "prometheus.yml", "w") as f:
        json.dump({"scrape_configs": [job]}, f)
    done = subprocess.run(["promtool", "check", "config", f.name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout.decode()


def test_the_page_is_scraped_with_the_labels_of_the_log(tmp_path):
    need("promtool")
    with open(os.path.join(DEPLOY, "logs/scrape-page.yaml")) as f:
        job, = yaml.safe_load(f)["scrape_configs"]
    assert {r["target_label"] for r in job["relabel_configs"] if "target_label" in r} == {"namespace", "pod"}
    del job["kubernetes_sd_configs"]  # Debian's promtool is built without it
    with open(tmp_path / "prometheus.yml", "w") as f:
        json.dump({"scrape_configs": [job]}, f)
    done = subprocess.run(["promtool", "check", "config", f.name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout.decode()


def test_lnav_reads_the_log(tmp_path):
    need("lnav")
    environment = dict(os.environ, HOME=str(tmp_path), XDG_CONFIG_HOME=str(tmp_path / "config"))
    subprocess.run(["lnav", "-i", os.path.join(DEPLOY, "logs/onceward.lnav.json")], check=True, env=environment, stdin=subprocess.DEVNULL,
                   stdout=subprocess.DEVNULL)
    done = subprocess.run(["lnav", "-n", "-c", ";SELECT event, count(*) FROM onceward_log GROUP BY event", "-c", ":write-csv-to -",
                           os.path.join(RECORDS, "faults.log")], check=True, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    counted = dict(line.split(",") for line in done.stdout.decode().split() if "," in line and not line.startswith("event"))
    wanted = {}
    for _, line in record("faults.log"):
        event = json.loads(line)["event"]
        wanted[event] = str(int(wanted.get(event, 0)) + 1)
    assert counted == wanted
