"""Which test is begun when: the longest first, by what they took in an earlier run, since the last worker would have long to go
otherwise when the others have ended. What is not listed is short, and stays in the order of the files: those share a fixture.

Called as a program with pytest's reports (junit), it writes the list anew: `python3 test/system/rig/order.py FILE.xml…`"""

import os
import sys
import xml.etree.ElementTree

import pytest

LIST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "long_tests")
LEAST_SECONDS = 3


def listed():
    """Seconds by the test's name."""
    try:
        with open(LIST, encoding="utf-8") as f:
            lines = [line.rstrip("\n").partition(" ") for line in f]
    except OSError:
        return {}
    return {name: float(seconds) for seconds, _, name in lines}


def group_of(item):
    """Tests of a group go to one worker, one after the other."""
    marker = item.get_closest_marker("xdist_group")
    return marker.args[0] if marker else None


def share_servers(items):
    """The tests of a file that have a server between them go to one worker: elsewhere it would be made again."""
    for item in items:
        if {"private_postgres", "own_broker"} & set(item.fixturenames) and not group_of(item):
            item.add_marker(pytest.mark.xdist_group(item.module.__name__))


def put_longest_first(items):
    took = listed()
    seconds = {id(item): took.get(item.nodeid.partition("@")[0], 0) for item in items}
    of_group = {}
    for item in items:
        of_group[group_of(item)] = of_group.get(group_of(item), 0) + seconds[id(item)]
    items.sort(key=lambda item: -(of_group[group_of(item)] if group_of(item) else seconds[id(item)]))


def write(reports):
    took = {}
    for report in reports:
        for case in xml.etree.ElementTree.parse(report).iter("testcase"):
            name = f"{case.get('classname', '').rpartition('.')[2]}.py::{case.get('name').partition('@')[0]}"
            took[name] = max(took.get(name, 0), float(case.get("time", 0)))
    with open(LIST, "w", encoding="utf-8") as f:
        f.writelines(f"{seconds:.0f} {name}\n" for name, seconds in sorted(took.items(), key=lambda x: (-round(x[1]), x[0]))
                     if seconds >= LEAST_SECONDS)


if __name__ == "__main__":
    write(sys.argv[1:])
