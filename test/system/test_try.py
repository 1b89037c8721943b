"""onceward try: it finds what applications do wrong, finds nothing where nothing is, and leaves no rows behind."""

import json
import os
import re
import signal
import subprocess
import time

import pytest

from rig import pages, process, schema, tried
from rig.application import Application, Gate
from rig.wait import wait_until

EFFECT = "SELECT count(*) FROM app.ledger WHERE message_id = $1"
ENVIRONMENT = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8",
               "ASAN_OPTIONS": "detect_leaks=1:exitcode=99", "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:exitcode=98"}
QUICK = 60.0  # seconds: it ends itself after 24
PATIENT = {"ONCEWARD_FAILPOINT": "try_ms=150000"}  # on a machine that is busy with something else it takes longer than it may


class Place:
    def __init__(self, folder, postgres, name):
        self.folder, self.postgres, self.name = str(folder), postgres, name
        self.environment = {**ENVIRONMENT, **PATIENT}

    def config(self, url, **queue):
        config = {"broker": {"url": "amqp://guest:guest@127.0.0.1:1/"}, "database": {"url": self.postgres.dsn(user="sidecar_login")},
                  "queues": {"orders": {"completion": "transaction", "forward": {"url": url}, **queue}}}
        path = os.path.join(self.folder, "config.json")
        with open(path, "w") as f:
            json.dump(config, f)
        return path

    def arguments(self, url, *more, effect=EFFECT, **queue):
        arguments = [schema.require_binary(), "try", "--config", self.config(url, **queue), "--queue", "orders", *more]
        return arguments + (["--effect", effect, "--effect-database", self.postgres.dsn(user="app_login")] if effect else [])

    def run(self, url, *more, **options):
        start = time.monotonic()
        done = subprocess.run(self.arguments(url, *more, **options), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=240, env=self.environment)
        self.took = time.monotonic() - start
        self.err = done.stderr.decode(errors="replace")
        assert "Sanitizer" not in self.err and done.returncode in (0, 1, 2), self.err
        assert self.rows() == []
        return done.returncode, done.stdout.decode(errors="replace")

    def rows(self):
        return self.postgres.query("SELECT message_id, status FROM onceward.inbox WHERE consumer LIKE 'onceward-try.%'")

    def try_it(self, handler, *more, **options):
        """Its exit status, and what it said."""
        with tried.Running(handler, self.name, self.postgres) as application:
            status, out = self.run(application.url, "--json", *more, **options)
        assert out, self.err
        return status, json.loads(out)


@pytest.fixture
def place(tmp_path, postgres, request):
    schema.require_binary()
    yield Place(tmp_path, postgres, request.node.name)


def found(said):
    return {f["finding"]: f for case in said["cases"] for f in case["findings"]}


def verdicts(said):
    return {case["case"]: case["verdict"] for case in said["cases"]}


# --- a right one ---

@pytest.mark.parametrize("handler, completion, skipped", [
    (tried.Right, "transaction", set()), (tried.ClosesEach, "transaction", set()),
    (tried.RightResponse, "response", {"stale", "taken", "twice", "window"})])
def test_a_right_application_is_good(place, handler, completion, skipped):
    status, said = place.try_it(handler, completion=completion)
    assert status == 0 and not found(said) and said["breaks"] is False and said["rows_left"] == 0
    assert verdicts(said) == {name: "skipped" if name in skipped else "ok" for name in verdicts(said)}
    assert len(verdicts(said)) == 13


def test_closing_after_each_answer_is_allowed_and_said(place):
    _, said = place.try_it(tried.ClosesEach)
    assert "allowed" in next(case for case in said["cases"] if case["case"] == "kept")["note"]


def test_without_an_effect_it_says_what_it_cannot_see(place):
    status, said = place.try_it(tried.Right, effect=None)
    assert status == 0 and not found(said)
    assert {name for name, verdict in verdicts(said).items() if verdict == "skipped"} == {"duplicate", "early"}


def test_an_effect_without_the_id_is_counted_by_its_difference(place):
    status, said = place.try_it(tried.Right, effect="SELECT count(*) FROM app.ledger")
    assert status == 0 and not found(said)


# --- broken ones ---

@pytest.mark.parametrize("handler, wanted", [
    (tried.CompletesAfterTheAnswer, {"completes_late", "said_done", "said_yes_undone"}),
    (tried.CompletesInAnotherTransaction, {"kept_its_work", "swallowed_late", "repeated", "work_first", "wrote_late", "twice_done"}),
    (tried.CompletesBeforeItsTransaction, {"completed_first"}),
    (tried.SwallowsTheError, {"swallowed", "repeated", "swallowed_late", "wrote_late", "twice_done"}),
    (tried.AnswersBeforeTheCommit, {"answers_early"}),
    (tried.RetriesInside, {"retries"}),
    (tried.Says200, {"said_yes_undone", "said_done"}),
    (tried.RemembersBeforeItsTransaction, {"not_again", "not_again_late", "not_after_window"}),
    (tried.LimitsBodies, {"body_refused"}),
    (tried.WantsJson, {"type_refused"}),
    (tried.LimitsHeaders, {"headers_refused"}),
    (tried.LeavesBodiesUnread, {"reused_wrongly", "type_refused"}),
    (tried.ClosesSoon, {"not_kept"}),
    (tried.OneAtATime, {"one_at_a_time"}),
    (tried.ThreeAtOnce, {"few_at_once"}),
    (tried.DiesOfAWrongBody, {"died_of_it"}),
    (tried.FailsForAWrongBody, {"tried_again"}),
    (tried.Fails, {"not_done"}),
])
def test_a_broken_application_is_found(place, handler, wanted):
    status, said = place.try_it(handler)
    late = {"answers_early"} if handler is tried.CompletesAfterTheAnswer else set()  # seen when its commit takes long enough
    assert set(found(said)) - late == wanted
    assert status == (1 if any(f["level"] == "breaks" for f in found(said).values()) else 0) and said["breaks"] == (status == 1)
    assert all(f["seen"] and f["contract"] and f["mend"] for f in found(said).values())


@pytest.mark.parametrize("handler, wanted", [
    (tried.Says200ForEverything, {"said_yes"}),
    (tried.AnswersBeforeTheEffect, {"acked_early"}),
    (tried.KeepsNoKey, {"not_idempotent"}),
    (tried.DoesNothing, {"no_effect"}),
    (tried.OneAtATimeResponse, {"one_at_a_time"}),
])
def test_a_broken_application_of_the_other_completion_is_found(place, handler, wanted):
    status, said = place.try_it(handler, completion="response")
    assert set(found(said)) >= wanted and set(found(said)) <= wanted | {"said_yes"}
    assert status == (1 if any(f["level"] == "breaks" for f in found(said).values()) else 0)


@pytest.mark.long
def test_a_slow_application_is_tried_as_far_as_there_is_time(place):
    place.environment = ENVIRONMENT
    status, said = place.try_it(tried.Slow)
    assert status == 0 and not found(said) and place.took < QUICK
    late = [case["case"] for case in said["cases"] if case.get("not_looked_at") == "no time was left"]
    assert late == [case["case"] for case in said["cases"]][-len(late):] and 0 < len(late) < 9


def test_nobody_there_is_said(place):
    status, out = place.run(f"http://127.0.0.1:{process.free_port()}/")
    assert status == 1 and out.startswith("Nothing answers at http://127.0.0.1:") and "is the application running?" in out
    assert "connection refused" in out and out.count("\n") == 1


# --- several messages in a request ---

SEVERAL = ["several", "poison", "partial", "stale_one", "commit", "cut"]


def several(**forward):
    return {"content_type": "application/json", "concurrency": 4, "batch": {"max_messages": 100}, **forward}


def try_several(place, handler, *more, completion="transaction", **options):
    with tried.Running(handler, place.name, place.postgres) as application:
        status, out = place.run(application.url, "--json", *more, forward={"url": application.url, **several()}, completion=completion,
                                **options)
    assert out, place.err
    return status, json.loads(out)


@pytest.mark.parametrize("handler, completion, skipped, notes", [
    (tried.Several, "transaction", {"type"}, set()), (tried.AllOrNothing, "transaction", {"type"}, {"poison", "stale_one"}),
    (tried.SeveralResponse, "response", {"stale", "taken", "twice", "window", "type", "stale_one", "cut"}, set())])
def test_a_right_application_of_batches_is_good(place, handler, completion, skipped, notes):
    status, said = try_several(place, handler, completion=completion)
    assert status == 0 and not found(said) and said["rows_left"] == 0
    assert verdicts(said) == {name: "skipped" if name in skipped else "ok" for name in verdicts(said)}
    assert list(verdicts(said))[-6:] == SEVERAL and "headers" not in verdicts(said)
    assert {case["case"] for case in said["cases"] if case["case"] in SEVERAL and "note" in case} == notes


@pytest.mark.short("SeveralAtMostOne-transaction-wanted0", "NamesNobody-response-wanted2", "SeveralBeforeTheCommit-transaction-wanted6")
@pytest.mark.parametrize("handler, completion, wanted", [
    (tried.SeveralAtMostOne, "transaction", {"several_not_done", "poison_spreads", "poison_unnamed", "partial_not_again", "stale_one_not_again",
                                              "cut_not_again"}),
    (tried.SeveralWithoutCount, "transaction", {"several_unclear"}),
    (tried.NamesNobody, "response", {"poison_done", "partial_lost"}),
    (tried.StopsAtTheFirst, "response", {"partial_lost"}),
    (tried.TakesAllAsValid, "transaction", {"stale_one_wrote", "cut_wrote"}),
    (tried.SeveralRemembered, "transaction", {"partial_not_again", "stale_one_not_again", "cut_not_again"}),
    (tried.SeveralBeforeTheCommit, "transaction", {"commit_late"}),
    (tried.SeveralApart, "transaction", {"stale_one_wrote", "commit_apart", "cut_wrote"}),
    (tried.SeveralOneWrongIsAll, "transaction", {"poison_spreads"}),
])
def test_a_broken_application_of_batches_is_found(place, handler, completion, wanted):
    status, said = try_several(place, handler, completion=completion)
    names = {case["case"]: [f["finding"] for f in case["findings"]] for case in said["cases"]}
    assert {name for case in SEVERAL for name in names[case]} == wanted, said
    assert status == (1 if any(f["level"] == "breaks" for f in found(said).values()) else 0)


def test_an_application_that_knows_no_batches_is_found_at_once(place):
    status, said = try_several(place, tried.Right)
    assert status == 1 and set(found(said)) == {"not_done"} and "Onceward-Batch" in found(said)["not_done"]["seen"] + found(said)["not_done"]["mend"]


# --- what it is given ---

def test_the_message_is_the_users_own(place, tmp_path):
    application = Application(place.name, place.postgres).start()
    message = tmp_path / "order.xml"
    message.write_text("<order id='{{id}}' cents='250'/>")
    try:
        status, _ = place.run(application.url, "--message", str(message), "--content-type", "application/xml")
        ordinary = application.posts()[0]
        assert status == 0 and ordinary.header("Content-Type") == "application/xml"
        assert ordinary.body.decode() == f"<order id='{ordinary.message_id}' cents='250'/>"
        assert ordinary.header("Onceward-Queue") == "orders" and ordinary.header("Onceward-Consumer").startswith("onceward-try.")
    finally:
        application.stop()


@pytest.mark.parametrize("more, said", [
    (["--effect", "SELECT 1, 2", "--queue", "orders"], "expected one number"),
    (["--effect", "SELECT 'a'", "--queue", "orders"], "expected a number"),
    (["--effect", "DELETE FROM app.ledger RETURNING 1", "--queue", "orders"], "read-only"),
    (["--effect", "SELEKT", "--queue", "orders"], "syntax error"),
    (["--message", "/no/such/file", "--queue", "orders"], "/no/such/file"),
])
def test_what_cannot_be_used_is_said(place, more, said):
    path = place.config("http://127.0.0.1:1/")
    done = subprocess.run([schema.require_binary(), "try", "--config", path, "--effect-database", place.postgres.dsn(user="app_login"),
                           *(more if "--effect" in more else ["--effect", EFFECT, *more])], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, env=ENVIRONMENT)
    assert done.returncode == 1 and said in done.stderr.decode() and not done.stdout and place.rows() == []


def test_wrong_usage_is_said(place):
    path = place.config("http://127.0.0.1:1/")
    for more, said in (([], "--queue NAME is missing"), (["--queue", "none"], '"none"'), (["--queue", "orders", "x"], '"x"'),
                       (["--queue", "orders", "--effect-database", "postgresql://a/b"], "is for --effect")):
        done = subprocess.run([schema.require_binary(), "try", "--config", path, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=60, env=ENVIRONMENT)
        assert done.returncode == 2 and said in done.stderr.decode()


# --- nothing is left ---

@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(place, number):
    """The run is interrupted while the application is in the middle of its work, which continues only after the run has ended."""
    gate = Gate()
    application = Application(place.name, place.postgres).start()
    application.handler = lambda request, reply: (gate.wait(), application.try_commit(request))[1] and 500
    child = process.spawn(place.arguments(application.url), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=ENVIRONMENT)
    try:
        gate.wait_for_waiting()
        assert len(place.rows()) == 1
        child.send_signal(number)
        _, err = child.communicate(timeout=30)
        assert child.returncode == 1 and b"interrupted" in err and place.rows() == []
        gate.open()
        wait_until(lambda: application.posts() and not application._connections, "the handler ends")
        assert application.effects() == {} and place.rows() == []
    finally:
        gate.open()
        process.reap(child)
        application.stop()


def test_what_a_killed_run_left_is_removed_by_a_later_one(place):
    place.postgres.query(
        "INSERT INTO onceward.inbox (consumer, message_id, status, attempt, token, fingerprint, received_at, token_expires_at,"
        " max_expires_at, claimed_by) SELECT c, id, 'processing', 1, gen_random_uuid(), '\\x00', now() - interval '2 hours', now(), now(), 'a'"
        " FROM (VALUES ('onceward-try.1', 'onceward-try.1.1'), ('onceward-trx', 'onceward-try.1.2')) v (c, id)")
    place.run(f"http://127.0.0.1:{process.free_port()}/")
    assert place.postgres.query("DELETE FROM onceward.inbox WHERE consumer LIKE 'onceward-tr%' RETURNING consumer") == [("onceward-trx",)]


# --- what it publishes ---

def outbox(place):
    return {x[0] for n in range(3) for x in place.postgres.query(f"SELECT message_id FROM onceward.outbox_{n}")}


def test_what_the_application_publishes_is_counted_and_deleted_on_request(tmp_path, fresh_postgres, request):
    place = Place(tmp_path, fresh_postgres, request.node.name)
    status, said = place.try_it(tried.Publishes)
    kept = said["published"]
    assert status == 0 and kept["n"] > 5 and kept["n"] == kept["unsent"] == len(outbox(place)) and kept["discarded"] == 0
    assert kept["ids"].startswith("said.onceward-try.")
    before = outbox(place)
    place.postgres.query("SELECT onceward.publish('nowhere', 'key', '{}'::jsonb, 'of-another')")
    status, said = place.try_it(tried.Publishes, "--discard-published")
    gone = said["published"]
    assert status == 0 and gone["n"] > 5 and gone["discarded"] == gone["n"]
    assert outbox(place) == before | {"of-another"}


def test_what_a_relay_may_have_sent_is_not_deleted(tmp_path, fresh_postgres, request):
    place = Place(tmp_path, fresh_postgres, request.node.name)
    place.postgres.query("UPDATE onceward.outbox SET holder = 'pod', number = 7, held_until = clock_timestamp() + interval '1 hour' "
                         "RETURNING holder")
    with tried.Running(tried.Publishes, place.name, place.postgres) as application:
        status, out = place.run(application.url, "--discard-published")
    assert status == 0 and "A relay is running (pod/7): it sends them to the broker, or has sent them." in out
    assert outbox(place)


def test_a_count_that_fails_does_not_say_that_rows_are_left(tmp_path, fresh_postgres, request):
    place = Place(tmp_path, fresh_postgres, request.node.name)
    name, = place.postgres.query("SELECT oid::regprocedure::text FROM pg_proc WHERE proname = 'sidecar_try_published'")[0]
    place.postgres.query(f"DO $$ BEGIN EXECUTE 'ALTER FUNCTION {name} RENAME TO hidden'; END $$; SELECT 1")
    with tried.Running(tried.Publishes, place.name, place.postgres) as application:
        status, _ = place.run(application.url)
    assert status == 1 and "published are neither counted nor deleted: " in place.err and "rows of" not in place.err, place.err


# --- as text ---

def test_advice_alone_fails_with_strict_only(place):
    with tried.Running(tried.OneAtATime, place.name, place.postgres) as application:
        status, out = place.run(application.url)
        assert status == 0 and "Keeps the promises; 1 to look at (" in out
        assert "or takes two connections for each request" in out
        status, out = place.run(application.url, "--strict")
        assert status == 1 and "Keeps the promises; 1 to look at, so --strict fails (" in out


def test_an_error_page_is_shown_without_its_tags_and_skipped_cases_in_one_line(place):
    with tried.Running(tried.FailsWithAPage, place.name, place.postgres) as application:
        status, out = place.run(application.url)
    assert status == 1 and "500 Internal Server Error Out of seats" in out and "<h1>" not in out
    assert [x for x in out.splitlines() if x.startswith("skipped")] == [
        "skipped  duplicate, stale, taken, twice, early, wrong, window, many, kept, headers, body, type: "
        "an ordinary message is not completed"]


def test_the_text_has_the_contract_and_the_remedy(place):
    with tried.Running(tried.SwallowsTheError, place.name, place.postgres) as application:
        status, out = place.run(application.url)
    assert status == 1 and "Broken in" in out
    assert "swallowed: complete refused the token" in out and "contract  The application lets an error of complete abort" in out and "remedy    " in out


def test_the_table_of_the_page_is_current():
    made = subprocess.run([schema.require_binary(), "try", "--markdown"], check=True, stdout=subprocess.PIPE).stdout.decode()
    if os.environ.get("ONCEWARD_UPDATE"):
        pages.put("deploy/guides/try.md", "try", made)
    assert pages.part("deploy/guides/try.md", "try") == made, "run this test with ONCEWARD_UPDATE=1"


def test_the_help_names_every_case_and_every_case_a_finding():
    made = subprocess.run([schema.require_binary(), "try", "--markdown"], check=True, stdout=subprocess.PIPE).stdout.decode()
    said = subprocess.run([schema.require_binary(), "try", "--help"], check=True, stdout=subprocess.PIPE).stdout.decode()
    cases, findings = made.split("\n\n## Findings\n\n")
    names = [line.split("`")[1] for line in cases.splitlines()[2:]]
    assert len(names) == 19 and all(f"  {name} " in said for name in names)
    assert set(re.findall(r"^\*\w+, case `(\w+)`\.\*", findings, re.M)) == set(names)
