-- The time of a new row, letter or message: the clock's, but never before the horizon that an export or a replay
-- has passed (onceward.horizon). So a position in the order of time skips nothing, even if the clock was set back,
-- or a standby with a slow clock took over.
--
-- Its lock, kept until the caller's transaction ends, shows in pg_locks which sessions have such a time and have
-- not committed yet. An export first moves the horizon, then waits for those: a transaction that takes the lock
-- later reads the new horizon.
--
-- p_order_changes: onceward.horizon.order_changes as it was when the caller registered p_consumers; NULL: not
-- compared. Raises OW010 if order.key of one of them was changed since. sidecar_register_many makes such a change under
-- a lock that waits for the callers of this function, so every claim ends before the change or fails: also that of a
-- replica that was suspended, or has no presence row.
--
-- Locks: onceward.horizon, in the mode of an UPDATE; nothing that lasts conflicts with it. Rows: one read.
-- Repeating it: a later time.
CREATE OR REPLACE FUNCTION onceward.time_mark(p_order_changes bigint DEFAULT NULL, p_consumers text[] DEFAULT NULL)
RETURNS timestamptz
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_passed  timestamptz;
    v_changes bigint;
BEGIN
    LOCK TABLE ONLY onceward.horizon IN ROW EXCLUSIVE MODE;
    SELECT h.passed, h.order_changes INTO v_passed, v_changes FROM onceward.horizon h; -- a new snapshot, taken after the lock
    IF v_changes <> p_order_changes AND EXISTS (
        SELECT FROM onceward.consumer c WHERE c.consumer = ANY (p_consumers) AND c.order_changed > p_order_changes) THEN
        RAISE EXCEPTION USING ERRCODE = 'OW010', MESSAGE = 'order.key of a consumer was changed since this replica registered it';
    END IF;
    RETURN greatest(clock_timestamp(), v_passed);
END
$$;

REVOKE ALL ON FUNCTION onceward.time_mark(bigint, text[]) FROM PUBLIC;
