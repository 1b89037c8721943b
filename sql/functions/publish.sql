-- For applications, in the transaction of their work: a message goes to the exchange as soon as that transaction has committed, and never
-- if it has not. Answers its id: the one given, or a new UUID, of version 7 where the server makes them.
--
--   OW004  AMQP cannot carry it: the message says what, and where
--
-- Persistent and application/json, unless the properties say otherwise. Of one transaction messages go in the order of the calls, and of
-- transactions that follow one another in the order of those.
--
-- The order of things in here is what the relay relies on (0004_outbox.sql): the transaction's id, then whose turn it is, then the number.
-- publish_bytes.sql is the same for a body of bytes; what one does the other does. Each statement is paid for by every transaction of an
-- application, so there are few.
--
-- Locks: none that anybody waits for. Rows: one. Repeating it: another message, and the same one for who receives it where message_id is
-- given.
--
-- The caller may be anybody with EXECUTE: see complete_result.sql. Raises synchronous_commit where it is off: the relay would send what
-- a crash takes back.
CREATE OR REPLACE FUNCTION onceward.publish(
    exchange text, routing_key text, body jsonb, message_id text DEFAULT NULL, type text DEFAULT NULL, headers jsonb DEFAULT NULL,
    properties jsonb DEFAULT NULL) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_xid        xid8 := pg_current_xact_id();
    v_turn       integer := pg_sequence_last_value('onceward.outbox_turn') % 3;
    v_properties jsonb;
    v_body       bytea := convert_to(body::text, 'UTF8');
BEGIN
    IF headers IS NULL AND properties IS NULL AND octet_length(exchange) <= 255 AND octet_length(routing_key) <= 255
       AND octet_length(v_body) <= 536870912 AND coalesce(octet_length(message_id), 1) BETWEEN 1 AND 255
       AND coalesce(octet_length(type), 0) <= 255 THEN
        NULL;
    ELSE
        v_properties := onceward.outbox_check(exchange, routing_key, octet_length(v_body), true, message_id, type, headers, properties);
    END IF;
    IF message_id IS NULL THEN
        message_id := onceward.outbox_id();
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF v_turn = 0 THEN
        INSERT INTO onceward.outbox_0
        VALUES (v_xid, nextval('onceward.outbox_number'), clock_timestamp(), exchange, routing_key, message_id, type, headers, v_properties, v_body);
    ELSIF v_turn = 1 THEN
        INSERT INTO onceward.outbox_1
        VALUES (v_xid, nextval('onceward.outbox_number'), clock_timestamp(), exchange, routing_key, message_id, type, headers, v_properties, v_body);
    ELSE
        INSERT INTO onceward.outbox_2
        VALUES (v_xid, nextval('onceward.outbox_number'), clock_timestamp(), exchange, routing_key, message_id, type, headers, v_properties, v_body);
    END IF;
    RETURN message_id;
END
$$;

COMMENT ON FUNCTION onceward.publish(text, text, jsonb, text, text, jsonb, jsonb) IS
    'In the transaction of the work: sends a message once that has committed. Answers its id. OW004: AMQP cannot carry it.';

REVOKE ALL ON FUNCTION onceward.publish(text, text, jsonb, text, text, jsonb, jsonb) FROM PUBLIC;
