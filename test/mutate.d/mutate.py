"""Random mistakes in src/core, one at a time: which of them do the tests find?

    test/mutate --sample 100 --seed 7        a hundred random mutants, two at a time
    test/mutate --sample 20 --file limiter   of one file
    test/mutate --show held.c:120            the mutants of a line, without running them
    test/mutate --run held.c:120             the same, each run

Each mutant is compiled and run against the tests of the core until one fails: first the unit programs, then a few seeds of the simulator, the
unit programs with sanitizers, the short scenarios, all seeds, the recorded traces, and last the long scenarios. The recorded traces check no rule:
they show only that the core decides differently, so the share found without them is printed as well. A mutant whose object file equals the
original's is no mistake, and does not count; nor does one that test/mutate.d/equivalent judges. Survivors are printed with their line.

A test may take ten times the CPU time that it takes with the original. A mutant that takes more does not end, and is counted apart. The result
depends on --seed and the sources alone, not on other work of the machine."""

import argparse
import collections
import concurrent.futures
import hashlib
import json
import os
import random
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "gates.d")]

import equivalent  # noqa: E402
import operators  # noqa: E402
import source  # noqa: E402

CORE = re.compile(r'#include "(?:(?:onceward/)?core/|(?:core_)?bed\.h")')  # the beds include the core
FEW_SEEDS, OUTBOX_SEEDS = 50, 100
LONG = ("flow", "flow-defaults", "outages", "steady-killers")  # scenarios that take seconds
SLOWER, LEAST_S, MEMORY = 10, 5, 4 << 30
WALL_S = 3600  # a test that waits without computing; no test of the core does

FAILS, ENDLESS = "fails", "does not end"
TRACES = "recorded traces"


class Test:
    """A command of a build that is run against each mutant."""

    def __init__(self, build, name, words):
        self.build, self.name, self.words, self.limit_s = build, name, words, LEAST_S

    def run(self, library, limit_s):
        """None: it passes. Else FAILS or ENDLESS."""
        def limits():
            resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 1))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if not self.build.sanitizers:  # sanitizers reserve terabytes
                resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

        env = {**os.environ, "LD_LIBRARY_PATH": library, "TZ": "UTC", "ASAN_OPTIONS": f"hard_rss_limit_mb={MEMORY >> 20}",
               "UBSAN_OPTIONS": "halt_on_error=1"}
        with subprocess.Popen(self.words, env=env, cwd=library, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              preexec_fn=limits) as process:
            timer = threading.Timer(WALL_S, process.kill)
            timer.start()
            _, status, used = os.wait4(process.pid, 0)
            timer.cancel()
            process.returncode = os.waitstatus_to_exitcode(status)
        self.used_s = used.ru_utime + used.ru_stime
        if process.returncode == 0:
            return None
        return ENDLESS if self.used_s >= limit_s else FAILS

    def measure(self):
        """Runs it with the original; False: it fails."""
        passes = self.run(self.build.folder, 3600) is None
        self.limit_s = max(LEAST_S, int(self.used_s * SLOWER) + 1)
        return passes


class Build:
    """A build of its own. The core is a shared library, so a mutant costs one object and one link."""

    def __init__(self, root, folder, name, sanitizers):
        self.root, self.folder, self.sanitizers = root, os.path.join(folder, name), sanitizers
        self.build = os.path.join(root, ".build-mutate", name)
        self.flags = ["-fsanitize=" + sanitizers] if sanitizers else []

    def make(self, targets):
        os.mkdir(self.folder)
        if not os.path.exists(os.path.join(self.build, "build.ninja")):
            how = ["-Doptimization=1", "-Db_lundef=false", "-Db_sanitize=" + self.sanitizers] if self.sanitizers else ["-Doptimization=2"]
            subprocess.run(["meson", "setup", self.build, self.root, "-Dbuildtype=plain", "-Dc_args=-DONCEWARD_FAILPOINTS", *how],
                           check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["ninja", "-C", self.build, "libonceward.a", *targets], check=True, stdout=subprocess.DEVNULL)
        with open(os.path.join(self.build, "compile_commands.json"), encoding="utf-8") as f:
            entries = [entry for entry in json.load(f) if entry["output"].startswith("libonceward.a.p/")]
        self.commands = {os.path.relpath(os.path.join(self.build, entry["file"]), self.root): entry for entry in entries}
        core = {path: os.path.join(self.build, entry["output"]) for path, entry in self.commands.items() if is_core(path)}
        self.objects = core
        members = subprocess.run(["ar", "t", "libonceward.a"], cwd=self.build, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
        rest = [path for path in (os.path.join(self.build, name) for name in members) if path not in core.values()]
        self.shared("rest", self.folder, rest, self.libraries(targets[0]))
        self.link(self.folder, {})
        self.programs = [self.program(target) for target in targets]

    def last_command(self, target):
        done = subprocess.run(["ninja", "-C", self.build, "-t", "commands", target], check=True, stdout=subprocess.PIPE, text=True)
        return shlex.split(done.stdout.strip().splitlines()[-1])

    def libraries(self, target):
        return [word for word in self.last_command(target) if word.startswith("-l") or word.endswith(".so")]

    def program(self, target):
        """The program of a target, linked with the shared libraries."""
        own = [word for word in self.last_command(target) if word.endswith(".o") or "--wrap" in word]
        path = os.path.join(self.folder, os.path.basename(target))
        subprocess.run(["cc", *self.flags, "-o", path, *own, "-L" + self.folder, "-lonceward-core", "-lonceward-rest", "-Wl,-rpath," + self.folder,
                        *self.libraries(target), "-lm", "-pthread"], cwd=self.build, check=True)
        return path

    def shared(self, name, folder, objects, libraries):
        subprocess.run(["cc", *self.flags, "-shared", "-Wl,-Bsymbolic", "-o", os.path.join(folder, f"libonceward-{name}.so"), *objects, *libraries,
                        "-lm"], cwd=self.build, check=True)

    def link(self, folder, replaced):
        self.shared("core", folder, [replaced.get(path, path_o) for path, path_o in self.objects.items()], [])

    def compile(self, path, text, out):
        """The object of a file with this text in `out`, or False where it does not compile. Nothing but the text tells two objects apart."""
        words = shlex.split(self.commands[path]["command"])
        if os.path.basename(words[0]) == "ccache":
            words = words[1:]
        rest, i = [], 1
        while i < len(words):
            if words[i] in ("-MQ", "-MF", "-o", "-c"):
                i += 2
                continue
            if words[i] not in ("-MD", "-Werror"):
                rest.append(words[i])
            i += 1
        done = subprocess.run([words[0], *rest, "-w", "-I" + os.path.join(self.root, os.path.dirname(path)), "-x", "c", "-o", out, "-c", "-"],
                              input=f'#line 1 "{path}"\n{text}', encoding="utf-8", cwd=self.build, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
        return done.returncode == 0

    def mutant(self, folder, mutant):
        """Links the mutant's core into a new folder."""
        os.mkdir(folder)
        out = os.path.join(folder, "mutant.o")
        if not self.compile(mutant.path, mutant.text, out):
            raise RuntimeError(f"{mutant.path}:{mutant.line}: {mutant.what}: compiles only without sanitizers")
        self.link(folder, {mutant.path: out})


class Tree:
    """The builds and their tests."""

    def __init__(self, root, folder, options):
        self.root, self.folder, self.seeds, self.quick, self.no_simulator = root, folder, options.seeds, options.quick, options.units
        self.plain, self.checked = Build(root, folder, "plain", ""), Build(root, folder, "checked", "address,undefined")
        self.originals, self.lock = {}, threading.Lock()

    def make(self):
        units = list(self.units())
        self.plain.make(["test/sim.d/test_sim", *units])
        self.checked.make(units)
        self.tests = self.all_tests()

    def units(self):
        """The unit programs that look at the core; the others cannot see it."""
        for path in source.find(self.root, (os.path.join("test", "unit"),), (".c",)):
            with open(os.path.join(self.root, path), encoding="utf-8") as f:
                if CORE.search(f.read()):
                    yield path[:-2]

    def all_tests(self):
        """The tests in the order in which they run, the slowest last."""
        sim, *programs = self.plain.programs
        names = subprocess.run([sim, "--measured", "list"], env={**os.environ, "LD_LIBRARY_PATH": self.plain.folder}, check=True,
                               stdout=subprocess.PIPE, text=True).stdout.split()
        few = min(FEW_SEEDS, self.seeds)

        def simulator(name, *words):
            return Test(self.plain, name, [sim, *words])

        def scenarios(wanted):
            return [simulator(f"scenario {name}", "--measured", name) for name in names if wanted(name)]

        plain = [Test(self.plain, os.path.basename(program), [program]) for program in programs]
        checked = [Test(self.checked, os.path.basename(program) + " with sanitizers", [program]) for program in self.checked.programs]
        if self.no_simulator:
            return [*plain, *checked]
        return [*plain,
                simulator(f"seeds to {few}", "--no-shrink", "--seeds", f"1..{few}"),
                *checked,
                *scenarios(lambda name: name not in LONG),
                *([simulator(f"seeds to {self.seeds}", "--no-shrink", "--seeds", f"{few + 1}..{self.seeds}")] if self.seeds > few else []),
                simulator("outbox seeds", "--outbox", "--seeds", f"1..{OUTBOX_SEEDS}"),
                simulator(TRACES, "--traces", os.path.join(self.root, "test", "sim.d", "traces")),
                *([] if self.quick else scenarios(lambda name: name in LONG))]

    def original(self, path):
        """The digest of the object of a file as it is, compiled once."""
        with self.lock:
            if path not in self.originals:
                out = os.path.join(self.folder, "original.o")
                if not self.plain.compile(path, read(self.root, path), out):
                    raise RuntimeError(f"{path} does not compile")
                self.originals[path] = digest(out)
            return self.originals[path]


def is_core(path):
    return path.startswith(os.path.join("src", "core") + os.sep)


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as f:
        return f.read()


def digest(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).digest()


def all_mutants(root, wanted):
    for path in source.find(root, (os.path.join("src", "core"),), (".c",)):
        if not wanted or wanted in os.path.basename(path):
            yield from operators.mutants(source.File(root, path))


def judge(tree, mutant):
    """(verdict, test): the verdict is FAILS, ENDLESS, "survived", "same" (the object file is the original's) or "invalid" (does not compile)."""
    with tempfile.TemporaryDirectory(prefix="onceward-mutant-") as folder:
        out = os.path.join(folder, "mutant.o")
        if not tree.plain.compile(mutant.path, mutant.text, out):
            return "invalid", None
        if digest(out) == tree.original(mutant.path):
            return "same", None
        tree.plain.link(folder, {mutant.path: out})
        folders = {tree.plain: folder}
        for test in tree.tests:
            if test.build not in folders:
                folders[test.build] = os.path.join(folder, "checked")
                test.build.mutant(folders[test.build], mutant)
            verdict = test.run(folders[test.build], test.limit_s)
            if verdict:
                return verdict, test.name
    return "survived", None


def judged(tree, mutants, options):
    """(mutant, verdict, test) of the first mutants that are mistakes, in their order."""
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        waiting, rest, n = collections.deque(), iter(mutants), 0
        while n < options.sample:
            while len(waiting) < min(options.jobs * 2, options.sample - n):
                mutant = next(rest, None)
                if mutant is None:
                    break
                waiting.append((mutant, pool.submit(judge, tree, mutant)))
            if not waiting:
                return
            mutant, future = waiting.popleft()
            verdict, test = future.result()
            if verdict not in ("same", "invalid"):
                n += 1
                yield mutant, verdict, test


def report(options, judgements, began):
    """Prints the judgements as they come, and the sums."""
    counts, by, n = collections.Counter(), collections.Counter(), 0
    for mutant, verdict, test in judgements:
        n += 1
        if verdict == "survived" and options.equivalent.why(mutant):
            verdict = "equivalent"
        counts[verdict] += 1
        by[test] += test is not None
        if verdict in ("survived", "equivalent"):
            print(f"{n:5} {mutant.path}:{mutant.line}: {verdict}: {mutant.what}\n{mutant.diff()}", flush=True)
        elif options.verbose:
            print(f"{n:5} {mutant.path}:{mutant.line}: {verdict}, {test}: {mutant.what}", flush=True)
    for test, times in by.most_common():
        if test:
            print(f"{times:6} found by {test}")
    found, mistakes = counts[FAILS] + counts[ENDLESS], n - counts["equivalent"]
    print(f"{found} of {mistakes} mistakes found ({100 * found / max(mistakes, 1):.1f} %; without the traces "
          f"{100 * (found - by[TRACES]) / max(mistakes, 1):.1f} %; {counts[ENDLESS]} of them do not end), {counts['survived']} survived; {counts['equivalent']} more are judged equivalent; seed {options.seed}, {time.monotonic() - began:.0f} s, "
          f"{sum(os.times()[:4]):.0f} s of CPU time")


def select(everything, place):
    name, line = place.rsplit(":", 1)
    return [mutant for mutant in everything if mutant.path.endswith(name) and mutant.line == int(line)]


def main():
    parser = argparse.ArgumentParser(prog="test/mutate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help=argparse.SUPPRESS)
    parser.add_argument("--sample", type=int, default=50, metavar="N", help="how many mutants (50)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="which ones (1)")
    parser.add_argument("--file", metavar="PART", help="only of files whose name contains PART")
    parser.add_argument("--seeds", type=int, default=500, metavar="N", help="seeds of the simulator for each (500)")
    parser.add_argument("--quick", action="store_true", help="without the scenarios that take seconds: for a first look")
    parser.add_argument("--units", action="store_true", help="without the simulator, for work on a unit test")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="at once (the number of processors)")
    parser.add_argument("--verbose", action="store_true", help="print the mistakes that were found, too")
    parser.add_argument("--show", metavar="FILE:LINE", help="print the mutants of a line and run nothing")
    parser.add_argument("--run", metavar="FILE:LINE", help="run the mutants of a line")
    options = parser.parse_args()
    root = os.path.realpath(options.root)
    options.equivalent = equivalent.Judged(root)
    everything = list(all_mutants(root, options.file))
    if options.show:
        for mutant in select(everything, options.show):
            print(f"{mutant.path}:{mutant.line}: {mutant.what}\n{mutant.diff()}")
        return 0
    if options.run:
        everything, options.sample = select(everything, options.run), sys.maxsize
    else:
        random.Random(options.seed).shuffle(everything)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="onceward-mutate-") as folder:
        tree = Tree(root, folder, options)
        tree.make()
        for test in tree.tests:
            if not test.measure():
                print(f"The sources as they are fail: {test.name}")
                return 2
        print(f"{len(everything)} mutants of {options.file or 'all files'}; all {len(tree.tests)} tests take "
              f"{sum(test.used_s for test in tree.tests):.1f} s of CPU time", flush=True)
        report(options, judged(tree, everything, options), began)
    return 0


if __name__ == "__main__":
    sys.exit(main())
