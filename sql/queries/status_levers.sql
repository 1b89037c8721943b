-- Lasting operator commands, pauses and messages to give up; and stopped queues, which wait for a command.
--
-- Locks: none. Repeating it: only reads.
SELECT k.consumer, k.paused, coalesce(k.reason, ''), coalesce(k.by, ''), floor(1000 * extract(epoch FROM clock_timestamp() - k.since))::bigint,
       cardinality(k.give_up), coalesce(k.give_up_by, ''),
       (SELECT string_agg(format('%s (%s)', s.key, s.value ->> 'why'), ', ' ORDER BY s.key) FROM jsonb_each(k.stopped) s)
FROM onceward.control k
WHERE k.paused OR cardinality(k.give_up) > 0 OR k.stopped <> '{}'
ORDER BY k.consumer
