"""Statements on a connection that is kept."""

import threading

import psycopg2


class Looks:
    """Statements on a connection that is kept for the next one: a new session for each would cost the server more than all else in most
    tests. Any thread may call; of the connections used at once one is kept. One that the server has ended is replaced."""

    def __init__(self):
        self._lock = threading.Lock()
        self._kept = None  # a thread that uses it takes it away

    def query(self, connect, sql, parameters=None, cursor_factory=None):
        """Rows of one statement, a transaction of its own; None when it has none. connect: makes a connection in autocommit mode."""
        with self._lock:
            kept, self._kept = self._kept, None
        if kept:
            try:
                return self._query(kept, sql, parameters, cursor_factory)
            except (psycopg2.OperationalError, psycopg2.InterfaceError):
                if not kept.closed:
                    raise
        return self._query(connect(), sql, parameters, cursor_factory)

    def _query(self, connection, sql, parameters, cursor_factory):
        try:
            with connection.cursor(cursor_factory=cursor_factory) as cursor:
                cursor.execute(sql, parameters)
                return cursor.fetchall() if cursor.description else None
        finally:
            self._keep(connection)

    def _keep(self, connection):
        with self._lock:
            if not self._kept and not connection.closed:
                self._kept = connection
                return
        connection.close()

    def close(self):
        with self._lock:
            kept, self._kept = self._kept, None
        if kept:
            kept.close()
