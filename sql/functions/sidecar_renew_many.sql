-- Counts a renewal for each item before a copy of its message is published to its own queue: a quorum queue counts
-- the deliveries of the copy from 0. Items of several queues. p_queues has the number of each item's queue, which
-- is a place in p_consumers, p_transactions, p_windows and p_max_windows (not less). The items are sorted by
-- consumer and id, in byte order.
--
-- A message with neither a row nor a history entry gets a waiting row that was never claimed (claimed_by is empty).
-- Its first claim sets received_at, so the message is as old as its first claim, and a queue with `store` stores it
-- then.
--
-- Bounds of a row: 1,000 renewals, and a pace of 10 a minute. Each renewal moves renewals_until by 6 s, to at most
-- a minute from now. A renewal that would move it further is counted, and answered too_often: the queue pauses for
-- wait_ms. Refusing it could lose the message, since the broker continues to count its deliveries. A renewals_until
-- beyond a minute comes from a clock that has stepped back, and is ignored.
--
-- Answers, one per item: renewed (counted) | completed | dead | held (a token is valid; wait_ms until a takeover is
-- allowed, detail: the claim owner) | locked | vanished | mismatch (detail: JSON with both fingerprints) |
-- too_often (counted, and the queue must pause for wait_ms; NULL: not counted, no renewal is left).
--
-- Locks: the rows it changes, in the order of the items, SKIP LOCKED. It waits only for another claim's uncommitted
-- insert of the same id, at most a second. And that of time_mark, before all others. Rows: one per item.
-- Repeating it: counts once more, and changes nothing else.
CREATE OR REPLACE FUNCTION onceward.sidecar_renew_many(
    p_instance text, p_number bigint, p_own boolean, p_gone text[], p_grace_ms bigint,
    p_consumers text[], p_transactions boolean[], p_windows interval[], p_max_windows interval[],
    p_queues integer[], p_ids text[], p_fingerprints bytea[], p_types text[])
RETURNS TABLE (ord integer, answer text, wait_ms bigint, namesake boolean, detail text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- @plan nested_loops
SET enable_memoize = off
SET enable_indexonlyscan = on
SET enable_tidscan = on
AS $$
DECLARE
    c_most    constant integer := 1000;
    c_minute  constant interval := interval '60 s';
    c_each    constant interval := interval '6 s';
    v_received timestamptz; -- for new rows
    v_now     timestamptz;
    v_stale   timestamptz;
    v_counted bigint[];
    v_over    bigint[]; -- the rows beyond the pace
    v_waits   bigint[];
BEGIN
    PERFORM set_config('lock_timeout', '1s', true);
    v_received := onceward.time_mark();
    v_now := least(v_received, clock_timestamp());
    v_stale := v_now - p_grace_ms * interval '1 ms';
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    INSERT INTO onceward.inbox (consumer, message_id, status, attempt, token, fingerprint, received_at,
                                token_expires_at, max_expires_at, next_attempt_at, claimed_by, message_type)
    SELECT p_consumers[i.queue], i.id, 'waiting', 0, gen_random_uuid(), i.fingerprint, v_received, v_stale, v_stale, v_now, '', i.type
    FROM unnest(p_queues, p_ids, p_fingerprints, p_types) i (queue, id, fingerprint, type)
    LEFT JOIN LATERAL (
        SELECT true AS yes FROM onceward.inbox r
        WHERE r.consumer = p_consumers[i.queue] AND r.message_id = i.id LIMIT 1) there ON true
    LEFT JOIN LATERAL (
        SELECT true AS yes
        FROM (SELECT onceward.history_hash(p_consumers[i.queue], i.id) AS hash OFFSET 0) k
        JOIN onceward.history h ON h.hash = k.hash
        WHERE there.yes IS NULL AND (SELECT EXISTS (SELECT FROM onceward.history_begun))
        LIMIT 1) moved ON true
    WHERE there.yes IS NULL AND moved.yes IS NULL
    ON CONFLICT (consumer, message_id) DO NOTHING;

    -- As in sidecar_claim_many: an id that was completed and moved since the snapshot was seen neither as a row nor
    -- as an entry.
    IF clock_timestamp() NOT BETWEEN v_now AND v_now + interval '1 minute' THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'the renewal took more than a minute, or the clock was set back',
            HINT = 'It is repeated: what it has seen of the inbox may be too old.';
    END IF;

    WITH taken AS MATERIALIZED (
        SELECT i.ord, f.tid, f.status, f.token, f.paced
        FROM unnest(p_queues, p_ids, p_fingerprints) WITH ORDINALITY i (queue, id, fingerprint, ord)
        CROSS JOIN LATERAL (
            SELECT r.ctid AS tid, r.status, r.token,
                   CASE WHEN r.renewals_until BETWEEN v_now AND v_now + c_minute THEN r.renewals_until ELSE v_now END AS paced
            FROM onceward.inbox r
            WHERE r.consumer = p_consumers[i.queue] AND r.message_id = i.id AND r.fingerprint = i.fingerprint
              AND coalesce(r.renewals, 0) < c_most
              AND CASE r.status
                  WHEN 'processing' THEN
                      r.token_expires_at <= v_stale
                      OR (p_transactions[i.queue]
                          AND onceward.holder_is_gone(r.claimed_by, r.takeovers, r.token_expires_at, r.max_expires_at,
                                                      p_max_windows[i.queue] - p_windows[i.queue], p_instance, p_number, p_own, p_gone))
                  ELSE r.status IN ('failed', 'waiting', 'held') END
            LIMIT 1 FOR UPDATE OF r SKIP LOCKED) f
    ), changed AS (
        UPDATE onceward.inbox r
        SET renewals = coalesce(r.renewals, 0) + 1,
            renewals_until = least(v_now + c_minute, c_each + t.paced)
        FROM taken t
        WHERE r.ctid = t.tid AND r.token = t.token AND r.status = t.status
        RETURNING t.ord, ceil(1000 * extract(epoch FROM t.paced - (v_now + c_minute - c_each)))::bigint AS over
    )
    SELECT array_agg(c.ord), array_agg(c.ord) FILTER (WHERE c.over > 0), array_agg(c.over) FILTER (WHERE c.over > 0)
    INTO v_counted, v_over, v_waits FROM changed c;

    RETURN QUERY
    SELECT i.ord::integer, a.answer,
           CASE a.answer
               WHEN 'held' THEN ceil(1000 * extract(epoch FROM least(
                   r.token_expires_at, v_stale + p_max_windows[i.queue] + 2 * p_grace_ms * interval '1 ms') - v_stale))::bigint
               WHEN 'too_often' THEN v_waits[array_position(v_over, i.ord)] END,
           a.answer = 'held' AND onceward.holder_is_namesake(r.claimed_by, p_instance, p_number),
           CASE a.answer
               WHEN 'held' THEN r.claimed_by
               WHEN 'mismatch' THEN json_build_object(
                   'fingerprint', encode(i.fingerprint, 'hex'),
                   -- Only 4 bytes of an entry are known.
                   'first_fingerprint', coalesce(encode(r.fingerprint, 'hex'), lpad(to_hex(moved.print), 8, '0')),
                   'first_status', coalesce(r.status, 'completed'), 'first_received_at', r.received_at,
                   'first_completed_at', coalesce(r.completed_at, (date '2000-01-01' + moved.day)::timestamp AT TIME ZONE 'UTC'))::text END
    FROM unnest(p_queues, p_ids, p_fingerprints) WITH ORDINALITY i (queue, id, fingerprint, ord)
    LEFT JOIN LATERAL (
        SELECT r.status, r.fingerprint, r.token_expires_at, r.max_expires_at, r.claimed_by, r.takeovers, r.received_at, r.completed_at,
               r.renewals
        FROM onceward.inbox r
        WHERE r.consumer = p_consumers[i.queue] AND r.message_id = i.id LIMIT 1) r ON true
    LEFT JOIN LATERAL (
        SELECT h.print, h.day
        FROM (SELECT onceward.history_hash(p_consumers[i.queue], i.id) AS hash OFFSET 0) k
        JOIN onceward.history h ON h.hash = k.hash
        WHERE r.status IS NULL AND (SELECT EXISTS (SELECT FROM onceward.history_begun))
        LIMIT 1) moved ON true
    CROSS JOIN LATERAL (
        SELECT CASE
            WHEN r.status IS NULL THEN
                CASE WHEN moved.print IS NULL THEN 'vanished'
                     WHEN moved.print = onceward.history_print(i.fingerprint) THEN 'completed'
                     ELSE 'mismatch' END
            WHEN r.fingerprint <> i.fingerprint THEN 'mismatch'
            WHEN r.status IN ('completed', 'dead') THEN r.status
            WHEN i.ord = ANY (coalesce(v_over, '{}')) THEN 'too_often'
            WHEN i.ord = ANY (coalesce(v_counted, '{}')) THEN 'renewed'
            WHEN r.status = 'processing' AND r.token_expires_at > v_stale
                 AND (p_transactions[i.queue]
                      AND onceward.holder_is_gone(r.claimed_by, r.takeovers, r.token_expires_at, r.max_expires_at,
                                                  p_max_windows[i.queue] - p_windows[i.queue], p_instance, p_number, p_own,
                                                  p_gone)) IS NOT TRUE THEN 'held'
            WHEN r.renewals >= c_most THEN 'too_often'
            -- The row could have been counted, but was not: it is locked.
            ELSE 'locked' END AS answer
        OFFSET 0) a
    ORDER BY i.ord;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_renew_many(text, bigint, boolean, text[], bigint, text[], boolean[], interval[], interval[], integer[],
                                                   text[], bytea[], text[]) FROM PUBLIC;
