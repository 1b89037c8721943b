-- Ends tokens whose attempt failed, of several queues: the rows may be claimed again after a delay, the attempt
-- stays charged. p_queues has the number of each item's queue, which is a place in p_consumers. The items are
-- sorted by consumer and id, in byte order.
--
-- p_give_back: the attempt is not charged; the row waits, and the answer is 'released'. p_crashes: the row's new
-- count of crashes; negative: unchanged. p_unproven_steps: written, with the present time as unproven_at; negative:
-- unchanged. p_batch_caps: largest size of the next request with this message; NULL: unchanged.
--
-- p_only_expired: only if the window has ended, so that a token that its application has extended stays valid. A
-- window that ends later than c_most and two seconds from now was given by a clock that was ahead. It counts as
-- ended: the caller, who has the token, has waited for it by another clock.
--
-- Answers, one per item: failed (now, or before, with this token) | released | completed (with this token) | locked
-- (read the row again) | extended (wait_ms: the rest of the window) | lost | vanished.
--
-- Locks: the rows it changes, in the order of the items, SKIP LOCKED: it never waits. Rows: one per item.
-- Repeating it: the row keeps the token, so the second call answers 'failed' and changes nothing; complete() with
-- that token raises.
CREATE OR REPLACE FUNCTION onceward.sidecar_fail_many(
    p_consumers text[], p_queues integer[], p_ids text[], p_tokens uuid[], p_errors text[], p_statuses integer[], p_delays bigint[],
    p_only_expired boolean[], p_give_back boolean[], p_crashes integer[], p_unproven_steps integer[],
    p_batch_caps integer[] DEFAULT NULL)
RETURNS TABLE (ord integer, answer text, wait_ms bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- @plan nested_loops
SET enable_memoize = off
SET enable_tidscan = on
AS $$
DECLARE
    c_most  constant interval := interval '168 hours'; -- the longest max_window
    c_grace constant interval := interval '2 s'; -- as in the sidecar
    v_now   timestamptz := clock_timestamp();
    v_late  timestamptz := v_now + c_most + c_grace;
BEGIN
    PERFORM set_config('lock_timeout', '1s', true);
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    WITH taken AS MATERIALIZED (
        SELECT i.token, i.error, i.http_status, i.delay, i.only_expired, i.give_back, i.crashes, i.step, i.cap, f.tid
        FROM unnest(p_queues, p_ids, p_tokens, p_errors, p_statuses, p_delays, p_only_expired, p_give_back, p_crashes, p_unproven_steps, p_batch_caps)
             i (queue, id, token, error, http_status, delay, only_expired, give_back, crashes, step, cap)
        CROSS JOIN LATERAL (
            SELECT r.ctid AS tid FROM onceward.inbox r
            WHERE r.consumer = p_consumers[i.queue] AND r.message_id = i.id AND r.token = i.token AND r.status = 'processing'
              AND (i.only_expired IS NOT TRUE OR r.token_expires_at <= v_now OR r.token_expires_at > v_late)
            LIMIT 1 FOR UPDATE OF r SKIP LOCKED) f
    )
    UPDATE onceward.inbox r
    SET status = CASE WHEN t.give_back THEN 'waiting' ELSE 'failed' END,
        attempt = CASE WHEN t.give_back THEN greatest(r.attempt - 1, 0) ELSE r.attempt END,
        next_attempt_at = v_now + coalesce(t.delay, 0) * interval '1 ms', http_status = t.http_status,
        last_error = onceward.error_cut(t.error),
        crashes = CASE WHEN t.crashes >= 0 THEN t.crashes ELSE r.crashes END,
        unproven_at = CASE WHEN t.step >= 0 THEN v_now ELSE r.unproven_at END,
        unproven_step = CASE WHEN t.step >= 0 THEN t.step ELSE r.unproven_step END,
        batch_cap = coalesce(t.cap, r.batch_cap)
    FROM taken t
    WHERE r.ctid = t.tid AND r.token = t.token AND r.status = 'processing'
      AND (t.only_expired IS NOT TRUE OR r.token_expires_at <= v_now OR r.token_expires_at > v_late);

    RETURN QUERY
    SELECT i.ord::integer, a.answer,
           CASE WHEN a.answer = 'extended' THEN ceil(1000 * extract(epoch FROM r.token_expires_at - v_now))::bigint END
    FROM unnest(p_queues, p_ids, p_tokens, p_only_expired) WITH ORDINALITY i (queue, id, token, only_expired, ord)
    LEFT JOIN LATERAL (
        SELECT r.status, r.token, r.token_expires_at FROM onceward.inbox r
        WHERE r.consumer = p_consumers[i.queue] AND r.message_id = i.id LIMIT 1) r ON true
    CROSS JOIN LATERAL (
        SELECT CASE
            WHEN r.status IS NULL THEN 'vanished'
            WHEN r.token <> i.token THEN 'lost' -- even if it is completed: perhaps with another body
            WHEN r.status = 'completed' THEN 'completed'
            WHEN r.status = 'failed' THEN 'failed'
            WHEN r.status = 'waiting' THEN 'released'
            WHEN r.status <> 'processing' THEN 'lost'
            WHEN i.only_expired AND r.token_expires_at > v_now AND r.token_expires_at <= v_late THEN 'extended'
            ELSE 'locked' END AS answer
        OFFSET 0) a
    ORDER BY i.ord;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_fail_many(text[], integer[], text[], uuid[], text[], integer[], bigint[], boolean[], boolean[],
                                                  integer[], integer[], integer[]) FROM PUBLIC;
