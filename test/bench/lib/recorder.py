"""The application that writes down what it was sent (tools/recorder.c); it can be killed, and started again on its port."""

import array
import http.client
import os
import subprocess

from rig import process
from rig.wait import wait_until


class Recorder:
    """Also what Drain wants of an application: url, socket, n_done(), pids(), stop()."""

    socket = None

    def __init__(self, bed, mode="record", dsn=None, stamps=False, **options):
        self.bed = bed
        self.port = process.free_port()
        self.url = f"http://127.0.0.1:{self.port}/"
        self.record = os.path.join(bed.folder, f"record{self.port}")
        self.stamps_path = os.path.join(bed.folder, f"stamped{self.port}")
        self.arguments = [os.path.join(bed.bin, "recorder"), "--port", str(self.port), "--mode", mode, "--record", self.record]
        if dsn and mode != "record":
            self.arguments += ["--commit", dsn]
        if stamps:
            self.arguments += ["--stamps-file", self.stamps_path]
        for key, value in options.items():
            self.arguments += ["--" + key.replace("_", "-"), str(value)]
        self.child = None

    def start(self):
        with self.bed.log("recorder.log") as out:
            self.child = process.spawn(self.arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        wait_until(lambda: self.counts() is not None, lambda: "the recorder answers:\n"
                   + process.tail(os.path.join(self.bed.folder, "recorder.log")), 15)
        return self

    def kill(self):
        process.kill(self.child)

    def stop(self):
        if self.child:
            process.reap(self.child)

    def counts(self):
        """(messages done, requests) since it was started; None: it is not there."""
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            connection.request("GET", "/count")
            done, posts = connection.getresponse().read().split()
            connection.close()
            return int(done), int(posts)
        except (OSError, ValueError, http.client.HTTPException):
            return None

    def n_done(self):
        return self.counts()[0]

    def pids(self):
        return [self.child.pid]

    def stamps(self):
        """Microseconds from publish to POST, of every POST; after stop()."""
        values = array.array("I")
        with open(self.stamps_path, "rb") as f:
            values.frombytes(f.read())
        return values

    def size(self):
        """Grows with every POST and every answer."""
        return os.path.getsize(self.record) if os.path.exists(self.record) else 0

    def posts(self):
        """[(ns, id)], [(ns, id, status)]"""
        posts, answers = [], []
        with open(self.record, encoding="ascii") as f:
            for line in f:
                fields = line.split()
                if fields[0] == "P":
                    posts.append((int(fields[1]), fields[2]))
                else:
                    answers.append((int(fields[1]), fields[2], int(fields[3])))
        return posts, answers
