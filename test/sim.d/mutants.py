"""Deliberate mistakes in the core, each of which the simulator must catch: test/sim --mutants.

A mutant is a file test/sim.d/mutants/NAME.patch. Its first line names the mistake. The rest is a patch without line numbers: `--- FILE`, and
for each changed place `@@` with the lines that stand there (' ' stays, '-' goes) and those that replace them ('+'). The old lines must stand
in FILE exactly once.

    mutants.py run [NAME…]          builds and runs each mutant (--jobs N at once)
    mutants.py build NAME           builds one and prints the path of its program
    mutants.py save NAME WHAT       writes the changes that are not staged (git diff) as a mutant, and undoes them
    mutants.py list                 the names, each with its mistake
"""

import argparse
import concurrent.futures
import difflib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys

FOLDER = os.path.join("test", "sim.d", "mutants")
ENDS_S = 600  # a mutant may also be caught because it does not end


class Stale(Exception):
    """A patch that does not fit the sources: its message is `path:line: what`."""


class Mutant:
    def __init__(self, root, name):
        self.root, self.name, self.changed = root, name, None
        self.path = os.path.join(FOLDER, name + ".patch")
        with open(os.path.join(root, self.path), encoding="utf-8") as f:
            lines = f.read().split("\n")
        self.what = lines[0]
        self.places = []  # (line of the patch, file, old lines, new lines)
        file = None
        for number, line in enumerate(lines[1:], 2):
            if line.startswith("--- "):
                file = line[4:]
            elif line.startswith("@@") and file:
                self.places.append((number, file, [], []))
            elif line[:1] in ("-", "+", " ") and line and self.places:
                if line[0] != "+":
                    self.places[-1][2].append(line[1:])
                if line[0] != "-":
                    self.places[-1][3].append(line[1:])
            elif line:
                raise Stale(f"{self.path}:{number}: neither '--- FILE', '@@', nor a line that begins with ' ', '-' or '+'")
        if not self.what or not self.places:
            raise Stale(f"{self.path}:1: a mutant has a first line that names the mistake, and at least one place")

    def texts(self):
        """The changed files with their mutated texts, as the sources were at the first call."""
        if self.changed is None:
            self.changed = self.apply()
        return self.changed

    def apply(self):
        changed = {}
        for number, file, old, new in self.places:
            if not (file.startswith("src/") and file.endswith(".c")):
                raise Stale(f"{self.path}:{number}: {file} is no src/….c: a mistake in a header would compile everything again")
            if file not in changed:
                try:
                    with open(os.path.join(self.root, file), encoding="utf-8") as f:
                        changed[file] = f.read().split("\n")
                except OSError:
                    raise Stale(f"{self.path}:{number}: there is no {file}") from None
            lines = changed[file]
            at = [i for i in range(len(lines)) if lines[i:i + len(old)] == old]
            if len(at) == 1 and old:
                lines[at[0]:at[0] + len(old)] = new
                continue
            raise Stale(f"{self.path}:{number}: " + (f"its lines stand in {file} {len(at)} times: add the lines around them, with a blank in front" if at
                                                     else f"its lines do not stand in {file}{nearest(old, lines)}"))
        return {file: "\n".join(lines) for file, lines in changed.items()}


def nearest(old, lines):
    """Where the sources come closest to the lines of a place that are gone."""
    best, at = 0.0, 0
    for wanted in old:
        for i, line in enumerate(lines):
            if wanted.strip() and line.strip() and best < 1:
                ratio = difflib.SequenceMatcher(None, wanted, line).real_quick_ratio()
                if ratio > best and ratio > 0.6:
                    ratio = difflib.SequenceMatcher(None, wanted, line).ratio()
                    if ratio > best and wanted not in lines:
                        best, at = ratio, i + 1
    return f"; line {at} looks most like them: {lines[at - 1].strip()}" if best > 0.6 else ""


def names(root):
    return sorted(name[:-6] for name in os.listdir(os.path.join(root, FOLDER)) if name.endswith(".patch"))


HELP = ("Mutants are deliberate mistakes that test/sim must catch. Copy the lines as they stand now into the patch, or make the mistake again in a"
        " clean tree and type: test/sim --save-mutant NAME 'what the mistake does'")


def look(root):
    """`path:line: what` for each mutant that does not apply."""
    wrong = []
    if os.path.isdir(os.path.join(root, FOLDER)):
        for name in names(root):
            try:
                Mutant(root, name).texts()
            except Stale as e:
                wrong.append(str(e))
    return wrong + [HELP] * bool(wrong)


# --- writing one ---

def places_of(old, new):
    """The places of a patch from old to new (lines), each with as many lines around it as make it unique."""
    found = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        before = after = 0
        while True:
            part = old[a - before:b + after]
            if part and any(part) and sum(old[i:i + len(part)] == part for i in range(len(old))) == 1:
                break
            if a > before and (before <= after or b + after == len(old)):
                before += 1
            else:
                after += 1
        found.append((a - before, b + after, c - before, d + after))
    joined = []
    for place in found:
        if joined and place[0] <= joined[-1][1]:
            joined[-1] = (joined[-1][0], place[1], joined[-1][2], place[3])
        else:
            joined.append(place)
    text = []
    for a, b, c, d in joined:
        text.append("@@")
        for line in difflib.ndiff(old[a:b], new[c:d]):
            if line[0] != "?":
                text.append(line[0] + line[2:])
    return text


def write(root, name, what, pairs):
    """pairs: (file, old text, new text)."""
    text = [what, ""]
    for file, old, new in pairs:
        text += [f"--- {file}", *places_of(old.split("\n"), new.split("\n"))]
    os.makedirs(os.path.join(root, FOLDER), exist_ok=True)
    with open(os.path.join(root, FOLDER, name + ".patch"), "w", encoding="utf-8") as f:
        f.write("\n".join(text) + "\n")
    Mutant(root, name).texts()


def save(root, name, what):
    def git(*command):
        return subprocess.run(["git", *command], cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout

    if not re.fullmatch(r"[A-Z][A-Z0-9_]+", name):
        sys.exit("test/sim: a mutant's name has capital letters, digits and _")
    files = git("diff", "--name-only", "--", "src").split()
    if not files:
        sys.exit("test/sim: git diff shows no mistake under src. Stage your own changes (git add), then make the mistake")
    pairs = []
    for file in files:
        with open(os.path.join(root, file), encoding="utf-8") as f:
            pairs.append((file, git("show", f":{file}"), f.read()))
    for file, old, _ in pairs:
        with open(os.path.join(root, file), "w", encoding="utf-8") as f:
            f.write(old)
    write(root, name, what, pairs)
    print(f"{FOLDER}/{name}.patch is written, and {' '.join(files)} as before. Now: test/sim --mutants {name}")


# --- building and running ---

class Build:
    """The simulator's build: a mutant costs the objects of its files and one link."""

    def __init__(self, root, build):
        self.root, self.build = root, build
        with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as f:
            entries = json.load(f)
        self.commands = {os.path.relpath(os.path.join(e["directory"], e["file"]), root): e["command"] for e in entries
                         if e["output"].startswith("libonceward.a.p/")}
        commands = subprocess.run(["ninja", "-C", build, "-t", "commands", "test/sim.d/test_sim"], check=True, stdout=subprocess.PIPE, text=True)
        # Copies, so that the tree may be built again while mutants run.
        self.kept = kept = os.path.join(os.path.abspath(build), "mutants", ".base")
        shutil.rmtree(kept, ignore_errors=True)
        for part in ("include", "src"):
            shutil.copytree(os.path.join(root, part), os.path.join(kept, part),
                            ignore=lambda folder, found: [n for n in found if "." in n and not n.endswith((".h", ".def"))])
        self.link = [self.keep(kept, word) for word in shlex.split(commands.stdout.strip().splitlines()[-1])]

    def keep(self, folder, word):
        if not word.endswith((".o", ".a")):
            return word
        copy = os.path.join(folder, os.path.basename(word))
        if word.endswith(".o"):
            shutil.copy(os.path.join(self.build, word), copy)
            return copy
        members = subprocess.run(["ar", "t", word], cwd=self.build, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
        if os.path.exists(copy):
            os.unlink(copy)
        subprocess.run(["ar", "rcs", copy, *members], cwd=self.build, check=True)  # a thin archive only names its members
        return copy

    def compile(self, mutant, file, text, folder):
        # Always the same path, or ccache compiles again.
        mutated = os.path.join(folder, os.path.basename(file))
        with open(mutated, "w", encoding="utf-8") as f:
            f.write(f'#line 1 "{file}"\n' + text)
        words, rest, i = shlex.split(self.commands[file]), [], 0
        while i < len(words):
            if words[i] in ("-MQ", "-MF", "-o", "-c"):
                i += 1
            elif words[i] not in ("-MD", "-Werror"):
                rest.append(words[i])
            i += 1
        made = mutated[:-2] + ".o"
        folders = [os.path.join(self.kept, part) for part in (os.path.dirname(file), "include", "src")]
        done = subprocess.run([rest[0], *(rest[1:2] if "ccache" in rest[0] else []), *("-I" + one for one in folders),
                               *rest[2 if "ccache" in rest[0] else 1:], "-w", "-o", made, "-c", mutated], cwd=self.build,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise Stale(f"{mutant.path}:1: does not compile: {done.stdout}")
        return made

    def program(self, mutant):
        folder = os.path.join(os.path.abspath(self.build), "mutants", mutant.name)
        os.makedirs(folder, exist_ok=True)
        objects = [self.compile(mutant, file, text, folder) for file, text in mutant.texts().items()]
        program = os.path.join(folder, "test_sim")
        # An object in front of the library takes the place of the library's own.
        link = [word if word != "test/sim.d/test_sim" else program for word in self.link]
        at = next(i for i, word in enumerate(link) if word.endswith("/libonceward.a"))
        while at and link[at - 1].startswith("-Wl,"):
            at -= 1
        subprocess.run([*link[:at], *objects, *link[at:]], cwd=self.build, check=True)
        return program


def judge(build, mutant):
    """(caught, the line that is printed)"""
    try:
        program = build.program(mutant)
        done = subprocess.run([program, "--hunt", *(["--outbox"] if mutant.name.startswith("OUTBOX_") else [])], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", timeout=ENDS_S)
    except Stale as e:
        return False, f"{mutant.name:32} {e}"
    except subprocess.TimeoutExpired:
        return True, f"{mutant.name:32} caught: it does not end within {ENDS_S} s"
    os.unlink(program)
    if done.returncode < 0:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return True, f"{mutant.name:32} caught: it ended the program by signal {-done.returncode} ({signal.Signals(-done.returncode).name}) {last}".rstrip()
    return done.returncode == 1, f"{mutant.name:32} {done.stdout.strip()}"


def find(root, wanted):
    known = names(root)
    by_upper = {name.upper(): name for name in known}
    for name in wanted:
        if name.upper() not in by_upper:
            sys.exit(f"test/sim: there is no mutant {name}")
    return [Mutant(root, by_upper[name.upper()]) for name in wanted] if wanted else [Mutant(root, name) for name in known]


def run(root, build, wanted, jobs):
    n = n_bad = 0
    mutants, build = find(root, wanted), Build(root, build)
    for mutant in mutants:
        mutant.texts()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for caught, line in pool.map(lambda mutant: judge(build, mutant), mutants):
            n += 1
            n_bad += not caught
            print(line, flush=True)
    print(f"{n} mutants, {f'{n_bad} not caught' if n_bad else 'all caught'}")
    return 1 if n_bad else 0


def main():
    parser = argparse.ArgumentParser(prog="mutants.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    parser.add_argument("--build", help="a build folder with the simulator")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("command", choices=["run", "build", "save", "list"])
    parser.add_argument("words", nargs="*")
    options = parser.parse_intermixed_args()
    root = os.path.realpath(options.root)
    if options.command == "save":
        if len(options.words) != 2:
            sys.exit("usage: test/sim --save-mutant NAME 'what the mistake does'")
        return save(root, *options.words)
    if options.command == "list":
        for mutant in find(root, options.words):
            print(f"{mutant.name:32} {mutant.what}")
        return 0
    build = options.build or os.path.join(root, ".build-sim")
    if options.command == "build":
        print(Build(root, build).program(find(root, options.words)[0]))
        return 0
    return run(root, build, options.words, options.jobs)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Stale as e:
        sys.exit(f"{e}\n{HELP}")
