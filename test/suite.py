"""Runs the unit test programs and the system tests of a finished build and adds up their cases. Called by test/run.

The last line is always `N passed, N failed`. The status is 1 when anything failed or nothing ran, 130 after an interrupt."""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

TEST = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(TEST, "system"))

from rig import process  # noqa: E402

QUICK = ("test_rig.py", "test_once.py", "test_config.py")
# For what hangs: on a machine that is busy with something else all takes several times longer.
UNIT_PATIENCE, MODEL_PATIENCE, SYSTEM_PATIENCE, CHAOS_PATIENCE, BENCH_PATIENCE = 300, 1200, 2700, 900, 900
CHAOS = ("--seed", "20", "--minutes", "0.6", "--rate", "30")
SKIPPED = 77
AGAIN_AT_MOST = 8


class Count:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.unstable = []

    def add(self, passed, failed, skipped=0):
        self.passed += passed
        self.failed += failed
        self.skipped += skipped


def say(text):
    print(text, flush=True)


def run_unit_tests(build, only, count):
    """Each program writes TAP; one that dies counts as one failure more than it told."""
    listed = subprocess.run(["meson", "introspect", "--tests", build], check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    tests = [t for t in json.loads(listed.stdout) if not only or re.search(re.sub(r"\s+or\s+", "|", only), t["name"], re.I)]
    targets = subprocess.run(["meson", "introspect", "--targets", build], check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    files = {t["id"]: t["filename"][0] for t in json.loads(targets.stdout)}
    wanted = sorted({os.path.relpath(files[d], build) for t in tests for d in t["depends"] if d in files})
    if wanted:
        built = subprocess.run(["ninja", "-C", build, *wanted], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        if built.returncode:
            say(built.stdout.decode(errors="replace"))
            say("The unit tests do not build.")
            count.add(0, 1)
            return
    for test in tests:
        environment = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP", ASAN_OPTIONS="detect_leaks=1:exitcode=99",
                           UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1:exitcode=98", **test["env"])
        child = process.spawn(test["cmd"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
                              cwd=test["workdir"] or build)
        try:
            text = child.communicate(timeout=UNIT_PATIENCE)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            process.kill(child)
            text = f"{test['name']} did not end within {UNIT_PATIENCE} s\n"
        process.reap(child)
        if child.returncode == SKIPPED:
            continue  # it needs a server: the system tests run it
        passed = len(re.findall(r"^\s*ok \d+", text, re.M))
        failed = len(re.findall(r"^\s*not ok \d+", text, re.M))
        if child.returncode and not failed:
            failed = 1
        if not child.returncode and not passed:
            passed = 1  # a check that is no cmocka program
        count.add(passed, failed)
        say(f"  unit {test['name']}: {passed} passed, {failed} failed")
        if failed:
            say(text)


def run_model(options, count):
    """The protocol, checked by spin: see model/run."""
    if options.quick or (options.only and not re.search(options.only, "model", re.I)):
        return
    say("Models")
    child = process.spawn([os.path.join(TEST, "model", "run")], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        text = child.communicate(timeout=MODEL_PATIENCE)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        text = f"The models were not checked within {MODEL_PATIENCE} s.\n"
    finally:
        process.reap(child)
    counts = re.search(r"^(\d+) passed, (\d+) failed$", text, re.M)
    passed, failed = (int(counts[1]), int(counts[2])) if counts else (0, 1)
    count.add(passed, failed)
    say(f"  models: {passed} passed, {failed} failed")
    if failed:
        say(text)


def run_pytest(name, arguments, folder, count, patience=SYSTEM_PATIENCE, **environment):
    """A few that fail are run once more, alone: a machine may stand still for seconds. What passes then is named and counted as
    unstable, never silently; `test/run --strict` counts it as failed."""
    listed = os.path.join(folder, name + ".failed")
    first = Count()
    run_pytest_once(name, arguments, folder, first, patience, ONCEWARD_TEST_FAILED=listed, **environment)
    failed = []
    if first.failed and os.path.exists(listed):
        with open(listed) as f:
            failed = list(dict.fromkeys(f.read().splitlines()))
    if failed and len(failed) <= AGAIN_AT_MOST and first.failed <= 2 * len(failed):
        say(f"{len(failed)} failed; once more, alone: " + ", ".join(failed))
        again = Count()
        run_pytest_once(name + "-again", failed, folder, again, patience, **environment)
        if again.passed + again.skipped == len(failed) and not again.failed:
            count.add(first.passed + len(failed), 0, first.skipped)
            count.unstable += failed
            return
    count.add(first.passed, first.failed, first.skipped)


def run_pytest_once(name, arguments, folder, count, patience, **environment):
    report = os.path.join(folder, name + ".xml")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "--color=no", f"--junitxml={report}",
               f"--basetemp={os.path.join(folder, name)}", "-r", "fEs", *arguments]
    child = process.spawn(command, own_session=False, stdin=subprocess.DEVNULL, cwd=os.path.join(TEST, "system"),
                          env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1", **environment))
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
    if (late or child.returncode not in (0, 5)) and count.failed == before:
        count.add(0, 1)


def run_system_tests(options, folder, count):
    files = list(QUICK) if options.quick else ["."]
    common = (["-k", options.only.replace("|", " or ")] if options.only else []) + (["--keep-servers"] if options.keep else [])
    workers = str(max(2, min(8, 2 * (os.cpu_count() or 1))))
    patience = SYSTEM_PATIENCE * (6 if options.tool else 1)
    run_pytest("together", [*files, *common, "-n", workers, "--dist", "loadgroup", "-m", "not alone"], folder, count, patience)
    if not options.quick:
        run_pytest("alone", [*files, *common, "-m", "alone"], folder, count, patience)


def run_chaos(options, count):
    """A short one, with the same schedule each time; test/chaos makes longer ones with others."""
    if options.quick or (options.only and not re.search(options.only, "chaos", re.I)):
        return
    say("Chaos run")
    command = [sys.executable, os.path.join(TEST, "chaos.d", "chaos.py"), *CHAOS, *(["--keep"] if options.keep else [])]
    child = process.spawn(command, own_session=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1"))
    try:
        text = child.communicate(timeout=CHAOS_PATIENCE)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        text = f"The chaos run did not end within {CHAOS_PATIENCE} s.\n"
    finally:
        process.reap(child, ((signal.SIGTERM, 20.0),))
    say(text)
    closing = re.search(r"^(\d+) passed, (\d+) failed\n*\Z", text, re.M)
    count.add(*(map(int, closing.groups()) if closing else (0, 1)))


def run_bench(options, count):
    """What the bench can say on any machine: see bench/lib/check.py."""
    binary = os.environ.get("ONCEWARD_RELEASE_BINARY")
    if options.quick or options.tool or not binary or (options.only and not re.search(options.only, "bench", re.I)):
        return
    say("Bench, what does not depend on the machine")
    command = [sys.executable, os.path.join(TEST, "bench", "main.py"), "--check", "--quick", "--binary", binary,
               *(["--keep"] if options.keep else [])]
    child = process.spawn(command, own_session=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1"))
    try:
        text = child.communicate(timeout=BENCH_PATIENCE)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        text = f"The bench did not end within {BENCH_PATIENCE} s.\n"
    finally:
        process.reap(child, ((signal.SIGTERM, 20.0),))
    say(text)
    closing = re.search(r"^(\d+) passed, (\d+) failed\n*\Z", text, re.M)
    count.add(*(map(int, closing.groups()) if closing else (0, 1)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--only")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--tool", choices=("thread", "valgrind"))
    options = parser.parse_args()
    process.interrupt_on_signals()
    count, start, status = Count(), time.monotonic(), 0
    folder = tempfile.mkdtemp(prefix="onceward-suite-")
    os.chmod(folder, 0o755)
    try:
        if options.tool != "valgrind":
            say("Unit tests")
            run_unit_tests(options.build, options.only, count)
            release = os.path.dirname(os.environ.get("ONCEWARD_RELEASE_BINARY", ""))
            if release and not options.only:
                run_unit_tests(release, "^dead_port$", count)
        if not options.tool:
            run_model(options, count)
        say("System tests")
        run_system_tests(options, folder, count)
        if options.tool != "valgrind":
            run_chaos(options, count)
            run_bench(options, count)
    except KeyboardInterrupt:
        say("Interrupted.")
        status = 130
    finally:
        process.kill_all()
        if options.keep:
            say(f"Kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    say(f"{process.seconds_since(start):.0f} s" + (f"; {count.skipped} skipped" if count.skipped else ""))
    if count.unstable:
        say(f"Unstable, {len(count.unstable)}: failed beside others, passed alone: " + ", ".join(count.unstable))
        if options.strict:
            count.passed, count.failed = count.passed - len(count.unstable), count.failed + len(count.unstable)
    say(f"{count.passed} passed, {count.failed} failed")
    return status or (1 if count.failed or not count.passed else 0)


if __name__ == "__main__":
    sys.exit(main())
