import json
import logging

from django.db import Error, OperationalError, connection, transaction
from django.http import HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST


def in_transaction(token, order_id, cents):
    with transaction.atomic(), connection.cursor() as sql:
        sql.execute("SELECT onceward.complete(%s)", [token])
        # or Charge.objects.create(…)
        sql.execute("INSERT INTO charges (order_id, cents) VALUES (%s, %s)", [order_id, cents])


def invoiced(token, order_id, cents):
    """The same, and an invoice in the same transaction: a sidecar with an outbox sends it once this has committed."""
    with transaction.atomic(), connection.cursor() as sql:
        sql.execute("SELECT onceward.complete(%s)", [token])
        sql.execute("INSERT INTO charges (order_id, cents) VALUES (%s, %s)", [order_id, cents])
        sql.execute("SELECT onceward.publish('invoices', 'created', jsonb_build_object('order', %s::text, 'cents', %s::integer))", [order_id, cents])


def at_once(token, order_id, cents):
    """The same as the first in one statement, which is a transaction of its own where ATOMIC_REQUESTS is off."""
    with connection.cursor() as sql:
        sql.execute("""WITH c AS MATERIALIZED (SELECT onceward.complete(%s))
                       INSERT INTO charges (order_id, cents) SELECT %s, %s FROM c""", [token, order_id, cents])


def view(work):
    @csrf_exempt
    @require_POST
    def charge(request):
        try:
            order = json.loads(request.body)
            order_id, cents = order["id"], order["cents"]
            if list(map(type, (order_id, cents))) != [str, int]:
                raise TypeError("id must be a string, cents an integer")
        except (ValueError, KeyError, TypeError) as error:
            logging.error("not an order: %s", error)
            return HttpResponse(status=400)  # the message is wrong: a dead letter
        try:
            connection.ensure_connection()
        except OperationalError:
            return HttpResponse(status=503)  # the database cannot be reached
        try:
            work(request.headers.get("Onceward-Token"), order_id, cents)
        except Error as error:
            logging.error("%s", error)
            return HttpResponse(status=500)  # rolled back; Onceward reads the row and does what is right
        return HttpResponse(status=204)
    return charge


urlpatterns = [path("payments", view(in_transaction)), path("payments/invoiced", view(invoiced)), path("payments/at-once", view(at_once))]
