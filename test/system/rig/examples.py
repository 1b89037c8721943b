"""The applications of deploy/examples: what each needs, how it is built (in a copy, so that the tree stays clean) and started."""

import collections
import fcntl
import hashlib
import http.client
import json
import os
import re
import shutil
import socket
import subprocess

from . import pages, process
from .wait import wait_until

FOLDER = os.path.join(pages.ROOT, "deploy", "examples")
BUILT = os.path.join(pages.ROOT, ".build-examples")

# needs: a command that succeeds where the language and its packages are there. build: lines of sh, in the copy; none: it runs where it is.
# run: argv, {port} and {folder} are filled in. paths: where orders are posted.
Kind = collections.namedtuple("Kind", "name folder needs build run paths")

ALL = ("/payments", "/payments/invoiced", "/payments/at-once")
ONE = ("/payments",)
KINDS = [
    Kind("python", "python", "/usr/bin/python3 -c 'import psycopg2'", "", "/usr/bin/python3 {folder}/application.py", ONE),
    Kind("python-invoiced", "python", "/usr/bin/python3 -c 'import psycopg2'", "", "/usr/bin/python3 {folder}/invoiced.py", ONE),
    Kind("python-at-once", "python", "/usr/bin/python3 -c 'import psycopg2'", "", "/usr/bin/python3 {folder}/at_once.py", ONE),
    Kind("php", "php", "php -r 'new ReflectionClass(\"PDO\");'", "", "php -S 127.0.0.1:{port} {folder}/application.php", ONE),
    Kind("php-invoiced", "php", "php -r 'new ReflectionClass(\"PDO\");'", "", "php -S 127.0.0.1:{port} {folder}/invoiced.php", ONE),
    Kind("php-at-once", "php", "php -r 'new ReflectionClass(\"PDO\");'", "", "php -S 127.0.0.1:{port} {folder}/at_once.php", ONE),
    Kind("node", "node", "NODE_PATH=/usr/share/nodejs node -e 'require(\"pg\")'", "", "node {folder}/application.js", ALL),
    Kind("perl", "perl", "perl -MDBD::Pg -MHTTP::Daemon -e 1", "", "perl {folder}/application.pl", ALL),
    Kind("ruby", "ruby", "ruby -e 'require \"pg\"; require \"sinatra/base\"; require \"puma\"; require \"rackup\" if Sinatra::VERSION >= \"4\"'", "", "ruby {folder}/application.rb", ALL),
]
# What is built with packages from elsewhere, as its lock file names them.
LOCKED = [
    Kind("node-locked", "node", "npm --version", "npm ci --no-audit --no-fund", "node {folder}/application.js", ALL),
    Kind("typescript", "typescript", "npm --version", "npm ci --no-audit --no-fund && npm run build", "node {folder}/build/application.js", ALL),
    Kind("go", "go", "go version", "GOFLAGS=-mod=readonly go build -o payments .", "{folder}/payments", ALL),
    Kind("rust", "rust", "cargo --version", "cargo build --locked --jobs 1", "{folder}/target/debug/payments", ALL),
    Kind("fastapi", "fastapi", "python3 -c 'import venv, ensurepip'",
         "python3 -m venv venv && venv/bin/pip install --quiet --require-hashes -r requirements.txt", "{folder}/venv/bin/python {folder}/application.py", ALL),
    Kind("django", "django", "python3 -c 'import venv, ensurepip'",
         "python3 -m venv venv && venv/bin/pip install --quiet --require-hashes -r requirements.txt",
         "{folder}/venv/bin/gunicorn --chdir {folder} --bind 127.0.0.1:{port} --threads 16 --keep-alive 3600 payments.wsgi", ALL),
    Kind("java", "java", "mvn --version", "mvn --quiet --batch-mode package", "java -jar {folder}/target/payments.jar", ALL),
    Kind("kotlin", "kotlin", "mvn --version", "mvn --quiet --batch-mode package", "java -jar {folder}/target/payments.jar", ALL),
    Kind("spring", "spring", "mvn --version", "mvn --quiet --batch-mode package", "java -Xmx256m -jar {folder}/target/payments.jar", ALL),
]

# Requests with several messages: all or nothing, and valid ones only.
BOTH = ("/payments/all", "/payments/valid")
BATCHES = [
    Kind("python-batch", "python", "/usr/bin/python3 -c 'import psycopg2'", "", "/usr/bin/python3 {folder}/batch.py", BOTH),
    Kind("node-batch", "node", "NODE_PATH=/usr/share/nodejs node -e 'require(\"pg\")'", "", "node {folder}/batch.js", BOTH),
]
RESPONSE_BATCH = Kind("python-batch-response", "python", "/usr/bin/python3 -c 'import psycopg2'", "", "/usr/bin/python3 {folder}/batch_response.py", ONE)
LOCKED_BATCHES = [
    Kind("node-batch-locked", "node", "npm --version", "npm ci --no-audit --no-fund", "node {folder}/batch.js", BOTH),
    Kind("go-batch", "go", "go version", "GOFLAGS=-mod=readonly go build -o batch-payments ./batch", "{folder}/batch-payments", BOTH),
    Kind("java-batch", "java", "mvn --version", "mvn --quiet --batch-mode package", "java -cp {folder}/target/payments.jar Batch", BOTH),
]


def is_there(kind):
    return not subprocess.run(["sh", "-c", kind.needs], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              check=False).returncode


def _state(folder, kind):
    whole = hashlib.sha256(kind.build.encode())
    for path in sorted(os.path.join(at, name) for at, _, names in os.walk(folder) for name in names):
        with open(path, "rb") as f:
            whole.update(os.path.relpath(path, folder).encode() + b"\0" + f.read())
    return whole.hexdigest()


def build(kind):
    """Its folder, built: where it is, or a copy that is kept for the next time. Raises with what the build said."""
    source = os.path.join(FOLDER, kind.folder)
    if not kind.build:
        return source
    folder = os.path.join(BUILT, kind.name)
    os.makedirs(BUILT, exist_ok=True)
    state = _state(source, kind)
    with open(os.path.join(BUILT, kind.name + ".lock"), "a+") as lock:  # and what was built: the state of its source
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        if lock.read() == state:
            return folder
        shutil.copytree(source, folder, dirs_exist_ok=True)
        done = subprocess.run(["nice", "sh", "-c", kind.build], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              check=False)
        assert done.returncode == 0, f"{kind.name} does not build:\n" + done.stdout.decode(errors="replace")[-8000:]
        lock.truncate(0)
        lock.write(state)
    return folder


def addresses(dsn):
    """The same database, as each language's library wants it."""
    parts = re.match(r"postgres(?:ql)?://(?P<user>[^:@]+)(?::[^@]*)?@(?P<host>[^:/]+):(?P<port>\d+)/(?P<database>[^?]+)", dsn).groupdict()
    words = "host={host};port={port};dbname={database}".format(**parts)
    return {"DATABASE_URL": dsn, "DATABASE_PDO": f"pgsql:{words};user={parts['user']}", "DATABASE_DBI": f"dbi:Pg:{words};user={parts['user']}",
            "DATABASE_JDBC": "jdbc:postgresql://{host}:{port}/{database}?user={user}".format(**parts)}


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), 0.2).close()
        return True
    except OSError:
        return False


class Example:
    """An example as a process."""

    def __init__(self, kind, dsn, log, **environment):
        self.kind = kind
        self.folder = build(kind)
        self.port = process.free_port()
        self.log = log  # a path
        self.environment = dict(os.environ, PORT=str(self.port), NODE_PATH="/usr/share/nodejs", PHP_CLI_SERVER_WORKERS="16", **addresses(dsn))
        self.environment.update(environment)
        self.child = None

    def start(self):
        with open(self.log, "a") as said:
            self.child = process.spawn([word.format(port=self.port, folder=self.folder) for word in self.kind.run.split()], stdin=subprocess.DEVNULL,
                                       stdout=said, stderr=said, env=self.environment, cwd=os.path.dirname(self.log))
        wait_until(lambda: answers(self.port), lambda: f"the {self.kind.name} example listens: {self.said()}")
        return self

    def kill(self):
        process.kill(self.child)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.kill()

    def said(self):
        with open(self.log, errors="replace") as f:
            return f.read()[-4000:]

    def url(self, path):
        return f"http://127.0.0.1:{self.port}{path}"

    def post(self, path, body, token="ow1.none"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("POST", path, body, {"Onceward-Token": token, "Content-Type": "application/json", "Idempotency-Key": '"o9"',
                                                "Onceward-Token-Window-Ms": "20000"})
        status = connection.getresponse().status
        connection.close()
        return status

    def post_batch(self, path, messages):
        """Answers the status, the field Onceward-Batch, and the failures."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("POST", path, json.dumps({"messages": messages}), {
            "Onceward-Batch": str(len(messages)), "Content-Type": "application/json", "Onceward-Token-Window-Ms": "20000"})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, answer.headers["Onceward-Batch"], json.loads(body).get("failures")
