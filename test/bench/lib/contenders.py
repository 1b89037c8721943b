"""The measured programs: Onceward, the hand-written consumers, and the two bounds. Each knows how to start itself on a case."""

import json
import os
import subprocess
import urllib.parse

from rig import process

from .bed import HERE


class Case:
    """The input of a contender. Its caller sets the later fields."""

    def __init__(self, **fields):
        self.queue_type = "quorum"
        self.size = 256
        self.fill = "x"  # what bodies are made of: see loader.c
        self.duplicates = 0
        self.completion = "response"
        self.prefetch = 1024
        self.concurrency = 64
        self.n_queues = 1
        self.n_sidecars = 1
        self.unix = False
        self.application = None  # makes a stand-in other than nginx
        self.app_url = self.app_socket = None
        self.n_processes = None
        self.broker_port = None
        self.delivery_limit = None
        self.environment = {}
        self.queue_options = {}
        self.__dict__.update(fields)


class Contender:
    name = ""
    share = 1.0  # of the messages of a run: slow ones get fewer, the rate is what counts
    template = None  # the database that a run starts from
    textbook_app = False  # in `transaction` the application keeps the inbox itself

    def __init__(self, bed):
        self.bed = bed

    def spawn(self, case, arguments, environment=None, name=None):
        everything = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8", **(environment or {}), **case.environment}
        with self.bed.log(f"{name or self.name}.log") as out:
            return process.spawn(arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=everything, cwd=self.bed.folder)

    def amqp_url(self, case):
        return self.bed.rabbitmq.url(port=case.broker_port)

    def start(self, case):
        """Answers the processes."""
        raise NotImplementedError

    def n_completed(self, cursor):
        """The rows that say so; None: there are none to count."""
        return None


class Onceward(Contender):
    name = "onceward"
    template = "t_onceward"

    def config(self, case, index):
        forward = {"url": case.app_url, "concurrency": case.concurrency}
        dsn = self.bed.postgres.dsn(user="bench_sidecar", database=case.database)
        if case.unix:
            if case.app_socket:
                forward["unix_socket"] = case.app_socket
            dsn = (f"postgresql://bench_sidecar@/{case.database}?host={urllib.parse.quote(self.bed.sockets, safe='')}"
                   f"&port={self.bed.postgres.port}")
        queue = {"completion": case.completion, "prefetch": case.prefetch, "forward": forward, **case.queue_options}
        return {"broker": {"url": self.amqp_url(case)}, "database": {"url": dsn}, "defaults": queue,
                "state_file": os.path.join(self.bed.folder, f"state{index}"),
                "queues": {name: {"forward": {"url": case.app_url}} for name in case.queues}}

    def start(self, case):
        started = []
        for index in range(case.n_sidecars):
            path = os.path.join(self.bed.folder, f"onceward{index}.json")
            with open(path, "w") as f:
                json.dump(self.config(case, index), f, indent=1)
            started.append(self.spawn(case, [self.bed.binary, "run", "--config", path]))
        return started

    def n_completed(self, cursor):
        cursor.execute("SELECT count(*) FROM onceward.inbox WHERE status = 'completed'")
        return cursor.fetchone()[0]


class OncewardUnix(Onceward):
    """The application and the database over Unix sockets."""

    name = "onceward-unix"

    def start(self, case):
        case.unix = True
        return super().start(case)


class Textbook(Contender):
    template = "t_textbook"
    textbook_app = True

    def environment(self, case):
        values = {"AMQP_URL": self.amqp_url(case), "QUEUE": case.queues[0], "APP_URL": case.app_url,
                  "CONCURRENCY": str(case.concurrency),
                  "DATABASE_URL": self.bed.postgres.dsn(user="bench_app", database=case.database)}
        if case.completion == "transaction":
            values["INBOX"] = "application"
        return values

    def n_completed(self, cursor):
        cursor.execute("SELECT count(*) FROM inbox WHERE status = 'completed'")
        return cursor.fetchone()[0]


class Node(Textbook):
    name = "node"
    share = 0.25
    pool = 16
    prefetch = 256

    def start(self, case):
        environment = dict(self.environment(case), PREFETCH=str(min(self.prefetch, case.prefetch)), POOL=str(self.pool),
                           NODE_PATH=self.bed.node_modules, NODE_ENV="production")
        return [self.spawn(case, ["node", os.path.join(HERE, "peers", "node", "consumer.js")], environment)]


class Python(Textbook):
    name = "python"
    share = 0.1
    processes = 8
    prefetch = 32

    def start(self, case):
        n = max(1, min(case.concurrency, case.n_processes or self.processes))
        environment = dict(self.environment(case), PREFETCH=str(max(1, min(self.prefetch, case.prefetch // n))), PROCESSES=str(n))
        return [self.spawn(case, ["/usr/bin/python3", os.path.join(HERE, "peers", "python", "consumer.py")], environment)]


class Bound(Contender):
    textbook_app = True
    template = "t_textbook"
    forwards = False

    def start(self, case):
        arguments = [os.path.join(self.bed.bin, "bound"), "--port", str(case.broker_port or self.bed.rabbitmq.port), "--queues",
                     ",".join(case.queues), "--prefetch", str(case.prefetch)]
        if self.forwards:
            arguments += ["--url", case.app_url, "--concurrency", str(case.concurrency)]
            if case.unix and case.app_socket:
                arguments += ["--unix-socket", case.app_socket]
        return [self.spawn(case, arguments)]


class Acker(Bound):
    name = "acks-only"


class Forwarder(Bound):
    name = "forwards-only"
    forwards = True


ALL = {c.name: c for c in (Onceward, OncewardUnix, Node, Python, Acker, Forwarder)}
