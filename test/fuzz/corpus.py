#!/usr/bin/python3
"""Converts a fuzzer's corpus between its text file in the tree and the folder of files that libFuzzer wants.

    corpus.py unpack FILE FOLDER    writes each input of FILE into FOLDER, named after its digest
    corpus.py add FILE PATH…        adds the contents of PATHs to FILE

An input is a line of the text file. Bytes outside printable ASCII, and the backslash, stand as \\xNN; the lines are sorted."""

import hashlib
import os
import re
import sys


def quoted(data):
    return "".join(chr(b) if 0x20 <= b < 0x7F and b != 0x5C else f"\\x{b:02x}" for b in data)


def plain(line):
    return re.sub(rb"\\x([0-9a-f]{2})", lambda m: bytes([int(m[1], 16)]), line.encode("ascii"))


def read(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="ascii") as f:
        return f.read().splitlines()


def unpack(path, folder):
    os.makedirs(folder, exist_ok=True)
    for line in read(path):
        data = plain(line)
        with open(os.path.join(folder, hashlib.sha1(data).hexdigest()), "wb") as f:
            f.write(data)


def add(path, *inputs):
    lines = set(read(path))
    for name in inputs:
        with open(name, "rb") as f:
            lines.add(quoted(f.read()))
    with open(path, "w", encoding="ascii") as f:
        f.writelines(line + "\n" for line in sorted(lines))


if __name__ == "__main__":
    {"unpack": unpack, "add": add}[sys.argv[1]](*sys.argv[2:])
