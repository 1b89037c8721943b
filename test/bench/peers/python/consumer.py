"""The textbook inbox in Python: insert on conflict do nothing, POST, update, ack. Several processes, each with its own
connections (keep-alive, prefetch); one process handles one message at a time. Everything comes from the environment:
AMQP_URL, QUEUE, PREFETCH, DATABASE_URL, APP_URL, PROCESSES, INBOX (application: the application keeps the inbox)."""

import http.client
import os
import signal
import sys
import urllib.parse

import pika
import psycopg2

E = os.environ


class Consumer:
    def __init__(self):
        self.url = urllib.parse.urlsplit(E["APP_URL"])
        self.http = http.client.HTTPConnection(self.url.hostname, self.url.port)
        self.sql = None
        if E.get("INBOX") != "application":
            db = psycopg2.connect(E["DATABASE_URL"])
            db.autocommit = True
            self.sql = db.cursor()
            self.sql.execute("PREPARE put AS INSERT INTO inbox (message_id, status) VALUES ($1, 'processing') "
                             "ON CONFLICT (message_id) DO NOTHING")
            self.sql.execute("PREPARE finish AS UPDATE inbox SET status = 'completed', completed_at = now() WHERE message_id = $1")

    def post(self, message_id, body, content_type):
        self.http.request("POST", self.url.path, body,
                          {"Content-Type": content_type, "Idempotency-Key": f'"{message_id}"'})
        answer = self.http.getresponse()
        answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"status {answer.status}")

    def handle(self, channel, method, properties, body):
        message_id = properties.message_id
        if self.sql:
            self.sql.execute("EXECUTE put (%s)", [message_id])
            if self.sql.rowcount == 0:
                self.sql.execute("SELECT status FROM inbox WHERE message_id = %s", [message_id])
                if self.sql.fetchone()[0] == "completed":
                    channel.basic_ack(method.delivery_tag)
                    return
        self.post(message_id, body, properties.content_type)
        if self.sql:
            self.sql.execute("EXECUTE finish (%s)", [message_id])
        channel.basic_ack(method.delivery_tag)

    def run(self):
        connection = pika.BlockingConnection(pika.URLParameters(E["AMQP_URL"]))
        channel = connection.channel()
        channel.basic_qos(prefetch_count=int(E["PREFETCH"]))
        channel.basic_consume(E["QUEUE"], self.handle)
        signal.signal(signal.SIGTERM, lambda *_: connection.add_callback_threadsafe(channel.stop_consuming))
        channel.start_consuming()
        connection.close()


def main():
    children = []
    for _ in range(int(E.get("PROCESSES", "1"))):
        pid = os.fork()
        if pid == 0:
            Consumer().run()
            os._exit(0)
        children.append(pid)

    def stop(*_):
        for pid in children:
            os.kill(pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    status = 0
    for pid in children:
        status |= os.waitpid(pid, 0)[1]
    sys.exit(1 if status else 0)


main()
