"""The failpoints and what kill -9 there leads to, read from include/onceward/base/failpoint.def; and the table of them in deploy/oncall/crashes.md."""

import collections
import os
import re

from . import pages

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
PAGE = "deploy/oncall/crashes.md"

Failpoint = collections.namedtuple("Failpoint", "name where transaction response")

STRING = r'((?:"(?:[^"\\]|\\.)*"\s*)+)'


def _text(literals):
    return "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals)).replace('\\"', '"')


def read():
    """The failpoints in their order, and the sentence of each outcome."""
    with open(os.path.join(ROOT, "include", "onceward", "base", "failpoint.def"), encoding="utf-8") as f:
        source = re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)
    outcomes = {m[0]: _text(m[1]) for m in re.findall(r"^OUTCOME\((\w+),\s*" + STRING + r"\)", source, re.M)}
    points = [Failpoint(_text(m[0]), _text(m[1]), m[2], m[3])
              for m in re.findall(r"^FAILPOINT\(\w+,\s*" + STRING + r",\s*" + STRING + r",\s*(\w+),\s*(\w+)\)", source, re.M)]
    assert len(points) == len(re.findall(r"^FAILPOINT\(", source, re.M)) and points
    for p in points:
        assert p.transaction in outcomes and p.response in outcomes, p
    return points, outcomes


def markdown():
    points, outcomes = read()
    text = "| killed with -9 at | `completion: transaction` | `completion: response` |\n|---|---|---|\n"
    for p in points:
        same = p.transaction == p.response
        text += f"| `{p.name}`: {p.where} | {outcomes[p.transaction]} | {'the same' if same else outcomes[p.response]} |\n"
    return text


def on_page():
    return pages.part(PAGE, "crashes")


def update_page():
    pages.put(PAGE, "crashes", markdown())
