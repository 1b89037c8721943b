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

from test_log import sentences
from test_stats import fields, keys

yaml = pytest.importorskip("yaml", reason="without python3-yaml no rule can be read")

HERE = os.path.dirname(os.path.abspath(__file__))
DEPLOY = os.path.join(HERE, "../../deploy")
RECORDS = os.path.join(HERE, "records")
PROGRAM = os.path.join(DEPLOY, "logs/onceward.mtail")
STEP_S, LONG_STEP_S, LONG_S = 10, 60, 900  # between two looks at a record, and at one that is long
SILENCE_S = 300  # after its end
EACH = ("away", "overloaded", "fails", "refuses", "slow", "outgrown", "later", "open_transaction", "unread")
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


def in_steps(prefixes, folder):
    """What mtail makes of so many lines, by step, of all steps at once: each step's lines are in files as kubelet's, as of pods of their own."""
    program = os.path.join(folder, "onceward.mtail")
    with open(PROGRAM) as f, open(program, "w") as to:
        to.write(f.read().replace(r"\/var\/log\/pods\/", folder.replace("/", r"\/") + r"\/pods\/"))
    for step, lines in prefixes.items():
        pods = {}
        for line in lines:
            pods.setdefault(line[:line.index("{")].strip() or "pod", []).append(line[line.index("{"):])
        for pod, said in pods.items():
            path = os.path.join(folder, "pods", f"payments_{step}.{pod}_uid", "onceward")
            os.makedirs(path)
            with open(os.path.join(path, "0.log"), "w") as f:
                f.writelines(said)
    found = {}
    for (name, labels), value in mtail(os.path.join(folder, "pods/*/onceward/*.log"), program).items():
        step, = re.findall(r'pod="(\d+)\.', labels)
        found.setdefault(int(step), {})[name, re.sub(r'pod="\d+\.', 'pod="', labels)] = value
    return found


def expected(name):
    with open(os.path.join(RECORDS, "alerts.json")) as f:
        return set(json.load(f)[name])


def step_s(lines):
    return LONG_STEP_S if lines[-1][0] - lines[0][0] > LONG_S else STEP_S


def series_of(lines, folder):
    """What Prometheus would have scraped: each metric's values, one a step, from the first line to SILENCE_S after the last."""
    start, end, interval = lines[0][0], lines[-1][0] + SILENCE_S, step_s(lines)
    steps = int((end - start) / interval) + 1
    prefixes, series = {}, {}
    for step in range(steps):
        seen = [line for at, line in lines if at <= start + step * interval]
        if not step or len(seen) > len(prefixes[max(prefixes)]):
            prefixes[step] = seen
    found, values = in_steps(prefixes, folder), {}
    for step in range(steps):
        values = found.get(step, values)
        for key, value in values.items():
            # promtool's clock begins at 0
            series.setdefault(key, ["_"] * step).append(str(value - start if key[0] == "onceward_stats_seconds" else value))
    return series


def fired(series, folder, interval, until_s=None):
    """The alerts that fire at some step, by promtool: it is asked to find none, and says which there were."""
    steps = int(until_s / interval) + 1 if until_s else max(map(len, series.values()))
    tests = {"rule_files": [os.path.join(DEPLOY, "alerts/prometheus.yaml")], "evaluation_interval": f"{interval}s", "tests": [{
        "interval": f"{interval}s",
        "input_series": [{"series": f"{name}{{{labels}}}", "values": " ".join(values[:steps])} for (name, labels), values in series.items()],
        "alert_rule_test": [{"alertname": name, "eval_time": f"{step * interval}s", "exp_alerts": []}
                            for name in rules("prometheus.yaml") for step in range(0, steps, 1 if interval > STEP_S else 3)]}]}
    path = os.path.join(folder, "test.yaml")
    with open(path, "w") as f:
        json.dump(tests, f)
    done = subprocess.run(["promtool", "test", "rules", path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = done.stdout.decode()
    names = re.findall(r"alertname: (\w+), time: (\w+)", text)
    assert bool(done.returncode) == bool(names), text
    return {name for name, _ in names}


def both_ends(name, folder):
    """What fires before a record's end, and what fires in all, with SILENCE_S after it. And its series."""
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
