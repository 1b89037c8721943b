-- The answer that a redrive of the letter $1 under the message id $2 would get, without doing it. The conditions are
-- those of sidecar_redrive and sidecar_redrive_as, in their order.
--
-- Locks: none. Repeating it: only reads.
SELECT CASE
           WHEN NOT l.rowless AND own.status = 'completed' THEN 'completed'
           WHEN NOT l.rowless AND own.status IS NULL AND own_entry.print = onceward.history_print(l.fingerprint) THEN 'completed'
           WHEN NOT l.rowless AND l.message_id <> $2 AND own.status = 'processing' THEN 'held'
           WHEN i.status IS NULL THEN
               CASE WHEN entry.print IS NULL THEN 'reset'
                    WHEN entry.print = onceward.history_print(l.fingerprint) THEN 'completed'
                    ELSE 'mismatch' END
           WHEN i.fingerprint IS DISTINCT FROM l.fingerprint THEN 'mismatch'
           WHEN i.status = 'completed' THEN 'completed'
           WHEN i.status = 'dead' THEN 'reset'
           ELSE 'other' END
FROM onceward.dead_letter l
LEFT JOIN onceward.inbox own ON own.consumer = l.consumer AND own.message_id = l.message_id
    AND own.fingerprint IS NOT DISTINCT FROM l.fingerprint
LEFT JOIN onceward.inbox i ON i.consumer = l.consumer AND i.message_id = $2
LEFT JOIN LATERAL (
    SELECT h.print FROM onceward.history h WHERE h.hash = onceward.history_hash(l.consumer, l.message_id) LIMIT 1) own_entry ON true
LEFT JOIN LATERAL (
    SELECT h.print FROM onceward.history h WHERE h.hash = onceward.history_hash(l.consumer, $2) LIMIT 1) entry ON true
WHERE l.id = $1::bigint
