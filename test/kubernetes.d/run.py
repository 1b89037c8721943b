"""What deploy/ ships, in a real cluster, under load. Started by test/kubernetes, in a network namespace of its own.

Private RabbitMQ and PostgreSQL listen on this side; pods reach them at the node's address, by way of two forwarders. The payments example
is applied as it is, but for the names of images and servers and the ConfigMap's lines that name them. A publisher sends so many messages a
second while one scenario after another runs; in the end each message has one charge, whatever happened, and at its first attempt.

Not run as a whole yet. What was: the servers, the forwarders, the set-up, the example's objects, publisher and ledger, with a sidecar and
the application as processes in such a namespace; and, earlier, the cluster of cluster.sh. What was not: the scenarios."""

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

import pika
import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../system"))

from rig import process, servers  # noqa: E402
from rig.wait import wait_until  # noqa: E402

NODE_IP = "10.99.0.1"
NAMESPACE = "payments"
BROKER_PORT, DATABASE_PORT = 5672, 5432
GRACE_S = 10  # shutdown_grace here: a rollout of three pods is not to take minutes


class Forwarder:
    """Connections to the node's address go on to a server that listens on the loopback."""

    def __init__(self, port, to):
        self.to = to
        self.listener = socket.create_server((NODE_IP, port), backlog=128)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            near, _ = self.listener.accept()
            far = socket.create_connection(("127.0.0.1", self.to))
            for a, b in (near, far), (far, near):
                a.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pump, args=(a, b), daemon=True).start()

    @staticmethod
    def _pump(a, b):
        try:
            while data := a.recv(65536):
                b.sendall(data)
        except OSError:
            pass
        for end in a, b:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Cluster:
    def __init__(self, root, folder, binaries):
        self.root, self.folder, self.binaries = root, folder, binaries
        os.makedirs(folder, exist_ok=True)
        if not os.path.lexists(os.path.join(folder, "bin")):
            os.symlink(os.path.join(binaries, "bin"), os.path.join(folder, "bin"))

    def script(self, *arguments):
        subprocess.run([os.path.join(HERE, "cluster.sh"), *arguments], check=True, env=dict(os.environ, CLUSTER=self.folder, NODE_IP=NODE_IP))

    def kubectl(self, *arguments, text=None, check=True):
        done = subprocess.run([os.path.join(self.binaries, "bin/kubectl"), "--kubeconfig", os.path.join(self.folder, "pki/admin.kubeconfig"),
                               *arguments], input=text and text.encode(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if check and done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stdout.decode()}")
        return done.stdout.decode()

    def get(self, *arguments):
        return json.loads(self.kubectl("-n", NAMESPACE, "get", *arguments, "-o", "json"))["items"]

    def pods(self):
        return [p["metadata"]["name"] for p in self.get("pods", "-l", "app=payments") if not p["metadata"].get("deletionTimestamp")]

    def settled(self, kind="deployment"):
        self.kubectl("-n", NAMESPACE, "rollout", "status", f"{kind}/payments", "--timeout=180s")
        wait_until(lambda: len(self.get("pods", "-l", "app=payments")) == 3, "three pods and no more", 120, 0.5)


def example(cluster, name, completion):
    """An example's objects, with this rig's names of images and servers."""
    things = list(yaml.safe_load_all(cluster.kubectl("kustomize", os.path.join(cluster.root, "deploy/kubernetes/examples", name))))
    for thing in things:
        if thing["kind"] == "ConfigMap":
            text = thing["data"]["onceward.json"]
            text = text.replace("amqps://rabbitmq.messaging.svc:5671/shop", f"amqp://{NODE_IP}:{BROKER_PORT}/%2F")
            text = text.replace("postgresql.databases.svc:5432/app?sslmode=require", f"{NODE_IP}:{DATABASE_PORT}/app?sslmode=disable")
            config = json.loads(text)
            config["shutdown_grace"] = f"{GRACE_S}s"
            config["queues"]["payments"].update(completion=completion, token_window=f"{GRACE_S}s")
            thing["data"]["onceward.json"] = json.dumps(config)
        elif thing["kind"] == "Secret" and "uri" in thing.get("stringData", {}):
            thing["stringData"]["uri"] = f"postgresql://payments_app:change-me-last@{NODE_IP}:{DATABASE_PORT}/app"
    things = [t for t in things if t["kind"] != "NetworkPolicy"]  # the servers are not in the namespaces that it names; nothing here enforces it
    text = yaml.safe_dump_all(things)
    text = re.sub(r"registry\.example\.com/onceward:\S+", "localhost/onceward:1", text)
    text = re.sub(r"registry\.example\.com/payments:\S+", "localhost/payments:1", text)
    return re.sub(r"seconds: 26\b", f"seconds: {GRACE_S + 1}", text)


class Publisher(threading.Thread):
    """So many messages a second, each confirmed, until it is told to stop; `published` are their ids."""

    def __init__(self, url, rate):
        super().__init__(daemon=True)
        self.url, self.rate, self.published, self.ends = url, rate, [], threading.Event()

    def run(self):
        channel = pika.BlockingConnection(pika.URLParameters(self.url)).channel()
        channel.confirm_delivery()
        start = time.monotonic()
        while not self.ends.is_set():
            due = int((time.monotonic() - start) * self.rate)
            while len(self.published) < due:
                name = f"m{len(self.published)}"
                channel.basic_publish("", "payments", json.dumps({"id": name, "cents": 1}).encode(),
                                      pika.BasicProperties(message_id=name, delivery_mode=2, content_type="application/json"))
                self.published.append(name)
            time.sleep(0.005)

    def stop(self):
        self.ends.set()
        self.join(30)
        return self.published


# Scenarios: each leaves three pods that work.

def rollout(cluster):
    """rollout restart of the Deployment: the new pod starts before the old one has ended."""
    cluster.kubectl("-n", NAMESPACE, "rollout", "restart", "deployment/payments")
    cluster.settled()


def drain_node(cluster):
    """kubectl drain of the only node, and uncordon: evictions, one at a time where the budget says so."""
    cluster.kubectl("drain", "node1", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=20s", check=False)
    cluster.kubectl("uncordon", "node1")
    cluster.settled()


def killed(cluster):
    """Pods deleted with grace 0."""
    cluster.kubectl("-n", NAMESPACE, "delete", "pods", "--force", "--grace-period=0", *cluster.pods())
    cluster.settled()


def frozen(cluster):
    """A sidecar that stands still: its liveness probe restarts it, the application stays."""
    pod = cluster.pods()[0]
    before = [p for p in cluster.get("pods") if p["metadata"]["name"] == pod][0]["status"]["initContainerStatuses"][0]["restartCount"]
    found = [pid for pid in os.listdir("/proc") if pid.isdigit() and is_sidecar_of(pid, pod)]
    os.kill(int(found[0]), 19)

    def restarted():
        states = [p["status"]["initContainerStatuses"][0]["restartCount"] for p in cluster.get("pods") if p["metadata"]["name"] == pod]
        return states and states[0] > before
    wait_until(restarted, "the frozen sidecar is restarted", 180, 1)
    cluster.settled()


def is_sidecar_of(pid, pod):
    try:
        with open(f"/proc/{pid}/cmdline") as f, open(f"/proc/{pid}/environ") as e:
            return f.read().startswith("/usr/bin/onceward\0run") and f"HOSTNAME={pod}" in e.read()
    except OSError:
        return False


def bad_configuration(cluster):
    """A configuration with a fault rolled out: the rollout stops, the old pods go on; then it is taken back."""
    old = set(cluster.pods())
    maps = [m for m in cluster.get("configmaps") if m["metadata"]["name"].startswith("onceward-")]
    wrong = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "onceward-wrong", "namespace": NAMESPACE},
             "data": {"onceward.json": maps[0]["data"]["onceward.json"].replace('"queues"', '"queus"')}}
    cluster.kubectl("apply", "-f", "-", text=json.dumps(wrong))
    cluster.kubectl("-n", NAMESPACE, "patch", "deployment/payments", "--type=json", "-p", json.dumps(
        [{"op": "replace", "path": "/spec/template/spec/volumes/1/projected/sources/0/configMap/name", "value": "onceward-wrong"}]))
    wait_until(lambda: set(cluster.pods()) - old, "a pod with the wrong configuration", 60, 0.5)
    time.sleep(20)
    ready = {p["metadata"]["name"] for p in cluster.get("pods", "-l", "app=payments")
             if all(c["ready"] for c in p["status"].get("containerStatuses", [])) and p["status"].get("containerStatuses")}
    assert len(ready & old) >= 2, f"the old pods did not go on: {ready}"
    cluster.kubectl("-n", NAMESPACE, "rollout", "undo", "deployment/payments")
    cluster.settled()


SCENARIOS = {"rollout": rollout, "drain": drain_node, "killed": killed, "frozen": frozen, "bad_configuration": bad_configuration}
CHARGED = {"frozen"}  # where an attempt may be charged: the holder had the message and is gone


def set_up(postgres, rabbitmq):
    postgres.create_database("app")
    for sql in ("CREATE ROLE onceward_owner LOGIN PASSWORD 'change-me-first'", "GRANT CREATE ON DATABASE app TO onceward_owner",
                "CREATE ROLE onceward_sidecar", "CREATE ROLE onceward_app",
                "CREATE ROLE payments_sidecar LOGIN PASSWORD 'change-me-too' IN ROLE onceward_sidecar",
                "CREATE ROLE payments_app LOGIN PASSWORD 'change-me-last' IN ROLE onceward_app",
                "CREATE TABLE charges (order_id text, cents integer)", "GRANT INSERT ON charges TO payments_app"):
        postgres.query(sql, database="app")
    rabbitmq.rabbitmqctl("add_user", "payments", "change-me")
    rabbitmq.rabbitmqctl("set_permissions", "payments", "^$", r"^amq\.default$", "^payments$")
    channel = pika.BlockingConnection(pika.URLParameters(rabbitmq.url())).channel()
    channel.queue_declare("payments", durable=True, arguments={"x-queue-type": "quorum"})


def ledger(postgres, published, may_charge):
    """Counts lost, doubled and charged; waits until everything is done."""
    def count(sql):
        return postgres.query(sql, database="app")[0][0]
    wait_until(lambda: count("SELECT count(DISTINCT order_id) FROM charges") >= len(published), "all messages are done", 300, 0.5)
    doubled = count("SELECT count(*) - count(DISTINCT order_id) FROM charges")
    letters = count("SELECT count(*) FROM onceward.dead_letter")
    charged = count("SELECT count(*) FROM onceward.inbox WHERE attempt > 1")
    print(f"  {len(published)} messages: 0 lost, {doubled} doubled, {letters} dead letters, {charged} at a later attempt")
    return not doubled and not letters and (may_charge or not charged)


def hooks_that_failed(cluster):
    return [e["message"] for e in cluster.get("events") if e["reason"] == "FailedPreStopHook"]


def one_by_one(cluster, postgres, url, options):
    passed = failed = 0
    for name, scenario in SCENARIOS.items():
        if options.only and name != options.only:
            continue
        postgres.query("TRUNCATE charges, onceward.inbox, onceward.dead_letter", database="app")
        publisher = Publisher(url, options.rate)
        publisher.start()
        started = time.monotonic()
        print(f"{name}: {scenario.__doc__}", flush=True)
        try:
            time.sleep(5)
            scenario(cluster)
            time.sleep(5)
            fine = ledger(postgres, publisher.stop(), name in CHARGED)
        except Exception as error:  # noqa: BLE001 - the next one is to be tried all the same
            publisher.stop()
            print(f"  {error}")
            fine = False
        hooks = hooks_that_failed(cluster)
        if hooks:
            print("  hooks failed: " + "; ".join(hooks))
        ok = fine and not hooks
        print(f"  {'ok' if ok else 'FAILED'} after {time.monotonic() - started:.0f} s", flush=True)
        passed, failed = passed + ok, failed + (not ok)
    return passed, failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    parser.add_argument("--binaries", required=True)
    parser.add_argument("--cache")
    parser.add_argument("--only", choices=list(SCENARIOS))
    parser.add_argument("--rate", type=int, default=500)
    parser.add_argument("--completion", choices=("transaction", "response"), default="transaction")
    parser.add_argument("--no-install", action="store_true")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    process.interrupt_on_signals()
    folder = tempfile.mkdtemp(prefix="ow-k8s-", dir="/tmp")
    cluster = Cluster(options.root, os.path.join(folder, "c"), options.binaries)
    running = servers.Servers()
    passed, failed = 0, 1
    try:
        running.start()
        postgres, rabbitmq = running.postgres, running.rabbitmq
        set_up(postgres, rabbitmq)
        keep = [Forwarder(BROKER_PORT, rabbitmq.port), Forwarder(DATABASE_PORT, postgres.port)]
        assert keep
        images = os.path.join(folder, "images")
        subprocess.run([os.path.join(options.root, "deploy/image/build"), "--binary", os.path.join(options.root, ".build-release/onceward"),
                        "--output", images], check=True)
        archive, = [os.path.join(images, name) for name in os.listdir(images) if name.endswith(".tar")]
        cluster.script("image", "onceward", archive)
        application = os.path.join(folder, "application")
        os.makedirs(application)
        shutil.copy(os.path.join(options.binaries, "application"), application)
        with open(os.path.join(application, "Containerfile"), "w") as f:
            f.write('FROM scratch\nCOPY application /application\nENTRYPOINT ["/application"]\n')
        cluster.script("image", "payments", application)
        cluster.script("up")
        text = example(cluster, "payments", options.completion)
        cluster.kubectl("apply", "-f", "-", text=yaml.safe_dump(next(t for t in yaml.safe_load_all(text) if t["kind"] == "Namespace")))
        cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", text=text)
        cluster.kubectl("apply", "-f", "-", text=text)
        cluster.kubectl("-n", NAMESPACE, "wait", "--for=condition=complete", "job/onceward-migrate", "--timeout=120s")
        cluster.settled()
        passed, failed = one_by_one(cluster, postgres, rabbitmq.url(), options)
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
        print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
