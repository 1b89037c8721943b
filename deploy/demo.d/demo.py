"""The demo: 5,000 messages through everything that goes wrong, and a count of what came of them.

About a third of the messages are copies. Some make the application fail at first, one kills it, one can never be processed. The
sidecar is killed with -9 three times, and for a while a second one runs beside it. In the end every order must be booked exactly
once, or lie among the dead letters with its reason. Called by deploy/demo."""

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "test", "system"))

import pika  # noqa: E402

from rig import process, servers  # noqa: E402
from rig.wait import wait_until  # noqa: E402
from screen import Screen  # noqa: E402
from watch import Watch  # noqa: E402

N_MESSAGES, N_DISTINCT = 5000, 3335
N_FAILING = 40
QUEUE = "orders"
PATIENCE = 45.0
KILLS = (0.15, 0.35, 0.55)  # of all orders booked
SECOND_FROM, SECOND_TO = 0.25, 0.80


def make_orders():
    """Every order once, in order, with copies strewn in behind their originals."""
    chance = random.Random(20)
    orders = [{"id": f"order-{i}", "amount": i} for i in range(N_DISTINCT)]
    for order in chance.sample(orders[100:], N_FAILING):
        order["trouble"] = "fails"
    healthy = [order for order in orders[200:2000] if "trouble" not in order]
    killer, poison = chance.sample(healthy, 2)
    killer["trouble"], poison["trouble"] = "kills", "poison"
    keyed = [(i, order) for i, order in enumerate(orders)]
    for _ in range(N_MESSAGES - N_DISTINCT):
        i = chance.randrange(N_DISTINCT)
        keyed.append((i + chance.choice((0.5, 3.5, 60.5, 900.5)), orders[i]))
    return orders, [order for _, order in sorted(keyed, key=lambda pair: pair[0])]


class Demo:
    def __init__(self, binary, screen):
        self.binary = binary
        self.screen = screen
        self.watch = None
        self.servers = servers.Servers("onceward-demo-")
        self.folder = self.servers.folder
        self.app_port = process.free_port()
        self.app = None
        self.n_app_starts = 0
        self.sidecars = {}
        self.n_kills = 0
        self.n_published = 0
        self.done = False

    def path(self, name):
        return os.path.join(self.folder, name)

    # parts

    def start_servers(self):
        self.screen.say(f"Starting a private RabbitMQ and a private PostgreSQL in {self.folder}")
        self.servers.start(postgres={"fsync": "on", "full_page_writes": "on"})
        postgres = self.servers.postgres
        for role in ("onceward_owner LOGIN", "onceward_sidecar", "onceward_app"):
            postgres.query(f"CREATE ROLE {role}")
        postgres.query("GRANT CREATE ON DATABASE postgres TO onceward_owner")
        with open(self.path("migrate.json"), "w") as f:
            json.dump(self.config("migrate", "onceward_owner"), f)
        done = subprocess.run([self.binary, "migrate", "--config", self.path("migrate.json")], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            raise RuntimeError("onceward migrate: " + done.stdout.decode(errors="replace"))
        postgres.query("CREATE ROLE sidecar LOGIN IN ROLE onceward_sidecar")
        postgres.query("CREATE ROLE shop LOGIN IN ROLE onceward_app")
        postgres.query("CREATE SCHEMA shop AUTHORIZATION shop")
        postgres.query("CREATE TABLE shop.ledger (order_id text NOT NULL, amount bigint NOT NULL,"
                       " booked_at timestamptz NOT NULL DEFAULT clock_timestamp())")  # no unique key: a second booking would be seen
        postgres.query("ALTER TABLE shop.ledger OWNER TO shop")
        connection = self.servers.rabbitmq.connect()
        connection.channel().queue_declare(QUEUE, durable=True)
        connection.close()

    def config(self, name, user="sidecar"):
        return {
            "instance": f"demo-{name}",
            "state_file": self.path(f"{name}.state"),
            "broker": {"url": self.servers.rabbitmq.url()},
            "database": {"url": self.servers.postgres.dsn(user=user)},
            "log": {"stats_interval": "100ms"},  # what is counted since the last line goes with a kill
            "shutdown_grace": "5s",
            "queues": {QUEUE: {
                "forward": {"url": f"http://127.0.0.1:{self.app_port}/orders"},
                "completion": "transaction",
                "token_window": "3s",
                "retry": {"max_attempts": 4, "backoff": "100ms", "max_backoff": "500ms"},
                "ready": {"interval": "100ms"},
            }},
        }

    def start_sidecar(self, name):
        path = self.path(f"sidecar-{name}")
        with open(path + ".json", "w") as f:
            json.dump(self.config(name), f, indent=2)
        with open(path + ".log", "ab") as log, open(path + ".stderr", "ab") as err:
            self.sidecars[name] = process.spawn([self.binary, "run", "--config", path + ".json"], stdin=subprocess.DEVNULL,
                                                stdout=log, stderr=err, cwd=self.folder)

    def end_sidecar(self, name):
        sidecar = self.sidecars.pop(name)
        status = process.reap(sidecar)
        if status:
            self.screen.say(f"\nSidecar {name} ended with status {status}: {process.tail(self.path(f'sidecar-{name}.stderr'))}")

    def start_app(self):
        with open(self.path("application.stderr"), "ab") as err:
            self.app = process.spawn([sys.executable, os.path.join(HERE, "application.py"), str(self.app_port),
                                      self.servers.postgres.dsn(user="shop"), self.path("posts")],
                                     stdin=subprocess.DEVNULL, stdout=err, stderr=err)
        self.n_app_starts += 1

    def publish(self, messages):
        """In transactions of the broker: a message is published when its transaction is committed."""
        connection = self.servers.rabbitmq.connect()
        channel = connection.channel()
        channel.tx_select()
        for i, order in enumerate(messages, 1):
            channel.basic_publish("", QUEUE, json.dumps(order).encode(), pika.BasicProperties(
                message_id=order["id"], content_type="application/json", delivery_mode=2))
            if i % 250 == 0 or i == len(messages):
                channel.tx_commit()
                self.n_published = i
        connection.close()

    # looking

    def figures(self):
        cursor = self.database.cursor()
        cursor.execute("SELECT (SELECT count(*)::int FROM shop.ledger), (SELECT count(DISTINCT order_id)::int FROM shop.ledger),"
                       " (SELECT count(DISTINCT message_id)::int FROM onceward.dead_letter)")
        return cursor.fetchone()

    def posts(self):
        try:
            with open(self.path("posts")) as f:
                return [line.split()[0] for line in f if line.endswith("\n")]
        except FileNotFoundError:
            return []

    def duplicates(self):
        """What the sidecars counted: the last total of each process that was one."""
        total = 0
        for name in "ab":
            counted = 0
            try:
                with open(self.path(f"sidecar-{name}.log")) as f:
                    lines = f.readlines()
            except FileNotFoundError:
                continue
            for line in lines:
                try:
                    event = json.loads(line)
                except ValueError:
                    continue  # the last line of one that was killed
                if event["event"] == "started":
                    total, counted = total + counted, 0
                elif event["event"] == "stats":
                    counted = event.get("duplicates_total", counted)
            total += counted
        return total

    def progress(self, effects, dead, last=False):
        text = (f"{time.monotonic() - self.start:5.1f} s  published {self.n_published:5}  booked {effects:5}  dead {dead}  "
                f"sidecars {'+'.join(sorted(self.sidecars))}  killed {self.n_kills}x  application restarted {self.n_app_starts - 1}x")
        self.screen.show([text] + (["", *self.watch.view(self.sidecars)] if self.watch else []), last)

    def supervise_app(self):
        if self.app.poll() is not None:
            process.reap(self.app)
            self.start_app()

    # the course of it

    def run(self):
        self.start_servers()
        self.database = self.servers.postgres.connect()
        orders, messages = make_orders()
        self.start_app()
        self.start = time.monotonic()
        failure = []

        def publish():
            try:
                self.publish(messages)
            except Exception as e:  # noqa: BLE001 - told by the main thread
                failure.append(f"publishing failed: {e}")

        publisher = threading.Thread(target=publish, daemon=True)
        publisher.start()
        self.start_sidecar("a")
        if self.screen.watch:
            self.watch = Watch(self.binary, self.path("sidecar-a.json"), lambda name: self.path(f"sidecar-{name}.log"))
        while True:
            effects, distinct, dead = self.figures()
            self.supervise_app()
            share = distinct / N_DISTINCT
            if self.n_kills < len(KILLS) and share >= KILLS[self.n_kills]:
                process.kill(self.sidecars.pop("a"))
                self.n_kills += 1
                self.start_sidecar("a")
            if "b" not in self.sidecars and SECOND_FROM <= share < SECOND_TO:
                self.start_sidecar("b")
            if "b" in self.sidecars and share >= SECOND_TO:
                self.end_sidecar("b")
            self.progress(effects, dead)
            if failure or self.is_over(distinct + dead, publisher) or time.monotonic() - self.start > PATIENCE:
                break
            time.sleep(0.05)
        took = time.monotonic() - self.start
        self.progress(effects, dead, last=True)
        left = self.end_sidecars()
        while left and not failure and time.monotonic() - self.start < PATIENCE:
            # Copies that were held: a drain gives back what is not at work.
            self.start_sidecar("a")
            wait_until(lambda: self.queue().message_count == 0, "the last copies are taken", PATIENCE)
            left = self.end_sidecars()
        return self.tell(orders, took, failure, left)

    def queue(self):
        if not hasattr(self, "broker"):
            self.broker = self.servers.rabbitmq.connect().channel()
        return self.broker.queue_declare(QUEUE, passive=True).method

    def end_sidecars(self):
        """Answers how many messages are in the queue then."""
        for name in list(self.sidecars):
            self.end_sidecar(name)
        wait_until(lambda: self.queue().consumer_count == 0, "the sidecars have left the queue", 10)
        return self.queue().message_count

    def is_over(self, n_ended, publisher):
        if n_ended < N_DISTINCT or publisher.is_alive():
            return False
        return self.queue().message_count == 0

    def tell(self, orders, took, failure, left):
        cursor = self.database.cursor()
        cursor.execute("SELECT order_id, count(*)::int FROM shop.ledger GROUP BY 1")
        booked = dict(cursor.fetchall())
        cursor.execute("SELECT message_id, reason, attempts, last_error FROM onceward.dead_letter ORDER BY id")
        letters = cursor.fetchall()
        dead = {letter[0] for letter in letters}
        posts = self.posts()
        effects = sum(booked.values())
        lost = [order["id"] for order in orders if order["id"] not in booked and order["id"] not in dead]
        doubled = sum(n - 1 for n in booked.values())
        duplicates = self.duplicates()
        rows = [
            ("published", self.n_published), ("distinct", len(orders)), ("POSTs", len(posts)), ("effects", effects),
            ("duplicates stopped", duplicates),
            ("retried", len(posts) - len(set(posts))),
            ("dead", len(letters)), ("lost", len(lost)), ("doubled", doubled),
            ("messages/s", f"{self.n_published / took:.0f}"),
            ("sidecar killed with -9", self.n_kills), ("application restarted", self.n_app_starts - 1),
        ]
        self.screen.say("")
        for name, value in rows:
            self.screen.say(f"  {name:24}{value:>8}")
        for message_id, reason, attempts, error in letters:
            self.screen.say(f"  dead: {message_id}, {reason}, {attempts} attempts, {error}")
        faults = list(failure)
        if lost:
            faults.append(f"lost: {', '.join(lost[:5])}{' …' if len(lost) > 5 else ''}")
        if doubled:
            faults.append(f"doubled: {', '.join([i for i, n in booked.items() if n > 1][:5])}")
        if self.n_published != N_MESSAGES or self.n_kills != len(KILLS):
            faults.append(f"not everything was done: {self.n_published} published, {self.n_kills} kills")
        if not duplicates:
            faults.append("no sidecar counted a duplicate")
        if left:
            faults.append(f"{left} messages are still in the queue")
        self.screen.say("")
        self.screen.say("Every order was booked exactly once, or is dead with its reason." if not faults else "FAILED: " + "; ".join(faults))
        if faults:
            for name in "ab":
                self.screen.say(f"the end of sidecar-{name}.log:\n" + process.tail(self.path(f"sidecar-{name}.log"), 15)
                    + process.tail(self.path(f"sidecar-{name}.stderr"), 30))
        return 1 if faults else 0

    def keep(self):
        """Runs on until Ctrl-C, with one sidecar."""
        self.start_sidecar("a")
        config = self.path("sidecar-a.json")
        self.screen.say(f"""
It runs on, with one sidecar. In another terminal:

  publish          /usr/bin/python3 {os.path.join(HERE, 'publish.py')} {self.servers.rabbitmq.url()} {QUEUE} 10
  the inbox        {self.binary} status --config {config}
                   psql {self.servers.postgres.dsn()} -c 'SELECT * FROM onceward.inbox ORDER BY received_at DESC LIMIT 5'
                   {self.binary} top --config {config}
  dead letters     {self.binary} dead list --config {config}
  the log          tail -f {self.path('sidecar-a.log')}

Ctrl-C ends it and removes {self.folder}.""")
        if self.watch:
            self.watch.begin_top()
        while True:
            self.supervise_app()
            if self.watch and self.watch.top:
                self.screen.show(self.watch.top)
            time.sleep(0.2)

    def clean(self):
        if self.watch:
            self.watch.end()
        process.kill_all()
        self.servers.stop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--watch", action="store_true")
    parser.add_argument("--record", metavar="FILE.svg|FILE.cast")
    options = parser.parse_args()
    process.interrupt_on_signals()
    screen = Screen(options.watch or bool(options.record), options.record)
    demo = Demo(options.binary, screen)
    try:
        status = demo.run()
        screen.save()
        if options.keep and status == 0:
            demo.keep()
        return status
    except KeyboardInterrupt:
        screen.say("\nStopped.")
        return status if options.keep and "status" in locals() else 130
    finally:
        demo.clean()


if __name__ == "__main__":
    sys.exit(main())
