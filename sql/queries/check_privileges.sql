-- Rights that `run` and the commands need and this role lacks, as text; NULL: none.
--
-- Locks: none. Repeating it: only reads.
SELECT string_agg(what, ', ' ORDER BY what)
FROM (
    SELECT p || ' on ' || t AS what
    FROM unnest('{onceward.inbox,onceward.dead_letter}'::text[]) t, unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) p
    WHERE NOT has_table_privilege(t, p)
    UNION ALL
    SELECT p || ' on onceward.consumer' FROM unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) p
    WHERE NOT has_table_privilege('onceward.consumer', p)
    UNION ALL
    SELECT p || ' on ' || t FROM unnest('{onceward.horizon,onceward.letter_lock}'::text[]) t, unnest('{SELECT,UPDATE}'::text[]) p
    WHERE NOT has_table_privilege(t, p)
    UNION ALL
    SELECT p || ' on ' || t FROM unnest('{onceward.message,onceward.history_begun}'::text[]) t, unnest('{SELECT,INSERT}'::text[]) p
    WHERE NOT has_table_privilege(t, p)
    UNION ALL
    SELECT p || ' on onceward.history' FROM unnest('{SELECT,INSERT,DELETE}'::text[]) p
    WHERE NOT has_table_privilege('onceward.history', p)
    UNION ALL
    SELECT p || ' on onceward.replay' FROM unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) p
    WHERE NOT has_table_privilege('onceward.replay', p)
    UNION ALL
    SELECT 'EXECUTE on ' || p.oid::regprocedure FROM pg_proc p
    -- A function that only applications call runs as its owner, unlike those that the sidecar's functions call.
    WHERE p.pronamespace = 'onceward'::regnamespace AND (left(p.proname, 8) = 'sidecar_' OR NOT p.prosecdef)
      AND NOT has_function_privilege(p.oid, 'EXECUTE')
) missing
