"""The tree as the gates see it: its C files, and what stands in them without comments and texts. Nothing is built or preprocessed: the
files are formatted, so that a function begins at the start of a line."""

import os
import re

COMMENT_OR_TEXT = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:<([^>\n]+)>|"([^"\n]+)")', re.M)
FUNCTION = re.compile(r"^(?!#)((?:[A-Za-z_][\w \t*]*?[\s*])?)([A-Za-z_]\w*)\(([^;{}]*?)\)\s*\n\{", re.M)
WORD = re.compile(r"\b[A-Za-z_]\w*")


class File:
    def __init__(self, root, path):
        self.path = path  # from the root of the tree
        with open(os.path.join(root, path), encoding="utf-8") as f:
            self.text = f.read()
        self.code = COMMENT_OR_TEXT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), self.text)

    @property
    def folder(self):
        """The layer that it belongs to: the folder below src or include/onceward. What lies beside the folders is named after itself."""
        inner = re.sub(r"^(src|include/onceward)/", "", self.path)
        return inner.split("/")[0] if "/" in inner else inner.rsplit(".", 1)[0]

    def includes(self):
        """(line, name, whether it stands in angle brackets)"""
        for m in INCLUDE.finditer(re.sub(r"/\*.*?\*/", lambda c: re.sub(r"[^\n]", " ", c[0]), self.text, flags=re.S)):
            yield self.line_of(m.start()), m[1] or m[2], m[1] is not None

    def functions(self):
        """The functions that are defined here: name to whether it is static."""
        return {m[2]: "static" in m[1].split() for m in FUNCTION.finditer(self.code)}

    def words(self):
        return set(WORD.findall(self.code))

    def calls(self, names):
        """(line, name) of each call of one of the names."""
        for m in re.finditer(r"(?<![\w.>])(" + "|".join(names) + r")\s*\(", self.code):
            yield self.line_of(m.start()), m[1]

    def line_of(self, at):
        return self.text.count("\n", 0, at) + 1


def find(root, folders, endings):
    """The paths of files in these folders, sorted."""
    found = []
    for folder in folders:
        for path, inner, names in os.walk(os.path.join(root, folder)):
            inner[:] = [n for n in inner if not n.startswith(".") and n != "node_modules"]
            found += [os.path.relpath(os.path.join(path, n), root) for n in names if n.endswith(endings)]
    return sorted(found)


def program(root):
    """The files of the program."""
    return [File(root, path) for path in find(root, ("src", "include"), (".c", ".h", ".def"))]
