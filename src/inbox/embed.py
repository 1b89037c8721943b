"""Writes the files of sql/ as a C table: embed.py OUT.c OUT.d SQL_FOLDER.

The dependency file names the folders too, so that an added or removed file makes the program be built again."""

import os
import sys


def quoted(line):
    out = []
    for byte in line.encode("utf-8"):
        char = chr(byte)
        if char in '"\\':
            out.append("\\" + char)
        elif char == "\n":
            out.append("\\n")
        elif char == "?" or not 0x20 <= byte < 0x7F:
            out.append("\\%03o" % byte)  # three octal digits end by themselves; "?" could be part of a trigraph
        else:
            out.append(char)
    return '"' + "".join(out) + '"'


def main(out, depfile, folder):
    folders = [folder, os.path.join(folder, "functions"), os.path.join(folder, "queries")]
    paths = sorted(os.path.join(f, name) for f in folders for name in os.listdir(f) if name.endswith(".sql"))
    with open(out, "w", encoding="ascii") as c:
        c.write("/* Made from sql/ by embed.py. */\n\n#include \"inbox/sql.h\"\n\nconst struct sql_file sql_files[] = {\n")
        for path in paths:
            with open(path, encoding="utf-8", newline="\n") as sql:
                lines = sql.read().splitlines(keepends=True)
            assert not any("\0" in line for line in lines), path
            c.write("    {%s,\n" % quoted(os.path.relpath(path, folder).replace(os.sep, "/")))
            c.writelines("     %s\n" % quoted(line) for line in lines)
            c.write("     \"\"},\n")
        c.write("};\n\nconst size_t n_sql_files = %d;\n" % len(paths))
    with open(depfile, "w", encoding="utf-8") as d:
        d.write("%s: %s\n" % (out, " ".join(p.replace(" ", "\\ ") for p in folders + paths)))


main(*sys.argv[1:])
