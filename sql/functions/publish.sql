-- For applications, in the transaction of their work: the message is sent to the exchange once that transaction has
-- committed, and never if it rolls back. Returns its id: the given one, or a new UUID, of version 7 if the server
-- makes them.
--
--   OW004  AMQP cannot encode it: the message names the value and its place
--
-- Persistent and application/json, unless the properties say otherwise. Messages of one transaction are sent in the
-- order of the calls, and transactions that follow one another in their order.
--
-- The relay relies on the order of the steps (0001_schema.sql): the transaction's id, then the table's turn, then
-- the number. publish_bytes.sql does the same for a body of bytes; change both together.
--
-- This function only handles the usual case, in as few steps as possible, because PL/pgSQL prepares every
-- expression again in every transaction that calls it. So one expression makes the checks, the id and the turn
-- (NULL: not the usual case), and variables have the types of their values. Everything else is left to outbox_put.
--
-- Locks: none that another session waits for. Rows: one. Repeating it: publishes another message, which its
-- receiver recognises as the same if message_id is given.
--
-- Any role with EXECUTE may call it: see complete_result.sql. Raises synchronous_commit if it is off, since
-- otherwise the relay could send a message that a crash undoes. A session that sets it to off after the call is not
-- stopped: nothing here runs at the commit.
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
