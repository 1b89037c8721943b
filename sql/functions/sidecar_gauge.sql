-- For the stats line: the number of the consumer's letters (counted up to 100,000), the size of all letters of the
-- database, and the age of the oldest transaction that keeps vacuum from cleaning up; -1: unknown, because the
-- caller may not see other roles' sessions (pg_read_all_stats).
--
-- Locks: none. Rows: one. Repeating it: it only reads.
CREATE OR REPLACE FUNCTION onceward.sidecar_gauge(
    p_consumer text, OUT dead_letters bigint, OUT dead_letter_bytes bigint, OUT oldest_snapshot_ms bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- @plan index
AS $$
BEGIN
    PERFORM set_config('lock_timeout', '1s', true);
    SELECT count(*) INTO dead_letters
    FROM (SELECT FROM onceward.dead_letter l WHERE l.consumer = p_consumer LIMIT 100000) l;
    dead_letter_bytes := pg_total_relation_size('onceward.dead_letter');

    oldest_snapshot_ms := -1;
    IF pg_has_role('pg_read_all_stats', 'USAGE') THEN
        SELECT coalesce(max(floor(1000 * extract(epoch FROM clock_timestamp() - s.since))), 0)::bigint INTO oldest_snapshot_ms
        FROM (SELECT a.xact_start AS since FROM pg_stat_activity a
              WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) AND a.pid <> pg_backend_pid()
                AND a.datname = current_database() AND a.backend_type <> 'autovacuum worker'
              UNION ALL
              SELECT p.prepared FROM pg_prepared_xacts p WHERE p.database = current_database()) s;
    END IF;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_gauge(text) FROM PUBLIC;
