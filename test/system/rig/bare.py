"""A consumer with bare AMQP methods: client libraries cancel their consumers before they close a channel, which lets a standby begin
too early."""

import socket
import struct
import time

import pika


class Consumer:
    """A connection with one consumer, which acks nothing by itself."""

    def __init__(self, rabbitmq, queue, prefetch, arguments=None):
        self.connection = rabbitmq.connect()
        self.channel = self.connection.channel()
        self.channel.basic_qos(prefetch_count=prefetch)
        self.got = []
        self.tag = self.channel.basic_consume(queue, lambda ch, m, p, body: self.got.append(
            (m.delivery_tag, int(body) if body.isdigit() else p.message_id)), arguments=arguments)

    def wait(self, n, acked=(), deadline=30.0):
        """The first n at least, without those that were acked: a quorum queue may forget the latest acks of a channel that is closed."""
        end = time.monotonic() + deadline
        while len(self.numbers(acked)) < n and time.monotonic() < end:
            self.connection.process_data_events(time_limit=0.05)
        assert len(self.numbers(acked)) >= n, f"{len(self.numbers(acked))} of {n} deliveries"
        return self.numbers(acked)

    def numbers(self, acked=()):
        return [number for _, number in self.got if number not in acked]

    def ack(self, numbers):
        for tag, number in self.got:
            if number in numbers:
                self.channel.basic_ack(tag)

    def ack_all(self):
        """All that came, in one method."""
        self.channel.basic_ack(self.got[-1][0], multiple=True)

    def close_channel(self):
        """channel.close and nothing before it."""
        self.connection._impl._send_method(self.channel.channel_number, pika.spec.Channel.Close(200, "bye", 0, 0))
        try:
            self.connection.process_data_events(time_limit=0.2)
        except TypeError:
            pass  # pika has sent no close of its own that this could answer

    def reset(self):
        """A reset in place of any method."""
        sock = self.connection._impl._transport._sock
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        self.connection = None

    def cancel_and_reject(self):
        """Returns all deliveries one by one, the latest first."""
        self.channel.basic_cancel(self.tag)
        for tag, _ in reversed(self.got):
            self.channel.basic_reject(tag, requeue=True)
        self.channel.close()

    def cancel_and_close(self):
        self.channel.basic_cancel(self.tag)
        self.channel.close()

    def end(self):
        if not self.connection:
            return
        try:
            self.connection.close()
        except (TypeError, pika.exceptions.AMQPError):
            pass  # after a bare close
