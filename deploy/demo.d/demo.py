"""The demo: 5,000 orders through everything that goes wrong, their invoices through an outbox to a second service, and a count of both.

About a third of the orders are copies. Some make the application fail at first, one kills it, one can never be processed. Each order that
is booked publishes an invoice in the same transaction; a second sidecar lets each invoice through to a second application, which has a
database of its own. Everybody is killed with -9 meanwhile: sidecars, applications, PostgreSQL, RabbitMQ. In the end every order must be
booked exactly once, or lie among the dead letters with its reason, and every order that was booked must have one invoice, booked exactly
once. Called by deploy/demo."""

import argparse
import collections
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "test", "system"))

import pika  # noqa: E402
import psycopg2  # noqa: E402

from rig import process, servers  # noqa: E402
from rig.wait import wait_until  # noqa: E402
from screen import Screen  # noqa: E402
from watch import Watch  # noqa: E402

N_MESSAGES, N_DISTINCT = 5000, 3335
N_FAILING = 40
ORDERS, INVOICES = "orders", "invoices"  # the queues; the second is also the exchange
PATIENCE = 240.0  # on a machine that does much else
# Who is killed with -9 when so many of the orders are booked. The relay of the outbox is a, or b once a was killed.
KILLS = ((0.10, "sidecar a"), (0.20, "sidecar billing"), (0.30, "sidecar a"), (0.40, "application billing"), (0.50, "database"),
         (0.60, "sidecar a"), (0.70, "broker"))


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


def sums(published, distinct, posts, retried, booked, dead, duplicates):
    """The counts of the end as lines whose parts add up. The duplicates have no parts: a sidecar does not know why a copy comes, and a
    kill takes those of its last tenth of a second out of the count."""
    return [
        f"  {published:6} orders published   = {distinct} distinct + {published - distinct} copies",
        f"  {posts:6} POSTs              = {posts - retried} first attempts + {retried} retries",
        f"  {booked + dead:6} orders ended       = {booked} booked + {dead} dead",
        f"  {duplicates:6} duplicates stopped, at least: copies, and deliveries that the broker repeated after a kill",
    ]


class Service:
    """A service: its queue, its application, its database with the ledger and the inbox."""

    def __init__(self, name, queue):
        self.name, self.queue = name, queue
        self.port = process.free_port()
        self.postgres = self.app = self.connection = None


class Demo:
    KILLS = KILLS
    SECOND_FROM, SECOND_TO = 0.25, 0.80  # while so many are booked there is a sidecar b, too
    BILLING = ("billing",)  # the sidecars of the second service
    END = "Every order was booked exactly once, or is dead with its reason; every invoice was booked exactly once."

    def __init__(self, binary, screen, began=None):
        self.screen = screen
        self.began = began or time.time()
        self.first_figure = None  # seconds from there
        self.watch = None
        self.servers = servers.Servers("onceward-demo-")
        self.folder = self.servers.folder
        self.binary = shutil.copy(binary, self.folder)  # another run may build anew in the folder of the first one
        self.shop, self.billing = Service("shop", ORDERS), Service("billing", INVOICES)
        self.sidecars = {}
        self.killed = collections.Counter()
        self.n_killed = 0  # of KILLS
        self.n_published = 0
        self.seen = (0, 0, 0, 0, 0)
        self.failure = []
        self.news = collections.deque()  # sentences of other threads, for the screen
        self.restarts = []
        self.closing = False
        self.notes = ""  # of the ordered demo, in the live view
        self.broker = None

    def path(self, name):
        return os.path.join(self.folder, name)

    # parts

    def start_servers(self):
        self.screen.say(f"Starting a private RabbitMQ and a private PostgreSQL in {self.folder}")
        self.servers.start(postgres={"fsync": "on", "full_page_writes": "on"})
        postgres = self.servers.postgres
        for role in ("onceward_owner LOGIN", "onceward_sidecar", "onceward_app"):
            postgres.query(f"CREATE ROLE {role}")
        postgres.query("CREATE ROLE sidecar LOGIN IN ROLE onceward_sidecar")
        postgres.query("CREATE ROLE shop LOGIN IN ROLE onceward_app")
        for service in (self.shop, self.billing):
            service.postgres = postgres.create_database(service.name)
            self.make_schema(service)
        connection = self.servers.rabbitmq.connect()
        self.declare(connection.channel())
        connection.close()

    def declare(self, channel):
        for queue in self.queues():
            channel.queue_declare(queue, durable=True)
        channel.exchange_declare(INVOICES, "direct", durable=True)
        channel.queue_bind(INVOICES, INVOICES, "created")

    def queues(self):
        return ORDERS, INVOICES

    def make_orders(self):
        return make_orders()

    def make_schema(self, service):
        postgres = service.postgres
        postgres.query(f"GRANT CREATE ON DATABASE {service.name} TO onceward_owner")
        path = self.path(f"migrate-{service.name}.json")
        with open(path, "w") as f:
            json.dump(self.config("migrate", service, "onceward_owner"), f)
        done = subprocess.run([self.binary, "migrate", "--config", path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        if done.returncode:
            raise RuntimeError("onceward migrate: " + done.stdout.decode(errors="replace"))
        postgres.query("CREATE SCHEMA shop AUTHORIZATION shop")
        postgres.query("CREATE TABLE shop.ledger (order_id text NOT NULL, amount bigint NOT NULL,"
                       " booked_at timestamptz NOT NULL DEFAULT clock_timestamp())")  # no unique key: a second booking would be seen
        postgres.query("ALTER TABLE shop.ledger OWNER TO shop")

    def config(self, name, service, user="sidecar"):
        config = {
            "instance": f"demo-{name}",
            "state_file": self.path(f"{name}.state"),
            "broker": {"url": self.servers.rabbitmq.url()},
            "database": {"url": service.postgres.dsn(user=user)},
            "log": {"stats_interval": "100ms"},  # what is counted since the last line goes with a kill
            "shutdown_grace": "5s",
            "queues": {service.queue: {
                "forward": {"url": f"http://127.0.0.1:{service.port}/{service.queue}"},
                "completion": "transaction",
                "token_window": "3s",
                "retry": {"max_attempts": 4, "backoff": "100ms", "max_backoff": "500ms"},
                "ready": {"interval": "100ms"},
            }},
        }
        if service is self.shop:
            config["outbox"] = {}
        return config

    def start_sidecar(self, name):
        path = self.path(f"sidecar-{name}")
        with open(path + ".json", "w") as f:
            json.dump(self.config(name, self.billing if name.startswith("billing") else self.shop), f, indent=2)
        with open(path + ".log", "ab") as log, open(path + ".stderr", "ab") as err:
            self.sidecars[name] = process.spawn([self.binary, "run", "--config", path + ".json"], stdin=subprocess.DEVNULL,
                                                stdout=log, stderr=err, cwd=self.folder)

    def end_sidecar(self, name):
        sidecar = self.sidecars.pop(name)
        status = process.reap(sidecar)
        if status:
            self.screen.say(f"\nSidecar {name} ended with status {status}: {process.tail(self.path(f'sidecar-{name}.stderr'))}")

    def start_app(self, service):
        with open(self.path(f"{service.name}.stderr"), "ab") as err:
            service.app = process.spawn([sys.executable, os.path.join(HERE, "application.py"), str(service.port),
                                         service.postgres.dsn(user="shop"), self.path(f"{service.name}.posts")],
                                        stdin=subprocess.DEVNULL, stdout=err, stderr=err)

    def supervise_apps(self):
        for service in (self.shop, self.billing):
            if service.app.poll() is not None:
                process.reap(service.app)
                self.killed["application"] += 1
                self.start_app(service)
                self.tell_kill(f"The {service.name} application has died, and is started again")

    def publish(self, messages):
        """In transactions of the broker: a message is published when its transaction is committed."""
        connection = self.servers.rabbitmq.connect()
        channel = connection.channel()
        channel.tx_select()
        for i, order in enumerate(messages, 1):
            channel.basic_publish("", ORDERS, json.dumps(order).encode(), pika.BasicProperties(
                message_id=order["id"], content_type="application/json", delivery_mode=2))
            if i % 250 == 0 or i == len(messages):
                channel.tx_commit()
                self.n_published = i
        connection.close()

    def beside(self, work, *arguments):
        """On a thread of its own; what goes wrong there is told in the end."""

        def run():
            try:
                work(*arguments)
            except Exception as e:  # noqa: BLE001
                self.failure.append(f"{work.__name__}: {e}" if str(e) else traceback.format_exc())

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def kill(self, what):
        """With -9; sidecars and servers are started again at once, applications by whoever looks after them."""
        kind, _, name = what.partition(" ")
        self.tell_kill({"sidecar": f"Sidecar {name} is killed with -9, and started again", "application": f"The {name} application is killed with -9",
                        "database": "PostgreSQL is killed with -9, and started again; both services wait for it",
                        "broker": "RabbitMQ is killed with -9, and started again: nothing can be booked until it is back"}[kind])
        self.killed[kind] += kind != "application"  # those are counted when they are started again
        if kind == "sidecar":
            process.kill(self.sidecars.pop(name))
            self.start_sidecar(name)
        elif kind == "application":
            process.kill((self.shop if name == "shop" else self.billing).app)
        elif kind == "database":
            self.restarts.append(self.beside(self.start_again, "PostgreSQL", self.servers.postgres.kill, self.servers.postgres.start))
        else:
            self.restarts.append(self.beside(self.start_again, "RabbitMQ", self.servers.rabbitmq.stop, self.servers.rabbitmq.start))

    def start_again(self, name, kill, start):
        began = time.monotonic()
        kill()
        if not self.closing:
            start()
            self.tell_kill(f"{name} is back after {time.monotonic() - began:.0f} s")

    def tell_kill(self, sentence):
        self.news.append(f"{time.monotonic() - self.start:5.1f} s  {sentence}")

    # looking

    def ask(self, service, sql):
        """The first row. Raises while the database is away."""
        try:
            if service.connection is None:
                service.connection = service.postgres.connect()
            with service.connection.cursor() as cursor:
                cursor.execute(sql)
                return cursor.fetchone()
        except psycopg2.Error:
            service.connection = None
            raise

    def figures(self):
        """Orders booked, distinct ones, dead ones, rows in the outbox, invoices booked; the last ones while the database is away."""
        try:
            orders = self.ask(self.shop, "SELECT (SELECT count(*)::int FROM shop.ledger), (SELECT count(DISTINCT order_id)::int FROM shop.ledger),"
                                         " (SELECT count(DISTINCT message_id)::int FROM onceward.dead_letter),"
                                         " (SELECT waiting::int FROM onceward.sidecar_outbox_gauge())")
            self.seen = orders + self.ask(self.billing, "SELECT count(*)::int FROM shop.ledger")
        except psycopg2.Error:
            pass
        return self.seen

    def posts(self):
        try:
            with open(self.path("shop.posts")) as f:
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

    def progress(self, last=False):
        booked, _, dead, _, invoiced = self.seen
        killed = ", ".join(f"{what} {n}x" for what, n in sorted(self.killed.items()) if n) or "-"
        text = [f"{time.monotonic() - self.start:5.1f} s  published {self.n_published:5}  booked {booked:5}  dead {dead}  invoices booked {invoiced:5}"
                f"  sidecars {'+'.join(sorted(self.sidecars))}", f"         killed: {killed}{self.notes}"]
        self.screen.show(text + (["", *self.watch.view(self.sidecars)] if self.watch else []), last)
        if booked and self.first_figure is None:
            self.first_figure = time.time() - self.began

    # the course of it

    def run(self):
        self.start_servers()
        orders, messages = self.make_orders()
        for service in (self.shop, self.billing):
            self.start_app(service)
        self.start = time.monotonic()
        publisher = self.beside(self.publish, messages)
        for name in ("a", *self.BILLING):
            self.start_sidecar(name)
        if self.screen.watch:
            self.watch = Watch(self.binary, self.path("sidecar-a.json"), lambda name: self.path(f"sidecar-{name}.log"))
        while True:
            distinct = self.figures()[1]
            self.supervise_apps()
            self.step(distinct / N_DISTINCT, publisher)
            while self.news:
                self.screen.say(self.news.popleft())
            self.progress()
            if self.failure or self.is_over(publisher) or time.monotonic() - self.start > PATIENCE:
                break
            time.sleep(0.05)
        took = time.monotonic() - self.start
        self.progress(last=True)
        left = self.end_sidecars()
        while left and not self.failure and time.monotonic() - self.start < PATIENCE:
            # Copies that were held: a drain gives back what is not at work.
            for name in ("a", *self.BILLING):
                self.start_sidecar(name)
            wait_until(lambda: not self.n_ready(), "the last copies are taken", PATIENCE)
            left = self.end_sidecars()
        return self.tell(orders, took, left)

    def step(self, share, publisher):
        """What is due when so much is booked. A server is killed when the one before is up again."""
        if any(thread.is_alive() for thread in self.restarts):
            return
        if self.n_killed < len(self.KILLS) and share >= self.KILLS[self.n_killed][0] and not publisher.is_alive():
            self.kill(self.KILLS[self.n_killed][1])
            self.n_killed += 1
        if "b" not in self.sidecars and self.SECOND_FROM <= share < self.SECOND_TO:
            self.start_sidecar("b")
        if "b" in self.sidecars and share >= self.SECOND_TO:
            self.end_sidecar("b")

    def count(self, field):
        """Of both queues together."""
        if self.broker is None or not self.broker.is_open:
            self.broker = self.servers.rabbitmq.connect().channel()
        return sum(getattr(self.broker.queue_declare(queue, passive=True).method, field) for queue in self.queues())

    def n_ready(self):
        return self.count("message_count")

    def end_sidecars(self):
        """Answers how many messages are in the queues then."""
        for name in list(self.sidecars):
            self.end_sidecar(name)
        wait_until(lambda: self.count("consumer_count") == 0, "the sidecars have left the queues", 10)
        return self.n_ready()

    def is_over(self, publisher):
        booked, distinct, dead, waiting, invoiced = self.seen
        if distinct + dead < N_DISTINCT or waiting or invoiced < booked or self.n_killed < len(self.KILLS):
            return False
        if publisher.is_alive() or any(thread.is_alive() for thread in self.restarts):
            return False
        return self.n_ready() == 0

    def booked(self, service):
        with service.postgres.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT order_id, count(*)::int FROM shop.ledger GROUP BY 1")
            return dict(cursor.fetchall())

    def tell(self, orders, took, left):
        letters = self.shop.postgres.query("SELECT message_id, reason, attempts, last_error FROM onceward.dead_letter ORDER BY id")
        letters += self.billing.postgres.query("SELECT message_id, reason, attempts, last_error FROM onceward.dead_letter ORDER BY id")
        dead = {letter[0] for letter in letters}
        booked, invoiced = self.booked(self.shop), self.booked(self.billing)
        posts, duplicates = self.posts(), self.duplicates()
        lost = [order["id"] for order in orders if order["id"] not in booked and order["id"] not in dead]
        lost_invoices = [i for i in booked if i not in invoiced]
        doubled = [i for i, n in booked.items() if n > 1]
        doubled_invoices = [i for i, n in invoiced.items() if n > 1 or i not in booked]
        rows = [
            ("orders lost", len(lost)), ("orders doubled", len(doubled)), ("invoices booked", sum(invoiced.values())),
            ("invoices lost", len(lost_invoices)), ("invoices doubled", len(doubled_invoices)), ("left in the outbox", self.figures()[3]), ("seconds", f"{took:.0f}"),
            ("seconds to the first figure, with build and start of the servers", f"{self.first_figure or 0:.0f}"),
            *(("crashes of an application: kill -9, and a message that ends it" if what == "application" else f"kill -9 of {what}", n)
              for what, n in sorted(self.killed.items())),
        ]
        self.screen.say("")
        for line in sums(self.n_published, len(orders), len(posts), len(posts) - len(set(posts)), sum(booked.values()), len(letters), duplicates):
            self.screen.say(line)
        for name, value in rows:
            self.screen.say(f"  {value:>6} {name}")
        for message_id, reason, attempts, error in letters:
            self.screen.say(f"  dead: {message_id}, {reason}, {attempts} attempts, {error}")
        faults = self.failure + self.tell_order()
        faults += [f"{what}: {', '.join(which[:5])}{' …' if len(which) > 5 else ''}" for what, which in (
            ("orders lost", lost), ("orders doubled", doubled), ("invoices lost", lost_invoices), ("invoices doubled", doubled_invoices)) if which]
        if self.n_published != N_MESSAGES or self.n_killed != len(self.KILLS):
            faults.append(f"not everything was done: {self.n_published} published, {self.n_killed} of {len(self.KILLS)} kills")
        if not duplicates:
            faults.append("no sidecar counted a duplicate")
        if left or self.seen[3]:
            faults.append(f"{left} messages are still in the queues, {self.seen[3]} rows in the outbox")
        return self.verdict(faults)

    def tell_order(self):
        return []

    def verdict(self, faults):
        self.screen.say("")
        self.screen.say("FAILED: " + "; ".join(faults) if faults else
                        self.END)
        for name in ("a", "b", *self.BILLING) if faults else ():
            self.screen.say(f"the end of sidecar-{name}.log:\n" + process.tail(self.path(f"sidecar-{name}.log"), 15)
                            + process.tail(self.path(f"sidecar-{name}.stderr"), 30))
        return 1 if faults else 0

    def keep(self):
        """Runs on until Ctrl-C, with one sidecar a service."""
        for name in ("a", *self.BILLING):
            self.start_sidecar(name)
        config = self.path("sidecar-a.json")
        self.screen.say(f"""
It keeps running, with one sidecar per service. In another terminal:

  publish          /usr/bin/python3 {os.path.join(HERE, 'publish.py')} {self.servers.rabbitmq.url()} {ORDERS} 10
  the inbox        {self.binary} status --config {config}
                   psql {self.shop.postgres.dsn()} -c 'SELECT * FROM onceward.inbox ORDER BY received_at DESC LIMIT 5'
                   {self.binary} top --config {config}
  the invoices     psql {self.billing.postgres.dsn()} -c 'SELECT * FROM shop.ledger ORDER BY booked_at DESC LIMIT 5'
  dead letters     {self.binary} dead list --config {config}
  the log          tail -f {self.path('sidecar-a.log')}

Ctrl-C ends it and removes {self.folder}.""")
        if self.watch:
            self.watch.begin_top()
        while True:
            self.supervise_apps()
            if self.watch and self.watch.top:
                self.screen.show(self.watch.top)
            time.sleep(0.2)

    def clean(self):
        if self.watch:
            self.watch.end()
        self.closing = True
        process.kill_all()
        for thread in self.restarts:
            thread.join(60)  # a server that is being started ends with the next line
        process.kill_all()
        self.servers.stop()


def ordered_demo():
    import ordered

    return ordered.OrderedDemo


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--ordered", action="store_true")
    parser.add_argument("--watch", action="store_true")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--installed", default="", help="packages that were installed for this")
    parser.add_argument("--began", type=float, help="when the build began, in seconds since 1970")
    parser.add_argument("--record", metavar="FILE.svg|FILE.cast")
    options = parser.parse_args()
    process.interrupt_on_signals()
    screen = Screen(options.watch or bool(options.record) or (sys.stdout.isatty() and not options.plain), options.record)
    demo, status, is_kept = None, 130, False
    try:
        demo = (ordered_demo() if options.ordered else Demo)(options.binary, screen, options.began)
        status = demo.run()
        screen.save()
        is_kept = options.keep and status == 0
        if is_kept:
            demo.keep()
        return status
    except KeyboardInterrupt:
        screen.say("\nStopped.")
        return status if is_kept else 130
    finally:
        if demo:
            demo.clean()
        if options.installed:
            print("To remove the packages that were installed for this: apt-get purge" + options.installed + " && apt-get autoremove --purge")


if __name__ == "__main__":
    sys.exit(main())
