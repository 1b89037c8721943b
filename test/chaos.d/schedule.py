"""What a run does to its parties, and what it publishes, both made from the seed alone: the same seed, the same schedule.

A fault's `pod` is the number of one of the orders' pods, the name of one of the billing's, or RELAY: whoever relays the outbox then."""

import collections
import json
import random

# Windows are short, so that a short run sees many of them end.
WINDOW, GRACE, MAX_ATTEMPTS = 3.0, 2.0, 8

Fault = collections.namedtuple("Fault", "at kind pod seconds detail", defaults=(0, 0.0, None))
Message = collections.namedtuple("Message", "at queue message_id kind body copy", defaults=(False,))

# What may befall one pod: kind, weight, for how long.
LIGHT = (
    ("kill_sidecar", 6, (0.0, 2.0)),
    ("stop_sidecar", 4, (0.3, 2.5 * WINDOW)),
    ("term_sidecar", 2, (0.0, 1.0)),
    ("reload_sidecar", 1, None),
    ("kill_application", 4, (0.0, 1.0)),
    ("stop_application", 2, (0.3, 2.0 * WINDOW)),
    ("kill_pod", 2, (0.0, 2.0)),
    ("cut_broker", 3, None),
    ("cut_database", 4, None),
    ("cut_application", 3, None),
    ("freeze_broker", 2, (0.3, 8.0)),
    ("freeze_database", 2, (0.3, 8.0)),
    ("freeze_application", 2, (0.3, 2.0 * WINDOW)),
    ("refuse_broker", 1, (0.3, 3.0)),
    ("refuse_database", 1, (0.3, 3.0)),
    ("end_sessions", 1, None),
)
HEAVY = (("crash_database", (0.2, 2.0)), ("kill_broker", (0.0, 2.0)), ("restart_database", (0.0, 1.0)), ("restart_broker", (0.0, 1.0)))
HEAVY_EVERY, LIGHT_EVERY, SCALE_EVERY = 15.0, 1.3, 11.0
MIN_PODS, MAX_PODS = 2, 4

# What befalls the chain besides: spans around the lease of 15 s, so that a holder comes back both before and after another took it.
RELAY, BILLING = "relay", ("billing0", "billing1")
AT_RELAY = (
    ("kill_sidecar", 6, (0.0, 2.0)),
    ("stop_sidecar", 3, (0.3, 22.0)),
    ("term_sidecar", 2, (0.0, 1.0)),
    ("cut_broker", 3, None),
    ("cut_database", 3, None),
    ("freeze_broker", 3, (0.3, 22.0)),
    ("freeze_database", 3, (0.3, 22.0)),
)
CHAIN_EVERY = 3.0

# Of the messages; what the application makes of them stands in application.py.
KINDS = (
    ("plain", 700), ("slow", 60), ("fails_once", 40), ("fails_twice", 20), ("not_now", 20), ("busy", 3), ("acts_then_fails", 25),
    ("answers_early", 20), ("accepted", 25), ("hangs", 8), ("extends", 8), ("resets_before", 10), ("resets_after", 10), ("large", 10),
    ("poison", 15), ("fails", 6), ("no_id", 6), ("bad_id", 4), ("mismatch", 6),
)
NEVER_ACTS = {"poison": "permanent", "fails": "attempts", "kills": "attempts", "no_id": "no_message_id", "bad_id": "invalid_message_id"}


def weighted(chance, table):
    return chance.choices(table, [row[1] for row in table])[0]


def make_faults(seed, seconds):
    """Faults up to three seconds before the end, sorted by time."""
    chance = random.Random(f"{seed} faults")
    end, faults = seconds - 3.0, []
    at = 2.0
    while at < end:
        kind, _, span = weighted(chance, LIGHT)
        direction = chance.choice(("up", "down", "both"))
        faults.append(Fault(at, kind, chance.randrange(MAX_PODS), chance.uniform(*span) if span else 0.0, direction))
        at += chance.expovariate(1 / LIGHT_EVERY)
    at, n = 6.0, 0
    while at < end - 2.0:
        kind, span = HEAVY[n % 2] if n < 2 else chance.choice(HEAVY)
        faults.append(Fault(at, kind, 0, chance.uniform(*span)))
        at += chance.uniform(0.7, 1.3) * HEAVY_EVERY
        n += 1
    at = 4.0
    while at < end:
        faults.append(Fault(at, "scale", chance.randint(MIN_PODS, MAX_PODS)))
        at += chance.uniform(0.5, 1.5) * SCALE_EVERY
    return sorted(faults)


def make_chain_faults(seed, seconds):
    """At the relay and at the second service, in turn by chance; the first three are kills, so that a short run has them, too."""
    chance = random.Random(f"{seed} chain")
    end, faults, at = seconds - 3.0, [], 4.0
    first = [("kill_sidecar", RELAY), ("kill_sidecar", BILLING[0]), ("kill_application", BILLING[1])]
    while at < end:
        kind, pod = first.pop(0) if first else (None, chance.choice((RELAY, *BILLING)))
        table = [row for row in (AT_RELAY if pod == RELAY else LIGHT) if kind in (None, row[0])]
        kind, _, span = weighted(chance, table)
        lasts = min(chance.uniform(*span), end + 2.0 - at) if span else 0.0
        faults.append(Fault(at, kind, pod, lasts, chance.choice(("up", "down", "both"))))
        at += chance.expovariate(1 / CHAIN_EVERY)
    return faults


def body_of(serial, kind, chance, version=0):
    fill = "x" * (chance.randint(100_000, 300_000) if kind == "large" else chance.randint(0, 200))
    return json.dumps({"serial": serial, "kind": kind, "version": version, "fill": fill}).encode()


def make_messages(seed, seconds, rate, queues, without=(), step=1):
    """Messages in the order in which they are published; copies follow their originals after a while. step: between the numbers of two; of
    each hundred, the first one's invoice is a plain one."""
    chance = random.Random(f"{seed} messages")
    messages, killer_at = [], 20.0
    for serial in range(int(seconds * rate)):
        at = serial / rate
        queue = chance.choice(queues)
        kind = weighted(chance, KINDS)[0]
        if at >= killer_at and at < seconds - 5:
            kind, killer_at = "kills", killer_at + 45.0
        if kind in without:
            kind = "plain"
        message_id = None if kind == "no_id" else f"bad\0{serial}" if kind == "bad_id" else f"m{serial * step}"
        body = body_of(serial, kind, chance)
        messages.append(Message(at, queue, message_id, kind, body))
        if kind == "mismatch":
            messages.append(Message(at + chance.uniform(0.0, 3.0), queue, message_id, kind, body_of(serial, kind, chance, 1)))
        elif message_id and kind != "kills" and chance.random() < 0.15:
            for _ in range(chance.choice((1, 1, 2, 3))):
                delay = chance.choice((0.0, 0.05, chance.uniform(0.0, 2.0), chance.uniform(2.0, 20.0)))
                messages.append(Message(min(at + delay, seconds), queue, message_id, kind, body, True))
    return sorted(messages, key=lambda m: m.at)


# The chain: what an order's transaction publishes. By the order's serial number, so that it is the same each time.
EXCHANGE, INVOICE_QUEUES = "billing", ("classic-transaction-invoices", "quorum-transaction-invoices")
INVOICE_KINDS = {3: "fails_once", 8: "acts_then_fails", 13: "answers_early", 18: "accepted", 23: "resets_after", 28: "slow",
                 33: "resets_before", 37: "hangs", 41: "poison", 46: "unroutable", 61: "fails_once", 66: "acts_then_fails",
                 71: "accepted", 76: "resets_after", 84: "extends", 91: "no_exchange"}


def invoice_of(queue, message_id):
    """Answers kind, exchange, routing key, body, id. Without an id publish() makes one: where an order is booked once only. In
    `response` an order may be booked again, and the id that it gives keeps its invoice one."""
    serial = int(message_id[1:])
    kind = INVOICE_KINDS.get(serial % 100, "plain")
    body = json.dumps({"kind": kind, "queue": queue, "serial": serial, "version": 0})  # as jsonb has it
    own_id = None if "transaction" in queue and serial % 2 else f"invoice-{message_id}"
    return kind, "nowhere" if kind == "no_exchange" else EXCHANGE, "nobody" if kind == "unroutable" else queue.split("-")[0], body, own_id
