-- Reads rows without touching them.
--
-- Answers, one an item: claimed (processing with that token; wait_ms is what is left of its window, and may be negative) |
-- completed | held (wait_ms until a takeover is allowed, detail: the holder) | not_due (wait_ms, detail: the last error) | due (failed,
-- waiting or expired, and may be claimed now) | dead (detail: the last error) | mismatch | vanished.
--
-- Locks: none; waits at most a second for somebody's lock of the whole table. Rows: one an item.
-- Repeating it: it only reads; VOLATILE, so that each call sees what was committed before it.
CREATE OR REPLACE FUNCTION onceward.sidecar_look(
    p_consumer text, p_grace_ms bigint, p_ids text[], p_tokens uuid[], p_fingerprints bytea[])
RETURNS TABLE (ord integer, answer text, wait_ms bigint, detail text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_memoize = off
SET enable_material = off
SET enable_nestloop = on
SET enable_indexscan = on
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_stale timestamptz := v_now - p_grace_ms * interval '1 ms';
BEGIN
    PERFORM set_config('lock_timeout', '1s', true);
    RETURN QUERY
    SELECT i.ord::integer, a.answer,
           CASE a.answer
               WHEN 'claimed' THEN ceil(1000 * extract(epoch FROM r.token_expires_at - v_now))::bigint
               WHEN 'held' THEN ceil(1000 * extract(epoch FROM r.token_expires_at - v_stale))::bigint
               WHEN 'not_due' THEN ceil(1000 * extract(epoch FROM r.next_attempt_at - v_now))::bigint END,
           CASE a.answer
               WHEN 'held' THEN r.claimed_by
               WHEN 'not_due' THEN r.last_error
               WHEN 'dead' THEN r.last_error END
    FROM unnest(p_ids, p_tokens, p_fingerprints) WITH ORDINALITY i (id, token, fingerprint, ord)
    LEFT JOIN LATERAL (
        SELECT r.status, r.token, r.fingerprint, r.token_expires_at, r.next_attempt_at, r.claimed_by, r.last_error
        FROM onceward.inbox r
        WHERE r.consumer = p_consumer AND r.message_id = i.id LIMIT 1) r ON true
    CROSS JOIN LATERAL (
        SELECT CASE
            WHEN r.status IS NULL THEN 'vanished'
            WHEN r.fingerprint <> i.fingerprint THEN 'mismatch'
            WHEN r.status = 'completed' THEN 'completed'
            WHEN r.status = 'dead' THEN 'dead'
            WHEN r.status = 'processing' AND r.token = i.token THEN 'claimed'
            WHEN r.status = 'processing' AND r.token_expires_at > v_stale THEN 'held'
            WHEN r.status IN ('failed', 'waiting') AND r.next_attempt_at > v_now THEN 'not_due'
            ELSE 'due' END AS answer
        OFFSET 0) a
    ORDER BY i.ord;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_look(text, bigint, text[], uuid[], bytea[]) FROM PUBLIC;
