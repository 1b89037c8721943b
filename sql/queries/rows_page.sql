-- Rows of the inbox behind the key ($2, $1), an id and its consumer, as JSON, for archives. $3: of this consumer; $4
-- and $5: received from, and before; NULL: any. The token is left out: its owner could complete the message.
--
-- Locks: none. Repeating it: only reads.
SELECT r.consumer, r.message_id,
       json_build_object('consumer', r.consumer, 'message_id', r.message_id, 'status', r.status, 'attempt', r.attempt, 'takeovers', r.takeovers,
                         'crashes', r.crashes, 'received_at', r.received_at, 'completed_at', r.completed_at, 'next_attempt_at', r.next_attempt_at,
                         'token_expires_at', r.token_expires_at, 'claimed_by', r.claimed_by, 'message_type', r.message_type,
                         'fingerprint', encode(r.fingerprint, 'hex'), 'http_status', r.http_status, 'last_error', r.last_error,
                         'result', r.result)::text
FROM onceward.inbox r
WHERE (r.message_id, r.consumer) > ($2, $1) AND ($3::text IS NULL OR r.consumer = $3::text)
  AND ($4::timestamptz IS NULL OR r.received_at >= $4::timestamptz) AND ($5::timestamptz IS NULL OR r.received_at < $5::timestamptz)
ORDER BY r.message_id, r.consumer LIMIT 200
