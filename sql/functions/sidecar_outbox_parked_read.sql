-- The parked messages of an exchange behind the number p_after, in order: at most p_rows and about p_bytes of
-- bodies (at least one).
--
-- Returns the columns of sidecar_outbox_read, with the number among the parked as seq; the last row has batch
-- ('parked') and over: there are no more.
--
-- Locks: none; it waits at most 100 ms for a locked table. Rows: none changed. Repeating it: it only reads.
CREATE OR REPLACE FUNCTION onceward.sidecar_outbox_parked_read(
    p_exchange text, p_after bigint, p_rows integer, p_bytes bigint, p_max_message bigint)
RETURNS TABLE (batch text, over boolean, seq bigint, exchange text, routing_key text, message_id text, type text, headers text,
               properties text, body bytea, body_bytes bigint, age_ms bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
BEGIN
    PERFORM set_config('lock_timeout', '100ms', true);
    RETURN QUERY
    WITH found AS MATERIALIZED (
        SELECT u.*, octet_length(u.body)::bigint AS bytes,
               sum(octet_length(u.body)) OVER (ORDER BY u.n ROWS UNBOUNDED PRECEDING) - octet_length(u.body) AS before
        FROM (SELECT z.* FROM onceward.outbox_parked z WHERE z.exchange = p_exchange AND z.n > p_after
              ORDER BY z.exchange, z.n LIMIT p_rows) u
    )
    SELECT NULL::text, NULL::boolean, f.n, f.exchange::text, f.routing_key, f.message_id::text, f.type, f.headers::text, f.properties::text,
           CASE WHEN f.bytes <= p_max_message THEN f.body END, f.bytes,
           floor(1000 * extract(epoch FROM clock_timestamp() - f.published_at))::bigint
    FROM found f WHERE f.before < p_bytes
    UNION ALL
    SELECT 'parked', c.n < p_rows AND c.n = c.n_read, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM (SELECT count(*) AS n, count(*) FILTER (WHERE f.before < p_bytes) AS n_read FROM found f) c
    ORDER BY 3;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_outbox_parked_read(text, bigint, integer, bigint, bigint) FROM PUBLIC;
