-- The server's system identifier, which tells it from other servers. 0 if the caller may not read it.
--
-- Locks: none. Rows: none. Repeating it: it only reads.
CREATE OR REPLACE FUNCTION onceward.outbox_system() RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE') THEN
        RETURN (SELECT c.system_identifier FROM pg_control_system() c);
    END IF;
    RETURN 0;
END
$$;

REVOKE ALL ON FUNCTION onceward.outbox_system() FROM PUBLIC;
