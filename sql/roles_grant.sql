-- What the two roles may do. Run by the owner of the schema; safe to repeat.
-- PUBLIC may do nothing: each function's own file revokes that.

GRANT USAGE ON SCHEMA onceward TO onceward_sidecar, onceward_app;

-- The sidecar: rows, and no DDL.
GRANT SELECT ON onceward.schema_version TO onceward_sidecar;
GRANT SELECT, INSERT, UPDATE, DELETE ON onceward.inbox, onceward.dead_letter TO onceward_sidecar;
GRANT SELECT, INSERT, UPDATE ON onceward.consumer TO onceward_sidecar;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA onceward TO onceward_sidecar;

-- The application: its three functions, and nothing else.
GRANT EXECUTE ON FUNCTION onceward.complete(text), onceward.complete(text, text), onceward.extend(text, double precision)
    TO onceward_app;

-- So that the sidecar can name the sessions that hold a row's lock or an old snapshot. Not needed for anything else.
DO $$
BEGIN
    IF NOT pg_catalog.pg_has_role('onceward_sidecar', 'pg_read_all_stats', 'MEMBER') THEN
        GRANT pg_read_all_stats TO onceward_sidecar;
    END IF;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE NOTICE 'onceward_sidecar sees only its own sessions: GRANT pg_read_all_stats TO onceward_sidecar; was not permitted';
END
$$;
