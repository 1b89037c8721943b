-- Locks the outbox's lease for the rest of the transaction, and compares its number: held | lost | busy.
--
-- Every function that writes a position, turns, empties or buries calls this first. So only one runs at a time, and
-- a former owner of the lease changes nothing. It also limits the wait for a table lock, for the caller too: an
-- operator may have locked a table (VACUUM FULL), and claims wait behind this statement.
--
-- Locks: the row of onceward.outbox, SKIP LOCKED: it never waits. Rows: none changed. Repeating it: answers the
-- same.
CREATE OR REPLACE FUNCTION onceward.outbox_hold(p_lease bigint) RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- @plan index
AS $$
DECLARE
    v_lease bigint;
BEGIN
    PERFORM set_config('lock_timeout', '100ms', true);
    SELECT o.lease INTO v_lease FROM onceward.outbox o WHERE o.only_one FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        RETURN CASE WHEN v_lease = p_lease THEN 'held' ELSE 'lost' END;
    END IF;
    RETURN 'busy';
END
$$;

REVOKE ALL ON FUNCTION onceward.outbox_hold(bigint) FROM PUBLIC;
