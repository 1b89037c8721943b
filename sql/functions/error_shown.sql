-- A text for the DETAIL of an error: unchanged if the session's client encoding can represent it; else its bytes,
-- with non-ASCII ones as \nnn. An error that cannot be represented would reach the client as 22P05, which says
-- nothing about the token.
--
-- Locks: none. Rows: none. Repeating it: it only computes.
CREATE OR REPLACE FUNCTION onceward.error_shown(p_text text) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN octet_length(p_text) = length(p_text) OR current_setting('client_encoding') IN ('UTF8', 'SQL_ASCII') THEN p_text
                ELSE encode(convert_to(p_text, 'UTF8'), 'escape') END
$$;

REVOKE ALL ON FUNCTION onceward.error_shown(text) FROM PUBLIC;
