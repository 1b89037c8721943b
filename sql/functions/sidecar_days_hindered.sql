-- Why partitions of onceward.message cannot be made or dropped, as text with the remedy; NULL: they can. The first of
-- several reasons.
--
-- A table has the name of today or of one of the seven coming days, and is not a partition: most likely it was
-- detached. That day's partition is not made, and its messages go to the default partition. Or a DETACH ...
-- CONCURRENTLY has not ended: its session is gone, or it waits. Then the day accepts nothing and is not dropped.
-- PostgreSQL refuses that beside a default partition, so it requires that the default partition was removed, too;
-- claims that store fail on such a day.
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
          -- by name: a user's table message_20260231 is no day
          LEFT JOIN (SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date + n AS day FROM generate_series(0, 7) n) t
              ON c.relname = 'message_' || to_char(t.day, 'YYYYMMDD')
          -- the column does not exist before PostgreSQL 14
          LEFT JOIN LATERAL (SELECT to_jsonb(i) ->> 'inhdetachpending' = 'true' IS TRUE AS pending FROM pg_inherits i
                             WHERE i.inhrelid = c.oid AND i.inhparent = 'onceward.message'::regclass) h ON true
          WHERE c.relnamespace = 'onceward'::regnamespace AND c.relname ~ '^message_[0-9]{8}$') d
    WHERE d.pending
       OR d.pending IS NULL AND d.day IS NOT NULL
          AND EXISTS (SELECT FROM onceward.message_retention)
    ORDER BY d.relname LIMIT 1
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_days_hindered() FROM PUBLIC;
