"""Applications for `onceward try`, on http.server: a right one for each completion, and others that are right but for one thing."""

import http.server
import json
import socket
import threading
import time
import urllib.parse

import psycopg2

from . import sessions


class Right(http.server.BaseHTTPRequestHandler):
    """`completion: transaction`: one transaction, complete first, an answer in every case."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_class = http.server.ThreadingHTTPServer

    # what a subclass may do otherwise

    def do_POST(self):
        self.answer(self.consume(self.read()))

    def consume(self, body):
        try:
            json.loads(body)
        except ValueError:
            return 400
        try:
            self.transact()
        except psycopg2.Error:
            return 500
        return 204

    def transact(self):
        with self.connected() as sql:
            self.complete(sql)
            self.work(sql)

    # the parts

    def read(self):
        return self.rfile.read(int(self.headers["Content-Length"]))

    def answer(self, status):
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", "0")
        self.end_headers()

    def complete(self, sql):
        sql.execute("SELECT onceward.complete(%s)", [self.headers["Onceward-Token"]])

    @property
    def message_id(self):
        return urllib.parse.unquote(self.headers["Onceward-Message-Id"])

    def work(self, sql):
        sql.execute("INSERT INTO app.ledger (application, message_id) VALUES (%s, %s)", [self.server.name, self.message_id])

    def connected(self):
        return Transaction(self.server.postgres)

    def log_message(self, format, *args):
        pass


class Transaction:
    """A connection, and one transaction on it: committed, or rolled back where something was raised."""

    def __init__(self, postgres):
        self.postgres, self.database = postgres, sessions.take(postgres)

    def __enter__(self):
        return self.database.cursor()

    def __exit__(self, kind, *_):
        try:
            self.database.commit() if kind is None else self.database.rollback()
        finally:
            sessions.put(self.postgres, self.database)


class Publishes(Right):
    def work(self, sql):
        super().work(sql)
        sql.execute("SELECT onceward.publish('nowhere', 'key', '{}'::jsonb, %s)", ["said." + self.message_id])


class FailsWithAPage(Right):
    """As Flask does."""

    def do_POST(self):
        self.read()
        page = b"<!doctype html>\n<html lang=en>\n<title>500 Internal Server Error</title>\n<h1>Out of seats</h1>\n"
        self.send_response(500)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)


class RightResponse(Right):
    """`completion: response`, with the Idempotency-Key beside the effect."""

    def transact(self):
        with self.connected() as sql:
            sql.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [self.headers["Idempotency-Key"]])
            sql.execute("SELECT 1 FROM app.ledger WHERE application = %s AND message_id = %s", [self.server.name, self.message_id])
            if not sql.fetchone():
                self.work(sql)


# --- tokens and transactions ---

class CompletesAfterTheAnswer(Right):
    def do_POST(self):
        body = self.read()
        self.answer(202 if body == b"" else 200)
        self.wfile.flush()
        time.sleep(0.1)  # the application works after its answer
        self.consume(body)


class CompletesInAnotherTransaction(Right):
    def transact(self):
        with self.connected() as sql:
            self.work(sql)
        with self.connected() as sql:
            self.complete(sql)


class CompletesBeforeItsTransaction(Right):
    def transact(self):
        with self.connected() as sql:
            self.complete(sql)
        time.sleep(0.25)
        with self.connected() as sql:
            self.work(sql)


class SwallowsTheError(Right):
    def transact(self):
        with self.connected() as sql:
            sql.execute("SAVEPOINT a")
            try:
                self.complete(sql)
            except psycopg2.Error:
                sql.execute("ROLLBACK TO a")
            self.work(sql)


class AnswersBeforeTheCommit(Right):
    def do_POST(self):
        json_is_good = self.check(self.read())
        try:
            with self.connected() as sql:
                if json_is_good:
                    self.complete(sql)
                    self.work(sql)
                self.answer(200 if json_is_good else 400)
                self.wfile.flush()
                time.sleep(0.25)
        except psycopg2.Error:
            self.answer(500)

    @staticmethod
    def check(body):
        try:
            return bool(json.loads(body))
        except ValueError:
            return False


class RetriesInside(Right):
    def transact(self):
        for left in reversed(range(5)):
            try:
                return super().transact()
            except psycopg2.Error:
                if not left:
                    raise
                time.sleep(0.05)


class Says200(Right):
    def consume(self, body):
        super().consume(body)
        return 200


class RemembersBeforeItsTransaction(Right):
    """Its own idea of once: a message that it has seen, it has done."""

    def transact(self):
        with self.server.lock:
            seen = self.message_id in self.server.seen
            self.server.seen.add(self.message_id)
        if not seen:
            super().transact()


class Says200ForEverything(RightResponse):
    def consume(self, body):
        super().consume(body)
        return 200


class AnswersBeforeTheEffect(RightResponse):
    def do_POST(self):
        status = 200 if AnswersBeforeTheCommit.check(self.read()) else 400
        self.answer(status)
        self.wfile.flush()
        if status == 200:
            time.sleep(0.25)
            self.transact()


class KeepsNoKey(RightResponse):
    def transact(self):
        with self.connected() as sql:
            self.work(sql)


class DoesNothing(RightResponse):
    def transact(self):
        pass


# --- HTTP ---

class LimitsBodies(Right):
    def do_POST(self):
        if int(self.headers["Content-Length"]) > 65536:
            self.close_connection = True
            return self.answer(413)
        super().do_POST()


class WantsJson(Right):
    def consume(self, body):
        return super().consume(body) if self.headers["Content-Type"] == "application/json" else 415


class LimitsHeaders(Right):
    def consume(self, body):
        return super().consume(body) if len(str(self.headers)) < 3000 else 431


class ClosesEach(Right):
    protocol_version = "HTTP/1.0"


class LeavesBodiesUnread(Right):
    def do_POST(self):
        if self.headers["Content-Type"] != "application/json":
            return self.answer(415)
        super().do_POST()


class ClosesSoon(Right):
    timeout = 0.3


class OneThread(http.server.HTTPServer):
    request_queue_size = 128  # those that wait are not refused


class OneAtATime(Right):
    protocol_version = "HTTP/1.0"
    server_class = OneThread


class OneAtATimeResponse(RightResponse):
    protocol_version = "HTTP/1.0"
    server_class = OneThread


class ThreeAtOnce(Right):
    def transact(self):
        with self.server.three:
            super().transact()


class DiesOfAWrongBody(Right):
    def consume(self, body):
        status = super().consume(body)
        if status == 400:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        return status


class FailsForAWrongBody(Right):
    def consume(self, body):
        status = super().consume(body)
        return 500 if status == 400 else status


class Slow(Right):
    def transact(self):
        time.sleep(1.5)
        super().transact()


class Fails(Right):
    def consume(self, body):
        return 500


# --- several messages in a request ---

class Several(Right):
    """`transaction`: wrong messages are named, all others are done in one transaction with complete_valid."""

    def do_POST(self):
        self.several(json.loads(self.read())["messages"])

    def several(self, messages):
        good = [m for m in messages if self.is_good(m)]
        try:
            with self.connected() as sql:
                sql.execute("SELECT onceward.complete_valid(%s)", [[m["token"] for m in good]])
                valid = {row[0] for row in sql.fetchall()}
                self.work_of(sql, [m for m in good if m["token"] in valid])
        except psycopg2.Error:
            return self.answer(500)
        self.reply(messages, self.failures(messages))

    def is_good(self, message):
        return isinstance(message.get("body"), dict)

    def failures(self, messages):
        return [{"id": m["id"], "status": 422, "error": "no order"} for m in messages if not self.is_good(m)]

    def work_of(self, sql, messages):
        for m in messages:
            sql.execute("INSERT INTO app.ledger (application, message_id) VALUES (%s, %s)", [self.server.name, m["id"]])

    def reply(self, messages, failures=()):
        body = json.dumps({"failures": list(failures)}).encode()
        self.send_response(200)
        self.send_header("Onceward-Batch", str(len(messages)))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class AllOrNothing(Several):
    def several(self, messages):
        if not all(map(self.is_good, messages)):
            return self.answer(422)
        try:
            with self.connected() as sql:
                sql.execute("SELECT onceward.complete_all(%s)", [[m["token"] for m in messages]])
                self.work_of(sql, messages)
        except psycopg2.Error:
            return self.answer(500)
        self.reply(messages)


class SeveralResponse(Several):
    """`response`, with each message's id beside its effect."""

    def several(self, messages):
        with self.connected() as sql:
            sql.execute("SELECT pg_advisory_xact_lock(1)")
            sql.execute("SELECT message_id FROM app.ledger WHERE application = %s", [self.server.name])
            seen = {row[0] for row in sql.fetchall()}
            self.work_of(sql, [m for m in messages if self.is_good(m) and m["id"] not in seen])
        self.reply(messages, self.failures(messages))


class SeveralAtMostOne(Several):
    """Works on the first message of a request, and answers for all."""

    def several(self, messages):
        super().several(messages[:1])

    def reply(self, messages, failures=()):
        super().reply(messages * int(self.headers["Onceward-Batch"]), failures)


class SeveralWithoutCount(Several):
    def send_header(self, name, value):
        if name != "Onceward-Batch" or self.headers["Onceward-Batch"] == "1":
            super().send_header(name, value)


class NamesNobody(SeveralResponse):
    def failures(self, messages):
        return [] if len(messages) > 1 else super().failures(messages)


class StopsAtTheFirst(SeveralResponse):
    """Works up to the first wrong message, and names that alone."""

    def several(self, messages):
        wrong = [i for i, m in enumerate(messages) if not self.is_good(m)]
        super().several(messages if not wrong else messages[:wrong[0] + 1])

    def reply(self, messages, failures=()):
        super().reply([None] * int(self.headers["Onceward-Batch"]), failures)


class TakesAllAsValid(Several):
    """Works for all tokens that it gave to complete_valid."""

    def several(self, messages):
        good = [m for m in messages if self.is_good(m)]
        with self.connected() as sql:
            sql.execute("SELECT onceward.complete_valid(%s)", [[m["token"] for m in good]])
            self.work_of(sql, good)
        self.reply(messages, self.failures(messages))


class SeveralRemembered(AllOrNothing):
    """Its own idea of once: a request that it has seen, it has done."""

    def several(self, messages):
        with self.server.lock:
            seen = any(m["id"] in self.server.seen for m in messages)
            self.server.seen |= {m["id"] for m in messages}
        if seen and len(messages) > 1:
            return self.reply(messages)
        super().several(messages)


class SeveralBeforeTheCommit(Several):
    def several(self, messages):
        good = [m for m in messages if self.is_good(m)]
        with self.connected() as sql:
            sql.execute("SELECT onceward.complete_valid(%s)", [[m["token"] for m in good]])
            valid = {row[0] for row in sql.fetchall()}
            self.work_of(sql, [m for m in good if m["token"] in valid])
            if len(messages) > 1:
                self.reply(messages, self.failures(messages))
                self.wfile.flush()
                time.sleep(0.25)
        if len(messages) == 1:
            self.reply(messages, self.failures(messages))


class SeveralApart(Several):
    """The work of several messages in a transaction of its own, before their completion."""

    def several(self, messages):
        if len(messages) == 1:
            return super().several(messages)
        good = [m for m in messages if self.is_good(m)]
        with self.connected() as sql:
            self.work_of(sql, good)
        with self.connected() as sql:
            sql.execute("SELECT onceward.complete_valid(%s)", [[m["token"] for m in good]])
        self.reply(messages, self.failures(messages))


class SeveralOneWrongIsAll(Several):
    """A wrong message makes it answer 2xx without the work of any."""

    def several(self, messages):
        if all(map(self.is_good, messages)):
            return super().several(messages)
        if len(messages) == 1:
            return self.answer(422)
        self.reply(messages, self.failures(messages))


# --- running one ---

class Running:
    def __init__(self, handler, name, postgres):
        self.name = name
        self.server = handler.server_class(("127.0.0.1", 0), handler, bind_and_activate=False)
        self.server.request_queue_size = 128
        self.server.daemon_threads = True
        self.server.name, self.server.postgres = name, postgres
        self.server.lock, self.server.three, self.server.seen = threading.Lock(), threading.Semaphore(3), set()
        self.server.handle_error = lambda *_: None  # a connection that was closed on it
        self.server.server_bind()
        self.server.server_activate()
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_address[1]}/messages"

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
