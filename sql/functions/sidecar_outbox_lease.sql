-- Takes, keeps or gives up the right to relay the outbox. Call it together with the presence.
--
-- paused: an operator has paused the consumer 'onceward-outbox', and this is his name and reason; else NULL. No
-- sidecar gets the lease then, and the one that has it should give it up once nothing of it is in flight.
--
-- p_lease: the number of the caller's lease; NULL: none. p_want false: the caller gives its lease up, and wants
-- none.
--
-- Answers
--   held   the caller has `lease` for left_ms. Another number than p_lease: it was taken now. A lease whose time
--          is over, and that no other sidecar took, keeps its number. restored: the tables come from another
--          server: see sidecar_outbox_restore
--   other  holder has it, for left_ms more; or no sidecar may have it, since an operator has paused the outbox
--   free   no sidecar has it
--   busy   another transaction has locked the row: nothing was done
--   none   there is no row: the database is being restored
--
-- A later start of the owner's instance takes the lease over at once. Other instances take it when its time is over
-- by the database's clock, or when its end is so far ahead that this clock must have been set back since it was
-- written.
--
-- Keeping it commits asynchronously: a crash only takes time away from it.
--
-- Locks: the row of onceward.outbox, SKIP LOCKED: it never waits. Rows: one, by a HOT update; and the secret, after
-- a crash of the server.
-- Repeating it: keeps it once more.
CREATE OR REPLACE FUNCTION onceward.sidecar_outbox_lease(
    p_instance text, p_number bigint, p_lease bigint, p_lease_ms bigint, p_want boolean,
    OUT answer text, OUT lease bigint, OUT holder text, OUT left_ms bigint, OUT restored boolean, OUT paused text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_now      timestamptz := clock_timestamp();
    v_row      record;
    v_mine     boolean;
    v_position record;
BEGIN
    PERFORM set_config('lock_timeout', '100ms', true);
    SELECT o.ctid AS tid, o.lease, o.holder, o.number, o.held_until INTO v_row
    FROM onceward.outbox o WHERE o.only_one FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        PERFORM FROM onceward.outbox o WHERE o.only_one;
        answer := CASE WHEN FOUND THEN 'busy' ELSE 'none' END;
        RETURN;
    END IF;
    SELECT 'an operator has paused the outbox' || coalesce(': ' || concat_ws(', ', nullif(k.by, ''), nullif(k.reason, '')), '') INTO paused
    FROM onceward.control k WHERE k.consumer = 'onceward-outbox' AND k.paused;
    v_mine := coalesce(v_row.lease = p_lease AND v_row.holder = p_instance AND v_row.number = p_number, false);

    IF NOT p_want THEN
        IF v_mine THEN
            UPDATE onceward.outbox o SET holder = NULL, number = NULL, held_until = NULL WHERE o.ctid = v_row.tid;
            answer := 'free';
            RETURN;
        END IF;
    ELSIF v_mine THEN
        PERFORM set_config('synchronous_commit', 'off', true);
        UPDATE onceward.outbox o SET held_until = v_now + p_lease_ms * interval '1 ms' WHERE o.ctid = v_row.tid;
        answer := 'held';
        lease := p_lease;
    ELSIF paused IS NOT NULL THEN
        NULL;
    ELSIF v_row.holder IS NULL OR v_row.held_until <= v_now OR v_row.held_until > v_now + 2 * p_lease_ms * interval '1 ms'
          OR (v_row.holder = p_instance AND (v_row.number < p_number OR (v_row.number = p_number AND p_lease IS NULL))) THEN
        IF current_setting('synchronous_commit') = 'off' THEN
            PERFORM set_config('synchronous_commit', 'on', true);
        END IF;
        -- Above every position, whatever server those came from.
        SELECT greatest(v_row.lease, (SELECT max(p.lease) FROM onceward.outbox_position p)) + 1 INTO lease;
        UPDATE onceward.outbox o
        SET lease = sidecar_outbox_lease.lease, holder = p_instance, number = p_number, held_until = v_now + p_lease_ms * interval '1 ms'
        WHERE o.ctid = v_row.tid;
        answer := 'held';
    END IF;

    IF answer IS NULL THEN
        holder := v_row.holder || '/' || v_row.number;
        left_ms := greatest(0, ceil(1000 * extract(epoch FROM v_row.held_until - v_now)));
        answer := CASE WHEN v_row.holder IS NULL AND paused IS NULL THEN 'free' ELSE 'other' END;
        RETURN;
    END IF;
    left_ms := p_lease_ms;
    PERFORM FROM onceward.outbox_life;
    IF NOT FOUND THEN
        INSERT INTO onceward.outbox_life (life) VALUES (gen_random_uuid());
    END IF;
    SELECT p.system_identifier, p.table_oid, p.resending, p.tableoid INTO v_position
    FROM onceward.outbox_position p ORDER BY p.lease DESC, p.n DESC LIMIT 1;
    restored := v_position.resending IS NOT NULL OR v_position.table_oid IS DISTINCT FROM v_position.tableoid
                OR v_position.system_identifier IS DISTINCT FROM onceward.outbox_system();
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_outbox_lease(text, bigint, bigint, bigint, boolean) FROM PUBLIC;
