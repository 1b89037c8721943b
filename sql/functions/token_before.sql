-- The id of the previous message of its key that a token names, from the answer of token_read; NULL: it names none.
-- Raises OW002 if that part of the token is not the key of a message of the same consumer.
--
-- Locks: none. Rows: none. Repeating it: it only computes.
CREATE OR REPLACE FUNCTION onceward.token_before(p_key text[]) RETURNS text
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_before text[];
BEGIN
    IF p_key[4] IS NULL THEN
        RETURN NULL;
    END IF;
    v_before := onceward.token_read('ow1.' || p_key[4] || '.AAAAAAAAAAAAAAAAAAAAAA');
    IF v_before[1] <> p_key[1] THEN
        RAISE EXCEPTION USING ERRCODE = 'OW002',
            MESSAGE = 'not a transaction token',
            DETAIL = 'It names messages of two consumers.',
            HINT = 'Pass the token of the request as it is: not quoted, decoded, trimmed or cut.';
    END IF;
    RETURN v_before[2];
END
$$;

REVOKE ALL ON FUNCTION onceward.token_before(text[]) FROM PUBLIC;
