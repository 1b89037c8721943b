-- Stored messages up to the position ($9, $10); $1 to $8 as in message_count.
--
-- Locks: none. Repeating it: only reads.
SELECT m.message_id, m.received_at::text, m.seq::text, m.message_type, m.exchange, m.routing_key, m.content_header, m.body
FROM onceward.message m
WHERE
-- @part message_filter
  AND (m.received_at, m.seq) <= ($9::timestamptz, $10::bigint)
ORDER BY m.received_at, m.seq
