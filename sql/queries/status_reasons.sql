-- The number of letters by consumer and reason, and the age of the newest.
--
-- Locks: none. Repeating it: only reads.
SELECT consumer, reason, count(*) AS count, floor(1000 * extract(epoch FROM clock_timestamp() - max(died_at)))::bigint AS newest_ms
FROM onceward.dead_letter
GROUP BY consumer, reason
ORDER BY 3 DESC, 1, 2
