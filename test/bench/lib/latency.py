"""Open loop: messages are published at a steady rate, and the time from each publish to its POST, or to its ack, is taken.

The two are taken in runs of their own, since the ack is seen by a relay before the broker, which itself costs a little."""

import os
import signal
import subprocess
import time

from rig import process
from rig.wait import wait_until

from . import probe
from .application import Application, read_stamps
from .contenders import ALL, Case

WARM_SECONDS = 2


def percentile(sorted_values, share):
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * share))] / 1000


def steady(bed, contender, rate, seconds, upto="post", **fields):
    who = ALL[contender](bed)
    case = Case(**fields)
    case.queues = ["steady"]
    case.database = bed.new_database(who.template or "t_textbook")
    broker = bed.rabbitmq.connect()
    channel = broker.channel()
    channel.queue_delete("steady")
    channel.queue_declare("steady", durable=True, arguments={"x-queue-type": case.queue_type})
    app = tap = None
    children = []
    stamps_path = os.path.join(bed.folder, "acked")
    try:
        app = Application(bed, stamps=upto == "post")
        case.app_url = app.url
        if upto == "ack":
            case.broker_port = process.free_port()
            with bed.log("tap.log") as out:
                tap = process.spawn([os.path.join(bed.bin, "tap"), "--port", str(case.broker_port), "--broker",
                                     str(bed.rabbitmq.port), "--stamps-file", stamps_path], stdout=out, stderr=out)
            wait_until(lambda: listens(case.broker_port), "the relay listens", 5)
        children = who.start(case)
        wait_until(lambda: channel.queue_declare("steady", passive=True).method.consumer_count > 0, f"{contender} consumes", 30)
        warm = max(1, int(rate * WARM_SECONDS))
        n = warm + int(rate * seconds)
        pids = lambda: [pid for child in children for pid in probe.children(child.pid)]
        cpu = probe.Cpu({"consumer": pids})
        bed.load("steady", n, case.size, rate=rate)
        late = f"{n} answers to {contender}"
        wait_until(lambda: app.n_done() >= n, late, 60)
        used = cpu.seconds()["consumer"]
        wait_until(lambda: channel.queue_declare("steady", passive=True).method.message_count == 0, "the queue is empty", 20)
        time.sleep(0.3)  # the last acks
        for child in children:
            process.reap(child, ((signal.SIGTERM, 15.0),))
        if tap:
            process.reap(tap)
        app.stop()
        values = app.stamps() if upto == "post" else read_stamps(stamps_path)
        kept = sorted(values[min(warm, len(values) // 2):])
        faults = [] if len(values) >= n else [f"{contender}: {len(values)} of {n} times were taken"]
        return {"messages": len(kept), "p50_ms": percentile(kept, 0.5), "p99_ms": percentile(kept, 0.99),
                "p999_ms": percentile(kept, 0.999), "max_ms": kept[-1] / 1000, "cpu_us": {"consumer": used / n * 1e6},
                "faults": faults}
    finally:
        for child in children + [c for c in (tap,) if c]:
            process.reap(child)
        if app:
            app.stop()
        channel.queue_delete("steady")
        broker.close()
        bed.drop_database(case.database)


def listens(port):
    return bool(subprocess.run(["ss", "-Htln", f"sport = :{port}"], stdout=subprocess.PIPE).stdout.strip())
