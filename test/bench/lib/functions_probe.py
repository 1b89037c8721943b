"""The test that test/bench/functions runs: messages, one at a time, through a sidecar that counts the calls of each function."""

import json
import os
import struct
import time

QUIET_S, N_MESSAGES = 15, 5


def calls(sidecar):
    with open(f"{os.environ['ONCEWARD_TRACE']}.{sidecar.pid}", "rb") as f:
        table = f.read()
    return {address: n for address, n in struct.iter_unpack("QQ", table) if address}


def rose(before, after):
    return {address: n - before.get(address, 0) for address, n in after.items() if n > before.get(address, 0)}


def test_functions(bed):
    bed.app.handler = bed.app.act_and_answer
    # With the tests' interval of 250 ms each message would be followed by the stats line that counts it.
    sidecar = bed.sidecar(completion="response", top={"log": {"stats_interval": "10s"}})

    def message(name):
        before = calls(sidecar)
        bed.queue.publish(name)
        sidecar.wait_for("completed", message_id=name)
        time.sleep(1)  # the ack follows
        return rose(before, calls(sidecar))

    message("first")  # connections, and whatever is made once
    before = calls(sidecar)
    time.sleep(QUIET_S)
    idle = rose(before, calls(sidecar))
    found = [message(f"m{n}") for n in range(N_MESSAGES)]
    with open(os.environ["ONCEWARD_TRACE"] + ".json", "w") as f:
        json.dump({"idle": idle, "messages": found}, f)
