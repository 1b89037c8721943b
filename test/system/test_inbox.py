"""The inbox adapter, driven without a sidecar around it: see inbox_driver.c and inbox_many_driver.c."""

import os
import subprocess

import pytest

from rig import schema


@pytest.mark.parametrize("name", ["inbox_driver", "inbox_many_driver"])
def test_inbox_driver(raw_postgres, name):
    driver = os.path.join(os.path.dirname(schema.require_binary()), "test", "system", name)
    if not os.access(driver, os.X_OK):
        pytest.skip("the driver was not built (no cmocka)")
    environment = dict(os.environ, ONCEWARD_TEST_PG=raw_postgres.dsn())
    done = subprocess.run([driver], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=150)
    assert done.returncode == 0, done.stdout.decode(errors="replace")
