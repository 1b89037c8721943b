-- For the owner and for operators: forgets failed and waiting rows that have been due for longer than p_older, and answers how many.
-- Their messages are in no queue any more (somebody purged it, or moved them), or the row would have been claimed. A message that comes after
-- all begins anew, with attempt 1. At most 100,000 a call: call it again until it answers 0.
--
-- Locks: the rows it deletes, SKIP LOCKED: it never waits for one. Reads the rows of the consumer: for a person, not for a timer.
-- Repeating it: what was deleted is gone.
CREATE OR REPLACE FUNCTION onceward.orphans_remove(p_consumer text, p_older interval) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_n bigint;
BEGIN
    IF p_older IS NULL OR p_older < interval '10 minutes' THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'rows that were due in the last 10 minutes may be at work',
            HINT = 'Pass how long they must have been due, for example ''7 days''.';
    END IF;
    WITH taken AS MATERIALIZED (
        SELECT r.ctid AS tid, r.token FROM onceward.inbox r
        WHERE r.consumer = p_consumer AND r.status IN ('failed', 'waiting')
          AND greatest(r.next_attempt_at, r.token_expires_at) <= clock_timestamp() - p_older
        LIMIT 100000 FOR UPDATE OF r SKIP LOCKED
    )
    DELETE FROM onceward.inbox r USING taken t WHERE r.ctid = t.tid AND r.token = t.token AND r.status IN ('failed', 'waiting');
    GET DIAGNOSTICS v_n = ROW_COUNT;
    RETURN v_n;
END
$$;

REVOKE ALL ON FUNCTION onceward.orphans_remove(text, interval) FROM PUBLIC;
