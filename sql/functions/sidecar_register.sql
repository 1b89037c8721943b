-- Records which queue a consumer name belongs to. NULL: it is this one. Else the name of the queue that has it: two queues under
-- one name would take each other's messages for completed.
--
-- p_takes_over names the queue that this one has replaced, in whatever vhost it was; the record is then changed. It may be this
-- queue's own name: then only the vhost is another.
--
-- Locks: the consumer's row, only where it is changed; a locked row raises 55P03 at once. Rows: one.
-- Repeating it: the second call finds what the first one recorded.
CREATE OR REPLACE FUNCTION onceward.sidecar_register(p_consumer text, p_vhost text, p_queue text, p_takes_over text)
RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_vhost text;
    v_queue text;
BEGIN
    PERFORM set_config('lock_timeout', '1s', true);
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    SELECT c.vhost, c.queue INTO v_vhost, v_queue FROM onceward.consumer c WHERE c.consumer = p_consumer;
    IF NOT FOUND THEN
        INSERT INTO onceward.consumer (consumer, vhost, queue) VALUES (p_consumer, p_vhost, p_queue) ON CONFLICT DO NOTHING;
        SELECT c.vhost, c.queue INTO v_vhost, v_queue FROM onceward.consumer c WHERE c.consumer = p_consumer;
    END IF;
    IF v_vhost = p_vhost AND v_queue = p_queue THEN
        RETURN NULL;
    END IF;
    IF v_queue = p_takes_over THEN
        PERFORM FROM onceward.consumer c WHERE c.consumer = p_consumer FOR UPDATE NOWAIT;
        UPDATE onceward.consumer c SET vhost = p_vhost, queue = p_queue
        WHERE c.consumer = p_consumer AND c.vhost = v_vhost AND c.queue = v_queue;
        IF FOUND THEN
            RETURN NULL;
        END IF;
        SELECT c.vhost, c.queue INTO v_vhost, v_queue FROM onceward.consumer c WHERE c.consumer = p_consumer;
        IF v_vhost = p_vhost AND v_queue = p_queue THEN
            RETURN NULL;
        END IF;
    END IF;
    RETURN v_queue || CASE WHEN v_vhost <> p_vhost THEN ' (vhost ' || v_vhost || ')' ELSE '' END;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_register(text, text, text, text) FROM PUBLIC;
