-- The number of sessions that wait for the session $1, or behind those for the same row, and their process ids.
--
-- Locks: none. Repeating it: only reads.
WITH w AS MATERIALIZED (
    SELECT DISTINCT l.pid, pg_blocking_pids(l.pid) AS blockers FROM pg_locks l WHERE NOT l.granted
), first AS (
    SELECT pid FROM w WHERE $1::integer = ANY (blockers)
)
SELECT count(*), coalesce(array_agg(pid), '{}')::text
FROM w
WHERE $1::integer = ANY (blockers) OR blockers && ARRAY(SELECT pid FROM first)
