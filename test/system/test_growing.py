"""More queues by a consistent-hash exchange, some of them with a database of their own: which copies meet in one row, and which do not once
a queue was added. What deploy/kubernetes/README.md says of it is this."""

import random

import pytest

from rig.application import Application
from rig.bed import merge
from rig.wait import wait_until

pytestmark = pytest.mark.deploy

N_QUEUES = 4  # two a database
N_IDS = 150
COPIES = 3


class Growing:
    """An exchange before queues of one weight each; the first half of the queues belongs to the first of two databases."""

    def __init__(self, bed, second_database):
        self.bed = bed
        self.exchange = bed.name
        bed.queue.channel.exchange_declare(self.exchange, "x-consistent-hash", durable=True, arguments={"hash-property": "message_id"})
        other = Application(bed.name, second_database).start()
        bed.applications.append(other)
        self.applications = [bed.app, other]
        self.queues = [bed.queue] + [bed.new_queue(f"-{n}") for n in range(1, N_QUEUES)]
        for queue in self.queues:
            self.bind(queue)
        half = N_QUEUES // 2
        for application, queues in zip(self.applications, (self.queues[:half], self.queues[half:])):
            self.sidecar(application, queues)

    def bind(self, queue):
        self.bed.queue.channel.queue_bind(queue.name, self.exchange, routing_key="1")

    def sidecar(self, application, queues):
        config = self.bed.config(top={"database": {"url": application.postgres.dsn(user="sidecar_login")}}, app=application)
        keys = config["queues"].pop(self.bed.queue.name)
        config["queues"] = {queue.name: merge(keys, {}) for queue in queues}
        self.bed.sidecar(config=config, wait=False).wait_for("consuming", n=len(queues))

    def publish(self, ids):
        """To the exchange, in any order; the routing key says nothing."""
        ids = list(ids)
        random.shuffle(ids)
        self.bed.queue.publish_many(ids, exchange=self.exchange, routing_key="any")

    def wait_for_nothing(self):
        """Everything that was published has come to a sidecar, and none holds anything any more."""
        def received():
            return sum(line["received"] for sidecar in self.bed.sidecars for line in sidecar.find("stats"))

        wait_until(lambda: received() == self.bed.queue.n_published, lambda: f"{self.bed.queue.n_published} deliveries, there are {received()}", 60)
        for sidecar in self.bed.sidecars:
            sidecar.wait_for_nothing_held()

    def homes(self):
        """The queues in whose name a row of an id is completed, by id."""
        found = {}
        for application in self.applications:
            for message_id, consumer in application.postgres.query(
                    "SELECT message_id, consumer FROM onceward.inbox WHERE consumer LIKE %s AND status = 'completed'", (self.bed.name + "%",)):
                found.setdefault(message_id, []).append(consumer)
        return found

    def effects(self):
        counts = {}
        for application in self.applications:
            for message_id, n in application.effects().items():
                counts[message_id] = counts.get(message_id, 0) + n
        return counts


@pytest.fixture
def growing(bed, fresh_postgres):
    made = Growing(bed, fresh_postgres)
    yield made
    bed.queue.channel.exchange_delete(made.exchange)


def test_no_id_is_split_between_queues_and_databases(growing):
    ids = [f"order-{n}" for n in range(N_IDS)]
    growing.publish(ids * COPIES)
    wait_until(lambda: len(growing.effects()) == N_IDS, lambda: f"effects of {N_IDS} messages, there are {len(growing.effects())}", 60)
    growing.wait_for_nothing()
    homes = growing.homes()
    assert growing.effects() == dict.fromkeys(ids, 1)
    assert all(len(homes[i]) == 1 for i in ids)
    shares = [sum(where == [queue.name] for where in homes.values()) for queue in growing.queues]
    print(f"messages in each queue: {shares}")
    assert sum(shares) == N_IDS and min(shares) > 0, "all queues have a share"


def test_a_queue_that_is_added_has_a_part_of_the_ids_anew(growing):
    """Copies of an id before and after that are two messages, where the id has moved: it has two rows, and two effects."""
    ids = [f"order-{n}" for n in range(N_IDS)]
    growing.publish(ids)
    wait_until(lambda: len(growing.effects()) == N_IDS, lambda: f"effects of {N_IDS} messages, there are {len(growing.effects())}", 60)
    before = growing.homes()
    added = growing.bed.new_queue("-added")
    growing.queues.append(added)
    growing.bind(added)
    growing.sidecar(growing.applications[0], [added])
    growing.publish(ids)
    growing.wait_for_nothing()
    after = growing.homes()
    moved = {i for i in ids if len(after[i]) == 2}
    print(f"{len(moved)} of {N_IDS} ids moved")
    assert 0 < len(moved) < N_IDS // 2, "a fifth is to be expected"
    assert all(set(after[i]) - set(before[i]) == {added.name} for i in moved), "none moves between the queues that were there"
    assert growing.effects() == {i: len(after[i]) for i in ids}
