-- For the owner and for operators: deletes failed and waiting rows that have been due for longer than p_older, and
-- returns their number. Their messages are in no queue any more (purged, or moved), or the rows would have been
-- claimed. If such a message arrives after all, it starts with attempt 1. At most 100,000 per call: call it again
-- until it returns 0.
--
-- Locks: the rows it deletes, SKIP LOCKED: it never waits. Reads the whole inbox: for a person, not for a timer.
-- Repeating it: deleted rows stay deleted.
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
