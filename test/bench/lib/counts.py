"""Calls a message, counted by a library that is loaded before the C library (tools/count.c); and what an idle consumer holds."""

import os
import struct
import time

from rig import process

from . import probe
from .contenders import ALL, Case
from .drain import Drain

NAMES = ("allocations", "frees", "writes", "reads", "waits", "syncs", "queries")


def counted(bed, contender, count, **fields):
    """A drain under the counting library. Its speed says nothing."""
    path = os.path.join(bed.folder, "counts")
    with open(path, "wb") as f:
        f.write(bytes(8 * len(NAMES)))
    case = Case(environment={"LD_PRELOAD": os.path.join(bed.bin, "count.so"), "BENCH_COUNTS": path}, **fields)
    run = Drain(bed, ALL[contender](bed), case, count)
    result = run.run()
    with open(path, "rb") as f:
        values = struct.unpack(f"{len(NAMES)}Q", f.read(8 * len(NAMES)))
    counts = {name: value / result["messages"] for name, value in zip(NAMES, values)}
    return {"messages": result["messages"], **counts, "faults": result["faults"]}


def idle(bed, contender, n_queues=1, seconds=3.0):
    """Started on empty queues, and left alone for a while."""
    who = ALL[contender](bed)
    case = Case(n_queues=n_queues, app_url=bed.app_url, prefetch=128, concurrency=16)
    case.queues = [f"idle{i}" for i in range(n_queues)]
    case.database = bed.new_database(who.template)
    broker = bed.rabbitmq.connect()
    channel = broker.channel()
    children = []
    try:
        for queue in case.queues:
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
        children = who.start(case)
        end = time.monotonic() + 15
        while time.monotonic() < end and any(
                channel.queue_declare(q, passive=True).method.consumer_count == 0 for q in case.queues):
            time.sleep(0.05)
        time.sleep(seconds)
        pids = [pid for child in children for pid in probe.children(child.pid)]
        return {"rss_idle": sum(probe.rss_anon(pid) for pid in pids), "rss_file": sum(probe.rss_file(pid) for pid in pids), "faults": []}
    finally:
        for child in children:
            process.reap(child)
        for queue in case.queues:
            channel.queue_delete(queue)
        broker.close()
        bed.drop_database(case.database)
