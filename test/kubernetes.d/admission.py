"""deploy/kubernetes/admission in an API server: labelled pods get the component's sidecar, others stay as they are."""

import contextlib
import copy
import json
import os
import tempfile

import yaml

from rig.wait import wait_until

SPACE = "injected"
LABEL = {"onceward.dev/inject": "true"}


class Server:
    """Pods as the API server would store them: a dry run."""

    def __init__(self, cluster, space=SPACE):
        self.cluster, self.space = cluster, space

    def apply(self, thing, check=True):
        return self.cluster.command("kubectl", "-n", self.space, "apply", "-f", "-", text=json.dumps(thing), check=check)

    def pod(self, spec, labels, check=True, **annotations):
        keys = {f"onceward.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
        thing = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "shop", "labels": labels, "annotations": keys}, "spec": spec}
        said = self.cluster.command("kubectl", "-n", self.space, "create", "--dry-run=server", "--validate=strict", "-o", "json", "-f", "-",
                                    text=json.dumps(thing), check=check)
        return json.loads(said)["spec"] if check else said


def own_pod(cluster):
    """The example's pod as the team writes it."""
    with open(os.path.join(cluster.root, "deploy/kubernetes/examples/payments/deployment.yaml")) as f:
        return yaml.safe_load(f)["spec"]["template"]["spec"]


def component_pod(cluster):
    """The same with the component's sidecar, by all annotations that are parameters here."""
    deploy = os.path.join(cluster.root, "deploy/kubernetes")
    with open(os.path.join(deploy, "examples/payments/deployment.yaml")) as f:
        thing = yaml.safe_load(f)
    thing["metadata"]["annotations"]["onceward.dev/metrics"] = "page"
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "deployment.yaml"), "w") as f:
            yaml.safe_dump(thing, f)
        with open(os.path.join(folder, "kustomization.yaml"), "w") as f:
            yaml.safe_dump({"resources": ["deployment.yaml"], "components": [os.path.relpath(os.path.join(deploy, "component"), folder)],
                            "images": [{"name": "onceward", "newName": "registry.example.com/onceward", "newTag": "0.1.0"}]}, f)
        return yaml.safe_load(cluster.command("kubectl", "kustomize", folder))["spec"]["template"]["spec"]


def difference(got, wanted, path=""):
    if isinstance(got, dict) and isinstance(wanted, dict):
        for key in sorted(set(got) | set(wanted)):
            yield from difference(got.get(key), wanted.get(key), f"{path}.{key}")
    elif isinstance(got, list) and isinstance(wanted, list) and len(got) == len(wanted):
        for i, (a, b) in enumerate(zip(got, wanted)):
            yield from difference(a, b, f"{path}[{i}]")
    elif got != wanted:
        yield f"{path} is {got}, and {wanted} by the component"


def parameters(cluster, **data):
    with open(os.path.join(cluster.root, "deploy/kubernetes/admission/parameters.yaml")) as f:
        thing = yaml.safe_load(f)
    thing["data"].update(data)
    return thing


POLICY = "deploy/kubernetes/admission"


def start(cluster, server):
    server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})
    server.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}, check=False)
    cluster.command("kubectl", "apply", "-k", os.path.join(cluster.root, POLICY))
    wait_until(lambda: "forbidden" in server.pod(own_pod(cluster), LABEL, check=False).lower(), "a labelled pod is refused without parameters", 60, 0.5)


@contextlib.contextmanager
def policy(cluster, space, data, spec):
    """The policy with these parameters in a namespace, once the API server follows it. spec: of a pod to try it with."""
    server = Server(cluster, space)
    cluster.command("kubectl", "apply", "-k", os.path.join(cluster.root, POLICY))
    thing = parameters(cluster, **data)
    server.apply(thing)
    wait_until(lambda: is_current(server, spec, data["image"]), "labelled pods get the sidecar", 60, 0.5)
    yield
    cluster.command("kubectl", "-n", space, "delete", "configmap", thing["metadata"]["name"])
    cluster.command("kubectl", "delete", "-k", os.path.join(cluster.root, POLICY))


def is_current(server, spec, image):
    """The API server has seen the parameters that were applied last."""
    found = server.pod(spec, LABEL, check=False)
    return image in found


def sleeping(spec):
    """The names of the containers that sleep."""
    return [c["name"] for c in spec["containers"] if "sleep" in c.get("lifecycle", {}).get("preStop", {})]


WAITS = {"preStop": {"exec": {"command": ["/wait"]}}}


def keeps_what_is_the_applications(server, own):
    hooked = copy.deepcopy(own)
    hooked.update(terminationGracePeriodSeconds=300, initContainers=[{**own["containers"][0], "name": "own"}], volumes=[{"name": "mine", "emptyDir": {}}])
    hooked["containers"][0]["lifecycle"] = WAITS
    found = server.pod(hooked, LABEL, application_sleep="off", grace="own")
    if [c["name"] for c in found["initContainers"]] != ["onceward", "own"]:
        yield f"the sidecar is not the first: {found['initContainers']}"
    if found["terminationGracePeriodSeconds"] != 300 or found["containers"][0]["lifecycle"] != WAITS:
        yield "a grace or a hook of the application's own was replaced"
    if [v["name"] for v in found["volumes"]] != ["onceward-run", "onceward", "mine"]:
        yield f"volumes: {found['volumes']}"
    two = copy.deepcopy(own)
    two["containers"].insert(0, {**own["containers"][0], "name": "shipper"})
    if sleeping(server.pod(two, LABEL)) != ["shipper", "app"]:
        yield "not every container sleeps"
    two["containers"][0]["lifecycle"] = WAITS
    found = server.pod(two, LABEL, container="app")
    if sleeping(found) != ["app"] or found["containers"][0]["lifecycle"] != WAITS:
        yield f"not the named container alone sleeps: {found['containers']}"


def refuses(cluster, server, own):
    """What the component refuses."""
    hooked, slow = copy.deepcopy(own), {**own, "terminationGracePeriodSeconds": 45}
    hooked["containers"][0]["lifecycle"] = {"preStop": {"sleep": {"seconds": 40}}}
    for spec, labels, annotations, message in (
            (hooked, LABEL, {}, "has a preStop hook"), (slow, LABEL, {}, "has a terminationGracePeriodSeconds"),
            (own, LABEL, {"container": "shop"}, "names shop, which the pod does not have"), (own, {"onceward.dev/inject": "yes"}, {}, "true or false"),
            (own, LABEL, {"grace": "300"}, "own and nothing else"), (own, LABEL, {"application_sleep": "beside"}, "off and nothing else")):
        said = server.pod(spec, labels, check=False, **annotations)
        if message not in said:
            yield f"not refused with '{message}': {said[:200]}"
    for data, message in ({"redy": "consuming"}, "unknown key"), ({"ready": "consumming"}, "unknown value"):
        server.apply(parameters(cluster, **data))
        wait_until(lambda message=message: message in server.pod(own, LABEL, check=False), f"a pod is refused with '{message}'", 60, 0.5)


def faults(cluster):
    server, own = Server(cluster), own_pod(cluster)
    if server.pod(own, {}) != server.pod(own, {"app": "payments"}):
        yield "two unlabelled pods differ"
    unlabelled = server.pod(own, {})
    if "initContainers" in unlabelled or "lifecycle" in unlabelled["containers"][0]:
        yield f"an unlabelled pod was changed: {unlabelled}"
    server.apply(parameters(cluster, ready="consuming", metrics="page"))
    wait_until(lambda: is_current(server, own, "onceward:0.1.0"), "the parameters are known", 60, 0.5)
    labelled, wanted = server.pod(own, LABEL), server.pod(component_pod(cluster), {})
    yield from difference(labelled, wanted)
    yield from (f"a second time: {text}" for text in difference(server.pod(labelled, LABEL), labelled))
    yield from keeps_what_is_the_applications(server, own)
    yield from refuses(cluster, server, own)
    server.apply(parameters(cluster, image="localhost/onceward:9", sleep="70", ready=""))
    wait_until(lambda: is_current(server, own, "localhost/onceward:9"), "the new parameters are known", 60, 0.5)
    found = server.pod(own, LABEL)
    seen = found["terminationGracePeriodSeconds"], found["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"], "readinessProbe" in found["initContainers"][0]
    if seen != (100, 70, False):
        yield f"grace, sleep and readiness probe are {seen}"


def admission_holds(cluster):
    """The admission policies: an unlabelled pod stays as it is, a labelled one equals the component's rendering, and a second time changes nothing;
    what the component refuses is refused."""
    start(cluster, Server(cluster))
    return list(faults(cluster))
