"""What deploy/ ships, rendered, with this rig's names of images and servers.

Nothing else is edited but `shutdown_grace`, 10 s here with what depends on it, so that a rollout of three pods does not take minutes."""

import json
import os
import re
import shutil

import yaml

from cluster import NAMESPACE, NODE_IP

BROKER_PORT, DATABASE_PORT = 5672, 5432
GRACE_S = 10
BROKER_URL = f"amqp://{NODE_IP}:{BROKER_PORT}/%2F"
MIGRATION = "payments/migration"
FOREIGN = {"NetworkPolicy"}  # the servers are not in the namespaces that it names, and nothing here enforces it: dry run only


def _servers(text):
    for there in "amqps://rabbitmq.messaging.svc:5671/shop", "amqp://rabbitmq:5672/shop":
        text = text.replace(there, BROKER_URL)
    return text.replace("postgresql.databases.svc:5432/", f"{NODE_IP}:{DATABASE_PORT}/")


def _configuration(config, completion):
    config = json.loads(_servers(json.dumps(config)))
    config["shutdown_grace"] = f"{GRACE_S}s"
    queue = config["queues"]["payments"]
    queue.update(completion=completion, token_window=f"{GRACE_S}s")
    if completion == "response":
        queue["forward"]["url"] += "/response"
    return config


def rendered(cluster, name):
    """An example as it is shipped."""
    return [t for t in yaml.safe_load_all(cluster.command("kubectl", "kustomize", os.path.join(cluster.root, "deploy/kubernetes/examples", name))) if t]


def example(cluster, name, completion, tag=1):
    """An example's objects, to be applied here."""
    things = [t for t in rendered(cluster, name) if t["kind"] not in FOREIGN]
    for thing in things:
        if thing["kind"] == "ConfigMap" and "onceward.json" in thing["data"]:
            thing["data"]["onceward.json"] = json.dumps(_configuration(json.loads(thing["data"]["onceward.json"]), completion))
        elif thing["kind"] == "Secret" and "uri" in thing.get("stringData", {}):
            thing["stringData"]["uri"] = _servers(thing["stringData"]["uri"])
    text = yaml.safe_dump_all(things)
    text = re.sub(r"registry\.example\.com/onceward:\S+", f"localhost/onceward:{tag}", text)
    text = re.sub(r"registry\.example\.com/payments:\S+", "localhost/payments:1", text)
    return list(yaml.safe_load_all(re.sub(r"seconds: 30\b", f"seconds: {GRACE_S + 5}", text)))


def chart(cluster, folder):
    """A copy of the charts, with the library where `helm dependency build` puts it; answers the service's folder."""
    shutil.copytree(os.path.join(cluster.root, "deploy/helm"), folder, dirs_exist_ok=True)
    cluster.command("helm", "dependency", "build", os.path.join(folder, "service"))
    return os.path.join(folder, "service")


def chart_values(folder, completion, tag=1):
    """The values of the chart's example with this rig's names, as a file beside it."""
    with open(os.path.join(folder, "payments.yaml")) as f:
        values = yaml.safe_load(f)
    values["image"] = "localhost/payments:1"
    values["onceward"].update(image=f"localhost/onceward:{tag}", graceSeconds=GRACE_S,
                              config=_configuration(values["onceward"]["config"], completion))
    path = os.path.join(os.path.dirname(folder), "values.yaml")
    with open(path, "w") as f:
        yaml.safe_dump(values, f)
    return path


def dry_run(cluster, folder):
    """Everything of deploy/ by a strict server-side dry run, as it is shipped; answers what was refused, and what the server does not know."""
    known = {line.split()[-1] for line in cluster.kubectl("api-resources", "--no-headers").splitlines()}
    refused, unknown, passed = [], set(), 0
    sources = {name: rendered(cluster, name) for name in sorted(os.listdir(os.path.join(cluster.root, "deploy/kubernetes/examples")))}
    sources[MIGRATION] = rendered(cluster, MIGRATION)
    for space in (t for t in sources[MIGRATION] if t["kind"] == "Namespace"):
        cluster.command("kubectl", "apply", "-f", "-", text=json.dumps(space))
    service = chart(cluster, folder)
    helm = cluster.command("helm", "template", "payments", service, "--values", os.path.join(service, "payments.yaml"), "--namespace", NAMESPACE, "--kube-version", "1.36.0")
    sources["logs"] = [t for t in yaml.safe_load_all(cluster.command("kubectl", "kustomize", os.path.join(cluster.root, "deploy/logs"))) if t]
    sources["helm/service"] = [t for t in yaml.safe_load_all(helm) if t]
    cluster.kubectl("create", "namespace", "monitoring")  # where deploy/logs goes: what reads kubelet's files cannot be restricted
    for name, things in sources.items():
        unknown |= {f"{name}: {t['kind']}" for t in things if t["kind"] not in known}
        for thing in (t for t in things if t["kind"] in known):
            output = cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "--namespace", thing["metadata"].get("namespace", NAMESPACE),
                                     "-f", "-", text=json.dumps(thing), check=False)
            # A pod that the namespace does not take is only warned of here, since the Deployment is taken.
            if "server dry run)" not in output or "Warning" in output:
                refused.append(f"{name}: {thing['kind']} {thing['metadata']['name']}: {output.strip()}")
            passed += 1
    return passed, refused, sorted(unknown)
