-- Gives the row ($1, $2) its token $3 back, which has failed or was released.
--
-- Locks: the rows. Repeating it: changes nothing more.
UPDATE onceward.inbox r
SET status = 'processing', token_expires_at = clock_timestamp() + interval '1 min', next_attempt_at = NULL
WHERE r.consumer = $1 AND r.message_id = $2 AND r.token = $3::uuid AND r.status IN ('failed', 'waiting')
