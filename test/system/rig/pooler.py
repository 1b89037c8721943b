"""PgBouncer in transaction mode before a private PostgreSQL, as an ordinary process."""

import os
import re
import shutil
import signal
import subprocess
import tempfile

import psycopg2
import pytest

from . import process
from .servers import HOST, PostgreSQL
from .wait import wait_until

USERS = ("postgres", "sidecar_login", "app_login")


def program():
    return shutil.which("pgbouncer", path="/usr/sbin:/usr/bin")


class PgBouncer:
    def __init__(self, postgres, **settings):
        """settings: more lines of its configuration."""
        if not program():
            pytest.skip("pgbouncer is not installed")
        self.postgres = postgres
        self.port = process.free_port()
        self.folder = tempfile.mkdtemp(prefix="onceward-pooler-")
        self.log = os.path.join(self.folder, "log")
        os.chmod(self.folder, 0o755)
        values = {"listen_addr": HOST, "listen_port": self.port, "unix_socket_dir": "", "auth_type": "trust",
                  "auth_file": os.path.join(self.folder, "users"), "admin_users": "postgres", "pool_mode": "transaction",
                  "default_pool_size": 20, "server_login_retry": 1, "ignore_startup_parameters": "extra_float_digits"}
        values.update(settings)
        with open(values["auth_file"], "w") as f:
            f.writelines(f'"{user}" ""\n' for user in USERS)
        with open(os.path.join(self.folder, "pgbouncer.ini"), "w") as f:
            f.write(f"[databases]\n* = host={HOST} port={postgres.port}\n[pgbouncer]\n")
            f.writelines(f"{key} = {value}\n" for key, value in values.items())
        for name in ("", "users", "pgbouncer.ini"):
            postgres.own(os.path.join(self.folder, name))
        self.child = None

    @staticmethod
    def version():
        said = subprocess.run([program(), "--version"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=True).stdout
        return tuple(map(int, re.search(rb"PgBouncer (\d+)\.(\d+)", said).groups()))

    @classmethod
    def keeps_prepared_statements(cls):
        """Does it know named statements in transaction mode (https://www.pgbouncer.org/changelog.html#pgbouncer-121x)?"""
        return cls.version() >= (1, 21)

    def start(self):
        user = ["-u", PostgreSQL._owner().pw_name] if os.geteuid() == 0 else []
        with open(self.log, "ab") as log:
            self.child = process.spawn([program(), *user, os.path.join(self.folder, "pgbouncer.ini")], stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=log, cwd="/")
        wait_until(self._answers, lambda: "pgbouncer answers: " + process.tail(self.log), 30, 0.02)
        return self

    def _answers(self):
        assert self.child.poll() is None, "pgbouncer ended: " + process.tail(self.log)
        try:
            self.client().connect().close()
            return True
        except psycopg2.OperationalError:
            return False

    def client(self):
        """The server as seen through the pooler: dsn(), connect(), query()."""
        return PostgreSQL(self.postgres.folder, self.postgres.certificates, self.port, self.postgres.database)

    def admin(self, command):
        """A command of its console: SHOW POOLS, PAUSE, …"""
        connection = psycopg2.connect(self.client().dsn(database="pgbouncer"))
        connection.autocommit = True  # the console knows no transactions
        try:
            with connection.cursor() as cursor:
                cursor.execute(command)
                return cursor.fetchall() if cursor.description else None
        finally:
            connection.close()

    def kill(self):
        """Every connection through it is broken at once."""
        if self.child:
            process.kill(self.child)
            self.child = None

    def stop(self):
        if self.child:
            process.reap(self.child, ((signal.SIGINT, 5.0),))
            self.child = None
        shutil.rmtree(self.folder, ignore_errors=True)
