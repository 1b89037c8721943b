"""The image: what is in it, that it is the same when it is made twice, and that it runs and ends as a sidecar must, under runc."""

import concurrent.futures
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from rig import container, schema
from rig.application import Gate
from rig.wait import wait_until

IMAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../deploy/image")
SIZE_MAX = 25_000_000
pytestmark = [pytest.mark.deploy, pytest.mark.xdist_group("image")]  # made once, for all of them


@pytest.fixture(scope="module")
def binary():
    """The one for release; else the one under test, which is larger."""
    return os.environ.get("ONCEWARD_RELEASE_BINARY") or schema.require_binary()


@pytest.fixture(scope="module")
def tree(binary, tmp_path_factory):
    """The output of assemble.py: the folder and the SBOM."""
    folder = tmp_path_factory.mktemp("tree")
    for tool in "readelf", "dpkg-query":
        if not shutil.which(tool):
            pytest.skip(f"without {tool} no image can be put together")
    done = subprocess.run([sys.executable, os.path.join(IMAGE, "assemble.py"), binary, folder / "root", folder / "sbom.json", "--epoch", "1000000000"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout.decode()
    return str(folder / "root"), json.loads((folder / "sbom.json").read_text())


def files_of(root):
    return sorted(os.path.relpath(os.path.join(folder, name), root) for folder, _, names in os.walk(root) for name in names)


def test_nothing_can_be_run_but_the_program(tree):
    root, _ = tree
    runnable = [name for name in files_of(root) if os.access(os.path.join(root, name), os.X_OK) and not re.search(r"/(lib|ld-)[^/]*$", name)
                and not os.path.islink(os.path.join(root, name))]
    assert runnable == ["usr/bin/onceward"]


def test_every_library_that_anything_needs_is_there(tree):
    root, _ = tree
    libraries = {os.path.basename(name) for name in files_of(root) if re.match(r"usr/lib/[^/]+-linux-gnu/", name)}
    for name in files_of(root):
        path = os.path.join(root, name)
        with open(path, "rb") as f:
            if os.path.islink(path) or f.read(4) != b"\x7fELF":
                continue
        text = subprocess.run(["readelf", "-d", path], check=True, stdout=subprocess.PIPE).stdout.decode()
        assert set(re.findall(r"\(NEEDED\).*\[(.+)\]", text)) <= libraries, name


def test_the_bill_of_materials_lists_every_file_and_its_package(tree):
    root, sbom = tree
    packages = {p["SPDXID"]: p for p in sbom["packages"]}
    files = {f["fileName"][2:]: f for f in sbom["files"]}
    real = [name for name in files_of(root) if not os.path.islink(os.path.join(root, name)) and not name.endswith("spdx.json")]
    assert sorted(files) == sorted(real)
    owner = {r["relatedSpdxElement"]: r["spdxElementId"] for r in sbom["relationships"] if r["relationshipType"] == "CONTAINS"}
    for name, file in files.items():
        with open(os.path.join(root, name), "rb") as f:
            assert {"algorithm": "SHA256", "checksumValue": hashlib.sha256(f.read()).hexdigest()} in file["checksums"], name
        package = packages[owner[file["SPDXID"]]]
        assert package["versionInfo"] and (package["name"] == "onceward") == (not re.match(r"usr/(lib|share)|etc/ssl", name)), name
    for package in packages.values():
        assert package["name"] == "onceward" or f"usr/share/doc/{package['name']}/copyright" in files
    for key in "spdxVersion", "dataLicense", "SPDXID", "name", "documentNamespace", "creationInfo":
        assert sbom[key]
    assert len({e["SPDXID"] for e in sbom["packages"] + sbom["files"]}) == len(sbom["packages"]) + len(sbom["files"])


# What follows needs buildah and runc.

@pytest.fixture(scope="module")
def image(tmp_path_factory):
    binary = os.environ.get("ONCEWARD_RELEASE_BINARY", "")
    if not os.access(binary, os.X_OK):
        pytest.skip("ONCEWARD_RELEASE_BINARY names no program")
    missing = [tool for tool in ("buildah", "runc", "strip") if not shutil.which(tool)]
    if missing or os.geteuid():
        pytest.skip("the image is built and run as root, with buildah and runc" + (f"; not here: {', '.join(missing)}" if missing else ""))
    said = []
    for name in "first", "second":
        folder = tmp_path_factory.mktemp(name)
        done = subprocess.run([os.path.join(IMAGE, "build"), "--binary", binary, "--output", str(folder)], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ, SOURCE_DATE_EPOCH="1700000000"), timeout=300)
        assert done.returncode == 0, done.stderr.decode()
        said.append(done.stdout.decode().split())
    root = tmp_path_factory.mktemp("root")
    config, digest = container.unpack_image(said[0][0], str(root))
    return {"root": str(root), "config": config, "digest": digest, "said": said}


def test_made_twice_it_is_the_same_and_small(image):
    (archive, digest, *_), (_, again, *_) = image["said"]
    assert digest == again == image["digest"]
    size = sum(os.lstat(os.path.join(image["root"], name)).st_size for name in files_of(image["root"]))
    assert os.path.getsize(archive) <= SIZE_MAX and size <= SIZE_MAX, (os.path.getsize(archive), size)
    assert image["config"]["User"] == f"{container.USER}:{container.USER}" and image["config"]["Entrypoint"] == ["/usr/bin/onceward"]
    assert image["config"]["Labels"]["org.opencontainers.image.title"] == "onceward"


@pytest.fixture
def pod(bed, image, tmp_path):
    """The image as a sidecar of the bed's application; it is not yet started."""
    configuration = tmp_path / "configuration"
    configuration.mkdir()
    config = bed.config(completion="response", forward={"concurrency": 4}, top={"shutdown_grace": "20s"})
    config.pop("state_file", None)
    (configuration / "onceward.json").write_text(json.dumps(config))
    configuration.chmod(0o755)
    (configuration / "onceward.json").chmod(0o644)
    arguments = image["config"]["Entrypoint"] + image["config"]["Cmd"]
    box = container.Container(tmp_path / "box", bed.name[-20:], image["root"], arguments, str(configuration))
    yield box
    box.end()


def status_of(pid):
    with open(f"/proc/{pid}/status") as f:
        return dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)


def test_a_pod_starts_drains_and_ends(bed, pod):
    gate = Gate()
    bed.app.handler = lambda request, reply: gate.wait() or 200
    pod.start().wait_for("consuming")
    wait_until(lambda: pod.run("/usr/bin/onceward", "health", "--started")[0] == 0, "the startup probe passes", interval=0.5)
    assert pod.run("/usr/bin/onceward", "health", "--live")[0] == 0
    facts = status_of(pod.pid())
    assert facts["Uid"].split() == facts["Gid"].split() == [str(container.USER)] * 4 and facts["NoNewPrivs"] == "1"
    assert {facts[name] for name in ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb")} == {"0" * 16}
    assert pod.run("/bin/sh", "-c", "true")[0] != 0, "there is a shell"
    bed.queue.publish_many([f"m{i}" for i in range(20)])
    gate.wait_for_waiting()
    with concurrent.futures.ThreadPoolExecutor(1) as kubelet:
        hook = kubelet.submit(pod.run, "/usr/bin/onceward", "drain")
        pod.wait_for("draining")
        gate.open()
        status, said = hook.result(60)
    assert status == 0, said  # in its process namespace the hook lives on only as long as the sidecar does
    pod.wait_for("drained")
    assert pod.run("/usr/bin/onceward", "health", "--live")[0] == 0, "it stays, idle, until SIGTERM"
    done = bed.statuses()
    assert set(done) == {"completed"} and done["completed"] + bed.queue.n_ready == 20
    pod.signal(signal.SIGTERM)
    assert pod.wait() == 0
    assert not [e for e in pod.events() if e["level"] in ("warning", "error") and e["event"] != "limits"], "a pod that starts and ends in order warns of nothing"
