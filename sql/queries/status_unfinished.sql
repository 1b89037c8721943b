-- The ten oldest unfinished rows: state, next try, rest of the window, claim owner, last error, and the session
-- that holds the row's lock. The host of the claim owner is known for ten minutes after its end.
--
-- The version of a row that an uncommitted transaction has updated or locked has its id in xmax. pg_locks knows the
-- session; a prepared transaction is in pg_prepared_xacts. Without pg_read_all_stats only the pid, the user and the
-- application of other roles' sessions are visible.
--
-- Locks: none. Repeating it: only reads.
SELECT u.consumer, u.message_id, u.status AS state, u.attempt,
       CASE WHEN isfinite(u.received_at) THEN floor(1000 * extract(epoch FROM clock_timestamp() - u.received_at))::bigint END AS age_ms,
       CASE WHEN u.status <> 'processing' AND isfinite(u.next_attempt_at)
            THEN floor(1000 * extract(epoch FROM u.next_attempt_at - clock_timestamp()))::bigint END AS next_attempt_ms,
       CASE WHEN u.status = 'processing' AND isfinite(u.token_expires_at)
            THEN floor(1000 * extract(epoch FROM u.token_expires_at - clock_timestamp()))::bigint END AS token_window_ms,
       CASE WHEN u.status = 'processing' THEN u.claimed_by END AS holder,
       CASE WHEN u.status = 'processing' THEN h.host END AS host,
       u.last_error,
       k.pid AS lock_pid, k.application_name AS lock_application, k.usename AS lock_user, k.state AS lock_state,
       floor(1000 * extract(epoch FROM clock_timestamp() - coalesce(k.xact_start, p.prepared)))::bigint AS lock_age_ms,
       p.gid AS lock_gid, p.owner AS _lock_owner
FROM (SELECT i.*, i.xmax AS holder
      FROM onceward.inbox i
      WHERE i.status IN ('processing', 'failed', 'waiting', 'held')
      ORDER BY i.received_at, i.consumer, i.message_id LIMIT 10) u
LEFT JOIN LATERAL (
    SELECT a.pid, a.application_name, a.usename, a.state, a.xact_start
    FROM pg_locks t
    JOIN pg_stat_activity a ON a.pid = t.pid
    WHERE t.locktype = 'transactionid' AND t.granted AND t.mode = 'ExclusiveLock' AND t.transactionid = u.holder
    LIMIT 1) k ON true
LEFT JOIN pg_prepared_xacts p ON p.transaction = u.holder AND p.database = current_database()
LEFT JOIN onceward.replica h ON h.instance = regexp_replace(u.claimed_by, '/[0-9]+$', '')
ORDER BY u.received_at, u.consumer, u.message_id
