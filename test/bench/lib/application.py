"""The stand-ins that nginx cannot be: slow ones, ones that measure, and ones that commit (tools/app.c)."""

import array
import mmap
import os
import socket
import subprocess

from rig import process
from rig.wait import wait_until


class Application:
    """Started for one run. What Drain wants of an application: url, socket, n_done(), pids(), stop()."""

    socket = None

    def __init__(self, bed, delay_ms=0, stamps=False, dsn=None, mode="complete", pool=16):
        self.bed = bed
        self.port = process.free_port()
        self.url = f"http://127.0.0.1:{self.port}/"
        self.count_path = os.path.join(bed.folder, f"answers{self.port}")
        self.stamps_path = os.path.join(bed.folder, f"posted{self.port}")
        arguments = [os.path.join(bed.bin, "app"), "--port", str(self.port), "--count-file", self.count_path, "--delay-ms", str(delay_ms)]
        if stamps:
            arguments += ["--stamps-file", self.stamps_path]
        if dsn:
            arguments += ["--commit", dsn, "--mode", mode, "--pool", str(pool)]
        with bed.log("app.log") as out:
            self.child = process.spawn(arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        wait_until(self._listens, lambda: "the application listens:\n" + process.tail(os.path.join(bed.folder, "app.log")), 15)
        with open(self.count_path, "rb") as f:
            self.counter = mmap.mmap(f.fileno(), 8, prot=mmap.PROT_READ)

    def _listens(self):
        if self.child.poll() is not None:
            return False
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", self.port)) == 0

    def n_done(self):
        return int.from_bytes(self.counter[:8], "little")

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
