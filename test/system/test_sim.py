"""The simulator's inbox beside the real one: see test/sim.d/differential.c."""

import os
import re
import subprocess
import uuid

import pytest

from rig import inbox_sql, schema


def test_the_simulated_inbox_answers_as_the_real_one(raw_postgres):
    """The same calls, at random, to the simulated inbox and, through the sidecar's own adapter, to the functions of the schema."""
    build = os.path.dirname(schema.require_binary())
    simulator = os.path.join(build, "test", "sim.d", "test_sim")
    driver = os.path.join(build, "test", "system", "inbox_calls")
    if not (os.access(simulator, os.X_OK) and os.access(driver, os.X_OK)):
        pytest.skip("the simulator or inbox_calls was not built")
    database = raw_postgres.create_database(f"sim_{uuid.uuid4().hex[:8]}")
    inbox_sql.load(database)
    done = subprocess.run([simulator, "--differential", "--seconds", "6", "--seed", str(uuid.uuid4().int % 1000000), driver, database.dsn()],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=120)
    assert done.returncode == 0, done.stdout.decode(errors="replace")
    calls = re.findall(r"(\d+) calls, answered alike", done.stdout.decode())
    assert len(calls) == 2 and min(map(int, calls)) >= 60, "an episode each, whatever the machine"
