-- The version of the schema, and the oldest program version that may use it (see 0001_schema.sql).
--
-- Locks: none. Rows: one. Repeating it: it only reads.
CREATE OR REPLACE FUNCTION onceward.sidecar_schema(OUT version integer, OUT oldest_compatible integer)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT v.version, v.oldest_compatible FROM onceward.schema_version v ORDER BY v.version DESC LIMIT 1
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_schema() FROM PUBLIC;
