"""Message after message fails, and it is the messages: those behind them are reached, and nobody dies meanwhile who should not."""

import pytest

from rig.wait import wait_until


@pytest.mark.parametrize("answer", [400, 500])
def test_a_run_of_bad_messages_longer_than_what_is_held_keeps_no_good_one_from_being_done(bed, answer):
    """They are at the head of the queue, and more than are taken at once. While the brake is on others come in turn, so that the good ones
    are reached; the first of those ends it."""
    bad, good = [f"bad{i}" for i in range(40)], [f"good{i}" for i in range(10)]
    bed.app.handler = lambda request, reply: answer if request.message_id.startswith("bad") else bed.app.commit_and_answer(request, reply)
    bed.queue.publish_many(bad + good)
    sidecar = bed.sidecar(brake=5, prefetch=16, forward={"concurrency": 16}, pause_hold="10m", max_hold="20m",
                          retry={"max_attempts": 2, "backoff": "1s", "max_backoff": "1s"})
    sidecar.wait_for("paused", reason="everything_fails")
    sidecar.wait_for("completed", n=len(good), deadline=60)
    assert not sidecar.find("returned") and all(letter["message_id"].startswith("bad") for letter in bed.letters())
    bed.assert_once(*good)


def test_messages_without_an_id_stop_the_queue_and_say_what_they_have(bed):
    """A wrong setting kills no message. Possible ids are logged by name, never with a value."""
    for i in range(12):
        bed.queue.publish(None, b"body-marker", type="secret-marker", correlation_id=f"s3cret-{i}",
                          headers={"x-order-id": f"s3cret-{i}", "region": "secret-marker"})
    sidecar = bed.sidecar(brake=5)
    has = "it has the properties correlation_id, type, delivery_mode and the headers "
    paused = sidecar.wait_for("paused", reason="no_message_ids")
    text = paused["detail"]
    assert " times: the message has no id: looked for property:message_id; " + has in text, text
    assert sorted(text.partition(has)[2].split(", ")) == ["region", "x-order-id"], text
    stats = sidecar.wait_for("stats", state="paused", paused_reason="no_message_ids", held=12, paused_detail=lambda detail: has in detail)
    assert not stats.get("dead")
    wait_until(lambda: has in str(bed.rows("SELECT queues::text FROM onceward.replica WHERE queues::text LIKE %s", f"%{bed.queue.name}%")),
               "other replicas and `status` are told", 20)
    assert not bed.letters() and not bed.app.posts()
