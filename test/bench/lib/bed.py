"""What the bench stands on: private servers, the application's stand-ins, the compiled tools, the peers' packages.

Everything lives in one temporary folder and ends with this process; only the packages of the Node peer stay, in a cache."""

import hashlib
import http.client
import json
import os
import shutil
import subprocess

import psycopg2

from rig import process, servers
from rig.wait import wait_until

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(os.path.dirname(HERE))

TOOLS = {"loader": ("tools/loader.c", "-lrabbitmq"), "bound": ("peers/c/bound.c", "-lrabbitmq -lcurl"),
         "app": ("tools/app.c", "-lpq -I{pq}"), "recorder": ("tools/recorder.c", "-lpq -lpthread -I{pq}"), "tap": ("tools/tap.c", ""), "taker": ("tools/taker.c", "-lrabbitmq"), "count.so": ("tools/count.c", "-shared -fPIC -ldl")}

# A server as one would run it: synchronous, durable, with full-page images, and a part of the memory for its pages.
PAGES_MIB = min(2048, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (4 << 20))
POSTGRES = {"fsync": "on", "full_page_writes": "on", "shared_buffers": f"{PAGES_MIB}MB", "max_wal_size": "16GB",
            "checkpoint_timeout": "60min", "autovacuum_naptime": "1min", "ssl": "off", "log_lock_waits": "off",
            "deadlock_timeout": "1s"}
RABBITMQ = {"disk_free_limit.absolute": "100MB", "vm_memory_high_watermark.relative": "0.6"}

NGINX = """daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log warn;
events {{ worker_connections 8192; }}
http {{
    access_log off; keepalive_requests 1000000000; keepalive_timeout 300s; client_body_buffer_size 128k;
    client_max_body_size 64m; client_body_temp_path {folder}/nginx-body; proxy_temp_path {folder}/nginx-proxy;
    fastcgi_temp_path {folder}/nginx-fastcgi; uwsgi_temp_path {folder}/nginx-uwsgi; scgi_temp_path {folder}/nginx-scgi;
    server {{
        listen 127.0.0.1:{port} backlog=4096; listen unix:{folder}/nginx.sock;
        location / {{ return 204; }}
        location = /status {{ stub_status; }}
    }}
}}
"""

# What a hand-written consumer keeps; and what an application of the bench writes.
TEXTBOOK = """
CREATE TABLE inbox (message_id text PRIMARY KEY, status text NOT NULL, received_at timestamptz NOT NULL DEFAULT now(),
                    completed_at timestamptz);
CREATE TABLE effect (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message_id text NOT NULL, at timestamptz NOT NULL DEFAULT now());
GRANT ALL ON ALL TABLES IN SCHEMA public TO bench_app;
"""
EFFECT = """
CREATE TABLE public.effect (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message_id text NOT NULL,
                            at timestamptz NOT NULL DEFAULT now());
GRANT ALL ON ALL TABLES IN SCHEMA public TO bench_app;
"""


NPM_PATIENCE = 90


class Unavailable(Exception):
    pass


class Bed:
    def __init__(self, say, binary=None, peers=("node", "python")):
        self.say = say
        self.binary = binary
        self.peers = set(peers)
        self.missing = {}  # the optional peers that could not be had: {name: why}
        self.servers = None
        self.nginx = None
        self.admin = None
        self.n_databases = 0
        self.n_prefixes = 0

    def start(self, optional=()):
        """optional: peers to go on without when their packages cannot be had."""
        self.servers = servers.Servers("onceward-bench-")
        self.folder = self.servers.folder
        self.bin = os.path.join(self.folder, "bin")
        os.mkdir(self.bin)
        os.chmod(self.folder, 0o755)
        if not self.binary:
            self.binary = self._build()
        for name, (source, flags) in TOOLS.items():
            if os.path.exists(os.path.join(HERE, source)):
                self._compile(name, source, flags)
        if "node" in self.peers:
            try:
                self.node_modules = self._npm()
            except Unavailable as e:
                if "node" not in optional:
                    raise SystemExit(str(e)) from None
                self.peers.discard("node")
                self.missing["node"] = str(e).splitlines()[0]
        self.say("starting PostgreSQL, RabbitMQ and nginx")
        sockets = os.path.join(self.folder, "sockets")
        os.mkdir(sockets)
        os.chmod(sockets, 0o777)
        self.sockets = sockets
        self.servers.start(postgres=dict(POSTGRES, unix_socket_directories=f"'{sockets}'"), rabbitmq=RABBITMQ)
        self.postgres, self.rabbitmq = self.servers.postgres, self.servers.rabbitmq
        with open(os.path.join(self.postgres.data, "pg_hba.conf"), "a") as f:
            f.write("local all all trust\n")
        self.postgres.query("SELECT pg_reload_conf()")
        self._schema()
        self._nginx()
        return self

    def stop(self, keep=False):
        if self.admin:
            self.admin.close()
        if self.nginx:
            process.reap(self.nginx)
        if self.servers:
            self.servers.stop(keep)

    # what must be made first

    def _run(self, *arguments, **options):
        done = subprocess.run(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              **options)
        if done.returncode:
            raise SystemExit(f"{' '.join(arguments)}:\n{done.stdout}")
        return done.stdout

    def _build(self):
        folder = os.path.join(self.folder, "build")
        self.say("building the release binary")
        self._run("meson", "setup", "--buildtype=release", folder, ROOT)
        self._run("ninja", "-C", folder, "onceward")
        return os.path.join(folder, "onceward")

    def _compile(self, name, source, flags):
        pq = self._run("pg_config", "--includedir").strip() if "{pq}" in flags else ""
        self._run("gcc", "-O2", "-std=gnu17", "-D_GNU_SOURCE", "-Wall", "-o", os.path.join(self.bin, name),
                  os.path.join(HERE, source), *flags.format(pq=pq).split())

    def _npm(self):
        peer = os.path.join(HERE, "peers", "node")
        with open(os.path.join(peer, "package-lock.json"), "rb") as f:
            key = hashlib.sha256(f.read()).hexdigest()[:16]
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        folder = os.path.join(cache, "onceward-bench", key)
        modules = os.path.join(folder, "node_modules")
        if not shutil.which("node"):
            raise Unavailable("node is not installed")
        if not os.path.exists(os.path.join(folder, "complete")):
            self.say("fetching the packages of the Node consumer")
            os.makedirs(folder, exist_ok=True)
            for name in ("package.json", "package-lock.json"):
                shutil.copy(os.path.join(peer, name), folder)
            if not shutil.which("npm"):
                raise Unavailable("npm is not installed")
            try:
                self._run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", cwd=folder, timeout=NPM_PATIENCE)
            except (SystemExit, subprocess.TimeoutExpired) as e:
                raise Unavailable(f"its packages cannot be fetched\n{e}") from None
            open(os.path.join(folder, "complete"), "w").close()
        return modules

    def _schema(self):
        self.postgres.query("CREATE DATABASE t_onceward")
        self.postgres.query("CREATE DATABASE t_textbook")
        self.migrate(self.postgres.dsn(database="t_onceward"))
        self.postgres.query("CREATE ROLE bench_sidecar LOGIN IN ROLE onceward_sidecar")
        self.postgres.query("CREATE ROLE bench_app LOGIN IN ROLE onceward_app")
        self.postgres.query(EFFECT, database="t_onceward")
        self.postgres.query(TEXTBOOK, database="t_textbook")
        self.admin = psycopg2.connect(self.postgres.dsn(application_name="bench"))
        self.admin.autocommit = True
        with self.admin.cursor() as cursor:
            cursor.execute("CREATE EXTENSION pg_walinspect")

    def migrate(self, dsn):
        path = os.path.join(self.folder, "migrate.json")
        with open(path, "w") as f:
            json.dump({"broker": {"url": self.rabbitmq.url()}, "database": {"url": dsn},
                       "queues": {"none": {"forward": {"url": "http://127.0.0.1:1/"}}}}, f)
        self._run(self.binary, "migrate", "--config", path)

    def _nginx(self):
        self.app_port = process.free_port()
        self.app_url = f"http://127.0.0.1:{self.app_port}/"
        self.app_socket = os.path.join(self.folder, "nginx.sock")
        path = os.path.join(self.folder, "nginx.conf")
        with open(path, "w") as f:
            f.write(("user root;" if os.geteuid() == 0 else "") + NGINX.format(folder=self.folder, port=self.app_port))
        with open(os.path.join(self.folder, "nginx.out"), "ab") as out:
            self.nginx = process.spawn(["/usr/sbin/nginx", "-c", path, "-e", os.path.join(self.folder, "nginx.log")],
                                       stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        wait_until(self._nginx_answers, lambda: "nginx answers:\n" + process.tail(os.path.join(self.folder, "nginx.log")), 10)

    def _nginx_answers(self):
        try:
            self.n_posted()
            return True
        except OSError:
            return False

    def n_posted(self):
        """Requests that nginx took so far, this one too."""
        connection = http.client.HTTPConnection("127.0.0.1", self.app_port, timeout=5)
        connection.request("GET", "/status")
        text = connection.getresponse().read().decode()
        connection.close()
        return int(text.splitlines()[2].split()[2])

    # what a run uses

    def new_database(self, template):
        self.n_databases += 1
        name = f"bench{self.n_databases}"
        self.postgres.close_looks(template)  # a template may have no session
        with self.admin.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def drop_database(self, name):
        with self.admin.cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def checkpoint(self):
        with self.admin.cursor() as cursor:
            cursor.execute("CHECKPOINT")

    def load(self, queue, count, size=256, duplicates=0, port=None, **options):
        """Publishes a backlog; answers the number of different ids."""
        self.n_prefixes += 1
        arguments = [os.path.join(self.bin, "loader"), "--port", str(port or self.rabbitmq.port), "--queue", queue, "--count",
                     str(count), "--size", str(size), "--duplicates", str(duplicates), "--prefix", str(self.n_prefixes)]
        for key, value in options.items():
            arguments += ["--" + key, str(value)]
        return int(self._run(*arguments))

    def log(self, name):
        return open(os.path.join(self.folder, name), "ab")
