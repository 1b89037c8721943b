"""A group of processes whose memory is bounded, with the pages that the kernel keeps of their files."""

import os
import time

ROOT = "/sys/fs/cgroup/memory"  # version 1 of the controller


class Group:
    """enter: a command that puts what follows it into the group."""

    def __init__(self, name, limit):
        self.path = os.path.join(ROOT, name)
        try:
            os.mkdir(self.path)
            self.limit(limit)
        except OSError as e:
            raise SystemExit(f"--memory needs a memory controller of version 1 that may be written: {e}") from None
        self.enter = ["sh", "-c", f'echo $$ >{self.path}/cgroup.procs && exec "$@"', "sh"]

    def limit(self, limit):
        """-1: none."""
        with open(os.path.join(self.path, "memory.limit_in_bytes"), "w") as f:
            f.write(str(limit))

    def remove(self):
        """When its processes have ended."""
        for _ in range(100):
            try:
                os.rmdir(self.path)
                return
            except OSError:
                time.sleep(0.1)
