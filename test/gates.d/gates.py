"""The gates: what holds for every file of the tree, and is looked at before anything is built.

Each gate is a function of the tree's root that answers what is wrong, a line each: `path:line: what`. One that needs a tool which is not
here, or is here in another version, raises Skipped."""

import argparse
import collections
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "sim.d"), os.path.join(HERE, "..", "mutate.d")]

import equivalent  # noqa: E402
import mutants  # noqa: E402
import operators  # noqa: E402
import phantoms  # noqa: E402
import prose  # noqa: E402
import source  # noqa: E402

CLANG = "14"  # another version formats otherwise
TESTED = ("src", "include", "test")


class Skipped(Exception):
    pass


def tool(name):
    """Its path, in the version whose judgement the tree follows."""
    for candidate in (f"{name}-{CLANG}", name):
        path = shutil.which(candidate)
        if path and re.search(rf"version {CLANG}\.", subprocess.run([path, "--version"], stdout=subprocess.PIPE, text=True).stdout):
            return path
    raise Skipped(f"{name} {CLANG} is not here")


def at_once(function, items):
    """function of each item, as many at once as there are processors; what they answered, joined."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return [line for lines in pool.map(function, items) for line in lines]


def output(command, root):
    done = subprocess.run(command, cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace")
    return done.returncode, done.stdout


# --- how the files look ---

def gate_format(root):
    """clang-format has nothing to change."""
    clang_format = tool("clang-format")
    files = source.find(root, TESTED, (".c", ".h"))

    def look(some):
        _, text = output([clang_format, "--dry-run", "--Werror", *some], root)
        first = {}
        for path, line in re.findall(r"^(\S+?):(\d+):", text, re.M):
            first.setdefault(path, line)
        return [f"{path}:{line}: not formatted: clang-format -i {path}" for path, line in first.items()]

    return at_once(look, [files[i:i + 40] for i in range(0, len(files), 40)])


# --- which file may know which ---

BELOW = {
    "base": "",
    "core": "base",
    "config": "base core",
    "broker": "base core config",
    "inbox": "base core config",
    "forward": "base core config",
    "sidecar": "base core config broker inbox forward",
    "command": "base core config broker inbox forward sidecar",
    "main": "base command",
}

# A library's headers, and the folders that may include them.
LIBRARIES = [
    (r"amqp.*\.h|rabbitmq-c/.*", "broker"),
    (r"libpq.*\.h|postgres.*\.h", "inbox"),
    (r"curl/.*", "forward"),
    (r"jansson.*\.h", "config"),
    (r"openssl/(evp|sha)\.h", "base broker"),
    (r"openssl/.*", "broker"),
]

CORE_SYSTEM = set("assert ctype inttypes limits math stdalign stdarg stdbool stddef stdint stdio stdlib string strings time".split())
CORE_BASE_NOT = set("clock job lock process random wait".split())


def target_of(f, name):
    """The folder that an include in quotes leads to."""
    if name.startswith("onceward/"):
        inner = name[len("onceward/"):]
    elif "/" in name:
        inner = name
    else:
        return f.folder
    return inner.split("/")[0] if "/" in inner else inner.rsplit(".", 1)[0]


def gate_direction(root):
    """base ← core ← config, adapters ← sidecar ← command ← main; a library's header is included in its own folder only."""
    wrong = []
    for f in source.program(root):
        if f.folder not in BELOW:
            wrong.append(f"{f.path}:1: {f.folder} is no folder of the table BELOW in test/gates.d/gates.py")
            continue
        for line, name, is_system in f.includes():
            if name == "getopt.h" and f.path != "src/command/options.c":
                wrong.append(f"{f.path}:{line}: options are rows of the command's table: src/command/options.h")
            if not is_system:
                to = target_of(f, name)
                if to != f.folder and to not in BELOW[f.folder].split():
                    wrong.append(f"{f.path}:{line}: {f.folder} must not know {to} ({name})")
                continue
            for pattern, folders in LIBRARIES:
                if re.fullmatch(pattern, name):
                    if f.folder not in folders.split():
                        wrong.append(f"{f.path}:{line}: <{name}> is for {folders.replace(' ', ' and ')} only")
                    break
    return wrong


CORE_CALLS = ("printf fprintf vprintf fputs puts putchar fopen fclose fread fwrite open close read write poll select socket connect send recv "
              "time gettimeofday clock clock_gettime getenv setenv exit abort pthread_create pthread_mutex_lock usleep sleep nanosleep "
              "log_begin log_end clock_ms clock_us random_bytes").split()


def gate_core(root):
    """src/core includes core, base and the language's own headers; it does no I/O and has no clock."""
    wrong = []
    for f in source.program(root):
        if f.folder != "core":
            continue
        for line, name, is_system in f.includes():
            stem = name.rsplit(".", 1)[0]
            if is_system and stem not in CORE_SYSTEM:
                wrong.append(f"{f.path}:{line}: core is pure, and <{name}> is not")
            if not is_system and stem.startswith("onceward/base/") and stem.rsplit("/", 1)[1] in CORE_BASE_NOT:
                wrong.append(f"{f.path}:{line}: core is pure, and {name} is not")
        wrong += [f"{f.path}:{line}: core is pure, and {name}() is not" for line, name in f.calls(CORE_CALLS)]
    return wrong


def gate_headers(root):
    """Each header compiles by itself."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or tool("clang")
    _, flags = output(["pkg-config", "--cflags", "libpq", "libcurl", "librabbitmq", "jansson"], root)
    command = [compiler, "-x", "c", "-std=gnu17", "-fsyntax-only", "-Wall", "-Werror", "-D_GNU_SOURCE", "-Iinclude", "-Isrc", *flags.split(), "-"]

    def look(path):
        done = subprocess.run(command, cwd=root, input=f'#include "{os.path.join(root, path)}"\n', stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        error = re.search(r"^.*?:(\d+):\d+: (?:fatal )?error: (.*)$", done.stdout, re.M)
        return [] if not done.returncode else [f"{path}:{error[1]}: alone: {error[2]}" if error else f"{path}:1: {done.stdout.strip()}"]

    return at_once(look, source.find(root, ("src", "include"), (".h",)))


BANNED = {
    "sprintf": "snprintf", "vsprintf": "vsnprintf", "strcpy": "memcpy, or a buf", "strcat": "a buf", "strncpy": "memcpy", "strncat": "a buf",
    "strtok": "strspn and strcspn", "gets": "getline", "atoi": "strtol", "atol": "strtol", "atoll": "strtoll", "atof": "strtod",
    "system": "nothing", "popen": "nothing", "alloca": "the heap", "tmpnam": "mkstemp", "mktemp": "mkstemp",
}


def gate_banned(root):
    """No function that invites a mistake."""
    return [f"{f.path}:{line}: {name}() is banned; instead: {BANNED[name]}"
            for f in source.program(root) for line, name in f.calls(BANNED)]


# --- who calls whom ---

def circles(edges):
    """The strongly connected components of more than one file (Tarjan)."""
    number, low, stack, found = {}, {}, [], []

    def visit(v):
        number[v] = low[v] = len(number)
        stack.append(v)
        for w in sorted(edges.get(v, ())):
            if w not in number:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in stack:
                low[v] = min(low[v], number[w])
        if low[v] == number[v]:
            one = []
            while not one or one[-1] != v:
                one.append(stack.pop())
            if len(one) > 1:
                found.append(sorted(one))

    for v in sorted(edges):
        if v not in number:
            visit(v)
    return found


def calls_between(files):
    """Of each file: the others of its folder whose functions it names, and by which."""
    owner = {name: f.path for f in files for name, is_static in f.functions().items() if not is_static}
    edges = collections.defaultdict(dict)
    for f in files:
        own = f.functions()
        for word in f.words():
            if owner.get(word, f.path) != f.path and word not in own:
                edges[f.path].setdefault(owner[word], set()).add(word)
    return edges


def gate_circles(root):
    """Between the files of one folder calls go one way."""
    folders = collections.defaultdict(list)
    for f in source.program(root):
        if f.path.endswith(".c"):
            folders[os.path.dirname(f.path)].append(f)
    wrong = []
    for folder, files in sorted(folders.items()):
        edges = calls_between(files)
        for circle in circles(edges):
            ways = [f"{os.path.basename(a)} → {os.path.basename(b)} ({', '.join(sorted(edges[a][b])[:3])})"
                    for a in circle for b in circle if b in edges[a]]
            wrong.append(f"{circle[0]}:1: a circle of calls: {'; '.join(ways)}")
    return wrong


# --- what clang thinks of it ---

def tidy(root, *options):
    clang_tidy = tool("clang-tidy")
    _, flags = output(["pkg-config", "--cflags", "libpq", "libcurl", "librabbitmq", "jansson"], root)

    def look(path):
        _, text = output([clang_tidy, "--quiet", *options, path, "--", "-std=gnu17", "-D_GNU_SOURCE", '-DONCEWARD_VERSION="x"', "-Iinclude",
                          "-Isrc", *flags.split()], root)
        return [re.sub("^" + re.escape(os.path.realpath(root) + "/"), "", line) for line in text.splitlines()
                if re.search(r": (warning|error): ", line)]

    return sorted(set(at_once(look, source.find(root, ("src",), (".c",)))))


def gate_tidy(root):
    """clang-tidy has nothing to say, by .clang-tidy without the static analyzer."""
    return tidy(root, "--checks=-clang-analyzer-*")


def gate_tidy_whole(root):
    """The same with the analyzer: minutes. Not among those of test/run."""
    return tidy(root)


def gate_phantoms(root):
    """Names in comments and in the pages about the sources exist; no public function has an empty body."""
    return phantoms.look(root)


def gate_mutants(root):
    """Each deliberate mistake of test/sim.d/mutants applies to the sources exactly once."""
    return mutants.look(root)


def gate_equivalent(root):
    """Each mutant that test/mutate.d/equivalent judges is still one that test/mutate makes."""
    judged = equivalent.Judged(root)
    files = {key[0] for key in judged.reasons}
    return judged.stale([mutant for path in sorted(files) if os.path.exists(os.path.join(root, path))
                         for mutant in operators.mutants(source.File(root, path))])


GATES = {"banned": gate_banned, "direction": gate_direction, "core": gate_core, "circles": gate_circles, "equivalent": gate_equivalent,
         "format": gate_format, "headers": gate_headers, "mutants": gate_mutants, "phantoms": gate_phantoms, "prose": prose.gate,
         "tidy": gate_tidy}
SLOW = {"tidy-whole": gate_tidy_whole}


def run(root, names):
    """Answers how many of them found something."""
    n_failed = 0
    for name in names:
        start = time.monotonic()
        try:
            wrong = {**GATES, **SLOW}[name](root)
        except Skipped as e:
            print(f"  gate {name}: not looked at: {e}", flush=True)
            continue
        n_failed += bool(wrong)
        print(f"  gate {name}: {f'{len(wrong)} faults' if wrong else 'good'}, {time.monotonic() - start:.1f} s", flush=True)
        for line in wrong:
            print("    " + line, flush=True)
    return n_failed


def main():
    parser = argparse.ArgumentParser(prog="test/gates", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=".", help=argparse.SUPPRESS)
    parser.add_argument("--list", action="store_true", help="what each looks at")
    parser.add_argument("--self-test", action="store_true", help="each on a tree that it must refuse, and on one that it must not")
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *GATES, *SLOW])
    options = parser.parse_args()
    if options.list:
        for name, gate in {**GATES, **SLOW}.items():
            print(f"{name:12}{gate.__doc__}")
        return 0
    if options.self_test:
        import self_test
        with tempfile.TemporaryDirectory(prefix="onceward-gates-") as folder:
            return self_test.run(sys.modules["__main__"], os.path.realpath(options.root), folder)
    return 1 if run(os.path.realpath(options.root), options.names or list(GATES)) else 0


if __name__ == "__main__":
    sys.exit(main())
