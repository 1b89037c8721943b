-- The number of letters by consumer and reason, and the age of the newest.
--
-- Locks: none. Repeating it: only reads.
SELECT consumer, reason, count(*), floor(1000 * extract(epoch FROM clock_timestamp() - max(died_at)))::bigint
FROM onceward.dead_letter
GROUP BY consumer, reason
ORDER BY 3 DESC, 1, 2
