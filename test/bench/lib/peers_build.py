"""The peers that are Go programs, built from modules whose versions and checksums are pinned (go.mod, go.sum beside each main.go).

They are kept beside the packages of the Node consumer, under a hash of what they are made of. Without a Go toolchain, or without the
modules, a peer is left out, with a sentence."""

import hashlib
import json
import os
import re
import shutil
import subprocess

from .bed import HERE, Unavailable

PATIENCE = 1800
FLAGS = {"connect": "-s -w", "daprd": "-s -w -X github.com/dapr/dapr/pkg/buildinfo.version={version}"}
MODULES = {"connect": "github.com/redpanda-data/connect/v4", "daprd": "github.com/dapr/dapr"}


def environment():
    # The toolchain that is there, and the versions that are written down: neither is fetched, nor changed, in silence.
    return dict(os.environ, GOTOOLCHAIN="local", GOFLAGS="-mod=readonly -buildvcs=false")


def go(folder, *arguments):
    try:
        done = subprocess.run(["nice", "go", *arguments], cwd=folder, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"go {arguments[0]} did not end within {PATIENCE} s") from None
    if done.returncode:
        raise Unavailable(f"go {arguments[0]} failed: {(done.stderr.strip().splitlines() or [''])[-1]}\n{done.stderr}")
    return done.stdout


def version(name):
    with open(os.path.join(HERE, "peers", name, "go.mod")) as f:
        return re.search(rf"{re.escape(MODULES[name])} (v\S+)", f.read()).group(1)


def daprd_run(folder):
    """daprd's own Run(), less the import that wants all components."""
    module = json.loads(go(folder, "mod", "download", "-json", f"{MODULES['daprd']}@{version('daprd')}"))["Dir"]
    with open(os.path.join(module, "cmd", "daprd", "app", "app.go")) as f:
        text = f.read()
    text = text.replace("package app\n", "package main\n", 1).replace('\t_ "github.com/dapr/dapr/cmd/daprd/components"\n', "", 1)
    with open(os.path.join(folder, "app.go"), "w") as f:
        f.write(text)


def build(name, say):
    """Answers the program's path. Raises Unavailable."""
    source = os.path.join(HERE, "peers", name)
    key = hashlib.sha256()
    for part in ("go.mod", "go.sum", "main.go"):
        with open(os.path.join(source, part), "rb") as f:
            key.update(f.read())
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.path.join(cache, "onceward-bench", f"{name}-{key.hexdigest()[:16]}")
    program = os.path.join(folder, name)
    if os.path.exists(program):
        return program
    if not shutil.which("go"):
        raise Unavailable("there is no Go toolchain")
    say(f"building {name} {version(name)} (minutes, once)")
    os.makedirs(folder, exist_ok=True)
    for part in ("go.mod", "go.sum", "main.go"):
        shutil.copy(os.path.join(source, part), folder)
    if name == "daprd":
        daprd_run(folder)
    go(folder, "build", "-p", "2", "-trimpath", "-ldflags", FLAGS[name].format(version=version(name).lstrip("v")), "-o", f"{name}.new", ".")
    os.rename(f"{program}.new", program)
    return program
