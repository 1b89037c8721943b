-- Marks rows of several queues completed for the owners of their tokens (`completion: response`). p_queues has the
-- number of each item's queue, which is a place in p_consumers. The items are sorted by consumer and id, in byte
-- order.
--
-- Answers, one per item, or one with ord -n for all n of them: completed (now, or before, by any claim) | locked
-- (read the row again) | lost (the token is not the row's any more, or the row was given up) | vanished.
--
-- A token past its window still completes: the work is done. So does one whose row was swept meanwhile and not
-- claimed since. A result of more than 64 KiB is not kept.
--
-- In up to three statements: change the rows that no other transaction has locked (their xmax is 0), then lock and
-- change the others, then say why the rest was not changed. The first is enough for nearly every batch, and costs a
-- lock of each row less.
--
-- Locks: the rows it changes, in the order of the items, SKIP LOCKED. It waits only for a lock that another transaction
-- takes while the first statement runs, at most a second. Rows: one per item.
-- Repeating it: answers 'completed' for rows that the first call completed, and changes nothing.
CREATE OR REPLACE FUNCTION onceward.sidecar_settle_many(
    p_consumers text[], p_queues integer[], p_ids text[], p_tokens uuid[], p_statuses integer[], p_results text[])
RETURNS TABLE (ord integer, answer text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- @plan nested_loops
SET enable_memoize = off
SET enable_tidscan = on
AS $$
DECLARE
    v_n      bigint;
    v_locked bigint;
BEGIN
    PERFORM set_config('lock_timeout', '1s', true);
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    WITH found AS MATERIALIZED (
        SELECT i.token, i.http_status, i.result, f.tid
        FROM unnest(p_queues, p_ids, p_tokens, p_statuses, p_results) i (queue, id, token, http_status, result)
        CROSS JOIN LATERAL (
            SELECT r.ctid AS tid FROM onceward.inbox r
            WHERE r.consumer = p_consumers[i.queue] AND r.message_id = i.id AND r.token = i.token AND r.status = 'processing'
              AND r.xmax = '0'::xid
            LIMIT 1) f
    )
    UPDATE onceward.inbox r
    SET status = 'completed', completed_at = clock_timestamp(), http_status = f.http_status, next_attempt_at = NULL,
        result = CASE WHEN octet_length(f.result) <= 65536 THEN f.result END
    FROM found f
    WHERE r.ctid = f.tid AND r.token = f.token AND r.status = 'processing';
    GET DIAGNOSTICS v_n = ROW_COUNT;

    IF v_n < cardinality(p_ids) THEN
        WITH taken AS MATERIALIZED (
            SELECT i.token, i.http_status, i.result, f.tid
            FROM unnest(p_queues, p_ids, p_tokens, p_statuses, p_results) i (queue, id, token, http_status, result)
            CROSS JOIN LATERAL (
                SELECT r.ctid AS tid FROM onceward.inbox r
                WHERE r.consumer = p_consumers[i.queue] AND r.message_id = i.id AND r.token = i.token
                  AND (r.status = 'processing' OR (r.status = 'failed' AND r.swept))
                LIMIT 1 FOR UPDATE OF r SKIP LOCKED) f
        )
        UPDATE onceward.inbox r
        SET status = 'completed', completed_at = clock_timestamp(), http_status = t.http_status, next_attempt_at = NULL,
            result = CASE WHEN octet_length(t.result) <= 65536 THEN t.result END
        FROM taken t
        WHERE r.ctid = t.tid AND r.token = t.token
          AND (r.status = 'processing' OR (r.status = 'failed' AND r.swept));
        GET DIAGNOSTICS v_locked = ROW_COUNT;
        v_n := v_n + v_locked;
    END IF;

    IF v_n = cardinality(p_ids) THEN
        RETURN QUERY SELECT -cardinality(p_ids), 'completed';
        RETURN;
    END IF;

    RETURN QUERY
    SELECT i.ord::integer,
           CASE WHEN r.status IS NULL THEN 'vanished'
                WHEN r.status = 'completed' THEN 'completed'
                WHEN r.token = i.token
                     AND (r.status = 'processing' OR (r.status = 'failed' AND r.swept))
                     THEN 'locked'
                ELSE 'lost' END
    FROM unnest(p_queues, p_ids, p_tokens) WITH ORDINALITY i (queue, id, token, ord)
    LEFT JOIN LATERAL (
        SELECT r.status, r.token, r.swept FROM onceward.inbox r
        WHERE r.consumer = p_consumers[i.queue] AND r.message_id = i.id LIMIT 1) r ON true
    ORDER BY i.ord;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_settle_many(text[], integer[], text[], uuid[], integer[], text[]) FROM PUBLIC;
