-- Removes the rows of earlier trials that ended without removing them. Ids of a trial begin with its name.
--
-- Locks: the rows. Repeating it: changes nothing more.
DELETE FROM onceward.inbox r
WHERE r.message_id >= 'onceward-try.' AND r.message_id < 'onceward-try/' AND r.consumer >= 'onceward-try.' AND r.consumer < 'onceward-try/'
  AND r.received_at < clock_timestamp() - interval '1 hour'
