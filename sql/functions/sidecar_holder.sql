-- Who holds the lock of a row, for the log: its backend, application, state, and how long its transaction has been open.
-- Without pg_read_all_stats the state of another role's session is not told (null).
--
-- Locks: none. Rows: one; all null when nobody holds it (any more).
-- Repeating it: only reads.
CREATE OR REPLACE FUNCTION onceward.sidecar_holder(
    p_consumer text, p_id text,
    OUT pid bigint, OUT age_ms bigint, OUT application text, OUT state text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    PERFORM set_config('lock_timeout', '1s', true);
    -- The version of a row that somebody has updated or locked, but not committed, names that transaction in xmax.
    SELECT a.pid, floor(1000 * extract(epoch FROM clock_timestamp() - a.xact_start))::bigint, a.application_name, a.state
    INTO pid, age_ms, application, state
    FROM onceward.inbox r
    JOIN pg_locks l ON l.locktype = 'transactionid' AND l.granted AND l.mode = 'ExclusiveLock' AND l.transactionid = r.xmax
    JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE r.consumer = p_consumer AND r.message_id = p_id
    LIMIT 1;
    pid := coalesce(pid, 0);
    age_ms := coalesce(age_ms, 0);
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_holder(text, text) FROM PUBLIC;
