"""The race of claims and moves, in short: see test/history, which takes minutes and has more mutants."""

import os
import subprocess

import pytest

pytestmark = pytest.mark.long

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "history")


def race(*options):
    done = subprocess.run([PROGRAM, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900)
    assert done.returncode == 0, done.stdout.decode()


def test_claims_and_moves_race_and_nothing_is_done_twice_or_lost():
    race("--seconds", "6")


@pytest.mark.parametrize("mutant", ["entry-later", "last-statement"])
def test_the_race_catches(mutant):
    """It ends as soon as an effect is doubled."""
    race("--seconds", "300" if mutant == "entry-later" else "4", "--mutant", mutant)
