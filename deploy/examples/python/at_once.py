"""Completion and work in one statement: one round trip, and a connection that is kept for each thread."""

import json, os, psycopg2, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

kept = threading.local()

def database():
    if getattr(kept, "connection", None) is None or kept.connection.closed:
        kept.connection = psycopg2.connect(os.environ["DATABASE_URL"])
        kept.connection.autocommit = True  # the statement is the transaction
    return kept.connection

class Application(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps the sidecar's connections, each with its thread

    def do_POST(self):
        status = 400  # what an error means from here on: the message is wrong
        try:
            order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if list(map(type, (order["id"], order["cents"]))) != [str, int]: raise ValueError("not an order: id must be a string, cents an integer")
            values = [self.headers["Onceward-Token"], order["id"], order["cents"]]
            status = 503  # the database cannot be reached
            db = database()
            status = 500  # rolled back; Onceward reads the row and does what is right
            with db.cursor() as sql:
                sql.execute("""WITH c AS MATERIALIZED (SELECT onceward.complete(%s))
                               INSERT INTO charges (order_id, cents) SELECT %s, %s FROM c""", values)
            status = 204
        except Exception as error:
            self.log_error("%s", error)
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_request(self, *_):
        pass

ThreadingHTTPServer.request_queue_size = 128  # connections at once; the default is 5
ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Application).serve_forever()
