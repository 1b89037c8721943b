"""What can be checked of the language: src/README.md has the rules."""

import os
import re

import source

FIRST = set("""what who whoever whatever whose those that one it they nobody somebody nothing where""".split())
OWN_LINE = set("""its their his""".split())  # beside a member they are short for its struct; above a function they name nothing
BANNED = re.compile(r"\b(whoever|anew|for ever|ever more|in vain|where was|is told|says so|what is out|what waits|comes back|for good|all the same|"
                    r"at hand)\b", re.I)
ABSENT = re.compile(r"\bdesign(?:\.md| section)\b", re.I)
LINE_MAX, SENTENCE_MAX, AVERAGE_MAX, PARAGRAPH_MAX, CELL_MAX = 120, 35, 25, 5, 20

C_COMMENT = re.compile(r"/\*(.*?)\*/", re.S)
C_TEXT = re.compile(r'"((?:\\.|[^"\\\n])*)"')
SQL_COMMENT = re.compile(r"(?:^[ \t]*--.*\n)+|--[^\n]*", re.M)


def first_word(text):
    m = re.match(r"[\s*/!-]*([A-Za-z']+)", text)
    return m[1].lower() if m else ""


def of_text(text, at, line_of):
    """Faults that hold in a comment and in a page."""
    for m in BANNED.finditer(text):
        yield line_of(at + m.start()), "banned", f"\"{m[1]}\" is a banned phrase"
    for m in ABSENT.finditer(text):
        yield line_of(at + m.start()), "absent", "cites a document that is not in the repository"


def of_comment(text, at, line_of, is_on_own_line):
    if first_word(text) in FIRST or (is_on_own_line and first_word(text) in OWN_LINE):
        yield line_of(at), "first", f"a comment begins with \"{first_word(text)}\": begin with a noun"
    yield from of_text(text, at, line_of)


def of_source(text, comments):
    def line_of(at):
        return text.count("\n", 0, at) + 1

    lines = text.split("\n")
    for m in comments.finditer(text):
        first = line_of(m.start())
        is_on_own_line = not text[text.rfind("\n", 0, m.start()) + 1:m.start()].strip()
        yield from of_comment(m[0], m.start(), line_of, is_on_own_line)
        for number in range(first, first + m[0].rstrip("\n").count("\n") + 1):
            if is_on_own_line and len(lines[number - 1]) > LINE_MAX:
                yield number, "line", f"a line of a comment has {len(lines[number - 1])} characters: {LINE_MAX} at most"


def of_strings(text):
    """Help texts and log sentences: banned phrases only."""
    code = C_COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    for m in C_TEXT.finditer(code):
        for found in BANNED.finditer(m[1]):
            yield text.count("\n", 0, m.start()) + 1, "banned", f"\"{found[1]}\" is a banned phrase"


def plain(line):
    """A page's line without links' targets and code."""
    return re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "code", line))


def of_page(text):
    is_code, paragraph, begin, lengths = False, [], 1, []

    def sentences():
        words = re.split(r"(?<=[.!?:])\s+", " ".join(paragraph))
        for s in words:
            n = len(s.split())
            if n:
                lengths.append(n)
            if n > SENTENCE_MAX:
                yield begin, "sentence", f"a sentence of {n} words: {SENTENCE_MAX} at most: {s[:50]}…"
        text = " ".join(paragraph)
        n = sum(bool(line.strip()) for line in paragraph)
        if n > PARAGRAPH_MAX and text.count("code") < len(text.split()) // 2 and text.count("](") + text.count("[") < 5:
            yield begin, "paragraph", f"a paragraph of {n} lines: {PARAGRAPH_MAX} at most"

    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > LINE_MAX and not line.startswith("!["):
            yield number, "line", f"a line of {len(line)} characters: {LINE_MAX} at most"
        if line.lstrip().startswith("```"):
            is_code = not is_code
        if is_code or line.startswith(("    ", "|", "<!--", "```", "![")):
            yield from sentences()
            paragraph = []
            if not is_code and line.startswith("|"):
                yield from of_text(plain(line), 0, lambda at, number=number: number)
                for cell in plain(line).strip().strip("|").split("|"):
                    n = len(cell.split())
                    if n > CELL_MAX:
                        yield number, "cell", f"a cell of {n} words: {CELL_MAX} at most: {cell.strip()[:50]}…"
            continue
        yield from of_text(plain(line), 0, lambda at, number=number: number)
        if not line.strip() or re.match(r"\s*([-*#]|\d+\.) ", line):
            yield from sentences()
            paragraph, begin = [], number
        if not paragraph:
            begin = number
        paragraph.append(re.sub(r"^\s*([-*#]+|\d+\.) ", "", plain(line)))
    yield from sentences()
    if lengths and sum(lengths) > AVERAGE_MAX * len(lengths):
        yield 1, "average", f"sentences of {sum(lengths) / len(lengths):.0f} words on average: {AVERAGE_MAX} at most"


def faults(root):
    """path: [(line, rule, what)] of the whole tree."""
    found = {}
    for path in source.find(root, ("src", "include", "test"), (".c", ".h", ".def")):
        with open(os.path.join(root, path), encoding="utf-8") as f:
            text = f.read()
        found[path] = list(of_source(text, C_COMMENT)) + (list(of_strings(text)) if not path.startswith("test/") else [])
    for path in source.find(root, ("sql",), (".sql",)):
        with open(os.path.join(root, path), encoding="utf-8") as f:
            found[path] = list(of_source(f.read(), SQL_COMMENT))
    for path in source.find(root, (".",), (".md",)):
        path = os.path.normpath(path)
        with open(os.path.join(root, path), encoding="utf-8") as f:
            found[path] = list(of_page(f.read()))
    return {path: sorted(some) for path, some in found.items() if some}


def gate(root):
    """Comments begin with a noun and have short lines; no banned phrase; pages have short lines and sentences."""
    return [f"{path}:{line}: {what}" for path, some in faults(root).items() for line, _, what in some]
