"""the program of the schema's first version beside this one, on one queue under load: rollout and rollback

The schema is this program's. What the functions of the first version answer: test/system/test_sql_versions.py."""

import os
import shutil
import subprocess
import tarfile

from rig.wait import wait_until

from ..bed import ROOT
from ..stage import Stage
from ..verdicts import Verdicts

OLDER = "335a16c"
MESSAGES, RATE, COPIES = 12000, 2000, 10


def older(bed, o):
    """A release build of the older program."""
    if o.older:
        return os.path.abspath(o.older)
    folder = os.path.join(bed.folder, "older")
    archive = folder + ".tar"
    done = subprocess.run(["git", "-C", ROOT, "archive", "-o", archive, OLDER], stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{OLDER} is not in the history here (a shallow clone?): {done.stderr.strip()}; give a build of it with --older")
    os.mkdir(folder)
    with tarfile.open(archive) as f:
        f.extractall(folder)
    bed.say(f"building {OLDER}")
    for command in (["meson", "setup", "--buildtype=release", "build"], ["ninja", "-C", "build", "onceward"]):
        done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise SystemExit(done.stdout)
    binary = os.path.join(bed.folder, "onceward-older")
    shutil.move(os.path.join(folder, "build", "onceward"), binary)
    shutil.rmtree(folder)
    return binary


def replaced(bed, v, name, first, second, end):
    """The first alone for a third of the load, then both, then the second alone."""
    with Stage(bed, "versions") as stage:
        queue = stage.queue()
        app = stage.app(commits=True)
        one = stage.sidecar([queue], app.url, name="first", binary=first, completion="transaction").start()
        one.wait_for("consuming")
        two = stage.sidecar([queue], app.url, name="second", binary=second, completion="transaction")
        n_ids = []
        load = stage.beside(lambda: n_ids.append(stage.load(queue, MESSAGES, rate=RATE, duplicates=COPIES, stamps=0)))
        wait_until(lambda: app.n_done() >= MESSAGES // 4, "a quarter is done", 60)
        two.start().wait_for("consuming")
        alone = app.n_done()
        wait_until(lambda: app.n_done() >= MESSAGES // 2, "half is done", 60)
        together = app.n_done()
        if end == "killed":
            one.kill()
        else:
            one.term()
        load.join()
        stage.wait_for_completed(n_ids[0], 60)
        wait_until(lambda: stage.n_ready(queue) == 0, "the queue is empty", 40, 0.05)
        two.term()
        v.exactly(f"{name}, the first {end}: done of {n_ids[0]:,} (lost: none)", stage.n_completed(), n_ids[0])
        v.exactly(f"{name}, the first {end}: doubled, letters, left in the queue",
                  (stage.n_doubled(), stage.n_letters(), stage.n_ready(queue)), (0, 0, 0))
        v.tell(f"{name}: done by the first alone, by both, by the second", f"{alone:,}, {together - alone:,}, {n_ids[0] - together:,}")


def prove(bed, o):
    v = Verdicts(f"versions: {OLDER} and this program on one queue, {RATE:,} messages/s, {COPIES} % copies")
    before = older(bed, o)
    for end in ("ended", "killed"):
        replaced(bed, v, "rollout", before, bed.binary, end)
        replaced(bed, v, "rollback", bed.binary, before, end)
    return v
