-- Whether rows and letters can be written, for a sidecar that has stopped because they could not: writes one of each, and takes both
-- back. It answers 1, or raises what the real statement would.
--
-- Locks: none that last. Rows: none. Repeating it: it leaves nothing but two dead tuples.
CREATE OR REPLACE FUNCTION onceward.sidecar_try(p_consumer text, OUT yes bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_tidscan = on
SET jit = off
AS $$
DECLARE
    v_id   constant text := 'onceward.sidecar_try ' || gen_random_uuid();
    v_now  constant timestamptz := clock_timestamp();
    v_tid  tid;
BEGIN
    PERFORM set_config('lock_timeout', '1s', true);
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    BEGIN
        INSERT INTO onceward.inbox (consumer, message_id, status, attempt, token, fingerprint, received_at,
                                    token_expires_at, max_expires_at, claimed_by)
        VALUES (p_consumer, v_id, 'processing', 1, gen_random_uuid(), '\x00', v_now, v_now, v_now, 'onceward.sidecar_try')
        RETURNING ctid INTO v_tid;
        UPDATE onceward.inbox r SET status = 'completed', completed_at = v_now WHERE r.ctid = v_tid;
        INSERT INTO onceward.dead_letter (consumer, vhost, queue, message_id, rowless, reason, attempts, body,
                                          exchange, routing_key, deaths, died_at)
        VALUES (p_consumer, '', '', v_id, false, 'onceward.sidecar_try', 0, '', '', '', 0, v_now);
        RAISE EXCEPTION USING ERRCODE = 'OW000'; -- nobody outside sees it
    EXCEPTION WHEN SQLSTATE 'OW000' THEN
        NULL;
    END;
    yes := 1;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_try(text) FROM PUBLIC;
