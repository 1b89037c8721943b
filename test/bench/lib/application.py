"""The stand-ins that nginx cannot be: slow ones, ones that measure, ones that commit, and bad ones (tools/app.c)."""

import array
import mmap
import os
import socket
import subprocess
import threading

from rig import process
from rig.wait import wait_until


class Application:
    """Started for one run. What Drain wants of an application: url, socket, n_done(), pids(), stop()."""

    socket = None

    def __init__(self, bed, delay_ms=0, stamps=False, dsn=None, mode="complete", pool=16, **options):
        """options: those of the program, by name: bad, answer, capacity, obeys."""
        self.bed = bed
        self.port = process.free_port()
        self.url = f"http://127.0.0.1:{self.port}/"
        self.count_path = os.path.join(bed.folder, f"answers{self.port}")
        self.stamps_path = os.path.join(bed.folder, f"posted{self.port}")
        self.arguments = [os.path.join(bed.bin, "app"), "--port", str(self.port), "--count-file", self.count_path, "--delay-ms", str(delay_ms)]
        if stamps:
            self.arguments += ["--stamps-file", self.stamps_path]
        if dsn:
            self.arguments += ["--commit", dsn, "--mode", mode, "--pool", str(pool)]
        for name, value in options.items():
            self.arguments += ["--" + name, str(value)]
        self.child = self.spawn()
        wait_until(self._listens, lambda: "the application listens:\n" + process.tail(os.path.join(bed.folder, "app.log")), 15)
        with open(self.count_path, "rb") as f:
            self.counter = mmap.mmap(f.fileno(), 16, prot=mmap.PROT_READ)

    def spawn(self):
        with self.bed.log("app.log") as out:
            return process.spawn(self.arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def _listens(self):
        if self.child.poll() is not None:
            return False
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", self.port)) == 0

    def n_done(self):
        """Good answers."""
        return int.from_bytes(self.counter[:8], "little")

    def n_bad(self):
        return int.from_bytes(self.counter[8:], "little")

    def pids(self):
        return [self.child.pid]

    def stop(self):
        process.reap(self.child)

    def stamps(self):
        """Microseconds from publish to POST, of every POST; after stop()."""
        return read_stamps(self.stamps_path)


def read_stamps(path):
    values = array.array("I")
    with open(path, "rb") as f:
        values.frombytes(f.read())
    return values


def committing(mode):
    """For Case.application: one that commits in the database of the run."""
    return lambda drain: Application(drain.bed, dsn=drain.bed.postgres.dsn(user="bench_app", database=drain.case.database), mode=mode)


def slow(ms):
    return lambda drain: Application(drain.bed, delay_ms=ms)


class Mortal(Application):
    """Killed, or killed by a message, it comes back by itself after restart_seconds; never, while that is None."""

    def __init__(self, bed, restart_seconds=None, **options):
        self.restart_seconds = restart_seconds
        self.n_crashes = 0
        self.news = threading.Condition()
        self.ends = False
        super().__init__(bed, **options)
        self.keeper = threading.Thread(target=self._keep, daemon=True)
        self.keeper.start()

    def _keep(self):
        while True:
            self.child.wait()
            with self.news:
                self.n_crashes += not self.ends
                self.news.wait_for(lambda: self.ends or self.restart_seconds is not None)
                self.news.wait_for(lambda: self.ends, self.restart_seconds)
                if self.ends:
                    return
                self.child = self.spawn()

    def kill(self):
        process.kill(self.child)

    def come_back(self):
        """Starts it now; again and again from now on."""
        with self.news:
            self.restart_seconds = 0
            self.news.notify_all()

    def stop(self):
        with self.news:
            self.ends = True
            self.news.notify_all()
            process.kill(self.child)
        self.keeper.join()
