"""The broker adapter, driven without a sidecar around it: see broker_driver.c for one queue, broker_many.c for many."""

import os
import re
import subprocess

import pytest

from rig import schema
from rig.broker_view import OwnBroker

pytestmark = pytest.mark.xdist_group("broker_driver")


def run(name, **environment):
    driver = os.path.join(os.path.dirname(schema.require_binary()), "test", "unit", name)
    if not os.access(driver, os.X_OK):
        pytest.skip("the driver was not built")
    done = subprocess.run([driver], env=dict(os.environ, **environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=400)
    assert done.returncode == 0, done.stdout.decode(errors="replace")


def test_broker_driver(rabbitmq, certificates):
    run("broker_driver", ONCEWARD_TEST_AMQP=rabbitmq.url(), ONCEWARD_TEST_AMQPS=rabbitmq.tls_url(),
        ONCEWARD_TEST_CA=certificates.ca, ONCEWARD_TEST_OTHER_CA=certificates.other_ca)
    status = rabbitmq.rabbitmqctl("eval", 'rabbit_quorum_queue:status(<<"/">>, <<"drv.gaps">>).')
    rabbitmq.connect().channel().queue_delete("drv.gaps")
    n_commands = int(re.search(r'"Commit Index">>,(\d+)', status)[1])
    assert 60 <= n_commands < 80, "60 messages were published, and 30 of them acked, with gaps between them"


@pytest.mark.long
def test_many_queues_on_one_connection(tmp_path, certificates):
    """On a node of its own: queues hang in it, and its memory runs out."""
    folder = tmp_path / "node"
    folder.mkdir()
    tmp_path.chmod(0o755)
    broker = OwnBroker(str(folder), certificates)
    try:
        broker.init().start()
        run("broker_many", ONCEWARD_TEST_AMQP=broker.url(), ONCEWARD_TEST_EVAL=evaluator(broker, tmp_path / "eval"))
    finally:
        broker.deinit()


def evaluator(broker, path):
    """A program that makes the node evaluate its argument."""
    with open(os.path.join(broker.folder, ".erlang.cookie")) as f:
        cookie = f.read().strip()
    path.write_text(f"#!/bin/sh\nprintf '%s.\\n' \"$1\" | ERL_EPMD_PORT={broker.ports['epmd']} HOME={broker.folder} "
                    f"erl_call -c {cookie} -n {broker.node} -e | grep -q '^{{ok, '\n")
    path.chmod(0o755)
    return str(path)
