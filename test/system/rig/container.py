"""A container by runc, as restricted as Kubernetes' restricted Pod Security wants it: read-only root, uid 65532, no capability, no new
privilege, process, IPC and mount namespaces of its own; the network is this machine's, where the test's servers listen. Written is
/run/onceward only."""

import json
import os
import signal
import subprocess
import tarfile

from rig import process
from rig.wait import wait_until

USER = 65532


def unpack_image(archive, target):
    """The layers of an OCI archive into a folder; answers the image's configuration and digest."""
    os.chmod(target, 0o755)
    with tarfile.open(archive) as outer:
        def blob(digest):
            return outer.extractfile("blobs/" + digest.replace(":", "/"))
        index = json.load(outer.extractfile("index.json"))
        manifest = json.load(blob(index["manifests"][0]["digest"]))
        for layer in manifest["layers"]:
            with tarfile.open(fileobj=blob(layer["digest"])) as inner:
                inner.extractall(target)
        return json.load(blob(manifest["config"]["digest"]))["config"], index["manifests"][0]["digest"]


def _mount(destination, kind, source, *options):
    return {"destination": destination, "type": kind, "source": source, "options": list(options)}


def _specification(root, arguments, configuration):
    none = {kind: [] for kind in ("bounding", "effective", "inheritable", "permitted", "ambient")}
    return {
        "ociVersion": "1.0.2",
        "process": {"terminal": False, "user": {"uid": USER, "gid": USER}, "args": arguments, "env": ["PATH=/usr/bin"], "cwd": "/",
                    "capabilities": none, "noNewPrivileges": True},
        "root": {"path": root, "readonly": True},
        "hostname": "pod",
        "mounts": [
            _mount("/proc", "proc", "proc"), _mount("/dev", "tmpfs", "tmpfs", "nosuid", "mode=755", "size=64k"),
            _mount("/run/onceward", "tmpfs", "run", "nosuid", "nodev", "noexec", "mode=777", "size=1m"),
            _mount("/etc/onceward", "bind", configuration, "bind", "ro"), _mount("/etc/hosts", "bind", "/etc/hosts", "bind", "ro"),
        ],
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")],
                  "maskedPaths": ["/proc/kcore", "/proc/keys"], "readonlyPaths": ["/proc/sys", "/proc/sysrq-trigger"]},
    }


class Container:
    def __init__(self, folder, name, root, arguments, configuration):
        self.folder, self.name = str(folder), name
        self.bundle = os.path.join(self.folder, "bundle")
        self.log_path = os.path.join(self.folder, "container.log")
        os.makedirs(self.bundle)
        with open(os.path.join(self.bundle, "config.json"), "w") as f:
            json.dump(_specification(root, arguments, configuration), f)
        self.child = None

    def _runc(self, *arguments):
        return ["runc", "--root", os.path.join(self.folder, "runc"), *arguments]

    def start(self):
        with open(self.log_path, "ab") as log:
            self.child = process.spawn(self._runc("run", "--bundle", self.bundle, self.name), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self

    def events(self, event=None, **fields):
        with open(self.log_path, errors="replace") as f:
            lines = [json.loads(line) for line in f if line.startswith("{") and line.endswith("}\n")]
        return [e for e in lines if event in (None, e["event"]) and all(e.get(k) == v for k, v in fields.items())]

    def wait_for(self, event, **fields):
        wait_until(lambda: self.events(event, **fields) or self.child.poll() is not None, f"{event} in the container's log")
        found = self.events(event, **fields)
        assert found, f"the container ended without {event}:\n" + process.tail(self.log_path, 40)
        return found[0]

    def pid(self):
        """Of its first process, as this machine sees it."""
        state = subprocess.run(self._runc("state", self.name), check=True, stdout=subprocess.PIPE).stdout
        return json.loads(state)["pid"]

    def run(self, *arguments):
        """Runs a program in it, as kubelet runs a probe or a hook; answers status and output."""
        done = subprocess.run(self._runc("exec", self.name, *arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=60)
        return done.returncode, done.stdout.decode()

    def signal(self, number):
        subprocess.run(self._runc("kill", self.name, str(int(number))), check=True)

    def wait(self):
        return self.child.wait(40)

    def end(self):
        if self.child and self.child.poll() is None:
            subprocess.run(self._runc("kill", self.name, str(int(signal.SIGKILL))), stderr=subprocess.DEVNULL)
            try:
                self.child.wait(20)
            except subprocess.TimeoutExpired:
                pass
        if self.child:
            process.reap(self.child)
        subprocess.run(self._runc("delete", "--force", self.name), stderr=subprocess.DEVNULL)
