"""deploy/: what a team applies, rendered with what is here, and looked at as a cluster would. A real one: test/kubernetes.

Debian 12 has neither kustomize nor Helm: there the files are looked at one by one, and what needs rendering is skipped. It is not once
test/run --kubernetes has built kubectl and Helm."""

import copy
import fnmatch
import json
import os
import re
import shutil
import subprocess

import pytest

from rig import schema

pytestmark = pytest.mark.deploy

yaml = pytest.importorskip("yaml", reason="without python3-yaml nothing of deploy/ can be read")

DEPLOY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../deploy")
EXAMPLES = os.path.join(DEPLOY, "kubernetes/examples")
APPLICATIONS = ("Deployment", "StatefulSet")
TOOLS = os.pathsep.join((os.environ.get("PATH", ""), "/var/tmp/onceward-kubernetes/bin"))


def files(folder, *endings):
    return sorted(os.path.join(at, name) for at, _, names in os.walk(os.path.join(DEPLOY, folder)) for name in names if name.endswith(endings))


def kustomize(folder):
    """The result of kustomize for a folder: status, output, errors; skips without kustomize."""
    if shutil.which("kustomize", path=TOOLS):
        command = [shutil.which("kustomize", path=TOOLS), "build"]
    elif shutil.which("kubectl", path=TOOLS):
        command = [shutil.which("kubectl", path=TOOLS), "kustomize"]
    else:
        pytest.skip("neither kustomize nor kubectl is here")
    done = subprocess.run([*command, folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


MIGRATION = "payments/migration"


def rendered(example):
    """The objects of an example, as kustomize makes them."""
    status, output, errors = kustomize(os.path.join(EXAMPLES, example))
    assert status == 0, errors
    return list(yaml.safe_load_all(output))


def examples():
    return sorted([name for name in os.listdir(EXAMPLES) if os.path.isdir(os.path.join(EXAMPLES, name))] + [MIGRATION])


def pod_of(thing):
    return thing["spec"]["template"]["spec"]


def containers_of(pod):
    return pod.get("initContainers", []) + pod["containers"]


@pytest.mark.parametrize("path", [os.path.relpath(path, DEPLOY) for path in files("kubernetes", ".yaml") + files("alerts", ".yaml") + files("logs", ".yaml")])
def test_every_manifest_is_yaml(path):
    with open(os.path.join(DEPLOY, path)) as f:
        assert all(isinstance(document, (dict, list)) and document for document in yaml.safe_load_all(f))


# Without kustomize: the files one by one.

def read(path):
    with open(path) as f:
        return list(yaml.safe_load_all(f))


def kustomizations():
    return [os.path.relpath(path, DEPLOY) for path in files("kubernetes", "kustomization.yaml")]


def operations(patch):
    """The operations of a JSON patch; None for another kind of patch."""
    found = yaml.safe_load(patch)
    return found if isinstance(found, list) else None


@pytest.mark.parametrize("path", kustomizations())
def test_a_kustomization_names_what_is_there(path):
    folder = os.path.join(DEPLOY, os.path.dirname(path))
    said, = read(os.path.join(DEPLOY, path))
    for name in said.get("resources", []) + said.get("components", []):
        there = os.path.join(folder, name)
        assert os.path.isfile(there) or os.path.isfile(os.path.join(there, "kustomization.yaml")), name
    for name in [f.split("=")[-1] for g in said.get("configMapGenerator", []) for f in g["files"]] + [p["path"] for p in said.get("patches", []) if "path" in p]:
        assert os.path.isfile(os.path.join(folder, name)), name
    ours = {name for name in os.listdir(folder) if name not in ("kustomization.yaml", "README.md") and os.path.isfile(os.path.join(folder, name))}
    with open(os.path.join(DEPLOY, path)) as f:
        text = f.read()
    assert [name for name in ours if name not in text] == [], "a file that nothing names"


def objects_below(folder):
    """Kind and name of what a folder's kustomization has from files, its own and those of what it names; and of what it generates."""
    said, = read(os.path.join(folder, "kustomization.yaml"))
    found = {("ConfigMap", g["name"]) for g in said.get("configMapGenerator", [])}
    for name in said.get("resources", []):
        there = os.path.join(folder, name)
        found |= objects_below(there) if os.path.isdir(there) else {(t["kind"], t["metadata"]["name"]) for t in read(there)}
    return found


@pytest.mark.parametrize("path", kustomizations())
def test_a_patch_is_well_formed_and_has_a_target(path):
    folder = os.path.join(DEPLOY, os.path.dirname(path))
    said, = read(os.path.join(DEPLOY, path))
    for patch in said.get("patches", []):
        target = patch["target"]
        if "name" in target and said["kind"] != "Component":
            assert (target["kind"], target["name"]) in objects_below(folder), target
        if "path" in patch:
            with open(os.path.join(folder, patch["path"])) as f:
                text = f.read()
        else:
            text = patch["patch"]
        for operation in operations(text) or []:
            needs = {"add": {"value"}, "replace": {"value"}, "test": {"value"}, "remove": set(), "copy": {"from"}, "move": {"from"}}[operation["op"]]
            assert set(operation) == {"op", "path"} | needs and operation["path"].startswith("/"), operation


def test_what_the_files_say_of_pods_is_restricted():
    """Of the whole as rendered: below. Here that of each file, the sidecar's container with it."""
    looked = []
    for path in files("kubernetes", ".yaml"):
        for thing in read(path):
            if isinstance(thing, dict) and thing.get("kind") in (*APPLICATIONS, "Job") and "spec" in thing["spec"]["template"]:
                pod = {"containers": [], **pod_of(thing)}
                assert list(restricted_faults(pod)) == [], path
                looked += [c["name"] for c in containers_of(pod)]
    assert sorted(looked) == ["app", "onceward", "onceward-migrate"]


def mebibytes(text):
    number, unit = re.fullmatch(r"(\d+)(KiB|MiB|GiB)", text).groups()
    return int(number) * {"KiB": 1 / 1024, "MiB": 1, "GiB": 1024}[unit]


def test_the_memory_limit_takes_what_the_examples_queues_may_hold():
    """As src/config/memory.c has it."""
    thing, = read(os.path.join(DEPLOY, "kubernetes/component/sidecar.yaml"))
    limit, = [c["resources"]["limits"]["memory"] for c in containers_of({"containers": [], **pod_of(thing)}) if c["name"] == "onceward"]
    for name in files("kubernetes/examples", ".json"):
        with open(name) as f:
            config = json.load(f)
        queues = [{**config.get("defaults", {}), **q} for q in config["queues"].values()]
        held = [mebibytes(q.get("max_bytes", "64MiB")) for q in queues]
        letters = [mebibytes(q["max_message"]) if "max_message" in q else min(16, own) for q, own in zip(queues, held)]
        assert (sum(held) + 2 * max(letters)) * 4 / 3 <= mebibytes(limit + "B"), name


def test_what_the_examples_configurations_read_is_mounted_by_the_files():
    thing, = read(os.path.join(DEPLOY, "kubernetes/component/sidecar.yaml"))
    there = mounted(pod_of(thing))
    variables = {e["name"] for c in containers_of({"containers": [], **pod_of(thing)}) for e in c["env"]}
    for name in files("kubernetes/examples", ".json"):
        with open(name) as f:
            text = f.read()
        assert set(re.findall(r'"(/etc/onceward/[^"]+)"', text)) <= there and set(re.findall(r"\$\{(\w+)\}", text)) <= variables, name


def mounted(pod):
    """The files of Secrets that the containers see."""
    sources = [v["projected"]["sources"] for v in pod["volumes"] if v["name"] == "onceward"][0]
    return {"/etc/onceward/" + item["path"] for s in sources for item in s.get("secret", {}).get("items", [])}


def secrets_of(pod):
    """The names of the Secrets that a pod mounts or has in its environment."""
    mounts = {s["secret"]["name"] for v in pod["volumes"] for s in v.get("projected", {}).get("sources", []) if "secret" in s}
    return mounts | {e["valueFrom"]["secretKeyRef"]["name"] for c in containers_of(pod) for e in c.get("env", []) if "secretKeyRef" in e.get("valueFrom", {})}


def test_the_migration_reads_the_owners_login_and_nothing_else():
    job, = [pod_of(t) for t in rendered(MIGRATION) if t["kind"] == "Job"]
    assert secrets_of(job) == {"onceward-postgresql-owner"}
    assert job["containers"][0]["args"][:2] == ["migrate", "--database-file"] and job["containers"][0]["args"][2] in mounted(job)
    others = [pod_of(t) for t in rendered("payments") if t["kind"] in APPLICATIONS]
    assert len(others) == 1 and "onceward-postgresql-owner" not in secrets_of(others[0])


def test_the_owners_login_has_a_namespace_of_its_own():
    def owners(example):
        return {t["metadata"]["namespace"] for t in rendered(example) if t["kind"] == "Secret" and t["metadata"]["name"] == "onceward-postgresql-owner"}
    namespace, = {t["metadata"]["name"] for t in rendered(MIGRATION) if t["kind"] == "Namespace"}
    assert owners(MIGRATION) == {namespace} and owners("payments") == set()
    assert {t["metadata"].get("namespace") for t in rendered("payments") if t["kind"] != "Namespace"} == {"payments"} != {namespace}


def restricted_faults(pod):
    """The faults that the restricted Pod Security Standard finds in it, as far as it concerns a pod of plain containers."""
    of_pod = pod.get("securityContext", {})
    for container in containers_of(pod):
        own, name = container.get("securityContext", {}), container["name"]
        if own.get("allowPrivilegeEscalation") is not False:
            yield f"{name}: allowPrivilegeEscalation"
        if not own.get("runAsNonRoot", of_pod.get("runAsNonRoot")):
            yield f"{name}: runAsNonRoot"
        if own.get("capabilities", {}).get("drop") != ["ALL"]:
            yield f"{name}: capabilities"
        if (own.get("seccompProfile") or of_pod.get("seccompProfile") or {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield f"{name}: seccompProfile"
    for volume in pod.get("volumes", []):
        if not {"configMap", "emptyDir", "projected", "secret"} & set(volume):
            yield f"volume {volume['name']}"


@pytest.mark.parametrize("example", examples())
def test_an_example_renders_to_pods_that_a_restricted_namespace_takes(example):
    things = rendered(example)
    with_pods = [t for t in things if t["kind"] in (*APPLICATIONS, "Job")]
    assert with_pods
    assert [fault for thing in with_pods for fault in restricted_faults(pod_of(thing))] == []
    names = [(t["kind"], t["metadata"]["name"]) for t in things]
    assert len(set(names)) == len(names)
    maps = {t["metadata"]["name"] for t in things if t["kind"] == "ConfigMap"}
    for thing in with_pods:
        pod = pod_of(thing)
        volumes = {v["name"] for v in pod.get("volumes", [])}
        for container in containers_of(pod):
            assert {m["name"] for m in container.get("volumeMounts", [])} <= volumes
        for volume in pod.get("volumes", []):
            for source in volume.get("projected", {}).get("sources", []):
                assert "configMap" not in source or source["configMap"]["name"] in maps, "a ConfigMap that nothing makes"


def test_argo_brings_the_migration_after_what_it_reads_and_before_the_application():
    things = rendered("argo-cd")
    marks = {(t["kind"], t["metadata"]["name"]): {k: v for k, v in t["metadata"].get("annotations", {}).items() if "onceward.dev" not in k} for t in things}
    assert marks.pop(("Job", "onceward-migrate")) == {"argocd.argoproj.io/hook": "Sync", "argocd.argoproj.io/hook-delete-policy": "BeforeHookCreation"}
    assert marks.pop(("Deployment", "payments")) == {"argocd.argoproj.io/sync-wave": "1"}
    assert not any(marks.values())


@pytest.mark.parametrize("example", examples())
def test_the_annotation_brings_the_sidecar(example):
    for thing in rendered(example):
        if thing["kind"] not in APPLICATIONS:
            continue
        pod = pod_of(thing)
        sidecars = [c for c in containers_of(pod) if c["name"] == "onceward"]
        assert bool(sidecars) == (thing["metadata"].get("annotations", {}).get("onceward.dev/inject") == "true"), thing["metadata"]["name"]
        if not sidecars:
            continue
        sidecar, = sidecars
        assert sidecar.get("restartPolicy") == "Always"
        assert pod["initContainers"][0] is sidecar, "it starts before the application's own init containers"
        assert sidecar["startupProbe"]["exec"]["command"][1:] == ["health", "--started"]
        assert sidecar["livenessProbe"]["exec"]["command"][1:] == ["health", "--live"]
        assert sidecar["livenessProbe"]["terminationGracePeriodSeconds"] < pod["terminationGracePeriodSeconds"], "a frozen one is not waited for"
        assert sidecar["readinessProbe"]["exec"]["command"][1:] == ["health", "--consuming"] and "ports" not in sidecar
        assert sidecar["lifecycle"]["preStop"]["exec"]["command"] == ["/usr/bin/onceward", "drain"]
        assert sidecar["securityContext"]["readOnlyRootFilesystem"] and "cpu" not in sidecar["resources"]["limits"]
        waits = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
        grace = default_grace()
        assert grace + 5 <= waits <= pod["terminationGracePeriodSeconds"] - 30, "the application outlives the drain, and both end in time"


def default_grace():
    with open(os.path.join(DEPLOY, "../src/config/keys.def")) as f:
        return int(re.search(r'"shutdown_grace", DURATION, HAS, "(\d+)s"', f.read())[1])


# Where an example's programs go, and whether they may.

def addresses(things, thing):
    """Host and port of each URL that the containers of it use: in the configuration that is mounted, and in Secrets in their environment."""
    pod, texts = pod_of(thing), []
    for name in {s["configMap"]["name"] for v in pod["volumes"] for s in v.get("projected", {}).get("sources", []) if "configMap" in s}:
        config, = [json.loads(t["data"]["onceward.json"]) for t in things if t["kind"] == "ConfigMap" and t["metadata"]["name"] == name]
        texts += [config["database"]["url"], config["broker"]["url"]]
    for container in pod["containers"]:
        for reference in (e["valueFrom"]["secretKeyRef"] for e in container.get("env", []) if "secretKeyRef" in e.get("valueFrom", {})):
            texts += [t["stringData"].get(reference["key"], "") for t in things if t["kind"] == "Secret" and t["metadata"]["name"] == reference["name"]]
    for source in (s["secret"] for v in pod["volumes"] for s in v.get("projected", {}).get("sources", []) if "secret" in s):
        if thing["kind"] == "Job":
            texts += [t["stringData"]["uri"] for t in things if t["kind"] == "Secret" and t["metadata"]["name"] == source["name"]]
    found = {(host, int(port)) for text in texts for host, port in re.findall(r"^\w+://(?:[^@/]*@)?([^:/@]+):(\d+)/", text)}
    assert found, "it goes nowhere"
    return found


def behind(things, host, namespace):
    """The namespace of a host, and the labels of the pods that answer there, None where the example does not make them."""
    name, at = (host.split(".") + [namespace])[:2]
    for thing in (t for t in things if t["metadata"].get("namespace") == at):
        if thing["kind"] == "Service" and thing["metadata"]["name"] == name:
            return at, thing["spec"]["selector"]
        if thing["kind"] == "Cluster" and thing["metadata"]["name"] + "-rw" == name:  # CloudNativePG's
            return at, {"cnpg.io/cluster": thing["metadata"]["name"]}
        if thing["kind"] == "RabbitmqCluster" and thing["metadata"]["name"] == name:
            return at, {"app.kubernetes.io/name": name}
    return at, None


def lets_through(policy, at, labels, port):
    namespace = policy["metadata"]["namespace"]
    for rule in policy["spec"]["egress"]:
        for peer in rule["to"]:
            there = peer.get("namespaceSelector", {}).get("matchLabels", {}).get("kubernetes.io/metadata.name", namespace)
            wanted = peer.get("podSelector", {}).get("matchLabels", {})
            if there == at and wanted.items() <= (labels or {}).items() and port in [p["port"] for p in rule["ports"]]:
                return True
    return False


@pytest.mark.parametrize("example", examples())
def test_an_example_lets_its_programs_reach_what_their_urls_name(example):
    things = rendered(example)
    for thing in (t for t in things if t["kind"] in (*APPLICATIONS, "Job")):
        labels = {**thing["spec"]["template"].get("metadata", {}).get("labels", {}), "batch.kubernetes.io/job-name": thing["metadata"]["name"]}
        policies = [t for t in things if t["kind"] == "NetworkPolicy" and t["spec"]["podSelector"]["matchLabels"].items() <= labels.items()]
        assert policies, thing["metadata"]["name"]
        for host, port in addresses(things, thing):
            at, answering = behind(things, host, thing["metadata"]["namespace"])
            assert any(lets_through(p, at, answering, port) for p in policies), f"{thing['metadata']['name']} may not reach {host}:{port}"
            outside = at != thing["metadata"]["namespace"] and example != "operators"
            assert outside or answering, f"nothing makes {host}"


# What an application has set itself.

STARTS, WAITS = {"exec": {"command": ["/warm"]}}, {"exec": {"command": ["/wait", "40"]}}


def with_sidecar(folder, annotations, grace=None, patches=None, **of_container):
    """An application of a team's own, the component, and patches: what kustomize says."""
    pod = {"containers": [{"name": "shop", "image": "shop", **of_container}], **({"terminationGracePeriodSeconds": grace} if grace else {})}
    return render(folder, {"apiVersion": "apps/v1", "kind": "Deployment",
                           "metadata": {"name": folder.name, "annotations": {"onceward.dev/inject": "true", **annotations}},
                           "spec": {"template": {"metadata": {}, "spec": pod}}}, patches)


def render(folder, thing, patches=None):
    folder.mkdir(exist_ok=True)
    (folder / "deployment.yaml").write_text(yaml.safe_dump(thing))
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(
        {"resources": ["deployment.yaml"], "components": [os.path.relpath(os.path.join(DEPLOY, "kubernetes/component"), folder)],
         "patches": patches or []}))
    return kustomize(str(folder))


@pytest.mark.parametrize("where, own", [("terminationGracePeriodSeconds", {"grace": 300}), ("containers have no preStop hook", {"lifecycle": {"preStop": WAITS}}),
                                        ("containers have no preStop hook", {"lifecycle": {"preStop": {"sleep": {"seconds": 90}}}})])
def test_the_component_replaces_nothing_in_silence(where, own, tmp_path):
    status, output, errors = with_sidecar(tmp_path / "shop", {}, **own)
    assert status != 0 and where in errors, output


CONTAINERS = {"containers": [{"name": "shop"}]}
TEMPLATED = {"apps/v1": ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"), "v1": ("ReplicationController",), "batch/v1": ("Job",),
             "argoproj.io/v1alpha1": ("Rollout",), "apps.openshift.io/v1": ("DeploymentConfig",),
             "apps.kruise.io/v1beta1": ("CloneSet", "StatefulSet")}
KINDS = [(group, kind) for group, kinds in TEMPLATED.items() for kind in kinds] + [("batch/v1", "CronJob")]
GETS = [("apps/v1", kind) for kind in APPLICATIONS]


def workload(group, kind, of_object=None, of_template=None):
    """An object of that kind with annotations or labels of its own and on its pod template; an empty one has the key not at all."""
    template = {"metadata": dict(of_template or {}), "spec": copy.deepcopy(CONTAINERS)}
    return {"apiVersion": group, "kind": kind, "metadata": {"name": "shop", **(of_object or {})},
            "spec": {"jobTemplate": {"spec": {"template": template}}} if kind == "CronJob" else {"template": template}}


def annotated(**keys):
    return {"annotations": {f"onceward.dev/{key.replace('_', '-')}": value for key, value in keys.items()}}


@pytest.mark.parametrize("group, kind", KINDS)
@pytest.mark.parametrize("where", ["of_object", "of_template"])
def test_an_annotated_object_gets_the_sidecar_or_fails(group, kind, where, tmp_path):
    status, output, errors = render(tmp_path / "shop", workload(group, kind, **{where: annotated(inject="true", ready="consuming")}))
    if (group, kind) in GETS:
        assert status == 0, errors
        pod = pod_of(yaml.safe_load(output))
        assert pod["initContainers"][0]["name"] == "onceward" and "readinessProbe" in pod["initContainers"][0]
        assert pod["terminationGracePeriodSeconds"] == 60 and pod["containers"][0]["lifecycle"] == {"preStop": {"sleep": {"seconds": 30}}}
    else:
        assert status != 0 and "only a Deployment or StatefulSet gets the sidecar" in errors, output


@pytest.mark.parametrize("group, kind", KINDS)
@pytest.mark.parametrize("off", [{}, annotated(inject="false"), {"annotations": {"a": "b"}, "labels": {"app": "shop"}}])
def test_an_object_without_the_annotation_stays_as_it_is(group, kind, off, tmp_path):
    thing = workload(group, kind, off, off)
    status, output, errors = render(tmp_path / "shop", thing)
    assert status == 0, errors
    found = yaml.safe_load(output)
    template = found["spec"]["jobTemplate"]["spec"]["template"] if kind == "CronJob" else found["spec"]["template"]
    for metadata in template["metadata"], found["metadata"]:
        for key in "annotations", "labels":
            if not metadata.get(key, True):
                metadata.pop(key)
    assert found == thing


LABEL_SAYS = "is a label here, for the admission policy"


@pytest.mark.parametrize("said, message", [
    (annotated(inject="yes"), "onceward.dev~1inject is true or false and nothing else"),
    (annotated(inject="true", ready="consumming"), "onceward.dev~1ready is consuming and nothing else"),
    (annotated(inject="true", metrics="9464"), "onceward.dev~1metrics is page and nothing else"),
    (annotated(inject="true", grace="300"), "onceward.dev~1grace is own and nothing else"),
    (annotated(inject="true", application_sleep="beside"), "onceward.dev~1application-sleep is off and nothing else"),
    (annotated(inject="true", container="shop"), "Remove it: then all containers sleep. For one alone set"),
    (annotated(ready="consuming"), "onceward.dev~1ready does nothing without onceward.dev~1inject"),
    ({"labels": {"onceward.dev/inject": "true"}}, LABEL_SAYS), ({"labels": {"onceward.dev/inject": "true"}, **annotated(inject="true")}, LABEL_SAYS)])
@pytest.mark.parametrize("where", ["of_object", "of_template"])
@pytest.mark.parametrize("group, kind", [("apps/v1", "Deployment"), ("batch/v1", "CronJob")])
def test_an_annotation_that_would_do_nothing_fails(said, message, where, group, kind, tmp_path):
    status, output, errors = render(tmp_path / "shop", workload(group, kind, **{where: said}))
    assert status != 0 and message in errors, output


def test_every_container_outlives_the_drain(tmp_path):
    thing = workload("apps/v1", "Deployment", annotated(inject="true"))
    pod_of(thing)["containers"] = [{"name": "shipper"}, {"name": "shop", "lifecycle": {"postStart": STARTS}}]
    status, output, errors = render(tmp_path / "shop", thing)
    assert status == 0, errors
    shipper, shop = pod_of(yaml.safe_load(output))["containers"]
    assert shipper["lifecycle"] == {"preStop": {"sleep": {"seconds": 30}}} and shop["lifecycle"] == {"postStart": STARTS, **shipper["lifecycle"]}


def test_one_container_alone_sleeps_by_the_hook_of_the_page(tmp_path):
    with open(os.path.join(DEPLOY, "kubernetes/README.md")) as f:
        hook, = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", f.read(), re.S) if block.startswith("lifecycle")]
    thing = workload("apps/v1", "Deployment", annotated(inject="true", application_sleep="off"))
    pod_of(thing)["containers"] = [{"name": "shipper"}, {"name": "shop", **hook}]
    status, output, errors = render(tmp_path / "shop", thing)
    assert status == 0, errors
    assert [c.get("lifecycle") for c in pod_of(yaml.safe_load(output))["containers"]] == [None, {"preStop": {"sleep": {"seconds": 30}}}]


@pytest.mark.parametrize("kind", APPLICATIONS)
@pytest.mark.parametrize("hook", [{"sleep": {"seconds": 90}}, WAITS])
def test_the_hook_of_a_second_container_is_not_replaced(kind, hook, tmp_path):
    thing = workload("apps/v1", kind, annotated(inject="true"))
    pod_of(thing)["containers"].append({"name": "shipper", "lifecycle": {"preStop": hook}})
    status, output, errors = render(tmp_path / "shop", thing)
    assert status != 0 and "containers have no preStop hook" in errors and list(hook)[0] in errors, output
    thing["metadata"] = {"name": "shop", **annotated(inject="true", application_sleep="off")}
    status, output, errors = render(tmp_path / "shop", thing)
    assert status == 0 and [c.get("lifecycle") for c in pod_of(yaml.safe_load(output))["containers"]] == [None, {"preStop": hook}], errors


@pytest.mark.parametrize("said", [{}, {"onceward.dev/metrics": "page"}])
def test_prometheus_finds_the_port_of_a_metrics_page(said, tmp_path):
    status, output, errors = with_sidecar(tmp_path / "shop", said)
    assert status == 0, errors
    monitor, = read(os.path.join(DEPLOY, "kubernetes/monitoring/podmonitor.yaml"))
    named = [{"name": monitor["spec"]["podMetricsEndpoints"][0]["port"], "containerPort": 9464}]
    assert pod_of(yaml.safe_load(output))["initContainers"][0].get("ports") == (named if said else None)


@pytest.mark.parametrize("said", [{}, {"onceward.dev/ready": "consuming"}])
def test_the_readiness_probe_is_for_who_asks_for_it(said, tmp_path):
    status, output, errors = with_sidecar(tmp_path / "shop", said)
    assert status == 0 and ("readinessProbe" in output) == bool(said), errors


def test_an_annotation_lets_an_application_keep_its_own(tmp_path):
    status, output, errors = with_sidecar(tmp_path / "shop", {"onceward.dev/grace": "own", "onceward.dev/application-sleep": "off"},
                                          grace=300, lifecycle={"postStart": STARTS, "preStop": WAITS})
    assert status == 0, errors
    pod = pod_of(yaml.safe_load(output))
    assert pod["terminationGracePeriodSeconds"] == 300 and pod["containers"][0]["lifecycle"] == {"postStart": STARTS, "preStop": WAITS}
    assert "onceward" in [c["name"] for c in containers_of(pod)]


def block(language, text):
    """The block of the page that has this text."""
    with open(os.path.join(DEPLOY, "kubernetes/README.md")) as f:
        found, = [b for b in re.findall(rf"```{language}\n(.*?)```", f.read(), re.S) if text in b]
    return found


def test_the_numbers_are_patched_as_the_page_says(tmp_path):
    status, output, errors = with_sidecar(tmp_path / "shop", {}, patches=yaml.safe_load(block("yaml", "preStop/sleep/seconds"))["patches"])
    assert status == 0, errors
    pod = pod_of(yaml.safe_load(output))
    assert (pod["terminationGracePeriodSeconds"], pod["containers"][0]["lifecycle"]) == (95, {"preStop": {"sleep": {"seconds": 65}}})
    assert pod["initContainers"][0]["resources"]["limits"] == {"memory": f"{MEMORY[2][2]}Mi"}, "as the chart computes it for two queues"


def test_the_page_lists_what_can_fail():
    """Each message of the component is matched by one row of the page's table."""
    with open(os.path.join(DEPLOY, "kubernetes/README.md")) as f:
        known = re.findall(r"^\| `([^`]+)` \|", f.read().split("### When rendering fails")[1].split("\n## ")[0], re.M)
    said = {o["path"] for p in files("kubernetes/component", ".yaml") for patch in patches_of(p) for o in operations(patch) or [] if o["op"] == "test"}
    said.add("containers have no preStop hook")
    missing = [text for text in said if sum(row.removesuffix(" failed") in text for row in known) != 1]
    assert missing == [] and all(any(row.removesuffix(" failed") in text for text in said) for row in known)


def patches_of(path):
    """The texts of a file's patches: of a kustomization those within, of another file itself."""
    with open(path) as f:
        text = f.read()
    if os.path.basename(path) != "kustomization.yaml":
        return [text]
    return [p["patch"] for p in yaml.safe_load(text).get("patches", []) if "patch" in p]


def test_an_authority_of_ones_own_is_mounted_as_the_page_says(tmp_path):
    patches = yaml.safe_load(block("yaml", "sources/-"))["patches"]
    status, output, errors = with_sidecar(tmp_path / "shop", {}, patches=[p for p in patches if "Job" not in p["target"]["kind"]])
    assert status == 0, errors
    sources = [v["projected"]["sources"] for v in pod_of(yaml.safe_load(output))["volumes"] if v["name"] == "onceward"][0]
    there = {f"/etc/onceward/{item['path']}" for s in sources for kind in s.values() for item in kind.get("items", [])}
    said = block("json", "ca_file")
    wanted = set(re.findall(r"/etc/onceward/ca/[\w.]+", said))
    assert wanted and wanted <= there
    with open(os.path.join(EXAMPLES, "payments/onceward.json")) as f:
        config = json.load(f)
    for name, keys in json.loads("{" + said + "}").items():
        config[name].update(keys)
    assert "sslmode=verify-full" in config["database"]["url"] and check(json.dumps(config), tmp_path) == ""


def test_two_applications_with_the_component_go_into_one(tmp_path):
    for name in "one", "two":
        assert with_sidecar(tmp_path / name, {})[0] == 0
    (tmp_path / "kustomization.yaml").write_text("resources: [one, two]")
    status, output, errors = kustomize(str(tmp_path))
    assert status == 0 and output.count("/usr/bin/onceward\n") == 2 * 3, errors


def test_runbooks_are_links_as_the_page_says(tmp_path):
    said = yaml.safe_load(block("yaml", "onceward-runbooks"))
    for key in "resources", "components":
        said[key] = [os.path.relpath(os.path.join(DEPLOY, path.removeprefix("deploy/")), tmp_path) for path in said[key]]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(said))
    status, output, errors = kustomize(str(tmp_path))
    assert status == 0, errors
    things = list(yaml.safe_load_all(output))
    assert sorted(t["kind"] for t in things) == ["PodMonitor", "PrometheusRule"]
    rules = [rule for t in things if t["kind"] == "PrometheusRule" for group in t["spec"]["groups"] for rule in group["rules"]]
    base = said["configMapGenerator"][0]["literals"][0].removeprefix("base=")
    assert len(rules) > 10 and all(rule["annotations"]["runbook_url"].startswith(f"{base}/deploy/oncall/operate.md#") for rule in rules)


def test_collectors_take_the_migrations_log():
    job, = (pod_of(t) for t in read(os.path.join(DEPLOY, "kubernetes/migrate/migrate.yaml")))
    name = job["containers"][0]["name"]
    texts = {}
    for file in "otel-collector.yaml", "vector.toml", "fluent-bit.conf":
        with open(os.path.join(DEPLOY, "logs", file)) as f:
            texts[file] = f.read()
    assert f"/var/log/pods/*/{name}/*.log" in texts["otel-collector.yaml"] and f'container_name == "{name}"' in texts["vector.toml"]
    assert fnmatch.fnmatch(f"/var/log/containers/pod_space_{name}-1f.log", re.search(r"^ +path +(\S+)", texts["fluent-bit.conf"], re.M)[1])


def check(text, folder):
    """The program's errors about a configuration, with its files present; empty when it is good."""
    secrets = folder / "etc"
    for name in set(re.findall(r"/etc/onceward/([\w./]+)", text)):
        (secrets / name).parent.mkdir(parents=True, exist_ok=True)
        (secrets / name).write_text("anything")
    (folder / "onceward.json").write_text(text.replace("/etc/onceward/", f"{secrets}/"))
    done = subprocess.run([schema.require_binary(), "check", "--json", "--config", str(folder / "onceward.json")], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, env=dict(os.environ, POD_UID="0b6e1a3c", DATABASE_USER="payments_sidecar"))
    return done.stdout.decode() if done.returncode else ""


@pytest.mark.parametrize("path", [os.path.relpath(path, DEPLOY) for path in files("kubernetes", ".json")])
def test_a_configuration_is_one_that_the_program_takes(path, tmp_path):
    with open(os.path.join(DEPLOY, path)) as f:
        text = f.read()
    assert "/etc/onceward/" in text
    assert check(text, tmp_path) == ""


def test_every_path_of_a_configuration_is_mounted():
    """The files that an example's configuration reads are projected to where it looks."""
    for example in examples():
        things = rendered(example)
        pods = [pod_of(t) for t in things if t["kind"] in APPLICATIONS]
        for pod in pods:
            projected = [v for v in pod.get("volumes", []) if v["name"] == "onceward"]
            if not projected:
                continue
            sources = projected[0]["projected"]["sources"]
            there = {"/etc/onceward/" + item["path"] for s in sources for item in s.get("secret", {}).get("items", [])}
            used = [s["configMap"]["name"] for s in sources if "configMap" in s]
            config, = [t["data"]["onceward.json"] for t in things if t["kind"] == "ConfigMap" and t["metadata"]["name"] in used]
            wanted = set(re.findall(r'"(/etc/onceward/[^"]+)"', config))
            assert wanted and wanted <= there
            variables = {e["name"] for c in containers_of(pod) if c["name"] in ("onceward", "onceward-migrate") for e in c["env"]}
            assert set(re.findall(r"\$\{(\w+)\}", config)) <= variables


# The admission policy. An API server evaluates it in test/kubernetes; here its literals are read without one.

PARAMETERS = {"params.data.image": "onceward", "variables.config": "onceward", "variables.rabbitmq": "onceward-rabbitmq",
              "variables.postgresql": "onceward-postgresql", "variables.memory": "128Mi"}


def literal(expression, path, n=0):
    """The nth object that the policy's patch adds at this path: CEL's objects without their types are YAML."""
    start = [found.end() for found in re.finditer(rf'path: "{path}", value:\s*Object[.\w]*', expression)][n]
    depth, end = 0, start
    while not depth or expression[start:end].count("}") < depth:
        end += 1
        depth = expression[start:end].count("{")
    text = re.sub(r"Object[.\w]*\{", "{", expression[start:end])
    text = re.sub(r"\?(\w+): !variables\.\w+ \? optional\.none\(\) : optional\.of\(", r"\1: ", text)
    return yaml.safe_load(re.sub(r"([}\]])\)", r"\1", text))


def with_parameters(thing):
    if isinstance(thing, dict):
        return {key: with_parameters(value) for key, value in thing.items()}
    return [with_parameters(value) for value in thing] if isinstance(thing, list) else PARAMETERS.get(thing, thing)


def test_the_policy_adds_what_the_component_adds():
    component = os.path.join(DEPLOY, "kubernetes/component")
    pod = pod_of(read(os.path.join(component, "sidecar.yaml"))[0])
    wanted, = pod["initContainers"]
    for name in "ready.yaml", "metrics.yaml":
        (operation,), = read(os.path.join(component, name))
        wanted[operation["path"].rsplit("/", 1)[1]] = operation["value"]
    policy = read(os.path.join(DEPLOY, "kubernetes/admission/policy.yaml"))[0]["spec"]
    expression = policy["mutations"][1]["jsonPatch"]["expression"]
    found = with_parameters(literal(expression, "/spec/initContainers/0"))
    assert [port.pop("protocol") for port in found["ports"]] == ["TCP"], "the default, which the API server has set before"
    assert found == wanted
    assert [with_parameters(literal(expression, "/spec/volumes/0", n)) for n in (1, 0)] == pod["volumes"]
    with open(os.path.join(component, "grace.yaml")) as f:
        grace = yaml.safe_load(f)[1]["value"]
    sleep, = read(os.path.join(component, "sleep/hooks/numbers.yaml"))
    assert grace == sleep["sleep"]["seconds"] + 30, "as the policy computes it"
    assert all(default in json.dumps(policy["variables"]) for default in ["'128Mi'", f": {sleep['sleep']['seconds']}\""])


# Helm.

@pytest.fixture
def charted(tmp_path):
    """Renders the chart with settings; answers status, objects, errors."""
    program = shutil.which("helm", path=TOOLS)
    if not program:
        pytest.skip("helm is not here")
    shutil.copytree(os.path.join(DEPLOY, "helm"), tmp_path / "helm")
    shutil.copytree(tmp_path / "helm/onceward", tmp_path / "helm/service/charts/onceward")

    def render(*settings, version="1.36.0", values=("payments.yaml",)):
        files = [f"--values={tmp_path / 'helm/service' / name}" for name in values]
        done = subprocess.run([program, "template", "payments", str(tmp_path / "helm/service"), "--kube-version", version, *files, *settings],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        return done.returncode, [t for t in yaml.safe_load_all(done.stdout) if t], done.stderr.decode()
    return render


@pytest.mark.parametrize("settings, waits", [((), 30), (("config.shutdown_grace=60s",), 65), (("config.shutdown_grace=1m",), 65),
                                             (("config.shutdown_grace=1500ms",), 7), (("config.shutdown_grace=${GRACE}", "graceSeconds=40"), 45)])
def test_the_chart_lets_the_application_outlive_the_grace_of_its_configuration(charted, settings, waits):
    status, things, errors = charted(*(word for s in settings for word in ("--set", "onceward." + s)))
    assert status == 0, errors
    pod, = [pod_of(t) for t in things if t["kind"] == "Deployment"]
    assert pod["containers"][0]["lifecycle"] == {"preStop": {"sleep": {"seconds": waits}}}
    assert pod["terminationGracePeriodSeconds"] == waits + 30


MEMORY = [({"payments": {}}, {}, 128), ({"payments": {"max_bytes": "1MiB"}}, {}, 128), ({"payments": {}, "refunds": {}}, {}, 214),
          ({"payments": {}, "refunds": {"max_bytes": "8MiB", "max_message": "20000KiB"}}, {"max_bytes": "1GiB"}, 1429),
          ({"payments": {"forward": {"concurrency": 8, "batch": {"max_messages": 100, "max_bytes": "1MiB"}}}}, {}, 242),
          ({"payments": {}}, {"forward": {"batch": {"max_messages": 100}}}, 242),
          ({"payments": {"order": {"key": ["header:a"]}, "forward": {"concurrency": 8, "batch": {"max_messages": 100}}}}, {}, 356),
          ({"payments": {"completion": "response", "forward": {"concurrency": 2, "batch": {"max_messages": 100}}}}, {"store_response": "64KiB"}, 202)]


@pytest.mark.parametrize("queues, defaults, limit", MEMORY)
def test_the_chart_limits_memory_to_what_the_queues_of_its_configuration_may_hold(charted, queues, defaults, limit):
    status, things, errors = charted("--set-json", "onceward.config.queues=" + json.dumps(queues), "--set-json", "onceward.config.defaults=" + json.dumps(defaults))
    assert status == 0, errors
    pod, = [pod_of(t) for t in things if t["kind"] == "Deployment"]
    assert pod["initContainers"][0]["resources"] == {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": f"{limit}Mi"}}


@pytest.mark.parametrize("outbox, limit", [({}, 178), ({"max_message": "1MiB"}, 138)])
def test_the_chart_limits_memory_to_what_an_outbox_may_hold_as_well(charted, outbox, limit):
    status, things, errors = charted("--set-json", "onceward.config.queues=" + json.dumps({"payments": {}}), "--set-json", "onceward.config.outbox=" + json.dumps(outbox))
    assert status == 0, errors
    pod, = [pod_of(t) for t in things if t["kind"] == "Deployment"]
    assert pod["initContainers"][0]["resources"]["limits"] == {"memory": f"{limit}Mi"}


OWN = {"image": "orders:1", "databaseSecret": "orders", "onceward": {"image": "onceward:1", "config": {
    "broker": {"host": "rabbitmq"}, "database": {"url": "postgresql://d/app"}, "queues": {"orders": {"forward": {"url": "http://127.0.0.1:8080/"}}}}}}


def test_the_chart_adds_no_queue_and_no_server_to_those_of_the_values(charted):
    status, things, errors = charted(*(word for key, value in OWN.items() for word in ("--set-json", f"{key}={json.dumps(value)}")), values=())
    assert status == 0, errors
    made, = [json.loads(t["data"]["onceward.json"]) for t in things if t["kind"] == "ConfigMap"]
    assert made == {"instance": "${POD_UID}", **OWN["onceward"]["config"]}


@pytest.mark.parametrize("missing", ["image", "databaseSecret", "onceward.image", "onceward.config.broker", "onceward.config.database", "onceward.config.queues"])
def test_the_chart_names_a_value_that_is_missing(missing, charted):
    values = json.loads(json.dumps(OWN))
    *groups, name = missing.split(".")
    at = values
    for group in groups:
        at = at[group]
    del at[name]
    status, _, errors = charted(*(word for key, value in values.items() for word in ("--set-json", f"{key}={json.dumps(value)}")), values=())
    assert status != 0 and name in errors, errors


def test_the_charts_resources_outrank_what_it_computes(charted):
    own = {"limits": {"memory": "1Gi"}}
    status, things, errors = charted("--set-json", "onceward.resources=" + json.dumps(own), "--set", "onceward.config.queues.payments.max_bytes=${HELD}")
    assert status == 0, errors
    pod, = [pod_of(t) for t in things if t["kind"] == "Deployment"]
    assert pod["initContainers"][0]["resources"] == own


@pytest.mark.parametrize("settings, says", [("onceward.config.shutdown_grace=${GRACE}", "graceSeconds is needed"), ("replica=4", "'replica' not allowed"),
                                            ("onceward.config.queues.payments.max_bytes=${HELD}", "resources is needed"),
                                            ("onceward.config.queues.payments.max_message_file=/held", "resources is needed"),
                                            ("onceward.config.shutdown_grace=60s,onceward.graceSeconds=20", "below config.shutdown_grace"),
                                            ("onceward.config.broker.heartbeet=1s", "heartbeet")])
def test_the_chart_refuses_values_that_do_not_fit(charted, settings, says):
    status, _, errors = charted("--set", settings)
    assert status != 0 and says in errors


@pytest.mark.parametrize("listen, port", [("0.0.0.0:9464", 9464), ("[::]:99", 99), ("127.0.0.1:9464", None), ("[::1]:9464", None)])
def test_the_chart_names_the_port_of_a_page_that_others_reach(charted, listen, port):
    status, things, errors = charted("--set-string", "onceward.config.metrics.listen=" + listen)
    assert status == 0, errors
    pod, = [pod_of(t) for t in things if t["kind"] == "Deployment"]
    assert pod["initContainers"][0].get("ports") == (port and [{"name": "onceward", "containerPort": port}])


def test_files_of_the_charts_values_are_mounted_beside_the_secrets(charted):
    ca = {"configMap": {"name": "broker-ca", "items": [{"key": "ca.crt", "path": "broker-ca.crt"}]}}
    status, things, errors = charted("--set-json", "onceward.files=" + json.dumps([ca]))
    assert status == 0, errors
    pods = [pod_of(t) for t in things if t["kind"] in ("Deployment", "Job")]
    assert len(pods) == 2
    for pod in pods:
        sources, = [v["projected"]["sources"] for v in pod["volumes"] if v["name"] == "onceward"]
        assert sources[-1] == ca


def test_the_chart_renders_to_what_the_component_adds(charted):
    status, things, errors = charted()
    assert status == 0, errors
    expected = {t["kind"]: pod_of(t) for t in rendered("payments") + rendered(MIGRATION) if t["kind"] in ("Deployment", "Job")}
    maps = {t["metadata"]["name"]: t["data"]["onceward.json"] for t in things if t["kind"] == "ConfigMap"}
    with open(os.path.join(EXAMPLES, "payments/onceward.json")) as f:
        configuration = json.load(f)
    assert all(json.loads(text) == configuration for text in maps.values())
    for thing in things:
        if thing["kind"] not in expected:
            continue
        pod, wanted = pod_of(thing), expected[thing["kind"]]
        for volume in pod["volumes"] + wanted["volumes"]:  # the names of the ConfigMaps differ
            for source in volume.get("projected", {}).get("sources", []):
                if "configMap" in source:
                    assert wanted is not pod or source["configMap"]["name"] in maps
                    source["configMap"]["name"] = "any"
        assert pod == wanted, thing["kind"]


@pytest.mark.parametrize("file, before, after", [("sidecar.yaml", "failureThreshold: 6", "failureThreshold: 7"), ("sidecar.yaml", "runAsUser: 65532", "runAsUser: 1"),
                                                 ("ready.yaml", "--consuming", "--ready"), ("../migrate/migrate.yaml", "backoffLimit: 10", "backoffLimit: 3")])
def test_a_component_that_the_chart_does_not_repeat_is_found_without_helm(file, before, after, tmp_path):
    for name in "deploy", "include/onceward/core", "conf":
        shutil.copytree(os.path.join(DEPLOY, "..", name), tmp_path / name)
    path = tmp_path / "deploy/kubernetes/component" / file
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    done = subprocess.run(["/usr/bin/python3", str(tmp_path / "deploy/generate.py"), "--check"], stderr=subprocess.PIPE)
    assert done.returncode == 1 and b"_onceward.tpl has no such line" in done.stderr, done.stderr


def test_the_migration_of_the_chart_can_be_run_elsewhere(charted):
    status, things, errors = charted("--set", "migrate=false")
    assert status == 0 and "Job" not in {t["kind"] for t in things}, errors


def test_the_chart_refuses_a_cluster_without_native_sidecars(charted):
    status, _, errors = charted(version="1.27.0")
    assert status != 0 and "kubeVersion" in errors


def test_every_object_of_the_chart_has_the_usual_labels(charted):
    status, things, errors = charted("--set-json", 'networkPolicy={"egress":[{}]}')
    assert status == 0 and {"NetworkPolicy", "PodDisruptionBudget", "Deployment", "Job", "ConfigMap", "Pod"} == {t["kind"] for t in things}, errors
    for thing in things:
        assert thing["metadata"]["labels"]["app.kubernetes.io/instance"] == "payments", thing["kind"]


USUAL = {"imagePullSecrets": [{"name": "pull"}], "nodeSelector": {"pool": "a"}, "tolerations": [{"key": "a", "operator": "Exists"}],
         "affinity": {"podAntiAffinity": {}}, "serviceAccountName": "shop", "priorityClassName": "high"}


def test_the_usual_values_of_the_chart_reach_the_pod(charted):
    digest = "sha256:" + "a" * 64
    values = {**USUAL, "podAnnotations": {"a": "b"}, "podLabels": {"team": "x"}, "digest": digest, "strategy": {"type": "Recreate"},
              "env": [{"name": "A", "value": "b"}], "readinessProbe": {"exec": {"command": ["x"]}}}
    status, things, errors = charted(*(word for key, value in values.items() for word in ("--set-json", f"{key}={json.dumps(value)}")),
                                     "--set", f"onceward.digest={digest}")
    assert status == 0, errors
    deployment, = [t for t in things if t["kind"] == "Deployment"]
    template, pod = deployment["spec"]["template"], pod_of(deployment)
    assert {key: pod[key] for key in USUAL} == USUAL and deployment["spec"]["strategy"] == values["strategy"]
    assert template["metadata"]["labels"]["team"] == "x" and template["metadata"]["annotations"]["a"] == "b"
    assert pod["containers"][0]["env"][-1] == values["env"][0] and pod["containers"][0]["readinessProbe"] == values["readinessProbe"]
    assert all(c["image"].endswith("@" + digest) for c in containers_of(pod))


def test_every_pod_of_the_chart_runs_where_the_values_say(charted):
    """The migration and the pod of `helm test` too: a node pool with a taint is the application's."""
    status, things, errors = charted(*(word for key, value in USUAL.items() for word in ("--set-json", f"{key}={json.dumps(value)}")))
    assert status == 0, errors
    pods = {t["kind"]: t["spec"] if t["kind"] == "Pod" else pod_of(t) for t in things if t["kind"] in ("Deployment", "Job", "Pod")}
    assert set(pods) == {"Deployment", "Job", "Pod"}
    for kind, pod in pods.items():
        assert {key: pod.get(key) for key in USUAL} == USUAL, kind
        assert list(restricted_faults(pod)) == [] and pod["automountServiceAccountToken"] is False, kind


SET = {"podSecurityContext": {"runAsNonRoot": True, "runAsUser": 7}, "securityContext": {"capabilities": {"drop": ["ALL"]}},
       "resources": {"limits": {"memory": "1Gi"}}}


def test_the_contexts_and_resources_of_the_values_replace_the_charts(charted):
    """--set-json merges maps, so each key is replaced by a file, and those that are left out are null."""
    spread = [{"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "{{ .Release.Name }}"}}}]
    nothing = ("podSecurityContext.seccompProfile", "securityContext.allowPrivilegeEscalation", "securityContext.readOnlyRootFilesystem", "resources.requests")
    status, things, errors = charted(*(word for key, value in SET.items() for word in ("--set-json", f"{key}={json.dumps(value)}")),
                                     *(word for key in nothing for word in ("--set", f"{key}=null")),
                                     "--set-json", "topologySpreadConstraints=" + json.dumps(spread))
    assert status == 0, errors
    pod, = [pod_of(t) for t in things if t["kind"] == "Deployment"]
    tested, = [t["spec"] for t in things if t["kind"] == "Pod"]
    assert pod["securityContext"] == tested["securityContext"] == SET["podSecurityContext"]
    for container in pod["containers"][0], tested["initContainers"][0]:
        assert container["securityContext"] == SET["securityContext"] and container["resources"] == SET["resources"]
    assert pod["topologySpreadConstraints"] == [{**spread[0], "labelSelector": {"matchLabels": {"app": "payments"}}}]


def test_the_users_of_the_chart_can_be_left_to_the_platform(charted):
    """As OpenShift's restricted-v2 wants it: values of the page."""
    with open(os.path.join(DEPLOY, "helm/service/README.md")) as f:
        values = yaml.safe_load(re.search(r"```yaml\n(.*?runAsUser: null.*?)```", f.read(), re.S)[1])
    status, things, errors = charted(*(word for key, value in values["onceward"].items() for word in ("--set-json", f"onceward.{key}={json.dumps(value)}")),
                                     "--set", "podSecurityContext.runAsUser=null")
    assert status == 0 and values["podSecurityContext"] == {"runAsUser": None}, errors
    for pod in [pod_of(t) for t in things if t["kind"] in ("Deployment", "Job")] + [t["spec"] for t in things if t["kind"] == "Pod"]:
        assert "runAsUser" not in json.dumps(pod) and "runAsGroup" not in json.dumps(pod) and list(restricted_faults(pod)) == []


def test_the_users_of_the_component_can_be_left_to_the_platform(tmp_path):
    status, output, errors = with_sidecar(tmp_path / "shop", {}, patches=yaml.safe_load(block("yaml", "securityContext/runAsUser"))["patches"])
    assert status == 0 and "runAsNonRoot" in output and "runAsUser" not in output and "runAsGroup" not in output, errors


@pytest.mark.parametrize("startup", [None, {"httpGet": {"path": "/", "port": 8080}, "failureThreshold": 90}])
def test_the_charts_test_runs_the_check_beside_the_application(startup, charted):
    status, things, errors = charted(*(("--set-json", "startupProbe=" + json.dumps(startup), "--set", "testSeconds=900") if startup else ()))
    assert status == 0, errors
    tested, = [t for t in things if t["kind"] == "Pod"]
    assert tested["metadata"]["annotations"]["helm.sh/hook"] == "test"
    check, = tested["spec"]["containers"]
    application = tested["spec"]["initContainers"][0]
    assert check["args"][:2] == ["check", "--connect"] and (application["name"], application.get("startupProbe")) == ("app", startup)
    assert tested["spec"]["activeDeadlineSeconds"] == (900 if startup else 300)
    assert list(restricted_faults(tested["spec"])) == [] and "app" not in tested["metadata"]["labels"], "the budget does not count it"


@pytest.mark.parametrize("chart, says", [("service", b"onceward-postgresql-owner"), ("onceward", b"onceward.applicationLifecycle")])
def test_each_chart_has_a_page(chart, says):
    if not shutil.which("helm", path=TOOLS):
        pytest.skip("helm is not here")
    done = subprocess.run([shutil.which("helm", path=TOOLS), "show", "readme", os.path.join(DEPLOY, "helm", chart)], stdout=subprocess.PIPE, check=True)
    assert says in done.stdout


def test_the_page_of_the_library_lists_what_the_other_chart_includes():
    used = set()
    for path in files("helm/service/templates", ".yaml", ".tpl"):
        with open(path) as f:
            used |= set(re.findall(r'include "(onceward\.\w+)"', f.read()))
    with open(os.path.join(DEPLOY, "helm/onceward/README.md")) as f:
        assert set(re.findall(r"^\| `(onceward\.\w+)` \|", f.read(), re.M)) == used


def budgets_and_spread(things):
    """What a drain and the scheduler do to the pods of the Deployment."""
    deployment, = [t for t in things if t["kind"] == "Deployment"]
    budget, = [t["spec"] for t in things if t["kind"] == "PodDisruptionBudget"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert budget["selector"]["matchLabels"].items() <= labels.items()
    assert budget["maxUnavailable"] == 1 and budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow", "pods that crash do not block a drain"
    spread, = pod_of(deployment)["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"].items() <= labels.items()
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")


def test_a_drain_takes_a_pod_at_a_time_and_nodes_share_them():
    budgets_and_spread(rendered("payments"))


def test_the_charts_pods_are_budgeted_and_spread(charted):
    budgets_and_spread(charted()[1])


def test_the_schema_of_the_charts_values_takes_them():
    jsonschema = pytest.importorskip("jsonschema", reason="python3-jsonschema is not here")
    with open(os.path.join(DEPLOY, "helm/service/values.schema.json")) as f:
        schema_of_values = json.load(f)
    with open(os.path.join(DEPLOY, "helm/service/values.yaml")) as f:
        defaults = yaml.safe_load(f)
    with open(os.path.join(DEPLOY, "helm/service/payments.yaml")) as f:
        example = yaml.safe_load(f)
    values = {**defaults, **example, "onceward": {**defaults["onceward"], **example["onceward"]}}
    validator = jsonschema.validators.validator_for(schema_of_values)(schema_of_values)
    assert list(validator.iter_errors(values)) == []
    values["onceward"]["global"] = {}  # as Helm hands them over, since the library that is included has that name
    assert list(validator.iter_errors(values)) == []
    assert list(validator.iter_errors({**values, "replica": 4}))
    values["onceward"]["config"]["queues"]["payments"]["prefech"] = 1
    assert list(validator.iter_errors(values))
