"""Mutation operators on the text of a C file: each proposes places and the text that replaces them.

The operators are those of the mutation testing literature (relational, logical and arithmetic replacement, constants, negated conditions,
deleted statements), on the sources' own format: one statement a line."""

import re

RELATIONAL = {"<": ["<=", ">="], "<=": ["<", ">"], ">": [">=", "<="], ">=": [">", "<"], "==": ["!="], "!=": ["=="]}
ARITHMETIC = {"+": ["-"], "-": ["+"], "*": ["/"], "/": ["*"], "+=": ["-="], "-=": ["+="], "&&": ["||"], "||": ["&&"], "++": ["--"], "--": ["++"]}

BINARY = re.compile(r"(?<=[\w)\]] )(<=|>=|==|!=|&&|\|\||\+=|-=|<|>|\+|-|\*|/)(?= [\w(!&*-])")
STEP = re.compile(r"(?<=\w)(\+\+|--)(?=[;,)\]])")
NUMBER = re.compile(r"(?<![\w.\"'])(\d+)(?![\w.\"'])")
WORD = re.compile(r"\b(true|false)\b")
CONDITION = re.compile(r"\b(?:if|while) \(")
STATEMENT = re.compile(r"^[ ]{4,}(?!return\b|case\b|default\b|goto\b|break\b|else\b|do\b|struct\b|enum\b|const\b|static\b|assert\b|bool\b|int\b|int64_t\b|size_t\b|"
                       r"uint\w+\b|char\b|double\b|void\b|for\b|if\b|while\b|switch\b|\})[\w>*.\[\]()-]+[^\n{}]*;$", re.M)
JUMP = re.compile(r"^[ ]{4,}(break|continue);$", re.M)
RETURN = re.compile(r"^[ ]{4,}return ([^;\n]+);$", re.M)
ASSERTION = re.compile(r"\b(?:assert|static_assert|_Static_assert) ?\(")
SKIPPED = re.compile(r"^\s*(#|FAILPOINT)")


def closing(code, at):
    """The place behind the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(code)):
        depth += {"(": 1, ")": -1}.get(code[i], 0)
        if depth == 0:
            return i + 1
    return len(code)


def proposals(code):
    """(begin, end, text, what) for each mutant of a file; `code` is the file with comments and texts blanked."""
    for m in BINARY.finditer(code):
        for new in RELATIONAL.get(m[1], []) + ARITHMETIC.get(m[1], []):
            yield m.start(1), m.end(1), new, f"{m[1]} becomes {new}"
    for m in STEP.finditer(code):
        yield m.start(1), m.end(1), ARITHMETIC[m[1]][0], f"{m[1]} becomes {ARITHMETIC[m[1]][0]}"
    for m in NUMBER.finditer(code):
        for new in sorted({str(int(m[1], 8 if m[1].startswith("0") and len(m[1]) > 1 else 10) + 1), "0"} - {m[1]}):
            yield m.start(1), m.end(1), new, f"{m[1]} becomes {new}"
    for m in WORD.finditer(code):
        new = "false" if m[1] == "true" else "true"
        yield m.start(1), m.end(1), new, f"{m[1]} becomes {new}"
    for m in CONDITION.finditer(code):
        begin = m.end() - 1
        end = closing(code, begin)
        yield begin, begin + 1, "(!(", ("negated", end)
    for m in STATEMENT.finditer(code):
        if "(void)" not in m[0]:
            begin = m.start() + len(m[0]) - len(m[0].lstrip())
            yield begin, m.end(), ";", "statement deleted"
    for m in JUMP.finditer(code):
        yield m.start(1), m.end(1), "", f"{m[1]} deleted"
    for m in RETURN.finditer(code):
        if re.search(r"&&|\|\||[<>=!]=|^!|\bis_|\bhas_|\bmay_|\bcan_|\bneeds_", m[1]):
            yield m.start(1), m.end(1), f"!({m[1]})", "returned value negated"


class Mutant:
    def __init__(self, path, line, what, text, old_line, new_line):
        self.path, self.line, self.what, self.text, self.old_line, self.new_line = path, line, what, text, old_line, new_line

    def diff(self):
        return f"      -{self.old_line}\n      +{self.new_line}"


def without_assertions(code):
    """The code, with the assertions blanked: they state invariants, and a wrong one would be found by itself."""
    for m in ASSERTION.finditer(code):
        end = closing(code, m.end() - 1)
        code = code[:m.start()] + re.sub(r"[^\n]", " ", code[m.start():end]) + code[end:]
    return code


def mutants(f):
    """The mutants of a file, without those of preprocessor lines and assertions."""
    text, code = f.text, without_assertions(f.code)
    for begin, end, new, what in proposals(code):
        line_begin = code.rfind("\n", 0, begin) + 1
        line_end = code.find("\n", begin)
        if SKIPPED.search(code[line_begin:line_end]):
            continue
        if isinstance(what, tuple):
            close = what[1]
            mutated, what = text[:begin] + "(!" + text[begin:close] + ")" + text[close:], "condition negated"
        else:
            mutated = text[:begin] + new + text[end:]
        line = text.count("\n", 0, begin)
        yield Mutant(f.path, line + 1, what, mutated, text.split("\n", line + 1)[line], mutated.split("\n", line + 1)[line])
