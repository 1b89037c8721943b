"""Private RabbitMQ and PostgreSQL: ordinary processes in a temporary folder, on free loopback ports, gone when we are.

Both speak plain and TLS, with a certificate for `localhost` from a certificate authority made on the spot. A server object can be made
from what describe() answered in another process: it can then be talked to, but not started or stopped."""

import fcntl
import glob
import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid

import pika
import psycopg2

from . import process
from .looks import Looks
from .wait import wait_until

HOST = "127.0.0.1"
PATIENCE = 240  # a machine that has other work starts a broker in minutes


INITDB = ("initdb", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C.UTF-8")


_looks = {}  # of other databases than an object's own, by (port, database)


class ServerError(Exception):
    pass


class Certificates:
    """A certificate authority and a server certificate for localhost."""

    def __init__(self, folder):
        self.folder = folder
        self.ca = os.path.join(folder, "ca.pem")
        self.cert = os.path.join(folder, "server.pem")
        self.key = os.path.join(folder, "server.key")
        self.other_ca = os.path.join(folder, "other-ca.pem")

    def make(self):
        os.makedirs(self.folder, mode=0o755, exist_ok=True)
        self._authority("ca", "/CN=onceward test authority")
        self._authority("other-ca", "/CN=somebody else")
        path = lambda name: os.path.join(self.folder, name)
        with open(path("ext"), "w") as f:
            f.write("subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
        self._openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", self.key,
                      "-out", path("server.csr"), "-subj", "/CN=localhost")
        self._openssl("x509", "-req", "-in", path("server.csr"), "-CA", self.ca, "-CAkey", path("ca.key"), "-CAcreateserial",
                      "-days", "30", "-extfile", path("ext"), "-out", self.cert)
        os.chmod(self.key, 0o644)
        return self

    def _authority(self, name, subject):
        path = os.path.join(self.folder, name)
        self._openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30",
                      "-keyout", path + ".key", "-out", path + ".pem", "-subj", subject)

    @staticmethod
    def _openssl(*arguments):
        subprocess.run(["openssl", *arguments], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)


class PostgreSQL:
    """A cluster of its own. Superuser `postgres` without a password; user `with_password` needs one."""

    PASSWORD = "s3cret %/:@"

    def __init__(self, folder, certificates, port=None, database="postgres"):
        self.folder = folder
        self.certificates = certificates
        self.port = port or process.free_port()
        self.database = database
        self.data = os.path.join(folder, "data")
        self.log = os.path.join(folder, "postgresql.log")
        self.child = None
        self.inside = []  # a command before the server's own: see rig/disk.py
        self._looks = Looks()  # in its own database

    def describe(self):
        return {"folder": self.folder, "certificates": self.certificates.folder, "port": self.port}

    @classmethod
    def described(cls, d, database="postgres"):
        return cls(d["folder"], Certificates(d["certificates"]), d["port"], database)

    # the process

    @staticmethod
    def programs():
        found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"), key=lambda p: int(p.split("/")[4]))
        if not found:
            raise ServerError("PostgreSQL is not installed (no /usr/lib/postgresql/*/bin/initdb)")
        return os.path.dirname(found[-1])

    def _as_owner(self, *arguments):
        """PostgreSQL refuses to run as root: then it runs as the user of Debian's package, or nobody."""
        program = [os.path.join(self.programs(), arguments[0]), *arguments[1:]]
        if os.geteuid() != 0:
            return program
        owner = self._owner()
        return ["setpriv", "--pdeathsig", "KILL", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups",
                *program]

    @staticmethod
    def _owner():
        for name in ("postgres", "nobody"):
            try:
                return pwd.getpwnam(name)
            except KeyError:
                pass
        raise ServerError("neither a user postgres nor nobody to run PostgreSQL as")

    def own(self, *paths):
        """Gives files to the user that the server runs as."""
        if os.geteuid() == 0:
            owner = self._owner()
            for path in paths:
                os.chown(path, owner.pw_uid, owner.pw_gid)

    def _make_data(self, *program):
        """An empty folder for the data, the key of its certificate, and what the program makes of it."""
        os.makedirs(self.folder, mode=0o755, exist_ok=True)
        os.chmod(self.folder, 0o755)
        os.makedirs(self.data, mode=0o700)
        key = os.path.join(self.folder, "postgresql.key")
        shutil.copy(self.certificates.key, key)
        os.chmod(key, 0o600)
        self.own(self.data, key)
        if program:
            self._fill(self.data, *program)
        else:
            subprocess.run(["cp", "-a", "--reflink=auto", self._template() + "/.", self.data], check=True, stdin=subprocess.DEVNULL)
        return key

    def _fill(self, data, *program):
        done = subprocess.run([*self.inside, *self._as_owner(*program, "--no-sync", "--pgdata", data)],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/")
        if done.returncode:
            raise ServerError(f"{program[0]}: " + done.stdout.decode(errors="replace"))

    def _template(self):
        """The result of initdb, made once for all servers of these certificates: a copy takes a tenth of the time."""
        made = os.path.join(os.path.dirname(self.certificates.folder), "postgresql-template")
        with open(made + ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(made):
                begun = tempfile.mkdtemp(prefix=made)
                self.own(begun)
                self._fill(begun, *INITDB)
                os.rename(begun, made)
        return made

    def init(self, initdb=(), **settings):
        """initdb: more options for it; the others are lines of postgresql.conf."""
        key = self._make_data(*([*INITDB, *initdb] if initdb or self.inside else []))
        values = {"listen_addresses": f"'{HOST}'", "port": self.port, "unix_socket_directories": "''",
                  "max_connections": 300, "max_prepared_transactions": 10, "shared_buffers": "64MB", "fsync": "off", "full_page_writes": "off",
                  "max_wal_size": "4GB", "logging_collector": "off", "log_line_prefix": "'%m [%p] %a '",
                  "log_lock_waits": "on", "deadlock_timeout": "500ms", "autovacuum_naptime": "1h", "jit": "off", "ssl": "on",
                  "ssl_cert_file": f"'{self.certificates.cert}'", "ssl_key_file": f"'{key}'", "timezone": "'UTC'",
                  "log_checkpoints": "off"}
        values.update(settings)
        with open(os.path.join(self.data, "postgresql.conf"), "a") as f:
            f.writelines(f"{name} = {value}\n" for name, value in values.items())
        with open(os.path.join(self.data, "pg_hba.conf"), "w") as f:
            f.write("host all with_password all scram-sha-256\nhost all all all trust\nhost replication all all trust\n")
        return self

    def init_standby(self, primary):
        """A streaming replica of a server that runs. Start it; pg_promote() makes it a primary."""
        key = self._make_data("pg_basebackup", "--checkpoint=fast", "--write-recovery-conf", "--dbname", primary.dsn())
        with open(os.path.join(self.data, "postgresql.conf"), "a") as f:
            f.write(f"port = {self.port}\nssl_key_file = '{key}'\n")
        return self

    def start(self):
        with open(self.log, "ab") as log:
            self.child = process.spawn([*self.inside, *self._as_owner("postgres", "-D", self.data)], stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=log, cwd="/")
        wait_until(self._answers, lambda: "PostgreSQL answers:\n" + process.tail(self.log), PATIENCE, 0.02)
        return self

    def _answers(self):
        if self.child.poll() is not None:
            raise ServerError("PostgreSQL ended:\n" + process.tail(self.log))
        try:
            self.connect("postgres").close()
            return True
        except psycopg2.OperationalError:
            return False

    def stop(self):
        """As a clean restart does it: sessions are ended."""
        if self.child:
            process.reap(self.child, ((signal.SIGINT, 5.0), (signal.SIGQUIT, 3.0)))
            self.child = None

    def crash(self):
        """As a power cut does it, but for the kernel's buffers."""
        self.child.send_signal(signal.SIGQUIT)
        process.reap(self.child, ((signal.SIGQUIT, 3.0),))
        self.child = None

    def kill(self):
        """kill -9 of the server and of all its processes, so that none of them does a last thing."""
        children = process.children(self.child.pid)
        for pid in (self.child.pid, *children):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.kill(self.child)
        self.child = None
        wait_until(lambda: not any(map(process.is_running, children)), "the server's processes are gone", 30)

    # talking to it

    def dsn(self, user="postgres", database=None, port=None, **parameters):
        """A libpq URI. port: of a proxy before it."""
        query = "&".join(f"{k}={v}" for k, v in parameters.items())
        return f"postgresql://{user}@{HOST}:{port or self.port}/{database or self.database}" + (f"?{query}" if query else "")

    def connect(self, database=None, user="postgres", autocommit=True, **parameters):
        connection = psycopg2.connect(self.dsn(user, database, **{"sslmode": "disable", **parameters}))  # TLS costs half as much again
        connection.autocommit = autocommit
        return connection

    def query(self, sql, parameters=None, database=None, user="postgres", cursor_factory=None):
        """Rows of one statement; None when it has none. Of the superuser on a session that is kept, of another user on a new one."""
        if user == "postgres":
            looks = self._looks if database in (None, self.database) else _looks.setdefault((self.port, database), Looks())
            return looks.query(lambda: self.connect(database), sql, parameters, cursor_factory)
        connection = self.connect(database, user)
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql, parameters)
                return cursor.fetchall() if cursor.description else None
        finally:
            connection.close()

    def close_looks(self, database=None):
        """Ends the session that query() keeps in this database, or in another one."""
        looks = self._looks if database in (None, self.database) else _looks.get((self.port, database))
        if looks:
            looks.close()

    def create_database(self, name, template="template1"):
        """A new database, empty or as its template; answers this server with it as its default."""
        self.query(f'CREATE DATABASE "{name}" TEMPLATE "{template}"', database="postgres")
        other = PostgreSQL(self.folder, self.certificates, self.port, name)
        other.child = None
        return other


def erlang(text):
    """As a binary of Erlang."""
    return "<<" + json.dumps(text) + ">>"


class RabbitMQ:
    """A node of its own, with an epmd of its own. User guest, from anywhere on the loopback."""

    def __init__(self, folder, certificates, ports=None):
        self.folder = folder
        self.certificates = certificates
        self.ports = ports or {name: process.free_port() for name in ("amqp", "amqps", "dist", "epmd")}
        self.port = self.ports["amqp"]
        self.tls_port = self.ports["amqps"]
        self.node = f"onceward{self.port}@localhost"
        self.log = os.path.join(folder, "rabbitmq.log")
        self.child = self.epmd = None

    def describe(self):
        return {"folder": self.folder, "certificates": self.certificates.folder, "ports": self.ports}

    @classmethod
    def described(cls, d):
        return cls(d["folder"], Certificates(d["certificates"]), d["ports"])

    # the process

    def _environment(self):
        path = lambda name: os.path.join(self.folder, name)
        return {"PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), "LANG": "C.UTF-8", "HOME": self.folder,
                "RABBITMQ_NODENAME": self.node, "RABBITMQ_BASE": self.folder, "RABBITMQ_MNESIA_BASE": path("mnesia"),
                "RABBITMQ_LOG_BASE": path("log"), "RABBITMQ_ENABLED_PLUGINS_FILE": path("plugins"),
                "RABBITMQ_CONFIG_FILE": path("rabbitmq.conf"), "RABBITMQ_CONF_ENV_FILE": path("none"),
                "RABBITMQ_ADVANCED_CONFIG_FILE": path("advanced.config"), "RABBITMQ_PID_FILE": path("pid"),
                "RABBITMQ_DIST_PORT": str(self.ports["dist"]), "ERL_EPMD_PORT": str(self.ports["epmd"]),
                "RUNNING_UNDER_SYSTEMD": "1",  # the script then becomes the node instead of watching it
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none"}

    def init(self, **settings):
        if not os.path.exists("/usr/lib/rabbitmq/bin/rabbitmq-server"):
            raise ServerError("RabbitMQ is not installed (no /usr/lib/rabbitmq/bin/rabbitmq-server)")
        for name in ("mnesia", "log"):
            os.makedirs(os.path.join(self.folder, name))
        tls = self.certificates
        values = {"listeners.tcp.1": f"{HOST}:{self.port}", "listeners.ssl.1": f"{HOST}:{self.tls_port}",
                  "ssl_options.cacertfile": tls.ca, "ssl_options.certfile": tls.cert, "ssl_options.keyfile": tls.key,
                  "ssl_options.verify": "verify_none", "loopback_users": "none", "disk_free_limit.absolute": "10MB",
                  "log.file.level": "info", "log.console": "false", "log.file": os.path.join(self.folder, "rabbitmq.log")}
        values.update(settings)
        with open(os.path.join(self.folder, "rabbitmq.conf"), "w") as f:
            f.writelines(f"{name} = {value}\n" for name, value in values.items())
        with open(os.path.join(self.folder, "plugins"), "w") as f:
            f.write("[rabbitmq_consistent_hash_exchange,rabbitmq_sharding].\n")
        return self

    def start(self):
        out = open(os.path.join(self.folder, "console.log"), "ab")
        with out:
            options = dict(stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self._environment(), cwd=self.folder)
            if not self.epmd:
                self.epmd = process.spawn(["epmd", "-port", str(self.ports["epmd"]), "-address", HOST], **options)
                wait_until(lambda: self._listens(self.ports["epmd"]), "epmd listens", PATIENCE)
            self.child = process.spawn(["/usr/lib/rabbitmq/bin/rabbitmq-server"], **options)
        wait_until(self._answers, lambda: "RabbitMQ answers:\n" + self.tail(), PATIENCE, 0.05)
        return self

    @staticmethod
    def _listens(port):
        with socket.socket() as s:
            s.settimeout(1)
            return s.connect_ex((HOST, port)) == 0

    def _answers(self):
        if self.child.poll() is not None:
            raise ServerError("RabbitMQ ended:\n" + self.tail())
        if not self._listens(self.port):
            return False
        try:
            self.connect().close()
            return True
        except (pika.exceptions.AMQPError, OSError):
            return False

    def tail(self, lines=40):
        return process.tail(os.path.join(self.folder, "console.log"), 15) + process.tail(self.log, lines)

    def stop(self):
        """Ends the node at once; durable queues and persistent messages survive. The broker itself may forget a queue that was
        declared in its last seconds (its journal is written late), which is no fault that anybody could answer: so that is written first."""
        if self.child:
            self._write_journal()
            process.kill(self.child)
            self.child = None

    def _write_journal(self):
        try:
            with open(os.path.join(self.folder, ".erlang.cookie")) as f:
                cookie = f.read().strip()
            subprocess.run(["erl_call", "-c", cookie, "-n", self.node, "-e"], input=b"catch mnesia:sync_log().\n", env=self._environment(),
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            pass  # it hangs, or is not up: what it has written is what there is

    def stop_politely(self):
        """As an operator does it: connections are closed with a word."""
        if self.child:
            process.reap(self.child, ((signal.SIGTERM, 20.0),))
            self.child = None

    def deinit(self):
        self.stop()
        if self.epmd:
            process.kill(self.epmd)
            self.epmd = None

    # talking to it

    def url(self, vhost="%2F", port=None):
        return f"amqp://guest:guest@{HOST}:{port or self.port}/{vhost}"

    def tls_url(self, vhost="%2F", host="localhost"):
        return f"amqps://guest:guest@{host}:{self.tls_port}/{vhost}"

    def connect(self, vhost="/"):
        """A blocking pika connection."""
        return pika.BlockingConnection(pika.ConnectionParameters(
            HOST, self.port, vhost, pika.PlainCredentials("guest", "guest"), heartbeat=0, socket_timeout=40,
            blocked_connection_timeout=60))

    def eval(self, code):
        """Evaluates Erlang in the node, within milliseconds, where rabbitmqctl takes seconds; answers the printed value."""
        with open(os.path.join(self.folder, ".erlang.cookie")) as f:
            cookie = f.read().strip()

        def call():
            done = subprocess.run(["erl_call", "-c", cookie, "-n", self.node, "-e"], input=code.strip().rstrip(".").encode() + b".\n",
                                  env=self._environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE)
            # It is impatient, and a busy machine slow: then nothing was evaluated.
            return None if b"failed to connect to node" in done.stdout else done

        done = wait_until(call, "erl_call reaches the node", 60, 0.2)
        text = done.stdout.decode(errors="replace")
        if done.returncode or not text.startswith("{ok, "):
            raise ServerError(f"{code}: {text}")
        return text[len("{ok, "):-1]

    def version(self):
        """(4, 3, 6), as the server tells its clients."""
        connection = self.connect()
        version = connection._impl.server_properties["version"]
        connection.close()
        return tuple(int(n) for n in re.findall(r"\d+", version.decode() if isinstance(version, bytes) else version)[:3])

    def consumers(self, queue, key):
        """What `rabbitmqctl list_consumers` has of each consumer of a queue, as Erlang prints it."""
        found = f"""[proplists:get_value({key}, C) || C <- rabbit_amqqueue:consumers_all(<<"/">>),
                     proplists:get_value(queue_name, C) =:= rabbit_misc:r(<<"/">>, queue, {erlang(queue)})]"""
        path = os.path.join(self.folder, "consumers-" + uuid.uuid4().hex)  # erl_call prints binaries as numbers
        self.eval(f'ok = file:write_file("{path}", io_lib:format("~tp", [{found}]))')
        with open(path) as f:
            text = re.sub(r"\n *", "", f.read())
        os.unlink(path)
        return "" if text == "[]" else text

    def rabbitmqctl(self, *arguments, timeout=PATIENCE):
        """Runs rabbitmqctl (about two seconds); answers what it printed."""
        done = subprocess.run(["/usr/lib/rabbitmq/bin/rabbitmqctl", "-n", self.node, "--quiet", *arguments],
                              env=self._environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=timeout, cwd=self.folder)
        text = done.stdout.decode(errors="replace")
        if done.returncode:
            raise ServerError(f"rabbitmqctl {' '.join(arguments)}: {text}")
        return text

    # users and virtual hosts

    def add_user(self, name, configure="", write=".*", read=".*"):
        """A user with the password `secret`, and what it may do in the virtual host /."""
        self.eval(f'ok = rabbit_auth_backend_internal:add_user({erlang(name)}, <<"secret">>, <<"test">>)')
        self.set_permissions(name, configure, write, read)

    def set_permissions(self, name, configure, write, read, vhost="/"):
        self.eval("ok = rabbit_auth_backend_internal:set_permissions(" + ", ".join(map(erlang, (name, vhost, configure, write, read, "test"))) + ")")

    def delete_user(self, name):
        self.eval(f'ok = rabbit_auth_backend_internal:delete_user({erlang(name)}, <<"test">>)')

    def add_vhost(self, name):
        self.eval(f'ok = rabbit_vhost:add({erlang(name)}, <<"test">>)')
        self.set_permissions("guest", ".*", ".*", ".*", name)

    def delete_vhost(self, name):
        self.eval(f'rabbit_vhost:delete({erlang(name)}, <<"test">>)')


class Servers:
    """Both of them in one temporary folder."""

    def __init__(self, prefix="onceward-test-"):
        self.folder = tempfile.mkdtemp(prefix=prefix)
        os.chmod(self.folder, 0o755)
        self.certificates = Certificates(os.path.join(self.folder, "tls")).make()
        self.postgres = PostgreSQL(os.path.join(self.folder, "postgresql"), self.certificates)
        self.rabbitmq = RabbitMQ(os.path.join(self.folder, "rabbitmq"), self.certificates)

    def start(self, postgres=None, rabbitmq=None):
        """postgres, rabbitmq: more settings for each."""
        start = time.monotonic()
        os.makedirs(self.rabbitmq.folder, exist_ok=True)
        self.rabbitmq.init(**(rabbitmq or {}))
        self.postgres.init(**(postgres or {})).start()
        self.rabbitmq.start()
        self.started_in = process.seconds_since(start)
        return self

    def describe(self):
        return {"folder": self.folder, "postgres": self.postgres.describe(), "rabbitmq": self.rabbitmq.describe()}

    def stop(self, keep=False):
        self.rabbitmq.deinit()
        self.postgres.stop()
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)
