"""completion: response. The effect is elsewhere, so a 2xx completes the message; the Idempotency-Key tells that elsewhere what is a repeat."""

import json, os, urllib.error, urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Application(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        status = 400  # what an error means from here on: the message is wrong
        try:
            order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if list(map(type, (order["id"], order["cents"]))) != [str, int]: raise ValueError("not an order: id must be a string, cents an integer")
            charge = json.dumps({"reference": order["id"], "cents": order["cents"]}).encode()
            status = 503  # the payment provider cannot be reached
            request = urllib.request.Request(os.environ["PROVIDER_URL"], charge, {
                "Content-Type": "application/json", "Idempotency-Key": self.headers["Idempotency-Key"]})
            # For each wait; in all it must stay below the token window, or the sidecar gives up before this does.
            with urllib.request.urlopen(request, timeout=min(20, int(self.headers["Onceward-Token-Window-Ms"]) / 1500)):
                status = 204
        except urllib.error.HTTPError as error:  # 502 and 504 would say that this application crashed; a wrong key is no fault of the message
            status = error.code if error.code in (400, 409, 422, 429, 503) else 503 if error.code in (401, 403, 502, 504) else 500
        except Exception as error:
            self.log_error("%s", error)
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_request(self, *_):
        pass

ThreadingHTTPServer.request_queue_size = 128  # connections at once; the default is 5
ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Application).serve_forever()
