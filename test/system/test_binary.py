"""The program as it is shipped: what the linker and the compiler were asked to make of it."""

import os
import re
import shutil
import subprocess

import pytest


@pytest.fixture(scope="module")
def elf():
    """The output of readelf for it."""
    path = os.environ.get("ONCEWARD_RELEASE_BINARY", "")
    if not os.access(path, os.X_OK):
        pytest.skip("ONCEWARD_RELEASE_BINARY names no program")
    if not shutil.which("readelf"):
        pytest.skip("readelf is not installed")
    return subprocess.run(["readelf", "--wide", "--file-header", "--program-headers", "--dynamic", "--dyn-syms", path], check=True,
                          stdout=subprocess.PIPE, env=dict(os.environ, LC_ALL="C")).stdout.decode()


def test_it_is_position_independent(elf):
    assert re.search(r"^\s+Type:\s+DYN", elf, re.M)
    assert re.search(r"\(FLAGS_1\).*\bPIE\b", elf)


def test_everything_is_bound_at_its_start_and_read_only_from_then_on(elf):
    assert re.search(r"^\s+GNU_RELRO\b", elf, re.M)
    assert re.search(r"\(FLAGS\).*\bBIND_NOW\b", elf) and re.search(r"\(FLAGS_1\).*\bNOW\b", elf)


def test_no_stack_is_executable_and_nothing_is_written_and_executed(elf):
    segments = re.findall(r"^\s+(GNU_STACK|LOAD)\s+(?:0x\w+\s+){5}([RWE ]{3})", elf, re.M)
    assert {name for name, _ in segments} == {"GNU_STACK", "LOAD"}
    for name, flags in segments:
        assert not ("E" in flags and ("W" in flags or name == "GNU_STACK")), f"{name}: {flags}"


def test_its_library_calls_are_checked(elf):
    checked = set(re.findall(r"\b(__\w+_chk)@", elf))
    assert "__stack_chk_fail" not in checked and len(checked) >= 5, checked
    assert re.search(r"\b__stack_chk_fail@", elf)
