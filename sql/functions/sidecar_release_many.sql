-- Releases claims of several queues without charging them: the attempt is taken off again, and the rows may be
-- claimed after a delay. A negative delay counts from the present end of the token, but at most c_most from now:
-- the application may still be at work. p_queues has the number of each item's queue, which is a place in
-- p_consumers. The items are sorted by consumer and id, in byte order.
--
-- p_crashes: the row's new count of crashes; negative: unchanged. p_unproven_steps: written, with the present time
-- as unproven_at; negative: unchanged. p_batch_caps: largest size of the next request with this message; NULL:
-- unchanged.
--
-- Answers, one per item: released (now, or before, with this token) | completed (with it) | locked (read the row
-- again) | lost | vanished.
--
-- Locks: the rows it changes, in the order of the items, SKIP LOCKED: it never waits. Rows: one per item.
-- Repeating it: the row keeps the token, so the second call answers 'released' and changes nothing.
CREATE OR REPLACE FUNCTION onceward.sidecar_release_many(
    p_consumers text[], p_queues integer[], p_ids text[], p_tokens uuid[], p_errors text[], p_delays bigint[],
    p_crashes integer[], p_unproven_steps integer[],
    p_batch_caps integer[] DEFAULT NULL)
RETURNS TABLE (ord integer, answer text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- @plan nested_loops
SET enable_memoize = off
SET enable_tidscan = on
AS $$
DECLARE
    -- the longest max_window: later ends come from a clock that was ahead
    c_most constant interval := interval '168 hours';
    v_now  timestamptz := clock_timestamp();
BEGIN
    PERFORM set_config('lock_timeout', '1s', true);
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    WITH taken AS MATERIALIZED (
        SELECT i.token, i.error, i.delay, i.crashes, i.step, i.cap, f.tid
        FROM unnest(p_queues, p_ids, p_tokens, p_errors, p_delays, p_crashes, p_unproven_steps, p_batch_caps)
             i (queue, id, token, error, delay, crashes, step, cap)
        CROSS JOIN LATERAL (
            SELECT r.ctid AS tid FROM onceward.inbox r
            WHERE r.consumer = p_consumers[i.queue] AND r.message_id = i.id AND r.token = i.token AND r.status = 'processing'
            LIMIT 1 FOR UPDATE OF r SKIP LOCKED) f
    )
    UPDATE onceward.inbox r
    SET status = 'waiting', attempt = greatest(r.attempt - 1, 0),
        next_attempt_at = CASE WHEN t.delay < 0 THEN greatest(v_now, least(r.token_expires_at, v_now + c_most)) - t.delay * interval '1 ms'
                               ELSE v_now + coalesce(t.delay, 0) * interval '1 ms' END,
        last_error = coalesce(onceward.error_cut(t.error), r.last_error),
        crashes = CASE WHEN t.crashes >= 0 THEN t.crashes ELSE r.crashes END,
        unproven_at = CASE WHEN t.step >= 0 THEN v_now ELSE r.unproven_at END,
        unproven_step = CASE WHEN t.step >= 0 THEN t.step ELSE r.unproven_step END,
        batch_cap = coalesce(t.cap, r.batch_cap)
    FROM taken t
    WHERE r.ctid = t.tid AND r.token = t.token AND r.status = 'processing';

    RETURN QUERY
    SELECT i.ord::integer,
           CASE WHEN r.status IS NULL THEN 'vanished'
                WHEN r.token <> i.token THEN 'lost' -- even if it is completed: perhaps with another body
                WHEN r.status = 'completed' THEN 'completed'
                WHEN r.status = 'waiting' THEN 'released'
                WHEN r.status = 'processing' THEN 'locked'
                ELSE 'lost' END
    FROM unnest(p_queues, p_ids, p_tokens) WITH ORDINALITY i (queue, id, token, ord)
    LEFT JOIN LATERAL (
        SELECT r.status, r.token FROM onceward.inbox r
        WHERE r.consumer = p_consumers[i.queue] AND r.message_id = i.id LIMIT 1) r ON true
    ORDER BY i.ord;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_release_many(text[], integer[], text[], uuid[], text[], bigint[], integer[], integer[], integer[]) FROM PUBLIC;
