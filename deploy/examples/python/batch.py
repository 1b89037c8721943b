"""Several messages in a request, one transaction for all of them. Needs `forward.batch` in the sidecar's configuration."""

import json, os, psycopg2
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

def charge_of(message):
    order = message["body"]  # absent where the body is not JSON that every reader takes: "body_base64" then
    if list(map(type, (order["id"], order["cents"]))) != [str, int]: raise ValueError("not an order: id must be a string, cents an integer")
    return message["token"], order["id"], order["cents"]

def all_or_nothing(sql, tokens, orders, cents):
    sql.execute("SELECT onceward.complete_all(%s)", [tokens])  # raises if one token is not valid any more
    sql.execute("INSERT INTO charges (order_id, cents) SELECT * FROM unnest(%s::text[], %s::integer[])", [orders, cents])

def valid_ones(sql, tokens, orders, cents):
    sql.execute("""INSERT INTO charges (order_id, cents) SELECT m.order_id, m.cents
                   FROM onceward.complete_valid(%s::text[]) v (token)
                   JOIN unnest(%s::text[], %s::text[], %s::integer[]) m (token, order_id, cents) USING (token)""",
                [tokens, tokens, orders, cents])

class Application(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def charge(self, messages):
        charges, failures = [], []
        for message in messages:
            try:
                charges.append(charge_of(message))
            except (KeyError, TypeError, ValueError) as error:
                failures.append({"id": message["id"], "status": 422, "error": str(error)})
        if failures and self.path == "/payments/all": return 422, []  # for all: Onceward looks for the wrong one
        db = None
        try:
            db = psycopg2.connect(os.environ["DATABASE_URL"])
            with db, db.cursor() as sql:  # one transaction for all messages
                work = all_or_nothing if self.path == "/payments/all" else valid_ones
                work(sql, *([c[i] for c in charges] for i in range(3)))
            return 200, failures
        except Exception as error:
            self.log_error("%s", error)
            return 500 if db else 503, []  # rolled back
        finally:
            if db: db.close()

    def do_POST(self):
        try:
            messages = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
            status, failures = self.charge(messages)
        except (LookupError, TypeError, ValueError, RecursionError) as error:  # not answering would look like a crash
            self.log_error("not a batch: %s", error)
            messages, status, failures = [], 500, []
        body = json.dumps({"failures": failures}).encode()
        self.send_response(status)
        self.send_header("Onceward-Batch", str(len(messages)))  # all succeeded, but for the named ones
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, *_):
        pass

ThreadingHTTPServer.request_queue_size = 128  # connections at once; the default is 5
ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Application).serve_forever()
