-- The number of rows by state and of letters, one row per consumer. $1: the configured consumers as a JSON array,
-- which are shown even without any message. The last column: a replica that was seen within 10 minutes uses the
-- consumer.
--
-- Locks: none. Reads the whole inbox: for a person, not for a timer. Repeating it: only reads.
SELECT consumer,
       g.consumer IS NOT NULL AS _configured,
       coalesce(processing, 0) AS processing, coalesce(failed, 0) AS failed, coalesce(waiting, 0) AS waiting, coalesce(held, 0) AS held,
       coalesce(completed, 0) AS completed, coalesce(dead, 0) AS dead, coalesce(letters, 0) AS dead_letters,
       floor(1000 * extract(epoch FROM clock_timestamp() - oldest))::bigint AS oldest_unfinished_ms,
       EXISTS (SELECT FROM onceward.replica r, json_array_elements(CASE json_typeof(r.queues) WHEN 'array' THEN r.queues ELSE '[]' END) q
               WHERE json_typeof(q.value) = 'object' AND q.value ->> 'consumer' = consumer
                 AND r.seen_at > clock_timestamp() - interval '10 min') AS _used
FROM (SELECT i.consumer::text,
             count(*) FILTER (WHERE i.status = 'processing') AS processing,
             count(*) FILTER (WHERE i.status = 'failed') AS failed,
             count(*) FILTER (WHERE i.status = 'waiting') AS waiting,
             count(*) FILTER (WHERE i.status = 'held') AS held,
             count(*) FILTER (WHERE i.status = 'completed') AS completed,
             count(*) FILTER (WHERE i.status = 'dead') AS dead,
             min(i.received_at) FILTER (WHERE i.status IN ('processing', 'failed', 'waiting', 'held') AND isfinite(i.received_at)) AS oldest
      FROM onceward.inbox i GROUP BY i.consumer) rows
FULL JOIN (SELECT l.consumer::text, count(*) AS letters FROM onceward.dead_letter l GROUP BY l.consumer) l USING (consumer)
FULL JOIN (SELECT DISTINCT c AS consumer FROM json_array_elements_text($1::json) c) g USING (consumer)
FULL JOIN (SELECT c.consumer::text FROM onceward.consumer c) k USING (consumer)
ORDER BY consumer COLLATE "C"
