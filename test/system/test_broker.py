"""The broker adapter, driven without a sidecar around it: see broker_driver.c."""

import os
import subprocess

import pytest

from rig import schema


def test_broker_driver(rabbitmq, certificates):
    driver = os.path.join(os.path.dirname(schema.require_binary()), "test", "unit", "broker_driver")
    if not os.access(driver, os.X_OK):
        pytest.skip("the driver was not built")
    environment = dict(os.environ, ONCEWARD_TEST_AMQP=rabbitmq.url(), ONCEWARD_TEST_AMQPS=rabbitmq.tls_url(),
                       ONCEWARD_TEST_CA=certificates.ca, ONCEWARD_TEST_OTHER_CA=certificates.other_ca)
    done = subprocess.run([driver], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=150)
    assert done.returncode == 0, done.stdout.decode(errors="replace")
