"""The demo's two applications: a small shop that books each order once, and a billing office that books each invoice once.

    application.py PORT DSN POSTS_FILE

An order is booked in one transaction with onceward.complete(token), and its invoice is published in it: that is all an application has to
do. The rest of this file is the trouble that the demo wants: orders that fail at first, one that always fails, and one that kills the
process."""

import json
import os
import socketserver
import sys
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler

import psycopg2

_, PORT, DSN, POSTS = sys.argv
posts = os.open(POSTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
local = threading.local()


def database():
    if getattr(local, "connection", None) is None or local.connection.closed:
        local.connection = psycopg2.connect(DSN)
    return local.connection


def book_order(order, token):
    """The completion, the order and the invoice that is to be sent commit together, or not at all."""
    with database() as transaction, transaction.cursor() as cursor:
        cursor.execute("SELECT onceward.complete(%s)", (token,))
        cursor.execute("INSERT INTO shop.ledger (order_id, amount) VALUES (%s, %s)", (order["id"], order["amount"]))
        cursor.execute("SELECT onceward.publish('invoices', 'created', jsonb_build_object('id', %s::text, 'amount', %s::bigint))",
                       (order["id"], order["amount"]))


def book_order_of_account(order, token):
    """The lock on the account's row gives its invoices their numbers, in the order of the commits."""
    with database() as transaction, transaction.cursor() as cursor:
        cursor.execute("SELECT onceward.complete(%s)", (token,))
        cursor.execute("UPDATE shop.account SET number = number + 1 WHERE account = %s RETURNING number", (order["account"],))
        number = cursor.fetchone()[0]
        cursor.execute("INSERT INTO shop.ledger (order_id, amount, account, number) VALUES (%s, %s, %s, %s)",
                       (order["id"], order["amount"], order["account"], number))
        cursor.execute("SELECT onceward.publish('invoices', %s, jsonb_build_object('id', %s::text, 'amount', %s::bigint, 'account', %s::text,"
                       " 'number', %s::int, 'trouble', %s::text))",
                       (order["account"], order["id"], order["amount"], order["account"], number, "fails" if order["amount"] % 97 == 5 else None))


def book_invoice_of_account(invoice, token):
    """Records the last number of the account that was booked before: a ledger that shows each inversion and each gap."""
    with database() as transaction, transaction.cursor() as cursor:
        cursor.execute("SELECT onceward.complete(%s)", (token,))
        cursor.execute("SELECT number FROM shop.account WHERE account = %s FOR UPDATE", (invoice["account"],))
        before = cursor.fetchone()[0]
        cursor.execute("INSERT INTO shop.ledger (order_id, amount, account, number, before) VALUES (%s, %s, %s, %s, %s)",
                       (invoice["id"], invoice["amount"], invoice["account"], invoice["number"], before))
        cursor.execute("UPDATE shop.account SET number = %s WHERE account = %s", (invoice["number"], invoice["account"]))


def book_invoice(invoice, token):
    with database() as transaction, transaction.cursor() as cursor:
        cursor.execute("SELECT onceward.complete(%s)", (token,))
        cursor.execute("INSERT INTO shop.ledger (order_id, amount) VALUES (%s, %s)", (invoice["id"], invoice["amount"]))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        attempt = int(self.headers["Onceward-Attempt"])
        os.write(posts, f"{urllib.parse.unquote(self.headers['Onceward-Message-Id'])} {attempt}\n".encode())
        order = json.loads(body)
        trouble = order.get("trouble")
        if trouble == "kills" and attempt == 1:
            os._exit(1)
        if trouble == "poison" or (trouble == "fails" and attempt <= 2):
            return self.answer(500)
        try:
            self.booking(order)(order, self.headers["Onceward-Token"])
        except (psycopg2.OperationalError, psycopg2.InterfaceError):
            return self.answer(503)  # the database is away
        except psycopg2.Error as e:
            return self.answer(409 if (e.pgcode or "").startswith("OW") else 500)
        self.answer(200)

    def booking(self, order):
        if "account" in order:
            return book_order_of_account if self.path == "/orders" else book_invoice_of_account
        return book_order if self.path == "/orders" else book_invoice

    def answer(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments):
        pass


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128


Server(("127.0.0.1", int(PORT)), Handler).serve_forever()
