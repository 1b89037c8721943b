-- Replaces completed rows of the inbox by entries of onceward.history: the rows at p_tids that belong to the
-- consumer and were completed at p_until or before. Returns their number. Called by sidecar_keep_house only, with
-- at most 16 tids.
--
-- One statement, so that every snapshot has either a row or its entry. It inserts the rows that DELETE returned,
-- not those that the SELECT found: an entry without its deletion would make a claim take an unfinished message for
-- completed. The row, including its age, is checked again after it is locked, since the row found may have been
-- purged and another one written in its place.
--
-- The first entry comes with a row of history_begun, in the same transaction: without it claims look for no entry.
--
-- Locks: the rows, SKIP LOCKED: it never waits. Rows: one per tid. It may commit asynchronously: a crash restores
-- the row and removes the entry.
-- Repeating it: moved rows are no longer at their tids.
CREATE OR REPLACE FUNCTION onceward.history_move(p_consumer text, p_number smallint, p_tids tid[], p_until timestamp with time zone) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- @plan nested_loops
SET enable_tidscan = on
AS $$
DECLARE
    v_n bigint;
BEGIN
    IF NOT EXISTS (SELECT FROM onceward.history_begun) THEN
        INSERT INTO onceward.history_begun DEFAULT VALUES;
    END IF;
    WITH taken AS MATERIALIZED (
        SELECT r.ctid AS tid, r.token FROM onceward.inbox r
        WHERE r.ctid = ANY (p_tids) AND r.consumer || '' = p_consumer AND r.status = 'completed' AND r.completed_at <= p_until
        FOR UPDATE OF r SKIP LOCKED
    ), gone AS (
        DELETE FROM onceward.inbox r USING taken t
        WHERE r.ctid = t.tid AND r.token = t.token AND r.status = 'completed'
        RETURNING r.consumer, r.message_id, r.fingerprint, r.completed_at
    )
    INSERT INTO onceward.history (hash, print, consumer, day)
    SELECT onceward.history_hash(g.consumer, g.message_id), onceward.history_print(g.fingerprint), p_number,
           (g.completed_at AT TIME ZONE 'UTC')::date - date '2000-01-01'
    FROM gone g;
    GET DIAGNOSTICS v_n = ROW_COUNT;
    RETURN v_n;
END
$$;

REVOKE ALL ON FUNCTION onceward.history_move(text, smallint, tid[], timestamp with time zone) FROM PUBLIC;
