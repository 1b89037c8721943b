-- Everything that is kept of one message id ($1), for each consumer: its row, its entry in the compact history, and
-- its dead letters. An entry contains no text: its consumer follows from the hash, which includes the name.
--
-- Locks: none. Repeating it: only reads.
SELECT k.consumer, k.kept AS kept_as, k.state, k.attempt, to_char(k.since AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS received_at,
       to_char(k.ended AT TIME ZONE 'UTC', CASE k.kept WHEN 'history' THEN 'YYYY-MM-DD' ELSE 'YYYY-MM-DD"T"HH24:MI:SS"Z"' END) AS ended_at,
       k.next_ms AS next_attempt_ms, k.window_ms AS token_window_ms, k.owner AS holder, h.host, k.error AS last_error, k.letter AS dead_letter
FROM (
    SELECT i.consumer, 'row' AS kept, i.status AS state, i.attempt, i.received_at AS since, i.completed_at AS ended,
           CASE WHEN i.status IN ('failed', 'waiting') AND isfinite(i.next_attempt_at)
                THEN floor(1000 * extract(epoch FROM i.next_attempt_at - clock_timestamp()))::bigint END AS next_ms,
           CASE WHEN i.status = 'processing' AND isfinite(i.token_expires_at)
                THEN floor(1000 * extract(epoch FROM i.token_expires_at - clock_timestamp()))::bigint END AS window_ms,
           CASE WHEN i.status = 'processing' THEN i.claimed_by END AS owner,
           i.last_error AS error, NULL::bigint AS letter
    FROM onceward.consumer c JOIN onceward.inbox i ON i.consumer = c.consumer AND i.message_id = $1
    UNION ALL
    SELECT c.consumer, 'history', 'completed', NULL, NULL, date '2000-01-01' + h.day::integer, NULL, NULL, NULL, NULL, NULL
    FROM onceward.consumer c JOIN onceward.history h ON h.hash = onceward.history_hash(c.consumer, $1) AND h.consumer = c.number
    UNION ALL
    SELECT l.consumer, 'dead letter', l.reason, l.attempts, NULL, l.died_at, NULL, NULL, NULL, l.last_error, l.id
    FROM onceward.dead_letter l WHERE l.message_id = $1) k
LEFT JOIN onceward.replica h ON h.instance = regexp_replace(k.owner, '/[0-9]+$', '')
ORDER BY k.consumer COLLATE "C", k.kept DESC, k.letter
