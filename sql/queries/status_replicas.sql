-- The state of each queue of each replica that has called within three intervals; the values are JSON. A replica
-- without a queue has a row of its own. A replica that has drained calls until it ends.
--
-- Locks: none. Reads one row per instance. Repeating it: only reads.
SELECT r.instance, r.number, r.version, floor(1000 * extract(epoch FROM clock_timestamp() - r.seen_at))::bigint,
       q.value ->> 'queue', q.value ->> 'consumer', q.value ->> 'state', q.value ->> 'reason', q.value ->> 'detail',
       q.value -> 'paused_for_ms', q.value -> 'in_flight', coalesce(q.value -> 'accepted', '0'), q.value -> 'limit', q.value -> 'batch_size', q.value -> 'held', coalesce(q.value -> 'parked', '0'),
       q.value -> 'depth', coalesce(q.value -> 'dead', '0'), coalesce(q.value -> 'received_per_s', '0'), coalesce(q.value -> 'completed_per_s', '0'),
       coalesce(q.value -> 'failed_per_s', '0'), q.value -> 'forward_ms_p50', q.value -> 'forward_ms_p99', q.value -> 'end_to_end_ms_p50',
       q.value -> 'end_to_end_ms_p99', r.host, q.value ->> 'config', q.value ->> 'limit_reason'
FROM onceward.replica r
LEFT JOIN LATERAL json_array_elements(CASE json_typeof(r.queues) WHEN 'array' THEN r.queues ELSE '[]' END) q ON json_typeof(q.value) = 'object'
WHERE r.seen_at > clock_timestamp() - interval '15 s'
ORDER BY q.value ->> 'queue' COLLATE "C", r.instance
