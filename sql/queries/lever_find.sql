-- Is the consumer $1 known, with the queue $2 or one of its range (NULL: any)? And the number of replicas that have it.
--
-- Locks: none. Repeating it: only reads.
SELECT EXISTS (SELECT FROM onceward.consumer k WHERE k.consumer = $1 AND ($2::text IS NULL OR onceward.queues_meet(k.queue, $2::text))),
       (SELECT count(DISTINCT r.instance)
        FROM onceward.replica r, json_array_elements(CASE json_typeof(r.queues) WHEN 'array' THEN r.queues ELSE '[]' END) q
        WHERE q.value ->> 'consumer' = $1 AND r.seen_at > clock_timestamp() - interval '15 s')
