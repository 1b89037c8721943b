-- The number of stored messages, and their first and last times: $1 consumer, $2 and $3 the position to start after,
-- $4 horizon, $5 since, $6 until, $7 type, $8 ids; NULL: any. received_at is also compared alone, so that PostgreSQL
-- can skip partitions.
--
-- Locks: none. Repeating it: only reads.
SELECT count(*), min(m.received_at)::text, max(m.received_at)::text
FROM onceward.message m
WHERE
-- @part message_filter
