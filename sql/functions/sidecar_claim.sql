-- Takes the right to forward messages now: one row of inbox for each id, with the offered token.
--
-- Answers, one an item, or one with ord 0 for all of them: claimed (attempt, age_ms, taken_over) | completed | held (wait_ms until a
-- takeover is allowed, detail: the holder) | not_due (wait_ms, detail: the last error) | locked | vanished | exhausted (attempt; the row
-- is untouched) | dead (attempt, detail: the last error) | lost (the offered token has ended: offer another) | mismatch (detail: JSON with
-- both fingerprints and the first body's row).
--
-- In three statements, each with a snapshot of its own:
--   1. insert what no row exists for. The probe before ON CONFLICT matters: ON CONFLICT alone waits behind an application that
--      has not committed its completion yet, with everything inserted so far;
--   2. take over what may be taken, if it is not locked;
--   3. read the rest and say why not.
-- The first is enough for a batch of new messages.
--
-- Locks: the rows it claims, in key order; never waits for one (SKIP LOCKED), except for another claim's uncommitted insert of the same id,
-- at most a second. A row that another claim holds within its window is answered 'held' without trying its lock: the lock would only
-- be in its holder's way.
-- Rows: one an item.
-- Repeating it: with the same tokens answers 'claimed' again, with a fresh window and the same attempt, as long as nobody else
-- took the row over.
--
-- Durability: a new row is a lease that nobody misses after a crash, and its token is never issued again. So with p_transaction
-- a call that only inserted commits asynchronously; one that took anything from a row that was there commits synchronously.
CREATE OR REPLACE FUNCTION onceward.sidecar_claim(
    p_consumer text, p_transaction boolean, p_window_ms bigint, p_grace_ms bigint, p_max_attempts integer, p_revive integer,
    p_instance text, p_own boolean, p_ids text[], p_tokens uuid[], p_fingerprints bytea[], p_types text[], p_deaths bigint[],
    p_max_window_ms bigint)
RETURNS TABLE (ord integer, answer text, attempt integer, wait_ms bigint, age_ms bigint, taken_over boolean, detail text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_memoize = off
SET enable_material = off
SET enable_nestloop = on
SET enable_indexscan = on
SET enable_indexonlyscan = on
SET enable_tidscan = on
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_marked     boolean := pg_try_advisory_xact_lock_shared(1869505329, 66); -- before the clock: see sidecar_claim_many
    v_now        timestamptz := clock_timestamp();
    v_until      timestamptz := v_now + p_window_ms * interval '1 ms';
    v_max        timestamptz := greatest(v_until, v_now + p_max_window_ms * interval '1 ms');
    v_stale      timestamptz := v_now - p_grace_ms * interval '1 ms'; -- what expired before this may be taken over
    v_n          bigint;
    v_taken      bigint := 0;
    v_taken_over bigint[];
BEGIN
    PERFORM set_config('lock_timeout', '1s', true);

    INSERT INTO onceward.inbox (consumer, message_id, status, attempt, token, fingerprint, received_at,
                                token_expires_at, max_expires_at, claimed_by, message_type)
    SELECT p_consumer, i.id, 'processing', 1, i.token, i.fingerprint, v_now, v_until, v_max, p_instance, i.type
    FROM unnest(p_ids, p_tokens, p_fingerprints, p_types) i (id, token, fingerprint, type)
    LEFT JOIN LATERAL (
        SELECT true AS yes FROM onceward.inbox r
        WHERE r.consumer = p_consumer AND r.message_id = i.id LIMIT 1) there ON true
    WHERE there.yes IS NULL
    ORDER BY i.id COLLATE "C"
    ON CONFLICT (consumer, message_id) DO NOTHING; -- not any conflict: somebody's own unique index must be heard of
    GET DIAGNOSTICS v_n = ROW_COUNT;

    IF v_n < cardinality(p_ids) THEN
        -- token_expires_at < v_until keeps the rows of the first statement out.
        WITH taken AS MATERIALIZED (
            SELECT i.ord, i.token, i.type, f.tid, f.status, f.token AS old_token
            FROM unnest(p_ids, p_tokens, p_fingerprints, p_types, p_deaths)
                 WITH ORDINALITY i (id, token, fingerprint, type, deaths, ord)
            CROSS JOIN LATERAL (
                SELECT r.ctid AS tid, r.status, r.token
                FROM onceward.inbox r
                WHERE r.consumer = p_consumer AND r.message_id = i.id AND r.fingerprint = i.fingerprint
                  AND CASE r.status
                      WHEN 'processing' THEN
                          (r.token = i.token AND r.token_expires_at < v_until)
                          OR (r.token <> i.token AND r.attempt < p_max_attempts
                              AND (r.token_expires_at <= v_stale OR (p_own AND r.claimed_by = p_instance)))
                      WHEN 'failed' THEN r.next_attempt_at <= v_now AND r.attempt < p_max_attempts AND r.token <> i.token
                      WHEN 'waiting' THEN r.next_attempt_at <= v_now AND r.token <> i.token
                      WHEN 'dead' THEN onceward.letter_revives(p_consumer, i.id, i.deaths, p_revive)
                      ELSE false END
                LIMIT 1 FOR UPDATE OF r SKIP LOCKED) f
        ), changed AS (
            UPDATE onceward.inbox r
            SET status = 'processing', token = t.token, token_expires_at = v_until, claimed_by = p_instance,
                max_expires_at = greatest(v_max, CASE WHEN t.old_token = t.token THEN r.max_expires_at END),
                attempt = CASE WHEN t.status = 'dead' THEN 1
                               WHEN t.status = 'processing' AND t.old_token = t.token THEN r.attempt
                               ELSE r.attempt + 1 END,
                alive_since = CASE WHEN t.status = 'dead' THEN v_now ELSE r.alive_since END,
                next_attempt_at = NULL,
                -- What programs of version 1 do not know. They never say that a claim is alone.
                alone = NULL, crashes = CASE WHEN t.status <> 'dead' THEN r.crashes END,
                takeovers = CASE WHEN t.status <> 'dead' THEN r.takeovers END,
                unproven_at = CASE WHEN t.status <> 'dead' THEN r.unproven_at END,
                unproven_step = CASE WHEN t.status <> 'dead' THEN r.unproven_step END
            FROM taken t
            WHERE r.ctid = t.tid AND r.token = t.old_token AND r.status = t.status
            RETURNING t.ord, t.status = 'processing' AND t.old_token <> t.token AS taken_over
        )
        SELECT count(*), array_agg(c.ord) FILTER (WHERE c.taken_over) INTO v_taken, v_taken_over FROM changed c;
    END IF;

    -- The settings hold until the end of the transaction, and count at its commit.
    IF p_transaction AND v_taken = 0 THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    ELSIF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    IF v_n = cardinality(p_ids) THEN
        RETURN QUERY SELECT 0, 'claimed', 1, NULL::bigint, 0::bigint, false, NULL::text;
        RETURN;
    END IF;

    RETURN QUERY
    SELECT i.ord::integer, a.answer, r.attempt,
           CASE a.answer
               WHEN 'held' THEN ceil(1000 * extract(epoch FROM r.token_expires_at - v_stale))::bigint
               WHEN 'not_due' THEN ceil(1000 * extract(epoch FROM r.next_attempt_at - v_now))::bigint END,
           floor(1000 * extract(epoch FROM v_now - coalesce(r.alive_since, r.received_at)))::bigint,
           a.answer = 'claimed' AND i.ord = ANY (coalesce(v_taken_over, '{}')),
           CASE a.answer
               WHEN 'held' THEN r.claimed_by
               WHEN 'not_due' THEN r.last_error
               WHEN 'exhausted' THEN r.last_error
               WHEN 'dead' THEN r.last_error
               WHEN 'mismatch' THEN json_build_object(
                   'fingerprint', encode(i.fingerprint, 'hex'), 'first_fingerprint', encode(r.fingerprint, 'hex'),
                   'first_status', r.status, 'first_received_at', r.received_at, 'first_completed_at', r.completed_at)::text END
    FROM unnest(p_ids, p_tokens, p_fingerprints, p_deaths) WITH ORDINALITY i (id, token, fingerprint, deaths, ord)
    LEFT JOIN LATERAL (
        SELECT r.status, r.attempt, r.token, r.fingerprint, r.token_expires_at, r.next_attempt_at, r.claimed_by, r.received_at,
               r.alive_since, r.completed_at, r.last_error
        FROM onceward.inbox r
        WHERE r.consumer = p_consumer AND r.message_id = i.id LIMIT 1) r ON true
    CROSS JOIN LATERAL (
        SELECT CASE
            WHEN r.status IS NULL THEN 'vanished'
            WHEN r.fingerprint <> i.fingerprint THEN 'mismatch'
            WHEN r.status = 'completed' THEN 'completed'
            WHEN r.status = 'dead' THEN
                CASE WHEN onceward.letter_revives(p_consumer, i.id, i.deaths, p_revive) THEN 'locked' ELSE 'dead' END
            WHEN r.status = 'processing' AND r.token = i.token THEN
                CASE WHEN r.token_expires_at >= v_until THEN 'claimed' ELSE 'locked' END
            WHEN r.status = 'processing' AND r.token_expires_at > v_stale THEN
                CASE WHEN p_own AND r.claimed_by = p_instance AND r.attempt < p_max_attempts THEN 'locked' ELSE 'held' END
            WHEN r.status IN ('processing', 'failed') AND r.attempt >= p_max_attempts THEN 'exhausted'
            -- A token that has ended is never given out again: an old call that comes late must not bring it back.
            WHEN r.status IN ('failed', 'waiting') AND r.token = i.token THEN 'lost'
            WHEN r.status IN ('failed', 'waiting') AND r.next_attempt_at > v_now THEN 'not_due'
            -- It could have been taken, and was not: an application is committing, or somebody else was quicker.
            ELSE 'locked' END AS answer
        OFFSET 0) a
    ORDER BY i.ord;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_claim(text, boolean, bigint, bigint, integer, integer, text, boolean, text[], uuid[],
                                              bytea[], text[], bigint[], bigint) FROM PUBLIC;
