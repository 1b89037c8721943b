"""The chain, in the end: each order that was booked has one invoice, which went out through the outbox, and the second service booked
each invoice once. What that service is told is no list of ours: it is what the first one's transactions committed."""

import collections

from oracle import Oracle
from schedule import INVOICE_QUEUES, Message, invoice_of

LETTERS = {"unroutable", "no_exchange"}  # kinds that the broker takes nowhere; the reason has the same name
Relay = collections.namedtuple("Relay", "queue n_sent")  # as the Oracle has it of a publisher


class Chain:
    def __init__(self, orders, pods, disturbances, postgres):
        """orders: the Oracle of the first service; postgres: the second one's database."""
        self.orders = orders
        self.sent, self.wanted_letters = {}, collections.Counter()
        for (queue, message_id), effects in orders.effects.items():
            kind, _, key, body, _ = invoice_of(queue, message_id)
            for effect in effects:
                if kind in LETTERS:
                    self.wanted_letters[effect["invoice"], kind] += 1
                else:
                    to = next(name for name in INVOICE_QUEUES if name.startswith(key))
                    self.sent[effect["invoice"]] = Message(0, to, effect["invoice"], kind, body.encode())
        self.letters = collections.Counter(orders.postgres.query(
            "SELECT message_id, CASE reason WHEN 'operator' THEN 'no_exchange' ELSE reason END FROM onceward.dead_letter"
            " WHERE consumer = 'onceward-outbox'"))  # the run gives up what is parked for that exchange
        relays = [Relay(m.queue, {m.body: 1}) for m in self.sent.values()]  # sent again by the same id, it is the same
        self.billing = Oracle(list(self.sent.values()), relays, pods, disturbances, postgres, INVOICE_QUEUES)
        self.n_charged = sum(map(len, self.billing.effects.values()))

    def one_invoice_an_order(self):
        """Also of an order that was booked again in `response`: it gave the id."""
        return [f"{key}: {effects}" for key, effects in self.orders.effects.items()
                if effects and (len({e["invoice"] for e in effects}) != 1 or not effects[0]["invoice"])]

    def letters_explained(self):
        """Each call of publish whose message no queue takes leads to exactly one dead letter."""
        return [f"{what}: {n} letters, wanted {self.wanted_letters[what]}" for what, n in (self.letters - self.wanted_letters).items()] + \
               [f"{what}: {n} letters are missing" for what, n in (self.wanted_letters - self.letters).items()]

    def checks(self):
        kept = (("lost 0, doubled 0", lambda: self.billing.nothing_lost() + self.billing.nothing_doubled()),
                ("no POST for a completed row", self.billing.never_posted_completed),
                ("no living token taken over", self.billing.no_living_token_taken),
                ("one Idempotency-Key a message, one request a token", self.billing.keys_are_the_same),
                ("nothing left unsettled, nothing that no order published", self.billing.all_settled),
                ("every dead letter explained", self.billing.letters_explained),
                ("nothing wrong in the logs", self.billing.no_bugs_said))
        return (("chain: one invoice an order", self.one_invoice_an_order),
                ("chain: every letter of the outbox explained", self.letters_explained),
                *((f"invoices: {name}", check) for name, check in kept))
