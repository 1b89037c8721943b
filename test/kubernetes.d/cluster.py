"""The cluster as the scenarios see it: kubectl, what containers ended with, and what sidecars wrote.

Watch follows the pods and keeps every end of a container, since a pod that is gone says nothing any more. Lines follows the files that kubelet
writes the containers' output into, by open descriptors, since kubelet deletes them with the pod."""

import glob
import json
import os
import re
import subprocess
import threading
import time

from rig.wait import wait_until

HERE = os.path.dirname(os.path.abspath(__file__))
NODE_IP = "10.99.0.1"
NAMESPACE = "payments"


def forward(port, to):
    """Forwards what pods send to the node's address to a server that listens on the loopback of this namespace."""
    for interface in "all", "default":
        with open(f"/proc/sys/net/ipv4/conf/{interface}/route_localnet", "w") as f:
            f.write("1")
    subprocess.run(["iptables", "-w", "-t", "nat", "-A", "PREROUTING", "-d", NODE_IP, "-p", "tcp", "--dport", str(port),
                    "-j", "DNAT", "--to-destination", f"127.0.0.1:{to}"], check=True)


class Cluster:
    def __init__(self, root, folder, binaries):
        self.root, self.folder, self.binaries = root, folder, binaries
        os.makedirs(folder, exist_ok=True)
        if not os.path.lexists(os.path.join(folder, "bin")):
            os.symlink(os.path.join(binaries, "bin"), os.path.join(folder, "bin"))
        self.kubeconfig = os.path.join(folder, "pki/admin.kubeconfig")

    def script(self, *arguments):
        subprocess.run([os.path.join(HERE, "cluster.sh"), *arguments], check=True, stdout=subprocess.DEVNULL,
                       env=dict(os.environ, CLUSTER=self.folder, NODE_IP=NODE_IP))

    def command(self, program, *arguments, text=None, check=True):
        done = subprocess.run([os.path.join(self.binaries, "bin", program), "--kubeconfig", self.kubeconfig, *arguments],
                              input=text and text.encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if check and done.returncode:
            raise RuntimeError(f"{program} {' '.join(arguments)}: {(done.stderr + done.stdout).decode()}")
        return done.stdout.decode() if check else (done.stdout + done.stderr).decode()

    def kubectl(self, *arguments, text=None, check=True):
        return self.command("kubectl", "-n", NAMESPACE, *arguments, text=text, check=check)

    def get(self, *arguments):
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))["items"]

    def pods(self, *selector):
        """The application's pods that are not about to end."""
        found = self.get("pods", "-l", "app=payments", *selector)
        return [p for p in found if not p["metadata"].get("deletionTimestamp")]

    def names(self):
        return [p["metadata"]["name"] for p in self.pods()]

    def pod(self, name):
        return next((p for p in self.pods() if p["metadata"]["name"] == name), None)

    def settled(self, kind="deployment", seconds=180):
        """Three pods of the present revision that are ready, and nothing of the others left."""
        self.kubectl("rollout", "status", f"{kind}/payments", f"--timeout={seconds}s")
        wait_until(lambda: len(self.get("pods", "-l", "app=payments")) == 3 and all(ready(p) for p in self.pods()),
                   "three ready pods and no more", seconds, 0.5)


def ready(pod):
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))


def restarts(pod, container):
    statuses = pod["status"].get("initContainerStatuses", []) + pod["status"].get("containerStatuses", [])
    return next((s["restartCount"] for s in statuses if s["name"] == container), 0)


class Watch(threading.Thread):
    """Every end of a container in the namespace: `ends` has (pod, container, container's id) and its exit code and reason."""

    def __init__(self, cluster):
        super().__init__(daemon=True)
        self.cluster, self.ends, self.child = cluster, {}, None

    def run(self):
        while True:
            self.child = subprocess.Popen([os.path.join(self.cluster.binaries, "bin/kubectl"), "--kubeconfig", self.cluster.kubeconfig, "get", "--raw",
                                           f"/api/v1/namespaces/{NAMESPACE}/pods?watch=1&timeoutSeconds=3600"],
                                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            for line in self.child.stdout:
                self._note(json.loads(line)["object"])
            self.child.wait()
            time.sleep(0.2)

    def _note(self, pod):
        status = pod.get("status", {})
        for container in status.get("initContainerStatuses", []) + status.get("containerStatuses", []):
            for state in "state", "lastState":
                ended = container.get(state, {}).get("terminated")
                if ended and ended.get("containerID"):
                    key = pod["metadata"]["name"], container["name"], ended["containerID"]
                    self.ends[key] = ended["exitCode"], ended.get("reason", "")

    def since(self, known):
        """The ends that are not in `known`, a copy of `ends` from before."""
        return {key: end for key, end in list(self.ends.items()) if key not in known}


class Lines(threading.Thread):
    """The sidecars' logs: `lines` has (pod, object)."""

    def __init__(self, cluster):
        super().__init__(daemon=True)
        self.pattern = os.path.join(cluster.folder, f"log/pods/{NAMESPACE}_*/onceward/*.log")
        self.lines, self.open = [], {}

    def run(self):
        while True:
            self.look()
            time.sleep(0.1)

    def look(self):
        for path in glob.glob(self.pattern):
            if path not in self.open:
                try:
                    self.open[path] = [open(path, "rb"), b""]
                except OSError:
                    pass
        for path, entry in list(self.open.items()):
            *whole, entry[1] = (entry[1] + entry[0].read()).split(b"\n")
            pod = re.search(rf"/{NAMESPACE}_([^/]+)_[^/_]+/onceward", path)[1]
            self.lines.extend((pod, self._parsed(line)) for line in whole)

    @staticmethod
    def _parsed(line):
        text = line.split(b" ", 3)[-1].decode(errors="replace")  # kubelet's own: time, stream, whole or part
        try:
            return json.loads(text)
        except ValueError:
            return {"level": "error", "event": "no JSON", "message": text}

    def loud(self, start):
        """The lines at level warning or error from the `start`th on, shortened. That the broker is reached without TLS is this rig's doing."""
        return [f"{pod}: {line.get('event')} {line.get('reason', '')} {line.get('message', '')[:100]}"
                for pod, line in self.lines[start:]
                if line.get("level") in ("warning", "error") and (line.get("event"), line.get("path")) != ("limits", "broker.url")]
