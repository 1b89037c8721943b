"""Three RabbitMQ nodes in one cluster, each a process of its own on this machine."""

import os
import shutil
import tempfile
import uuid

from . import process, servers
from .wait import wait_until


class Cluster:
    """Nodes that share an epmd and a cookie; the first one is joined by the others."""

    def __init__(self, certificates, n=3):
        self.folder = tempfile.mkdtemp(prefix="onceward-cluster-")
        os.chmod(self.folder, 0o755)
        self.nodes = [servers.RabbitMQ(os.path.join(self.folder, f"node{i}"), certificates) for i in range(n)]
        self.cookie = uuid.uuid4().hex

    def start(self):
        first, *others = self.nodes
        for node in self.nodes:
            node.ports["epmd"] = first.ports["epmd"]
            node.init()
            path = os.path.join(node.folder, ".erlang.cookie")
            with open(path, "w") as f:
                f.write(self.cookie)
            os.chmod(path, 0o400)
        for node in self.nodes:
            node.epmd = first.epmd
            node.start()
        for node in others:
            for command in (["stop_app"], ["reset"], ["join_cluster", first.node], ["start_app"]):
                node.rabbitmqctl(*command)
        # Until the cluster has a name, each node reports its own.
        first.rabbitmqctl("set_cluster_name", first.node)
        for node in self.nodes:
            wait_until(lambda node=node: first.node in node.rabbitmqctl("eval", "rabbit_nodes:cluster_name()."), "the nodes know the name", 60, 0.2)
        return self

    def leader(self, queue):
        """The node that leads a quorum queue, as a living node sees it."""
        node = next(n for n in self.nodes if n.child)
        rows = [line.split("\t") for line in node.rabbitmqctl("list_queues", "name", "leader").splitlines()]
        name = dict(row for row in rows if len(row) == 2)[queue]
        return next(n for n in self.nodes if n.node == name)

    def wait_for_leader_other_than(self, dead, queue):
        return wait_until(lambda: (lambda n: n if n is not dead else None)(self.leader(queue)), f"{queue} has another leader", 60, 0.2)

    @staticmethod
    def kill(node):
        """Without a word to the other nodes."""
        process.kill(node.child)
        node.child = None

    def stop(self):
        for node in self.nodes[1:]:
            node.epmd = None  # it is the first one's
        for node in reversed(self.nodes):
            if node.child:
                self.kill(node)
        self.nodes[0].deinit()
        shutil.rmtree(self.folder, ignore_errors=True)
