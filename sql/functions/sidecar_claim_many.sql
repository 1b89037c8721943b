-- Takes the right to forward messages now, for several queues at once: one row of inbox for each item, with the
-- offered token. Either all queues are `transaction` ones, or none is.
--
-- p_queues has the number of each item's queue, which is a place in p_consumers, p_windows, p_max_windows (not
-- less), p_max_attempts and p_revives. The items are sorted by consumer and id, in byte order.
-- p_hashes has the history_hash() of each item, which costs less to compute in the sidecar. Here it is computed for
-- an item with NULL, and for all items if p_hashes is NULL. A wrong hash hides an entry, so the effect is doubled.
--
-- Answers, one per item, or one with ord -n for the n items that have none. Each but completed has, if there is a
-- row: attempt, takeovers, crashes, unproven_ms, unproven_step and batch_cap (0: none).
--   claimed     age_ms, taken_over
--   completed
--   held        wait_ms until a takeover is allowed; detail: the claim owner; namesake
--   not_due     wait_ms; detail: the last error
--   due         taken over once before: only a claim that is alone may do so again. The row is untouched
--   locked, vanished
--   exhausted   detail: the last error. The row is untouched
--   dead        detail: the last error
--   on_hold     detail: the last error. The row is untouched
--   lost        the offered token has ended: offer another one
--   mismatch    detail: JSON with both fingerprints and the first body's row
--
-- A takeover is allowed p_grace_ms after the end of the window; for a `transaction` queue at once if the claim owner
-- has ended (holder_is_gone).
--
-- No window that the present clock gives out ends later than in c_most, the longest `max_window` that a
-- configuration may have (other replicas may have a longer one than this). A row whose window ends later than that
-- and the grace was claimed by a clock that was ahead: a claim makes it end in p_max_windows. The same goes for a
-- row that waits for the end of such a window.
--
-- A claim owner that ends without an answer is not charged to the message: a takeover leaves `attempt` unchanged and
-- adds to `takeovers`, up to 2 if the owner had other messages in work too, and always if it had only this one
-- (`alone`). A row that was swept is taken over, too.
-- exhausted: failed, with all attempts made, and due if not p_transaction and the consumer has an order; or to be
-- taken over, with takeovers at p_max_attempts + 2.
--
-- Three kinds of statements, each with a snapshot of its own. The first is enough for a batch of new messages.
--   1. insert the items that have neither a row nor a history entry. Without the probe the INSERT waits behind an
--      application that has not committed its completion yet, with everything inserted so far;
--   2. take over rows that are free and not locked. A row that a renewal made (claimed_by is empty) is as old as its
--      first claim;
--   3. read the rest and answer the reason. Without a row, a history entry means completed, or mismatch.
--
-- Durability: a new row is a lease whose loss in a crash does no harm, and its token is never issued again. So with
-- p_transaction a call that only inserted commits asynchronously; one that took an existing row over commits
-- synchronously.
--
-- Locks: the rows it claims, in the order of the items, SKIP LOCKED. It waits only for another claim's uncommitted
-- insert of the same id, at most a second. A row that another claim holds within its window is answered 'held' without
-- trying its lock, which would only delay the claim owner. And the lock of time_mark, before all others.
-- Raises OW010 when order.key of a consumer was changed since p_order_changes: see time_mark.
-- Raises 40001 when more than a minute has passed between its two readings of the clock.
-- Rows: one per item.
-- Repeating it: with the same tokens answers 'claimed' again, with a fresh window and the same attempt, unless the
-- row was taken over.
CREATE OR REPLACE FUNCTION onceward.sidecar_claim_many(
    p_transaction boolean, p_instance text, p_number bigint, p_own boolean, p_gone text[], p_grace_ms bigint,
    p_consumers text[], p_windows interval[], p_max_windows interval[], p_max_attempts integer[], p_revives integer[],
    p_queues integer[], p_ids text[], p_tokens uuid[], p_fingerprints bytea[], p_types text[], p_deaths bigint[], p_alone boolean[],
    p_order_changes bigint DEFAULT NULL, p_hashes uuid[] DEFAULT NULL)
RETURNS TABLE (ord integer, answer text, attempt integer, takeovers integer, crashes integer, unproven_ms bigint, unproven_step integer,
               batch_cap integer, wait_ms bigint, age_ms bigint, taken_over boolean, namesake boolean, detail text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- @plan nested_loops
SET enable_memoize = off
SET enable_indexonlyscan = on
SET enable_tidscan = on
AS $$
DECLARE
    c_most       constant interval := interval '168 hours'; -- the longest max_window
    c_most_counted constant integer := 1000000000; -- a row that was edited by hand may have more
    v_received   timestamptz; -- for new rows
    v_now        timestamptz;
    v_stale      timestamptz; -- tokens that expired before this may be taken over
    v_me         text := p_instance || '/' || p_number;
    v_n          bigint; -- rows inserted
    v_from       integer := 1; -- items of the next block
    v_upto       integer;
    v_size       integer := cardinality(p_ids);
    v_inserted   bigint;
    v_conflicts  integer := 0;
    v_constraint text;
    v_taken      bigint := 0;
    v_taken_over bigint[];
BEGIN
    PERFORM set_config('lock_timeout', '1s', true);
    v_received := onceward.time_mark(p_order_changes, p_consumers);
    v_now := least(v_received, clock_timestamp());
    v_stale := v_now - p_grace_ms * interval '1 ms';
    -- The caller has hashed the bytes that it sends. With another encoding the ids are stored as other bytes.
    IF p_hashes IS NOT NULL AND pg_client_encoding() <> 'UTF8' THEN
        p_hashes := NULL;
    END IF;

    -- A plain INSERT: ON CONFLICT looks into the index of the key once more for each row, takes a lock and writes WAL
    -- of its own. Another claim may have inserted an id since the snapshot. Then a block of half the items looks again,
    -- in a new snapshot. Elements are read by their place: unnest would copy each array into a table of its own.
    v_n := 0;
    WHILE v_from <= cardinality(p_ids) LOOP
        v_upto := least(v_from + v_size - 1, cardinality(p_ids));
        BEGIN
            INSERT INTO onceward.inbox (consumer, message_id, status, attempt, token, fingerprint, received_at,
                                        token_expires_at, max_expires_at, claimed_by, message_type, alone)
            SELECT p_consumers[i.queue], i.id, 'processing', 1, p_tokens[i.place], p_fingerprints[i.place], v_received,
                   v_now + p_windows[i.queue], v_now + p_max_windows[i.queue], v_me, p_types[i.place], nullif(p_alone[i.place], false)
            FROM (SELECT s.place, p_queues[s.place] AS queue, p_ids[s.place] AS id
                  FROM (SELECT generate_series(v_from, v_upto) AS place) s OFFSET 0) i
            LEFT JOIN LATERAL (
                SELECT true AS yes FROM onceward.inbox r
                WHERE r.consumer = p_consumers[i.queue] AND r.message_id = i.id LIMIT 1) there ON true
            -- The same statement looks for the entry, since only one snapshot is sure to have the row or the entry. The
            -- table history_begun is read once per statement: an empty history costs nothing. Every snapshot with an
            -- entry has its row, too.
            WHERE CASE WHEN there.yes THEN false
                       WHEN (SELECT EXISTS (SELECT FROM onceward.history_begun)) THEN
                           (SELECT true FROM onceward.history h
                            WHERE h.hash = coalesce(p_hashes[i.place], onceward.history_hash(p_consumers[i.queue], i.id)) LIMIT 1) IS NULL
                       ELSE true END;
            GET DIAGNOSTICS v_inserted = ROW_COUNT;
            v_n := v_n + v_inserted;
            v_from := v_upto + 1;
        EXCEPTION WHEN unique_violation THEN
            GET STACKED DIAGNOSTICS v_constraint = CONSTRAINT_NAME;
            v_conflicts := v_conflicts + 1;
            -- A violation of a user's own unique index must be reported. The bound ends a call at REPEATABLE READ.
            IF v_constraint <> 'inbox_pkey' OR v_conflicts > 2 * cardinality(p_ids) + 8 THEN
                RAISE;
            END IF;
            v_size := greatest(v_size / 2, 1);
        END;
    END LOOP;

    -- An INSERT sees neither row nor entry of an id that was first claimed, completed and moved since its
    -- snapshot. A move comes at the earliest an hour after the completion (sidecar_keep_house). v_now was read
    -- before each snapshot, and the clock is read again here, after the last insert.
    IF clock_timestamp() NOT BETWEEN v_now AND v_now + interval '1 minute' THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'the claim took more than a minute, or the clock was set back',
            HINT = 'The sidecar repeats it: its view of the inbox may be too old.';
    END IF;

    IF v_n < cardinality(p_ids) THEN
        -- The bound of token_expires_at excludes the rows of the first statement.
        WITH taken AS MATERIALIZED (
            SELECT i.ord, i.queue, i.token, i.alone, f.tid, f.status, f.token AS old_token, f.ends_late, f.is_first,
                   (f.status = 'processing' AND f.token <> i.token) OR (f.status = 'failed' AND f.swept) AS takes_over
            FROM unnest(p_queues, p_ids, p_tokens, p_fingerprints, p_deaths, p_alone)
                 WITH ORDINALITY i (queue, id, token, fingerprint, deaths, alone, ord)
            CROSS JOIN LATERAL (
                SELECT r.ctid AS tid, r.status, r.token, coalesce(r.swept, false) AS swept, late.yes AS ends_late, r.claimed_by = '' AS is_first
                FROM onceward.inbox r
                CROSS JOIN LATERAL (
                    SELECT CASE r.status
                        WHEN 'processing' THEN r.token <> i.token
                        WHEN 'waiting' THEN r.next_attempt_at > v_now
                        ELSE false END
                        AND r.token_expires_at > v_now + c_most + p_grace_ms * interval '1 ms' AS yes) late
                WHERE r.consumer = p_consumers[i.queue] AND r.message_id = i.id AND r.fingerprint = i.fingerprint
                  AND (late.yes OR CASE r.status
                      WHEN 'processing' THEN
                          (r.token = i.token AND r.token_expires_at < v_now + p_windows[i.queue])
                          OR (r.token <> i.token
                              AND (r.token_expires_at <= v_stale
                                   OR (p_transaction
                                       AND onceward.holder_is_gone(r.claimed_by, r.takeovers, r.token_expires_at, r.max_expires_at,
                                                                   p_max_windows[i.queue] - p_windows[i.queue], p_instance, p_number, p_own,
                                                                   p_gone)))
                              AND (coalesce(r.takeovers, 0) <= 0 OR (i.alone AND r.takeovers < p_max_attempts[i.queue] + 2)))
                      WHEN 'failed' THEN
                          r.next_attempt_at <= v_now AND r.token <> i.token
                          AND CASE WHEN r.swept
                                   THEN coalesce(r.takeovers, 0) <= 0 OR (i.alone AND r.takeovers < p_max_attempts[i.queue] + 2)
                                   ELSE r.attempt < p_max_attempts[i.queue] END
                      WHEN 'waiting' THEN r.next_attempt_at <= v_now AND r.token <> i.token
                      WHEN 'dead' THEN onceward.letter_revives(r.consumer, i.id, i.deaths, p_revives[i.queue])
                      ELSE false END)
                LIMIT 1 FOR UPDATE OF r SKIP LOCKED) f
        ), shortened AS (
            UPDATE onceward.inbox r
            SET token_expires_at = v_now + p_max_windows[t.queue], max_expires_at = v_now + p_max_windows[t.queue],
                next_attempt_at = least(r.next_attempt_at, v_now + p_max_windows[t.queue] + p_grace_ms * interval '1 ms')
            FROM taken t
            WHERE t.ends_late AND r.ctid = t.tid AND r.token = t.old_token AND r.status = t.status
        ), changed AS (
            UPDATE onceward.inbox r
            SET status = 'processing', token = t.token, token_expires_at = v_now + p_windows[t.queue], claimed_by = v_me,
                max_expires_at = greatest(v_now + p_max_windows[t.queue], CASE WHEN t.old_token = t.token THEN r.max_expires_at END),
                attempt = CASE WHEN t.status = 'dead' THEN 1
                               WHEN t.status = 'processing' OR t.takes_over THEN r.attempt
                               ELSE least(r.attempt, c_most_counted) + 1 END,
                -- set in every row that was claimed again: sidecar_claim_store_many recognises new rows by it
                alive_since = CASE WHEN t.status = 'dead' THEN v_now WHEN t.is_first THEN NULL ELSE coalesce(r.alive_since, r.received_at) END,
                next_attempt_at = NULL,
                received_at = CASE WHEN t.is_first THEN v_received ELSE r.received_at END,
                takeovers = CASE WHEN t.status = 'dead' THEN NULL
                                 WHEN NOT t.takes_over THEN r.takeovers
                                 WHEN r.alone THEN greatest(r.takeovers, 0) + 1
                                 ELSE greatest(r.takeovers, least(greatest(r.takeovers, 0) + 1, 2)) END,
                alone = nullif(t.alone, false),
                crashes = CASE WHEN t.status <> 'dead' THEN r.crashes END,
                unproven_at = CASE WHEN t.status <> 'dead' THEN r.unproven_at END,
                unproven_step = CASE WHEN t.status <> 'dead' THEN r.unproven_step END,
                batch_cap = CASE WHEN t.status <> 'dead' THEN r.batch_cap END,
                swept = NULL
            FROM taken t
            WHERE NOT t.ends_late AND r.ctid = t.tid AND r.token = t.old_token AND r.status = t.status
            RETURNING t.ord, t.status = 'processing' AND t.takes_over AS taken_over
        )
        SELECT count(*), array_agg(c.ord) FILTER (WHERE c.taken_over) INTO v_taken, v_taken_over FROM changed c;
    END IF;

    -- The settings last until the end of the transaction, and take effect at its commit.
    IF p_transaction AND v_taken = 0 THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    ELSIF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    IF v_n = cardinality(p_ids) THEN
        RETURN QUERY SELECT -cardinality(p_ids), 'claimed', 1, 0, 0, NULL::bigint, 0, 0, NULL::bigint, 0::bigint, false, false, NULL::text;
        RETURN;
    END IF;

    RETURN QUERY
    SELECT i.ord::integer, a.answer, r.attempt, coalesce(r.takeovers, 0), coalesce(r.crashes, 0),
           CASE WHEN isfinite(r.unproven_at) THEN greatest(floor(1000 * extract(epoch FROM v_now - r.unproven_at))::bigint, 0) END,
           coalesce(r.unproven_step, 0), coalesce(r.batch_cap, 0),
           CASE a.answer
               WHEN 'held' THEN ceil(1000 * extract(epoch FROM least(
                   r.token_expires_at, v_stale + p_max_windows[i.queue] + 2 * p_grace_ms * interval '1 ms') - v_stale))::bigint
               WHEN 'not_due' THEN ceil(1000 * extract(epoch FROM least(r.next_attempt_at, v_now + interval '3650 days') - v_now))::bigint END,
           CASE WHEN isfinite(coalesce(r.alive_since, r.received_at))
                THEN greatest(floor(1000 * extract(epoch FROM v_now - coalesce(r.alive_since, r.received_at)))::bigint, 0) ELSE 0 END,
           a.answer = 'claimed' AND i.ord = ANY (coalesce(v_taken_over, '{}')),
           a.answer = 'held' AND onceward.holder_is_namesake(r.claimed_by, p_instance, p_number),
           CASE a.answer
               WHEN 'held' THEN r.claimed_by
               WHEN 'not_due' THEN r.last_error
               WHEN 'exhausted' THEN r.last_error
               WHEN 'dead' THEN r.last_error
               WHEN 'on_hold' THEN r.last_error
               WHEN 'mismatch' THEN json_build_object(
                   'fingerprint', encode(i.fingerprint, 'hex'),
                   -- Only 4 bytes of an entry are known.
                   'first_fingerprint', coalesce(encode(r.fingerprint, 'hex'), lpad(to_hex(moved.print), 8, '0')),
                   'first_status', coalesce(r.status, 'completed'), 'first_received_at', r.received_at,
                   'first_completed_at', coalesce(r.completed_at, (date '2000-01-01' + moved.day)::timestamp AT TIME ZONE 'UTC'))::text END
    FROM unnest(p_queues, p_ids, p_tokens, p_fingerprints, p_deaths, p_alone)
         WITH ORDINALITY i (queue, id, token, fingerprint, deaths, alone, ord)
    LEFT JOIN LATERAL (
        SELECT r.status, r.attempt, r.token, r.fingerprint, r.token_expires_at, r.max_expires_at, r.next_attempt_at, r.claimed_by,
               r.received_at, r.alive_since, r.completed_at, r.last_error, r.takeovers, r.crashes, r.unproven_at, r.unproven_step, r.batch_cap, r.swept
        FROM onceward.inbox r
        WHERE r.consumer = p_consumers[i.queue] AND r.message_id = i.id LIMIT 1) r ON true
    LEFT JOIN LATERAL (
        SELECT h.print, h.day
        FROM (SELECT coalesce(p_hashes[i.ord], onceward.history_hash(p_consumers[i.queue], i.id)) AS hash OFFSET 0) k
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
            WHEN r.status = 'completed' THEN 'completed'
            WHEN r.status = 'held' THEN 'on_hold'
            WHEN r.status = 'dead' THEN
                CASE WHEN onceward.letter_revives(p_consumers[i.queue], i.id, i.deaths, p_revives[i.queue]) THEN 'locked' ELSE 'dead' END
            WHEN r.status = 'processing' AND r.token = i.token THEN
                CASE WHEN r.token_expires_at >= v_now + p_windows[i.queue] THEN 'claimed' ELSE 'locked' END
            WHEN r.status = 'processing' AND r.token_expires_at > v_stale
                 AND (p_transaction
                      AND onceward.holder_is_gone(r.claimed_by, r.takeovers, r.token_expires_at, r.max_expires_at,
                                                  p_max_windows[i.queue] - p_windows[i.queue], p_instance, p_number, p_own, p_gone))
                     IS NOT TRUE THEN 'held'
            WHEN r.status = 'processing' OR (r.status = 'failed' AND r.swept) THEN
                CASE WHEN r.takeovers >= p_max_attempts[i.queue] + 2 THEN 'exhausted'
                     WHEN r.token = i.token THEN 'lost'
                     WHEN r.next_attempt_at > v_now THEN 'not_due'
                     WHEN r.takeovers > 0 AND i.alone IS NOT TRUE THEN 'due'
                     ELSE 'locked' END
            -- Without a transaction nothing fences a last attempt that had no answer: its time is kept for the other
            -- messages of its key.
            WHEN r.status = 'failed' AND r.attempt >= p_max_attempts[i.queue] THEN
                CASE WHEN NOT p_transaction AND r.next_attempt_at > v_now
                          AND EXISTS (SELECT FROM onceward.consumer c WHERE c.consumer = p_consumers[i.queue] AND c.order_key <> '')
                     THEN 'not_due' ELSE 'exhausted' END
            -- A token that has ended is never issued again: a late call with it must not be valid again.
            WHEN r.token = i.token THEN 'lost'
            WHEN r.next_attempt_at > v_now THEN 'not_due'
            -- The row was free, but is not taken: an application is committing, or another sidecar was quicker.
            ELSE 'locked' END AS answer
        OFFSET 0) a
    WHERE a.answer IS DISTINCT FROM 'completed'
    ORDER BY i.ord;
    GET DIAGNOSTICS v_n = ROW_COUNT;

    -- Most existing rows are completed: one row answers all of them.
    IF v_n < cardinality(p_ids) THEN
        ord := v_n - cardinality(p_ids);
        answer := 'completed';
        RETURN NEXT;
    END IF;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_claim_many(boolean, text, bigint, boolean, text[], bigint, text[], interval[], interval[], integer[],
                                                   integer[], integer[], text[], uuid[], bytea[], text[], bigint[], boolean[], bigint, uuid[]) FROM PUBLIC;
