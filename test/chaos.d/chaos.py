"""The chaos run: messages of every kind through two to four pods, while everything that can be killed, cut, frozen or stopped is.

Each order that is booked publishes an invoice in its transaction. A relay, one of the same pods, brings it to the queues of a second
service, which has two pods and a database of its own: they, and whoever relays, have faults of their own.

A seed makes the schedule (schedule.py); how the parties take it depends on the machine. In the end the oracles (oracle.py, chain.py)
compare what was published with the ledgers, the inboxes, the dead letters and the broker. The last line is `N passed, N failed`.

An hour: test/chaos --minutes 60 --rate 20 (in the background; --keep keeps the logs)."""

import argparse
import collections
import gzip
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "system"))
sys.path.insert(0, HERE)

from rig import process, schema, servers  # noqa: E402
from rig.queue import Queue  # noqa: E402
from rig.wait import Overdue, wait_until  # noqa: E402

import each  # noqa: E402
import schedule  # noqa: E402
from chain import Chain  # noqa: E402
from oracle import Oracle  # noqa: E402
from pod import DELIVERY_LIMIT, Pod  # noqa: E402
from publisher import Publisher  # noqa: E402

QUEUES = ("classic-transaction", "quorum-transaction", "classic-response", "quorum-response")
RECORDED_INTERVAL = "5s"
BURST, TRICKLE = 10.0, 5.0  # seconds
SETTLE_PATIENCE, SETTLE_SHARE = 200.0, 0.25  # seconds, and of the length of the run: as long it may go on without becoming quiet,
PROGRESS = 0.1  # unless so much of the work that was left has been done meanwhile: then the machine is slow, and the run waits on


def say(text):
    print(text, flush=True)


class Run:
    def __init__(self, options):
        self.options = options
        self.seconds = options.minutes * 60
        self.faults = [] if options.calm else sorted(
            schedule.make_faults(options.seed, self.seconds) + schedule.make_chain_faults(options.seed, self.seconds))
        plain = {"without": [kind for kind, _ in schedule.KINDS] + ["kills"], "step": 100}
        self.messages = schedule.make_messages(options.seed, self.seconds, options.rate, QUEUES,
                                               **(plain if options.calm else {"without": options.without}))
        if options.batch:  # in bursts, so that many messages wait at a time
            self.messages = sorted((m._replace(at=m.at // BURST * BURST) for m in self.messages), key=lambda m: m.at)
        self.servers = servers.Servers("onceward-chaos-")
        self.folder = self.servers.folder
        self.count = collections.Counter()
        self.chain_count = collections.Counter()  # of them: at whom, what
        self.disturbances = []  # start, end, kind, pod's name or None
        self.threads = []
        self.heavy = {"database": threading.Lock(), "broker": threading.Lock()}
        self.n_good, self.next_good = 0, 0.0
        self.over = threading.Event()
        self.trouble = []

    # the parties

    def start(self):
        # A message's effect is lost with the database's crash where it was not flushed: as in production, it is.
        self.servers.start(postgres={"synchronous_commit": "on", "fsync": "off", "max_connections": 400})
        self.postgres, self.billing_postgres = map(self.make_database, ("chaos", "billing"))
        rabbitmq, binary = self.servers.rabbitmq, schema.require_binary()
        for name in (*QUEUES, *schedule.INVOICE_QUEUES):
            self.make_queue(name)
        interval = RECORDED_INTERVAL if self.options.record else "1s"
        self.pods = [Pod(f"pod{i}", self.folder, binary, rabbitmq, self.postgres, QUEUES, publishes=True, stats_interval=interval,
                         batch=self.options.batch)
                     for i in range(schedule.MAX_PODS)]
        self.billing = [Pod(name, self.folder, binary, rabbitmq, self.billing_postgres, schedule.INVOICE_QUEUES, stats_interval=interval,
                            batch=self.options.batch)
                        for name in schedule.BILLING]
        self.all_pods = self.pods + self.billing
        for pod in self.pods[:schedule.MIN_PODS] + self.billing:
            pod.start()
        self.publishers = [Publisher(self.servers.rabbitmq, name, [m for m in self.messages if m.queue == name]) for name in QUEUES]

    def make_database(self, name):
        postgres = self.servers.postgres.create_database(name)
        schema.migrate(postgres)
        postgres.query("CREATE TABLE app.effect (queue text, message_id text, version int, token text, pod text, attempt int,"
                       " arrived timestamptz, invoice text, at timestamptz DEFAULT clock_timestamp())")
        postgres.query("ALTER TABLE app.effect OWNER TO app_login")
        return postgres

    def make_queue(self, name):
        """Messages of invoices are bound by their type."""
        kind = name.split("-")[0]
        limit = {"x-delivery-limit": DELIVERY_LIMIT} if kind == "quorum" else {}
        queue = Queue(self.servers.rabbitmq, name, {"x-queue-type": kind, **limit}).declare()
        if name in schedule.INVOICE_QUEUES:
            queue.channel.exchange_declare(schedule.EXCHANGE, "direct", durable=True)
            queue.channel.queue_bind(name, schedule.EXCHANGE, kind)
        queue.close()

    # faults: each on a thread of its own; answers True when it met something

    def target(self, fault):
        """The pod that it is for; None: for all, or nobody relays."""
        if fault.kind == "scale":
            return None
        if fault.pod == schedule.RELAY:
            said = [(pod.sidecar.find("outbox_held")[-1]["_at"], pod) for pod in self.pods if pod.up and pod.sidecar.find("outbox_held")]
            return max(said, key=lambda x: x[0])[1] if said else None
        return next((pod for pod in self.billing if pod.name == fault.pod), None) or self.pods[fault.pod]

    def play(self, fault):
        pod = self.target(fault)
        if not pod and fault.pod == schedule.RELAY:
            return
        begin = time.time()
        self.trace(f"{fault.kind} {pod.name if pod else fault.pod} {fault.seconds:.2f} s {fault.detail or ''}")
        try:
            met = getattr(self, fault.kind)(pod if pod else fault.pod, fault)
        except Exception:  # noqa: BLE001 - the run's own trouble is told at the end
            self.trouble.append(f"{fault}: {traceback.format_exc()}")
            return
        if met is not False:
            self.count[fault.kind] += 1
            if isinstance(fault.pod, str):
                self.chain_count[fault.pod.rstrip("01"), fault.kind] += 1
            everybody = fault.kind in ("crash_database", "restart_database", "kill_broker", "restart_broker")
            self.disturbances.append((begin, time.time(), fault.kind, None if everybody else pod.name if pod else None))

    def trace(self, text):
        with open(os.path.join(self.folder, "schedule.log"), "a") as f:
            f.write(f"{time.time():.3f} {text}\n")

    def pause(self, seconds):
        self.over.wait(seconds)

    def scale(self, n, fault):
        for i, pod in enumerate(self.pods):
            if i < n and not pod.up:
                pod.start()
            elif i >= n and pod.up:
                begin = time.time()
                pod.stop()
                self.disturbances.append((begin, time.time(), "scale", pod.name))

    def restart_sidecar(self, pod, fault):
        self.pause(fault.seconds)
        if pod.up:
            pod.start_sidecar()

    def kill_sidecar(self, pod, fault):
        return pod.kill_sidecar() and self.restart_sidecar(pod, fault)

    def term_sidecar(self, pod, fault):
        return pod.term_sidecar() and self.restart_sidecar(pod, fault)

    def reload_sidecar(self, pod, fault):
        return pod.reload_sidecar()

    def stop_sidecar(self, pod, fault):
        if not pod.signal_sidecar(signal.SIGSTOP):
            return False
        self.pause(fault.seconds)
        pod.signal_sidecar(signal.SIGCONT)

    def kill_application(self, pod, fault):
        if not pod.kill_application():
            return False
        self.pause(fault.seconds)
        if pod.up:
            pod.start_application()

    def stop_application(self, pod, fault):
        if not pod.signal_application(signal.SIGSTOP):
            return False
        self.pause(fault.seconds)
        pod.signal_application(signal.SIGCONT)

    def kill_pod(self, pod, fault):
        if not pod.kill_both():
            return False
        self.pause(fault.seconds)
        if pod.up:
            pod.start()

    def cut(self, pod, peer):
        if not pod.links[peer].n_open:
            return False
        pod.links[peer].cut()

    def cut_broker(self, pod, fault):
        return self.cut(pod, "broker")

    def cut_database(self, pod, fault):
        return self.cut(pod, "database")

    def cut_application(self, pod, fault):
        return self.cut(pod, "application")

    def freeze(self, pod, peer, fault):
        if not pod.up:
            return False
        pod.links[peer].freeze(up=fault.detail != "down", down=fault.detail != "up")
        self.pause(fault.seconds)
        pod.links[peer].thaw()

    def freeze_broker(self, pod, fault):
        return self.freeze(pod, "broker", fault)

    def freeze_database(self, pod, fault):
        return self.freeze(pod, "database", fault)

    def freeze_application(self, pod, fault):
        return self.freeze(pod, "application", fault)

    def refuse(self, pod, peer, fault):
        with pod.lock:
            if not pod.up or pod.links[peer]._listener is None:
                return False
            pod.links[peer].refuse()
        pod.links[peer].cut()
        self.pause(fault.seconds)
        with pod.lock:
            if pod.links[peer]._listener is None:
                pod.links[peer].mend()

    def refuse_broker(self, pod, fault):
        return self.refuse(pod, "broker", fault)

    def refuse_database(self, pod, fault):
        return self.refuse(pod, "database", fault)

    def end_sessions(self, pod, fault):
        """As an administrator does it: the sidecar's and the application's sessions."""
        with self.heavy["database"]:
            self.postgres.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name IN (%s, %s)",
                                (pod.name, f"app-{pod.name}"))

    def with_server(self, which, end, start, fault):
        if not self.heavy[which].acquire(blocking=False):
            return False
        try:
            end()
            self.pause(fault.seconds)
            start()
        finally:
            self.heavy[which].release()

    def crash_database(self, pod, fault):
        return self.with_server("database", self.servers.postgres.crash, self.servers.postgres.start, fault)

    def restart_database(self, pod, fault):
        return self.with_server("database", self.servers.postgres.stop, self.servers.postgres.start, fault)

    def kill_broker(self, pod, fault):
        return self.with_server("broker", self.servers.rabbitmq.stop, self.servers.rabbitmq.start, fault)

    def restart_broker(self, pod, fault):
        return self.with_server("broker", self.servers.rabbitmq.stop_politely, self.servers.rabbitmq.start, fault)

    # the run

    def look_after(self):
        while not self.over.wait(0.2):
            for pod in self.all_pods:
                if pod.lock.acquire(blocking=False):
                    try:
                        pod.look_after()
                    finally:
                        pod.lock.release()

    def run(self):
        start = time.monotonic()
        keeper = threading.Thread(target=self.look_after, daemon=True)
        keeper.start()
        for p in self.publishers:
            p.start(start)
        for fault in self.faults:
            time.sleep(max(0.0, start + fault.at - time.monotonic()))
            thread = threading.Thread(target=self.play, args=(fault,), daemon=True)
            thread.start()
            self.threads.append(thread)
        time.sleep(max(0.0, start + self.seconds - time.monotonic()))
        for thread in self.threads:
            thread.join(60)
            if thread.is_alive():
                self.trouble.append("a fault of the schedule did not end")
        for p in self.publishers:
            p.thread.join(60)
            if p.thread.is_alive():
                self.trouble.append(f"{p.queue}: not everything could be published")

    def mend(self):
        for pod in self.all_pods:
            pod.mend()
            with pod.lock:
                if pod.up:
                    pod.signal_application(signal.SIGCONT)
                    pod.signal_sidecar(signal.SIGCONT)
                    pod.start()
        for pod in self.pods[:schedule.MIN_PODS]:
            pod.start()

    def depths(self, names=(*QUEUES, *schedule.INVOICE_QUEUES)):
        queues = [Queue(self.servers.rabbitmq, name) for name in names]
        try:
            return {queue.name: queue.n_ready for queue in queues}
        finally:
            for queue in queues:
                queue.close()

    @staticmethod
    def unsettled(postgres):
        return postgres.query("SELECT consumer, message_id, status::text, attempt, last_error, claimed_by FROM onceward.inbox"
                              " WHERE status NOT IN ('completed', 'dead')")

    def waiting(self):
        return self.postgres.query("SELECT waiting FROM onceward.sidecar_outbox_gauge()")[0][0]

    def is_done(self, pods, queues, postgres):
        held = [pod.held() for pod in pods if pod.up]
        return not any(h is None or h for h in held) and not any(self.depths(queues).values()) and not self.unsettled(postgres)

    def trickle(self):
        """A good message for each queue, every few seconds: as long as only bad ones are left, the circuit breaker stays on, and charges nobody."""
        if not self.options.batch or time.monotonic() < self.next_good:
            return
        self.next_good = time.monotonic() + TRICKLE
        for p in self.publishers:
            self.n_good += 1
            serial = 1_000_000 + 100 * self.n_good  # its invoice is a plain one
            message = schedule.Message(0.0, p.queue, f"m{serial}", "plain", schedule.body_of(serial, "plain", random.Random(serial)))
            self.messages.append(message)
            p.publish(message)
            p.n_confirmed += 1

    def is_quiet(self):
        """Asked in the order in which an order goes."""
        self.trickle()
        if self.waiting():  # as an operator would, for the exchange that is not there
            self.postgres.query("SELECT onceward.outbox_give_up('nowhere')")
        return (self.is_done(self.pods, QUEUES, self.postgres) and not self.waiting()
                and self.is_done(self.billing, schedule.INVOICE_QUEUES, self.billing_postgres))

    def state(self):
        held = {pod.name: pod.held() for pod in self.all_pods if pod.up}
        unsettled = self.unsettled(self.postgres) + self.unsettled(self.billing_postgres)
        return f"held {held}, ready {self.depths()}, in the outbox {self.waiting()}, unsettled {unsettled[:10]}"

    def n_left(self):
        return (sum(self.depths().values()) + self.waiting() + len(self.unsettled(self.postgres)) + len(self.unsettled(self.billing_postgres)))

    def wait_until_quiet(self):
        while True:
            left = self.n_left()
            try:
                return wait_until(self.is_quiet, self.state, max(SETTLE_PATIENCE, SETTLE_SHARE * self.seconds), 0.5)
            except Overdue:
                now = self.n_left()
                if now > (1 - PROGRESS) * left:
                    raise
                say(f"  slow: of {left} messages that were left, {now} still are")

    def settle(self):
        """Ends all faults. Answers what is wrong."""
        begin = time.monotonic()
        faults = []
        try:
            for _ in range(2):  # what was sent on meanwhile is in the next lines of stats
                for pod in self.all_pods:
                    pod.mark()
                self.wait_until_quiet()
        except Overdue as e:
            faults.append(str(e))
        self.settled_in = process.seconds_since(begin)
        self.over.set()
        for pod in self.all_pods:
            pod.stop()
        left = {name: n for name, n in self.depths().items() if n}
        if left:
            faults.append(f"not acked: {left}")
        if self.waiting():
            faults.append(f"{self.waiting()} rows wait in the outbox")
        return faults

    # the end

    def lease(self):
        return self.postgres.query("SELECT lease FROM onceward.outbox")[0][0]

    def figures(self, oracle, chain):
        n = lambda *kinds: sum(self.count[k] for k in kinds)
        effects = sum(len(e) for e in oracle.effects.values())
        letters = sum(len(x) for x in oracle.letters.values())
        published = sum(p.n_confirmed for p in self.publishers)
        say(f"  published {published} messages ({len({(m.queue, m.message_id) for m in self.messages})} ids, "
            f"{sum(m.copy for m in self.messages)} copies, {sum(p.n_again for p in self.publishers)} published again), "
            f"{sum(map(len, oracle.requests.values()))} POSTs, {effects} effects, {letters} dead letters")
        say(f"  kills: {n('kill_sidecar', 'kill_pod')} of sidecars, {n('kill_application', 'kill_pod')} of applications "
            f"({sum(pod.n_endings for pod in self.all_pods)} ended by a message), {n('crash_database')} of PostgreSQL, {n('kill_broker')} of RabbitMQ")
        say(f"  restarts: {n('term_sidecar')} of sidecars ({n('reload_sidecar')} reloads), {n('restart_database')} of PostgreSQL, {n('restart_broker')} of RabbitMQ; "
            f"{n('scale')} changes of the number of pods; {sum(pod.sidecar.n_starts for pod in self.all_pods)} lives of sidecars")
        say(f"  links: {n('cut_broker', 'cut_database', 'cut_application')} cuts, "
            f"{n('freeze_broker', 'freeze_database', 'freeze_application')} freezes, {n('refuse_broker', 'refuse_database')} refused for a while, "
            f"{n('end_sessions')} sessions ended")
        say(f"  stops: {n('stop_sidecar')} of sidecars, {n('stop_application')} of applications")
        of = lambda who, *kinds: sum(m for (w, k), m in self.chain_count.items() if w == who and k in (kinds or (k,)))
        say(f"  chain: {len(chain.sent)} invoices, {chain.n_charged} charged, {sum(chain.letters.values())} letters of the outbox, "
            f"{sum(pod.sidecar.n_resent for pod in self.pods)} sent again; the relay's lease was taken {self.lease()} times")
        say(f"  of the faults: {of('relay')} at the relay ({of('relay', 'kill_sidecar')} kills), {of('billing')} at the second service "
            f"({of('billing', 'kill_sidecar', 'kill_pod')} kills of its sidecars, {of('billing', 'kill_application', 'kill_pod')} of "
            "its applications)")
        if self.options.batch:
            say(f"  {oracle.batch_figures()}")
        say(f"  repeated in the documented window (response): {oracle.n_repeated}, taken over: {oracle.n_taken_over}; settled {self.settled_in:.1f} s after the last fault")

    def judge(self, settle_faults):
        for pod in self.all_pods:
            self.disturbances += [(at - 0.5, at, "ended", pod.name) for at in pod.endings]
        oracle = Oracle(self.messages, self.publishers, self.pods, self.disturbances, self.postgres, QUEUES)
        several = oracle.batch_checks() if self.options.batch else ()
        chain = Chain(oracle, self.billing, self.disturbances, self.billing_postgres)
        results = [("everything acked, and the run's own parties worked", settle_faults + self.trouble)]
        results += [(name, check()) for name, check in (*oracle.checks(), *several, *chain.checks())]
        self.figures(oracle, chain)
        for name, faults in results:
            say(f"  {'FAILED' if faults else 'ok'}: {name}" + (f" ({len(faults)})" if faults else ""))
            for fault in faults[:self.options.show]:
                say(f"      {fault}")
        return sum(not faults for _, faults in results), sum(bool(faults) for _, faults in results)

    def record(self):
        """The input of alerts: stats lines and those of level error, in the order of their times, each behind its pod's name."""
        lines = []
        for pod in self.all_pods:
            if not os.path.exists(pod.sidecar.log_path):
                continue  # it was never started
            with open(pod.sidecar.log_path, encoding="utf-8", errors="replace") as f:
                for line in f:
                    try:
                        event = json.loads(line)
                    except ValueError:
                        continue  # it was killed in the middle of it
                    if event["event"] == "stats" or event["level"] == "error":
                        lines.append((event["ts"], pod.name, line))
        with gzip.GzipFile(self.options.record, "wb", mtime=0) as f:
            f.writelines(f"{name} {line}".encode() for _, name, line in sorted(lines))
        say(f"  recorded: {len(lines)} lines in {self.options.record}")

    def deinit(self, keep):
        self.over.set()
        for pod in getattr(self, "all_pods", ()):
            pod.deinit()
        self.servers.stop(keep=True)
        if keep:
            say(f"Kept: {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)


def run_each(options):
    """Answers the exit status."""
    if set(options.only) - set(each.FAULTS):
        say(f"--only: there are {', '.join(each.FAULTS)}")
        return 2
    wrong = each.record(options.each, options.only, say)
    for text in wrong:
        say(f"  FAILED: {text}")
    return 1 if wrong else 0


def ordered_run(options):
    import ordered

    return ordered.OrderedRun(options)


def main():
    parser = argparse.ArgumentParser(prog="test/chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", default=None, help="repeats the schedule of a run")
    parser.add_argument("--minutes", type=float, default=3.0, help="of publishing and faults (3)")
    parser.add_argument("--rate", type=float, default=50.0, help="messages a second, without the copies (50)")
    parser.add_argument("--without", action="append", default=[], metavar="KIND", help="no messages of this kind (see schedule.py)")
    parser.add_argument("--batch", action="store_true", help="requests with up to 25 messages, published in bursts; not above --rate 15")
    parser.add_argument("--ordered", action="store_true", help="in place of the usual run: the order per key over partitions (ordered.py)")
    parser.add_argument("--calm", action="store_true", help="nothing but plain messages, and no faults: what a healthy run looks like")
    parser.add_argument("--record", metavar="FILE.gz", help="writes what alerts are made from there, for test/system/test_alerts.py; stats lines come every "
                        + RECORDED_INTERVAL + " then")
    parser.add_argument("--each", metavar="FOLDER", help="instead of a run: one fault at a time, each with a sidecar of its own, and its log there (each.py); "
                        "takes an hour")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], metavar="NAME,…", help="of --each: these faults alone")
    parser.add_argument("--show", type=int, default=8, help="faults told of each kind (8)")
    parser.add_argument("--keep", action="store_true", help="keep the logs also when all is well")
    options = parser.parse_args()
    options.seed = options.seed or str(random.SystemRandom().randrange(1_000_000))
    process.interrupt_on_signals()
    if options.each:
        return run_each(options)
    passed, failed, run = 0, 1, None
    try:
        run = ordered_run(options) if options.ordered else Run(options)
        say(f"Chaos with --seed {options.seed} for {options.minutes:g} minutes: {len(run.messages)} messages, {len(run.faults)} faults")
        run.start()
        run.run()
        run.mend()
        passed, failed = run.judge(run.settle())
        if options.record:
            run.record()
    except KeyboardInterrupt:
        say("Interrupted.")
    except Exception:  # noqa: BLE001 - counted as a failure
        traceback.print_exc()
    finally:
        if run:
            run.deinit(options.keep or failed)
        process.kill_all()
    if failed:
        without = "".join(f" --without {kind}" for kind in options.without) + (" --batch" if options.batch else "")
        without += " --ordered" if options.ordered else ""
        say(f"Repeat the schedule with: test/chaos --seed {options.seed} --minutes {options.minutes:g} --rate {options.rate:g}{without}")
    say(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
