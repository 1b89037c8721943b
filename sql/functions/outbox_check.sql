-- The checks that publish() cannot make quickly: raises OW004 for values that AMQP 0-9-1 or RabbitMQ does not
-- accept, and returns the properties to store: without nulls, expiration as text, and for JSON with a content type.
-- NULL: persistent, application/json.
--
-- Properties and headers are sent in one frame, behind 22 bytes; a frame has 128 KiB, unless the broker is
-- configured otherwise.
--
-- Called by publish(), with its search_path. Locks: none. Rows: none. Repeating it: it only computes.
CREATE OR REPLACE FUNCTION onceward.outbox_check(
    p_exchange text, p_routing_key text, p_body_bytes bigint, p_json boolean, p_message_id text, p_type text, p_headers jsonb,
    p_properties jsonb) RETURNS jsonb
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    c_names constant text := 'content_type, content_encoding, correlation_id, reply_to, expiration, priority, delivery_mode, timestamp, user_id, app_id, cluster_id';
    v_text  text := p_headers::text;
    v_bytes bigint := 41 + coalesce(octet_length(p_message_id), 36) + coalesce(octet_length(p_type), 0);
    v_out   jsonb := p_properties;
    v_item  record;
    v_where text;
    v_value text;
BEGIN
    SELECT i.what, i.bytes INTO v_item
    FROM (VALUES (1, 'exchange', octet_length(p_exchange)), (2, 'routing_key', octet_length(p_routing_key)),
                 (3, 'message_id', coalesce(octet_length(p_message_id), 1)), (4, 'type', coalesce(octet_length(p_type), 0))) i (n, what, bytes)
    WHERE i.bytes IS NULL OR i.bytes > 255 ORDER BY i.n LIMIT 1;
    IF FOUND THEN
        PERFORM onceward.outbox_refuse(v_item.what, coalesce('has ' || v_item.bytes || ' bytes: AMQP carries at most 255', 'is NULL'),
                                       CASE WHEN v_item.bytes IS NULL AND v_item.what = 'exchange'
                                            THEN 'The default exchange, which leads to the queue of the routing key''s name, is ''''.' END);
    ELSIF p_message_id = '' THEN
        PERFORM onceward.outbox_refuse('message_id', 'is empty', 'Leave it out, or pass NULL, for a new UUID.');
    ELSIF p_body_bytes IS NULL THEN
        PERFORM onceward.outbox_refuse('body', 'is NULL', 'JSON''s own null is ''null''::jsonb; an empty body is ''''::bytea.');
    ELSIF p_body_bytes > 536870912 THEN
        PERFORM onceward.outbox_refuse('body', format('has %s bytes: RabbitMQ takes at most 536870912', p_body_bytes), NULL);
    END IF;

    -- The usual headers are few and flat, and their text shows quickly that they contain nothing that could be
    -- wrong.
    IF p_headers IS NOT NULL THEN
        IF jsonb_typeof(p_headers) <> 'object' THEN
            PERFORM onceward.outbox_refuse('headers', format('is a JSON %s, and must be an object', jsonb_typeof(p_headers)), NULL);
        ELSIF octet_length(v_text) <= 250 AND v_text !~ '["]!|[0-9.]{15}|[[][[]|"B?CC"' THEN
            v_bytes := v_bytes + 4 * octet_length(v_text);
        ELSE
            v_bytes := v_bytes + onceward.outbox_field_bytes(p_headers, 'headers', 0);
            FOR v_item IN SELECT h.key, h.value FROM jsonb_each(p_headers) h WHERE h.key IN ('CC', 'BCC') LOOP
                IF jsonb_typeof(v_item.value) <> 'array' OR jsonb_path_exists(v_item.value, '$[*] ? (@.type() != "string")') THEN
                    PERFORM onceward.outbox_refuse('headers.' || v_item.key, 'must be an array of strings: RabbitMQ routes by it', NULL);
                ELSIF p_exchange = '' AND jsonb_path_exists(v_item.value, '$[*] ? (@ starts with "amq.rabbitmq.reply-to.")') THEN
                    PERFORM onceward.outbox_refuse('headers.' || v_item.key, 'names a direct reply-to, which is no queue: RabbitMQ closes the'
                                                   ' connection over one that is malformed', 'Name a queue.');
                END IF;
            END LOOP;
        END IF;
    END IF;

    IF p_properties IS NOT NULL AND jsonb_typeof(p_properties) <> 'object' THEN
        PERFORM onceward.outbox_refuse('properties', format('is a JSON %s, and must be an object', jsonb_typeof(p_properties)), NULL);
    END IF;
    FOR v_item IN SELECT o.key, o.value, jsonb_typeof(o.value) AS kind FROM jsonb_each(p_properties) o LOOP
        v_where := 'properties.' || left(v_item.key, 100);
        v_value := v_item.value #>> '{}';
        IF v_item.key IN ('message_id', 'type', 'headers') THEN
            PERFORM onceward.outbox_refuse(v_where, 'is an argument of its own', format('publish(…, %s => …)', v_item.key));
        ELSIF v_item.key NOT IN ('content_type', 'content_encoding', 'correlation_id', 'reply_to', 'expiration', 'priority', 'delivery_mode',
                                 'timestamp', 'user_id', 'app_id', 'cluster_id') THEN
            PERFORM onceward.outbox_refuse(v_where, 'is no property of AMQP', 'They are ' || c_names || '. Anything else goes into headers.');
        ELSIF v_item.kind = 'null' THEN
            v_out := v_out - v_item.key;
        ELSIF v_item.key IN ('priority', 'delivery_mode', 'timestamp') THEN
            IF v_item.kind <> 'number' OR strpos(v_value, '.') > 0 THEN
                PERFORM onceward.outbox_refuse(v_where, format('is %s, and must be an integer', CASE WHEN v_item.kind = 'number'
                                               THEN v_value ELSE 'a JSON ' || v_item.kind END), NULL);
            ELSIF v_item.key = 'priority' AND v_value::numeric NOT BETWEEN 0 AND 255 THEN
                PERFORM onceward.outbox_refuse(v_where, format('is %s, and must be within 0 and 255', left(v_value, 40)), NULL);
            ELSIF v_item.key = 'delivery_mode' AND v_value::numeric NOT IN (1, 2) THEN
                PERFORM onceward.outbox_refuse(v_where, format('is %s, and must be 2 (persistent) or 1', left(v_value, 40)), NULL);
            ELSIF v_value::numeric NOT BETWEEN 0 AND 18446744073709551615 THEN
                PERFORM onceward.outbox_refuse(v_where, format('is %s, and must be within 0 and 2^64 - 1', left(v_value, 40)),
                                               'It counts seconds since 1970.');
            END IF;
        ELSIF v_item.key = 'expiration' THEN
            IF v_item.kind NOT IN ('number', 'string') OR v_value !~ '^[0-9]{1,20}$' OR v_value::numeric > 4294967295 THEN
                PERFORM onceward.outbox_refuse(v_where, format('is %s, and must be an integer within 0 and 4294967295',
                                               CASE WHEN v_item.kind IN ('number', 'string') THEN quote_literal(left(v_value, 40))
                                                    ELSE 'a JSON ' || v_item.kind END), 'It counts milliseconds.');
            END IF;
            v_out := jsonb_set(v_out, ARRAY['expiration'], to_jsonb(v_value));
        ELSIF v_item.kind <> 'string' THEN
            PERFORM onceward.outbox_refuse(v_where, format('is a JSON %s, and must be a string', v_item.kind), NULL);
        ELSIF octet_length(v_value) > 255 THEN
            PERFORM onceward.outbox_refuse(v_where, format('has %s bytes: AMQP carries at most 255', octet_length(v_value)), NULL);
        ELSIF v_item.key = 'reply_to' AND v_value = 'amq.rabbitmq.reply-to' THEN
            PERFORM onceward.outbox_refuse(v_where, 'is the direct reply-to, which only a connection that waits for the answer can use',
                                           'Name a queue.');
        END IF;
        v_bytes := v_bytes + 9 + octet_length(v_value);
    END LOOP;
    IF v_bytes > 131072 THEN
        PERFORM onceward.outbox_refuse('headers', format('and properties take %s bytes: they must fit into one frame, of 131072', v_bytes),
                                       'Send it in the body.');
    END IF;
    IF p_json AND v_out IS NOT NULL AND NOT v_out ? 'content_type' THEN
        v_out := v_out || '{"content_type": "application/json"}';
    END IF;
    RETURN CASE WHEN p_json THEN v_out ELSE coalesce(v_out, '{}') END;
END
$$;

REVOKE ALL ON FUNCTION onceward.outbox_check(text, text, bigint, boolean, text, text, jsonb, jsonb) FROM PUBLIC;
