"""A TCP proxy on the loopback: a link that can be cut, refused, frozen in either direction, made to swallow or to trickle, and mended."""

import socket
import struct
import threading
import time

from . import process


class Proxy:
    def __init__(self, target_port, target_host="127.0.0.1"):
        self.target = (target_host, target_port)
        self.port = None
        self.n_accepted = 0
        self._listener = None
        self._pairs = {}  # of sockets: what the link does to them
        self._drips = None
        self.rewrites = []  # of what the server says: pairs of a text and another that is as long
        self.rewrites_up = []  # the same of what the client says
        self._swallows = False
        self._lock = threading.Lock()
        self._flow = {"up": threading.Event(), "down": threading.Event()}
        for event in self._flow.values():
            event.set()

    def start(self):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.port = self.port or process.free_port()  # no outgoing connection is given it while nobody listens here
        listener.bind(("127.0.0.1", self.port))
        listener.listen(64)
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return self

    mend = start

    def refuse(self):
        """New connections are refused; those that are open go on."""
        listener, self._listener = self._listener, None
        if listener:
            try:
                listener.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            listener.close()

    def cut(self):
        """Every open connection is reset on both sides; new ones are accepted."""
        with self._lock:
            pairs, self._pairs = self._pairs, {}
        for pair in pairs:
            for s in pair:
                try:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    s.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def stop(self):
        self.refuse()
        self.cut()
        self.thaw()

    def freeze(self, up=True, down=True):
        """Drops everything, like a firewall that forgot the connection. up: towards the server."""
        if up:
            self._flow["up"].clear()
        if down:
            self._flow["down"].clear()

    def swallow(self):
        """From now on everything is accepted and nothing comes out, not even an end: a half-open connection. Those that are open now, or
        are made before mend_swallow, stay so; others are well."""
        with self._lock:
            self._swallows = True
            for state in self._pairs.values():
                state["is_dead"] = True

    def mend_swallow(self):
        with self._lock:
            self._swallows = False

    def trickle(self, size=1, interval=0.0002):
        """Every byte on its own (or so many), with a wait after it. None: as ever again."""
        self._drips = (size, interval) if size else None

    def thaw(self):
        for event in self._flow.values():
            event.set()

    @property
    def n_open(self):
        with self._lock:
            return len(self._pairs)

    def _accept(self, listener):
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self.target, 40)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            for s in (client, server):
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = (client, server)
            with self._lock:
                state = self._pairs[pair] = {"is_dead": self._swallows}
                self.n_accepted += 1
            ends = [2]
            for source, sink, flow in ((client, server, "up"), (server, client, "down")):
                threading.Thread(target=self._pump, args=(source, sink, self._flow[flow], pair, state, ends), daemon=True).start()

    def _pass(self, sink, data):
        drips = self._drips
        if not drips:
            sink.sendall(data)
            return
        for i in range(0, len(data), drips[0]):
            sink.sendall(data[i:i + drips[0]])
            time.sleep(drips[1])

    def _pump(self, source, sink, flow, pair, state, ends):
        try:
            while True:
                data = source.recv(65536)
                flow.wait()
                if not data:
                    if not state["is_dead"]:
                        sink.shutdown(socket.SHUT_WR)
                    break
                for text, other in self.rewrites if source is pair[1] else self.rewrites_up:
                    data = data.replace(text, other)
                if not state["is_dead"]:
                    self._pass(sink, data)
        except OSError:
            for s in pair if not state["is_dead"] else ():
                try:
                    s.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        with self._lock:
            ends[0] -= 1
            last = ends[0] == 0
            if last:
                self._pairs.pop(pair, None)
        if last:
            for s in pair:
                s.close()
