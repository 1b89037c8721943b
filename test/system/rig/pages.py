"""The pages of the documentation, and the parts of them that tests compare."""

import os
import re
import subprocess
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def all_pages():
    """Their paths below the root."""
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if not listed.returncode:
        found = [p for p in listed.stdout.decode().split("\n") if p and os.path.exists(os.path.join(ROOT, p))]
    else:  # no checkout: an archive of it
        found = [os.path.relpath(os.path.join(folder, name), ROOT) for folder, folders, names in os.walk(ROOT) for name in names
                 if name.endswith(".md") and "node_modules" not in folder and "/.build" not in folder]
    assert "README.md" in found
    return sorted(found)


def wrap(text):
    """A paragraph in lines of at most 118 columns; code between backticks stays on one line."""
    kept = re.sub(r"`[^`]*`", lambda m: m[0].replace(" ", "\0"), text)
    return "\n".join(textwrap.wrap(kept, 118, break_on_hyphens=False, break_long_words=False)).replace("\0", " ")


def path(page):
    return os.path.join(ROOT, page)


def read(page):
    with open(path(page), encoding="utf-8") as f:
        return f.read()


def part(page, marker):
    """The text between its markers."""
    found = re.search(rf"<!-- {marker} -->\n(.*?)<!-- /{marker} -->", read(page), re.S)
    assert found, f"{page} has no part {marker}"
    return found.group(1)


def put(page, marker, text):
    old = part(page, marker)
    begin, end = f"<!-- {marker} -->\n", f"<!-- /{marker} -->"
    with open(path(page), "r+", encoding="utf-8") as f:
        whole = f.read().replace(begin + old + end, begin + text + end)
        f.seek(0)
        f.write(whole)
        f.truncate()


def code(page, marker):
    """The block of code that follows a marker."""
    found = re.search(rf"<!-- {re.escape(marker)} -->\n```\w*\n(.*?)```", read(page), re.S)
    assert found, f"{page} has no code {marker}"
    return found.group(1)


def anchors(page):
    """The names of its headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", read(page), flags=re.S)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.M)}
