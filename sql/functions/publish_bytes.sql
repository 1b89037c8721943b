-- publish() for a body of bytes: unchanged, and without a content type, unless the properties have one. See
-- publish.sql; change both together.
--
-- Locks, rows, repeating, rights: as there.
CREATE OR REPLACE FUNCTION onceward.publish(
    exchange text, routing_key text, body bytea, message_id text DEFAULT NULL, type text DEFAULT NULL, headers jsonb DEFAULT NULL,
    properties jsonb DEFAULT NULL) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_turn bigint := CASE
        WHEN coalesce(headers, properties) IS NULL AND octet_length(body) <= 536870912 AND current_setting('synchronous_commit') <> 'off'
             AND message_id IS DISTINCT FROM '' AND octet_length(exchange || routing_key || coalesce(message_id, '') || coalesce(type, '')) <= 255
             AND pg_current_xact_id() IS NOT NULL
        THEN pg_sequence_last_value('onceward.outbox_turn') % 3 END;
    v_id   text;
BEGIN
    IF v_turn = 0 THEN
        INSERT INTO onceward.outbox_0 AS o
        VALUES (pg_current_xact_id(), nextval('onceward.outbox_number'), clock_timestamp(), exchange, routing_key,
                coalesce(publish.message_id, onceward.outbox_id()), type, NULL, '{}', body) RETURNING o.message_id INTO v_id;
    ELSIF v_turn = 1 THEN
        INSERT INTO onceward.outbox_1 AS o
        VALUES (pg_current_xact_id(), nextval('onceward.outbox_number'), clock_timestamp(), exchange, routing_key,
                coalesce(publish.message_id, onceward.outbox_id()), type, NULL, '{}', body) RETURNING o.message_id INTO v_id;
    ELSIF v_turn = 2 THEN
        INSERT INTO onceward.outbox_2 AS o
        VALUES (pg_current_xact_id(), nextval('onceward.outbox_number'), clock_timestamp(), exchange, routing_key,
                coalesce(publish.message_id, onceward.outbox_id()), type, NULL, '{}', body) RETURNING o.message_id INTO v_id;
    ELSE
        RETURN onceward.outbox_put(exchange, routing_key, body, false, message_id, type, headers, properties);
    END IF;
    RETURN v_id;
END
$$;

COMMENT ON FUNCTION onceward.publish(text, text, bytea, text, text, jsonb, jsonb) IS
    'As publish of JSON, for a body of bytes.';

REVOKE ALL ON FUNCTION onceward.publish(text, text, bytea, text, text, jsonb, jsonb) FROM PUBLIC;
