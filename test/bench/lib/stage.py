"""Where a proof takes place: a database of its own, queues, applications and sidecars, all of which end with it."""

import os
import subprocess
import threading
import time

import pika
import psycopg2

from rig import process
from rig.sidecar import Sidecar
from rig.wait import wait_until

from .application import Application, Mortal

NGINX = """daemon off; worker_processes 1; pid {folder}/front{port}.pid; error_log {folder}/front{port}.log crit; {user}
events {{ worker_connections 1024; }}
http {{
    access_log off; client_max_body_size 64m; client_body_temp_path {folder}/front-body; proxy_temp_path {folder}/front-proxy;
    fastcgi_temp_path {folder}/front-fastcgi; uwsgi_temp_path {folder}/front-uwsgi; scgi_temp_path {folder}/front-scgi;
    upstream application {{ server 127.0.0.1:{target}; keepalive 32; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass http://application; proxy_http_version 1.1; proxy_set_header Connection ""; }}
    }}
}}
"""


class Stage:
    """bed: the servers. rabbitmq, postgres: others than those of the bed."""

    n_made = 0

    def __init__(self, bed, name, rabbitmq=None, postgres=None, database=None):
        Stage.n_made += 1
        self.bed, self.name = bed, f"{name}{Stage.n_made}"
        self.rabbitmq, self.postgres = rabbitmq or bed.rabbitmq, postgres or bed.postgres
        self.owns_database = database is None
        self.database = database or bed.new_database("t_onceward")
        self.queues, self.parts = [], []
        self.broker = self.channel = None
        self._connect()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for part in self.parts[::-1]:
            if isinstance(part, Sidecar):
                if part.child:
                    part.kill()
            elif isinstance(part, Application):
                part.stop()
            else:
                process.kill(part)
        for queue in self.queues:
            self.channel.queue_delete(queue)
        self.broker.close()
        if self.owns_database:
            self.bed.drop_database(self.database)

    def _connect(self):
        self.broker = self.rabbitmq.connect()
        self.channel = self.broker.channel()

    reconnect = _connect

    # parts

    def queue(self, name="queue", kind="quorum", limit=None):
        name = f"{self.name}-{name}"
        arguments = {"x-queue-type": kind, **({"x-delivery-limit": limit} if limit else {})}
        self.channel.queue_declare(name, durable=True, arguments=arguments)
        self.queues.append(name)
        return name

    def _keep(self, part):
        self.parts.append(part)
        return part

    def app_dsn(self):
        return self.postgres.dsn(user="bench_app", database=self.database)

    def app(self, commits=False, **options):
        return self._keep(Application(self.bed, dsn=self.app_dsn() if commits else None, **options))

    def mortal(self, commits=True, **options):
        return self._keep(Mortal(self.bed, dsn=self.app_dsn() if commits else None, **options))

    def front(self, app):
        """nginx before the application; answers its URL."""
        port = process.free_port()
        path = os.path.join(self.bed.folder, f"front{port}.conf")
        with open(path, "w") as f:
            f.write(NGINX.format(folder=self.bed.folder, port=port, target=app.port, user="user root;" if os.geteuid() == 0 else ""))
        with self.bed.log("front.log") as out:
            self._keep(process.spawn(["/usr/sbin/nginx", "-c", path, "-e", path + ".log"], stdin=subprocess.DEVNULL, stdout=out, stderr=out))
        wait_until(lambda: self.listens(port), lambda: "nginx listens:\n" + process.tail(path + ".log"), 10)
        return f"http://127.0.0.1:{port}/"

    @staticmethod
    def listens(port):
        return bool(subprocess.run(["ss", "-Htln", f"sport = :{port}"], stdout=subprocess.PIPE).stdout.strip())

    def config(self, queues, url=None, name="one", **defaults):
        """queues: {name: options}, or names."""
        if not isinstance(queues, dict):
            queues = {queue: {} for queue in queues}
        if url:
            queues = {queue: {"forward": {"url": url}, **options} for queue, options in queues.items()}
        return {"broker": {"url": self.rabbitmq.url()}, "database": {"url": self.postgres.dsn(user="bench_sidecar", database=self.database)},
                "state_file": os.path.join(self.bed.folder, f"{self.name}-{name}.state"), "defaults": defaults, "queues": queues}

    def sidecar(self, queues, url=None, name="one", binary=None, **defaults):
        """Not started yet."""
        return self._keep(Sidecar(binary or self.bed.binary, self.bed.folder, self.config(queues, url, name, **defaults),
                                  f"{self.name}-{name}"))

    # messages

    def load(self, queue, count, **options):
        return self.bed.load(queue, count, port=self.rabbitmq.port, **options)

    def publish(self, queue, ids, body=b"{}"):
        for message_id in ids:
            self.channel.basic_publish("", queue, body, pika.BasicProperties(message_id=message_id, delivery_mode=2))

    def n_ready(self, queue):
        return self.channel.queue_declare(queue, passive=True).method.message_count

    def wait_for_ready(self, queue, n):
        wait_until(lambda: self.n_ready(queue) >= n, lambda: f"{n} ready in {queue}, {self.n_ready(queue)} are", 60, 0.05)

    @staticmethod
    def beside(work):
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    # the database

    def rows(self, sql, *parameters):
        connection = psycopg2.connect(self.postgres.dsn(database=self.database, application_name="bench"))
        connection.autocommit = True
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql, parameters)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def value(self, sql, *parameters):
        return self.rows(sql, *parameters)[0][0]

    def n_completed(self, *consumers):
        return self.value("SELECT count(*) FROM onceward.inbox WHERE status = 'completed' AND (%s OR consumer = ANY(%s))",
                          not consumers, list(consumers))

    def n_doubled(self):
        """Effects beyond the first of a message."""
        return self.value("SELECT coalesce(sum(n - 1), 0)::int FROM (SELECT count(*) AS n FROM public.effect GROUP BY message_id) each")

    def n_letters(self):
        return self.value("SELECT count(*) FROM onceward.dead_letter")

    def n_charged(self):
        """Attempts beyond the first of those that are completed."""
        return self.value("SELECT coalesce(sum(attempt - 1), 0)::int FROM onceward.inbox WHERE status = 'completed'")

    def wait_for_completed(self, n, patience, *consumers):
        """Seconds until there are so many; None: not within its patience."""
        start = time.monotonic()
        while self.n_completed(*consumers) < n:
            if time.monotonic() - start > patience:
                return None
            time.sleep(0.05)
        return time.monotonic() - start
