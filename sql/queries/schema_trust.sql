-- Privileges and objects that let another role than the schema's owner put code behind the functions that
-- applications call: one row per fault, the worst first.
--
-- The functions for applications are SECURITY DEFINER: they run as their owner, and so do all functions that they
-- call, and every trigger, default, constraint and index of the tables that they write. A role that owns one of
-- those objects, or may create one, or may replace one because it owns the schema, is as powerful as the owner of
-- the function. So all of them must belong to one role, and no other role may add to them.
--
-- $1: 'true': that role must be the current one, which migrates. Else it is the schema's owner.
-- $2: the signatures of this program's functions, a JSON array of texts like onceward.complete(text).
--
--   kind   owner, create, code: nothing of the schema may be called or changed
--          trigger: the same, but a migration may revoke the right first
--          warning: it works, and an operator should know
--   what, remedy: for people; names chosen by others are quoted, and without control characters.
--
-- It reads only catalogs, which every role may, and calls nothing of the schema: so it may run even if the schema
-- is an attacker's.
-- Locks: none. Repeating it: only reads.
WITH ours AS MATERIALIZED (
    SELECT n.oid AS schema, n.nspacl,
           CASE WHEN $1::boolean THEN me.oid ELSE n.nspowner END AS owner, n.nspowner
    FROM pg_catalog.pg_namespace n, pg_catalog.pg_roles me
    WHERE n.nspname = 'onceward' AND me.rolname = current_user
), objects AS MATERIALIZED (
    SELECT 'pg_class'::regclass AS class, c.oid, c.relowner AS owner
    FROM ours JOIN pg_catalog.pg_class c ON c.relnamespace = ours.schema AND c.relkind NOT IN ('i', 'I', 't', 'c')
    UNION ALL SELECT 'pg_proc'::regclass, p.oid, p.proowner FROM ours JOIN pg_catalog.pg_proc p ON p.pronamespace = ours.schema
    UNION ALL SELECT 'pg_type'::regclass, t.oid, t.typowner FROM ours JOIN pg_catalog.pg_type t ON t.typnamespace = ours.schema
        LEFT JOIN pg_catalog.pg_class c ON c.oid = t.typrelid -- not the types that belong to tables and other types
        WHERE CASE t.typtype WHEN 'c' THEN c.relkind = 'c' WHEN 'b' THEN t.typcategory <> 'A' WHEN 'm' THEN false ELSE true END
    UNION ALL SELECT 'pg_operator'::regclass, o.oid, o.oprowner FROM ours JOIN pg_catalog.pg_operator o ON o.oprnamespace = ours.schema
    UNION ALL SELECT 'pg_opclass'::regclass, o.oid, o.opcowner FROM ours JOIN pg_catalog.pg_opclass o ON o.opcnamespace = ours.schema
    UNION ALL SELECT 'pg_opfamily'::regclass, o.oid, o.opfowner FROM ours JOIN pg_catalog.pg_opfamily o ON o.opfnamespace = ours.schema
    UNION ALL SELECT 'pg_collation'::regclass, c.oid, c.collowner FROM ours JOIN pg_catalog.pg_collation c ON c.collnamespace = ours.schema
    UNION ALL SELECT 'pg_conversion'::regclass, c.oid, c.conowner FROM ours JOIN pg_catalog.pg_conversion c ON c.connamespace = ours.schema
    UNION ALL SELECT 'pg_ts_dict'::regclass, d.oid, d.dictowner FROM ours JOIN pg_catalog.pg_ts_dict d ON d.dictnamespace = ours.schema
    UNION ALL SELECT 'pg_ts_config'::regclass, c.oid, c.cfgowner FROM ours JOIN pg_catalog.pg_ts_config c ON c.cfgnamespace = ours.schema
    UNION ALL SELECT 'pg_statistic_ext'::regclass, s.oid, s.stxowner FROM ours JOIN pg_catalog.pg_statistic_ext s ON s.stxnamespace = ours.schema
-- a role with CREATE in the database can put a trusted one into any schema; a superuser owns its members
), extensions AS MATERIALIZED (
    SELECT d.classid, d.objid, e.extname, e.extowner
    FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_extension e ON d.refclassid = 'pg_extension'::regclass AND e.oid = d.refobjid
    WHERE d.deptype = 'e'
), known AS MATERIALIZED (
    SELECT regexp_replace(s, '\s+', ' ', 'g') AS signature, split_part(split_part(s, '.', 2), '(', 1) AS name
    FROM json_array_elements_text($2::json) s
), functions AS MATERIALIZED (
    SELECT p.oid, p.proname, 'onceward.' || p.proname || '(' || oidvectortypes(p.proargtypes) || ')' AS signature
    FROM ours JOIN pg_catalog.pg_proc p ON p.pronamespace = ours.schema
), grants AS MATERIALIZED ( -- on the tables and their columns, to roles other than the owner
    SELECT o.oid::regclass AS relation, g.grantee, g.privilege_type AS privilege,
           CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE g.grantee::regrole::text END AS who
    FROM ours CROSS JOIN objects o JOIN pg_catalog.pg_class c ON o.class = 'pg_class'::regclass AND c.oid = o.oid
    CROSS JOIN LATERAL (SELECT t.grantee, t.privilege_type FROM aclexplode(c.relacl) t
                        UNION SELECT a.grantee, a.privilege_type
                        FROM pg_catalog.pg_attribute r CROSS JOIN LATERAL aclexplode(r.attacl) a WHERE r.attrelid = c.oid) g
    WHERE g.grantee NOT IN (ours.owner, ours.nspowner)
), tables AS MATERIALIZED (
    SELECT c.oid, c.relname, c.relkind FROM ours JOIN pg_catalog.pg_class c ON c.relnamespace = ours.schema AND c.relkind NOT IN ('i', 'I', 't')
), found (kind, place, what, remedy) AS (
    SELECT 'owner', 0, format('%s is a superuser, and what %s puts into schema onceward would run as it', me.rolname, owner.rolname),
           'let the sidecar log in as a role of its own, IN ROLE onceward_sidecar'
    FROM ours JOIN pg_catalog.pg_roles me ON me.rolname = current_user JOIN pg_catalog.pg_roles owner ON owner.oid = ours.owner
    WHERE me.rolsuper AND NOT owner.rolsuper
    UNION ALL
    SELECT 'owner', 1, format('schema onceward belongs to %s, not to %s, who migrates', ours.nspowner::regrole, ours.owner::regrole),
           format('where it is %s who is meant to own it, migrate as that role (--database); else find out who made the schema, and drop it or rename it',
                  ours.nspowner::regrole)
    FROM ours WHERE ours.nspowner <> ours.owner
    UNION ALL
    SELECT 'owner', 2, format('%s %s belongs to %s, not to %s', i.type, i.identity, o.owner::regrole, ours.owner::regrole),
           format('drop it where you do not know it, else ALTER %s %s OWNER TO %s',
                  upper(regexp_replace(i.type, '^composite ', '')), i.identity, ours.owner::regrole)
    FROM ours CROSS JOIN objects o CROSS JOIN LATERAL pg_identify_object(o.class, o.oid, 0) i
    WHERE o.owner <> ours.owner AND ours.nspowner = ours.owner
      AND NOT EXISTS (SELECT FROM extensions e WHERE e.classid = o.class AND e.objid = o.oid)
    UNION ALL
    SELECT DISTINCT 'owner', 2, format('extension %I of %s has put things into schema onceward', e.extname, e.extowner::regrole),
           format('move it, ALTER EXTENSION %I SET SCHEMA another, or drop it', e.extname)
    FROM objects o JOIN extensions e ON e.classid = o.class AND e.objid = o.oid
    UNION ALL
    SELECT 'create', 3, format('%s may CREATE in schema onceward', g.who),
           format('REVOKE CREATE ON SCHEMA onceward FROM %s', g.who)
    FROM ours CROSS JOIN LATERAL aclexplode(ours.nspacl) a
    CROSS JOIN LATERAL (SELECT a.grantee, a.privilege_type, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS who) g
    WHERE g.privilege_type = 'CREATE' AND g.grantee NOT IN (ours.owner, ours.nspowner)
    UNION ALL
    -- A call with other types of arguments may find a function of the same name that is not ours.
    SELECT 'code', 4, format('function %s has the name of one of ours, and is none', f.signature),
           format('drop it: DROP FUNCTION %s', f.oid::regprocedure)
    FROM functions f WHERE EXISTS (SELECT FROM known k WHERE k.name = f.proname)
      AND NOT EXISTS (SELECT FROM known k WHERE k.signature = f.signature)
    UNION ALL
    SELECT 'code', 5, format('onceward.%s is no ordinary table', t.relname), 'find out who made it, and restore the schema'
    FROM tables t
    WHERE t.relkind <> 'r' AND t.relname IN ('inbox', 'history', 'history_begun', 'dead_letter', 'consumer', 'schema_version', 'control', 'replica', 'message_retention',
                                             'replay', 'horizon', 'letter_lock', 'outbox', 'outbox_0', 'outbox_1', 'outbox_2', 'outbox_position',
                                             'outbox_life', 'outbox_parked')
       OR t.relkind <> 'p' AND t.relname = 'message'
    UNION ALL
    SELECT DISTINCT 'code', 6, format('%s calls %s, which belongs to %s', pg_describe_object(d.classid, d.objid, 0),
                                      pg_describe_object(d.refclassid, d.refobjid, 0), coalesce(p.proowner, o.oprowner)::regrole),
           format('drop it, or what it calls becomes %s', ours.owner::regrole)
    FROM ours JOIN tables t ON true
    JOIN pg_catalog.pg_depend r ON r.refclassid = 'pg_class'::regclass AND r.refobjid = t.oid
        AND r.classid IN ('pg_trigger'::regclass, 'pg_attrdef'::regclass, 'pg_constraint'::regclass, 'pg_class'::regclass, 'pg_policy'::regclass)
    JOIN pg_catalog.pg_depend d ON d.classid = r.classid AND d.objid = r.objid
        AND d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass)
    LEFT JOIN pg_catalog.pg_proc p ON d.refclassid = 'pg_proc'::regclass AND p.oid = d.refobjid
    LEFT JOIN pg_catalog.pg_operator o ON d.refclassid = 'pg_operator'::regclass AND o.oid = d.refobjid
    WHERE coalesce(p.proowner, o.oprowner) <> ours.owner
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles s WHERE s.oid = coalesce(p.proowner, o.oprowner) AND s.rolsuper)
    UNION ALL
    SELECT 'code', 7, format('rule %I changes what is done to onceward.%s', w.rulename, t.relname),
           format('drop it: DROP RULE %I ON onceward.%I', w.rulename, t.relname)
    FROM tables t JOIN pg_catalog.pg_rewrite w ON w.ev_class = t.oid AND t.relkind = 'r'
    UNION ALL
    SELECT 'code', 8, format('%s of %s inherits from onceward.%s', h.inhrelid::regclass, c.relowner::regrole, t.relname),
           format('ALTER TABLE %s NO INHERIT onceward.%I', h.inhrelid::regclass, t.relname)
    FROM ours JOIN tables t ON true JOIN pg_catalog.pg_inherits h ON h.inhparent = t.oid
    JOIN pg_catalog.pg_class c ON c.oid = h.inhrelid AND c.relowner <> ours.owner AND c.relkind NOT IN ('i', 'I')
    UNION ALL
    SELECT 'trigger', 9, format('%s may put triggers on %s, which run as its owner', g.who, g.relation),
           format('REVOKE TRIGGER ON %s FROM %s', g.relation, g.who)
    FROM grants g WHERE g.privilege = 'TRIGGER'
    UNION ALL
    SELECT 'warning', 10, format('%s owns schema onceward and is %s: what applications call runs as that role', r.oid::regrole,
                                 CASE WHEN r.rolsuper THEN 'a superuser' ELSE 'nearly one (CREATEROLE, before PostgreSQL 16)' END),
           'give the schema to a role of its own, as sql/README.md shows'
    FROM ours JOIN pg_catalog.pg_roles r ON r.oid = ours.nspowner
    WHERE r.rolsuper OR r.rolcreaterole AND current_setting('server_version_num')::integer < 160000
    UNION ALL
    SELECT 'warning', 11, format('role %s may %s', r.rolname, CASE WHEN r.rolsuper THEN 'do everything: it is a superuser'
                                 WHEN r.rolcreaterole THEN 'make roles' ELSE format('act as %s, who owns schema onceward', ours.nspowner::regrole) END),
           CASE WHEN r.rolsuper OR r.rolcreaterole THEN format('ALTER ROLE %s NOSUPERUSER NOCREATEROLE', r.rolname)
                ELSE format('REVOKE %s FROM %s', ours.nspowner::regrole, r.rolname) END
    FROM ours JOIN pg_catalog.pg_roles r ON r.rolname IN ('onceward_sidecar', 'onceward_app')
    WHERE r.rolsuper OR r.rolcreaterole OR pg_has_role(r.oid, ours.nspowner, 'MEMBER')
    UNION ALL
    SELECT 'warning', 12, 'role onceward_app may do all that a sidecar may', 'REVOKE onceward_sidecar FROM onceward_app'
    FROM ours JOIN pg_catalog.pg_roles app ON app.rolname = 'onceward_app'
    JOIN pg_catalog.pg_roles sidecar ON sidecar.rolname = 'onceward_sidecar'
    WHERE NOT app.rolsuper AND pg_has_role(app.oid, sidecar.oid, 'MEMBER')
    UNION ALL
    SELECT 'warning', 13, format('login %I is an application''s, and may act as %s, who owns schema onceward', r.rolname, ours.nspowner::regrole),
           'give the schema to a role of its own, as sql/README.md shows'
    FROM ours JOIN pg_catalog.pg_roles app ON app.rolname = 'onceward_app' JOIN pg_catalog.pg_roles r ON r.rolcanlogin AND NOT r.rolsuper
    WHERE pg_has_role(r.oid, app.oid, 'USAGE') AND pg_has_role(r.oid, ours.nspowner, 'USAGE')
    UNION ALL
    SELECT 'warning', 14, format('%s may %s %s', g.who, string_agg(g.privilege, ', ' ORDER BY g.privilege), g.relation),
           format('REVOKE %s ON %s FROM %s', string_agg(g.privilege, ', ' ORDER BY g.privilege), g.relation, g.who)
    FROM grants g
    WHERE g.privilege IN ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES')
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles s WHERE s.oid = g.grantee AND s.rolname = 'onceward_sidecar')
    GROUP BY g.who, g.relation
)
SELECT kind, regexp_replace(what, '[[:cntrl:]]', '?', 'g'), regexp_replace(remedy, '[[:cntrl:]]', '?', 'g')
FROM found ORDER BY place, what COLLATE "C" LIMIT 50
