"""A pod: a sidecar and its application, each link through a proxy of its own. And what can be done to them."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

from rig import process
from rig.proxy import Proxy
from rig.sidecar import Sidecar
from rig.wait import Overdue

from schedule import GRACE, MAX_ATTEMPTS, WINDOW

HERE = os.path.dirname(os.path.abspath(__file__))
SHUTDOWN_GRACE = 3.0
DELIVERY_LIMIT = 1000  # of the quorum queues: minutes here have as many lost connections as months elsewhere
PEERS = ("broker", "database", "application")


KEPT = {"started", "taken_over", "bug", "outbox_held", "outbox_left"}


class Lines(Sidecar):
    """Keeps in memory what the oracle asks for; the whole log is in its file. A run of an hour has a million lines."""

    n_resent = 0  # by the relay, as far as it came to say so

    def _take(self, line):
        before = len(self.events)
        super()._take(line)
        with self._news:
            if len(self.events) == before:
                return
            event = self.events.pop()
            if event.get("event") == "stats":
                event = {key: event.get(key) for key in ("event", "queue", "held", "in_flight")}
            elif event.get("event") == "outbox":
                self.n_resent += event.get("resent", 0)
                return
            elif event.get("event") not in KEPT:
                return
            self.events.append(event)


def guarded(method):
    """Serialises actions on a pod."""

    def call(self, *arguments):
        with self.lock:
            return method(self, *arguments)

    return call


class Pod:
    def __init__(self, name, folder, binary, rabbitmq, postgres, queues, publishes=False, stats_interval="1s", batch=False):
        """publishes: its application does, and its sidecar is one of those that relay."""
        self.name, self.publishes, self.stats_interval, self.batch = name, publishes, stats_interval, batch
        self.folder = os.path.join(folder, self.name)
        os.mkdir(self.folder)
        self.postgres = postgres
        self.lock = threading.RLock()
        self.application_port = process.free_port()
        self.requests_log = os.path.join(self.folder, "requests.log")
        self.application = None
        self.links = {"broker": Proxy(rabbitmq.port), "database": Proxy(postgres.port), "application": Proxy(self.application_port)}
        for link in self.links.values():
            link.port = process.free_port()
            link.start()
        self.sidecar = Lines(binary, self.folder, self.config(rabbitmq, queues), self.name)
        self.faults = []
        self.up = False  # it should run: `scale` decides
        self.n_endings = self.n_reloads = 0
        self.endings = []  # when a message ended the application

    def config(self, rabbitmq, queues):
        """Every second pod has an instance name, as in Kubernetes: its own claims are its own again after a crash. Pods 1 and 2 have a
        ready.url: the links accept connections also while nobody is behind them, so that without one a lone crash is charged seldom."""
        port = {peer: link.port for peer, link in self.links.items()}
        config = {
            "broker": {"url": rabbitmq.url(port=port["broker"]), "heartbeat": "2s", "connect_timeout": "2s",
                       "delivery_limit": DELIVERY_LIMIT},
            "database": {"url": self.postgres.dsn(user="sidecar_login", port=port["database"], application_name=self.name),
                         "statement_timeout": "3s", "connect_timeout": "2s"},
            "log": {"messages": "all", "stats_interval": self.stats_interval},
            "state_file": os.path.join(self.folder, "state"),
            "shutdown_grace": f"{SHUTDOWN_GRACE:g}s",
            "defaults": {"token_window": f"{WINDOW:g}s", "commit_grace": "500ms", "pause_hold": "3s", "prefetch": 32,
                         "forward": {"url": f"http://127.0.0.1:{port['application']}/messages", "concurrency": 8},
                         "retry": {"max_attempts": MAX_ATTEMPTS, "backoff": "100ms", "max_backoff": "1s"}, "ready": {"interval": "200ms"}},
            "queues": {name: {"completion": "transaction" if "transaction" in name else "response"} for name in queues},
        }
        if int(self.name[-1]) % 2 == 0:
            config["instance"] = f"instance-{self.name}"
        if self.name[-1] in "12":
            config["defaults"]["ready"]["url"] = f"http://127.0.0.1:{port['application']}/ready"
        if self.publishes:
            config["outbox"] = {}
        if self.batch:
            config["defaults"]["prefetch"] = 64
            config["defaults"]["forward"].update(concurrency=2, content_type="application/json", batch={"max_messages": 20})
        return config

    # its parties

    @guarded
    def start_application(self):
        if self.application is None or self.application.poll() is not None:
            if self.application is not None:
                process.reap(self.application)
            with open(os.path.join(self.folder, "application.stderr"), "ab") as err:
                self.application = process.spawn(
                    [sys.executable, os.path.join(HERE, "application.py"), "--name", self.name, "--port", str(self.application_port),
                     "--dsn", self.postgres.dsn(user="app_login", application_name=f"app-{self.name}"), "--log", self.requests_log,
                     *(["--publishes"] if self.publishes else [])],
                    stdin=subprocess.DEVNULL, stdout=err, stderr=err)

    @guarded
    def start_sidecar(self):
        if self.sidecar.child is None:
            self.life = self.sidecar.mark()
            self.sidecar.start()

    @guarded
    def start(self):
        self.up = True
        self.start_application()
        self.start_sidecar()

    @guarded
    def look_after(self):
        """Acts as an orchestrator: restarts an application that ended. A sidecar must never end by itself."""
        if not self.up:
            return
        if self.application is not None and self.application.poll() is not None:
            self.n_endings += 1
            self.endings.append(time.time())
            self.start_application()
        self.sidecar_is_alive()

    def sidecar_is_alive(self):
        child = self.sidecar.child
        if child is None:
            return False
        if child.poll() is None:
            return True
        self.faults.append(f"{self.name} ended by itself with status {child.returncode}")
        self.sidecar.wait()
        return False

    @guarded
    def kill_sidecar(self):
        if self.sidecar_is_alive():
            self.sidecar.kill()
            return True
        return False

    @guarded
    def term_sidecar(self):
        if not self.sidecar_is_alive():
            return False
        self.sidecar.thaw()
        since = self.life
        try:
            status = self.sidecar.term(SHUTDOWN_GRACE + 12.0)
            # Before it has said that it started, it may not have come to take the signal.
            if status and (status != -signal.SIGTERM or self.sidecar.find("started", since)):
                self.faults.append(f"{self.name} ended with status {status} after SIGTERM")
        except Overdue as e:
            self.faults.append(f"{e} after SIGTERM")
            self.sidecar.kill()
        return True

    @guarded
    def signal_sidecar(self, number):
        if self.sidecar_is_alive():
            self.sidecar.signal(number)
            return True
        return False

    @guarded
    def reload_sidecar(self):
        """Another concurrency for one queue, and a hang-up; the next life has it too."""
        if not self.sidecar_is_alive() or not self.sidecar.find("started", self.life):
            return False
        queues = self.sidecar.config["queues"]
        self.n_reloads += 1
        name = sorted(queues)[self.n_reloads % len(queues)]
        concurrency = self.sidecar.config["defaults"]["forward"]["concurrency"]
        queues[name]["forward"] = {"concurrency": max(1, concurrency - 2 + self.n_reloads % 3)}
        if self.batch:
            queues[name]["forward"]["batch"] = {"max_messages": 10 + 5 * (self.n_reloads % 4)}
        with open(self.sidecar.config_path + ".next", "w") as f:
            json.dump(self.sidecar.config, f, indent=1)
        os.rename(self.sidecar.config_path + ".next", self.sidecar.config_path)
        self.sidecar.signal(signal.SIGHUP)
        return True

    @guarded
    def kill_application(self):
        if self.application is not None and self.application.poll() is None:
            process.kill(self.application)
            self.application = None
            return True
        return False

    @guarded
    def kill_both(self):
        """Or neither, where one of them has ended: that one's fault starts it again, and nobody would the other."""
        application = self.application is not None and self.application.poll() is None
        return application and self.sidecar_is_alive() and self.kill_application() and self.kill_sidecar()

    @guarded
    def signal_application(self, number):
        if self.application is not None and self.application.poll() is None:
            self.application.send_signal(number)
            return True
        return False

    @guarded
    def stop(self):
        """Taken out of service, politely."""
        self.up = False
        self.term_sidecar()
        self.kill_application()

    def mend(self):
        for link in self.links.values():
            link.thaw()
            if link._listener is None:
                link.mend()

    def deinit(self):
        with self.lock:
            self.up = False
            if self.sidecar.child is not None:
                self.sidecar.kill()
            self.kill_application()
        for link in self.links.values():
            link.stop()

    # what it wrote

    def requests(self):
        try:
            with open(self.requests_log) as f:
                return [json.loads(line) for line in f if line.endswith("}\n")]
        except OSError:
            return []

    def held(self):
        """Deliveries held, by the latest stats lines of this life; None when a queue has not spoken yet."""
        latest = {}
        for event in self.sidecar.find("stats", self.since):
            latest[event["queue"]] = event
        if len(latest) < len(self.sidecar.config["queues"]):
            return None
        return sum(event["held"] + event["in_flight"] for event in latest.values())

    def mark(self):
        self.since = self.sidecar.mark()
