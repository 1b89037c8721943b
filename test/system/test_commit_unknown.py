"""The connection breaks after a statement was sent and before its answer: it was committed, and nobody here knows.

The link to the database lets questions pass and keeps the answers back; the row then shows that the statement was committed, and
the link is cut. The row is read before anything is done again."""

import psycopg2
import pytest

from rig.private import PatientBed
from rig.wait import wait_until


@pytest.fixture
def linked(request, tmp_path, postgres, rabbitmq):
    """A bed whose sidecar reaches the database through `link`."""
    bed = PatientBed(request.node.name, tmp_path, postgres, rabbitmq)
    request.node.bed = bed
    bed.link = bed.new_proxy(postgres.port)
    yield bed
    bed.deinit()


def start(bed, **keys):
    keys.setdefault("token_window", "60s")
    return bed.sidecar(top={"database": {"url": bed.postgres.dsn(user="sidecar_login", port=bed.link.port)}}, **keys)


def hold_answers(bed):
    bed.link.freeze(up=False, down=True)


def lose_answers(bed, sidecar):
    mark = sidecar.mark()
    bed.link.cut()
    bed.link.thaw()
    sidecar.wait_for("disconnected", peer="database", since=mark)
    sidecar.wait_for("connected", peer="database", since=mark)


def once(work):
    """A handler that does work the first time only."""
    done = []

    def first():
        if not done:
            done.append(True)
            work()

    return first


@pytest.mark.parametrize("completion", ["transaction", "response"])
def test_a_claim_that_was_committed_unknown_to_us_is_used(linked, completion):
    bed = linked
    bed.app.handler = bed.app.commit_and_answer if completion == "transaction" else bed.app.act_and_answer
    sidecar = start(bed, completion=completion)
    hold_answers(bed)
    bed.queue.publish_many(["m1", "m2"])
    bed.wait_for_status("m1", "processing")
    claimed = bed.row("m1")["token"]
    lose_answers(bed, sidecar)
    sidecar.wait_for("completed", message_id="m1")
    sidecar.wait_for("completed", message_id="m2")
    assert [r.attempt for r in bed.app.posts("m1")] == [1]
    assert bed.row("m1")["token"] == claimed and bed.row("m1")["attempt"] == 1
    bed.assert_once("m1", "m2")
    bed.assert_acked()


def test_a_completion_that_was_committed_unknown_to_us_is_acked_without_a_second_post(linked):
    bed = linked
    hold = once(lambda: hold_answers(bed))

    def handler(request, reply):
        hold()
        return bed.app.act_and_answer(request, reply)

    bed.app.handler = handler
    sidecar = start(bed, completion="response")
    bed.queue.publish("m1")
    bed.wait_for_status("m1", "completed")
    assert not sidecar.find("completed"), "nothing is acked before the answer was read"
    lose_answers(bed, sidecar)
    sidecar.wait_for("completed", message_id="m1")
    sidecar.wait_for_quiet()
    assert len(bed.app.posts()) == 1
    bed.assert_once("m1")
    bed.assert_acked()


def test_the_look_at_the_applications_completion_is_made_again(linked):
    bed = linked
    hold = once(lambda: hold_answers(bed))

    def handler(request, reply):
        hold()
        return bed.app.commit_and_answer(request, reply)

    bed.app.handler = handler
    sidecar = start(bed)
    bed.queue.publish("m1")
    bed.wait_for_status("m1", "completed")
    lose_answers(bed, sidecar)
    sidecar.wait_for("completed", message_id="m1")
    assert len(bed.app.posts()) == 1
    bed.assert_once("m1")
    bed.assert_acked()


def test_a_failure_that_was_written_unknown_to_us_is_one_attempt(linked):
    bed = linked
    hold = once(lambda: hold_answers(bed))

    def handler(request, reply):
        hold()
        return 500 if request.attempt == 1 else bed.app.commit_and_answer(request, reply)

    bed.app.handler = handler
    sidecar = start(bed, retry={"max_attempts": 2})
    bed.queue.publish("m1")
    bed.wait_for_status("m1", "failed")
    lose_answers(bed, sidecar)
    sidecar.wait_for("completed", message_id="m1")
    assert [r.attempt for r in bed.app.posts()] == [1, 2] and bed.letters() == []
    bed.assert_once("m1")
    bed.assert_acked()


@pytest.mark.parametrize("message_id", ["m1", None], ids=["with-an-id", "without"])
def test_a_death_that_was_written_unknown_to_us_is_one_letter(linked, message_id):
    bed = linked
    hold = once(lambda: hold_answers(bed))

    def handler(request, reply):
        hold()
        return 422

    bed.app.handler = handler
    sidecar = start(bed)
    if message_id is None:
        hold()
    bed.queue.publish(message_id)
    wait_until(lambda: len(bed.letters()) == 1, "the letter is committed")
    lose_answers(bed, sidecar)
    sidecar.wait_for_nothing_held(30)
    assert len(bed.letters()) == 1 and len(bed.app.posts()) == (1 if message_id else 0)
    assert message_id is None or bed.status(message_id) == "dead"
    bed.assert_acked()


def test_an_application_that_does_not_know_whether_it_has_committed_is_not_asked_again(linked):
    """Its answer is a failure; the row says completed, and that outranks it."""
    bed = linked
    app_link = bed.new_proxy(bed.postgres.port)

    class Linked:
        def connect(self, autocommit=True, **options):
            connection = psycopg2.connect(bed.postgres.dsn(port=app_link.port, **options))
            connection.autocommit = autocommit
            return connection

        query = staticmethod(bed.postgres.query)

    bed.app.postgres = Linked()
    bed.app.handler = lambda request, reply: bed.app.commit(request, before_commit=lambda: app_link.freeze(up=False)) and 200
    sidecar = start(bed)
    bed.queue.publish("m1")
    bed.wait_for_status("m1", "completed")
    app_link.cut()
    app_link.thaw()
    sidecar.wait_for("completed", message_id="m1")
    sidecar.wait_for("answer_contradicts_row", message_id="m1")
    assert len(bed.app.posts()) == 1 and len(bed.app.errors) == 1
    bed.assert_once("m1")
    bed.assert_acked()
