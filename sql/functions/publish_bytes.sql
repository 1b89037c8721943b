-- publish() for a body of bytes: as it is, and without a content type, unless the properties have one. See publish.sql; what one does the other
-- does.
--
-- Locks, rows, repeating, rights: as there.
CREATE OR REPLACE FUNCTION onceward.publish(
    exchange text, routing_key text, body bytea, message_id text DEFAULT NULL, type text DEFAULT NULL, headers jsonb DEFAULT NULL,
    properties jsonb DEFAULT NULL) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_xid        xid8 := pg_current_xact_id();
    v_turn       integer := pg_sequence_last_value('onceward.outbox_turn') % 3;
    v_properties jsonb := '{}';
BEGIN
    IF headers IS NULL AND properties IS NULL AND octet_length(exchange) <= 255 AND octet_length(routing_key) <= 255
       AND octet_length(body) <= 536870912 AND coalesce(octet_length(message_id), 1) BETWEEN 1 AND 255
       AND coalesce(octet_length(type), 0) <= 255 THEN
        NULL;
    ELSE
        v_properties := onceward.outbox_check(exchange, routing_key, octet_length(body), false, message_id, type, headers, properties);
    END IF;
    IF message_id IS NULL THEN
        message_id := onceward.outbox_id();
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF v_turn = 0 THEN
        INSERT INTO onceward.outbox_0
        VALUES (v_xid, nextval('onceward.outbox_number'), clock_timestamp(), exchange, routing_key, message_id, type, headers, v_properties, body);
    ELSIF v_turn = 1 THEN
        INSERT INTO onceward.outbox_1
        VALUES (v_xid, nextval('onceward.outbox_number'), clock_timestamp(), exchange, routing_key, message_id, type, headers, v_properties, body);
    ELSE
        INSERT INTO onceward.outbox_2
        VALUES (v_xid, nextval('onceward.outbox_number'), clock_timestamp(), exchange, routing_key, message_id, type, headers, v_properties, body);
    END IF;
    RETURN message_id;
END
$$;

COMMENT ON FUNCTION onceward.publish(text, text, bytea, text, text, jsonb, jsonb) IS
    'As publish of JSON, for a body of bytes.';

REVOKE ALL ON FUNCTION onceward.publish(text, text, bytea, text, text, jsonb, jsonb) FROM PUBLIC;
