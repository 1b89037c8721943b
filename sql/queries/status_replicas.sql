-- The state of each queue of each replica that has called within three intervals; the values are JSON. A replica
-- without a queue has a row of its own. A replica that has drained calls until it ends.
--
-- Locks: none. Reads one row per instance. Repeating it: only reads.
SELECT r.instance, r.host, r.number, r.version, q.value ->> 'config' AS config,
       floor(1000 * extract(epoch FROM clock_timestamp() - r.seen_at))::bigint AS seen_ms,
       q.value ->> 'queue' AS queue, q.value ->> 'consumer' AS consumer, q.value ->> 'state' AS state, q.value ->> 'reason' AS reason,
       q.value ->> 'detail' AS detail, q.value -> 'paused_for_ms' AS paused_for_ms, q.value -> 'in_flight' AS in_flight,
       coalesce(q.value -> 'accepted', '0') AS accepted, q.value -> 'limit' AS "limit", q.value ->> 'limit_reason' AS limit_reason,
       q.value -> 'batch_size' AS batch_size, q.value -> 'held' AS held, coalesce(q.value -> 'parked', '0') AS parked,
       q.value -> 'depth' AS depth, coalesce(q.value -> 'dead', '0') AS dead, coalesce(q.value -> 'received_per_s', '0') AS received_per_s,
       coalesce(q.value -> 'completed_per_s', '0') AS completed_per_s, coalesce(q.value -> 'failed_per_s', '0') AS failed_per_s,
       q.value -> 'forward_ms_p50' AS forward_ms_p50, q.value -> 'forward_ms_p99' AS forward_ms_p99,
       q.value -> 'end_to_end_ms_p50' AS end_to_end_ms_p50, q.value -> 'end_to_end_ms_p99' AS end_to_end_ms_p99
FROM onceward.replica r
LEFT JOIN LATERAL json_array_elements(CASE json_typeof(r.queues) WHEN 'array' THEN r.queues ELSE '[]' END) q ON json_typeof(q.value) = 'object'
WHERE r.seen_at > clock_timestamp() - interval '15 s'
ORDER BY q.value ->> 'queue' COLLATE "C", r.instance
