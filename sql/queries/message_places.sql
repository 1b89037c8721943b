-- Positions of the next 500 stored messages with their sizes; $1 to $8 as in message_count.
--
-- Locks: none. Repeating it: only reads.
SELECT m.received_at::text, m.seq, octet_length(m.body) + octet_length(m.content_header)
FROM onceward.message m
WHERE
-- @part message_filter
ORDER BY m.received_at, m.seq LIMIT 500
