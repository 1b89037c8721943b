"""The demo of order: the invoices of each account are booked in the order in which its orders were committed.

The shop books orders side by side. Each order takes the next number of its account, and publishes an invoice with that number and with the
account as routing key, in one transaction. The relay keeps the order of each routing key (`outbox.ordered`). A hash exchange spreads the
invoices over four queues with a single active consumer. Two sidecars of the second service share them, with the routing key as order key.

Each booked invoice records the number that was booked before it. An inversion or a gap therefore stays visible in the ledger."""

import random

from demo import INVOICES, ORDERS, Demo, make_orders

N_ACCOUNTS, N_PARTITIONS = 60, 4
# Victims in turn; the seed changes the moments and the order. Each application, each server, and both sidecars of both services.
VICTIMS = ("sidecar a", "sidecar b", "sidecar billing", "sidecar billing2", "application shop", "application billing", "database",
           "sidecar a", "sidecar b", "sidecar billing", "sidecar billing2", "broker", "application billing")


def make_kills(seed):
    chance = random.Random(seed)
    victims = chance.sample(VICTIMS, len(VICTIMS))
    shares = sorted(chance.uniform(0.05, 0.85) for _ in victims)
    return tuple(zip(shares, victims))


class OrderedDemo(Demo):
    BILLING = ("billing", "billing2")
    SECOND_FROM, SECOND_TO = 0.0, 2.0  # all the time
    END = "Every order was booked exactly once, or is dead with its reason; every invoice was booked exactly once, in the order of its account."

    def __init__(self, binary, screen, began=None):
        super().__init__(binary, screen, began)
        self.seed = random.randrange(10**6)
        self.KILLS = make_kills(self.seed)
        self.order = (0, 0, 0)

    def start_servers(self):
        super().start_servers()
        self.screen.say(f"Seed of the kills: {self.seed}. Invoices of {N_ACCOUNTS} accounts go through a hash exchange into {N_PARTITIONS} partitions")

    def queues(self):
        return (ORDERS, *(f"{INVOICES}-{n}" for n in range(N_PARTITIONS)))

    def declare(self, channel):
        version = channel.connection._impl.server_properties["version"]
        arguments = {"x-queue-type": "quorum", "x-single-active-consumer": True}
        if int(version.split(".")[0]) >= 4:
            arguments["x-delivery-limit"] = -1
        channel.queue_declare(ORDERS, durable=True)
        channel.exchange_declare(INVOICES, "x-modulus-hash", durable=True)
        for queue in self.queues()[1:]:
            channel.queue_declare(queue, durable=True, arguments=arguments)
            channel.queue_bind(queue, INVOICES, "")

    def make_schema(self, service):
        super().make_schema(service)
        service.postgres.query("CREATE TABLE shop.account (account text PRIMARY KEY, number integer NOT NULL)")
        service.postgres.query("INSERT INTO shop.account SELECT 'account-' || n, 0 FROM generate_series(0, %s) n", (N_ACCOUNTS - 1,))
        service.postgres.query("ALTER TABLE shop.ledger ADD account text, ADD number integer, ADD before integer")
        service.postgres.query("ALTER TABLE shop.account OWNER TO shop")

    def config(self, name, service, user="sidecar"):
        config = super().config(name, service, user)
        if service is self.shop:
            config["outbox"] = {"ordered": [INVOICES]}
        else:
            config["queues"][INVOICES].update(queue=f"{INVOICES}-{{0..{N_PARTITIONS - 1}}}", consumer=INVOICES, order={"key": ["routing_key"]})
        return config

    def make_orders(self):
        orders, messages = make_orders()
        for order in orders:  # copies are the same objects
            order["account"] = f"account-{order['amount'] % N_ACCOUNTS}"
        return orders, messages

    def figures(self):
        seen = super().figures()
        try:
            self.order = self.ask(self.billing, "SELECT count(*) FILTER (WHERE number <= before)::int, count(*) FILTER (WHERE number > before + 1)::int,"
                                                " (count(*) - count(DISTINCT order_id))::int FROM shop.ledger")
        except Exception:  # noqa: BLE001, the database is away
            pass
        return seen

    def progress(self, last=False):
        inversions, gaps, doubled = self.order
        self.notes = f"  inversions {inversions}  gaps {gaps}  doubled {doubled}"
        super().progress(last)

    def tell_order(self):
        self.figures()
        for name, value in zip(("inversions", "gaps", "doubled"), self.order):
            self.screen.say(f"  {name:24}{value:>8}")
        n_accounts = self.ask(self.shop, "SELECT count(*)::int FROM shop.account WHERE number > 0")[0]
        if not any(self.order):
            self.screen.say(f"  Each of {n_accounts} accounts has the numbers from 1 on, each right behind the one before.")
        return [f"{value} {name}" for name, value in zip(("inversions", "gaps", "doubled"), self.order) if value]


