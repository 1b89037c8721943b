"""Child processes that surely end: each has its own session, is known by its pid, and is killed at exit and on signals.

Should this program be killed itself, the kernel ends them (parent death signal)."""

import atexit
import concurrent.futures
import ctypes
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time

_running = {}
_spawner = concurrent.futures.ThreadPoolExecutor(1, "spawner")
_libc = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG = 1

# The folder of a temporary build (build_place in test/packages.sh). Only the first program that imports this removes it.
_removed = os.environ.pop("ONCEWARD_REMOVED_AT_THE_END", "")
if _removed:
    atexit.register(shutil.rmtree, _removed, ignore_errors=True)


def _in_child():
    """It dies with its parent, and knows SIGINT also where the tests run in the background of a shell."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def spawn(arguments, own_session=True, **options):
    """subprocess.Popen of a child that is remembered until reap()."""
    if threading.current_thread() is threading.main_thread():
        return _spawn(arguments, own_session, options)
    # The signal is sent when the thread that made the child ends: one that outlives all others makes it.
    return _spawner.submit(_spawn, arguments, own_session, options).result()


def _spawn(arguments, own_session, options):
    child = subprocess.Popen(arguments, start_new_session=own_session, preexec_fn=_in_child, **options)
    child.in_own_session = own_session
    child.made_by = os.getpid()
    _running[child.pid] = child
    return child


def reap(child, signals=((signal.SIGTERM, 10.0),)):
    """Ends a child: each signal in turn with its patience, then SIGKILL to its whole session. Answers the exit status."""
    for number, patience in signals:
        if child.poll() is not None:
            break
        child.send_signal(number)
        try:
            child.wait(patience)
        except subprocess.TimeoutExpired:
            pass
    if child.poll() is None:
        kill(child)
    _running.pop(child.pid, None)
    return child.returncode


def kill(child):
    """SIGKILL to the child and, where it leads a session, to what it started."""
    if child.poll() is None:
        if child.in_own_session:
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        else:
            child.kill()
        child.wait()
    _running.pop(child.pid, None)


def _stat(pid):
    """State and parent of a process; a zombie has ended, whoever is to bury it."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            state, parent = f.read().rpartition(")")[2].split()[:2]
        return (state, int(parent))
    except OSError:
        return ("Z", 0)


def children(parent):
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and _stat(entry)[1] == parent]


def is_running(pid):
    return _stat(pid)[0] not in "ZX"


def kill_all():
    for child in list(_running.values()):
        if child.made_by == os.getpid():
            kill(child)


atexit.register(kill_all)


def interrupt_on_signals():
    """Makes SIGTERM and SIGHUP do what Ctrl-C does, so that every way out runs what belongs to it."""

    def interrupt(number, frame):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGHUP, interrupt)


PORTS_AT_ONCE = 50
_ports, _port_marks, _ports_lock = [], [], threading.Lock()


def _take_ports():
    """As many ports as nobody else gives out while this process lives. The mark is a name of the network's own, so that runs in other
    root folders see it, and goes with its process."""
    while True:
        first = random.SystemRandom().randrange(10_000, 32_000, PORTS_AT_ONCE)
        mark = socket.socket(socket.AF_UNIX)
        try:
            mark.bind(f"\0onceward-ports-{first}")
        except OSError:
            mark.close()
            continue
        _port_marks.append(mark)
        _ports.extend(range(first, first + PORTS_AT_ONCE))
        return


def free_port():
    """A loopback port that nobody listens on now and that was not given before, by another run neither while that lasts: what listens
    there may be dead for a while, and must not find somebody else's server in its place.

    Below those that the kernel gives to outgoing connections: a server that starts again must find its port free."""
    while True:
        with _ports_lock:
            if not _ports:
                _take_ports()
            port = _ports.pop()
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass


def tail(path, lines=40):
    try:
        with open(path, errors="replace") as f:
            return "".join(f.readlines()[-lines:])
    except OSError as e:
        return f"({e})\n"


def seconds_since(start):
    return time.monotonic() - start
