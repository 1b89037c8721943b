-- Failed and waiting rows that have been due for more than 10 minutes, one row per consumer: a backlog, or orphans.
--
-- Locks: none. Reads the whole inbox: for a person, not for a timer. Repeating it: only reads.
SELECT i.consumer, count(*) AS count,
       coalesce(floor(1000 * extract(epoch FROM clock_timestamp() - min(d.due_at) FILTER (WHERE isfinite(d.due_at))))::bigint, 0) AS due_for_ms
FROM onceward.inbox i CROSS JOIN LATERAL (SELECT greatest(i.next_attempt_at, i.token_expires_at) AS due_at) d
WHERE i.status IN ('failed', 'waiting') AND d.due_at <= clock_timestamp() - interval '10 minutes'
GROUP BY i.consumer
ORDER BY i.consumer COLLATE "C"
