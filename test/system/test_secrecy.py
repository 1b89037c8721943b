"""What must not stand in the log, on any line: the application's words, and the queries of URLs. Every line is searched for the marker,
whatever a test looks at: see rig/sidecar.py."""

import pytest
from test_commands import run

WORDS = b'invalid card 4111-1111 of Mrs Miller: "secret-marker"'


def refuses(status):
    return lambda request, reply: reply.status(status, WORDS, {"Content-Type": "text/plain"})


@pytest.mark.parametrize("completion", ["transaction", "response"])
def test_the_applications_words_stay_in_the_row_and_the_letter_and_never_come_into_the_log(bed, completion):
    """Also where the row brings them back: after a restart, and when its attempts are used up."""
    bed.app.handler = refuses(500)
    retry = {"max_attempts": 8, "backoff": "1h", "max_backoff": "1h"}
    first = bed.sidecar(completion=completion, retry=retry)
    bed.queue.publish("m1")
    assert first.wait_for("retry", message_id="m1")["error"] == "answered 500"
    bed.wait_for_status("m1", "failed")
    assert "secret-marker" in bed.row("m1")["last_error"], "or this test shows nothing"
    first.kill()
    bed.rows("UPDATE onceward.inbox SET next_attempt_at = now() + interval '1 hour' WHERE consumer = %s", bed.queue.name)
    second = bed.sidecar(completion=completion, retry=retry)
    assert second.wait_for("parked", message_id="m1", why="not_due")["last_error"] == "answered 500"
    second.kill()
    third = bed.sidecar(completion=completion, retry={**retry, "max_attempts": 1})
    line = third.wait_for("dead", message_id="m1")
    assert (line["reason"], line["error"]) == ("attempts", "answered 500")
    letter, = bed.letters()
    assert "secret-marker" in letter["last_error"]
    assert third.term() == 0 and not any(sidecar.check() for sidecar in bed.sidecars)


def test_the_query_of_the_readiness_url_is_not_told(bed):
    ready = bed.new_application("-ready")
    asked = []
    ready.handler = lambda request, reply: asked.append(request.line) or 503
    url = f"{ready.url}/healthz?key=secret-marker"
    sidecar = bed.sidecar(ready={"url": url, "interval": "50ms"}, wait=False)
    line = sidecar.wait_for("stats", state="paused", paused_detail=lambda text: "answered 503" in text)
    assert "/healthz" in line["paused_detail"] and "secret-marker" in asked[0]
    done = run("check", "--connect", "--config", sidecar.config_path)
    assert done.status == 1 and "/healthz" in done.out and "secret-marker" not in done.text, done.text
    ready.handler = ready.only_answer
    sidecar.wait_for("consuming", deadline=40)
    done = run("check", "--connect", "--config", sidecar.config_path)
    assert "answers that it is ready" in done.out and "secret-marker" not in done.text, done.text
