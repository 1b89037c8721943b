"""The program under test as a process: its configuration, its log line by line, its end.

Every line that it writes is checked, whatever a test looks at: JSON, at most 8 KiB, with time, level and event; never a
secret or a body. A sanitizer's report or a line on standard error that is not a warning of `run` fails the test."""

import json
import os
import re
import signal
import subprocess
import threading
import time

from . import process
from .wait import Overdue, wait_until

LINE_MAX = 8192
TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
LEVELS = {"debug", "info", "warning", "error"}
SECRETS = ("body-marker", "secret-marker", "s3cret")
SANITIZER = re.compile(r"ERROR: \w+Sanitizer|runtime error:|SUMMARY: \w+Sanitizer|WARNING: ThreadSanitizer|^==\d+== |"
                       r"Assertion .* failed", re.A | re.M)


class Sidecar:
    def __init__(self, binary, folder, config, name="sidecar", environment=None):
        self.binary = binary
        self.folder = folder
        self.config = config
        self.name = name
        self.environment = environment or {}
        self.config_path = os.path.join(folder, name + ".json")
        self.log_path = os.path.join(folder, name + ".log")
        self.error_path = os.path.join(folder, name + ".stderr")
        self.child = None
        self.n_starts = 0
        self.events = []
        self.faults = []
        self._news = threading.Condition()
        self._reader = None

    # the process

    def start(self):
        assert self.child is None
        with open(self.config_path, "w") as f:
            json.dump(self.config, f, indent=1)
        environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8",
                       "ASAN_OPTIONS": "detect_leaks=1:exitcode=99:detect_stack_use_after_return=1:malloc_context_size=12",
                       "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:exitcode=98"}
        environment.update(self.environment)
        with open(self.error_path, "ab") as err:
            self.child = process.spawn([self.binary, "run", "--config", self.config_path], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=err, env=environment, cwd=self.folder)
        self.n_starts += 1
        self._reader = threading.Thread(target=self._read, args=(self.child.stdout,), daemon=True)
        self._reader.start()
        return self

    @property
    def pid(self):
        return self.child.pid

    def _read(self, pipe):
        with pipe, open(self.log_path, "ab") as copy:
            for line in pipe:
                copy.write(line)
                copy.flush()
                self._take(line)
        with self._news:
            self._news.notify_all()

    def _take(self, line):
        fault = None
        event = {}
        try:
            text = line.decode("utf-8")
            event = json.loads(text)
            fault = self._check(line, text, event)
        except (UnicodeDecodeError, ValueError) as e:
            fault = f"not a line of JSON: {e}"
        with self._news:
            if fault:
                self.faults.append(f"{fault}: {line[:300]!r}")
            if isinstance(event, dict):
                event["_at"] = time.monotonic()
                self.events.append(event)
            self._news.notify_all()

    @staticmethod
    def _check(line, text, event):
        if not isinstance(event, dict):
            return "not an object"
        if len(line) > LINE_MAX:
            return f"{len(line)} bytes"
        if not line.endswith(b"\n"):
            return None  # killed in the middle; it was JSON all the same
        if not TIME.match(str(event.get("ts"))):
            return "ts"
        if event.get("level") not in LEVELS:
            return "level"
        if not isinstance(event.get("event"), str) or not re.match(r"^[a-z_]+$", event["event"]):
            return "event"
        for secret in SECRETS:
            if secret in text:
                return f"holds the secret {secret}"
        return None

    # what it says

    def mark(self):
        """A place in the log: for `since`."""
        with self._news:
            return len(self.events)

    def find(self, event, since=0, until=None, **fields):
        with self._news:
            return [e for e in self.events[since:until]
                    if e.get("event") == event and all(self._matches(e, k, v) for k, v in fields.items())]

    @staticmethod
    def _matches(event, key, value):
        if callable(value):
            return key in event and value(event[key])
        return event.get(key) == value

    def wait_for(self, event, n=1, since=0, deadline=120.0, **fields):
        """The n-th such line. A sidecar that ended writes no more."""
        end = time.monotonic() + deadline
        found = []
        while True:
            reader_lives = self._reader.is_alive()
            looked_at = self.mark()
            found += self.find(event, since, looked_at, **fields)
            since = looked_at
            if len(found) >= n:
                return found[n - 1]
            left = end - time.monotonic()
            if left <= 0 or not reader_lives:
                raise Overdue(f"{self.name} did not log {event} {fields or ''} ({len(found)} of {n}) "
                              + ("within %g s" % deadline if reader_lives else "before it ended"))
            with self._news:
                if len(self.events) == looked_at:
                    self._news.wait(min(left, 0.05))

    def sum_of(self, field):
        """A counter over all stats lines so far."""
        return sum(e.get(field) or 0 for e in self.find("stats"))

    # its end

    def kill(self):
        """kill -9."""
        process.kill(self.child)
        self._reader.join(40)
        self.child = None

    def signal(self, number):
        self.child.send_signal(number)

    def freeze(self):
        self.child.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.child.send_signal(signal.SIGCONT)

    def wait(self, deadline=120.0):
        """Waits for its end; answers the exit status."""
        try:
            status = self.child.wait(deadline)
        except subprocess.TimeoutExpired:
            raise Overdue(f"{self.name} did not end within {deadline:g} s") from None
        self._reader.join(40)
        process.reap(self.child)
        self.child = None
        return status

    def term(self, deadline=120.0):
        """SIGTERM; answers the exit status."""
        self.child.send_signal(signal.SIGTERM)
        return self.wait(deadline)

    def end(self):
        """At the end of a test: SIGTERM must end it, with status 0, and without a report."""
        if self.child is None:
            return
        if self.child.poll() is not None:
            status = self.wait()
            assert status == 0, f"{self.name} had ended by itself with status {status}"
            return
        self.child.send_signal(signal.SIGCONT)
        try:
            status = self.term(40.0)
        except Overdue:
            process.reap(self.child, ((signal.SIGABRT, 2.0),))
            self.child = None
            raise
        assert status == 0, f"{self.name} ended with status {status} after SIGTERM"

    def stderr(self):
        try:
            with open(self.error_path, errors="replace") as f:
                return f.read()
        except OSError:
            return ""

    def check(self):
        """Answers what is wrong with what it wrote."""
        faults = list(self.faults)
        text = self.stderr()
        if SANITIZER.search(text):
            faults.append("report on standard error:\n" + text[:8000])
        for secret in SECRETS:
            if secret in text:
                faults.append(f"standard error holds the secret {secret}")
        return faults

    def report(self, lines=120):
        log = process.tail(self.log_path, 2000).splitlines(keepends=True)
        is_stats = ['"event":"stats"' in line for line in log]
        last = max((i for i, yes in enumerate(is_stats) if yes), default=-1)
        kept = [line for i, line in enumerate(log) if not is_stats[i] or i == last]  # the others seldom say more
        return "".join(kept[-lines:]) + "".join("! " + f + "\n" for f in self.check()) + self.stderr()[-4000:]

    # what it uses

    def status_kib(self, field):
        """A field of /proc/PID/status, in KiB: RssAnon, VmRSS, VmHWM."""
        with open(f"/proc/{self.pid}/status") as f:
            for line in f:
                if line.startswith(field + ":"):
                    return int(line.split()[1])
        raise KeyError(field)

    def wait_for_nothing_held(self, deadline=120.0):
        """Until a stats line says that no delivery is held, and one more has followed it."""
        since = self.mark()
        self.wait_for("stats", since=since, held=0, deadline=deadline)
        self.wait_for("stats", n=len(self.find("stats", since)) + 1, since=since, deadline=deadline)

    def wait_for_quiet(self, deadline=120.0):
        """Until a stats line says that nothing is in flight and nothing is held."""
        since = self.mark()
        wait_until(lambda: [e for e in self.find("stats", since) if e.get("in_flight") == 0 and e.get("held") == 0],
                   "a stats line with nothing in flight", deadline, 0.05)
