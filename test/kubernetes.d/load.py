"""The load and its ledger: what was published, and what became of it in the database."""

import json
import os
import threading
import time

import pika

from rig.wait import wait_until

DELIVERY_LIMIT = 20  # as the examples' configurations say
IN_FLIGHT = 3 * 16  # what three replicas have with their applications at most: forward.concurrency
PUBLISHERS = 16  # each waits for its confirms: together they reach 500 messages/s where a confirm takes 30 ms


class Publisher:
    """So many messages a second, each confirmed, until it is told to stop; `published` are their ids."""

    def __init__(self, url, rate):
        self.url, self.rate, self.published, self.ends, self.took_s = url, rate, [], threading.Event(), 0
        self.threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(PUBLISHERS)]

    def start(self):
        self.started = time.monotonic()
        for thread in self.threads:
            thread.start()

    def _run(self, n):
        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        channel = connection.channel()
        channel.confirm_delivery()
        start, count = time.monotonic(), 0
        while not self.ends.is_set():
            due = int((time.monotonic() - start) * self.rate / PUBLISHERS)
            while count < due and not self.ends.is_set():
                name = f"m{n}-{count}"
                channel.basic_publish("", "payments", json.dumps({"id": name, "cents": 1}).encode(),
                                      pika.BasicProperties(message_id=name, delivery_mode=2, content_type="application/json"))
                self.published.append(name)
                count += 1
            connection.process_data_events(0)
            time.sleep(0.005)
        connection.close()

    def stop(self):
        self.ends.set()
        self.took_s = time.monotonic() - self.started
        for thread in self.threads:
            thread.join(30)
        return self.published


def set_up(postgres, rabbitmq):
    """Database, logins and queue as the example's Secrets have them; the server asks these logins for their passwords."""
    path = os.path.join(postgres.data, "pg_hba.conf")
    with open(path) as f:
        others = f.read()
    with open(path, "w") as f:
        f.write("host all onceward_owner,payments_sidecar,payments_app all scram-sha-256\n" + others)
    postgres.query("SELECT pg_reload_conf()")
    postgres.create_database("app")
    for sql in ("CREATE ROLE onceward_owner LOGIN PASSWORD 'change-me-first'", "GRANT CREATE ON DATABASE app TO onceward_owner",
                "CREATE ROLE onceward_sidecar", "CREATE ROLE onceward_app",
                "CREATE ROLE payments_sidecar LOGIN PASSWORD 'change-me-too' IN ROLE onceward_sidecar",
                "CREATE ROLE payments_app LOGIN PASSWORD 'change-me-last' IN ROLE onceward_app",
                "CREATE TABLE charges (order_id text, cents integer)", "GRANT INSERT ON charges TO payments_app"):
        postgres.query(sql, database="app")
    rabbitmq.rabbitmqctl("add_user", "payments", "change-me")
    rabbitmq.rabbitmqctl("set_permissions", "payments", "^$", r"^amq\.default$", "^payments$")
    channel = pika.BlockingConnection(pika.URLParameters(rabbitmq.url())).channel()
    channel.queue_declare("payments", durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": DELIVERY_LIMIT})


class Ledger:
    """Waits for the messages' outcomes: each is charged once, at its first attempt, unless stated otherwise."""

    def __init__(self, postgres, published, took_s, completion):
        self.postgres, self.took_s = postgres, took_s
        wait_until(lambda: self._count("SELECT count(DISTINCT order_id) FROM charges") >= len(published), "all messages are done", 120, 0.5)
        wait_until(lambda: not self._count("SELECT count(*) FROM onceward.inbox WHERE status <> 'completed'"), "all rows are completed", 60, 0.5)
        there = {row[0] for row in postgres.query("SELECT DISTINCT order_id FROM charges", database="app")}
        self.published, self.lost, self.completion = len(published), len(set(published) - there), completion
        self.doubled = self._count("SELECT count(*) - count(DISTINCT order_id) FROM charges")
        self.letters = self._count("SELECT count(*) FROM onceward.dead_letter")
        self.charged = self._count("SELECT count(*) FROM onceward.inbox WHERE attempt > 1")

    def _count(self, sql):
        return self.postgres.query(sql, database="app")[0][0]

    def __str__(self):
        return (f"{self.published} messages, {self.published / self.took_s:.0f}/s, {self.completion}: {self.lost} lost, {self.doubled} doubled, "
                f"{self.letters} dead letters, {self.charged} at a later attempt")

    def faults(self, scenario):
        repeats = IN_FLIGHT * scenario.cuts if self.completion == "response" else 0
        wrong = {"lost": self.lost, "doubled": self.doubled if self.doubled > repeats else 0, "dead letters": self.letters,
                 "charged": 0 if scenario.charges else self.charged}
        return [f"{count} {what}" for what, count in wrong.items() if count]
