-- The waiting messages of the outbox, and its relay. A row only if a relay has run, or messages wait for one.
--
-- Locks: none. Repeating it: only reads.
SELECT vhost, holder, h.host, waiting, exact AS _exact, lag_ms, letters AS dead_letters, bytes, turn_waits_ms
FROM onceward.sidecar_outbox_gauge()
LEFT JOIN onceward.replica h ON h.instance = regexp_replace(holder, '/[0-9]+$', '')
WHERE vhost IS NOT NULL OR waiting > 0
