-- The time of a new row, letter or message: the clock's, but never before the horizon that an export or a replay
-- has passed (onceward.horizon). So a position in the order of time skips nothing, even if the clock was set back,
-- or a standby with a slow clock took over.
--
-- Its lock, kept until the caller's transaction ends, shows in pg_locks which sessions have such a time and have
-- not committed yet. An export first moves the horizon, then waits for those: a transaction that takes the lock
-- later reads the new horizon.
--
-- Locks: onceward.horizon, in the mode of an UPDATE; nothing that lasts conflicts with it. Rows: one read.
-- Repeating it: a later time.
CREATE OR REPLACE FUNCTION onceward.time_mark() RETURNS timestamptz
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_passed timestamptz;
BEGIN
    LOCK TABLE ONLY onceward.horizon IN ROW EXCLUSIVE MODE;
    SELECT h.passed INTO v_passed FROM onceward.horizon h; -- a new snapshot, taken after the lock
    RETURN greatest(clock_timestamp(), v_passed);
END
$$;

REVOKE ALL ON FUNCTION onceward.time_mark() FROM PUBLIC;
