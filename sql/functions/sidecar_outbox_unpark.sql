-- Deletes parked messages that the broker has confirmed, by their numbers.
--
-- Answers: done | lost (another relay has the lease) | busy (another transaction has locked the lease: ask again).
--
-- Locks: the row of the lease, SKIP LOCKED: it never waits; the rows. Repeating it: deletes nothing more.
CREATE OR REPLACE FUNCTION onceward.sidecar_outbox_unpark(p_lease bigint, p_numbers bigint[]) RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_hold text := onceward.outbox_hold(p_lease);
BEGIN
    IF v_hold <> 'held' THEN
        RETURN v_hold;
    END IF;
    DELETE FROM onceward.outbox_parked z WHERE z.n = ANY (p_numbers);
    RETURN 'done';
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_outbox_unpark(bigint, bigint[]) FROM PUBLIC;
