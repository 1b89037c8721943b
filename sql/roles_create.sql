-- The two roles, without login: an administrator grants them to the login roles of the sidecar and the application.
-- Raises 42501 if a role is missing and the caller may not create it. Safe to repeat, and to run from two databases
-- at once.
DO $$
DECLARE
    v_role text;
BEGIN
    FOREACH v_role IN ARRAY ARRAY['onceward_sidecar', 'onceward_app'] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = v_role) THEN
            BEGIN
                EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', v_role);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL; -- another database of the same server is being migrated at this moment
            END;
        END IF;
    END LOOP;
END
$$;
