-- For operators: pauses or resumes a consumer on all replicas. Running replicas read it within five seconds, later
-- ones at their start.
--
-- Returns whether the state has changed; reason and name are replaced in each case.
--
-- Locks: the consumer's row of onceward.control. Rows: one. Repeating it: changes only the time.
CREATE OR REPLACE FUNCTION onceward.lever_pause(p_consumer text, p_paused boolean, p_reason text, p_by text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_was boolean;
BEGIN
    INSERT INTO onceward.control AS k (consumer) VALUES (p_consumer) ON CONFLICT (consumer) DO NOTHING;
    SELECT k.paused INTO v_was FROM onceward.control k WHERE k.consumer = p_consumer FOR UPDATE;
    UPDATE onceward.control k
    SET paused = p_paused, reason = p_reason, by = p_by, since = clock_timestamp()
    WHERE k.consumer = p_consumer;
    RETURN v_was IS DISTINCT FROM p_paused;
END
$$;

REVOKE ALL ON FUNCTION onceward.lever_pause(text, boolean, text, text) FROM PUBLIC;
