-- A text for the DETAIL of an error: as it is, where the session's client can be told all of it; else its bytes, with those that are not
-- ASCII as \nnn. An error that cannot be told in the client's encoding would come as another one (22P05), which says nothing of the token.
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
