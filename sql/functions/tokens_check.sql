-- Checks an array of tokens for complete_all, complete_valid and extend_all, and returns its length. Raises OW002
-- for NULL, for more than 10,000 tokens, and for a token that occurs twice: counting it once would let an effect
-- that was done twice commit. token_read checks each token, and raises for a NULL, too.
--
-- Locks: none. Rows: none. Repeating it: it only computes.
CREATE OR REPLACE FUNCTION onceward.tokens_check(p_tokens text[]) RETURNS integer
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    c_most constant integer := 10000;
    v_n    integer := cardinality(p_tokens);
    v_seen integer;
    v_places text;
BEGIN
    IF v_n <= c_most THEN
        SELECT count(DISTINCT t COLLATE "C") + count(*) FILTER (WHERE t IS NULL) INTO v_seen FROM unnest(p_tokens) t;
        IF v_seen = v_n THEN
            RETURN v_n;
        END IF;
        SELECT string_agg(d.ord::text, ' and ' ORDER BY d.ord) INTO v_places
        FROM (SELECT u.ord FROM unnest(p_tokens) WITH ORDINALITY u (t, ord)
              WHERE u.t = (SELECT u2.t FROM unnest(p_tokens) WITH ORDINALITY u2 (t, ord) WHERE u2.t IS NOT NULL
                           GROUP BY u2.t HAVING count(*) > 1 ORDER BY min(u2.ord) LIMIT 1)
              ORDER BY u.ord LIMIT 2) d;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'OW002',
        MESSAGE = CASE WHEN v_n > c_most THEN 'too many transaction tokens'
                       WHEN v_n IS NULL THEN 'not an array of transaction tokens'
                       ELSE 'a transaction token is there twice' END,
        DETAIL = CASE WHEN v_n > c_most THEN format('There are %s; a call takes at most %s.', v_n, c_most)
                      WHEN v_n IS NULL THEN 'The array is NULL.'
                      ELSE format('At the places %s of the array.', v_places) END,
        HINT = CASE WHEN v_n > c_most THEN 'Pass the tokens of one request.'
                    WHEN v_n IS NULL THEN 'Pass the tokens of the request''s messages, as an array of text.'
                    ELSE 'Pass the token of each message once, and do its work once.' END;
END
$$;

REVOKE ALL ON FUNCTION onceward.tokens_check(text[]) FROM PUBLIC;
