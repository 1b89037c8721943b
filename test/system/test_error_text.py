"""The application's text beside an error: its first 256 bytes are for readers of the row and the letter, and never for the log."""

import os

import pytest

from rig.application import Script
from test_commands import run

SECRET = "card secret-marker of Mrs Miller"  # no line of a log may hold it: the rig looks at each
TEXT = SECRET + ": no such field: vat " + "x" * 400


def refuse(status):
    return lambda request, reply: reply.status(status, TEXT.encode())


def kept(brief):
    return f'{brief}: "{TEXT[:256]}"'


@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "not-kept"])
def test_the_text_of_an_error_is_in_the_row_and_in_the_letter_and_never_in_the_log(bed, keeps):
    bed.app.handler = Script(refuse(500), refuse(422))
    bed.queue.publish("m1")
    sidecar = bed.sidecar(forward={"error_body": keeps}, retry={"backoff": "30s", "max_backoff": "30s"})
    assert sidecar.wait_for("retry", message_id="m1")["error"] == "answered 500"
    row = bed.wait_for_status("m1", "failed")
    assert row["last_error"] == (kept("answered 500") if keeps else "answered 500")

    # Another process learns of it from the row.
    sidecar.kill()
    other = bed.sidecar(forward={"error_body": keeps}, retry={"backoff": "10ms", "max_backoff": "10ms"})
    assert other.wait_for("parked", message_id="m1")["last_error"] == "answered 500"
    bed.rows("UPDATE onceward.inbox SET next_attempt_at = clock_timestamp() WHERE consumer = %s", bed.queue.name)
    other.kill()
    third = bed.sidecar(forward={"error_body": keeps})
    line = third.wait_for("dead", message_id="m1")
    assert line["error"] == "answered 422"
    letter, = bed.letters("m1")
    assert letter["last_error"] == bed.row("m1")["last_error"] == (kept("answered 422") if keeps else "answered 422")


def test_attempts_that_are_used_up_in_the_row_are_said_without_the_text(bed):
    """The process that finds the row used up never saw the answer."""
    bed.app.handler = Script(refuse(500))
    bed.queue.publish("m1")
    sidecar = bed.sidecar(retry={"max_attempts": 3, "backoff": "30s", "max_backoff": "30s"})
    sidecar.wait_for("retry", message_id="m1")
    sidecar.kill()
    bed.rows("UPDATE onceward.inbox SET attempt = 3, next_attempt_at = clock_timestamp() WHERE consumer = %s", bed.queue.name)
    line = bed.sidecar().wait_for("dead", message_id="m1")
    assert line["reason"] == "attempts" and line["error"] == "answered 500"
    letter, = bed.letters("m1")
    assert letter["last_error"] == kept("answered 500")


def test_what_is_too_old_keeps_its_last_text_in_the_letter_alone(bed):
    bed.app.handler = refuse(500)
    bed.queue.publish("m1")
    sidecar = bed.sidecar(retry={"max_attempts": 1000, "backoff": "300ms", "max_backoff": "300ms", "max_age": "1s"})
    line = sidecar.wait_for("dead", message_id="m1", reason="too_old")
    assert line["error"] == "older than max_age; last: answered 500"
    letter, = bed.letters("m1")
    assert letter["last_error"] == kept("older than max_age; last: answered 500")


def test_the_query_of_the_readiness_url_is_in_no_line(bed):
    ready = bed.new_application("-ready")
    ready.handler = lambda request, reply: 401
    sidecar = bed.sidecar(wait=False, ready={"url": ready.url + "?key=secret-marker", "interval": "50ms"})
    line = sidecar.wait_for("waiting", reason="application_down")
    assert "answered 401" in line["detail"] and "/messages" in line["detail"]
    sidecar.wait_for("stats", since=sidecar.mark(), n=2)


def test_a_message_without_a_content_type_goes_with_the_configured_one(bed):
    sidecar = bed.sidecar(forward={"content_type": "application/json; charset=utf-8"})
    for name, properties, expected in (("none", {}, "application/json; charset=utf-8"), ("own", {"content_type": "text/csv"}, "text/csv"),
                                       ("bad", {"content_type": "json"}, "application/octet-stream")):
        bed.queue.publish(name, **properties)
        sidecar.wait_for("completed", message_id=name)
        assert bed.app.posts(name)[0].header("Content-Type") == expected
    path = sidecar.config_path
    assert "forward.content_type" not in run("check", "--config", path).out
    with open(path) as f:
        text = f.read()
    other = os.path.join(bed.folder, "without.json")
    with open(other, "w") as f:
        f.write(text.replace('"content_type": "application/json; charset=utf-8"', '"error_body": true'))
    done = run("check", "--config", other)
    assert done.status == 0 and "forward.content_type is not set" in done.out, done.text
