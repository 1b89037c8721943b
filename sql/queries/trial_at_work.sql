-- The number of locks on the inbox that the sessions $1 hold. A session keeps them until its transaction ends, or an
-- error undoes the statement that took them.
--
-- Locks: none. Repeating it: only reads.
SELECT count(*)
FROM pg_locks l
WHERE l.pid = ANY ($1::integer[]) AND l.relation = 'onceward.inbox'::regclass
