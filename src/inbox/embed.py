"""Writes the files of sql/ as a C table: embed.py OUT.c OUT.d SQL_FOLDER [MORE_OF_THE_SAME].

A line `-- @plan NAME` becomes the settings of PLANS: functions that are called for each batch keep to index scans, however old the statistics.

A line `-- @part NAME` becomes the text of queries/NAME.part, a condition that several queries share.

The dependency file names the folders too, so that an added or removed file makes the program be built again."""

import glob
import os
import re
import sys

INDEX = ("enable_seqscan = off", "enable_bitmapscan = off", "jit = off", "plan_cache_mode = force_generic_plan")
PLANS = {
    "index": INDEX,
    "nested_loops": (*INDEX, "enable_hashjoin = off", "enable_mergejoin = off", "enable_material = off", "enable_nestloop = on", "enable_indexscan = on"),
}


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


def part(match, roots):
    (path,) = (p for root in roots for p in glob.glob(os.path.join(root, "queries", match[1] + ".part")))
    with open(path, encoding="utf-8", newline="\n") as f:
        return f.read().rstrip("\n")


def planned(text):
    return re.sub(r"^-- @plan (\w+)$", lambda m: "\n".join(f"SET {setting}" for setting in PLANS[m[1]]), text, flags=re.M)


def expanded(text, roots):
    return planned(re.sub(r"^-- @part (\w+)$", lambda m: part(m, roots), text, flags=re.M))


def files(root):
    """Paths by their names in the folder: the names order them, and a later folder may replace a file."""
    return {os.path.relpath(path, root).replace(os.sep, "/"): path
            for part in ("", "functions", "queries") for path in glob.glob(os.path.join(root, part, "*.sql"))}


def main(out, depfile, *roots):
    named = {}
    for root in roots:
        named.update(files(root))
    folders = [os.path.join(root, part) for root in roots for part in ("", "functions", "queries")
               if os.path.isdir(os.path.join(root, part))]
    with open(out, "w", encoding="ascii") as c:
        c.write("/* Made from sql/ by embed.py. */\n\n#include \"inbox/sql.h\"\n\nconst struct sql_file sql_files[] = {\n")
        for name, path in sorted(named.items()):
            with open(path, encoding="utf-8", newline="\n") as sql:
                lines = expanded(sql.read(), roots).splitlines(keepends=True)
            assert not any("\0" in line for line in lines), path
            c.write("    {%s,\n" % quoted(name))
            c.writelines("     %s\n" % quoted(line) for line in lines)
            c.write("     \"\"},\n")
        c.write("};\n\nconst size_t n_sql_files = %d;\n" % len(named))
    parts = sorted(path for root in roots for path in glob.glob(os.path.join(root, "queries", "*.part")))
    with open(depfile, "w", encoding="utf-8") as d:
        d.write("%s: %s\n" % (out, " ".join(p.replace(" ", "\\ ") for p in folders + parts + sorted(named.values()))))


if __name__ == "__main__":
    main(*sys.argv[1:])
