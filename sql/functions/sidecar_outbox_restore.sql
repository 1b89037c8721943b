-- After a restore from a dump, or on another server: prepares all rows in the tables to be sent again, in their
-- order, p_rows per call.
--
-- Transaction ids start again there, so the ids in the position and the rows are meaningless. The rows get an id
-- that every snapshot sees, and the position becomes one that sees none.
--
-- `last` of the position records the progress, so that finished rows are not read again.
--
-- Answers: more (call again) | done | loading (an index is missing: the restore is not over yet) | lost | busy (see
-- sidecar_outbox_write).
--
-- Locks: the row of the lease, SKIP LOCKED; rows that only this function changes. Rows: p_rows.
-- Repeating it: continues where it was, and does nothing after 'done'.
CREATE OR REPLACE FUNCTION onceward.sidecar_outbox_restore(p_lease bigint, p_rows integer) RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_indexscan = on
SET enable_tidscan = on
SET jit = off
AS $$
DECLARE
    c_frozen  constant xid8 := '3'; -- ended before every other transaction began
    v_hold    text := onceward.outbox_hold(p_lease);
    v_system  bigint := onceward.outbox_system();
    p         record;
    v_oid     oid;
    v_n       bigint;
    v_last    bigint;
    v_table   text;
BEGIN
    IF v_hold <> 'held' THEN
        RETURN v_hold;
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    SELECT * INTO p FROM onceward.outbox_position q ORDER BY q.lease DESC, q.n DESC LIMIT 1;
    v_oid := 'onceward.outbox_position'::regclass;
    IF p.table_oid = v_oid AND p.system_identifier = v_system AND p.resending IS NULL THEN
        RETURN 'done';
    END IF;
    -- Data come first, indexes after them, in every kind of restore.
    IF EXISTS (SELECT FROM unnest('{0,1,2}'::integer[]) k
               WHERE to_regclass(format('onceward.outbox_%s_seq', k)) IS NULL OR to_regclass(format('onceward.outbox_%s_xid', k)) IS NULL) THEN
        RETURN 'loading';
    END IF;

    IF p.table_oid IS DISTINCT FROM v_oid OR p.system_identifier IS DISTINCT FROM v_system OR p.resending IS NULL THEN
        PERFORM onceward.outbox_renumber();
        SELECT n.last_value INTO v_n FROM onceward.outbox_number n;
        DELETE FROM onceward.outbox_life;
        INSERT INTO onceward.outbox_life (life) VALUES (gen_random_uuid());
        INSERT INTO onceward.outbox_position (lease, system_identifier, table_oid, done, floor, done_by, last, resending)
        VALUES (p_lease, v_system, v_oid, '1:1:', 0, '1', 0, v_n);
        RETURN 'more';
    END IF;

    v_n := coalesce(p.last, 0);
    SELECT max(u.seq) INTO v_last FROM (
        SELECT t.seq FROM (
            (SELECT z.seq FROM onceward.outbox_0 z WHERE z.seq > v_n AND z.seq <= p.resending ORDER BY z.seq LIMIT p_rows)
            UNION ALL (SELECT z.seq FROM onceward.outbox_1 z WHERE z.seq > v_n AND z.seq <= p.resending ORDER BY z.seq LIMIT p_rows)
            UNION ALL (SELECT z.seq FROM onceward.outbox_2 z WHERE z.seq > v_n AND z.seq <= p.resending ORDER BY z.seq LIMIT p_rows)) t
        ORDER BY t.seq LIMIT p_rows) u;
    IF v_last IS NOT NULL THEN
        FOREACH v_table IN ARRAY ARRAY['outbox_0', 'outbox_1', 'outbox_2'] LOOP
            EXECUTE format('UPDATE onceward.%I u SET xid = $1 WHERE u.seq > $2 AND u.seq <= $3 AND u.xid <> $1', v_table)
                USING c_frozen, v_n, v_last;
        END LOOP;
        INSERT INTO onceward.outbox_position (lease, system_identifier, table_oid, done, floor, done_by, last, resending)
        VALUES (p_lease, v_system, v_oid, '1:1:', 0, '1', v_last, p.resending);
        RETURN 'more';
    END IF;
    INSERT INTO onceward.outbox_position (lease, system_identifier, table_oid, done, floor, done_by)
    VALUES (p_lease, v_system, v_oid, '1:1:', 0, '1');
    RETURN 'done';
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_outbox_restore(bigint, integer) FROM PUBLIC;
