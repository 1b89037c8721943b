"""test/run --kubernetes itself: what a run builds, and that two runs do not meet. The run needs an hour; this needs nothing."""

import fcntl
import os
import shutil
import subprocess
import sys
import types

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


@pytest.fixture
def other_tables(tmp_path):
    """A copy of the repository whose last commit changes the tables. Its cluster.sh builds nothing, and ends with 7 where it were etcd."""
    if os.geteuid() or not shutil.which("go"):
        pytest.skip("needs root and Go")
    root = os.path.join(TEST, "..")
    if not os.path.exists(os.path.join(root, ".git")):
        pytest.skip("this is not a clone")
    copy = tmp_path / "copy"
    git = ["git", "-C", str(copy), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run([*git[:1], "clone", "-q", "--shared", root, str(copy)], check=True)
    for name in "kubernetes", "packages.sh", "kubernetes.d/programs.py":
        shutil.copy(os.path.join(TEST, name), copy / "test" / name)
    (copy / "test/kubernetes.d/cluster.sh").write_text('#!/bin/sh\ncase "$*" in *etcd*) exit 7 ;; esac\n')
    with open(copy / "sql/0001_schema.sql", "a") as f:
        f.write("CREATE TABLE onceward.another ();\n")
    subprocess.run([*git, "commit", "-q", "-a", "-m", "Add a table"], check=True)

    def run(*arguments):
        more = dict(os.environ, ONCEWARD_KUBERNETES_LOCK=str(tmp_path / "lock"))
        return subprocess.run([str(copy / "test/kubernetes"), "--no-install", "--cache", str(tmp_path / "cache"), *arguments],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=more, timeout=60)
    return run


@pytest.mark.parametrize("arguments, status", [((), 7), (("--only", "versions"), 1), (("--before", "HEAD^"), 1)])
def test_a_revision_before_with_other_tables_ends_no_run_of_all(other_tables, arguments, status):
    """Where it was asked for, it is refused before anything is built."""
    done = other_tables(*arguments)
    assert b"has other tables" in done.stdout and done.returncode == status, done.stdout


def test_a_run_without_a_cluster_builds_no_image(other_tables, tmp_path):
    done = other_tables("--only", "alerts")
    assert b"alerts: " in done.stdout and sorted(os.listdir(tmp_path / "cache")) == [], done.stdout


def test_versions_fails_alone_without_a_program_before():
    pytest.importorskip("yaml", reason="python3-yaml is not here")
    import run
    assert run.run_all(None, None, "", types.SimpleNamespace(only=["versions", "no scenario"], before="")) == [False]
