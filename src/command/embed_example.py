"""Writes files as C texts: embed_example.py NAME=FILE… OUT.c."""

import os
import sys

with open(sys.argv[-1], "w", encoding="ascii") as c:
    c.write("#include \"command/example.h\"\n")
    for name, path in (word.split("=", 1) for word in sys.argv[1:-1]):
        with open(path, "rb") as file:
            text = file.read()
        assert text.isascii() and b"\0" not in text, path
        c.write(f"\n/* Made from deploy/examples/python/{os.path.basename(path)}. */\n")
        c.write("const char %s[] = {%s};\n" % (name, ",".join(map(str, text + b"\0"))))
