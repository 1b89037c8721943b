"""what bad messages, a bad path, a huge letter and a broken replica do to the others

In virtual time: test/sim --measured one-bad, many-bad, neighbours."""

import time

from rig.wait import wait_until

from ..stage import Stage
from ..verdicts import Verdicts

HUGE = 64 << 20


def one_refused(bed, v):
    n, seconds = 2000, []
    with Stage(bed, "refused") as stage:
        app = stage.app(delay_ms=5, obeys=1)
        for name, bad in (("without", []), ("with", ["answers-503-always"])):
            queue = stage.queue(name)
            stage.publish(queue, bad)
            stage.load(queue, n)
            stage.wait_for_ready(queue, n + len(bad))
            sidecar = stage.sidecar([queue], app.url, name=name)
            before = app.n_done()
            sidecar.start()
            wait_until(lambda: app.n_done() > before, "the first answer", 30, 0.002)
            start = time.monotonic()
            wait_until(lambda: app.n_done() >= before + n, "all good ones are answered", 60, 0.01)
            seconds.append(time.monotonic() - start)
            sidecar.kill()
    v.most(f"one always 503 among {n:,}: seconds later ({seconds[0]:.2f} without)", seconds[1] - seconds[0], 1)


def many_refused(bed, v):
    with Stage(bed, "four") as stage:
        app = stage.app(commits=True, obeys=1)
        queue = stage.queue()
        good = [f"good-{i}" for i in range(50)]
        stage.publish(queue, [f"answers-400-{i}" for i in range(300)] + good)
        stage.wait_for_ready(queue, 350)
        stage.sidecar([queue], app.url, completion="transaction").start()
        seconds = stage.wait_for_completed(len(good), 90)
        v.most("300 times 400 before 50 good ones: seconds until these are done", seconds or 999, 60, "{:.1f}")
        v.exactly("good ones dead", stage.value("SELECT count(*) FROM onceward.dead_letter WHERE message_id LIKE 'good-%%'"), 0)


def one_path(bed, v):
    n, seconds = 10000, []
    with Stage(bed, "paths") as stage:
        app = stage.app(delay_ms=5, obeys=1)
        for both in (False, True):
            good = stage.queue(f"good{both}")
            queues = {good: {"forward": {"url": app.url}}}
            stage.load(good, n)
            if both:
                bad = stage.queue("bad")
                stage.load(bad, n)
                queues[bad] = {"forward": {"url": app.url + "answers-503"}}
            stage.wait_for_ready(good, n)
            sidecar = stage.sidecar(queues, name=f"both{both}")
            before = app.n_done()
            sidecar.start()
            wait_until(lambda: app.n_done() > before, "the first answer", 30, 0.002)
            start = time.monotonic()
            wait_until(lambda: app.n_done() >= before + n, "all of the good path are answered", 90, 0.01)
            seconds.append(time.monotonic() - start)
            sidecar.kill()
    v.least(f"two queues, one path always 503: the other, of its speed alone ({n / seconds[0]:,.0f}/s)", seconds[0] / seconds[1], 0.9)


def huge_letter(bed, v):
    with Stage(bed, "huge") as stage:
        stage.rows("""CREATE FUNCTION public.slow_letter() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF length(NEW.body) > 1048576 THEN PERFORM pg_sleep(8); END IF; RETURN NEW; END $$""")
        stage.rows("CREATE TRIGGER slow_letter BEFORE INSERT ON onceward.dead_letter FOR EACH ROW EXECUTE FUNCTION public.slow_letter()")
        app = stage.app(delay_ms=1, obeys=1)
        other, queue = stage.queue("other"), stage.queue("huge")
        stage.load(other, 400)
        sidecar = stage.sidecar([other, queue], app.url, max_message="64MiB").start()
        wait_until(lambda: app.n_done() >= 400, "the others are answered", 30)
        body = bytes(HUGE - 4096)
        start = time.monotonic()
        stage.publish(queue, ["answers-400-huge"], body)
        asleep = lambda: stage.value("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'")
        wait_until(asleep, "the letter is being written", 60, 0.05)
        gap, n, last = 0.0, app.n_done(), time.monotonic()
        feed = [f"m{i}" for i in range(10000)]
        n_fed = 0
        while stage.n_letters() == 0:
            stage.publish(other, feed[n_fed:n_fed + 5])
            n_fed += 5
            wait_until(lambda: app.n_done() >= n + n_fed, "the others go on while the letter is written", 60, 0.005)
            gap, last = max(gap, time.monotonic() - last), time.monotonic()
            time.sleep(0.02)
            last += 0.02
        v.tell("a letter of 64 MiB to a slow database: written after, seconds", f"{time.monotonic() - start:.1f}")
        v.least("messages of another queue done meanwhile", n_fed, 100, "{:d}")
        v.most("the longest that five of them took, seconds", gap, 1)
        v.tell("its peak of memory, MiB", f"{sidecar.status_kib('VmHWM') / 1024:.0f}")


def broken_replica(bed, v):
    n = 2000
    with Stage(bed, "broken") as stage:
        queue = stage.queue()
        good, broken = stage.app(commits=True), stage.app(bad=100000, answer=500)
        one = stage.sidecar([queue], broken.url, name="broken", completion="transaction").start()
        two = stage.sidecar([queue], good.url, name="good", completion="transaction").start()
        for sidecar in (one, two):
            sidecar.wait_for("consuming")
        stage.load(queue, n, rate=200)
        seconds = stage.wait_for_completed(n, 90)
        v.exactly(f"a broken replica beside a good one: done of {n:,} after {seconds or 90:.0f} s", stage.n_completed(), n)
        v.exactly("letters; doubled", (stage.n_letters(), stage.n_doubled()), (0, 0))
        v.tell("requests that the broken one answered", str(broken.n_bad()))


def prove(bed, o):
    v = Verdicts("neighbours: the others of a bad message, path, letter, replica")
    for part in (one_refused, many_refused, one_path, huge_letter, broken_replica):
        if o.only in part.__name__:
            part(bed, v)
    return v
