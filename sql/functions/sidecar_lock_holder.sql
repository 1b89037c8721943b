-- The session or transaction that holds the lock of a row, for the log.
--
--   a session                pid, application, state, and how long its transaction has been open. Without
--                            pg_read_all_stats the state and age of another role's session are hidden: state
--                            null, age_ms 0
--   a prepared transaction   pid 0, gid, state 'prepared', and how long ago it was prepared
--   unknown                  pid 0, state 'holder unknown': several at once, or one that is not visible
--   not locked any more      pid 0, state null
--
-- Locks: the row, if no owner is visible, SKIP LOCKED, until the end of this call: that tells "unknown" from "not
-- locked".
-- Rows: one. Repeating it: it changes nothing.
CREATE OR REPLACE FUNCTION onceward.sidecar_lock_holder(
    p_consumer text, p_id text,
    OUT pid bigint, OUT age_ms bigint, OUT application text, OUT state text, OUT gid text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_holder xid;
BEGIN
    PERFORM set_config('lock_timeout', '1s', true);
    pid := 0;
    age_ms := 0;
    -- The version of a row that an uncommitted transaction has updated or locked has its id in xmax.
    SELECT r.xmax INTO v_holder FROM onceward.inbox r WHERE r.consumer = p_consumer AND r.message_id = p_id;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT a.pid, coalesce(floor(1000 * extract(epoch FROM clock_timestamp() - a.xact_start)), 0)::bigint, a.application_name, a.state
    INTO pid, age_ms, application, state
    FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'transactionid' AND l.granted AND l.mode = 'ExclusiveLock' AND l.transactionid = v_holder
    LIMIT 1;
    IF FOUND THEN
        RETURN;
    END IF;
    pid := 0;
    SELECT floor(1000 * extract(epoch FROM clock_timestamp() - p.prepared))::bigint, p.gid, 'prepared'
    INTO age_ms, gid, state
    FROM pg_prepared_xacts p WHERE p.transaction = v_holder AND p.database = current_database();
    IF FOUND THEN
        RETURN;
    END IF;
    age_ms := 0;
    PERFORM FROM onceward.inbox r WHERE r.consumer = p_consumer AND r.message_id = p_id FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        PERFORM FROM onceward.inbox r WHERE r.consumer = p_consumer AND r.message_id = p_id;
        IF FOUND THEN
            state := 'holder unknown';
        END IF;
    END IF;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_lock_holder(text, text) FROM PUBLIC;
