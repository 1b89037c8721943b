-- A digest of everything that identifies one copy of a message, for dead letters without a row of their own.
--
-- The broker's own counters of redeliveries are left out, so that a redelivery has the same digest. Each part is
-- preceded by its length, so that different lists of parts have different bytes.
--
-- Locks: none. Rows: none. Repeating it: it only computes.
CREATE OR REPLACE FUNCTION onceward.letter_digest(
    p_consumer text, p_vhost text, p_queue text, p_message_id text, p_raw_id bytea, p_body bytea, p_content_type text, p_type text,
    p_properties text, p_headers text, p_exchange text, p_routing_key text, p_deaths bigint) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_headers text := p_headers;
BEGIN
    -- An object by header name. It is always written again, so that a removed member leaves no trace in the spaces.
    -- A name with \u0000 cannot be parsed by json_each; such headers are used unchanged.
    IF strpos(v_headers, E'\\u0000') = 0 AND json_typeof(v_headers::json) = 'object' THEN
        SELECT '{' || coalesce(string_agg(to_json(h.key)::text || ':' || h.value::text, ',' ORDER BY h.n), '') || '}' INTO v_headers
        FROM json_each(p_headers::json) WITH ORDINALITY h (key, value, n)
        WHERE h.key NOT IN ('x-delivery-count', 'x-acquired-count');
    END IF;
    IF v_headers = '{}' THEN
        v_headers := NULL; -- the first delivery may have had no headers
    END IF;
    RETURN (SELECT sha256(string_agg(coalesce(int4send(octet_length(part)) || part, E'\\xffffffff'::bytea), ''::bytea ORDER BY n))
            FROM unnest(ARRAY[convert_to(p_consumer, 'UTF8'), convert_to(p_vhost, 'UTF8'), convert_to(p_queue, 'UTF8'),
                              convert_to(p_message_id, 'UTF8'), p_raw_id, sha256(p_body), convert_to(p_content_type, 'UTF8'),
                              convert_to(p_type, 'UTF8'), convert_to(p_properties, 'UTF8'), convert_to(v_headers, 'UTF8'),
                              convert_to(p_exchange, 'UTF8'), convert_to(p_routing_key, 'UTF8'), int8send(p_deaths)])
                 WITH ORDINALITY a (part, n));
END
$$;

REVOKE ALL ON FUNCTION onceward.letter_digest(text, text, text, text, bytea, bytea, text, text, text, text, text, text, bigint)
    FROM PUBLIC;
