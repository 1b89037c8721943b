"""Kills of the sidecar within one token window, on quorum queues with every kind of delivery limit.

A kill -9 is a delivery of each message that the sidecar held. The broker drops a message that was delivered more often than its limit allows,
here without a dead-letter exchange, so a dropped message is lost. For each limit (none, 5, 20) and each way in which the sidecar can
know it (told: `delivery_limit`; read: the queue's arguments; unknown: neither, and the user may not configure the queue) the sidecar is
killed 25 times. The application keeps its requests meanwhile. At the end no message is lost, doubled or dead-lettered.

Limits 1 and 2 leave no room for a renewal: `onceward check` fails, and each pair of kills may cost one message.

The servers are those of this machine. For others: test/run --matrix --command test/kills trixie forky"""

import argparse
import collections
import json
import os
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "system"))

from rig import process, schema, servers  # noqa: E402
from rig.bed import Bed  # noqa: E402
from rig.wait import Overdue, wait_until  # noqa: E402

KNOWN = ("told", "read", "unknown")
READER = "reader"  # a user of the broker who may not configure queues
DELIVERED = 5.0  # seconds that a sidecar has to take all messages before it is killed; it is killed then with those that it has
DRAINED = 120.0
UNPROTECTED = (1, 2)  # limits that leave no delivery for a renewal

Case = collections.namedtuple("Case", "limit known")
Found = collections.namedtuple("Found", "lost doubled letters renewed seconds held check_fails faults")


class Kills:
    def __init__(self, options):
        self.options = options
        self.servers = servers.Servers("onceward-kills-")

    def start(self):
        self.servers.start()
        rabbitmq = self.servers.rabbitmq
        rabbitmq.add_user(READER, write="^amq\\.default$")
        self.version = rabbitmq.rabbitmqctl("version").split()[-1]
        self.postgres = schema.ensure(schema.database(self.servers.postgres, "kills"))

    def arguments(self, limit):
        """No limit: from RabbitMQ 4 on that has to be said."""
        if limit:
            return {"x-delivery-limit": limit}
        return {"x-delivery-limit": -1} if int(self.version.split(".")[0]) >= 4 else {}

    def run(self, case):
        folder = os.path.join(self.servers.folder, f"{case.limit}-{case.known}")
        os.mkdir(folder)
        bed = Bed(f"kills-{case.limit}-{case.known}", folder, self.postgres, self.servers.rabbitmq)
        bed.queue = bed.new_queue("-quorum", arguments={"x-queue-type": "quorum", **self.arguments(case.limit)})
        try:
            return self.measure(bed, case)
        finally:
            bed.deinit()

    def keys(self, bed, case):
        keys = {"token_window": "10m", "max_window": "10m", "max_hold": "30m", "retry": None}
        top = {}
        if case.known == "told":
            keys["delivery_limit"] = case.limit
        if case.known == "unknown":
            top = {"broker": {"user": READER, "password": "secret"}}
        return {"queue": bed.queue, "top": top, **keys}

    def check_fails(self, bed, keys):
        """`check`, with the servers where the limit is read."""
        sidecar = bed.sidecar("checked", start=False, **keys)
        with open(sidecar.config_path, "w") as f:
            json.dump(sidecar.config, f)
        bed.sidecars.remove(sidecar)
        done = subprocess.run([schema.require_binary(), "check", "--config", sidecar.config_path, "--connect"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=60)
        return done.returncode != 0 and b"delivery" in done.stdout

    def measure(self, bed, case):
        begun = time.monotonic()
        opened, few = threading.Event(), threading.Semaphore(16)

        def handler(request, reply):
            opened.wait()
            with few:
                return bed.app.commit_and_answer(request, reply)

        ids = [f"m{i}" for i in range(self.options.messages)]
        keys = self.keys(bed, case)
        bed.app.handler = handler
        bed.expects_errors = True  # answers to sidecars that were killed
        bed.queue.publish_many(ids)
        held = []
        for n in range(self.options.kills):
            sidecar = bed.sidecar(f"killed{n}", **keys)
            sidecar.wait_for("stats", held=lambda count: count >= 1)
            self.until_delivered(bed)
            held.append(len(ids) - bed.queue.n_ready)
            sidecar.kill()
            bed.queue.wait_for_consumers(0)
        last = bed.sidecar("last", **keys)
        opened.set()
        try:
            bed.wait_for_effects(ids, DRAINED if case.limit not in UNPROTECTED else 30)
        except Overdue:
            pass
        last.wait_for_quiet()
        effects = bed.app.effects()
        faults = [fault for s in bed.sidecars for fault in s.check()]
        return Found(lost=sum(1 for i in ids if not effects.get(i)) - len({x["message_id"] for x in bed.letters()} - set(effects)),
                     doubled=sum(1 for i in ids if effects.get(i, 0) > 1), letters=len(bed.letters()),
                     renewed=sum(len(s.find("renewed")) for s in bed.sidecars), seconds=time.monotonic() - begun,
                     held=sum(held) / len(held), check_fails=self.check_fails(bed, keys), faults=faults)

    @staticmethod
    def until_delivered(bed):
        try:
            wait_until(lambda: bed.queue.n_ready == 0, "all are delivered", DELIVERED, 0.03)
        except Overdue:
            pass

    def is_good(self, case, found):
        if found.faults or found.doubled or found.letters:
            return False
        if case.limit in UNPROTECTED:
            return found.lost <= self.options.kills // 2 and found.check_fails
        return found.lost == 0


def cases(options):
    for limit in options.limits:
        for known in options.known:
            if limit not in UNPROTECTED or known != "unknown":  # `check` cannot refuse what it does not know
                yield Case(limit, known)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=25, help="per case (default 25)")
    parser.add_argument("--messages", type=int, default=60, help="per case (default 60)")
    parser.add_argument("--limits", type=lambda text: [int(x) for x in text.split(",")], default=[0, 5, 20, 1, 2],
                        help="delivery limits, 0 for none (default 0,5,20,1,2)")
    parser.add_argument("--known", type=lambda text: text.split(","), default=list(KNOWN), help="default told,read,unknown")
    parser.add_argument("--keep", action="store_true", help="keep the servers' files")
    options = parser.parse_args()
    process.interrupt_on_signals()
    kills = Kills(options)
    good = bad = 0
    try:
        kills.start()
        print(f"RabbitMQ {kills.version}: {options.kills} kills of a sidecar with {options.messages} messages\n")
        print("| limit | known | lost | doubled | dead letters | renewed lines | held at a kill | check fails | s | good |\n" + "|---" * 10 + "|")
        for case in cases(options):
            found = kills.run(case)
            is_good = kills.is_good(case, found)
            good, bad = good + is_good, bad + (not is_good)
            print(f"| {case.limit or 'none'} | {case.known} | {found.lost} | {found.doubled} | {found.letters} | {found.renewed} | {found.held:.0f} |"
                  f" {'yes' if found.check_fails else 'no'} | {found.seconds:.0f} | {'yes' if is_good else 'NO'} |", flush=True)
            for fault in found.faults[:3]:
                print(f"  {fault}")
    finally:
        kills.servers.stop(keep=options.keep)
    print(f"{good} passed, {bad} failed")
    return 1 if bad or not good else 0


if __name__ == "__main__":
    sys.exit(main())
