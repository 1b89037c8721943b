-- Raises OW004 with the value that cannot be published, its place, and what would be valid.
--
-- Locks: none. Rows: none. Repeating it: raises again.
CREATE OR REPLACE FUNCTION onceward.outbox_refuse(p_where text, p_what text, p_hint text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'OW004',
        MESSAGE = onceward.error_shown(CASE WHEN length(p_where) > 200 THEN left(p_where, 200) || '…' ELSE p_where END) || ' ' || p_what,
        HINT = coalesce(p_hint, 'Nothing was published.');
END
$$;

REVOKE ALL ON FUNCTION onceward.outbox_refuse(text, text, text) FROM PUBLIC;
