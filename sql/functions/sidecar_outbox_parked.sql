-- The exchanges that have parked messages. The relay asks when it takes the lease, before it reads any row.
--
-- The query steps through the index from one exchange to the next, however many messages each has.
--
-- Locks: none; it waits at most 100 ms for a locked table. Rows: none changed. Repeating it: it only reads.
CREATE OR REPLACE FUNCTION onceward.sidecar_outbox_parked() RETURNS TABLE (exchange text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
BEGIN
    PERFORM set_config('lock_timeout', '100ms', true);
    RETURN QUERY
    WITH RECURSIVE step (name) AS (
        (SELECT z.exchange FROM onceward.outbox_parked z ORDER BY z.exchange LIMIT 1)
        UNION ALL
        SELECT (SELECT z.exchange FROM onceward.outbox_parked z WHERE z.exchange > s.name ORDER BY z.exchange LIMIT 1)
        FROM step s WHERE s.name IS NOT NULL)
    SELECT s.name::text FROM step s WHERE s.name IS NOT NULL;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_outbox_parked() FROM PUBLIC;
