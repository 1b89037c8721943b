"""What deploy/ ships, in a real cluster, under load. Started by test/kubernetes, in a network, mount and process namespace of its own.

Private RabbitMQ and PostgreSQL listen on this side; pods reach them at the node's address, which two rules translate. The payments example
is applied as it is, but for the names of images and servers, and a shorter `shutdown_grace`. A publisher sends so many messages a second
while one scenario after another runs; in the end each message has one charge, whatever happened, and at its first attempt, and no hook has failed.

deploy/kubernetes/TESTED.md has the results."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../system")]

import admission  # noqa: E402
import alerts  # noqa: E402
import loki  # noqa: E402
import manifests  # noqa: E402
import protocol  # noqa: E402
from cluster import Cluster, Lines, Watch, forward  # noqa: E402
from load import Ledger, Publisher, set_up  # noqa: E402
from rig import process, servers  # noqa: E402
from scenarios import SCENARIOS, Bench  # noqa: E402


WITHOUT_CLUSTER = ("alerts", "ruler")
WITHOUT_LOAD = ("manifests", "admission")
NAMED = {"ruler"}  # only when named: it takes minutes for each record


def program(cluster, options, name, binary, folder):
    output = os.path.join(folder, name)
    subprocess.run([os.path.join(options.root, "deploy/image/build"), "--binary", binary, "--output", output], check=True)
    archive, = [os.path.join(output, file) for file in os.listdir(output) if file.endswith(".tar")]
    cluster.script("image", name, archive)


def images(cluster, options, folder):
    """localhost/onceward:1 and :2, the same program under two names, and localhost/payments:1."""
    program(cluster, options, "onceward", os.path.join(options.root, ".build-release/onceward"), folder)
    if options.before:
        program(cluster, options, "before", options.before, folder)
    application = os.path.join(folder, "application")
    os.makedirs(application)
    shutil.copy(os.path.join(options.binaries, "application"), application)
    with open(os.path.join(application, "Containerfile"), "w") as f:
        f.write('FROM scratch\nCOPY application /application\nENTRYPOINT ["/application"]\n')
    cluster.script("image", "payments", application)


def refuses_what_is_not_restricted(cluster):
    """The API server takes no pod that is not restricted."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "root"}, "spec": {"containers": [
        {"name": "root", "image": "localhost/onceward:1", "securityContext": {"privileged": True}}]}}
    output = cluster.kubectl("apply", "-f", "-", text=json.dumps(pod), check=False)
    return [] if "violates PodSecurity" in output else [f"a privileged pod was taken: {output}"]


def manifests_pass(cluster, folder):
    """Everything in deploy/ by a strict server-side dry run; the namespace enforces the restricted Pod Security."""
    passed, refused, unknown = manifests.dry_run(cluster, os.path.join(folder, "chart"))
    print(f"  {passed} objects taken; not tried, since this server has no such kind: {', '.join(unknown) or 'none'}")
    return refused + refuses_what_is_not_restricted(cluster)


def apply_all(bench):
    """The example, whole, by the sequence of its page."""
    bench.migrate()
    bench.apply("payments")
    bench.cluster.settled()


class Judge:
    """The conditions of every scenario, beside its own assertions."""

    def __init__(self, cluster):
        self.cluster, self.watch, self.lines = cluster, Watch(cluster), Lines(cluster)
        self.watch.start()
        self.lines.start()
        self.begin()

    def begin(self):
        self.ends, self.line, self.started = dict(self.watch.ends), len(self.lines.lines), time.time()
        self.cluster.kubectl("delete", "events", "--all", "--wait=false")

    def faults(self, scenario):
        found = [f"a hook failed: {e['involvedObject']['name']}: {e['message']}" for e in self.cluster.get("events")
                 if e["reason"] == "FailedPreStopHook" and not scenario.cuts]
        for (pod, container, _), (code, reason) in self.watch.since(self.ends).items():
            if code not in scenario.exits:
                found.append(f"{pod}: {container} ended with {code} {reason}")
        if scenario.quiet:
            found += self.lines.loud(self.line)
        return found


def run_one(name, bench, judge, url, options):
    scenario = SCENARIOS[name]
    print(f"{name}: {scenario.__doc__}", flush=True)
    bench.postgres.query("TRUNCATE charges, onceward.inbox, onceward.dead_letter", database="app")
    publisher, started, faults, ledger = Publisher(url, options.rate), time.monotonic(), [], "nothing counted"
    judge.begin()
    publisher.start()
    try:
        time.sleep(3)  # so that messages are under way when it begins
        scenario(bench)
        time.sleep(2)
    except Exception as error:  # noqa: BLE001 - the next one is to be tried all the same
        faults.append(f"{type(error).__name__}: {error}")
        if not isinstance(error, (AssertionError, RuntimeError)):
            faults.append(traceback.format_exc())
    published = publisher.stop()
    try:
        ledger = Ledger(bench.postgres, published, publisher.took_s, options.completion)
        print(f"  {ledger}")
        faults += ledger.faults(scenario)
    except Exception as error:  # noqa: BLE001
        faults.append(f"the ledger: {error}")
    faults += judge.faults(scenario)
    ended = len(judge.watch.since(judge.ends))
    for fault in faults[:20]:
        print(f"  FAULT {fault}")
    print(f"  {'FAILED' if faults else 'ok'} after {time.monotonic() - started:.0f} s; {ended} containers ended", flush=True)
    if options.protocol:
        os.makedirs(options.protocol, exist_ok=True)
        protocol.write(os.path.join(options.protocol, f"{name}.txt"), bench.cluster, judge, f"{scenario.__doc__} {ledger}")
    return not faults


def report(faults):
    for fault in faults:
        print(f"  FAULT {fault}")
    print(f"  {'FAILED' if faults else 'ok'}", flush=True)
    return not faults


def run_all(bench, judge, url, options):
    results = []
    for name in options.only:
        if name not in SCENARIOS:
            continue
        if name == "versions" and not options.before:
            print(f"{name}: {SCENARIOS[name].__doc__}")
            results.append(report(["no program of a revision before this one: the first lines of the output have the reason"]))
            continue
        results.append(run_one(name, bench, judge, url, options))
        if not results[-1]:  # the next one begins with three pods that work
            try:
                bench.cluster.kubectl("delete", "statefulset/payments", "job/batch", "--ignore-not-found")
                bench.apply("payments", kinds={"Deployment", "PodDisruptionBudget", "ConfigMap"})
                bench.cluster.settled()
            except Exception as error:  # noqa: BLE001
                print(f"  not mended: {error}")
    return results


def parse():
    parser = argparse.ArgumentParser(prog="test/run --kubernetes")
    parser.add_argument("--root", required=True)
    parser.add_argument("--binaries", required=True)
    parser.add_argument("--cache")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[])
    parser.add_argument("--rate", type=int, default=500)
    parser.add_argument("--completion", choices=("transaction", "response"), default="transaction")
    parser.add_argument("--protocol")
    parser.add_argument("--before", help="the program's path is in ONCEWARD_KUBERNETES_BEFORE")
    parser.add_argument("--no-install", action="store_true")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    names = [*WITHOUT_CLUSTER, *WITHOUT_LOAD, *SCENARIOS]
    unknown = set(options.only) - set(names)
    if unknown:
        parser.error(f"--only: no {', '.join(unknown)}; there are {', '.join(names)}")
    options.only = options.only or [name for name in names if name not in NAMED]
    options.before = os.environ["ONCEWARD_KUBERNETES_BEFORE"] if "versions" in options.only else None
    return options


def run(options, folder, cluster, running):
    results = []
    if "alerts" in options.only:
        print(f"alerts: {alerts.rules_hold.__doc__}", flush=True)
        results.append(report(alerts.rules_hold(options.root, options.binaries)))
    if "ruler" in options.only:
        print(f"ruler: {loki.ruler_holds.__doc__}", flush=True)
        results.append(report(loki.ruler_holds(options.root, options.binaries, folder)))
    if set(options.only) - set(WITHOUT_CLUSTER):
        results += run_in_cluster(options, folder, cluster, running)
    return results


def run_in_cluster(options, folder, cluster, running):
    running.start()
    postgres, rabbitmq = running.postgres, running.rabbitmq
    set_up(postgres, rabbitmq)
    forward(manifests.BROKER_PORT, rabbitmq.port)
    forward(manifests.DATABASE_PORT, postgres.port)
    started = time.monotonic()
    images(cluster, options, folder)
    cluster.script("up")
    print(f"The cluster is up after {time.monotonic() - started:.0f} s.", flush=True)
    bench = Bench(cluster, postgres, rabbitmq, folder, options.completion)
    results = []
    space = next(t for t in manifests.rendered(cluster, "payments") if t["kind"] == "Namespace")
    cluster.kubectl("apply", "-f", "-", text=yaml.safe_dump(space))
    if "manifests" in options.only:
        print(f"manifests: {manifests_pass.__doc__}", flush=True)
        results.append(report(manifests_pass(cluster, folder)))
    if "admission" in options.only:
        print(f"admission: {admission.admission_holds.__doc__}", flush=True)
        results.append(report(admission.admission_holds(cluster)))
    bench.judge = Judge(cluster)
    if "logs" in options.only:
        bench.loki = loki.Loki(options.root, options.binaries, os.path.join(cluster.folder, "loki"))
        try:
            bench.loki.start()
            bench.loki.start_collector(os.path.join(cluster.folder, "log/pods"))
            return results + run_under_load(bench, options)
        finally:
            bench.loki.stop()
    return results + run_under_load(bench, options)


def run_under_load(bench, options):
    if not set(options.only) & set(SCENARIOS):
        return []
    apply_all(bench)
    return run_all(bench, bench.judge, bench.rabbitmq.url(), options)


def main():
    options = parse()
    process.interrupt_on_signals()
    folder = tempfile.mkdtemp(prefix="ow-k8s-", dir="/tmp")
    cluster = Cluster(options.root, os.path.join(folder, "c"), options.binaries)
    running, results = servers.Servers(), [False]
    try:
        results = run(options, folder, cluster, running)
    except KeyboardInterrupt:
        print("interrupted")
    except Exception:  # noqa: BLE001
        traceback.print_exc()
    finally:
        for step in (lambda: cluster.script("down"), lambda: running.stop(keep=options.keep)):
            try:
                step()
            except Exception as error:  # noqa: BLE001
                print(f"at the end: {error}", file=sys.stderr)
        if options.keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
        print(f"{results.count(True)} passed, {results.count(False)} failed", flush=True)
    return 1 if False in results or not results else 0


if __name__ == "__main__":
    sys.exit(main())
