"""The application of one pod, as a process of its own, so that it can be killed and stopped.

What it does to a message is told by the message's `kind`. An effect is a row of app.effect, which has no unique key: a doubled one
is seen. In the first of the two services its transaction publishes an invoice, too, which is a message of the second. Each request is
noted, before anything is done, in a file that survives kill -9."""

import argparse
import base64
import json
import os
import sys
import threading
import time
import urllib.parse

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))

import psycopg2  # noqa: E402

from rig.application import Application  # noqa: E402

import schedule  # noqa: E402


class Refused(Exception):
    """The database refused the completion: the token is not ours any more."""


class Pod(Application):
    def __init__(self, options):
        super().__init__(options.name, None)
        self.dsn, self.port, self.publishes = options.dsn, options.port, options.publishes
        self.takes_valid = int(options.name[-1]) % 2 == 0  # of a request with several messages: complete_valid, or complete_all
        self.n_requests = 0
        self.log = os.open(options.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.handler = self.handle
        with open(options.log) as f:  # of the pod's earlier lives, too: what resets the first time must not do so after each restart
            self.seen = {(r["id"], r["queue"]) for r in map(json.loads, f) if "token" in r}

    def note(self, **fields):
        os.write(self.log, (json.dumps(fields) + "\n").encode())

    # effects

    def act(self, request, message, at):
        """Runs one transaction: complete, with transaction completion, then write and publish, as the README says."""
        queue = request.header("Onceward-Queue")
        with self._lock:
            database = self._databases.pop() if self._databases else None
        try:
            if database is None:
                database = psycopg2.connect(self.dsn)
            with database.cursor() as cursor:
                if "transaction" in queue:
                    cursor.execute("SELECT onceward.complete(%s)", (request.token,))
                cursor.execute("INSERT INTO app.effect (queue, message_id, version, token, pod, attempt, arrived, invoice) VALUES"
                               " (%s, %s, %s, %s, %s, %s, to_timestamp(%s), %s)",
                               (queue, request.message_id, message["version"], request.token, self.name, request.attempt, at,
                                self.publish(cursor, queue, request.message_id) if self.publishes else None))
                if "key" in message:
                    self.note_order(cursor, request.message_id, message)
            database.commit()
        except psycopg2.Error as e:
            if e.pgcode and e.pgcode.startswith("OW"):
                database.rollback()
                self.give_back(database)
                raise Refused(e.pgcode) from None
            if database is not None:
                database.close()
            raise
        self.give_back(database)

    @staticmethod
    def note_order(cursor, message_id, message):
        """The number that the key had before, under the lock of its row."""
        cursor.execute("SELECT number FROM app.last WHERE key = %s FOR UPDATE", (message["key"],))
        cursor.execute("UPDATE app.effect SET key = %s, number = %s, before = %s WHERE message_id = %s AND key IS NULL",
                       (message["key"], message["number"], cursor.fetchone()[0], message_id))
        cursor.execute("UPDATE app.last SET number = %s WHERE key = %s", (message["number"], message["key"]))

    @staticmethod
    def publish(cursor, queue, message_id):
        """Answers the invoice's id."""
        _, *message = schedule.invoice_of(queue, message_id)
        cursor.execute("SELECT onceward.publish(%s, %s, %s::jsonb, %s)", message)
        return cursor.fetchone()[0]

    def first_time(self, request):
        """In this pod."""
        key = (request.message_id, urllib.parse.unquote(request.header("Onceward-Queue")))
        with self._lock:
            known = key in self.seen
            self.seen.add(key)
        return not known

    # what becomes of a request

    def handle(self, request, reply):
        if request.method == "GET":  # ready.url
            return 204
        if request.header("Onceward-Batch"):
            return self.handle_several(request, reply)
        at = time.time()
        message = json.loads(request.body)
        queue = urllib.parse.unquote(request.header("Onceward-Queue"))
        self.note(at=at, queue=queue, id=request.message_id, token=request.token, attempt=request.attempt, pod=self.name,
                  window=request.window_ms / 1000, key=request.header("Idempotency-Key"), version=message["version"], redelivered=request.header("Onceward-Redelivered"))
        try:
            return getattr(self, "do_" + message["kind"])(request, reply, message, at)
        except Refused:
            return 409
        except psycopg2.Error:
            return 503

    def do_plain(self, request, reply, message, at):
        self.act(request, message, at)
        return 200

    do_large = do_mismatch = do_plain

    def do_slow(self, request, reply, message, at):
        time.sleep(message["serial"] % 10 / 10)
        return self.do_plain(request, reply, message, at)

    def do_fails_once(self, request, reply, message, at):
        return 500 if request.attempt < 2 else self.do_plain(request, reply, message, at)

    def do_fails_twice(self, request, reply, message, at):
        return 500 if request.attempt < 3 else self.do_plain(request, reply, message, at)

    def do_not_now(self, request, reply, message, at):
        return 429 if self.first_time(request) else self.do_plain(request, reply, message, at)

    def do_busy(self, request, reply, message, at):
        return 503 if self.first_time(request) else self.do_plain(request, reply, message, at)

    def do_acts_then_fails(self, request, reply, message, at):
        self.act(request, message, at)
        return 500 if request.attempt < 2 else 200

    def do_answers_early(self, request, reply, message, at):
        if "transaction" not in request.header("Onceward-Queue"):
            return self.do_plain(request, reply, message, at)
        self.later(lambda: (time.sleep(0.05), self.try_act(request, message, at)))
        return 200

    def do_accepted(self, request, reply, message, at):
        if "transaction" not in request.header("Onceward-Queue"):
            return self.do_plain(request, reply, message, at)
        self.later(lambda: (time.sleep(message["serial"] % 20 / 10), self.try_act(request, message, at)))
        return 202

    def try_act(self, request, message, at):
        try:
            self.act(request, message, at)
        except (Refused, psycopg2.Error):
            pass

    def do_hangs(self, request, reply, message, at):
        if request.attempt < 2:
            time.sleep(request.window_ms / 1000 + message["serial"] % 10 / 5)
        return self.do_plain(request, reply, message, at)

    def do_extends(self, request, reply, message, at):
        if request.attempt < 2:
            with psycopg2.connect(self.dsn) as database, database.cursor() as cursor:
                try:
                    cursor.execute("SELECT onceward.extend(%s, 6)", (request.token,))
                except psycopg2.Error as e:
                    raise Refused(e.pgcode) from None
            time.sleep(4)
        return self.do_plain(request, reply, message, at)

    def do_resets_before(self, request, reply, message, at):
        if self.first_time(request):
            reply.reset()
            return None
        return self.do_plain(request, reply, message, at)

    def do_resets_after(self, request, reply, message, at):
        self.act(request, message, at)
        if self.first_time(request):
            reply.reset()
            return None
        return 200

    def do_poison(self, request, reply, message, at):
        return 422

    def do_fails(self, request, reply, message, at):
        return 500

    def do_kills(self, request, reply, message, at):
        os._exit(1)

    # a request with several messages

    def handle_several(self, request, reply):
        at = time.time()
        with self._lock:
            self.n_requests += 1
            number = f"{self.name}.{os.getpid()}.{self.n_requests}"
        members = [Member(m, request) for m in json.loads(request.body)["messages"]]
        for m in members:
            self.note(at=at, queue=m.queue, id=m.message_id, token=m.token, attempt=m.attempt, pod=self.name, window=request.window_ms / 1000,
                      key=None, version=m.message["version"], redelivered=m.redelivered, request=number, n=len(members))
        try:
            return self.do_several(members, reply, at)
        except Refused:
            return 409
        except psycopg2.Error:
            return 503

    def do_several(self, members, reply, at):
        """What one of them does to the request, then each by itself: named, done at once, or done after the answer."""
        if any(m.kind == "kills" for m in members):
            os._exit(1)
        if any([m.kind == "resets_before" and self.first_time(m) for m in members]):
            return reply.reset()
        if any([m.kind == "busy" and self.first_time(m) for m in members]):
            return 503
        self.delay(members)
        named = {m.message_id: status for m in members if (status := self.refusal(m))}
        for m in members:
            if m.message_id in named and m.serial % 3 == 0:
                return named[m.message_id]  # all or nothing
        rest = [m for m in members if m.message_id not in named]
        after = [m for m in rest if m.kind in ("answers_early", "accepted") and m.is_transaction]
        self.act_for([m for m in rest if m not in after], at)
        if after:
            self.later(lambda: (time.sleep(0.05 if after[0].kind == "answers_early" else after[0].serial % 20 / 10), self.try_act_for(after, at)))
        if any([m.kind == "resets_after" and self.first_time(m) for m in rest]):
            return reply.reset()
        acted = [m for m in rest if m.kind == "acts_then_fails" and m.attempt < 2]
        if any(m.serial % 2 for m in acted):
            return 500
        named.update({m.message_id: 500 for m in acted})
        body = json.dumps({"failures": [{"id": i, "status": status} for i, status in named.items()]}).encode()
        return reply.status(202 if any(m.kind == "accepted" for m in after) else 200, body, {"Onceward-Batch": len(members)})

    def delay(self, members):
        """The longest of what they want."""
        first = [m for m in members if m.attempt < 2]
        if any(m.kind == "extends" for m in first):
            with psycopg2.connect(self.dsn) as database, database.cursor() as cursor:
                try:
                    cursor.execute("SELECT onceward.extend_all(%s, 6)", ([m.token for m in members],))
                except psycopg2.Error as e:
                    raise Refused(e.pgcode) from None
        time.sleep(max([m.serial % 10 / 10 for m in members if m.kind == "slow"] + [4 for m in first if m.kind == "extends"]
                       + [m.window_ms / 1000 + m.serial % 10 / 5 for m in first if m.kind == "hangs"] + [0]))

    def refusal(self, m):
        """The status with which it fails; None: it does not."""
        if m.kind == "not_now":
            return 429 if self.first_time(m) else None
        failures = {"poison": (422, 99), "fails": (500, 99), "fails_once": (500, 2), "fails_twice": (500, 3)}
        status, before = failures.get(m.kind, (None, 0))
        return status if m.attempt < before else None

    def act_for(self, members, at):
        """One transaction: complete those that are still valid, or all, then write and publish."""
        if not members:
            return
        with self._lock:
            database = self._databases.pop() if self._databases else None
        try:
            if database is None:
                database = psycopg2.connect(self.dsn)
            with database.cursor() as cursor:
                if members[0].is_transaction:
                    cursor.execute(f"SELECT onceward.complete_{'valid' if self.takes_valid else 'all'}(%s)", ([m.token for m in members],))
                    valid = {row[0] for row in cursor.fetchall()} if self.takes_valid else {m.token for m in members}
                    members = [m for m in members if m.token in valid]
                for m in members:
                    cursor.execute("INSERT INTO app.effect (queue, message_id, version, token, pod, attempt, arrived, invoice) VALUES"
                                   " (%s, %s, %s, %s, %s, %s, to_timestamp(%s), %s)",
                                   (m.queue, m.message_id, m.message["version"], m.token, self.name, m.attempt, at,
                                    self.publish(cursor, m.queue, m.message_id) if self.publishes else None))
            database.commit()
        except psycopg2.Error as e:
            if e.pgcode and e.pgcode.startswith("OW"):
                database.rollback()
                self.give_back(database)
                raise Refused(e.pgcode) from None
            if database is not None:
                database.close()
            raise
        self.give_back(database)

    def try_act_for(self, members, at):
        try:
            self.act_for(members, at)
        except (Refused, psycopg2.Error):
            pass


class Member:
    """A message of a request with several, with what Pod asks of a request."""

    def __init__(self, member, request):
        self.token, self.message_id, self.queue = member["token"], member["id"], member["queue"]
        self.attempt, self.redelivered, self.window_ms = member["attempt"], member["redelivered"], request.window_ms
        self.message = member["body"] if "body" in member else json.loads(base64.b64decode(member["body_base64"]))
        self.kind, self.serial, self.is_transaction = self.message["kind"], self.message["serial"], "transaction" in self.queue

    def header(self, name):
        return {"Onceward-Queue": self.queue}[name]


def main():
    parser = argparse.ArgumentParser()
    for name in ("name", "dsn", "log"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--publishes", action="store_true")
    Pod(parser.parse_args()).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
