"""A broker for the tests of one file, which may do anything to it; and how it sees its connections, channels and queues itself."""

import json
import os
import shutil
import tempfile

import pytest

from . import schema, servers
from .application import Gate
from .bed import Bed
from .wait import wait_until

COUNTS = """
Name = <<"%s">>,
R = rabbit_misc:r(<<"/">>, queue, Name),
{ok, Q} = rabbit_amqqueue:lookup(R),
Figures = rabbit_amqqueue:info(Q, [consumers, messages_ready, messages_unacknowledged]),
Of = fun(M, P, Items) -> try M:info(P, Items) catch _:_ -> [] end end,
Prefix = <<"onceward ", Name/binary, " ">>,
Is = fun(P) -> case [V || {_, Properties} <- Of(rabbit_reader, P, [client_properties]),
                          {<<"connection_name">>, _, V} <- Properties] of
                   [V] -> binary:longest_common_prefix([V, Prefix]) == size(Prefix);
                   _ -> false end end,
Connections = [P || P <- rabbit_networking:connections(), Is(P)],
Channels = [C || P <- rabbit_channel:list(), C <- [Of(rabbit_channel, P, [connection, consumer_count, messages_unacknowledged])],
                 lists:member(proplists:get_value(connection, C), Connections)],
Sum = fun(Key) -> lists:sum([proplists:get_value(Key, C) || C <- Channels]) end,
Counts = rabbit_json:encode([{consumers, proplists:get_value(consumers, Figures)}, {ready, proplists:get_value(messages_ready, Figures)},
                    {unacked, proplists:get_value(messages_unacknowledged, Figures)}, {connections, length(Connections)},
                    {channels, length(Channels)}, {consumers_of_channels, Sum(consumer_count)},
                    {unacked_of_channels, Sum(messages_unacknowledged)}]),
ok = file:write_file("%s", Counts).
"""

WITH_QUEUE = '{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s">>)), P = amqqueue:get_pid(Q), '


class OwnBroker(servers.RabbitMQ):
    """A node that tests may break."""

    def counts(self, queue):
        """The broker's own view of a queue, and of the connections and channels of its sidecars."""
        path = os.path.join(self.folder, "counts.json")  # what erl_call prints is cut short
        self.eval(COUNTS % (queue.name, path))
        with open(path) as f:
            return json.load(f)

    def wait_for_counts(self, queue, deadline=120.0, **wanted):
        def found():
            counts = self.counts(queue)
            return counts if wanted.items() <= counts.items() else None

        return wait_until(found, lambda: f"{wanted}; the broker says {self.counts(queue)}", deadline, 0.1)

    def suspend(self, queue):
        """The queue's process answers nobody any more; the connections are well."""
        self.eval(WITH_QUEUE % queue.name + "sys:suspend(P)")

    def resume(self, queue):
        self.eval(WITH_QUEUE % queue.name + "sys:resume(P)")

    def close_connections(self, why):
        self.eval(f'rabbit_networking:close_all_connections("{why}")')

    def set_alarm(self, kind):
        if kind == "memory":
            self.eval("vm_memory_monitor:set_vm_memory_high_watermark(0.000001)")
        else:
            self.eval("rabbit_disk_monitor:set_disk_free_limit(1000000000000000)")
        wait_until(lambda: kind in self.eval("rabbit_alarm:get_alarms()"), f"an alarm for {kind}")

    def clear_alarms(self):
        self.eval("vm_memory_monitor:set_vm_memory_high_watermark(0.4), rabbit_disk_monitor:set_disk_free_limit(10000000)")
        wait_until(lambda: self.eval("rabbit_alarm:get_alarms()") == "[]", "no alarm any more")

    def log_text(self):
        with open(self.log, errors="replace") as f:
            return f.read()


@pytest.fixture(scope="module")
def own_broker(certificates):
    schema.require_binary()
    folder = tempfile.mkdtemp(prefix="onceward-broker-")
    os.chmod(folder, 0o755)
    made = OwnBroker(folder, certificates)
    try:
        yield made.init().start()
        assert "unknown delivery tag" not in made.log_text(), "a tag was used on a channel that does not know it"
    finally:
        made.deinit()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def own(request, tmp_path, postgres, own_broker):
    """A bed on that broker."""
    made = Bed(request.node.name, tmp_path, postgres, own_broker)
    request.node.bed = made
    yield made
    made.deinit()


# what the tests on it have in common

BINARY = os.environ.get("ONCEWARD_FAILPOINT_BINARY", "")
needs_failpoints = pytest.mark.skipif(not os.access(BINARY, os.X_OK), reason="ONCEWARD_FAILPOINT_BINARY names no program")
QUICK = "redial_last_ms=300,consume_last_ms=300"
NO_CLAIM_IS_LOST = {"token_window": "60s", "max_window": "2m"}


def quick(*times):
    """Shorter waits, in a program that knows them."""
    return {"ONCEWARD_FAILPOINT": ",".join((QUICK, *times))}


def start(own, *times, **keys):
    return own.sidecar(environment=quick(*times), **{**NO_CLAIM_IS_LOST, **keys})


def hold_some(own, *held):
    """These wait at the gate, the others go through."""
    gate = Gate()

    def handler(request, reply):
        if request.message_id in held:
            gate.wait()
        return own.app.commit_and_answer(request, reply)

    own.app.handler = handler
    return gate


def finish(own, sidecar, ids):
    """All that was promised."""
    own.wait_for_effects(ids)
    sidecar.wait_for_quiet()
    own.assert_once(*ids)
    assert len(own.app.posts()) == len(ids) and {r.attempt for r in own.app.posts()} == {1}
    assert own.letters() == []
    own.rabbitmq.wait_for_counts(own.queue, consumers=1, ready=0, unacked=0, connections=1, channels=2, consumers_of_channels=1,
                                 unacked_of_channels=0)
    assert not [e for e in sidecar.events if "unknown delivery tag" in str(e.get("reason"))]
    own.assert_acked()


def wait_for_state(sidecar, state, since=0, **fields):
    return sidecar.wait_for("stats", since=since, deadline=30, state=state, **fields)
