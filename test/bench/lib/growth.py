"""Inboxes that are large, and databases that are busy with other things, while a drain runs."""

import psycopg2

from .drain import drain

# Rows of messages completed a while ago, as the sidecar would have left them, of the queue that is drained. In the order of the index, or
# filling takes several times as long.
FILL = """
INSERT INTO onceward.inbox (consumer, message_id, status, attempt, http_status, token, fingerprint, received_at, alive_since,
                            token_expires_at, max_expires_at, completed_at, claimed_by)
SELECT 'q1', md5('old' || n)::uuid::text, 'completed', 1, 204, md5('t' || n)::uuid, decode(md5('f' || n), 'hex'),
       at, at, at + interval '30 s', at + interval '20 min', at + interval '1 s', 'bench'
FROM (SELECT n, clock_timestamp() - %s::interval AS at FROM generate_series(1, %s) n ORDER BY md5('old' || n) COLLATE "C") rows
"""


class Databases:
    """Filled once, then used in every round."""

    def __init__(self):
        self.names = {}

    def filled(self, bed, rows, age="1 hour"):
        key = (rows, age)
        if key not in self.names:
            name = bed.new_database("t_onceward")
            bed.say(f"filling an inbox with {rows:,} rows")
            connection = psycopg2.connect(bed.postgres.dsn(database=name, application_name="bench"))
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute("SET work_mem = '256MB'; SET synchronous_commit = off")
                cursor.execute(FILL, (age, rows))
                cursor.execute("VACUUM ANALYZE onceward.inbox")
            connection.close()
            self.names[key] = name
        return self.names[key]


def with_rows(bed, databases, rows, count):
    return drain(bed, "onceward", count, database=databases.filled(bed, rows))


def purging(bed, rows, count):
    """rows of them are past the retention: the sidecar purges them meanwhile. A new database each time."""
    name = Databases().filled(bed, rows, "30 days")
    try:
        result = drain(bed, "onceward", count, database=name, queue_options={"retention": "7d"})
        left = bed.postgres.query("SELECT count(*) FROM onceward.inbox WHERE claimed_by = 'bench'", database=name)[0][0]
        return dict(result, purged=rows - left)
    finally:
        bed.drop_database(name)


def with_snapshot(bed, count):
    """Somebody's transaction keeps every old version of every row alive."""
    name = bed.new_database("t_onceward")
    connection = psycopg2.connect(bed.postgres.dsn(database=name, application_name="bench"))
    try:
        connection.set_session(isolation_level="REPEATABLE READ")
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM onceward.inbox")
        return drain(bed, "onceward", count, database=name)
    finally:
        connection.close()
        bed.drop_database(name)
