"""A scripted HTTP application: records every request, and does to it whatever a test tells it to.

A handler is a function of (request, reply). It may answer by reply.status(…), misbehave by the other methods of Reply, or
return a status. It runs on the connection's own thread, so it may wait. Its effects are rows of app.ledger, written in one
transaction with onceward.complete(token), as a real application does it; the ledger has no unique key, so a doubled effect is seen."""

import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.parse

import psycopg2

from . import process, sessions
from .wait import wait_until

PATIENCE = 150.0  # no handler waits for longer than this


class Request:
    """A request as received: header names keep their case and their order."""

    def __init__(self, line, headers, body, connection):
        self.line = line
        self.method, self.target, self.version = line.split(" ")
        self.headers = headers
        self.body = body
        self.connection = connection
        self.at = time.monotonic()

    def all(self, name):
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def header(self, name, default=None):
        values = self.all(name)
        assert len(values) <= 1, f"{name} came {len(values)} times"
        return values[0] if values else default

    @property
    def message_id(self):
        return urllib.parse.unquote(self.header("Onceward-Message-Id", ""))

    @property
    def token(self):
        return self.header("Onceward-Token")

    @property
    def attempt(self):
        return int(self.header("Onceward-Attempt", "0"))

    @property
    def window_ms(self):
        return int(self.header("Onceward-Token-Window-Ms", "0"))


class Reply:
    """Actions on a connection whose request was read."""

    def __init__(self, conn):
        self._socket = conn
        self.done = False
        self.keep = True

    def raw(self, data):
        self.done = True
        self._socket.sendall(data)

    def status(self, code, body=b"", headers=()):
        head = f"HTTP/1.1 {code} Scripted\r\nContent-Length: {len(body)}\r\n"
        head += "".join(f"{key}: {value}\r\n" for key, value in dict(headers).items())
        self.raw(head.encode() + b"\r\n" + (body if code not in (204, 304) else b""))

    def drip(self, data, interval):
        """Sends byte after byte."""
        self.done = True
        for i in range(len(data)):
            self._socket.sendall(data[i:i + 1])
            time.sleep(interval)

    def close(self):
        """Closes without a word (FIN)."""
        self.done, self.keep = True, False

    def end(self):
        """Closes with the last word that TLS has (close_notify), where it is spoken."""
        if isinstance(self._socket, ssl.SSLSocket):
            try:
                self._socket.settimeout(5)
                self._socket.unwrap()
            except OSError:
                pass  # the other side need not answer it
        self.close()

    def reset(self):
        """Closes as a process does that dies with unread data (RST)."""
        self.done, self.keep = True, False
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class Application:
    def __init__(self, name, postgres, unix_socket=None, tls=None):
        """tls: the Certificates with which it speaks TLS, as localhost."""
        self.name = name
        self.postgres = postgres
        self.unix_socket = unix_socket
        self.tls = None
        if tls:
            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.tls.load_cert_chain(tls.cert, tls.key)
        self.port = None
        self.handler = self.commit_and_answer
        self.greet = None  # called with a new connection; when it answers True, it has dealt with it
        self.requests = []
        self.errors = []
        self.n_connections = 0
        self.closed = set()  # the numbers of those that were served and are over
        self._lock = threading.Lock()
        self._listener = None
        self._connections = set()
        self._databases = []

    # the process

    def start(self):
        """Listens; again on the same port after a stop."""
        if self.unix_socket:
            listener = socket.socket(socket.AF_UNIX)
            if os.path.exists(self.unix_socket):
                os.unlink(self.unix_socket)
            listener.bind(self.unix_socket)
        else:
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._bind(listener)
        listener.listen(128)
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return self

    def _bind(self, listener):
        """On a port that is its own: nobody else's server may be taken for it while it is down."""
        self.port = self.port or process.free_port()
        listener.bind(("127.0.0.1", self.port))

    @property
    def url(self):
        if not self.port:
            return "http://localhost/messages"
        return f"https://localhost:{self.port}/messages" if self.tls else f"http://127.0.0.1:{self.port}/messages"

    def refuse(self):
        """Stops listening; connections that are open go on."""
        if self._listener:
            listener, self._listener = self._listener, None
            try:
                listener.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            listener.close()

    def die(self):
        """As a killed process: nobody listens, every connection is reset."""
        self.refuse()
        with self._lock:
            connections = list(self._connections)
            self.closed.update(range(1, self.n_connections + 1))
        for conn in connections:
            try:
                conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                conn.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def serves(self, number):
        """Is this connection still of a process that lives? What had arrived on it before it died can still be read."""
        with self._lock:
            return number not in self.closed

    def stop(self):
        self.die()
        with self._lock:
            databases, self._databases = self._databases, []
        for database in databases:
            sessions.put(self.postgres, database)

    def _accept(self, listener):
        while True:
            try:
                conn, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                self._connections.add(conn)
                self.n_connections += 1
                number = self.n_connections
            threading.Thread(target=self._serve, args=(conn, number), daemon=True).start()

    def _prepare(self, conn):
        """The connection as it is read from; None when it is over already."""
        if self.greet and self.greet(conn):
            return None
        if not self.unix_socket:
            conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self.tls:
            return conn
        secure = self.tls.wrap_socket(conn, server_side=True)  # takes the descriptor over
        with self._lock:
            self._connections.discard(conn)
            self._connections.add(secure)
        return secure

    def _serve(self, conn, number):
        try:
            ready = self._prepare(conn)
        except OSError:
            ready = None  # also a handshake that failed
        if ready is None:
            with self._lock:
                self._connections.discard(conn)
            conn.close()
            return
        conn = ready
        reader = conn.makefile("rb", 65536)
        try:
            while True:
                request = self._read(reader, number)
                if request is None:
                    return
                with self._lock:
                    if number in self.closed:
                        return  # a process that died has seen nothing
                    self.requests.append(request)
                reply = Reply(conn)
                self._handle(request, reply)
                if not reply.keep:
                    return
        except OSError:
            pass  # the sidecar went away; the test sees it where it matters
        finally:
            reader.close()
            conn.close()
            with self._lock:
                self._connections.discard(conn)
                self.closed.add(number)

    @staticmethod
    def _read(reader, number):
        line = reader.readline()
        if not line.endswith(b"\r\n") or line.startswith(b"\x16\x03"):
            return None  # a TLS handshake may have the bytes of a line's end in it
        headers = []
        while True:
            field = reader.readline()
            if field in (b"\r\n", b""):
                break
            key, _, value = field.decode("latin-1").partition(":")
            headers.append((key, value.strip(" \t\r\n")))
        lengths = [value for key, value in headers if key.lower() == "content-length"]
        length = int(lengths[0]) if lengths else 0
        body = reader.read(length)
        if len(body) < length:
            return None
        return Request(line.decode("latin-1").strip(), headers, body, number)

    def _handle(self, request, reply):
        try:
            answer = self.handler(request, reply)
            if not reply.done:
                reply.status(answer if isinstance(answer, int) else 200)
        except OSError:
            reply.keep = False
        except Exception as e:  # noqa: BLE001 - whatever a handler raises belongs in the test's report
            with self._lock:
                self.errors.append(f"{request.message_id}: {type(e).__name__}: {e}")
            if not reply.done:
                reply.status(500)

    # what it did

    def posts(self, message_id=None):
        with self._lock:
            return [r for r in self.requests if message_id is None or r.message_id == message_id]

    def wait_for_posts(self, n, message_id=None, deadline=120.0):
        wait_until(lambda: len(self.posts(message_id)) >= n,
                   lambda: f"{n} POSTs of {message_id or 'anything'}, there are {len(self.posts(message_id))}", deadline)
        return self.posts(message_id)

    def effects(self, message_id=None):
        """How many effects are committed; of all messages as a dict."""
        rows = self.postgres.query("SELECT message_id, count(*)::int FROM app.ledger WHERE application = %s GROUP BY 1", (self.name,))
        counts = dict(rows)
        return counts if message_id is None else counts.get(message_id, 0)

    # handlers and their parts

    def borrow(self):
        with self._lock:
            if self._databases:
                return self._databases.pop()
        return sessions.take(self.postgres)

    def give_back(self, database):
        if database.closed:
            return  # the server ended it
        with self._lock:
            self._databases.append(database)

    def commit(self, request, complete=True, before_commit=None, result=None, note=None, publish=()):
        """One transaction: complete the token, write the effect, publish (exchange, routing key, body, message id), commit. Raises what
        the database raises, with nothing written."""
        database = self.borrow()
        try:
            with database.cursor() as cursor:
                answer = None
                if complete and result is not None:
                    cursor.execute("SELECT onceward.complete(%s, %s)", (request.token, result))
                    answer = cursor.fetchone()[0]
                elif complete:
                    cursor.execute("SELECT onceward.complete(%s)", (request.token,))
                    answer = cursor.fetchone()[0]
                cursor.execute("INSERT INTO app.ledger (application, message_id, note) VALUES (%s, %s, %s)",
                               (self.name, request.message_id, note))
                for message in publish:
                    cursor.execute("SELECT onceward.publish(%s, %s, %s::jsonb, %s)", message)
                if before_commit:
                    before_commit()
            database.commit()
        except BaseException:
            try:
                database.rollback()
            except psycopg2.Error:
                pass
            raise
        finally:
            self.give_back(database)
        return answer

    def try_commit(self, request, **options):
        """None, or the SQLSTATE with which the transaction was refused."""
        try:
            self.commit(request, **options)
            return None
        except psycopg2.Error as e:
            return e.pgcode

    def extend(self, request, seconds):
        """onceward.extend in a transaction of its own; answers the new expiry, or the SQLSTATE."""
        database = self.borrow()
        try:
            with database.cursor() as cursor:
                cursor.execute("SELECT onceward.extend(%s, %s)", (request.token, seconds))
                answer = cursor.fetchone()[0]
            database.commit()
            return answer
        except psycopg2.Error as e:
            database.rollback()
            return e.pgcode
        finally:
            self.give_back(database)

    def later(self, work):
        """Runs work beside the connection's thread, which goes on to the next request."""

        def run():
            try:
                work()
            except Exception as e:  # noqa: BLE001 - as in _handle
                with self._lock:
                    self.errors.append(f"later: {type(e).__name__}: {e}")

        threading.Thread(target=run, daemon=True).start()

    def commit_and_answer(self, request, reply):
        """The well-behaved application of `completion: transaction`."""
        self.commit(request)
        return 200

    def act_and_answer(self, request, reply):
        """The well-behaved application of `completion: response`: its effect knows nothing of the inbox."""
        self.commit(request, complete=False)
        return 204

    def only_answer(self, request, reply):
        return 204


class Gate:
    """Holds handlers until a test lets them go."""

    def __init__(self):
        self._event = threading.Event()
        self._lock = threading.Lock()
        self.n_waiting = 0

    def wait(self):
        with self._lock:
            self.n_waiting += 1
        assert self._event.wait(PATIENCE), "nobody opened the gate"

    def open(self):
        self._event.set()

    def wait_for_waiting(self, n=1, deadline=120.0):
        wait_until(lambda: self.n_waiting >= n, lambda: f"{n} handlers at the gate, there are {self.n_waiting}", deadline)


class Script:
    """A handler that does the first step at the first request of a message, and so on; the last one for ever."""

    def __init__(self, *steps):
        self.steps = steps
        self._lock = threading.Lock()
        self._seen = {}

    def __call__(self, request, reply):
        with self._lock:
            n = self._seen.get(request.message_id, 0)
            self._seen[request.message_id] = n + 1
        step = self.steps[min(n, len(self.steps) - 1)]
        return step if isinstance(step, int) else step(request, reply)


class Mortal:
    """The application as a process of its own, started again whenever it ends. At the first request of the message `killer` it kills
    itself with SIGKILL at a point of its transaction: before_commit, in_commit (the COMMIT has left, its answer was not read), or
    after_commit (before the HTTP answer)."""

    def __init__(self, name, postgres, folder, killer, point):
        self.port = process.free_port()
        self.url = f"http://127.0.0.1:{self.port}/messages"
        self.journal = os.path.join(folder, "journal")
        self.n_starts = 0
        self._given = json.dumps({"name": name, "port": self.port, "dsn": postgres.dsn(user="app_login", sslmode="disable"),
                                  "killer": killer, "point": point, "journal": self.journal})
        self._child = None
        self._ends = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        open(self.journal, "w").close()

    def start(self):
        self._keeper.start()
        wait_until(lambda: self.n_starts and self._listens(), "the application listens", 30)
        return self

    def _listens(self):
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", self.port)) == 0

    def _keep(self):
        folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        while not self._ends.is_set():
            self._child = process.spawn([sys.executable, "-m", "rig.application", self._given], cwd=folder, stdin=subprocess.DEVNULL)
            self.n_starts += 1
            self._child.wait()
            process.reap(self._child)

    def stop(self):
        self._ends.set()
        process.kill(self._child)
        self._keeper.join(10)

    def posts(self, message_id):
        """The attempts of its POSTs, in their order."""
        with open(self.journal) as f:
            return [int(attempt) for i, attempt in (line.split() for line in f) if i == message_id]


class _Database:
    def __init__(self, dsn):
        self.dsn = dsn

    def connect(self, user=None, autocommit=False):
        connection = psycopg2.connect(self.dsn)
        connection.autocommit = autocommit
        return connection


def _mortal(given):
    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def handler(request, reply):
        with open(given["journal"], "a") as f:
            f.write(f"{request.message_id} {request.attempt}\n")
        with open(given["journal"]) as f:
            first = sum(line.split()[0] == given["killer"] for line in f) == 1
        if request.message_id != given["killer"] or not first:
            return app.commit_and_answer(request, reply)
        if given["point"] == "before_commit":
            app.commit(request, before_commit=die)
        if given["point"] == "in_commit":
            database = app.borrow()
            app.give_back(database)
            app.commit(request, before_commit=lambda: os.write(database.fileno(), b"Q\0\0\0\x0bCOMMIT\0") and die())
        app.commit(request)
        return die()

    app = Application(given["name"], _Database(given["dsn"]))
    app.port = given["port"]
    app.handler = handler
    app.start()
    threading.Event().wait()


if __name__ == "__main__":
    _mortal(json.loads(sys.argv[1]))
