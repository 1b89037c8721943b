-- The number of dead letters: $1 consumer, $2 reason, $3 since as a time, $4 since as milliseconds ago, $5 ids, $6
-- consumers as a JSON list, $7 and $8 older, like since; NULL: any.
--
-- Locks: none. Repeating it: only reads.
SELECT count(*)
FROM onceward.dead_letter l
WHERE
-- @part dead_filter
