-- What is in the way of the days of onceward.message, in words, with what to do about it; NULL: nothing is. Of several, the first.
--
-- A table has the name of today or of one of the seven days to come, and is no partition: somebody has detached it, most likely. Its
-- day is not made, and what arrives goes into the default partition. Or a DETACH ... CONCURRENTLY has not ended, and nobody runs it any more, or
-- it waits: the day takes nothing and is not dropped. PostgreSQL refuses that beside a default partition, so this needs somebody who took
-- that away, too; claims that store fail on such a day, since the default partition does not take it either.
--
-- Locks: none. Rows: none changed. Repeating it: it only reads.
CREATE OR REPLACE FUNCTION onceward.sidecar_days_hindered() RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN d.pending THEN
        format('a DETACH of onceward.%s from onceward.message has begun and not ended: nothing is stored for that day, and it is not dropped. ALTER '
               'TABLE onceward.message DETACH PARTITION onceward.%s FINALIZE ends it; then rename or drop that table', d.relname, d.relname)
    ELSE
        format('onceward.%s is no partition of onceward.message, and keeps that day from being made: its messages go into message_default. Rename '
               'or drop it; or, while message_default has none of that day, ALTER TABLE onceward.message ATTACH PARTITION onceward.%s FOR '
               'VALUES FROM (''%s 00:00:00+00'') TO (''%s 00:00:00+00'')', d.relname, d.relname, d.day, d.day + 1)
    END
    FROM (SELECT c.relname, t.day, h.pending
          FROM pg_class c
          -- by name: somebody's message_20260231 is no day
          LEFT JOIN (SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date + n AS day FROM generate_series(0, 7) n) t
              ON c.relname = 'message_' || to_char(t.day, 'YYYYMMDD')
          -- before PostgreSQL 14 there is no such column
          LEFT JOIN LATERAL (SELECT to_jsonb(i) ->> 'inhdetachpending' = 'true' IS TRUE AS pending FROM pg_inherits i
                             WHERE i.inhrelid = c.oid AND i.inhparent = 'onceward.message'::regclass) h ON true
          WHERE c.relnamespace = 'onceward'::regnamespace AND c.relname ~ '^message_[0-9]{8}$') d
    WHERE d.pending
       OR d.pending IS NULL AND d.day IS NOT NULL
          AND EXISTS (SELECT FROM onceward.message_retention)
    ORDER BY d.relname LIMIT 1
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_days_hindered() FROM PUBLIC;
