-- Does the database have anything of the consumer $1: its record (with the history and the stored messages), a row, or
-- a dead letter? After `forget` there may be dead letters only.
--
-- Locks: none. Repeating it: only reads.
SELECT EXISTS (SELECT FROM onceward.consumer k WHERE k.consumer = $1)
    OR EXISTS (SELECT FROM onceward.inbox i WHERE i.consumer = $1)
    OR EXISTS (SELECT FROM onceward.dead_letter l WHERE l.consumer = $1)
