"""Publishes with confirms. What was not confirmed is published again until it is: then there may be two copies of it."""

import collections
import threading
import time

import pika


class Publisher:
    """Publishes one queue's messages at their times, on a thread of its own."""

    def __init__(self, rabbitmq, queue, messages):
        self.rabbitmq, self.queue, self.messages = rabbitmq, queue, messages
        self.n_sent = collections.Counter()  # by body: how often it may be in the queue
        self.n_confirmed = self.n_again = 0
        self.until_confirmed = 0.0
        self.thread = threading.Thread(target=self._run, daemon=True)
        self._channel = None

    def start(self, start):
        self.start_time = start
        self.thread.start()

    def _run(self):
        for message in self.messages:
            time.sleep(max(0.0, self.start_time + message.at - time.monotonic()))
            self.publish(message)
            self.n_confirmed += 1

    def publish(self, message):
        """Until it is confirmed."""
        while not self._publish(message):
            self.n_again += 1
            time.sleep(0.2)

    def _publish(self, message):
        try:
            if self._channel is None or not self._channel.is_open:
                self._channel = self.rabbitmq.connect().channel()
                self._channel.confirm_delivery()
            self.n_sent[message.body] += 1
            self._channel.basic_publish("", self.queue, message.body,
                                        pika.BasicProperties(message_id=message.message_id, delivery_mode=2), mandatory=True)
            return True
        except (pika.exceptions.AMQPError, OSError):
            self._channel = None
            return False
