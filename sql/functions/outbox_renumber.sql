-- After a restore: sets the sequence of numbers behind all existing ones. If two rows have the same number because
-- messages were published before that, the later one gets a new number. A sequence that was restored too stays
-- unchanged.
--
-- Called by sidecar_outbox_restore, in its search_path and with its settings.
-- Locks: none that another session waits for. Rows: those with a duplicate number. Repeating it: finds nothing to
-- do.
CREATE OR REPLACE FUNCTION onceward.outbox_renumber() RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    c_apart constant bigint := 1000000; -- concurrent publishers stay below; it is never set back
    v_max   bigint;
    v_row   record;
BEGIN
    SELECT max(s.seq) INTO v_max
    FROM (SELECT max(z.seq) AS seq FROM onceward.outbox_0 z UNION ALL SELECT max(z.seq) FROM onceward.outbox_1 z
          UNION ALL SELECT max(z.seq) FROM onceward.outbox_2 z) s;
    PERFORM setval('onceward.outbox_number', v_max + c_apart) FROM onceward.outbox_number n
    WHERE n.last_value < v_max OR (n.last_value = v_max AND NOT n.is_called);
    FOR v_row IN
        SELECT t.name, t.tid FROM (
            SELECT s.*, row_number() OVER (PARTITION BY s.seq ORDER BY s.published_at, s.name, s.tid) AS nth FROM (
                SELECT 'outbox_0' AS name, z.ctid AS tid, z.seq, z.published_at FROM onceward.outbox_0 z
                UNION ALL SELECT 'outbox_1', z.ctid, z.seq, z.published_at FROM onceward.outbox_1 z
                UNION ALL SELECT 'outbox_2', z.ctid, z.seq, z.published_at FROM onceward.outbox_2 z) s) t
        WHERE t.nth > 1 ORDER BY t.published_at, t.seq
    LOOP
        EXECUTE format('UPDATE onceward.%I u SET seq = nextval(''onceward.outbox_number'') WHERE u.ctid = $1', v_row.name) USING v_row.tid;
    END LOOP;
END
$$;

REVOKE ALL ON FUNCTION onceward.outbox_renumber() FROM PUBLIC;
