-- Lasting operator commands, pauses and messages to give up; and stopped queues, which wait for a command.
--
-- Locks: none. Repeating it: only reads.
SELECT k.consumer, k.paused AS _paused, coalesce(k.reason, '') AS reason, coalesce(k.by, '') AS by,
       floor(1000 * extract(epoch FROM clock_timestamp() - k.since))::bigint AS since_ms,
       cardinality(k.give_up) AS give_up, coalesce(k.give_up_by, '') AS give_up_by,
       w.stopped
FROM onceward.control k
CROSS JOIN LATERAL (SELECT string_agg(format('%s (%s)', s.key, s.value ->> 'why'), ', ' ORDER BY s.key) AS stopped
                    FROM jsonb_each(k.stopped) s WHERE s.value ? 'count') w
WHERE k.paused OR cardinality(k.give_up) > 0 OR w.stopped IS NOT NULL
ORDER BY k.consumer
