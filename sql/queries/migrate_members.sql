-- The roles of the schema that no login has, except the login that created them, which may administer them since
-- PostgreSQL 16.
--
-- Locks: none. Repeating it: only reads.
SELECT r.rolname
FROM pg_roles r
WHERE r.rolname IN ('onceward_sidecar', 'onceward_app')
  AND NOT EXISTS (SELECT FROM pg_roles u WHERE u.rolcanlogin AND NOT u.rolsuper AND pg_has_role(u.oid, r.oid, 'USAGE'))
ORDER BY 1 DESC
