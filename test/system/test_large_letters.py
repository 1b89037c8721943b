"""Dead letters with bodies above 1 MiB: each is written alone, and is given time for its size."""

import os

import pytest

from rig.application import Gate
from rig.wait import wait_until

MIB = 1 << 20


@pytest.fixture
def slow_letters(bed):
    """A user's trigger, or a slow disk: large letters take longer than a statement may."""
    bed.rows(f"""CREATE FUNCTION public.slow_letter() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.consumer = '{bed.queue.name}' AND length(NEW.body) > {MIB} THEN PERFORM pg_sleep(3); END IF;
        RETURN NEW; END $$""")
    bed.rows("CREATE TRIGGER slow_letter BEFORE INSERT ON onceward.dead_letter FOR EACH ROW EXECUTE FUNCTION public.slow_letter()")
    yield
    bed.rows("DROP TRIGGER slow_letter ON onceward.dead_letter")
    bed.rows("DROP FUNCTION public.slow_letter()")


def sessions(bed, waits_for="%"):
    """Of the sidecar, at the database that this test's process has for itself."""
    return bed.rows("SELECT count(*)::int AS n FROM pg_stat_activity WHERE application_name = 'onceward' AND datname = current_database()"
                    " AND coalesce(wait_event, '') LIKE %s", waits_for)[0]["n"]


def test_a_large_letter_may_take_longer_than_other_statements(bed, slow_letters):
    bed.app.handler = lambda request, reply: 400 if request.message_id == "large" else bed.app.commit_and_answer(request, reply)
    sidecar = bed.sidecar(token_window="60s", top={"database": {"statement_timeout": "1s"}})
    bed.queue.publish("large", os.urandom(2 * MIB))
    sidecar.wait_for("dead", message_id="large", deadline=60)
    letter, = bed.letters()
    assert len(letter["body"]) == 2 * MIB and not sidecar.find("paused") and len(bed.app.posts("large")) == 1
    # Its connection has grown, and is given up.
    wait_until(lambda: sessions(bed) == 1, "its connection is closed")
    bed.queue.publish("m1")
    sidecar.wait_for("completed", message_id="m1")
    bed.assert_acked()


def test_others_go_on_while_a_large_letter_is_written(bed, slow_letters):
    """A large letter has a connection of its own, as long as it needs one."""
    bed.app.handler = lambda request, reply: 400 if request.message_id in ("large", "small") else bed.app.commit_and_answer(request, reply)
    sidecar = bed.sidecar(token_window="60s")
    ids = [f"m{i}" for i in range(20)]
    bed.queue.publish("large", os.urandom(2 * MIB))
    wait_until(lambda: sessions(bed, "PgSleep") == 1, "it is being written")
    bed.queue.publish_many(["small"] + ids)
    bed.wait_for_effects(ids)
    sidecar.wait_for("dead", message_id="small")
    assert sessions(bed, "PgSleep") == 1 and not sidecar.find("dead", message_id="large")
    sidecar.wait_for("dead", message_id="large")
    wait_until(lambda: sessions(bed) == 1, "the second connection is closed")
    bed.assert_acked()


def test_large_letters_have_a_transaction_each_and_small_ones_may_share(bed):
    gate = Gate()
    bed.app.handler = lambda request, reply: (gate.wait(), 400)[1]
    sidecar = bed.sidecar(token_window="60s", brake=0, forward={"concurrency": 16})
    large = {f"large{i}": 3 * MIB // 2 for i in range(3)}
    small = {f"small{i}": 10 for i in range(8)}
    for message_id, size in {**small, **large}.items():
        bed.queue.publish(message_id, os.urandom(size))
    gate.wait_for_waiting(11)
    gate.open()
    sidecar.wait_for("dead", n=11, deadline=60)
    made_by = {r["message_id"]: r["x"] for r in bed.rows("SELECT message_id, xmin::text AS x FROM onceward.dead_letter WHERE consumer = %s",
                                                         bed.queue.name)}
    assert set(made_by) == {*large, *small}
    for message_id in large:
        assert [m for m, x in made_by.items() if x == made_by[message_id]] == [message_id]
    bed.assert_acked()


def test_a_large_letter_whose_connection_is_lost_is_written_once(bed, slow_letters):
    bed.app.handler = lambda request, reply: 400
    sidecar = bed.sidecar(token_window="60s")
    bed.queue.publish("large", os.urandom(2 * MIB))
    wait_until(lambda: sessions(bed, "PgSleep") == 1, "it is being written")
    bed.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'onceward' AND datname = current_database()"
             " AND wait_event = 'PgSleep'")
    sidecar.wait_for("disconnected", peer="database")
    sidecar.wait_for("dead", message_id="large", deadline=60)
    assert len(bed.letters()) == 1 and not sidecar.find("paused")
    bed.assert_acked()
