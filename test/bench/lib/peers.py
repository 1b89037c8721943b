"""The peers of the `peers` scenario, each at the best configuration that was found for it: see the files in peers/."""

import os
import string

from rig import process

from . import peers_build
from .bed import HERE, Unavailable
from .contenders import Contender, Forwarder, Node, Onceward

# label: what it is, and how it was configured
SAYS = {
    "onceward": "Onceward, `response`: prefetch 1,024, concurrency 64, a fixed `instance`, the broker's `delivery_limit`, else defaults",
    "onceward transaction": "Onceward, `transaction`: the same",
    "onceward defaults": "Onceward, `response`: prefetch 128, concurrency 16, the defaults",
    "daprd": "daprd {daprd} with its RabbitMQ component only: declarative subscription, quorum queue, raw payload, manual acks, requeue in failure, "
             "parallel, prefetch 255 (the most it takes), metrics and tracing off",
    "daprd resiliency": "the same with a resiliency policy: endless retries, at most 5 s apart",
    "daprd bulk": "the same as daprd, bulk subscription of 100 messages, 20 ms",
    "connect": "Redpanda Connect {connect}: `amqp_0_9` prefetch 256 to `http_client`, 64 in flight",
    "connect batches": "the same, 100 messages in a request, 20 ms",
    "connect inbox": "Redpanda Connect {connect}: a claim and a completion in SQL around the request, pool of 16",
    "connect dedupe": "Redpanda Connect {connect}: its `dedupe` with a cache in memory, endless `retry`, as its page advises",
    "node": "Node: the textbook inbox (insert on conflict, POST, update, ack), prefetch 256, pool of 16, 64 connections",
    "forwards-only": "a C program of the bench: prefetch 1,024, 64 connections",
}


class Once(Onceward):
    app_mode = "effect"
    database = "t_onceward"

    def __init__(self, bed, completion="response", **queue):
        super().__init__(bed)
        self.completion, self.queue = completion, queue
        if completion == "transaction":
            self.app_mode = "token"

    def config(self, case, index):
        case.completion = self.completion
        case.queue_options = dict(case.queue_options, **self.queue)
        config = super().config(case, index)
        config["instance"] = f"peer-{index}"
        config["broker"]["delivery_limit"] = case.delivery_limit or 0  # a broker before version 4 does not tell it
        return config


class Peer(Contender):
    """One that is not told of a transaction: its application commits an effect of its own."""

    app_mode = "effect"
    template = "t_textbook"
    completion = "response"
    share = 0.4
    bulk = False

    def write(self, folder, name, source, **values):
        with open(os.path.join(HERE, "peers", source), encoding="utf-8") as f:
            text = string.Template(f.read()).substitute(values)
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            f.write(text)


class Daprd(Peer):
    name = "daprd"

    def __init__(self, bed, bulk=False, resiliency=False):
        super().__init__(bed)
        self.bulk, self.resiliency = bulk, resiliency

    def start(self, case):
        folder = os.path.join(self.bed.folder, "daprd")
        resources = os.path.join(folder, "resources")
        os.makedirs(resources, exist_ok=True)
        self.write(resources, "component.yaml", "daprd/component.yaml", amqp_url=self.amqp_url(case))
        self.write(resources, "subscription.yaml", "daprd/subscription.yaml", queue=case.queues[0], bulk=str(self.bulk).lower())
        self.write(folder, "configuration.yaml", "daprd/configuration.yaml")
        if self.resiliency:
            self.write(resources, "resiliency.yaml", "daprd/resiliency.yaml")
        elif os.path.exists(os.path.join(resources, "resiliency.yaml")):
            os.remove(os.path.join(resources, "resiliency.yaml"))
        ports = [str(process.free_port()) for _ in range(3)]
        return [self.spawn(case, [
            self.bed.programs["daprd"], "--app-id", "peer", "--app-port", case.app_url.split(":")[2].strip("/"), "--app-protocol", "http",
            "--app-channel-address", "127.0.0.1", "--dapr-listen-addresses", "127.0.0.1", "--dapr-http-port", ports[0],
            "--dapr-grpc-port", ports[1], "--dapr-internal-grpc-port", ports[2], "--dapr-internal-grpc-listen-address", "127.0.0.1",
            "--enable-metrics=false", "--resources-path", resources, "--config", os.path.join(folder, "configuration.yaml"),
            "--log-level", "info"], {"HOME": folder})]


class Connect(Peer):
    name = "connect"

    def __init__(self, bed, form="forward"):
        super().__init__(bed)
        self.form = form
        self.bulk = form == "batches"

    def start(self, case):
        dsn = self.bed.postgres.dsn(user="bench_app", database=case.database)
        values = {"AMQP_URL": self.amqp_url(case), "QUEUE": case.queues[0], "APP_URL": case.app_url + "m", "HOME": self.bed.folder,
                  "DATABASE_URL": dsn + ("&" if "?" in dsn else "?") + "sslmode=disable"}
        return [self.spawn(case, [self.bed.programs["connect"], "run", os.path.join(HERE, "peers", "connect", f"{self.form}.yaml")], values)]


class NodePeer(Node):
    app_mode = "effect"
    completion = "response"


class ForwarderPeer(Forwarder):
    app_mode = "effect"
    completion = "response"


MADE = {
    "onceward": Once,
    "onceward transaction": lambda bed: Once(bed, "transaction"),
    "onceward defaults": lambda bed: Once(bed, prefetch=128, forward={"concurrency": 16}),
    "daprd": Daprd,
    "daprd resiliency": lambda bed: Daprd(bed, resiliency=True),
    "daprd bulk": lambda bed: Daprd(bed, bulk=True),
    "connect": Connect,
    "connect batches": lambda bed: Connect(bed, "batches"),
    "connect inbox": lambda bed: Connect(bed, "inbox"),
    "connect dedupe": lambda bed: Connect(bed, "dedupe"),
    "node": NodePeer,
    "forwards-only": ForwarderPeer,
}


def program(label):
    return label.split()[0]


def build(bed, without):
    """Builds what is built. Answers the sentences of those that are left out."""
    bed.programs = {}
    for name in ("connect", "daprd"):
        try:
            if name not in without:
                bed.programs[name] = peers_build.build(name, bed.say)
        except Unavailable as e:
            bed.missing[name] = str(e).splitlines()[0]
            bed.say(f"without {name}: {e}")


def is_there(bed, label):
    return program(label) not in ("connect", "daprd", "node") or program(label) in bed.programs or (
        program(label) == "node" and "node" in bed.peers)
