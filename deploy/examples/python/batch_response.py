"""completion: response, several messages in a request. The table has a unique message_id, so a repeat inserts nothing. Needs `forward.batch`."""

import json, os, psycopg2
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

def charge_of(message):
    order = message["body"]  # absent where the body is not JSON that every reader takes: "body_base64" then
    if list(map(type, (order["id"], order["cents"]))) != [str, int]: raise ValueError("not an order: id must be a string, cents an integer")
    return message["id"], order["id"], order["cents"]

def insert(db, charges):
    with db, db.cursor() as sql:  # one transaction for all messages
        sql.execute("""INSERT INTO charges (message_id, order_id, cents)
                       SELECT * FROM unnest(%s::text[], %s::text[], %s::integer[])
                       ON CONFLICT (message_id) DO NOTHING""", [[c[i] for c in charges] for i in range(3)])

class Application(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def charge(self, messages):
        charges, failures = [], []
        for message in messages:
            try:
                charges.append(charge_of(message))
            except (KeyError, TypeError, ValueError) as error:
                failures.append({"id": message["id"], "status": 422, "error": str(error)})
        db = None
        try:
            db = psycopg2.connect(os.environ["DATABASE_URL"])
            insert(db, charges)
            return 200, {"failures": failures, "results": {c[0]: {"cents": c[2]} for c in charges}}  # results: for store_response
        except Exception as error:
            self.log_error("%s", error)
            return 500 if db else 503, {}  # rolled back
        finally:
            if db: db.close()

    def do_POST(self):
        try:
            messages = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
            status, answer = self.charge(messages)
        except (LookupError, TypeError, ValueError, RecursionError) as error:  # not answering would look like a crash
            self.log_error("not a batch: %s", error)
            messages, status, answer = [], 500, {}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Onceward-Batch", str(len(messages)))  # all succeeded, but for the named ones
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, *_):
        pass

ThreadingHTTPServer.request_queue_size = 128  # connections at once; the default is 5
ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Application).serve_forever()
