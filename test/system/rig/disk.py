"""A small disk that can be filled: a tmpfs that only the processes inside its mount namespace see.

The kernel takes it away when the last of them has ended, however that comes about: nothing is ever left mounted."""

import os
import subprocess

from . import process
from .wait import wait_until

SCRIPT = 'mount -t tmpfs -o size="$1",mode=0755 tmpfs "$2" && echo mounted && exec sleep infinity'


class DiskError(Exception):
    """Mounting is not allowed here."""


class Disk:
    def __init__(self, folder, size):
        """folder: an existing one, under which the disk is seen inside."""
        self.folder = folder
        try:
            self.holder = process.spawn(["unshare", "--mount", "--propagation", "private", "sh", "-c", SCRIPT, "sh", size, folder],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        except OSError as e:
            raise DiskError(str(e)) from None
        if self.holder.stdout.readline() != b"mounted\n":
            said = self.holder.stderr.read().decode(errors="replace").strip()
            process.kill(self.holder)
            raise DiskError(said)

    @property
    def inside(self):
        """A command that runs what follows it where the disk is seen."""
        return ["nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt", "--"]

    def path(self, *names):
        """A path on the disk, as seen from outside."""
        return os.path.join(f"/proc/{self.holder.pid}/root" + self.folder, *names)

    def n_free(self):
        found = os.statvfs(self.path())
        return found.f_bavail * found.f_frsize

    def fill(self, spare=0):
        """Until so many bytes are left."""
        with open(self.path("ballast"), "wb") as f:
            left = self.n_free() - spare
            if left > 0:
                os.posix_fallocate(f.fileno(), 0, left)

    def empty(self):
        os.unlink(self.path("ballast"))

    def stop(self):
        process.kill(self.holder)
        wait_until(lambda: not process.is_running(self.holder.pid), "the disk's holder has ended")
