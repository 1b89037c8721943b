"""One consumer name over several queues: their limits, their one row an id, and ranges that change under load."""

import random

import pytest
from test_commands import good

from rig.bed import merge
from rig.wait import wait_until

COMPLETIONS = ["transaction", "response"]


class Partitions:
    """Queues of a bed, by number, and configurations with a range of them."""

    def __init__(self, bed):
        self.bed = bed
        self.queues = {}

    def declare(self, *numbers):
        for n in numbers:
            self.queues[n] = self.bed.new_queue(f"-{n}")

    def config(self, first, last, top=None, **keys):
        config = self.bed.config(top=top, **keys)
        entry = config["queues"][self.bed.queue.name]
        return merge(config, {"queues": {self.bed.queue.name: merge(entry, {"queue": self.name(first, last), "consumer": self.bed.name})}})

    def name(self, first, last):
        return f"{self.bed.name}-{{{first}..{last}}}"

    def sidecar(self, first, last, n=None, **keys):
        sidecar = self.bed.sidecar(config=self.config(first, last, **keys), wait=False)
        sidecar.wait_for("consuming", n=last - first + 1 if n is None else n)
        return sidecar

    def publish(self, ids, copies=1, numbers=None):
        numbers = numbers or sorted(self.queues)
        for message_id in ids:
            for n in random.sample(numbers, min(copies, len(numbers))):
                self.queues[n].publish(message_id)

    def recorded(self):
        return self.bed.rows("SELECT queue FROM onceward.consumer WHERE consumer = %s", self.bed.name)[0]["queue"]

    def wait_for_recorded(self, first, last):
        wait_until(lambda: self.recorded() == self.name(first, last), lambda: f"{self.name(first, last)}, recorded is {self.recorded()}", 60)

    def wait_for_nothing(self):
        for queue in self.queues.values():
            queue.wait_for_ready(0)
        for sidecar in self.bed.sidecars:
            if sidecar.child is not None and sidecar.child.poll() is None:
                sidecar.wait_for_nothing_held()

    def assert_once(self, ids):
        doubled = {i: n for i, n in self.bed.app.effects().items() if n != 1}
        assert not doubled, f"{len(doubled)} messages have another number of effects than 1: {dict(list(doubled.items())[:5])}"
        assert set(ids) <= set(self.bed.app.effects())


@pytest.fixture
def partitions(bed):
    return Partitions(bed)


def test_several_partitions_have_one_stats_line(bed, partitions):
    partitions.declare(0, 1, 2, 3)
    sidecar = partitions.sidecar(0, 3)
    ids = [f"m{n}" for n in range(40)]
    partitions.publish(ids)
    bed.wait_for_effects(ids)
    partitions.wait_for_nothing()
    line = sidecar.wait_for("stats", completed_total=40)
    assert line["queue"] == bed.queue.name and (line["partitions"], line["partitions_active"]) == (4, 4)
    assert {l["partition"] for l in sidecar.find("consuming")} == {q.name for q in partitions.queues.values()}
    times = [l["ts"] for l in sidecar.find("stats")]
    assert len(times) == len(set(times)), "one line an interval"
    assert bed.statuses(bed.name) == {"completed": 40}
    assert partitions.recorded() == partitions.name(0, 3)


def test_all_partitions_share_the_concurrency(bed, partitions):
    partitions.declare(0, 1, 2, 3)
    at_once, most = [0], [0]

    def handler(request, reply):
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        bed.app.commit(request)
        at_once[0] -= 1
        return 200

    bed.app.handler = handler
    partitions.sidecar(0, 3, forward={"concurrency": 2, "url": bed.app.url})
    ids = [f"m{n}" for n in range(80)]
    partitions.publish(ids)
    bed.wait_for_effects(ids)
    assert most[0] <= 2


@pytest.mark.short("transaction")
@pytest.mark.parametrize("completion", COMPLETIONS)
def test_copies_in_several_partitions_are_done_once(bed, partitions, completion):
    partitions.declare(0, 1, 2, 3)
    ids = [f"m{n}" for n in range(100)]
    partitions.publish(ids, copies=4)
    partitions.sidecar(0, 3, completion=completion)
    bed.wait_for_effects(ids)
    partitions.wait_for_nothing()
    partitions.assert_once(ids)


@pytest.mark.short("transaction")
@pytest.mark.parametrize("completion", COMPLETIONS)
def test_a_range_grows_under_load(bed, partitions, completion):
    partitions.declare(*range(6))
    old = partitions.sidecar(0, 3, completion=completion)
    before, after = [f"a{n}" for n in range(150)], [f"b{n}" for n in range(150)]
    partitions.publish(before, copies=2, numbers=[0, 1, 2, 3])
    new = partitions.sidecar(0, 5, completion=completion)
    assert new.wait_for("partitions_changed")["to"] == partitions.name(0, 5)
    partitions.publish(before + after, copies=2)
    old.term()
    bed.wait_for_effects(before + after)
    partitions.wait_for_nothing()
    partitions.assert_once(before + after)
    assert partitions.recorded() == partitions.name(0, 5)


@pytest.mark.short("transaction")
@pytest.mark.parametrize("completion", COMPLETIONS)
def test_a_partition_that_leaves_the_range_is_read_until_it_is_empty(bed, partitions, completion):
    partitions.declare(*range(6))
    first = partitions.sidecar(0, 5, completion=completion)
    first.term()
    ids = [f"m{n}" for n in range(120)]
    partitions.publish(ids, copies=2)
    sidecar = bed.sidecar(config=partitions.config(0, 3, completion=completion), wait=False)
    bed.wait_for_effects(ids)
    line = sidecar.wait_for("partitions_changed", deadline=90)
    assert (line["from"], line["to"]) == (partitions.name(0, 5), partitions.name(0, 3))
    partitions.wait_for_nothing()
    partitions.assert_once(ids)
    assert partitions.recorded() == partitions.name(0, 3)
    wait_until(lambda: partitions.queues[5].n_consumers == 0, "nobody reads the last partition any more", 20)
    sidecar.wait_for("stats", partitions=4, partitions_active=4)


def test_the_wider_range_holds_while_a_replica_has_it(bed, partitions):
    partitions.declare(*range(4))
    wide = partitions.sidecar(0, 3)
    narrow = bed.sidecar(config=partitions.config(0, 1), wait=False)
    narrow.wait_for("consuming", n=4)
    wait_until(lambda: partitions.queues[3].n_consumers == 2, "both read the last partition", 20)
    wide.kill()
    partitions.queues[3].publish("left")
    bed.wait_for_effects(["left"])
    narrow.wait_for("partitions_changed", to=partitions.name(0, 1), deadline=90)
    partitions.wait_for_recorded(0, 1)


def test_another_pattern_is_refused(bed, partitions):
    partitions.declare(0, 1)
    partitions.sidecar(0, 1).term()
    other = partitions.config(0, 1)
    other["queues"][bed.queue.name]["queue"] = f"{bed.name}-x{{0..1}}"
    line = bed.sidecar(config=other, wait=False).wait_for("refused")
    assert partitions.name(0, 1) in line["reason"]
    plain = partitions.config(0, 1)
    plain["queues"][bed.queue.name]["queue"] = bed.queue.name
    assert partitions.name(0, 1) in bed.sidecar(config=plain, wait=False).wait_for("refused")["reason"]
    plain["queues"][bed.queue.name]["takes_over"] = partitions.name(0, 1)
    plain.pop("state_file")
    bed.sidecar(config=plain)


def test_a_queue_of_a_range_belongs_to_one_consumer(bed, partitions):
    partitions.declare(0, 1)
    partitions.sidecar(0, 1)
    config = bed.config(queue=partitions.queues[1])
    line = bed.sidecar(config=config, wait=False).wait_for("refused")
    assert bed.name in line["reason"]


def test_a_missing_partition_does_not_hold_up_the_others(bed, partitions):
    partitions.declare(0, 2)
    sidecar = partitions.sidecar(0, 2, n=2)
    assert sidecar.wait_for("no_queue")["partition"] == f"{bed.name}-1"
    partitions.publish(["m1", "m2"])
    bed.wait_for_effects(["m1", "m2"])
    line = sidecar.wait_for("stats", partitions=3, partitions_active=2)
    assert line["state"] == "consuming"
    partitions.declare(1)
    sidecar.wait_for("stats", partitions_active=3, deadline=60)


def test_ordered_partitions_may_wait_with_a_prefetch_each(bed, partitions):
    single = {"x-queue-type": "quorum", "x-single-active-consumer": True}
    for n in range(3):
        partitions.queues[n] = bed.new_queue(f"-{n}", arguments=single)
    bed.app.handler = lambda request, reply: 500
    sidecar = partitions.sidecar(0, 2, brake=0, order={"key": ["header:account"]}, delivery_limit=0, retry={"backoff": "1h", "max_backoff": "1h"})
    for n in range(3):
        for m in range(120):
            partitions.queues[n].publish(f"m{n}-{m}", headers={"account": f"{n}-{m}"})
    wait_until(lambda: sum(row["n"] for row in bed.rows(
        "SELECT count(*)::int AS n FROM onceward.inbox WHERE consumer = %s AND status = 'failed'", bed.name)) == 360, "360 messages wait", 90)
    sidecar.wait_for("stats", since=len(sidecar.find("stats")), parked=lambda n: n > 257)
    assert not sidecar.find("parked_full")


def test_a_letter_keeps_the_name_of_its_partition(bed, partitions):
    partitions.declare(0, 1, 2)
    bed.app.handler = lambda request, reply: 400
    partitions.sidecar(0, 2, brake=0)
    for n in range(3):
        partitions.queues[n].publish(f"m{n}")
    wait_until(lambda: len(bed.letters(consumer=bed.name)) == 3, "three letters", 30)
    assert {(l["message_id"], l["queue"]) for l in bed.letters(consumer=bed.name)} == {(f"m{n}", f"{bed.name}-{n}") for n in range(3)}


def test_commands_know_the_partitions(bed, partitions):
    partitions.declare(0, 1, 2)
    bed.app.handler = lambda request, reply: 400
    sidecar = partitions.sidecar(0, 2, brake=0)
    checked = good("check", "--config", sidecar.config_path, "--connect")
    assert f"consumer {bed.name} belongs to queue {partitions.name(0, 2)}" in checked
    partitions.queues[2].publish("m1")
    wait_until(lambda: bed.letters(consumer=bed.name), "a letter", 30)
    good("pause", "--config", sidecar.config_path, "--consumer", bed.name, "--reason", "a look")
    assert sidecar.wait_for("paused", reason="operator")
    assert len(sidecar.find("paused", reason="operator")) == 1, "all partitions pause, and one line says so"
    good("dead", "redrive", "--config", sidecar.config_path, "--consumer", bed.name)
    bed.app.handler = lambda request, reply: bed.app.commit(request) and 200
    good("resume", "--config", sidecar.config_path, "--consumer", bed.name)
    bed.wait_for_effects(["m1"])
    assert sidecar.wait_for("completed", message_id="m1")["partition"] == partitions.queues[2].name
