-- Failed and waiting rows that have been due for more than 10 minutes, one row per consumer: a backlog, or orphans.
--
-- Locks: none. Reads the whole inbox: for a person, not for a timer. Repeating it: only reads.
SELECT i.consumer, count(*) AS count,
       floor(1000 * extract(epoch FROM clock_timestamp() - min(greatest(i.next_attempt_at, i.token_expires_at))))::bigint AS due_for_ms
FROM onceward.inbox i
WHERE i.status IN ('failed', 'waiting') AND greatest(i.next_attempt_at, i.token_expires_at) <= clock_timestamp() - interval '10 minutes'
GROUP BY i.consumer
ORDER BY i.consumer COLLATE "C"
