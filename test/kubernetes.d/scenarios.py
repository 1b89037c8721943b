"""What is done to the cluster under load. Each scenario leaves three pods of the Deployment that work, and raises when it is not as it says.

`quiet` ones are ordinary operation: no line of a sidecar at level warning or error, and each container that ended did so with 0.
`charges`: an attempt may be charged. `cuts`: so often what runs is cut off, so a hook may fail, and in completion `response` what an
application had done when its answer was lost is done again."""

import copy
import json
import os
import signal
import subprocess
import time

import pika
import yaml

import admission
import manifests
from cluster import NAMESPACE, ready, restarts
from load import DELIVERY_LIMIT
from loki import LABEL
from rig.wait import wait_until

SCENARIOS = {}


def scenario(quiet=False, charges=False, cuts=0, exits=(0,)):
    def note(function):
        function.quiet, function.charges, function.cuts, function.exits = quiet, charges, cuts, exits
        SCENARIOS[function.__name__] = function
        return function
    return note


class Bench:
    """The objects that scenarios work on."""

    def __init__(self, cluster, postgres, rabbitmq, folder, completion):
        self.cluster, self.postgres, self.rabbitmq, self.folder, self.completion = cluster, postgres, rabbitmq, folder, completion
        self.loki = self.judge = None

    def example(self, name, tag=1, kinds=None):
        things = manifests.example(self.cluster, name, self.completion, tag)
        return yaml.safe_dump_all([t for t in things if not kinds or t["kind"] in kinds])

    def apply(self, *arguments, **options):
        self.cluster.command("kubectl", "apply", "-f", "-", text=self.example(*arguments, **options))

    def migrate(self, tag=1):
        """The Job of a version, by the sequence of the page. It is the same for an installation and for an upgrade."""
        there = ("kubectl", "--namespace", "payments-migration")
        self.cluster.command(*there, "delete", "job/onceward-migrate", "--ignore-not-found")
        self.apply(manifests.MIGRATION, tag=tag)
        self.cluster.command(*there, "wait", "--for=condition=complete", "job/onceward-migrate", "--timeout=120s")

    def replace(self, old):
        """Takes the workload named away, and waits until its pods are gone."""
        self.cluster.kubectl("delete", old, "--wait=true", "--timeout=90s")
        wait_until(lambda: not self.cluster.get("pods", "-l", "app=payments"), f"the pods of {old} are gone", 90, 0.5)


def sidecar_of(pod):
    return process_of(pod, "/usr/bin/onceward\0run")


def process_of(pod, command):
    """The process of a pod's container, by its command line and the host name in its environment."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as f, open(f"/proc/{pid}/environ") as e:
                if f.read().startswith(command) and f"HOSTNAME={pod}\0" in e.read():
                    return int(pid)
        except OSError:
            pass
    raise AssertionError(f"no process {command!r} of {pod}")


@scenario(quiet=True)
def rollout(bench):
    """rollout restart of the Deployment: the new pod starts before the old one has ended."""
    bench.cluster.kubectl("rollout", "restart", "deployment/payments")
    bench.cluster.settled()


@scenario(quiet=True)
def drain(bench):
    """kubectl drain of the node, which takes pods again at once: evictions, one at a time as the budget says."""
    cluster, old = bench.cluster, set(bench.cluster.names())
    draining = subprocess.Popen([os.path.join(cluster.binaries, "bin/kubectl"), "--kubeconfig", cluster.kubeconfig, "drain", "node1",
                                 "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=170s"],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wait_until(lambda: json.loads(cluster.kubectl("get", "node", "node1", "-o", "json"))["spec"].get("unschedulable"), "the node is cordoned", 30, 0.2)
    time.sleep(1)  # drain has listed the pods that it evicts: a second one on the same node would never end
    cluster.kubectl("uncordon", "node1")
    output = draining.communicate(timeout=180)[0].decode()
    assert draining.returncode == 0, output
    cluster.settled()
    assert not old & set(cluster.names()), "each pod was evicted"
    assert "disruption budget" in output, "the budget let them go one at a time"


@scenario()
def logs(bench):
    """The collector carries every line to Loki, whose rules rest; then a message that the application refuses, and the right one fires."""
    loki, lines = bench.loki, bench.judge.lines.lines
    wait_until(lambda: loki.count() >= len(lines), lambda: f"{len(lines)} lines in Loki, where {loki.count()} are", 60, 1)
    bench.migrate()
    wait_until(lambda: loki.count("onceward-migrate"), "the log of a migration is in Loki", 60, 1)
    loki.rule(label=LABEL)
    wait_until(lambda: loki.health()[1], "the rules are evaluated", 60, 0.5)
    wait_until(lambda: not loki.alerts(), lambda: f"nothing is wrong, and nothing fires; these do: {loki.alerts()}", 330, 1)
    for _ in range(10):
        time.sleep(3)
        assert not loki.alerts(), f"nothing is wrong, and these fire: {loki.alerts()}"
    channel = pika.BlockingConnection(pika.URLParameters(bench.rabbitmq.url())).channel()
    channel.basic_publish("", "payments", b'{"id": "refused"}', pika.BasicProperties(message_id="refused", content_type="application/json"))
    wait_until(loki.firing, "an alert fires", 60, 0.5)
    assert loki.firing() == {"OncewardDeadLetters"} and not loki.health()[0], (loki.firing(), loki.health())
    bench.cluster.kubectl("exec", "deploy/payments", "-c", "onceward", "--", "/usr/bin/onceward", "dead", "discard", "--all")
    bench.postgres.query("DELETE FROM onceward.inbox WHERE message_id = 'refused' AND status = 'dead'", database="app")


@scenario(cuts=2, exits=(0, 137))
def killed(bench):
    """All pods deleted at once with grace 0, and then those that came with grace 1."""
    bench.cluster.kubectl("delete", "pods", "--force", "--grace-period=0", *bench.cluster.names())
    bench.cluster.settled()
    bench.cluster.kubectl("delete", "pods", "--now", *bench.cluster.names())
    bench.cluster.settled()


@scenario(charges=True, cuts=1, exits=(0, 137))
def oom(bench):
    """An application that takes more memory than its limit: it is killed and started again, its sidecar stays."""
    pod = bench.cluster.names()[0]
    before = bench.cluster.pod(pod)
    pid = process_of(pod, "/application")
    subprocess.run(["nsenter", "-t", str(pid), "-n", "curl", "-s", "-m", "20", "-X", "POST", "http://127.0.0.1:8080/eat"], stdout=subprocess.DEVNULL)
    wait_until(lambda: restarts(bench.cluster.pod(pod), "app") > restarts(before, "app"), "the application is started again", 60, 0.5)
    ended = next(s for s in bench.cluster.pod(pod)["status"]["containerStatuses"] if s["name"] == "app")["lastState"]["terminated"]
    assert ended["reason"] == "OOMKilled", ended
    assert restarts(bench.cluster.pod(pod), "onceward") == restarts(before, "onceward"), "its sidecar stayed"
    bench.cluster.settled()


@scenario()
def secret(bench):
    """The broker's and the database's password changed by the steps of the page: at the servers, in the Secrets, then every connection is closed."""
    cluster = bench.cluster
    bench.rabbitmq.rabbitmqctl("change_password", "payments", "rotated-1")
    bench.postgres.query("ALTER ROLE payments_sidecar PASSWORD 'rotated-2'", database="app")
    for name, word in ("rabbitmq", "rotated-1"), ("postgresql", "rotated-2"):
        cluster.kubectl("patch", f"secret/onceward-{name}", "-p", json.dumps({"stringData": {"password": word}}))

    def mounted():
        for pod in cluster.names():
            for path, word in ("rabbitmq", "rotated-1"), ("postgresql", "rotated-2"):
                with open(f"/proc/{sidecar_of(pod)}/root/etc/onceward/{path}/password") as f:
                    if f.read() != word:
                        return False
        return True
    wait_until(mounted, "the new passwords are in all pods", 150, 1)
    before = [(p["metadata"]["name"], restarts(p, "onceward")) for p in cluster.pods()]
    bench.rabbitmq.rabbitmqctl("close_all_user_connections", "payments", "rotated")
    ended = bench.postgres.query("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'payments_sidecar'", database="app")
    assert ended[0][0] >= 3, ended
    wait_until(lambda: bench.postgres.query("SELECT count(*) FROM pg_stat_activity WHERE usename = 'payments_sidecar'", database="app")[0][0] >= 3,
               "every sidecar has connected again", 60, 0.5)
    cluster.settled()
    assert before == [(p["metadata"]["name"], restarts(p, "onceward")) for p in cluster.pods()], "nothing was restarted"


@scenario(quiet=True)
def node(bench):
    """containerd and kubelet stopped, and started again after ten seconds: pods go on."""
    before = [(p["metadata"]["name"], restarts(p, "onceward"), restarts(p, "app")) for p in bench.cluster.pods()]
    bench.cluster.script("restart-node")
    wait_until(lambda: all(ready(n) for n in bench.cluster.get("nodes")), "the node is ready", 90, 1)
    bench.cluster.settled()
    assert before == [(p["metadata"]["name"], restarts(p, "onceward"), restarts(p, "app")) for p in bench.cluster.pods()], "nothing was restarted"


def configuration_name(cluster):
    """The ConfigMap that the Deployment's pods read."""
    return next(s["configMap"]["name"] for v in cluster.get("deployments")[0]["spec"]["template"]["spec"]["volumes"] if v["name"] == "onceward"
                for s in v["projected"]["sources"] if "configMap" in s)


def configuration(cluster):
    """What the Deployment's pods read."""
    return next(m for m in cluster.get("configmaps") if m["metadata"]["name"] == configuration_name(cluster))["data"]["onceward.json"]


def roll_out(cluster, name, text):
    """A configuration of that name. `kubectl rollout undo` takes it back."""
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NAMESPACE}, "data": {"onceward.json": text}}
    cluster.kubectl("apply", "-f", "-", text=json.dumps(made))
    cluster.kubectl("patch", "deployment/payments", "--type=json", "-p", json.dumps(
        [{"op": "replace", "path": "/spec/template/spec/volumes/1/projected/sources/0/configMap/name", "value": name}]))


@scenario(exits=(0, 2))
def bad_configuration(bench):
    """A configuration with a fault rolled out: the rollout stops, the old pods go on; then it is taken back."""
    cluster, old = bench.cluster, set(bench.cluster.names())
    roll_out(cluster, "onceward-wrong", configuration(cluster).replace('"queues"', '"queus"'))
    wait_until(lambda: any(restarts(p, "onceward") >= 2 for p in cluster.pods() if p["metadata"]["name"] not in old),
               "a pod with the wrong configuration has tried twice", 90, 0.5)
    going = {p["metadata"]["name"] for p in cluster.pods() if ready(p)}
    assert len(going & old) == 3 and going <= old, f"the old pods did not all go on: {going}"
    cluster.kubectl("rollout", "undo", "deployment/payments")
    cluster.settled()


LARGE = 130  # messages of 0.95 MB in each of three queues


@scenario(cuts=1, exits=(0, 137))
def memory(bench):
    """Backlogs of large messages in more queues than the memory limit has room for, with all pods deleted in the middle; then a dead letter of
    15 MB, and a message of 46 MB. Nothing is killed for want of memory, and no message is lost."""
    cluster, rabbitmq, names = bench.cluster, bench.rabbitmq, [f"large-{n}" for n in range(3)]
    ended = dict(bench.judge.watch.ends)
    rabbitmq.rabbitmqctl("set_permissions", "payments", "^$", r"^amq\.default$", "^(payments|large-[0-2])$")

    def on_channel(function):
        """A connection that is idle between two steps would be closed."""
        connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.url()))
        channel = connection.channel()
        channel.confirm_delivery()
        result = function(channel)
        connection.close()
        return result

    def publish(queue, size, *ids):
        def all_of_them(channel):
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": DELIVERY_LIMIT})
            for message_id in ids:
                channel.basic_publish("", queue, os.urandom(size), pika.BasicProperties(message_id=message_id, delivery_mode=2))
        on_channel(all_of_them)
    for name in names:
        publish(name, 950_000, *(f"{name}-{n}" for n in range(LARGE)))
    config = json.loads(configuration(cluster))
    url = config["queues"]["payments"]["forward"]["url"].removesuffix("/response") + "/large"
    config["queues"].update({name: {"forward": {"url": url}, "completion": "transaction", "delivery_limit": DELIVERY_LIMIT} for name in names})
    roll_out(cluster, "onceward-large", json.dumps(config))

    def n_booked():
        return bench.postgres.query("SELECT count(*) FROM charges WHERE order_id LIKE 'large-%'", database="app")[0][0]
    wait_until(lambda: n_booked() >= LARGE, lambda: f"a third is booked, {n_booked()} are", 120, 0.2)
    cluster.kubectl("delete", "pods", "--force", "--grace-period=0", *cluster.names())
    wait_until(lambda: n_booked() == 3 * LARGE, lambda: f"all are booked, {n_booked()} are", 240, 0.5)
    cluster.settled()
    publish(names[0], 15_000_000, "refused-1")
    wait_until(lambda: bench.postgres.query("SELECT length(body) FROM onceward.dead_letter", database="app") == [(15_000_000,)],
               "the large dead letter is there", 90, 0.5)
    cluster.kubectl("exec", "deploy/payments", "-c", "onceward", "--", "/usr/bin/onceward", "dead", "discard", "--all")
    publish(names[1], 46_000_000, "refused-2")
    wait_until(lambda: any(line.get("event") == "too_large" for _, line in bench.judge.lines.lines), "the largest one is refused", 90, 0.5)
    cluster.kubectl("rollout", "undo", "deployment/payments")
    cluster.settled()
    wait_until(lambda: on_channel(lambda c: c.queue_declare(names[1], passive=True).method.message_count) == 1,
               "the largest one is still in its queue", 30, 0.5)
    killed = [key for key, (_, reason) in bench.judge.watch.since(ended).items() if reason == "OOMKilled"]
    assert not killed, f"killed for want of memory: {killed}"
    on_channel(lambda c: [c.queue_delete(name) for name in names])
    bench.postgres.query("DELETE FROM onceward.inbox WHERE message_id LIKE 'refused-%'", database="app")


@scenario(cuts=1)
def job(bench):
    """A Job that ends by itself beside its sidecar, while the Deployment works on the same queue."""
    cluster = bench.cluster
    template = copy.deepcopy(cluster.get("deployments")[0]["spec"]["template"])
    template["metadata"] = {"labels": {"app": "batch"}}
    spec = template["spec"]
    spec["restartPolicy"] = "Never"
    spec["containers"][0]["env"].append({"name": "END_AFTER", "value": "15s"})
    spec["containers"][0].pop("lifecycle")
    thing = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "batch"}, "spec": {"backoffLimit": 0, "template": template}}
    cluster.kubectl("apply", "-f", "-", text=json.dumps(thing))
    cluster.kubectl("wait", "--for=condition=complete", "job/batch", "--timeout=90s")
    ended, = cluster.get("pods", "-l", "app=batch")
    codes = {s["name"]: s["state"]["terminated"]["exitCode"] for s in ended["status"]["initContainerStatuses"] + ended["status"]["containerStatuses"]}
    assert codes == {"onceward": 0, "app": 0}, codes
    cluster.kubectl("delete", "job/batch")


@scenario(quiet=True)
def upgrade(bench):
    """The migration of a new version as a Job, its image rolled out, and rolled back."""
    bench.migrate(tag=2)
    bench.cluster.kubectl("set", "image", "deployment/payments", "onceward=localhost/onceward:2")
    bench.cluster.settled()
    bench.cluster.kubectl("rollout", "undo", "deployment/payments")
    bench.cluster.settled()
    images = {c["image"] for p in bench.cluster.pods() for c in p["spec"]["initContainers"]}
    assert images == {"localhost/onceward:1"}, images


@scenario(quiet=True)
def injected(bench):
    """A Deployment without a sidecar, whose pods get it from the admission policy, in place of the component's; and its rollout."""
    cluster = bench.cluster
    with open(os.path.join(cluster.root, "deploy/kubernetes/examples/payments/deployment.yaml")) as f:
        thing = yaml.safe_load(f)
    thing["metadata"] = {"name": "payments", "namespace": NAMESPACE}
    thing["spec"]["template"]["metadata"]["labels"]["onceward.dev/inject"] = "true"
    thing["spec"]["template"]["spec"]["containers"][0]["image"] = "localhost/payments:1"
    data = {"image": "localhost/onceward:1", "config": configuration_name(cluster), "ready": "consuming", "sleep": str(manifests.GRACE_S + 5)}
    with admission.policy(cluster, NAMESPACE, data, thing["spec"]["template"]["spec"]):
        bench.replace("deployment/payments")
        cluster.kubectl("apply", "-f", "-", text=json.dumps(thing))
        cluster.settled()
        cluster.kubectl("rollout", "restart", "deployment/payments")
        cluster.settled()
        stored, = (d["spec"]["template"]["spec"] for d in cluster.get("deployments"))
        assert "initContainers" not in stored and all(p["spec"]["initContainers"][0]["name"] == "onceward" for p in cluster.pods())
        bench.replace("deployment/payments")
    bench.apply("payments", kinds={"Deployment"})
    cluster.settled()


MANY = 300  # messages


@scenario(quiet=True)
def versions(bench):
    """Sidecars of another revision beside those of this one, on the same queue, while this one migrates."""
    cluster = bench.cluster
    thing = copy.deepcopy(next(d for d in cluster.get("deployments") if d["metadata"]["name"] == "payments"))
    template = thing["spec"]["template"]
    template["metadata"]["labels"] = {"app": "before"}
    template["spec"]["initContainers"][0]["image"] = "localhost/before:1"
    template["spec"].pop("topologySpreadConstraints")
    cluster.kubectl("apply", "-f", "-", text=json.dumps({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "before"},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "before"}}, "template": template}}))
    cluster.kubectl("rollout", "status", "deployment/before", "--timeout=180s")
    bench.migrate()

    migrated, counts = len(bench.judge.lines.lines), {}

    def all_worked():
        for name in "before", "payments":
            counts[name] = sum(line.get("completed", 0) for pod, line in bench.judge.lines.lines[migrated:]
                               if pod.startswith(name + "-") and line.get("event") == "stats")
        return all(n >= MANY for n in counts.values())
    wait_until(all_worked, lambda: f"both revisions completed {MANY} messages: {counts}", 120, 1)
    cluster.kubectl("delete", "deployment/before")
    wait_until(lambda: not cluster.get("pods", "-l", "app=before"), "the other revision has ended", 120, 0.5)
    cluster.settled()


@scenario(quiet=True)
def statefulset(bench):
    """The StatefulSet's example in the Deployment's place, and its rollout: a pod is gone before the next of its name starts."""
    bench.replace("deployment/payments")
    bench.apply("statefulset", kinds={"StatefulSet", "ConfigMap"})
    bench.cluster.settled("statefulset")
    bench.cluster.kubectl("rollout", "restart", "statefulset/payments")
    bench.cluster.settled("statefulset")
    bench.replace("statefulset/payments")
    bench.apply("payments", kinds={"Deployment"})
    bench.cluster.settled()


@scenario(quiet=True)
def helm(bench):
    """The chart in the Deployment's place: installed, rolled out, upgraded (its migration first), rolled back, uninstalled."""
    cluster, name = bench.cluster, "payments"
    folder = manifests.chart(cluster, os.path.join(bench.folder, "chart"))

    def run(*arguments):
        cluster.command("helm", *arguments, "--namespace", NAMESPACE, "--wait", "--timeout", "120s")
        if arguments[0] != "uninstall":
            cluster.settled()
    cluster.kubectl("delete", "pdb/payments")
    bench.replace("deployment/payments")
    owner = next(t for t in yaml.safe_load_all(bench.example(manifests.MIGRATION)) if t["kind"] == "Secret")
    owner["metadata"]["namespace"] = NAMESPACE  # a hook runs in the chart's own namespace
    cluster.kubectl("apply", "-f", "-", text=json.dumps(owner))
    run("install", name, folder, "--values", manifests.chart_values(folder, bench.completion))
    cluster.kubectl("rollout", "restart", "deployment/payments")
    cluster.settled()
    run("upgrade", name, folder, "--values", manifests.chart_values(folder, bench.completion, tag=2))
    run("rollback", name, "1")
    cluster.command("helm", "test", name, "--namespace", NAMESPACE, "--timeout", "90s")
    run("uninstall", name)
    wait_until(lambda: not cluster.get("pods", "-l", "app=payments"), "the chart's pods are gone", 90, 0.5)
    bench.apply("payments", kinds={"Deployment", "PodDisruptionBudget"})
    cluster.settled()


@scenario(cuts=1, exits=(0, 137))
def frozen(bench):
    """A sidecar that stands still: its liveness probe restarts it, with the probe's own grace, not the pod's; the application stays."""
    pod = bench.cluster.names()[0]
    before = bench.cluster.pod(pod)
    os.kill(sidecar_of(pod), signal.SIGSTOP)
    wait_until(lambda: restarts(bench.cluster.pod(pod), "onceward") > restarts(before, "onceward"), "the frozen sidecar is restarted", 100, 1)
    assert restarts(bench.cluster.pod(pod), "app") == restarts(before, "app"), "its application stayed"
    bench.cluster.settled()
