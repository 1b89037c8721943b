"""test/run --kubernetes itself: what a run builds, and that two runs do not meet. The run needs an hour; this needs nothing."""

import fcntl
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.deploy

TEST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.append(os.path.join(TEST, "kubernetes.d"))

import programs  # noqa: E402

CLUSTER = ["etcd", "control", "node"]


@pytest.mark.parametrize("names, built", [
    (["rollout"], CLUSTER), (["rollout", "drain"], CLUSTER), (["admission"], CLUSTER), (["versions"], CLUSTER),
    (["helm"], [*CLUSTER, "helm"]), (["manifests"], [*CLUSTER, "helm"]), (["alerts"], ["rules"]), (["ruler"], ["loki"]),
    (["logs"], [*CLUSTER, "loki", "collector"]), (["alerts", "rollout"], [*CLUSTER, "rules"]),
    ([], [*CLUSTER, "helm", "rules", "loki", "collector"])])
def test_a_run_builds_what_it_uses(names, built):
    assert programs.programs(names) == built


def test_every_part_that_builds_more_is_one_that_can_be_named():
    yaml = pytest.importorskip("yaml", reason="python3-yaml is not here")
    assert yaml
    import run
    known = {*run.WITHOUT_CLUSTER, *run.WITHOUT_LOAD, *run.SCENARIOS}
    assert set(programs.USED) <= known and run.NAMED <= known and "versions" not in run.NAMED


def kubernetes(*arguments, **more):
    return subprocess.run([os.path.join(TEST, "kubernetes"), "--no-install", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env=dict(os.environ, **more), timeout=60)


def test_a_second_run_on_the_machine_is_refused_whatever_its_cache(tmp_path):
    if os.geteuid():
        pytest.skip("only root may start it")
    path = tmp_path / "lock"
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = kubernetes("--cache", str(tmp_path / "cache"), ONCEWARD_KUBERNETES_LOCK=str(path))
    assert done.returncode == 2 and str(path) in done.stdout.decode() and not (tmp_path / "cache").exists(), done.stdout
