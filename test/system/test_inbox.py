"""The inbox adapter, driven without a sidecar around it: see inbox_driver.c and inbox_many_driver.c."""

import os
import re
import subprocess
import uuid

import pytest

from rig import inbox_sql, schema
from rig.pooler import PgBouncer


@pytest.mark.short("inbox_driver")
@pytest.mark.parametrize("name, pooled", [("inbox_driver", False), ("inbox_many_driver", False), ("inbox_many_driver", True)],
                         ids=["inbox_driver", "inbox_many_driver", "pooled"])
def test_inbox_driver(raw_postgres, name, pooled):
    """pooled: through PgBouncer in transaction mode."""
    driver = os.path.join(os.path.dirname(schema.require_binary()), "test", "system", name)
    if not os.access(driver, os.X_OK):
        pytest.skip("the driver was not built (no cmocka)")
    environment = dict(os.environ, ONCEWARD_TEST_PG=raw_postgres.dsn())
    pooler = PgBouncer(raw_postgres, server_idle_timeout=1).start() if pooled else None
    try:
        if pooled:
            environment["ONCEWARD_TEST_THROUGH"] = pooler.client().dsn(database="postgres")
        done = subprocess.run([driver], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=150)
    finally:
        if pooler:
            pooler.stop()
    assert done.returncode == 0, done.stdout.decode(errors="replace")


def test_calls_as_lines(raw_postgres):
    """The program that a model of the inbox is compared with: one line per call, one line per answer."""
    driver = os.path.join(os.path.dirname(schema.require_binary()), "test", "system", "inbox_calls")
    if not os.access(driver, os.X_OK):
        pytest.skip("inbox_calls was not built")
    database = raw_postgres.create_database(f"calls_{uuid.uuid4().hex[:8]}")
    inbox_sql.load(database)
    lines = [
        ("queue c 1 30000 60000 2 3", "ok"), ("queue d 0 30000 60000 8 3", "ok"),
        ("inbox 0 a 1 1", "ok"), ("inbox 1 b 1 1", "ok"),
        ("claim 0 0:m1:1:7:0:0 1:m1:2:7:0:0 0:m2:3:7:0:1", "claimed attempt=1 takeovers=0.*; claimed .*; claimed "),
        ("claim 1 0:m1:4:7:0:0 1:m1:5:8:0:0", r"held .* wait_ms=31\d\d\d .*; mismatch "),
        ("gone 1 a", "ok"), ("look 1 0:m1:4:7", "due "), ("gone 1", "ok"), ("look 1 0:m1:4:7", "held "),
        ("age 40000", "ok"), ("claim 1 0:m1:4:7:0:0", "claimed attempt=1 takeovers=1 .* taken_over=1 "),
        ("complete 0 0:m1:4", "ok"), ("complete 0 0:m1:4", "OW003"), ("complete 1 0:m1:4", "55P03"),
        ("look 0 0:m1:9:7 0:m2:9:7", "held .*; due "), ("commit 0", "ok"), ("look 0 0:m1:9:7", "completed "),
        ("fail 0 0:m2:3:1000:2:1:50:0:0", "failed "), ("claim 0 0:m2:6:7:0:0", "not_due attempt=1 takeovers=0 crashes=2 .* unproven_step=1 batch_cap=50 "),
        ("age 1000", "ok"), ("claim 0 0:m2:6:7:0:0", "claimed attempt=2 "), ("extend 0:m2:6 50000", "ok"), ("extend 0:m2:1 5", "OW001"),
        ("release 0 0:m2:6:0:0:-1:0", "released "), ("settle 0 1:m1:2", "completed "), ("claim 0 1:m3:9:1:0:0", "claimed "),
        ("age 40000", "ok"), ("sweep 0 1 1000", "1"), ("claim 0 1:m3:10:1:0:0", "claimed attempt=1 takeovers=1 .* taken_over=0 "),
        ("bury 0 1:m3:10:1:permanent:0:3:0:0", "buried "), ("redrive 1:m3", "reset"), ("row 1:m3", '{.*"waiting"'), ("redrive 1:m4", "no letter"),
        ("reset", "ok"), ("row 1:m3", "none"), ("claim 0 zzz", "error: "), ("claim 7 0:m1:1:1:0:0", "error: "), ("dance", "error: "),
    ]
    done = subprocess.run([driver, database.dsn()], input="".join(line + "\n" for line, _ in lines).encode(), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=60)
    said = done.stdout.decode().splitlines()
    for (line, expected), answer in zip(lines, said):
        assert re.match(expected, answer), (line, answer)
    assert done.returncode == 0 and len(said) == len(lines), done.stderr.decode(errors="replace")
