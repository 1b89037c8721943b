-- Takes, keeps or gives up the right to relay the outbox. To be called with the presence.
--
-- p_lease: the number that the caller holds; NULL: none. p_want false: it gives that up, and wants none.
--
-- Answers
--   held   the caller holds `lease` for left_ms. Another number than p_lease: it was taken now. A lease whose time is over, and that nobody
--          else took, is kept under its number. restored: what is there came from another server: see sidecar_outbox_restore
--   other  holder has it, for left_ms more
--   free   nobody has it
--   busy   somebody is at the row: nothing was done
--   none   there is no row: the database is being restored
--
-- A later life of the holder's instance takes it over at once; others do when its time is over, by the database's clock; or so far ahead that
-- this clock was set back since it was written.
--
-- Keeping it commits asynchronously: what a crash takes away of that is time only.
--
-- Locks: the row of onceward.outbox, SKIP LOCKED: it never waits. Rows: one, by a HOT update; and the secret, after a crash of the server.
-- Repeating it: keeps it once more.
CREATE OR REPLACE FUNCTION onceward.sidecar_outbox_lease(
    p_instance text, p_number bigint, p_lease bigint, p_lease_ms bigint, p_want boolean,
    OUT answer text, OUT lease bigint, OUT holder text, OUT left_ms bigint, OUT restored boolean)
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
    SELECT o.ctid AS tid, o.lease, o.holder, o.number, o.held_until INTO v_row
    FROM onceward.outbox o WHERE o.only_one FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        PERFORM FROM onceward.outbox o WHERE o.only_one;
        answer := CASE WHEN FOUND THEN 'busy' ELSE 'none' END;
        RETURN;
    END IF;
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
    ELSIF v_row.holder IS NULL OR v_row.held_until <= v_now OR v_row.held_until > v_now + 2 * p_lease_ms * interval '1 ms'
          OR (v_row.holder = p_instance AND (v_row.number < p_number OR (v_row.number = p_number AND p_lease IS NULL))) THEN
        IF current_setting('synchronous_commit') = 'off' THEN
            PERFORM set_config('synchronous_commit', 'on', true);
        END IF;
        -- Above every position, wherever those came from.
        SELECT greatest(v_row.lease, (SELECT max(p.lease) FROM onceward.outbox_position p)) + 1 INTO lease;
        UPDATE onceward.outbox o
        SET lease = sidecar_outbox_lease.lease, holder = p_instance, number = p_number, held_until = v_now + p_lease_ms * interval '1 ms'
        WHERE o.ctid = v_row.tid;
        answer := 'held';
    END IF;

    IF answer IS NULL THEN
        holder := v_row.holder || '/' || v_row.number;
        left_ms := greatest(0, ceil(1000 * extract(epoch FROM v_row.held_until - v_now)));
        answer := CASE WHEN v_row.holder IS NULL THEN 'free' ELSE 'other' END;
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
