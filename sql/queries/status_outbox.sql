-- What waits in the outbox and who relays it; a row only where a relay has been, or where something waits for one.
--
-- Locks: none. Repeating it: only reads.
SELECT waiting, exact, lag_ms, letters, holder, vhost, bytes, turn_waits_ms, restored
FROM onceward.sidecar_outbox_gauge() WHERE vhost IS NOT NULL OR waiting > 0
