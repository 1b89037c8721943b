"""Random mistakes in src/core, one at a time: which of them do the tests find?

    test/mutate --sample 100 --seed 7        a hundred random mutants, two at a time
    test/mutate --sample 20 --file limiter   of one file
    test/mutate --show held.c:120            the mutants of a line, without running them

Each mutant is compiled and run against the unit programs of the core, seeds of the simulator, and its measured scenarios, in this order,
until one of them fails or does not end. The survivors are printed with their line. A mutant whose object file equals the original's is no
mistake and is not counted. The result depends on --seed and the sources alone."""

import argparse
import concurrent.futures
import difflib
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "gates.d")]

import operators  # noqa: E402
import source  # noqa: E402

# The unit programs that look at the core; the others cannot see it.
UNITS = ("application backoff database fields_json headers identity limiter message outbox outcome pace queue queue_returns returns stats timers token "
         "waiting").split()
UNIT_S, SEEDS_S, MEASURED_S = 30, 60, 400


class Tree:
    """A build of its own: everything is compiled once, the library linked as a shared one, so that a mutant costs one object and one link."""

    def __init__(self, root, folder, seeds):
        self.root, self.folder, self.seeds = root, folder, seeds
        self.build = os.path.join(root, ".build-mutate")
        self.env = {**os.environ, "LD_LIBRARY_PATH": folder}

    def make(self):
        if not os.path.exists(os.path.join(self.build, "build.ninja")):
            subprocess.run(["meson", "setup", self.build, self.root, "-Dbuildtype=plain", "-Doptimization=2", "-Dc_args=-DONCEWARD_FAILPOINTS"],
                           check=True, stdout=subprocess.DEVNULL)
        units = [name for name in UNITS if os.path.exists(os.path.join(self.root, "test", "unit", f"test_{name}.c"))]
        targets = [f"test/unit/test_{name}" for name in units] + ["test/sim.d/test_sim"]
        subprocess.run(["ninja", "-C", self.build, "libonceward.a", *targets], check=True, stdout=subprocess.DEVNULL)
        with open(os.path.join(self.build, "compile_commands.json"), encoding="utf-8") as f:
            self.commands = {}
            for entry in json.load(f):
                if entry["output"].startswith("libonceward.a.p/"):
                    self.commands[os.path.relpath(os.path.join(self.build, entry["file"]), self.root)] = entry
        self.objects = {path: os.path.join(self.build, entry["output"]) for path, entry in self.commands.items()}
        self.libraries = self.links()
        self.link(self.folder, {})
        self.programs = []
        for target in targets:
            self.programs.append(self.program(target))
        self.sim = self.programs.pop()

    def links(self):
        """The libraries behind libonceward.a in the link command of the simulator."""
        commands = subprocess.run(["ninja", "-C", self.build, "-t", "commands", "test/sim.d/test_sim"], check=True, stdout=subprocess.PIPE,
                                  text=True).stdout
        self.sim_link = shlex.split(commands.strip().splitlines()[-1])
        return [word for word in self.sim_link if word.startswith("-l") or word.endswith(".so")]

    def program(self, target):
        """The program of a target, linked with the shared library."""
        last = subprocess.run(["ninja", "-C", self.build, "-t", "commands", target], check=True, stdout=subprocess.PIPE,
                              text=True).stdout.strip().splitlines()[-1]
        own = [word for word in shlex.split(last) if word.endswith(".o")]
        path = os.path.join(self.folder, os.path.basename(target))
        wrap = [word for word in shlex.split(last) if "--wrap" in word]
        libraries = [word for word in shlex.split(last) if word.startswith("-l") or word.endswith(".so")]
        subprocess.run(["cc", "-o", path, *own, "-L" + self.folder, "-lonceward", *wrap, *libraries, "-lm", "-pthread"], cwd=self.build, check=True)
        return path

    def link(self, folder, replaced):
        objects = [replaced.get(path, path_o) for path, path_o in self.objects.items()]
        made = [os.path.join(self.build, "libonceward.a.p", "meson-generated_.._sql_table.c.o")]
        made = [path for path in made if path not in objects and os.path.exists(path)]
        subprocess.run(["cc", "-shared", "-Wl,-Bsymbolic", "-o", os.path.join(folder, "libonceward.so"), *objects, *made, *self.libraries, "-lm"],
                       cwd=self.build, check=True, stderr=subprocess.DEVNULL)

    def compile(self, path, text, folder):
        """The object of a mutated file, or None where it does not compile."""
        entry = self.commands[path]
        mutated = os.path.join(folder, "mutant.c")
        with open(mutated, "w", encoding="utf-8") as f:
            f.write(f'#line 1 "{os.path.basename(path)}"\n' + text)
        words = shlex.split(entry["command"])
        if os.path.basename(words[0]) == "ccache":
            words = words[1:]
        out = os.path.join(folder, "mutant.o")
        skip = {"-MD", "-Werror"}
        drop = {"-MQ", "-MF", "-o", "-c"}
        rest = []
        i = 1
        while i < len(words):
            if words[i] in drop:
                i += 2
                continue
            if words[i] not in skip:
                rest.append(words[i])
            i += 1
        done = subprocess.run([words[0], *rest, "-w", "-I" + os.path.join(self.root, os.path.dirname(path)), "-o", out, "-c", mutated],
                              cwd=self.build, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return out if done.returncode == 0 else None

    def found_by(self, folder):
        """The name of the first test that fails, or None."""
        env = {**os.environ, "LD_LIBRARY_PATH": folder}

        def fails(command, seconds):
            try:
                return subprocess.run(command, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL, timeout=seconds).returncode != 0
            except subprocess.TimeoutExpired:
                return True

        for program in self.programs:
            if fails([program], UNIT_S):
                return os.path.basename(program)
        if fails([self.sim, "--seeds", f"1..{self.seeds}"], SEEDS_S):
            return "seeds"
        return "measured" if self.misses_a_figure(env, folder) else None

    def misses_a_figure(self, env, folder):
        """Runs the measured scenarios until one is not ok: the rest would say nothing new, and takes half a minute."""
        with subprocess.Popen(["stdbuf", "-oL", self.sim, "--measured"], env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True) as process:
            timer = threading.Timer(MEASURED_S, process.kill)
            timer.start()
            try:
                if any(line.startswith("BAD") for line in process.stdout):
                    process.kill()
                    return True
            finally:
                timer.cancel()
        return process.returncode != 0


def all_mutants(root, wanted):
    for path in source.find(root, (os.path.join("src", "core"),), (".c",)):
        if wanted and wanted not in os.path.basename(path):
            continue
        f = source.File(root, path)
        for line, what, text in operators.mutants(f.text, f.code):
            yield path, line, what, text


def changed_line(old, new):
    for line in difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0):
        if line.startswith("+") and not line.startswith("+++"):
            return line[1:].strip()
    return ""


def judge(tree, mutant):
    """(verdict, mutant): "found by …", "survived", "same" (the object file is the original's) or "invalid" (does not compile)."""
    path, _, _, text = mutant
    with tempfile.TemporaryDirectory(prefix="onceward-mutant-") as folder:
        out = tree.compile(path, text, folder)
        if not out:
            return "invalid", mutant
        # In the same place, so that nothing but the code can differ.
        shutil.copy(out, out + ".new")
        with open(os.path.join(tree.root, path), encoding="utf-8") as f:
            original = tree.compile(path, f.read(), folder)
        with open(original, "rb") as a, open(out + ".new", "rb") as b:
            if a.read() == b.read():
                return "same", mutant
        tree.link(folder, {path: out + ".new"})
        found = tree.found_by(folder)
    return f"found by {found}" if found else "survived", mutant


def main():
    parser = argparse.ArgumentParser(prog="test/mutate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help=argparse.SUPPRESS)
    parser.add_argument("--sample", type=int, default=50, metavar="N", help="how many mutants (50)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="which ones (1)")
    parser.add_argument("--file", metavar="PART", help="only of files whose name contains PART")
    parser.add_argument("--seeds", type=int, default=500, metavar="N", help="seeds of the simulator for each (500)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="at once (the number of processors)")
    parser.add_argument("--show", metavar="FILE:LINE", help="print the mutants of a line and run nothing")
    options = parser.parse_args()
    root = os.path.realpath(options.root)
    everything = list(all_mutants(root, options.file))
    if options.show:
        name, line = options.show.rsplit(":", 1)
        for path, at, what, text in everything:
            if path.endswith(name) and at == int(line):
                with open(os.path.join(root, path), encoding="utf-8") as f:
                    print(f"{path}:{at}: {what}: {changed_line(f.read(), text)}")
        return 0
    random.Random(options.seed).shuffle(everything)
    began = time.monotonic()
    counts = {"found": 0, "survived": 0}
    by = {}
    with tempfile.TemporaryDirectory(prefix="onceward-mutate-") as folder:
        tree = Tree(root, folder, options.seeds)
        tree.make()
        if tree.found_by(folder):
            print(f"The sources as they are fail: {tree.found_by(folder)}")
            return 2
        print(f"{len(everything)} mutants of {'all files' if not options.file else options.file}; a sample of {options.sample}", flush=True)
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            waiting, rest, done = set(), iter(everything), 0
            while done < options.sample:
                while len(waiting) < options.jobs and done + len(waiting) < options.sample:
                    mutant = next(rest, None)
                    if mutant is None:
                        break
                    waiting.add(pool.submit(judge, tree, mutant))
                if not waiting:
                    break
                ended, waiting = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
                for future in ended:
                    verdict, (path, line, what, text) = future.result()
                    if verdict in ("same", "invalid"):
                        continue
                    done += 1
                    counts["survived" if verdict == "survived" else "found"] += 1
                    by[verdict] = by.get(verdict, 0) + 1
                    if verdict == "survived":
                        with open(os.path.join(root, path), encoding="utf-8") as f:
                            print(f"{path}:{line}: survived: {what}: {changed_line(f.read(), text)}", flush=True)
    total = counts["found"] + counts["survived"]
    for verdict, n in sorted(by.items(), key=lambda item: -item[1]):
        print(f"{n:6} {verdict}")
    print(f"{counts['found']} of {total} found ({100 * counts['found'] / max(total, 1):.0f} %), seed {options.seed}, {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
