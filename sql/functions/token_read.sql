-- Takes a token apart: {consumer, message id, secret as 32 hex digits}, and the key of the message before it as it
-- stands in the token, if it names one. Raises OW002 for anything that is not a token, including NULL.
--
-- Everything is checked before it is decoded: decode() and convert_from() raise errors of their own, and catching
-- those would cost an EXCEPTION block, hence a subtransaction, in every call of complete().
--
-- Grammar: `ow1.` base64url(consumer, NUL, message id) `.` base64url(16 bytes), no padding, spare bits zero, at
-- most 720 bytes. A message that is in one request with the message before it in its key (`order.key`) has that one's
-- first part between its own two: `ow1.` part `.` part of the other one `.` secret. See tokens_apart.
--
-- PL/pgSQL prepares every expression of a function again in every transaction that calls it, and an application
-- calls this once per transaction: so the usual case has only three expressions. They use split_part and replace,
-- since substr, right and translate count the characters of a text in UTF-8, which costs far more.
--
-- p_place: its place in an array of tokens, for the DETAIL.
--
-- Called by the functions for applications, in their search_path, and with the settings of the application's
-- session: backslashes in literals are written so that standard_conforming_strings does not matter.
-- Locks: none. Rows: none. Repeating it: it only computes.
CREATE OR REPLACE FUNCTION onceward.token_read(p_token text, p_place integer DEFAULT NULL) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    v_length integer := octet_length(p_token);
    -- The key in escape format: ASCII unchanged, other bytes and NUL as \nnn, the backslash doubled. NULL: not a
    -- token. Each call pays for the pattern, so it only looks for a wrong character, and the lengths of the parts show
    -- that there are three. The spare bits of a part's last character must be zero, so that a token has only one
    -- spelling.
    v_text   text := CASE
        WHEN v_length BETWEEN 28 AND 720 AND p_token LIKE 'ow1.%' AND p_token COLLATE "C" !~ '[^A-Za-z0-9_.-]|[^AQgw]$'
             AND octet_length(split_part(p_token, '.', 2)) = v_length - 27 AND octet_length(split_part(p_token, '.', 3)) = 22
             AND CASE v_length % 4 WHEN 3 THEN true
                                   WHEN 1 THEN strpos('AQgw', chr(get_byte(convert_to(p_token, 'UTF8'), v_length - 24))) > 0
                                   WHEN 2 THEN strpos('AEIMQUYcgkosw048', chr(get_byte(convert_to(p_token, 'UTF8'), v_length - 24))) > 0 ELSE false END
        THEN encode(decode(replace(replace(split_part(p_token, '.', 2), '-', '+'), '_', '/')
                           || CASE v_length % 4 WHEN 1 THEN '==' WHEN 2 THEN '=' ELSE '' END, 'base64'), 'escape') END;
    v_key    bytea;
    v_split  integer;
    v_reason text;
BEGIN
    -- Only one NUL was escaped, so this is the key already.
    IF octet_length(v_text) = (v_length - 27) * 3 / 4 + 3 AND split_part(v_text, E'\\', 1) <> '' AND split_part(v_text, E'\\', 2) LIKE '000_%' THEN
        RETURN ARRAY[split_part(v_text, E'\\', 1), split_part(v_text, E'\\000', 2),
                     encode(decode(replace(replace(split_part(p_token, '.', 3), '-', '+'), '_', '/') || '==', 'base64'), 'hex')];
    END IF;
    -- The part of the other message is decoded where it is needed.
    IF v_length <= 1404 AND p_token COLLATE "C" ~ '^ow1[.][A-Za-z0-9_-]+[.][A-Za-z0-9_-]+[.][A-Za-z0-9_-]{22}$' THEN
        RETURN onceward.token_read('ow1.' || split_part(p_token, '.', 2) || '.' || split_part(p_token, '.', 4), p_place) || split_part(p_token, '.', 3);
    END IF;
    IF v_text IS NOT NULL THEN
        v_key := decode(v_text, 'escape');
        v_split := position(E'\\x00'::bytea IN v_key);
        IF v_split < 2 OR v_split = length(v_key) THEN
            v_reason := 'It names no consumer or no message id.';
        -- A single NUL, and standard UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
        ELSIF position(E'\\x00'::bytea IN substr(v_key, v_split + 1)) = 0
              AND encode(v_key, 'hex') COLLATE "C" ~
                  ('^(?:[0-7][0-9a-f]|(?:c[2-9a-f]|d[0-9a-f])[89ab][0-9a-f]'
                   '|(?:e0[ab]|e[1-9abcef][89ab]|ed[89])[0-9a-f][89ab][0-9a-f]'
                   '|(?:f0[9ab]|f[123][89ab]|f48)[0-9a-f](?:[89ab][0-9a-f]){2})*$') THEN
            RETURN ARRAY[convert_from(substr(v_key, 1, v_split - 1), 'UTF8'), convert_from(substr(v_key, v_split + 1), 'UTF8'),
                         encode(decode(translate(right(p_token, 22), '-_', '+/') || '==', 'base64'), 'hex')];
        ELSE
            v_reason := 'What it names is not text.';
        END IF;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'OW002',
        MESSAGE = 'not a transaction token',
        DETAIL = coalesce('At place ' || p_place || ' of the array: ', '') || CASE
            WHEN p_token IS NULL THEN 'The token is NULL.'
            WHEN p_token = '' THEN 'The token is empty.'
            WHEN octet_length(p_token) > 720 THEN format('It has %s bytes; a token has at most 720.', octet_length(p_token))
            WHEN v_reason IS NOT NULL THEN v_reason
            ELSE format('A token begins with "ow1." and has three parts of A-Z a-z 0-9 - _ with dots between; this one has %s bytes and begins with %s.',
                        octet_length(p_token), quote_literal(left(p_token, 8))) END,
        HINT = 'Pass the value of the request''s Onceward-Token header as it is: not quoted, decoded, trimmed or cut.';
END
$$;

REVOKE ALL ON FUNCTION onceward.token_read(text, integer) FROM PUBLIC;
