-- Is one of the transactions $2 still there? $1 as in horizon.
--
-- Locks: none. Repeating it: only reads.
SELECT EXISTS (
SELECT
-- @part time_owners
  AND l.virtualtransaction = ANY ($2::text[]))
