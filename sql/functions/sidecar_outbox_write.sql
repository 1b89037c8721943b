-- Writes the position: all messages of p_batch with a number up to p_seq, and of all batches before it, are
-- confirmed or dead letters. p_seq NULL: the whole batch.
--
-- Answers: written | lost (another relay has the lease: nothing was done) | busy (another transaction has locked
-- the lease: nothing was done) | stale (the batch is from before a restart of the server, or the position is
-- another server's, as in sidecar_outbox_turn: nothing was done; start from the written position).
--
-- It commits asynchronously: messages whose position a crash loses are sent again.
--
-- Locks: the row of the lease, SKIP LOCKED: it never waits. Rows: one. Repeating it: writes the same once more.
CREATE OR REPLACE FUNCTION onceward.sidecar_outbox_write(p_lease bigint, p_batch text, p_seq bigint) RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- @plan index
AS $$
DECLARE
    v_hold  text := onceward.outbox_hold(p_lease);
    v_parts text[] := string_to_array(p_batch, '/', '');
BEGIN
    IF v_hold <> 'held' THEN
        RETURN v_hold;
    END IF;
    PERFORM FROM onceward.outbox_life l, (SELECT * FROM onceward.outbox_position q ORDER BY q.lease DESC, q.n DESC LIMIT 1) p
    WHERE l.life = v_parts[8]::uuid AND p.resending IS NULL AND p.table_oid = 'onceward.outbox_position'::regclass::oid
          AND p.system_identifier = onceward.outbox_system();
    IF NOT FOUND THEN
        RETURN 'stale';
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    -- A newly assigned id is later than any id of its snapshots.
    INSERT INTO onceward.outbox_position AS p (lease, system_identifier, table_oid, done, floor, done_by, upto, ceiling, last, upto_floor,
                                               upto_by, turned, turned_by, turned_at, emptied)
    SELECT p_lease, p.system_identifier, p.table_oid,
           CASE WHEN p_seq IS NULL THEN v_parts[4] ELSE v_parts[1] END::pg_snapshot,
           CASE WHEN p_seq IS NULL THEN v_parts[6] ELSE v_parts[2] END::bigint,
           coalesce(CASE WHEN p_seq IS NULL THEN v_parts[7] ELSE v_parts[3] END::xid8, pg_current_xact_id()),
           CASE WHEN p_seq IS NOT NULL THEN v_parts[4]::pg_snapshot END,
           CASE WHEN p_seq IS NOT NULL THEN v_parts[5]::bigint END,
           p_seq,
           CASE WHEN p_seq IS NOT NULL THEN v_parts[6]::bigint END,
           CASE WHEN p_seq IS NOT NULL THEN coalesce(v_parts[7]::xid8, pg_current_xact_id()) END,
           p.turned, p.turned_by, p.turned_at, p.emptied
    FROM onceward.outbox_position p ORDER BY p.lease DESC, p.n DESC LIMIT 1;
    RETURN 'written';
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_outbox_write(bigint, text, bigint) FROM PUBLIC;
