"""Writes a file as a C text: embed_example.py FILE OUT.c."""

import sys

with open(sys.argv[1], "rb") as file, open(sys.argv[2], "w", encoding="ascii") as c:
    text = file.read()
    assert text.isascii() and b"\0" not in text, sys.argv[1]
    c.write("/* Made from deploy/examples/python/batch.py. */\n#include \"command/example.h\"\n\n")
    c.write("const char example_application[] = {%s};\n" % ",".join(map(str, text + b"\0")))
