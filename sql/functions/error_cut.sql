-- The longest beginning of p_text of at most 1,024 bytes that ends with a whole character.
--
-- Locks: none. Rows: none. Repeating it: it only computes.
CREATE OR REPLACE FUNCTION onceward.error_cut(p_text text) RETURNS text
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_bytes bytea;
    v_end   integer := 1024;
BEGIN
    IF p_text IS NULL OR octet_length(p_text) <= v_end THEN
        RETURN p_text;
    END IF;
    v_bytes := convert_to(p_text, 'UTF8');
    -- The byte behind the cut must begin a character. The input is valid text, so this ends after three steps.
    WHILE get_byte(v_bytes, v_end) & 192 = 128 LOOP
        v_end := v_end - 1;
    END LOOP;
    RETURN convert_from(substr(v_bytes, 1, v_end), 'UTF8');
END
$$;

REVOKE ALL ON FUNCTION onceward.error_cut(text) FROM PUBLIC;
