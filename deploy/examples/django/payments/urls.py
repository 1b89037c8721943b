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
        sql.execute("INSERT INTO charges (order_id, cents) VALUES (%s, %s)", [order_id, cents])  # or Charge.objects.create(…)


def at_once(token, order_id, cents):
    """The same in one statement, which is a transaction of its own where ATOMIC_REQUESTS is off."""
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
        except (ValueError, KeyError, TypeError):
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


urlpatterns = [path("payments", view(in_transaction)), path("payments/at-once", view(at_once))]
