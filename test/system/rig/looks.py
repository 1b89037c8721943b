"""Looking at a database again and again."""

import threading

import psycopg2


class Looks:
    """Statements on a connection that is kept, for what is asked again and again: a new one for each look costs the server more than all
    else in most tests. On any thread; of those that were used at once one is kept. What the server has ended is made anew."""

    def __init__(self):
        self._lock = threading.Lock()
        self._kept = None  # a server and the connection to it; who uses it takes it away

    def query(self, server, sql, parameters=None, cursor_factory=None):
        """Rows of one statement, a transaction of its own; None when it has none."""
        with self._lock:
            kept, self._kept = self._kept, None
        if kept and kept[0] is server:
            try:
                return self._query(*kept, sql, parameters, cursor_factory)
            except (psycopg2.OperationalError, psycopg2.InterfaceError):
                if not kept[1].closed:
                    raise
        elif kept:
            kept[1].close()
        return self._query(server, server.connect(), sql, parameters, cursor_factory)

    def _query(self, server, connection, sql, parameters, cursor_factory):
        try:
            with connection.cursor(cursor_factory=cursor_factory) as cursor:
                cursor.execute(sql, parameters)
                return cursor.fetchall() if cursor.description else None
        finally:
            self._keep(server, connection)

    def _keep(self, server, connection):
        with self._lock:
            if not self._kept and not connection.closed:
                self._kept = (server, connection)
                return
        connection.close()

    def close(self):
        with self._lock:
            kept, self._kept = self._kept, None
        if kept:
            kept[1].close()
