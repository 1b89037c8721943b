"""Mutants that change nothing that a test could see, each judged by a person: the file `equivalent` beside this one.

An entry is a file, the line as it is, the line as it is mutated, and the reason:

    src/core/limiter.c
    -    if (a < b)
    +    if (a <= b)
    where both are equal, both branches return the same

Lines are compared without the blanks around them, so that an entry follows its line through the file."""

import os

PATH = os.path.join("test", "mutate.d", "equivalent")


class Judged:
    def __init__(self, root):
        self.reasons, self.lines = {}, {}
        try:
            with open(os.path.join(root, PATH), encoding="utf-8") as f:
                text = f.read()
        except FileNotFoundError:
            return
        number = 1
        for entry in text.split("\n\n"):
            lines = [line for line in entry.split("\n") if line and not line.startswith("#")]
            if len(lines) >= 4 and lines[1].startswith("-") and lines[2].startswith("+"):
                key = (lines[0].strip(), lines[1][1:].strip(), lines[2][1:].strip())
                self.reasons[key], self.lines[key] = " ".join(lines[3:]), number
            elif lines:
                raise SystemExit(f"{PATH}:{number}: an entry has a file, a line with '-', a line with '+', and a reason")
            number += entry.count("\n") + 2

    def why(self, mutant):
        return self.reasons.get(key_of(mutant))

    def stale(self, mutants):
        """`path:line: what` for each entry that is no mutant any more."""
        known = {key_of(mutant) for mutant in mutants}
        return [f"{PATH}:{self.lines[key]}: {key[0]} has no such mutant any more: {key[1]}" for key in self.reasons if key not in known]


def key_of(mutant):
    return (mutant.path, mutant.old_line.strip(), mutant.new_line.strip())
