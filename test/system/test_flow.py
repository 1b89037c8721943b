"""How many requests the application gets at once."""

from rig.application import Gate


def test_long_jobs_fill_their_slots_without_an_answer(bed):
    """Adding one a second would take a minute."""
    gate = Gate()

    def handler(request, reply):
        gate.wait()
        return bed.app.commit_and_answer(request, reply)

    bed.app.handler = handler
    sidecar = bed.sidecar(forward={"concurrency": 64}, token_window="4m")
    ids = [f"m{i}" for i in range(64)]
    bed.queue.publish_many(ids)
    gate.wait_for_waiting(64, deadline=20)
    gate.open()
    bed.wait_for_effects(ids)
    sidecar.wait_for_quiet()
    bed.assert_once(*ids)
