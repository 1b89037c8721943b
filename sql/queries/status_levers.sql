-- Lasting operator commands: pauses, and messages to give up.
--
-- Locks: none. Repeating it: only reads.
SELECT k.consumer, k.paused, coalesce(k.reason, ''), coalesce(k.by, ''), floor(1000 * extract(epoch FROM clock_timestamp() - k.since))::bigint,
       cardinality(k.give_up), coalesce(k.give_up_by, '')
FROM onceward.control k
WHERE k.paused OR cardinality(k.give_up) > 0
ORDER BY k.consumer
