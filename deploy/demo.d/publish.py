"""Publishes orders with ids of their own: publish.py BROKER_URL QUEUE N [PREFIX]. The same prefix again makes copies."""

import json
import sys
import time

import pika

url, queue, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
prefix = sys.argv[4] if len(sys.argv) > 4 else f"order-{time.time():.0f}"
connection = pika.BlockingConnection(pika.URLParameters(url))
channel = connection.channel()
channel.confirm_delivery()
for i in range(n):
    order = {"id": f"{prefix}-{i}", "amount": i}
    channel.basic_publish("", queue, json.dumps(order), pika.BasicProperties(
        message_id=order["id"], content_type="application/json", delivery_mode=2))
connection.close()
print(f"{n} published, ids {prefix}-0 to {prefix}-{n - 1}")
