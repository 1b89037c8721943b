"""Names in prose that nothing has: a function, layer or field that was renamed leaves its old name in comments, where no compiler sees it."""

import os
import re

import source

NAME = re.compile(r"\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b")
NAMED_CALL = re.compile(r"(?<![\w.])([a-z][a-z0-9]*)\(\)")  # of one word: without the parentheses it may be any word
CALL = re.compile(r"\b([a-z][a-z0-9]*)\s*\(")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
SQL_COMMENT = re.compile(r"--[^\n]*")
QUOTED = re.compile(r"`[^`\n]+`")

# Pages about the sources, whose quoted names are looked up. The other pages name things of other programs.
PAGES = ("src/README.md", "sql/README.md", "deploy/guides/application.md")
EXAMPLES = {"snake_case", "message_20260131", "message_20260131_gone"}  # of a form, not of a thing


def parts(path, text):
    """The pieces of prose of a file as (offset, text), and its code."""
    if path.endswith(".md"):
        return [(m.start(), m[0]) for m in QUOTED.finditer(text)] if path in PAGES else [], ""
    if path.endswith((".c", ".h", ".def")):
        return [(m.start(), m[0]) for m in COMMENT.finditer(text)], COMMENT.sub(" ", text)
    if path.endswith(".sql"):
        return [(m.start(), m[0]) for m in SQL_COMMENT.finditer(text)], SQL_COMMENT.sub(" ", text)
    return [], text


def look(root):
    """`path:line: what` for each name in prose that stands in no code and in no path, and for each public function that does nothing."""
    known, named, wrong = set(), [], []
    called, named_calls = set(), []
    for path in source.find(root, ("src", "include", "sql", "test", "deploy", "conf"), (".c", ".h", ".def", ".sql", ".part", ".py", ".md", ".json", ".yaml", ".pml", ".build")):
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
            text = f.read()
        prose, code = parts(path, text)
        known.update(NAME.findall(code))
        known.update(NAME.findall(path))
        called.update(CALL.findall(code))
        for at, piece in prose:
            named += [(m[0], path, text.count("\n", 0, at + m.start()) + 1) for m in NAME.finditer(piece)]
            named_calls += [(m[1], path, text.count("\n", 0, at + m.start()) + 1) for m in NAMED_CALL.finditer(piece)]
        if path.endswith(".c") and path.startswith("src/"):
            wrong += [f"{path}:{code.count(chr(10), 0, m.start()) + 1}: the body of {m[1]}() is empty"
                      for m in re.finditer(r"^(?!static)\w[\w \t*]*?[\s*](\w+)\([^;{}]*\)\s*\n\{\s*(?:\(void\)\w+;\s*)*\}", code, re.M)]
    wrong += [f"{path}:{line}: nothing is called {name}" for name, path, line in named if name not in known | EXAMPLES]
    wrong += [f"{path}:{line}: no function is called {name}" for name, path, line in named_calls if name not in called]
    return sorted(wrong)
