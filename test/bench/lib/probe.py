"""Looks at processes and servers from outside: CPU and memory from /proc, WAL and commits from PostgreSQL, TCP from ss."""

import glob
import os
import re
import subprocess

TICK = os.sysconf("SC_CLK_TCK")


def children(pid):
    """The process and all that it started, also through others."""
    found = [pid]
    for path in glob.glob(f"/proc/{pid}/task/*/children"):
        try:
            with open(path) as f:
                for child in f.read().split():
                    found += children(int(child))
        except OSError:
            pass
    return found


def cpu_seconds(pid):
    """User and system time of a process; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICK


def _status_bytes(pid, name):
    try:
        with open(f"/proc/{pid}/status") as f:
            found = re.search(rf"^{name}:\s+(\d+) kB", f.read(), re.M)
    except OSError:
        return 0
    return int(found.group(1)) * 1024 if found else 0


def rss_anon(pid):
    """Bytes of anonymous memory; 0 when it is gone."""
    return _status_bytes(pid, "RssAnon")


def rss_file(pid):
    """Bytes of files that are mapped in, the program itself among them; 0 when it is gone."""
    return _status_bytes(pid, "RssFile")


class Cpu:
    """CPU time of groups of processes between two moments. groups: {name: function that answers pids}."""

    def __init__(self, groups):
        self.groups = groups
        self.start = {name: {pid: cpu_seconds(pid) for pid in pids()} for name, pids in groups.items()}
        self.last = {name: dict(seen) for name, seen in self.start.items()}

    def look(self):
        """Remembers what is there now, so that a process which ends before the end is counted."""
        for name, pids in self.groups.items():
            for pid in pids():
                now = cpu_seconds(pid)
                if now:
                    self.last[name][pid] = now

    def seconds(self):
        self.look()
        return {name: sum(now - self.start[name].get(pid, 0.0) for pid, now in seen.items())
                for name, seen in self.last.items()}


def tcp(pid):
    """Bytes and segments of the TCP connections of a process, by the port of the other side."""
    out = subprocess.run(["ss", "-tinpH"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    found = {}
    lines = out.splitlines()
    for head, info in zip(lines[::2], lines[1::2]):
        if f"pid={pid}," not in head:
            continue
        port = int(head.split()[4].rsplit(":", 1)[1])
        here = found.setdefault(port, {})
        for key in ("bytes_sent", "bytes_received", "segs_out", "segs_in", "data_segs_out", "data_segs_in"):
            value = re.search(rf"\b{key}:(\d+)", info)
            here[key] = here.get(key, 0) + (int(value.group(1)) if value else 0)
    return found


class Database:
    """WAL, commits and HOT updates of one database between two moments."""

    def __init__(self, connection):
        self.connection = connection
        self.lsn = self._one("SELECT pg_current_wal_insert_lsn()")

    def _one(self, sql, *parameters):
        with self.connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            return cursor.fetchone()[0]

    def wal(self):
        """(bytes without full-page images, bytes of full-page images) since the start."""
        end = self._one("SELECT pg_current_wal_insert_lsn()")
        if end == self.lsn:
            return 0, 0
        self._one("SELECT pg_switch_wal()")  # what was inserted must be written before it can be read
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT sum(record_size), sum(fpi_size) FROM pg_get_wal_stats(%s, %s)", (self.lsn, end))
            records, images = cursor.fetchone()
        return int(records or 0), int(images or 0)

    def commits(self, name):
        return self._one("SELECT xact_commit FROM pg_stat_database WHERE datname = %s", name)

    def backends(self, name):
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT pid FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend' "
                           "AND application_name <> 'bench'", (name,))
            return [row[0] for row in cursor.fetchall()]
