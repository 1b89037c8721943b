-- Removes the rows of earlier trials that ended without removing them.
--
-- Locks: the rows. Repeating it: changes nothing more.
DELETE FROM onceward.inbox r
WHERE r.consumer >= 'onceward-try.' AND r.consumer < 'onceward-try/' AND r.received_at < clock_timestamp() - interval '1 hour'
