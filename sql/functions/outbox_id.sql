-- A new message id: a UUID, of version 7 where the server makes them.
--
-- Called by publish(), with its search_path. Locks: none. Rows: none. Repeating it: another one.
CREATE OR REPLACE FUNCTION onceward.outbox_id() RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF current_setting('server_version_num')::integer >= 180000 THEN
        RETURN uuidv7();
    END IF;
    RETURN gen_random_uuid();
END
$$;

REVOKE ALL ON FUNCTION onceward.outbox_id() FROM PUBLIC;
