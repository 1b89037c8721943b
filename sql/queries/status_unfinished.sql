-- The ten oldest unfinished rows: state, next try, rest of the window, claim owner, last error, and the session
-- that holds the row's lock. The host of the claim owner is known for ten minutes after its end.
--
-- The version of a row that an uncommitted transaction has updated or locked has its id in xmax. pg_locks knows the
-- session; a prepared transaction is in pg_prepared_xacts. Without pg_read_all_stats only the pid, the user and the
-- application of other roles' sessions are visible.
--
-- Locks: none. Repeating it: only reads.
SELECT u.consumer, u.message_id, u.status, u.attempt,
       floor(1000 * extract(epoch FROM clock_timestamp() - u.received_at))::bigint,
       CASE WHEN u.status <> 'processing'
            THEN floor(1000 * extract(epoch FROM u.next_attempt_at - clock_timestamp()))::bigint END,
       CASE WHEN u.status = 'processing'
            THEN floor(1000 * extract(epoch FROM u.token_expires_at - clock_timestamp()))::bigint END,
       CASE WHEN u.status = 'processing' THEN u.claimed_by END,
       u.last_error,
       k.pid, k.application_name, k.usename, k.state,
       floor(1000 * extract(epoch FROM clock_timestamp() - coalesce(k.xact_start, p.prepared)))::bigint,
       p.gid, p.owner,
       CASE WHEN u.status = 'processing' THEN h.host END
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
