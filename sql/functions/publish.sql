-- For applications, in the transaction of their work: a message goes to the exchange as soon as that transaction has committed, and never
-- if it has not. Answers its id: the one given, or a new UUID, of version 7 where the server makes them.
--
--   OW004  AMQP cannot carry it: the message says what, and where
--
-- Persistent and application/json, unless the properties say otherwise. Of one transaction messages go in the order of the calls, and of
-- transactions that follow one another in the order of those.
--
-- The order of things in here is what the relay relies on (0001_schema.sql): the transaction's id, then whose turn it is, then the number.
-- publish_bytes.sql is the same for a body of bytes; what one does the other does.
--
-- What usually happens is done here, in as little as possible: PL/pgSQL makes every expression ready anew in every transaction that calls it.
-- So there is one for the checks, the id and the turn (NULL: it is not the usual case), and variables have the types that they are given.
-- All the rest is left to outbox_put.
--
-- Locks: none that anybody waits for. Rows: one. Repeating it: another message, and the same one for who receives it where message_id is
-- given.
--
-- The caller may be anybody with EXECUTE: see complete_result.sql. Raises synchronous_commit where it is off: the relay would send what
-- a crash takes back. Whoever sets it to off behind the call is not stopped: nothing here runs at the commit.
CREATE OR REPLACE FUNCTION onceward.publish(
    exchange text, routing_key text, body jsonb, message_id text DEFAULT NULL, type text DEFAULT NULL, headers jsonb DEFAULT NULL,
    properties jsonb DEFAULT NULL) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_turn bigint := CASE
        WHEN coalesce(headers, properties) IS NULL AND body IS NOT NULL AND current_setting('synchronous_commit') <> 'off'
             AND message_id IS DISTINCT FROM '' AND octet_length(exchange || routing_key || coalesce(message_id, '') || coalesce(type, '')) <= 255
             AND pg_current_xact_id() IS NOT NULL
        THEN pg_sequence_last_value('onceward.outbox_turn') % 3 END;
    v_id   text;
BEGIN
    IF v_turn = 0 THEN
        INSERT INTO onceward.outbox_0 AS o
        VALUES (pg_current_xact_id(), nextval('onceward.outbox_number'), clock_timestamp(), exchange, routing_key,
                coalesce(publish.message_id, onceward.outbox_id()), type, NULL, NULL, convert_to(body::text, 'UTF8')) RETURNING o.message_id INTO v_id;
    ELSIF v_turn = 1 THEN
        INSERT INTO onceward.outbox_1 AS o
        VALUES (pg_current_xact_id(), nextval('onceward.outbox_number'), clock_timestamp(), exchange, routing_key,
                coalesce(publish.message_id, onceward.outbox_id()), type, NULL, NULL, convert_to(body::text, 'UTF8')) RETURNING o.message_id INTO v_id;
    ELSIF v_turn = 2 THEN
        INSERT INTO onceward.outbox_2 AS o
        VALUES (pg_current_xact_id(), nextval('onceward.outbox_number'), clock_timestamp(), exchange, routing_key,
                coalesce(publish.message_id, onceward.outbox_id()), type, NULL, NULL, convert_to(body::text, 'UTF8')) RETURNING o.message_id INTO v_id;
    ELSE
        RETURN onceward.outbox_put(exchange, routing_key, convert_to(body::text, 'UTF8'), true, message_id, type, headers, properties);
    END IF;
    RETURN v_id;
END
$$;

COMMENT ON FUNCTION onceward.publish(text, text, jsonb, text, text, jsonb, jsonb) IS
    'In the transaction of the work: sends a message once that has committed. Answers its id. OW004: AMQP cannot carry it.';

REVOKE ALL ON FUNCTION onceward.publish(text, text, jsonb, text, text, jsonb, jsonb) FROM PUBLIC;
