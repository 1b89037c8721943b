-- After a restore: the sequence of the numbers goes on behind all that are there, and of two rows with one number, which were published
-- before it did, the later one gets a new number. A sequence that was restored, too, stays as it is.
--
-- Called by sidecar_outbox_restore, in its search_path and with its settings.
-- Locks: none that anybody waits for. Rows: those with a number that is there twice. Repeating it: finds nothing to do.
CREATE OR REPLACE FUNCTION onceward.outbox_renumber() RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    c_apart constant bigint := 1000000; -- who publishes meanwhile draws numbers below that: the sequence is never set back
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
