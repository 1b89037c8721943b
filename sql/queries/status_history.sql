-- Entries of the compact history, one row per consumer: their approximate number, and the oldest day. Of a history
-- of more than 1,000 pages (150,000 entries) only a part is read: then the numbers are estimates, and the oldest
-- day is that of the entries read.
--
-- Locks: none. Repeating it: only reads.
WITH size AS MATERIALIZED (
    SELECT least(100.0, 100000.0 / greatest(pg_relation_size('onceward.history') / current_setting('block_size')::bigint, 1))::float4 AS percent
)
SELECT c.consumer, round(count(*) * 100 / min(s.percent))::bigint AS ids, (date '2000-01-01' + min(h.day)::integer)::text AS oldest_day,
       bool_or(s.percent < 100) AS estimated
FROM size s
CROSS JOIN onceward.history h TABLESAMPLE SYSTEM ((SELECT percent FROM size))
JOIN onceward.consumer c ON c.number = h.consumer
GROUP BY c.consumer
ORDER BY c.consumer COLLATE "C"
