-- Rights that `run` and the commands need and this role lacks, as text; NULL: none. The rights of roles_grant.sql.
--
-- Locks: none. Repeating it: only reads.
SELECT string_agg(what, ', ' ORDER BY what)
FROM (
    SELECT p || ' on onceward.' || t AS what
    FROM (VALUES ('{SELECT}'::text[], '{schema_version,message_retention}'::text[]),
                 ('{SELECT,INSERT,UPDATE,DELETE}', '{inbox,dead_letter,consumer,control,replica,replay,outbox_position,outbox_life}'),
                 ('{SELECT,INSERT,DELETE}', '{history,outbox_parked}'),
                 ('{SELECT,INSERT}', '{message,history_begun}'),
                 ('{SELECT,UPDATE}', '{letter_lock,horizon,outbox}'),
                 ('{SELECT,UPDATE,DELETE,TRUNCATE}', '{outbox_0,outbox_1,outbox_2}')) g (rights, tables),
         unnest(g.rights) p, unnest(g.tables) t
    WHERE NOT has_table_privilege('onceward.' || t, p)
    UNION ALL
    SELECT p || ' on onceward.' || t
    FROM (VALUES ('{USAGE}'::text[], '{message_seq,consumer_number}'::text[]),
                 ('{SELECT,UPDATE}', '{outbox_number,outbox_turn}')) g (rights, sequences),
         unnest(g.rights) p, unnest(g.sequences) t
    WHERE NOT has_sequence_privilege('onceward.' || t, p)
    UNION ALL
    SELECT 'EXECUTE on ' || p.oid::regprocedure FROM pg_proc p
    -- A function that only applications call runs as its owner, unlike those that the sidecar's functions call.
    WHERE p.pronamespace = 'onceward'::regnamespace AND (left(p.proname, 8) = 'sidecar_' OR NOT p.prosecdef)
      AND NOT has_function_privilege(p.oid, 'EXECUTE')
) missing
