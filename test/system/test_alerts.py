"""What is made of the log: alerts, metrics, the dashboard, a format for lnav. Fields and events in them exist; rules fire in their fault
and rest otherwise, by promtool; and two recorded logs go the whole way, through mtail and the rules.

The records, test/system/records, are of sidecars with the default intervals. faults.log: after a while the application was away for two
and a half minutes, then refused three messages, then took 26 s for each, then the sidecar was killed. healthy.log: messages all the time,
then a stop in order. chaos.gz and calm.gz are of `test/chaos --record FILE.gz`, with all its faults, and with `--calm`."""

import datetime
import gzip
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from test_log import sentences
from test_stats import fields, keys

yaml = pytest.importorskip("yaml", reason="without python3-yaml no rule can be read")

HERE = os.path.dirname(os.path.abspath(__file__))
DEPLOY = os.path.join(HERE, "../../deploy")
RECORDS = os.path.join(HERE, "records")
PROGRAM = os.path.join(DEPLOY, "logs/onceward.mtail")
STEP_S = 10  # between two looks at a record
SILENCE_S = 300  # after its end


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
    return set(keys()) | {"ts", "level", "event", "message", "queue", "reason", "message_id", "trace_id", "error", "__error__", "container", "namespace", "pod"}


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
            assert rule["labels"]["severity"] in ("warning", "critical") and set(rule["annotations"]) == {"summary", "runbook"}
            assert set(re.findall(r"onceward explain ([a-z_]+)", rule["annotations"]["runbook"])) <= set(sentences()) | set(fields())
        assert prometheus[name]["annotations"]["runbook"] == loki[name]["annotations"]["runbook"]


def test_an_alert_asks_for_what_exists():
    for name, rule in rules("prometheus.yaml").items():
        asked = set(re.findall(r"\bonceward_\w+", rule["expr"]))
        assert asked and asked <= metrics(), name
        assert set(re.findall(r'event!?="(\w+)"', rule["expr"])) <= set(sentences())
    for name, rule in rules("loki.yaml").items():
        assert set(re.findall(r'event!?="(\w+)"', rule["expr"])) <= set(sentences()), name
        for pipeline in re.findall(r"\{(.*?)\[", rule["expr"]):
            given = set(re.search(r"\| json ([\w, ]+?) \|", pipeline)[1].split(", "))
            asked = set(re.findall(r"unwrap (\w+)", pipeline)) | set(re.findall(r"\| (\w+)!?=", pipeline)) - {"__error__"}
            assert asked and asked <= given <= known_fields(), f"{name}: a field that is asked for is not among those that json gives"
        grouped = {label for labels in re.findall(r"by \(([^)]*)\)", rule["expr"]) for label in labels.split(", ")}
        assert all(grouped <= set(given.split(", ")) for given in re.findall(r"\| json ([\w, ]+?) \|", rule["expr"])), name


def test_the_dashboard_asks_for_what_exists():
    with open(os.path.join(DEPLOY, "dashboards/onceward.json")) as f:
        board = json.load(f)
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    unwrapped = {field for expr in asked for field in re.findall(r"unwrap (\w+)", expr)}
    numbers = {key for key in keys() if not key.endswith("_total") and not re.search(r"^state|detail$|reason$", key)}
    assert unwrapped == numbers, "each number of the stats line is shown, and no other"
    assert all(re.findall(r'event="(\w+)"', expr) in ([], ["stats"]) and expr.count("(") == expr.count(")") for expr in asked)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_rules_fire_in_their_fault_and_rest_otherwise():
    need("promtool")
    with open(os.path.join(DEPLOY, "alerts/prometheus_test.yaml")) as f:
        tests = yaml.safe_load(f)["tests"]
    assert {t["name"] for t in tests} == {f"{name} {does}" for name in rules("prometheus.yaml") for does in ("fires", "rests")}
    for command in ["check", "rules", "prometheus.yaml"], ["test", "rules", "prometheus_test.yaml"]:
        done = subprocess.run(["promtool", *command], cwd=os.path.join(DEPLOY, "alerts"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout.decode()


# Records.

def record(name):
    """Its lines, each with its time."""
    with (gzip.open if name.endswith(".gz") else open)(os.path.join(RECORDS, name), "rt") as f:
        lines = f.read().splitlines(keepends=True)
    return [(datetime.datetime.fromisoformat(json.loads(line[line.index("{"):])["ts"].replace("Z", "+00:00")).timestamp(), line) for line in lines]


def mtail(path, program=PROGRAM):
    """The metrics that mtail makes of a log: name with its labels to value."""
    done = subprocess.run(["mtail", "--one_shot", "--one_shot_format=prometheus", "--progs", program, "--logs", str(path), "--logtostderr",
                           "--address", "127.0.0.1", "--port", "0"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr.decode()
    found = re.findall(r'^(onceward_\w+)\{(.*)\} (\S+)$', done.stdout.decode(), re.M)
    return {(name, ",".join(label for label in labels.split(",") if not label.startswith("prog="))): float(value) for name, labels, value in found}


def one_log(lines, folder):
    path = os.path.join(folder, "onceward.log")
    with open(path, "w") as f:
        f.writelines(lines)
    return mtail(path)


def pods_logs(lines, folder):
    """Lines that stand behind their pod's name, in files as kubelet's, which mtail knows by their names."""
    program = os.path.join(folder, "onceward.mtail")
    with open(PROGRAM) as f, open(program, "w") as to:
        to.write(f.read().replace(r"\/var\/log\/pods\/", folder.replace("/", r"\/") + r"\/pods\/"))
    pods = {}
    for line in lines:
        pods.setdefault(line.split(" ", 1)[0], []).append(line.split(" ", 1)[1])
    for pod, said in pods.items():
        path = os.path.join(folder, "pods", f"payments_{pod}_uid", "onceward")
        os.makedirs(path, exist_ok=True)
        with open(os.path.join(path, "0.log"), "w") as f:
            f.writelines(said)
    return mtail(os.path.join(folder, "pods/*/onceward/*.log"), program)


def series_of(lines, folder, measure=one_log):
    """What Prometheus would have scraped: each metric's values, one a step, from the first line to SILENCE_S after the last."""
    start, end = lines[0][0], lines[-1][0] + SILENCE_S
    steps = int((end - start) / STEP_S) + 1
    series, before = {}, None
    for step in range(steps):
        now = start + step * STEP_S
        seen = [line for at, line in lines if at <= now]
        if len(seen) != before:
            values, before = measure(seen, folder), len(seen)
        for key, value in values.items():
            # promtool's clock begins at 0
            series.setdefault(key, ["_"] * step).append(str(value - start if key[0] == "onceward_stats_seconds" else value))
    return series, steps


def fired(series, steps, folder):
    """The alerts that fire at some step, by promtool: it is asked to find none, and says which there were."""
    tests = {"rule_files": [os.path.join(DEPLOY, "alerts/prometheus.yaml")], "evaluation_interval": f"{STEP_S}s", "tests": [{
        "interval": f"{STEP_S}s",
        "input_series": [{"series": f"{name}{{{labels}}}", "values": " ".join(values)} for (name, labels), values in series.items()],
        "alert_rule_test": [{"alertname": name, "eval_time": f"{step * STEP_S}s", "exp_alerts": []}
                            for name in rules("prometheus.yaml") for step in range(0, steps, 3)]}]}
    path = os.path.join(folder, "test.yaml")
    with open(path, "w") as f:
        json.dump(tests, f)
    done = subprocess.run(["promtool", "test", "rules", path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = done.stdout.decode()
    names = re.findall(r"alertname: (\w+), time: (\w+)", text)
    assert bool(done.returncode) == bool(names), text
    return {name for name, _ in names}


def test_a_record_of_faults_fires_what_it_should(tmp_path):
    need("mtail")
    need("promtool")
    series, steps = series_of(record("faults.log"), str(tmp_path))
    assert fired(series, steps, str(tmp_path)) == {
        "OncewardPaused", "OncewardDeadLetters", "OncewardSlowAnswers", "OncewardSilent"}


def test_a_healthy_record_fires_nothing_until_it_ends(tmp_path):
    need("mtail")
    need("promtool")
    lines = record("healthy.log")
    series, steps = series_of(lines, str(tmp_path))
    assert fired(series, steps, str(tmp_path)) == {"OncewardSilent"}
    until = int((lines[-1][0] - lines[0][0]) / STEP_S)
    assert fired({key: values[:until] for key, values in series.items()}, until, str(tmp_path)) == set()


def test_a_chaos_run_fires_what_it_should(tmp_path):
    need("mtail")
    need("promtool")
    series, steps = series_of(record("chaos.gz"), str(tmp_path), pods_logs)
    assert fired(series, steps, str(tmp_path)) == {"OncewardDeadLetters", "OncewardErrors", "OncewardSilent"}


def test_a_calm_run_of_many_pods_fires_nothing_until_it_ends(tmp_path):
    need("mtail")
    need("promtool")
    lines = record("calm.gz")
    series, steps = series_of(lines, str(tmp_path), pods_logs)
    assert fired(series, steps, str(tmp_path)) == {"OncewardSilent"}
    until = int((lines[-1][0] - lines[0][0]) / STEP_S)
    assert len({key[1] for key in series if key[0] == "onceward_completed_total"}) >= 8, "a series for each queue of each pod"
    assert fired({key: values[:until] for key, values in series.items()}, until, str(tmp_path)) == set()


def test_mtail_counts_what_the_lines_say(tmp_path):
    need("mtail")
    for name in "faults.log", "healthy.log":
        lines = [json.loads(line) for _, line in record(name)]
        stats = [line for line in lines if line["event"] == "stats"]
        found = mtail(os.path.join(RECORDS, name))
        queue, = {line["queue"] for line in stats}
        labels = f'pod="",queue="{queue}"'
        for key in "received", "completed", "dead", "retried":
            assert found[f"onceward_{key}_total", labels] == sum(line[key] for line in stats) == stats[-1][key + "_total"], key
        for key in "depth", "parked", "held_bytes", "paused_for_ms":
            assert found["onceward_" + key, labels] == [line[key] for line in stats if line[key] is not None][-1], key
        assert {k[0] for k in found} <= metrics() and found["onceward_state", labels + f',state="{stats[-1]["state"]}"'] == 1
        n = sum(line["event"] == "stats" for line in lines)
        assert found["onceward_lines_total", 'event="stats",level="info",pod=""'] == n


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
