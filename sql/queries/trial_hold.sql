-- Locks the rows of the messages $2 of the trial $1, in the order of their keys. One row each, with the own process
-- id.
--
-- Locks: the rows. Repeating it: only reads.
SELECT pg_backend_pid()
FROM onceward.inbox r
WHERE r.consumer = $1 AND r.message_id = ANY ($2::text[])
ORDER BY r.message_id FOR UPDATE
