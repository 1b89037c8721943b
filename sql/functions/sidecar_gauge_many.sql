-- sidecar_gauge for several consumers: one row for each, in their order. Values of the whole database are the same
-- in all rows.
--
-- Locks: none. Rows: one per consumer. Repeating it: it only reads.
CREATE OR REPLACE FUNCTION onceward.sidecar_gauge_many(p_consumers text[])
RETURNS TABLE (dead_letters bigint, dead_letter_bytes bigint, oldest_snapshot_ms bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- @plan index
AS $$
DECLARE
    v_all record;
BEGIN
    SELECT g.dead_letter_bytes, g.oldest_snapshot_ms INTO v_all FROM onceward.sidecar_gauge(p_consumers[1]) g;
    RETURN QUERY
    SELECT n.letters, v_all.dead_letter_bytes, v_all.oldest_snapshot_ms
    FROM unnest(p_consumers) WITH ORDINALITY c (consumer, ord)
    CROSS JOIN LATERAL (
        SELECT count(*) AS letters
        FROM (SELECT FROM onceward.dead_letter l WHERE l.consumer = c.consumer LIMIT 100000) l) n
    ORDER BY c.ord;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_gauge_many(text[]) FROM PUBLIC;
