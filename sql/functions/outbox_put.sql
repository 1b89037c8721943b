-- publish() for the unusual cases: with headers or properties, long names, synchronous_commit off, and everything
-- that is refused. The order of its steps is that of publish().
--
-- Called by publish(), with its rights and its search_path. Locks, rows, repeating: as there.
CREATE OR REPLACE FUNCTION onceward.outbox_put(
    p_exchange text, p_routing_key text, p_body bytea, p_json boolean, p_message_id text, p_type text, p_headers jsonb, p_properties jsonb)
RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_properties jsonb := onceward.outbox_check(p_exchange, p_routing_key, octet_length(p_body), p_json, p_message_id, p_type, p_headers,
                                                p_properties);
    v_id         text := coalesce(p_message_id, onceward.outbox_id());
    v_xid        xid8 := pg_current_xact_id();
    v_turn       bigint := pg_sequence_last_value('onceward.outbox_turn') % 3;
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF v_turn = 0 THEN
        INSERT INTO onceward.outbox_0 VALUES (v_xid, nextval('onceward.outbox_number'), clock_timestamp(), p_exchange, p_routing_key, v_id,
                                              p_type, p_headers, v_properties, p_body);
    ELSIF v_turn = 1 THEN
        INSERT INTO onceward.outbox_1 VALUES (v_xid, nextval('onceward.outbox_number'), clock_timestamp(), p_exchange, p_routing_key, v_id,
                                              p_type, p_headers, v_properties, p_body);
    ELSE
        INSERT INTO onceward.outbox_2 VALUES (v_xid, nextval('onceward.outbox_number'), clock_timestamp(), p_exchange, p_routing_key, v_id,
                                              p_type, p_headers, v_properties, p_body);
    END IF;
    RETURN v_id;
END
$$;

REVOKE ALL ON FUNCTION onceward.outbox_put(text, text, bytea, boolean, text, text, jsonb, jsonb) FROM PUBLIC;
