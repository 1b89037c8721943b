"""Sessions of applications, kept for the next application: a new one costs the server 5 ms, and its first completion 10 ms more."""

import select
import threading

import psycopg2

KEPT_AT_MOST = 8


class Sessions:
    """Idle sessions of app_login in one database. For a database that no test drops, on a server that no test stops."""

    def __init__(self, postgres):
        self._postgres = postgres
        self._lock = threading.Lock()
        self._kept = []

    def take(self):
        while True:
            with self._lock:
                if not self._kept:
                    break
                session = self._kept.pop()
            if not select.select([session], [], [], 0)[0]:
                return session
            session.close()  # the server has ended it
        return _made(self._postgres)

    def put(self, session):
        try:
            session.reset()  # no transaction, and the settings of a new session
            session.autocommit = False
        except psycopg2.Error:
            session.close()
        with self._lock:
            if not session.closed and len(self._kept) < KEPT_AT_MOST:
                self._kept.append(session)
                return
        session.close()


def _made(postgres):
    return postgres.connect(user="app_login", autocommit=False)


def take(postgres):
    """A session with autocommit off: a kept one, where this database keeps them."""
    kept = getattr(postgres, "sessions", None)
    return kept.take() if kept else _made(postgres)


def put(postgres, session):
    """Keeps the session or ends it."""
    kept = getattr(postgres, "sessions", None)
    if kept:
        kept.put(session)
    else:
        session.close()
