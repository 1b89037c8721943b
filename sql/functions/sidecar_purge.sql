-- Deletes what is past the retention: completed rows, counted from their completion, and dead rows without a letter, counted from
-- their death. Looks at p_pages pages from p_from_page on, deletes at most p_limit rows, and answers where to go on; 0 after the end of
-- the table.
--
-- By page number and not by an index: the index would cost every completion its HOT update.
--
-- Locks: the rows it deletes, SKIP LOCKED: it never waits for one, and two purgers do not wait for each other. Rows: one.
-- Repeating it: what was deleted is gone; the same pages may be looked at again.
CREATE OR REPLACE FUNCTION onceward.sidecar_purge(
    p_consumer text, p_retention_ms bigint, p_from_page bigint, p_pages integer, p_limit integer,
    OUT deleted bigint, OUT next_page bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_material = off
SET enable_nestloop = on
SET enable_indexscan = on
SET enable_tidscan = on
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_old   timestamptz := clock_timestamp() - p_retention_ms * interval '1 ms';
    v_pages bigint := pg_relation_size('onceward.inbox') / current_setting('block_size')::bigint;
    v_from  bigint := CASE WHEN p_from_page BETWEEN 0 AND v_pages - 1 THEN p_from_page ELSE 0 END;
    v_low   tid := format('(%s,0)', v_from)::tid;
    v_high  tid := format('(%s,0)', least(v_from + p_pages, 4294967295))::tid;
BEGIN
    PERFORM set_config('lock_timeout', '1s', true);
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    -- The column in an expression keeps the primary key out of it: the whole consumer would be read.
    WITH taken AS MATERIALIZED (
        SELECT r.ctid AS tid, r.token FROM onceward.inbox r
        WHERE r.ctid >= v_low AND r.ctid < v_high AND r.consumer || '' = p_consumer
          AND CASE r.status
              WHEN 'completed' THEN r.completed_at <= v_old
              WHEN 'dead' THEN r.token_expires_at <= v_old
                  AND NOT EXISTS (SELECT FROM onceward.dead_letter l
                                  WHERE l.consumer = r.consumer AND l.message_id = r.message_id AND NOT l.rowless)
              ELSE false END
        LIMIT p_limit FOR UPDATE OF r SKIP LOCKED
    )
    DELETE FROM onceward.inbox r USING taken t
    WHERE r.ctid = t.tid AND r.token = t.token AND r.status IN ('completed', 'dead');
    GET DIAGNOSTICS deleted = ROW_COUNT;

    next_page := CASE WHEN deleted >= p_limit THEN v_from
                      WHEN v_from + p_pages >= v_pages THEN 0
                      ELSE v_from + p_pages END;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_purge(text, bigint, bigint, integer, integer) FROM PUBLIC;
