-- For operators: makes failed, waiting and held rows of a consumer due now, all of them or those of some ids, and
-- makes the replicas look at waiting messages. A held row begins again, without attempts. Ids that were recorded to
-- be given up are taken off that list. Without ids it also lets ordered queues continue that have stopped near their
-- delivery limit, and records the delivery count up to which they do, so that a replica that starts later does not
-- stop the queue again for the same messages.
--
-- Returns the number of rows that became due. It skips attempts that a sidecar released at its end with
-- `completion: response`: the application may still work until the window would have ended, which is the time of the
-- next attempt.
--
-- Locks: the consumer's row of onceward.control, then the rows that it changes, SKIP LOCKED: it waits for no
-- application. Reads all rows of the consumer if no ids are given: for a person, not for a timer.
-- Repeating it: finds the rows that are not due by then.
CREATE OR REPLACE FUNCTION onceward.lever_retry(p_consumer text, p_ids text[], p_by text) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_grace constant interval := interval '2 s'; -- as in the sidecar
    v_n     bigint;
BEGIN
    INSERT INTO onceward.control AS k (consumer, retry_number, retry_by) VALUES (p_consumer, 1, p_by)
    ON CONFLICT (consumer) DO UPDATE
    SET retry_number = k.retry_number + 1, retry_by = p_by,
        stopped = (SELECT coalesce(jsonb_object_agg(
                              s.key, CASE WHEN p_ids IS NULL AND s.value ? 'count'
                                          THEN jsonb_build_object('accepted', (s.value ->> 'count')::bigint + 1, 'retry', k.retry_number + 1, 'at', v_now)
                                          ELSE s.value END), '{}')
                   FROM jsonb_each(k.stopped) s),
        give_up = ARRAY(SELECT g.id FROM unnest(k.give_up) g (id) WHERE g.id <> ALL (coalesce(p_ids, '{}')));
    WITH taken AS MATERIALIZED (
        SELECT r.ctid AS tid, r.token FROM onceward.inbox r
        WHERE r.consumer = p_consumer AND (p_ids IS NULL OR r.message_id = ANY (p_ids))
          AND (r.status = 'held' OR (r.status IN ('failed', 'waiting') AND r.next_attempt_at > v_now))
          AND NOT (r.status = 'waiting' AND r.token_expires_at > v_now AND r.next_attempt_at = r.token_expires_at + v_grace)
        ORDER BY r.message_id FOR UPDATE OF r SKIP LOCKED
    )
    UPDATE onceward.inbox r
    SET next_attempt_at = v_now,
        status = CASE r.status WHEN 'held' THEN 'waiting' ELSE r.status END,
        attempt = CASE r.status WHEN 'held' THEN 0 ELSE r.attempt END,
        alive_since = CASE r.status WHEN 'held' THEN v_now ELSE r.alive_since END,
        crashes = CASE r.status WHEN 'held' THEN NULL ELSE r.crashes END,
        takeovers = CASE r.status WHEN 'held' THEN NULL ELSE r.takeovers END,
        unproven_at = CASE r.status WHEN 'held' THEN NULL ELSE r.unproven_at END,
        unproven_step = CASE r.status WHEN 'held' THEN NULL ELSE r.unproven_step END,
        batch_cap = CASE r.status WHEN 'held' THEN NULL ELSE r.batch_cap END
    FROM taken t
    WHERE r.ctid = t.tid AND r.token = t.token AND r.status IN ('failed', 'waiting', 'held');
    GET DIAGNOSTICS v_n = ROW_COUNT;
    RETURN v_n;
END
$$;

REVOKE ALL ON FUNCTION onceward.lever_retry(text, text[], text) FROM PUBLIC;
