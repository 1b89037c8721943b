-- The size of a value in an AMQP table, including its kind. Raises OW004 for a value that a table cannot hold.
-- p_where: its name in the error.
--
-- A number is a 32-bit integer if it fits, else one of 64 bits; with a fraction it is a double. An object is a
-- table, an array an array. An object whose only name begins with '!' names the kind of its value, as in dead
-- letters: {"!timestamp": 1700000000}, {"!bytes": "AAE="}, {"!decimal": "1.25"}, {"!double": 5}, and one for each
-- kind that AMQP has: {"!l": 5}.
--
-- Called by outbox_check, in its search_path. Locks: none. Rows: none. Repeating it: it only computes.
CREATE OR REPLACE FUNCTION onceward.outbox_field_bytes(p_value jsonb, p_where text, p_depth integer) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    c_tag constant text := 'What begins with "!" names a kind: see deploy/guides/application.md.';
    v_kind  text := jsonb_typeof(p_value);
    v_text  text := p_value #>> '{}';
    v_bytes bigint := 5;
    v_item  record;
    v_tag   text;
    v_min   numeric;
    v_max   numeric;
BEGIN
    IF v_kind = 'string' THEN
        RETURN 5 + octet_length(v_text);
    ELSIF v_kind = 'boolean' THEN
        RETURN 2;
    ELSIF v_kind = 'null' THEN
        RETURN 1;
    ELSIF v_kind = 'number' THEN
        IF strpos(v_text, '.') = 0 THEN
            IF v_text::numeric NOT BETWEEN -9223372036854775808 AND 9223372036854775807 THEN
                PERFORM onceward.outbox_refuse(p_where, 'is an integer that 64 bits cannot hold', 'Send it as a string.');
            END IF;
            RETURN CASE WHEN v_text::numeric BETWEEN -2147483648 AND 2147483647 THEN 5 ELSE 9 END;
        END IF;
        IF abs(v_text::numeric) >= 1.797693134862315e308 OR abs(v_text::numeric) < 2.3e-308 AND v_text::numeric <> 0 THEN
            PERFORM onceward.outbox_refuse(p_where, 'is a number that a double cannot hold', 'Send it as a string.');
        END IF;
        RETURN 9;
    ELSIF p_depth = 100 THEN
        PERFORM onceward.outbox_refuse(p_where, 'is nested deeper than 100', 'Send it in the body.');
    ELSIF v_kind = 'array' THEN
        FOR v_item IN SELECT a.value, a.n FROM jsonb_array_elements(p_value) WITH ORDINALITY a (value, n) LOOP
            v_bytes := v_bytes + onceward.outbox_field_bytes(v_item.value, format('%s[%s]', p_where, v_item.n - 1), p_depth + 1);
        END LOOP;
        RETURN v_bytes;
    END IF;

    FOR v_item IN SELECT o.key, o.value FROM jsonb_each(p_value) o LOOP
        IF left(v_item.key, 1) = '!' THEN
            v_tag := v_item.key;
        ELSE
            IF octet_length(v_item.key) > 255 THEN
                PERFORM onceward.outbox_refuse(p_where, format('has a name of %s bytes, which begins with %s: AMQP carries at most 255',
                                                               octet_length(v_item.key), quote_literal(left(v_item.key, 40))), NULL);
            END IF;
            v_bytes := v_bytes + 1 + octet_length(v_item.key)
                       + onceward.outbox_field_bytes(v_item.value, p_where || '.' || v_item.key, p_depth + 1);
        END IF;
    END LOOP;
    IF v_tag IS NULL THEN
        RETURN v_bytes;
    ELSIF p_depth = 0 OR v_bytes > 5 OR p_value - v_tag <> '{}' THEN
        PERFORM onceward.outbox_refuse(p_where, format('has a name that begins with "!", beside others or in the table itself: %s',
                                                       quote_literal(left(v_tag, 40))), c_tag);
    END IF;

    v_kind := jsonb_typeof(p_value -> v_tag);
    v_text := p_value ->> v_tag;
    SELECT k.low, k.high, k.bytes INTO v_min, v_max, v_bytes
    FROM (VALUES ('!b', -128, 127, 2), ('!B', 0, 255, 2), ('!s', -32768, 32767, 3), ('!u', 0, 65535, 3),
                 ('!I', -2147483648, 2147483647, 5), ('!i', 0, 4294967295, 5),
                 ('!l', -9223372036854775808, 9223372036854775807, 9), ('!L', 0, 18446744073709551615, 9),
                 ('!timestamp', 0, 18446744073709551615, 9)) k (tag, low, high, bytes)
    WHERE k.tag = v_tag;
    IF FOUND THEN
        IF v_kind <> 'number' OR strpos(v_text, '.') > 0 THEN
            PERFORM onceward.outbox_refuse(p_where, format('has something else than an integer for %s', v_tag), c_tag);
        ELSIF v_text::numeric NOT BETWEEN v_min AND v_max THEN
            PERFORM onceward.outbox_refuse(p_where, format('has an integer for %s that is not within %s and %s', v_tag, v_min, v_max), c_tag);
        END IF;
        RETURN v_bytes;
    ELSIF v_tag IN ('!double', '!d', '!f') THEN
        IF v_kind = 'number' AND abs(v_text::numeric) < (CASE WHEN v_tag = '!f' THEN 3.4028234e38 ELSE 1.797693134862315e308 END) THEN
            RETURN CASE WHEN v_tag = '!f' THEN 5 ELSE 9 END;
        ELSIF v_kind = 'string' AND v_text IN ('NaN', 'Infinity', '-Infinity') THEN
            PERFORM onceward.outbox_refuse(p_where, format('has %s for %s: RabbitMQ closes the connection over a number that is not finite',
                                                           v_text, v_tag), 'Send it as a string.');
        END IF;
        PERFORM onceward.outbox_refuse(p_where, format('has no number for %s that it can hold', v_tag), c_tag);
    ELSIF v_tag = '!decimal' THEN
        IF v_kind = 'string' AND v_text ~ '^[0-9]{1,10}([.][0-9]{1,250})?$' AND replace(v_text, '.', '')::numeric <= 4294967295 THEN
            RETURN 6;
        END IF;
        PERFORM onceward.outbox_refuse(p_where, 'has no decimal of 32 bits for !decimal, a string like "1.25"', c_tag);
    ELSIF v_tag IN ('!bytes', '!x', '!S') THEN
        IF v_kind = 'string' AND v_text ~ '^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$' THEN
            RETURN 5 + octet_length(v_text) / 4 * 3;
        END IF;
        PERFORM onceward.outbox_refuse(p_where, format('has no base64 for %s', v_tag), c_tag);
    END IF;
    PERFORM onceward.outbox_refuse(p_where, format('has a name that begins with "!" and is no kind: %s', quote_literal(left(v_tag, 40))), c_tag);
END
$$;

REVOKE ALL ON FUNCTION onceward.outbox_field_bytes(jsonb, text, integer) FROM PUBLIC;
