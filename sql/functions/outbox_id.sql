-- A new message id: a UUID, of version 7 if the server could make them (PostgreSQL 18) at the time of `onceward
-- migrate`.
--
-- One expression that the planner can inline into the calling statement.
--
-- Locks: none. Rows: none. Repeating it: another one.
DO $do$
BEGIN
    EXECUTE pg_catalog.format($f$
        CREATE OR REPLACE FUNCTION onceward.outbox_id() RETURNS text
        LANGUAGE sql VOLATILE
        AS 'SELECT pg_catalog.%s()::pg_catalog.text'
    $f$, CASE WHEN pg_catalog.current_setting('server_version_num')::pg_catalog.int4 >= 180000 THEN 'uuidv7' ELSE 'gen_random_uuid' END);
END
$do$;

REVOKE ALL ON FUNCTION onceward.outbox_id() FROM PUBLIC;
