import json, os, psycopg2
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Application(BaseHTTPRequestHandler):
    def do_POST(self):
        db, status = None, 400  # what an error means from here on: the message is wrong
        try:
            order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            charge = [order["id"], order["cents"]]
            if list(map(type, charge)) != [str, int]: raise ValueError("not an order: id must be a string, cents an integer")
            status = 503  # the database cannot be reached
            db = psycopg2.connect(os.environ["DATABASE_URL"])
            status = 500  # rolled back; Onceward reads the row and does what is right
            with db, db.cursor() as sql:  # one transaction: both, or neither
                sql.execute("SELECT onceward.complete(%s)", [self.headers["Onceward-Token"]])
                sql.execute("INSERT INTO charges (order_id, cents) VALUES (%s, %s)", charge)
            status = 204
        except Exception as error:
            self.log_error("%s", error)
        finally:
            if db: db.close()
        self.send_response(status)
        self.end_headers()

ThreadingHTTPServer.request_queue_size = 128  # connections at once; the default is 5
ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Application).serve_forever()
