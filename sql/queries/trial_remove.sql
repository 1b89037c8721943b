-- Removes the rows of the trial $1 that nobody has locked. Their ids begin with its name and a point.
--
-- Locks: the rows. Repeating it: changes nothing more.
DELETE FROM onceward.inbox d
USING (SELECT r.consumer, r.message_id
       FROM onceward.inbox r
       WHERE r.consumer = $1 AND r.message_id >= $1 || '.' AND r.message_id < $1 || '/'
       FOR UPDATE SKIP LOCKED) free
WHERE d.consumer = free.consumer AND d.message_id = free.message_id
