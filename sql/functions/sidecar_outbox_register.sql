-- Records the broker and vhost of the outbox at its first use, since messages for one must not be sent to another.
--
-- Answers: ok (recorded, now or before) | refused (another one is recorded: broker and vhost name it) | busy
-- (another transaction has locked the row: ask again).
--
-- Locks: the row of onceward.outbox, SKIP LOCKED, only at first use: it never waits. Rows: one. Repeating it: finds
-- the record.
CREATE OR REPLACE FUNCTION onceward.sidecar_outbox_register(p_broker text, p_vhost text, OUT answer text, OUT broker text, OUT vhost text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
BEGIN
    PERFORM set_config('lock_timeout', '100ms', true);
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    SELECT o.broker, o.vhost INTO broker, vhost FROM onceward.outbox o WHERE o.only_one;
    IF broker IS NULL THEN
        SELECT o.broker, o.vhost INTO broker, vhost FROM onceward.outbox o WHERE o.only_one FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            answer := 'busy';
            RETURN;
        END IF;
        IF broker IS NULL THEN
            UPDATE onceward.outbox o SET broker = p_broker, vhost = p_vhost, first_used_at = clock_timestamp() WHERE o.only_one;
            broker := p_broker;
            vhost := p_vhost;
        END IF;
    END IF;
    answer := CASE WHEN broker = p_broker AND vhost = p_vhost THEN 'ok' ELSE 'refused' END;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_outbox_register(text, text) FROM PUBLIC;
