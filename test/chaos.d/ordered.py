"""The chaos run of order per key: test/chaos --ordered.

Numbered messages of many keys go through a hash exchange into four partitions. Three replicas share them, with `order` and `transaction`.
Sidecars, applications, both servers and all links are killed, stopped, cut and frozen, and replicas are restarted one after the other.

Each effect records the number that its key had before, under a lock of the key. So the ledger shows each inversion (a number behind a
higher one), each gap, and each doubled effect. The kinds of messages that become dead letters are left out: they would be gaps."""

import collections
import json
import os
import random
import time

import pika

import schedule
from chaos import Run, say
from pod import Pod
from rig.queue import Queue
from schedule import HEAVY, HEAVY_EVERY, LIGHT, LIGHT_EVERY, Fault, Message

ENTRY, EXCHANGE, N_PARTITIONS, N_PODS, N_KEYS = "ledger-transaction", "ledger", 4, 3, 200
PARTITIONS = tuple(f"{ENTRY}-{n}" for n in range(N_PARTITIONS))
ROLL_EVERY, TRACE_EVERY = 45.0, 5.0
N_PUBLISHERS = 4
KINDS = tuple((kind, weight) for kind, weight in schedule.KINDS if kind not in schedule.NEVER_ACTS and kind != "mismatch")


def make_faults(seed, seconds):
    """As in the plain run, for three replicas, and rolling restarts in place of a changing number of pods."""
    chance = random.Random(f"{seed} ordered faults")
    end, faults, at = seconds - 3.0, [], 2.0
    while at < end:
        kind, _, span = schedule.weighted(chance, LIGHT)
        faults.append(Fault(at, kind, chance.randrange(N_PODS), chance.uniform(*span) if span else 0.0, chance.choice(("up", "down", "both"))))
        at += chance.expovariate(1 / LIGHT_EVERY)
    at = 6.0
    while at < end - 2.0:
        kind, span = chance.choice(HEAVY)
        faults.append(Fault(at, kind, 0, chance.uniform(*span)))
        at += chance.uniform(0.7, 1.3) * HEAVY_EVERY
    at = 10.0
    while at < end - 10.0:
        faults.append(Fault(at, "roll", 0))
        at += chance.uniform(0.7, 1.3) * ROLL_EVERY
    return sorted(faults)


def make_messages(seed, seconds, rate):
    """Of each publisher its own keys, each with the numbers from 1 on; copies follow behind."""
    chance = random.Random(f"{seed} ordered messages")
    numbers, messages = collections.Counter(), []
    for serial in range(int(seconds * rate)):
        key = f"key{chance.randrange(N_KEYS)}"
        numbers[key] += 1
        kind = schedule.weighted(chance, KINDS)[0]
        body = json.dumps({"serial": serial, "kind": kind, "version": 0, "key": key, "number": numbers[key],
                           "fill": "x" * (chance.randint(100_000, 300_000) if kind == "large" else chance.randint(0, 200))}).encode()
        message = Message(serial / rate, key, f"{key}:{numbers[key]}", kind, body)
        messages.append(message)
        if chance.random() < 0.1:
            messages.append(message._replace(at=min(message.at + chance.uniform(0.0, 20.0), seconds), copy=True))
    return sorted(messages, key=lambda m: m.at)


class KeyPublisher:
    """Publishes the messages of its keys one after the other, each again until it is confirmed."""

    def __init__(self, plain, rabbitmq, messages):
        self.publisher = plain(rabbitmq, ENTRY, messages)
        self.publisher._publish = self.publish
        self.channel = None

    def publish(self, message):
        p = self.publisher
        try:
            if self.channel is None or not self.channel.is_open:
                self.channel = p.rabbitmq.connect().channel()
                self.channel.confirm_delivery()
            self.channel.basic_publish(EXCHANGE, message.queue, message.body,
                                       pika.BasicProperties(message_id=message.message_id, delivery_mode=2), mandatory=True)
            return True
        except (pika.exceptions.AMQPError, OSError):
            self.channel = None
            return False


class OrderedPod(Pod):
    def config(self, rabbitmq, queues):
        config = super().config(rabbitmq, queues)
        config["broker"].pop("delivery_limit")
        config["queues"] = {ENTRY: {**config["queues"][queues[0]], "queue": f"{ENTRY}-{{0..{N_PARTITIONS - 1}}}", "consumer": ENTRY,
                                    "completion": "transaction", "order": {"key": ["routing_key"]}, "max_bytes": "512MiB"}}
        return config


class OrderedRun(Run):
    def __init__(self, options):
        super().__init__(options)
        self.faults = [] if options.calm else make_faults(options.seed, self.seconds)
        self.messages = make_messages(options.seed, self.seconds, options.rate)
        self.next_trace = 0.0

    def start(self):
        from publisher import Publisher
        from rig import schema

        self.servers.start(postgres={"synchronous_commit": "on", "fsync": "off", "max_connections": 400})
        self.postgres = self.make_database("chaos")
        self.postgres.query("ALTER TABLE app.effect ADD key text, ADD number integer, ADD before integer")
        self.postgres.query("CREATE INDEX ON app.effect (message_id)")
        self.postgres.query("CREATE TABLE app.last (key text PRIMARY KEY, number integer NOT NULL)")
        self.postgres.query("INSERT INTO app.last SELECT 'key' || n, 0 FROM generate_series(0, %s) n", (N_KEYS - 1,))
        self.postgres.query("ALTER TABLE app.last OWNER TO app_login")
        rabbitmq = self.servers.rabbitmq
        connection = rabbitmq.connect()
        channel = connection.channel()
        arguments = {"x-queue-type": "quorum", "x-single-active-consumer": True}
        if int(connection._impl.server_properties["version"].split(".")[0]) >= 4:
            arguments["x-delivery-limit"] = -1
        channel.exchange_declare(EXCHANGE, "x-modulus-hash", durable=True)
        for queue in PARTITIONS:
            channel.queue_declare(queue, durable=True, arguments=arguments)
            channel.queue_bind(queue, EXCHANGE, "")
        connection.close()
        self.pods = self.all_pods = [OrderedPod(f"pod{i}", self.folder, schema.require_binary(), rabbitmq, self.postgres, [ENTRY])
                                     for i in range(N_PODS)]
        self.billing = []
        for pod in self.pods:
            pod.start()
        own = lambda n: [m for m in self.messages if int(m.queue[3:]) % N_PUBLISHERS == n]
        self.publishers = [KeyPublisher(Publisher, rabbitmq, own(n)).publisher for n in range(N_PUBLISHERS)]

    def roll(self, pod, fault):
        """A rolling restart: each replica in turn, the next one when the one before consumes or waits for its turn."""
        for pod in self.pods:
            if pod.term_sidecar() and pod.up:
                pod.start_sidecar()
            self.pause(3.0)

    def target(self, fault):
        return None if fault.kind == "roll" else self.pods[fault.pod]

    def mend(self):
        super().mend()
        for pod in self.pods:
            pod.start()

    def depths(self, names=PARTITIONS):
        found = {}
        for name in PARTITIONS:
            queue = Queue(self.servers.rabbitmq, name)
            found[name] = queue.n_ready
            queue.close()
        return found

    def n_left(self):
        return sum(self.depths().values()) + len(self.unsettled(self.postgres))

    def is_quiet(self):
        self.trace_progress()
        return self.is_done(self.pods, PARTITIONS, self.postgres)

    def trace_progress(self):
        """Shows in schedule.log whether a partition stands or only works slowly."""
        if time.monotonic() < self.next_trace:
            return
        self.next_trace = time.monotonic() + TRACE_EVERY
        effects = self.postgres.query("SELECT count(*) FROM app.effect")[0][0]
        self.trace(f"progress: load {os.getloadavg()[0]:.1f}, effects {effects}, ready {self.depths()}, held {[pod.held() for pod in self.pods]}")

    def state(self):
        held = {pod.name: pod.held() for pod in self.pods if pod.up}
        return f"held {held}, ready {self.depths()}, unsettled {self.unsettled(self.postgres)[:10]}"

    def judge(self, settle_faults):
        rows = self.postgres.query("SELECT key, number, before, message_id, pod, at FROM app.effect ORDER BY at")
        ids = {m.message_id for m in self.messages}
        done = collections.Counter(r[3] for r in rows)
        letters = self.postgres.query("SELECT message_id, reason, last_error FROM onceward.dead_letter")
        logs = [f"{pod.name}: {f}" for pod in self.pods for f in (*pod.faults, *pod.sidecar.check(), *pod.sidecar.find("bug")[:5])]
        results = (
            ("everything acked, and the run's own parties worked", settle_faults + self.trouble),
            ("lost 0", sorted(ids - set(done))),
            ("inversions 0", [r for r in rows if r[1] <= r[2] and done[r[3]] == 1]),
            ("gaps 0", [r for r in rows if r[1] > r[2] + 1]),
            ("doubled 0", [i for i, n in done.items() if n > 1]),
            ("no dead letters", letters),
            ("nothing unsettled", self.unsettled(self.postgres)),
            ("nothing wrong in the logs", logs),
        )
        n = lambda *kinds: sum(self.count[k] for k in kinds)
        say(f"  {len(ids)} messages of {N_KEYS} keys, {sum(m.copy for m in self.messages)} copies, {sum(p.n_again for p in self.publishers)} published again, "
            f"{sum(len(pod.requests()) for pod in self.pods)} POSTs, {len(rows)} effects by {dict(collections.Counter(r[4] for r in rows))}")
        say(f"  kills: {n('kill_sidecar', 'kill_pod')} of sidecars, {n('kill_application', 'kill_pod')} of applications, {n('crash_database')} of PostgreSQL, "
            f"{n('kill_broker')} of RabbitMQ; {n('roll')} rolling restarts, {n('term_sidecar')} other restarts of sidecars, "
            f"{n('restart_database', 'restart_broker')} of servers; {sum(pod.sidecar.n_starts for pod in self.pods)} lives of sidecars")
        say(f"  links: {n('cut_broker', 'cut_database', 'cut_application')} cuts, {n('freeze_broker', 'freeze_database', 'freeze_application')} freezes, "
            f"{n('refuse_broker', 'refuse_database')} refused for a while; stops: {n('stop_sidecar')} of sidecars, {n('stop_application')} of applications; "
            f"settled {self.settled_in:.1f} s after the last fault")
        for name, faults in results:
            say(f"  {'FAILED' if faults else 'ok'}: {name}" + (f" ({len(faults)})" if faults else ""))
            for fault in faults[:self.options.show]:
                say(f"      {fault}")
        return sum(not faults for _, faults in results), sum(bool(faults) for _, faults in results)

    def waiting(self):
        return 0
