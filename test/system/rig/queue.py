"""A queue of its own for a test, seen from the publisher's and the operator's side.

Handlers ask it too, on the threads of the application's connections. A connection of pika is for one caller at a time, so that every
method takes the queue's lock. Whoever uses `channel` itself does it from the test's own thread, while no handler asks."""

import functools
import threading

import pika

from .wait import wait_until


def one_at_a_time(method):
    @functools.wraps(method)
    def locked(self, *arguments, **options):
        with self.lock:
            return method(self, *arguments, **options)

    return locked


class Queue:
    def __init__(self, rabbitmq, name, arguments=None, exchange_type=None, auto_delete=False):
        self.rabbitmq = rabbitmq
        self.name = name
        self.arguments = arguments or {}
        self.auto_delete = auto_delete
        self.exchange = ""
        self.lock = threading.RLock()
        self._connection = None
        self.n_published = 0

    @property
    def channel(self):
        if self._connection is None or not self._connection.is_open:
            self._connection = self.rabbitmq.connect()
            self._channel = self._connection.channel()
        elif not self._channel.is_open:
            self._channel = self._connection.channel()
        return self._channel

    @one_at_a_time
    def declare(self):
        self.channel.queue_declare(self.name, durable=True, auto_delete=self.auto_delete, arguments=self.arguments)
        return self

    @one_at_a_time
    def delete(self):
        self.channel.queue_delete(self.name)

    @one_at_a_time
    def close(self):
        if self._connection and self._connection.is_open:
            self._connection.close()

    @one_at_a_time
    def forget_connection(self):
        """The broker restarted: the next use connects again."""
        self._connection = None

    @one_at_a_time
    def publish(self, message_id=None, body=b'{"marker":"body-marker"}', exchange="", routing_key=None, **properties):
        """Publishes one message; it is at the broker when sync() returns."""
        properties.setdefault("delivery_mode", 2)
        self.channel.basic_publish(exchange, self.name if routing_key is None else routing_key, body,
                                   pika.BasicProperties(message_id=message_id, **properties))
        self.n_published += 1

    @one_at_a_time
    def publish_many(self, ids, **options):
        for message_id in ids:
            self.publish(message_id, **options)
        self.sync()

    def sync(self):
        """The methods of a channel are processed in order. (The count of messages may still lag behind.)"""
        self._look()

    @one_at_a_time
    def _look(self):
        return self.channel.queue_declare(self.name, passive=True).method

    @property
    def n_ready(self):
        return self._look().message_count

    @property
    def n_consumers(self):
        return self._look().consumer_count

    @one_at_a_time
    def get(self):
        """Takes one message off; (method, properties, body) or None."""
        method, properties, body = self.channel.basic_get(self.name, auto_ack=True)
        return (method, properties, body) if method else None

    def wait_for_consumers(self, n, deadline=120.0):
        wait_until(lambda: self.n_consumers == n, lambda: f"{n} consumers of {self.name}, there are {self.n_consumers}",
                   deadline, 0.03)

    def wait_for_ready(self, n, deadline=120.0):
        wait_until(lambda: self.n_ready == n, lambda: f"{n} messages ready in {self.name}, there are {self.n_ready}",
                   deadline, 0.03)

    def hold_first(self, ids):
        """Another connection consumes, and holds the first of these messages, which are published here; where it is the
        single active consumer, nobody else gets the others until the caller closes it. Returns it."""
        other = self.rabbitmq.connect()
        channel = other.channel()
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(self.name, lambda *delivery: None)
        self.publish_many(ids)
        self.wait_for_ready(len(ids) - 1)
        return other

    def assert_empty(self):
        """The last consumer has ended, so unacked messages are back."""
        self.wait_for_consumers(0)
        assert self.n_ready == 0, f"{self.n_ready} messages were not acked"
