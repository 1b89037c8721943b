"""Runs the unit test programs and the system tests of a finished build and adds up their cases. Called by test/run.

The last line is always `N passed, N failed`. The status is 1 when anything failed or nothing ran, 130 after an interrupt."""

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import xml.etree.ElementTree

TEST = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(TEST, "system"))

from rig import process  # noqa: E402

QUICK = ("test_rig.py", "test_once.py", "test_config.py")
# For what hangs: on a machine that is busy with something else all takes several times longer.
BUILD_PATIENCE, UNIT_PATIENCE, MODEL_PATIENCE, SYSTEM_PATIENCE, PROGRAM_PATIENCE = 1200, 1200, 1200, 2700, 900
WORKERS_EACH = 5  # a processor
CHAOS = ("--seed", "20", "--minutes", "0.6", "--rate", "16")  # each order is an invoice, too
SKIPPED = 77
PYTEST_NOTHING = 5  # pytest's exit status when it selected no test
AGAIN_AT_MOST = 8
IN_RELEASE = "^(dead_port|sim|sim_measured|sim_traces)$"  # without a sanitizer there are more requests in the first
# Without a sanitizer these take a quarter of the computing time: 43 s instead of 153 s. sim_short runs with one.
NOT_SANITIZED = "^(sim|sim_measured|sim_traces)$"


FAST_PLACE, FAST_PLACE_NEEDS = "/dev/shm", 6 << 30  # bytes; a run has had 1.1 GiB there at most


class Interrupted(Exception):
    """Stops new steps from starting."""


stopping = threading.Event()


class Count:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.unstable = []

    def add(self, passed, failed, skipped=0):
        self.passed += passed
        self.failed += failed
        self.skipped += skipped

    def take(self, other):
        self.add(other.passed, other.failed, other.skipped)
        self.unstable += other.unstable


def say(text):
    print(text, flush=True)


class Part:
    """A part of the run: what it counted, and how long it took. One that runs beside others keeps what it says until somebody shows it, so
    that no two are mixed."""

    def __init__(self, title, work, is_beside=False):
        self.title, self.work, self.is_beside = title, work, is_beside
        self.count, self.told, self.seconds = Count(), [], None

    def say(self, text):
        if self.is_beside:
            self.told.append(text)
        else:
            say(text)

    def add(self, *counts):
        self.count.add(*counts)

    def run(self, options, folder):
        start = time.monotonic()
        self.say(self.title)
        try:
            self.work(self, options, folder)
        except Exception:  # noqa: BLE001 - it counts as failed, and the others go on
            if stopping.is_set():
                return
            self.say(traceback.format_exc())
            self.add(0, 1)
        self.seconds = process.seconds_since(start)

    def show(self):
        if self.told:
            say("\n".join(self.told))
        self.told = []


class Beside:
    """Parts that run one after the other, beside whatever else runs."""

    def __init__(self, parts, options, folder):
        self.parts = parts
        self.thread = threading.Thread(target=lambda: [part.run(options, folder) for part in parts], daemon=True)
        self.thread.start()

    def join(self, seconds=None):
        self.thread.join(seconds)
        for part in self.parts:
            part.show()


def is_wanted(options, name):
    return not options.quick and (not options.only or re.search(options.only, name, re.I))


def called(command, patience, signals=((signal.SIGTERM, 10.0),), **keys):
    """A program's status and what it said; where it does not end in time, that instead."""
    if stopping.is_set():
        raise Interrupted
    child = process.spawn(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, **keys)
    try:
        text = child.communicate(timeout=patience)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        text = f"{' '.join(command)} did not end within {patience} s.\n"
    finally:
        process.reap(child, signals)
    return child.returncode, text


def fast_place():
    """A folder in memory, or None. There a new database costs a third of the computing time that it costs on a disk."""
    try:
        found = os.statvfs(FAST_PLACE)
        with open("/proc/meminfo") as f:
            available = int(re.search(r"^MemAvailable: +(\d+)", f.read(), re.M)[1]) << 10
    except (OSError, TypeError):
        return None
    fits = min(found.f_bavail * found.f_frsize, available) >= FAST_PLACE_NEEDS
    return FAST_PLACE if fits and not found.f_flag & os.ST_NOEXEC and os.access(FAST_PLACE, os.W_OK) else None


# Beside what mostly waits: it takes what computing time the others leave.
POLITELY = ("nice", "-n", "5")


def introspect(build, what):
    done = subprocess.run(["meson", "introspect", what, build], check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    return json.loads(done.stdout)


def unit_tests(build, pattern):
    return [t for t in introspect(build, "--tests") if not pattern or re.search(re.sub(r"\s+or\s+", "|", pattern), t["name"], re.I)]


def builds(part, build, tests):
    """Whether what these tests need could be built."""
    files = {t["id"]: t["filename"][0] for t in introspect(build, "--targets")}
    wanted = sorted({os.path.relpath(files[d], build) for t in tests for d in t["depends"] if d in files})
    status, text = called(["ninja", "-C", build, *wanted], BUILD_PATIENCE, stderr=subprocess.STDOUT) if wanted else (0, "")
    if status:
        part.say(text + "The unit tests do not build.")
        part.add(0, 1)
    return not status


def release_build(options):
    path = os.environ.get("ONCEWARD_RELEASE_BINARY", "")
    return os.path.dirname(path) if path and not options.only else None


def collect(*arguments):
    """The number of system tests that these arguments select, or None where collecting fails. It also compiles their code, once: each worker
    would spend two seconds on it."""
    status, text = called([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", ".", *arguments], PROGRAM_PATIENCE,
                          stderr=subprocess.STDOUT, cwd=os.path.join(TEST, "system"))
    return text.count("::") if status in (0, PYTEST_NOTHING) else None


def count_selected(options):
    """With --only: how many tests run beside each other, and how many alone, so that no server is started for none."""
    chosen = system_arguments(options)[:2]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        options.n_together, options.n_alone = pool.map(lambda mark: collect(*chosen, "-m", mark), ("not alone", "alone"))


def count_left_out(options):
    options.n_left_out = collect("-m", "long and not alone and not deploy") if leaves_out(options) else None


def prepare(part, options, folder):
    """Before all else: some of the programs are used by the system tests."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(count_selected if options.only else count_left_out, options)
        if options.tool != "valgrind":
            build_unit_tests(part, options)


def build_unit_tests(part, options):
    builds(part, options.build, unit_tests(options.build, options.only))
    if release_build(options):
        builds(part, release_build(options), unit_tests(release_build(options), IN_RELEASE))


def run_unit_test(build, test):
    """Its line, its counts and, where it failed, what it said. It writes TAP; one that dies counts as one failure more than it told."""
    environment = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP", ASAN_OPTIONS="detect_leaks=1:exitcode=99",
                       UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1:exitcode=98", **test["env"])
    status, text = called([*POLITELY, *test["cmd"]], UNIT_PATIENCE, (), stderr=subprocess.STDOUT, env=environment, cwd=test["workdir"] or build)
    if status == SKIPPED:
        return None  # it needs a server: the system tests run it
    passed = len(re.findall(r"^\s*ok \d+", text, re.M))
    failed = len(re.findall(r"^\s*not ok \d+", text, re.M))
    if status and not failed:
        failed = 1
    if not status and not passed:
        passed = 1  # a check that is no cmocka program
    return passed, failed, f"  unit {test['name']}: {passed} passed, {failed} failed" + ("\n" + text if failed else "")


def run_unit_tests(part, options, folder):
    tests = [(options.build, test) for test in unit_tests(options.build, options.only)]
    if release_build(options):
        tests = [(build, test) for build, test in tests if not re.search(NOT_SANITIZED, test["name"])]
        tests += [(release_build(options), test) for test in unit_tests(release_build(options), IN_RELEASE)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for result in pool.map(lambda each: run_unit_test(*each), tests):
            if result:
                part.add(*result[:2])
                part.say(result[2])


def add_closing_line(part, text):
    """A program that ends with `N passed, N failed`."""
    closing = re.search(r"^(\d+) passed, (\d+) failed\n*\Z", text, re.M)
    passed, failed = map(int, closing.groups()) if closing else (0, 1)
    part.add(passed, failed)
    return passed, failed


def run_model(part, options, folder):
    """The protocol, checked by spin: see model/run."""
    _, text = called([*POLITELY, os.path.join(TEST, "model", "run"), "--quick" if is_long(options) else "--correct"], MODEL_PATIENCE, stderr=subprocess.STDOUT)
    passed, failed = add_closing_line(part, text)
    part.say(text if failed else f"  models: {passed} passed, {failed} failed")


def run_pytest(part, name, arguments, folder, patience=SYSTEM_PATIENCE):
    """A few that fail are run once more, alone: a machine may stand still for seconds. What passes then is named and counted as
    unstable, never silently; `test/run --strict` counts it as failed."""
    listed = os.path.join(folder, name + ".failed")
    first = Count()
    run_pytest_once(name, arguments, folder, first, patience, ONCEWARD_TEST_FAILED=listed)
    said = {}
    if first.failed and os.path.exists(listed):
        with open(listed) as f:
            said = dict(line.split("\t", 1) for line in f.read().splitlines())
    failed = list(said)
    if failed and len(failed) <= AGAIN_AT_MOST and first.failed <= 2 * len(failed):
        say(f"{len(failed)} failed; once more, alone: " + ", ".join(failed))
        again = Count()
        run_pytest_once(name + "-again", failed, folder, again, patience)
        if again.passed + again.skipped == len(failed) and not again.failed:
            part.add(first.passed + len(failed), 0, first.skipped)
            part.count.unstable += [f"{test}: {said[test]}" for test in failed]
            return
    part.count.take(first)


def run_pytest_once(name, arguments, folder, count, patience, **environment):
    report = os.path.join(folder, name + ".xml")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "--color=no", f"--junitxml={report}",
               f"--basetemp={os.path.join(folder, name)}", "-r", "fEs", *arguments]
    child = process.spawn(command, own_session=False, stdin=subprocess.DEVNULL, cwd=os.path.join(TEST, "system"),
                          env=dict(os.environ, **environment))
    late = False
    try:
        child.wait(patience)
    except subprocess.TimeoutExpired:
        late = True
        say(f"The system tests did not end within {patience} s.")
    finally:
        process.reap(child, ((signal.SIGINT, 30.0), (signal.SIGTERM, 10.0)))
    before = count.failed
    try:
        suites = list(xml.etree.ElementTree.parse(report).getroot().iter("testsuite"))
    except (OSError, xml.etree.ElementTree.ParseError):
        suites = []
    for suite in suites:
        total, failures, errors, skipped = (int(suite.get(k, 0)) for k in ("tests", "failures", "errors", "skipped"))
        count.add(max(0, total - failures - errors - skipped), failures + errors, skipped)
    if (late or child.returncode not in (0, PYTEST_NOTHING)) and count.failed == before:
        count.add(0, 1)


def is_long(options):
    """With --all the longer parts are run, and with --only whatever is meant by it."""
    return not options.quick and (options.all or bool(options.only))


def leaves_out(options):
    """Whether the system tests that are marked as long are left out."""
    return not options.quick and not is_long(options) and not options.long


def selected(options):
    if is_long(options):
        return "not alone"
    return "not alone and not deploy" + (" and not long" if options.quick or leaves_out(options) else "")


def system_arguments(options):
    return (["-k", options.only.replace("|", " or ")] if options.only else []) + (["--keep-servers"] if options.keep else [])


def run_system_tests(part, options, folder):
    """Tests mostly wait, so there are many more workers than processors."""
    if options.n_together == 0:
        return
    files = list(QUICK) if options.quick else ["."]
    workers = str(min(WORKERS_EACH * max(2, min(4, os.cpu_count() or 1)), options.n_together or sys.maxsize))
    patience = SYSTEM_PATIENCE * (6 if options.tool else 1)
    run_pytest(part, "together", [*files, *system_arguments(options), "-n", workers, "--dist", "loadgroup", "-m", selected(options)],
               folder, patience)


def run_alone(part, options, folder):
    if options.n_alone == 0:
        return
    run_pytest(part, "alone", [".", *system_arguments(options), "-m", "alone"], folder)


def run_program(part, options, *command):
    _, text = called([sys.executable, *command, *(["--keep"] if options.keep else [])], PROGRAM_PATIENCE, ((signal.SIGTERM, 20.0),),
                     own_session=False)
    add_closing_line(part, text)
    part.say(text)


def run_chaos(part, options, folder):
    """A short one, with the same schedule each time; test/chaos makes longer ones with others."""
    run_program(part, options, os.path.join(TEST, "chaos.d", "chaos.py"), *CHAOS)


def run_bench(part, options, folder):
    """The part of the bench that is meaningful on any machine: see bench/lib/check.py."""
    run_program(part, options, os.path.join(TEST, "bench", "main.py"), "--check", "--quick", "--binary", os.environ["ONCEWARD_RELEASE_BINARY"])


def parts_of(options):
    """The steps before the system tests, those beside them; the system tests and the steps after them."""
    before, beside, after = [Part("Building the unit tests", prepare)], [], [Part("System tests", run_system_tests)]
    if options.tool != "valgrind":
        beside.append(Part("Unit tests", run_unit_tests, True))
    if not options.tool and is_wanted(options, "model"):
        beside.append(Part("Models", run_model, True))
    if options.tool != "valgrind" and is_long(options) and is_wanted(options, "chaos"):
        beside.append(Part("Chaos run", run_chaos, True))
    if is_long(options):
        after.append(Part("System tests that measure", run_alone))
    if not options.tool and is_long(options) and os.environ.get("ONCEWARD_RELEASE_BINARY") and is_wanted(options, "bench"):
        after.append(Part("Bench, what does not depend on the machine", run_bench))
    return before, beside, after


def show_times(parts, before):
    """The durations: `before` is told by test/run."""
    say("Seconds")
    for text in before:
        title, _, seconds = text.rpartition("=")
        say(f"  {float(seconds):6.0f}  {title}")
    for part in parts:
        if part.seconds is not None:
            say(f"  {part.seconds:6.0f}  {part.title}" + (", beside the system tests" if part.is_beside else ""))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--only")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--tool", choices=("thread", "valgrind"))
    parser.add_argument("--installed", default="", help="packages that were installed for this")
    parser.add_argument("--took", action="append", default=[], metavar="TITLE=SECONDS", help="what was done before, for the table at the end")
    options = parser.parse_args()
    options.n_together = options.n_alone = options.n_left_out = None  # not known
    process.interrupt_on_signals()
    count, start, status, failed_before = Count(), time.monotonic(), 0, 0
    folder = tempfile.mkdtemp(prefix="onceward-suite-", dir=None if options.keep else fast_place())
    os.chmod(folder, 0o755)
    os.environ["TMPDIR"] = os.path.join(folder, "tmp")  # what a test leaves goes with the folder
    os.mkdir(os.environ["TMPDIR"])
    os.chmod(os.environ["TMPDIR"], 0o1777)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = os.path.join(folder, "python")
    before, beside, after = parts_of(options)
    running = None
    try:
        for part in before:
            part.run(options, folder)
        running = Beside(beside, options, folder)
        after[0].run(options, folder)
        running.join()
        for part in after[1:]:
            part.run(options, folder)
    except KeyboardInterrupt:
        say("Interrupted.")
        status, failed_before = 130, sum(part.count.failed for part in before + beside + after)
    finally:
        stopping.set()
        process.kill_all()
        if running:
            running.join(20)
        if options.keep:
            say(f"Kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    for part in before + beside + after:
        count.take(part.count)
    if status:
        count.failed = failed_before  # what was cut off has not failed
    show_times(before + beside + after, options.took)
    took = sum(float(text.rpartition("=")[2]) for text in options.took)
    say(f"  {took + process.seconds_since(start):6.0f}  all" + (f"; {count.skipped} skipped" if count.skipped else ""))
    if not (options.quick or options.only or options.all):
        say("Not in it, but in test/run --all: what deploy/ ships, its examples, the short chaos run, what measures.")
    if options.n_left_out:
        say(f"{options.n_left_out} long system tests were left out: test/run --long runs them, too, and so does test/run --all.")
    if count.unstable:
        say(f"Unstable, {len(count.unstable)}: failed beside others, passed alone:" + "".join(f"\n  {one}" for one in count.unstable))
        if options.strict:
            count.passed, count.failed = count.passed - len(count.unstable), count.failed + len(count.unstable)
    if options.installed:
        say("To remove the packages that were installed for this: apt-get purge" + options.installed + " && apt-get autoremove --purge")
    say(f"{count.passed} passed, {count.failed} failed")
    return status or (1 if count.failed or not count.passed else 0)


if __name__ == "__main__":
    sys.exit(main())
