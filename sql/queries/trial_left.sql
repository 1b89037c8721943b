-- The number of rows of the trial $1. Their ids begin with its name and a point, since the key of the inbox begins with
-- the id.
--
-- Locks: none. Repeating it: only reads.
SELECT count(*)
FROM onceward.inbox r
WHERE r.consumer = $1 AND r.message_id >= $1 || '.' AND r.message_id < $1 || '/'
