"""A message that kills the application, and its neighbours: those of its own queue, and those of other queues of the same application."""

import threading

import pytest

from rig.bed import merge


class Mortal:
    """An application that `killer` kills, once a neighbour is at work (or cannot be got to work); it comes again after a moment."""

    def __init__(self, bed):
        self.bed = bed
        self.neighbour = threading.Event()
        bed.app.handler = self

    def __call__(self, request, reply):
        if request.message_id == "killer":
            self.neighbour.wait(0.7)
            self.bed.app.die()
            threading.Timer(0.05, self.bed.app.start).start()
            reply.close()
            return None
        self.neighbour.set()
        try:
            if threading.Event().wait(0.3):
                return 500
        finally:
            self.neighbour.clear()
        return 204


@pytest.mark.parametrize("same", [True, False], ids=["same-queue", "another-queue"])
def test_a_killer_is_charged_and_its_neighbour_is_not(bed, same):
    other = bed.queue if same else bed.new_queue("-other")
    config = bed.config(completion="response", retry={"max_attempts": 4})
    if not same:
        config["queues"][other.name] = merge(config["queues"][bed.queue.name], {})
    Mortal(bed)
    bed.sidecar(config=config)
    bed.queue.publish_many(["killer"])
    other.publish_many(["neighbour"])
    bed.wait_for_status("killer", "dead", 40)
    row = bed.wait_for_status("neighbour", "completed", 20, consumer=other.name)
    attempts = [p.attempt for p in bed.app.posts("neighbour")]
    assert row["attempt"] == 1 and set(attempts) == {1}, f"charged for its neighbour: {attempts}"
    assert [x["reason"] for x in bed.letters("killer")] == ["attempts"]
