"""onceward replay: stored messages, published again in the order of their first claims, for another consumer."""

import fcntl
import json
import os
import pty
import random
import signal
import struct
import subprocess
import termios
import time

import pytest

from rig import schema
from rig.bed import Bed, merge
from rig.broker_view import own_broker  # noqa: F401 - a fixture
from rig.proxy import Proxy
from rig.wait import wait_until
from test_store import STORE

CONNECTIONS = "[rabbit_reader:info(P, [state]) || P <- rabbit_networking:connections()]"
MANY = int(os.environ.get("ONCEWARD_REPLAY_MESSAGES", "1500"))


def start(sidecar, *arguments, **options):
    options.setdefault("stdout", subprocess.PIPE)
    return subprocess.Popen([sidecar.binary, "replay", "--config", sidecar.config_path, *arguments], stdin=subprocess.DEVNULL,
                            stderr=subprocess.STDOUT, **options)


def replay(sidecar, *arguments, status=0):
    child = start(sidecar, *arguments)
    text = child.communicate(timeout=120)[0].decode()
    assert child.returncode == status, text
    return text


def drain(queue):
    """All that is in a queue, in its order."""
    found = []
    while (got := queue.get()):
        found.append(got)
    return found


def ids(queue):
    queue.sync()
    return [properties.message_id for _, properties, _ in drain(queue)]


def reach(queue, child, n):
    """Until so many messages are in the queue; 0: at once, before it has begun."""
    wait_until(lambda: child.poll() is not None or queue.n_ready >= n, lambda: f"{n} messages; there are {queue.n_ready}")


def put(bed, n, consumer=None, type=None):
    """Stored messages without a sidecar: many at once, each with the smallest content header that has an id."""
    bed.rows("INSERT INTO onceward.message (consumer, message_id, received_at, message_type, exchange, routing_key, content_header, body)"
             " SELECT %s, 'm' || i, now() - interval '1 hour' + i / 3 * interval '1 ms', %s, '', 'q',"
             "  decode('0080', 'hex') || set_byte('\\x00', 0, length('m' || i)) || convert_to('m' || i, 'UTF8'), convert_to('body ' || i, 'UTF8')"
             " FROM generate_series(1, %s) i ORDER BY i", consumer or bed.queue.name, type, n)
    bed.rows("INSERT INTO onceward.consumer (consumer, broker, vhost, queue) VALUES (%s, 'b', '/', %s) ON CONFLICT DO NOTHING",
             consumer or bed.queue.name, bed.queue.name)


@pytest.fixture
def other(bed):
    return bed.new_queue("-projection")


class Idle:
    """A configuration file, and no process."""

    def __init__(self, bed):
        self.binary = schema.require_binary()
        self.config_path = os.path.join(bed.folder, "idle.json")
        with open(self.config_path, "w") as f:
            json.dump(bed.config(**STORE), f)


@pytest.fixture
def idle(bed):
    return Idle(bed)


def test_what_arrived_arrives_again_as_it_was(bed, other):
    sidecar = bed.sidecar(**STORE)
    wanted = [f"m{9 - i}" for i in range(9)]
    for i, message_id in enumerate(wanted):
        bed.queue.publish(message_id, os.urandom(20 + i), headers={"x-n": i, "deep": {"a": [1, "b"]}}, content_type="a/b", type="t",
                          correlation_id=f"c{i}", priority=2, timestamp=1700000000 + i)
    bed.wait_for_effects(wanted)
    assert "9 replayed" in replay(sidecar, "--consumer", bed.queue.name, "--to", other.name)
    other.sync()
    found = drain(other)
    stored = {r["message_id"]: bytes(r["body"]) for r in
              bed.rows("SELECT * FROM onceward.message WHERE consumer = %s ORDER BY received_at, seq", bed.queue.name)}
    assert [p.message_id for _, p, _ in found] == list(stored) and sorted(stored) == sorted(wanted)
    for _, p, body in found:
        i = wanted.index(p.message_id)
        assert body == stored[p.message_id] and p.headers == {"x-n": i, "deep": {"a": [1, "b"]}} and p.content_type == "a/b"
        assert (p.type, p.correlation_id, p.priority, p.timestamp, p.delivery_mode) == ("t", f"c{i}", 2, 1700000000 + i, 2)


def test_a_new_consumer_does_each_once(bed, other):
    """A projection: the same application's ledger counts both consumers."""
    config = bed.config(**STORE)
    config["queues"][other.name] = merge(config["queues"][bed.queue.name], {"store": None})
    sidecar = bed.sidecar(config=config)
    wanted = [f"m{i}" for i in range(30)]
    bed.queue.publish_many(wanted)
    bed.wait_for_effects(wanted)
    replay(sidecar, "--consumer", bed.queue.name, "--to", other.name)
    wait_until(lambda: bed.statuses(other.name) == {"completed": 30}, lambda: f"all are done again: {bed.statuses(other.name)}")
    assert all(n == 2 for n in bed.app.effects().values())
    # Unnamed, and ended: it begins anew, and the rows of the new consumer let none through.
    replay(sidecar, "--consumer", bed.queue.name, "--to", other.name)
    sidecar.wait_for("stats", queue=other.name, duplicates_total=30, deadline=120)  # of the lines of each there are ten a second
    sidecar.wait_for_nothing_held()
    assert all(n == 2 for n in bed.app.effects().values())


@pytest.mark.long
def test_interrupted_ten_times_all_are_there_once_and_in_order(bed, other, idle):
    """By SIGTERM, each time somewhere else; what is on its way is waited for, so nothing is there twice."""
    put(bed, MANY)
    for times in range(10):
        child = start(idle, "--consumer", bed.queue.name, "--to", other.name, "--rate", str(MANY // 4))
        reach(other, child, times * MANY // 12 + random.randrange(MANY // 12))
        child.send_signal(signal.SIGTERM)
        text = child.communicate(timeout=60)[0].decode()
        assert child.returncode in (1, -signal.SIGTERM), text
    replay(idle, "--consumer", bed.queue.name, "--to", other.name)
    assert ids(other) == [f"m{i}" for i in range(1, MANY + 1)]
    assert bed.rows("SELECT name FROM onceward.replay WHERE what LIKE %s", f"%{bed.queue.name}%") == []


def test_killed_at_any_moment_nothing_is_missing_and_the_first_copies_are_in_order(bed, other, idle):
    """Each time some hundreds further on: one that began anew would send more again than can be on its way."""
    put(bed, MANY)
    for times in range(3):
        child = start(idle, "--consumer", bed.queue.name, "--to", other.name, "--rate", str(MANY // 4))
        reach(other, child, (times + 1) * MANY * 3 // 10 + random.randrange(MANY // 20))
        child.kill()
        child.communicate()
    replay(idle, "--consumer", bed.queue.name, "--to", other.name)
    found = ids(other)
    assert list(dict.fromkeys(found)) == [f"m{i}" for i in range(1, MANY + 1)]
    assert len(found) <= MANY + 3 * 256


@pytest.mark.long
def test_a_connection_that_is_lost_with_all_on_their_way_leaves_nothing_out(request, tmp_path, fresh_postgres, own_broker):  # noqa: F811
    """A broker in alarm confirms nothing: as many are on their way as may be. What was not confirmed is sent again."""
    bed = Bed(request.node.name, tmp_path, fresh_postgres, own_broker)
    request.node.bed = bed
    try:
        to, idle = bed.new_queue("-projection"), Idle(bed)
        put(bed, 1000)
        own_broker.set_alarm("memory")
        try:
            child = start(idle, "--consumer", bed.queue.name, "--to", to.name, "--name", "again")
            wait_until(lambda: "blocked" in own_broker.eval(CONNECTIONS), "the replay is blocked")
            own_broker.eval('[rabbit_networking:close_connection(P, "test") || P <- rabbit_networking:connections(), '
                            "rabbit_reader:info(P, [state]) =:= [{state, blocked}]]")
            text = child.communicate(timeout=60)[0].decode()
            assert child.returncode, text
        finally:
            own_broker.clear_alarms()
        replay(idle, "--consumer", bed.queue.name, "--to", to.name, "--name", "again")
        assert set(ids(to)) == {f"m{n}" for n in range(1, 1001)}
    finally:
        bed.deinit()


@pytest.mark.parametrize("killed", [False, True], ids=["alone", "with_the_replay"])
def test_a_link_that_is_cut_with_many_on_their_way_leaves_nothing_out(bed, other, idle, killed):
    """So slow that each confirm comes alone, behind as many as may be out: the position is that of the message which was confirmed."""
    link = Proxy(bed.rabbitmq.port).start()
    try:
        put(bed, 1000)
        with open(idle.config_path) as f:
            config = json.load(f)
        arguments = ("--consumer", bed.queue.name, "--to", other.name, "--name", "cut " + bed.name)
        with open(idle.config_path, "w") as f:
            json.dump(merge(config, {"broker": {"url": bed.rabbitmq.url(port=link.port)}}), f)
        link.trickle(20, 0.002)
        child = start(idle, *arguments)
        reach(other, child, 40)
        if killed:
            child.kill()
        link.cut()
        text = child.communicate(timeout=60)[0].decode()
        assert child.returncode, text
        with open(idle.config_path, "w") as f:
            json.dump(config, f)
        replay(idle, *arguments)
        assert set(ids(other)) == {f"m{n}" for n in range(1, 1001)}
    finally:
        link.stop()


def test_a_name_goes_on_with_what_has_come_since(bed, other, idle):
    put(bed, 5)
    arguments = ("--consumer", bed.queue.name, "--to", other.name, "--name", "projection " + bed.name)
    assert "5 replayed" in replay(idle, *arguments)
    assert "0 replayed" in replay(idle, *arguments)
    bed.rows("INSERT INTO onceward.message (consumer, message_id, received_at, exchange, routing_key, content_header, body)"
             " VALUES (%s, 'new', now(), '', '', '\\x0000', '')", bed.queue.name)
    text = replay(idle, *arguments)
    assert "1 replayed" in text and "6 in all" in text
    assert len(ids(other)) == 6
    text = replay(idle, *arguments, "--type", "x", status=1)
    assert "belongs to another replay" in text and "--name" in text


def test_a_claim_that_is_not_committed_yet_is_waited_for(bed, other, idle):
    """The message has an earlier time than committed ones, and would be passed by."""
    put(bed, 3)
    connection = bed.postgres.connect()
    connection.autocommit = False
    with connection.cursor() as cursor:
        cursor.execute("LOCK TABLE ONLY onceward.message IN ROW EXCLUSIVE MODE")
        cursor.execute("INSERT INTO onceward.message (consumer, message_id, received_at, exchange, routing_key, content_header, body)"
                       " VALUES (%s, 'late', clock_timestamp(), '', '', '\\x0000', 'late')", (bed.queue.name,))
    child = start(idle, "--consumer", bed.queue.name, "--to", other.name)
    looks = lambda: bed.rows("SELECT count(*)::int AS n FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
                             " AND query LIKE '%%l.virtualtransaction = ANY%%'")[0]["n"]
    wait_until(looks, "it looks whether that has ended", 40)
    assert child.poll() is None
    connection.commit()
    connection.close()
    assert b"4 replayed" in child.communicate(timeout=60)[0]
    other.sync()
    assert [body for _, _, body in drain(other)] == [b"body 1", b"body 2", b"body 3", b"late"]


def test_what_is_chosen(bed, other, idle):
    put(bed, 20, type="a")
    to = ("--consumer", bed.queue.name, "--to", other.name)
    assert "No stored messages" in replay(idle, *to, "--type", "b", "--dry-run")
    assert "20 would be replayed" in replay(idle, *to, "--type", "a", "--dry-run")
    assert "No stored messages" in replay(idle, *to, "--since", "30m", "--dry-run")
    assert "20 would be replayed" in replay(idle, *to, "--since", "2h", "--until", "30m", "--dry-run")
    assert other.n_ready == 0
    replay(idle, *to, "--id", "m7", "m3", "--id", "m11")
    assert ids(other) == ["m3", "m7", "m11"]


def interrupted(sidecar, queue, *arguments):
    """A replay that has begun, and was ended."""
    child = start(sidecar, *arguments, "--rate", "50/s")
    reach(queue, child, 5)
    child.send_signal(signal.SIGTERM)
    assert b"run this again" in child.communicate(timeout=60)[0]


@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "named"])
def test_what_it_goes_up_to_stays_when_it_goes_on_but_under_a_name(bed, other, idle, named):
    put(bed, 60)
    to = ("--consumer", bed.queue.name, "--to", other.name, "--until", "30m", *(["--name", "until " + bed.name] if named else []))
    interrupted(idle, other, *to)
    bed.rows("UPDATE onceward.replay SET began_at = began_at - interval '5 min' WHERE what LIKE %s", bed.queue.name + " to %")
    bed.rows("INSERT INTO onceward.message (consumer, message_id, received_at, exchange, routing_key, content_header, body)"
             " VALUES (%s, 'late', now() - interval '32 min', '', '', '\\x0000', 'late')", bed.queue.name)
    assert f"{60 + named} in all" in replay(idle, *to)
    other.sync()
    assert [body for _, _, body in drain(other)][-1] == (b"late" if named else b"body 60")


def test_the_same_queue_of_another_virtual_host_is_another_replay(bed, other, idle):
    put(bed, 60)
    to = ("--consumer", bed.queue.name, "--to", other.name)
    interrupted(idle, other, *to)
    there = bed.queue.name
    bed.rabbitmq.add_vhost(there)
    try:
        connection = bed.rabbitmq.connect(there)
        connection.channel().queue_declare(other.name, durable=True)
        connection.close()
        with open(idle.config_path, encoding="utf-8") as f:
            config = json.load(f)
        config["broker"]["url"] = bed.rabbitmq.url(there)
        with open(idle.config_path + ".there", "w", encoding="utf-8") as f:
            json.dump(config, f)
        assert "60 replayed" in replay(idle, *to, "--config", idle.config_path + ".there")
    finally:
        bed.rabbitmq.delete_vhost(there)
    assert "60 in all" in replay(idle, *to)


def test_an_id_with_a_comma_is_no_list(bed, other, idle):
    put(bed, 40)
    bed.rows("UPDATE onceward.message SET message_id = 'a, b' WHERE consumer = %s AND message_id <> 'm9'", bed.queue.name)
    to = ("--consumer", bed.queue.name, "--to", other.name)
    interrupted(idle, other, *to, "--id", "a, b")
    bed.rows("UPDATE onceward.message SET message_id = 'a' WHERE consumer = %s AND message_id = 'a, b'", bed.queue.name)
    assert "39 replayed" in replay(idle, *to, "--id", "a", "--id", "b")


def test_many_ids_without_a_name(bed, other, idle):
    """Their list is no key of the database; and another list is another replay."""
    bed.rows("INSERT INTO onceward.message (consumer, message_id, received_at, exchange, routing_key, content_header, body)"
             " SELECT %s, gen_random_uuid()::text, now() - interval '1 hour' + i * interval '1 ms', '', 'q', '\\x0000', i::text::bytea"
             " FROM generate_series(1, 300) i", bed.queue.name)
    bed.rows("INSERT INTO onceward.consumer (consumer, broker, vhost, queue) VALUES (%s, 'b', '/', %s)", bed.queue.name, bed.queue.name)
    every = [r["message_id"] for r in bed.rows("SELECT message_id FROM onceward.message WHERE consumer = %s ORDER BY received_at", bed.queue.name)]
    to = ("--consumer", bed.queue.name, "--to", other.name)
    child = start(idle, *to, "--rate", "50/s", "--id", *every[:200])
    reach(other, child, 5)
    child.send_signal(signal.SIGTERM)
    assert b"run this again" in child.communicate(timeout=60)[0]
    assert "100 replayed" in replay(idle, *to, "--id", *every[200:])
    text = replay(idle, *to, "--id", *every[:200])
    assert "200 in all" in text
    other.sync()
    assert sorted(int(body) for _, _, body in drain(other)) == list(range(1, 301))


def test_the_rate_is_kept(bed, other, idle):
    put(bed, 20)
    begin = time.monotonic()
    replay(idle, "--consumer", bed.queue.name, "--to", other.name, "--rate", "4/s")
    assert time.monotonic() - begin > 4.7


def test_bodies_larger_than_a_page(bed, other, idle):
    bed.rows("INSERT INTO onceward.consumer (consumer, broker, vhost, queue) VALUES (%s, 'b', '/', %s) ON CONFLICT DO NOTHING", bed.queue.name, bed.queue.name)
    bed.rows("INSERT INTO onceward.message (consumer, message_id, received_at, exchange, routing_key, content_header, body)"
             " SELECT %s, i::text, now() - interval '1 hour' + i * interval '1 ms', '', '', '\\x0000',"
             " convert_to(repeat(chr(64 + i), CASE WHEN i %% 3 = 0 THEN 1500000 ELSE 400000 END), 'UTF8') FROM generate_series(1, 9) i",
             bed.queue.name)
    replay(idle, "--consumer", bed.queue.name, "--to", other.name)
    other.sync()
    assert [(body[:1], len(body)) for _, _, body in drain(other)] == \
        [(bytes([64 + i]), 1500000 if i % 3 == 0 else 400000) for i in range(1, 10)]


# refusals


@pytest.mark.parametrize("recorded", [True, False])
def test_to_the_same_consumer_it_is_refused_with_the_reason(bed, idle, recorded):
    if recorded:
        put(bed, 1)
    text = replay(idle, "--consumer", bed.queue.name, "--to", bed.queue.name, status=2)
    assert "its rows show these messages as completed" in text and bed.queue.n_ready == 0


def test_a_queue_that_is_not_there(bed, idle):
    put(bed, 300)
    text = replay(idle, "--consumer", bed.queue.name, "--to", "nowhere-" + bed.name, status=1)
    assert "there is no queue" in text and "0 replayed" in text


def test_a_consumer_that_nobody_knows(bed, other, idle):
    assert "there is no consumer \"nobody\"" in replay(idle, "--consumer", "nobody", "--to", other.name, status=1)


@pytest.mark.parametrize("arguments, said", [
    ([], "--consumer C is missing"),
    (["--consumer", "c"], "--to QUEUE is missing"),
    (["--consumer", "c", "--to", "q", "--since", "soon"], '--since "soon" is not a duration'),
    (["--consumer", "c", "--to", "q", "--until", "2026-13-01"], '--until "2026-13-01" is not'),
    (["--consumer", "c", "--to", "q", "--rate", "fast"], '--rate "fast" is not a rate'),
    (["--consumer", "c", "--to", "q", "--id", ""], "--id: expected message ids"),
    (["--consumer", "c", "--to", "q", "--name", ""], "--name: expected"),
    (["--consumer", "c", "--to", "q" * 256], "at most 255 bytes"),
    (["--consumer", "c", "--to", "q", "more"], '"more" is one argument too many'),
])
def test_wrong_arguments(idle, arguments, said):
    assert said in replay(idle, *arguments, status=2)


def test_a_terminal_sees_a_bar_and_a_pipe_does_not(bed, other, idle):
    put(bed, 10)
    arguments = ("--consumer", bed.queue.name, "--to", other.name, "--rate", "20/s")
    assert "\r" not in replay(idle, *arguments)
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    child = start(idle, *arguments, stdout=follower)
    os.close(follower)
    seen = b""
    try:
        while (part := os.read(leader, 4096)):
            seen += part
    except OSError:
        pass  # the end
    child.wait(timeout=60)
    os.close(leader)
    assert b" of 10, " in seen and b"10 replayed" in seen


def test_an_ordered_queue_is_replayed_to_only_where_that_is_said(bed):
    put(bed, 3)
    to = bed.new_queue("-ordered")
    config = bed.config(**STORE)
    config["queues"]["projection"] = {"queue": to.name, "consumer": to.name + "-c", "forward": {"url": "http://localhost:1/"},
                                      "order": {"key": ["header:account"]}, "delivery_limit": 0}
    idle = Idle(bed)
    with open(idle.config_path, "w") as f:
        json.dump(config, f)
    arguments = "--consumer", bed.queue.name, "--to", to.name
    assert "is ordered" in replay(idle, *arguments, status=2)
    assert to.n_ready == 0
    replay(idle, *arguments, "--out-of-order")
    assert sorted(ids(to)) == ["m1", "m2", "m3"]
