-- Ends tokens that expired longer than p_after_ms ago without an answer and without a redelivery: failed, due at once. Answers how
-- many.
--
-- Nothing else would ever show them: their message may not come again. No index names the status, so it walks the table:
-- 8,192 pages a call, by page number, from where the last call of any sidecar stopped (consumer.sweep_page). When p_limit is reached
-- the next call looks at the same pages again.
--
-- Locks: the consumer's row (only one sweeps at a time; the others answer 0), then the rows it changes; all SKIP LOCKED: it
-- never waits for one. Rows: at most p_limit changed.
-- Repeating it: what was swept is not processing any more.
CREATE OR REPLACE FUNCTION onceward.sidecar_sweep(p_consumer text, p_after_ms bigint, p_limit integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_material = off
SET enable_nestloop = on
SET enable_tidscan = on
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_old   timestamptz := v_now - p_after_ms * interval '1 ms';
    v_pages bigint := pg_relation_size('onceward.inbox') / current_setting('block_size')::bigint;
    v_from  bigint;
    v_next  bigint;
    v_low   tid;
    v_high  tid;
    v_n     bigint;
BEGIN
    PERFORM set_config('lock_timeout', '1s', true);
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    SELECT c.sweep_page INTO v_from FROM onceward.consumer c WHERE c.consumer = p_consumer FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    v_low := format('(%s,0)', CASE WHEN v_from < v_pages THEN v_from ELSE 0 END)::tid;
    v_next := CASE WHEN v_from < v_pages THEN v_from ELSE 0 END + 8192;
    v_high := format('(%s,0)', least(v_next, 4294967295))::tid;

    -- The column in an expression keeps the primary key out of it: the whole consumer would be read.
    WITH taken AS MATERIALIZED (
        SELECT r.ctid AS tid, r.token FROM onceward.inbox r
        WHERE r.ctid >= v_low AND r.ctid < v_high AND r.consumer || '' = p_consumer
          AND r.status = 'processing' AND r.token_expires_at <= v_old
        LIMIT p_limit FOR UPDATE OF r SKIP LOCKED
    )
    UPDATE onceward.inbox r
    SET status = 'failed', next_attempt_at = v_now, last_error = 'token expired without an answer', http_status = NULL
    FROM taken t
    WHERE r.ctid = t.tid AND r.token = t.token AND r.status = 'processing' AND r.token_expires_at <= v_old;
    GET DIAGNOSTICS v_n = ROW_COUNT;

    v_next := CASE WHEN v_n >= p_limit THEN v_next - 8192 WHEN v_next >= v_pages THEN 0 ELSE v_next END;
    IF v_next <> v_from THEN
        UPDATE onceward.consumer c SET sweep_page = v_next WHERE c.consumer = p_consumer;
    END IF;
    RETURN v_n;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_sweep(text, bigint, integer) FROM PUBLIC;
