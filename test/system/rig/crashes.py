"""The failpoints and what kill -9 there leads to, read from include/onceward/base/failpoint.def; and the list of them in deploy/oncall/crashes.md."""

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
    """The points of each pair of outcomes, as a list below it."""
    points, outcomes = read()
    grouped = {}
    for p in points:
        grouped.setdefault((p.transaction, p.response), []).append(p)
    text = ""
    for (transaction, response), some in grouped.items():
        if transaction == response:
            lines = [f"**{outcomes[transaction]}**"]
        else:
            lines = [f"**With `transaction`:** {outcomes[transaction]}", f"**With `response`:** {outcomes[response]}"]
        text += "".join(pages.wrap(line) + "\n\n" for line in lines)
        text += "".join(f"- `{p.name}`: {p.where}\n" for p in some) + "\n"
    return text


def on_page():
    return pages.part(PAGE, "crashes")


def update_page():
    pages.put(PAGE, "crashes", markdown())
