-- What the next version adds.
--
-- Locks: none. Rows: none. Repeating it: it only computes.
CREATE OR REPLACE FUNCTION onceward.made_up() RETURNS integer
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT 2 $$;

REVOKE ALL ON FUNCTION onceward.made_up() FROM PUBLIC;
