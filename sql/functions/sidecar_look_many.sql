-- Reads rows of several queues without changing them. p_queues has the number of each item's queue, which is a
-- place in p_consumers, p_transactions, p_windows and p_max_windows (not less).
--
-- Answers, one per item, or one with ord -n for the n items that have none: claimed (processing with that token;
-- wait_ms is the rest of its window, and may be negative) | completed | held (wait_ms until a takeover is allowed,
-- detail: the claim owner, namesake) | not_due (wait_ms, detail: the last error) | due (rows that a claim would
-- claim, or call exhausted or due) | dead (detail: the last error) | mismatch | vanished. Each answer but
-- completed, if there is a row, also has: attempt, takeovers, crashes, unproven_ms and unproven_step.
-- sidecar_claim_many explains when a takeover is allowed. Neither wait is longer than its queue's p_max_windows and
-- twice the grace: the caller then reads the row again. A window may end later because of a clock that was ahead,
-- or of another replica's `max_window`.
--
-- Locks: none; waits at most a second for a lock of the whole table. Rows: one per item.
-- Repeating it: it only reads; VOLATILE, so that each call sees earlier commits.
CREATE OR REPLACE FUNCTION onceward.sidecar_look_many(
    p_instance text, p_number bigint, p_own boolean, p_gone text[], p_grace_ms bigint,
    p_consumers text[], p_transactions boolean[], p_windows interval[], p_max_windows interval[],
    p_queues integer[], p_ids text[], p_tokens uuid[], p_fingerprints bytea[])
RETURNS TABLE (ord integer, answer text, attempt integer, takeovers integer, crashes integer, unproven_ms bigint, unproven_step integer,
               wait_ms bigint, namesake boolean, detail text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- @plan nested_loops
SET enable_memoize = off
SET enable_tidscan = on
AS $$
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_stale timestamptz := v_now - p_grace_ms * interval '1 ms';
    v_n     bigint;
BEGIN
    PERFORM set_config('lock_timeout', '1s', true);
    RETURN QUERY
    SELECT i.ord::integer, a.answer, r.attempt, coalesce(r.takeovers, 0), coalesce(r.crashes, 0),
           CASE WHEN isfinite(r.unproven_at) THEN greatest(floor(1000 * extract(epoch FROM v_now - r.unproven_at))::bigint, 0) END,
           coalesce(r.unproven_step, 0),
           CASE a.answer
               WHEN 'claimed' THEN ceil(1000 * extract(epoch FROM least(r.token_expires_at, v_now + p_max_windows[i.queue]) - v_now))::bigint
               WHEN 'held' THEN ceil(1000 * extract(epoch FROM least(
                   r.token_expires_at, v_stale + p_max_windows[i.queue] + 2 * p_grace_ms * interval '1 ms') - v_stale))::bigint
               WHEN 'not_due' THEN ceil(1000 * extract(epoch FROM least(r.next_attempt_at, v_now + interval '3650 days') - v_now))::bigint END,
           a.answer = 'held' AND onceward.holder_is_namesake(r.claimed_by, p_instance, p_number),
           CASE a.answer
               WHEN 'held' THEN r.claimed_by
               WHEN 'not_due' THEN r.last_error
               WHEN 'dead' THEN r.last_error END
    FROM unnest(p_queues, p_ids, p_tokens, p_fingerprints) WITH ORDINALITY i (queue, id, token, fingerprint, ord)
    LEFT JOIN LATERAL (
        SELECT r.status, r.attempt, r.token, r.fingerprint, r.token_expires_at, r.max_expires_at, r.next_attempt_at, r.claimed_by,
               r.last_error, r.takeovers, r.crashes, r.unproven_at, r.unproven_step
        FROM onceward.inbox r
        WHERE r.consumer = p_consumers[i.queue] AND r.message_id = i.id LIMIT 1) r ON true
    CROSS JOIN LATERAL (
        SELECT CASE
            WHEN r.status IS NULL THEN 'vanished'
            WHEN r.fingerprint <> i.fingerprint THEN 'mismatch'
            WHEN r.status = 'completed' THEN 'completed'
            WHEN r.status = 'dead' THEN 'dead'
            WHEN r.status = 'processing' AND r.token = i.token THEN 'claimed'
            WHEN r.status = 'processing' AND r.token_expires_at > v_stale
                 AND (p_transactions[i.queue]
                      AND onceward.holder_is_gone(
                          r.claimed_by, r.takeovers, r.token_expires_at, r.max_expires_at,
                          p_max_windows[i.queue] - p_windows[i.queue], p_instance, p_number, p_own,
                          p_gone)) IS NOT TRUE THEN 'held'
            WHEN r.status IN ('failed', 'waiting') AND r.next_attempt_at > v_now THEN 'not_due'
            ELSE 'due' END AS answer
        OFFSET 0) a
    WHERE a.answer IS DISTINCT FROM 'completed'
    ORDER BY i.ord;
    GET DIAGNOSTICS v_n = ROW_COUNT;

    -- Most existing rows are completed: one row answers all of them.
    IF v_n < cardinality(p_ids) THEN
        ord := v_n - cardinality(p_ids);
        answer := 'completed';
        RETURN NEXT;
    END IF;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_look_many(text, bigint, boolean, text[], bigint, text[], boolean[], interval[], interval[], integer[],
                                                  text[], uuid[], bytea[]) FROM PUBLIC;
