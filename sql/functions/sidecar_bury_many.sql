-- Gives messages of several queues up: the row becomes dead and a full copy goes into dead_letter, in one
-- transaction. Only then may the delivery be rejected. p_of has the number of each item's queue, which is a place in
-- p_consumers, p_vhosts, p_queues, p_transactions, p_windows, p_max_windows (not less) and p_max_attempts.
--
-- The kinds of deaths:
--   with a token   the row must have it, and be processing or failed
--   p_exhausted    the message is not claimed. With the reason attempts, the row must be exhausted by the rules of
--                  sidecar_claim_many; with any other reason it must be failed, held, or waiting with an expired
--                  token, however many attempts were made. The row takes the offered token, so that a repeat is
--                  recognised
--   p_holds        with a row, of an ordered queue: the row becomes `held` instead, and there is no letter. The
--                  delivery stays unacked, and keeps the later messages of its key waiting until an operator
--                  decides (lever_retry, lever_give_up)
--   p_rowless      no row of its own (no usable id, or another body): only the letter, whose digest is this
--                  delivery's token. A repeat after a lost answer must be sent as p_redelivered: then the letter is
--                  inserted only if none has that token. The contents do not identify a message: two messages may
--                  be alike, and each is rejected. So a crash between commit and reject leaves one letter too many
--                  rather than one too few. Without a token (NULL or zeros) the digest is that of the copy
--
-- Answers, one per item: buried (letter_id) | on_hold | completed | locked (look again) | lost | vanished | dead
-- (dead before, by another death: nothing was inserted).
--
-- Locks: the rows it changes, in the order of the items, SKIP LOCKED; for rowless letters one of the 64 rows of
-- letter_lock, so that two sidecars do not insert the same copy at once ('locked'); and that of time_mark. It never
-- waits. Rows: one per item.
-- Repeating it: the row keeps the token, so the second call answers 'buried' with the same letter and changes
-- nothing.
CREATE OR REPLACE FUNCTION onceward.sidecar_bury_many(
    p_instance text, p_number bigint, p_own boolean, p_gone text[], p_grace_ms bigint,
    p_consumers text[], p_vhosts text[], p_queues text[], p_transactions boolean[], p_windows interval[], p_max_windows interval[],
    p_max_attempts integer[],
    p_of integer[], p_ids text[], p_tokens uuid[], p_fingerprints bytea[], p_types text[], p_statuses integer[], p_errors text[],
    p_reasons text[], p_rowless boolean[], p_redelivered boolean[], p_exhausted boolean[], p_attempts integer[], p_raw_ids bytea[],
    p_bodies bytea[], p_content_types text[], p_properties text[], p_headers text[], p_exchanges text[],
    p_routing_keys text[], p_deaths bigint[], p_content_headers bytea[], p_holds boolean[] DEFAULT NULL)
RETURNS TABLE (ord integer, answer text, letter_id bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- @plan index
SET enable_indexscan = on
SET enable_tidscan = on
AS $$
DECLARE
    c_none    constant uuid := '00000000-0000-0000-0000-000000000000';
    v_died    timestamptz;
    v_now     timestamptz;
    v_stale   timestamptz;
    q         integer;
    v_tid     tid;
    v_status  text;
    v_token   uuid;
    v_expires timestamptz;
    v_fits    boolean;
    v_made    integer; -- attempts in the row
    v_error   text;
    v_digest  bytea;
    v_letter  boolean;
    v_holds   boolean;
BEGIN
    PERFORM set_config('lock_timeout', '1s', true);
    v_died := onceward.time_mark();
    v_now := least(v_died, clock_timestamp());
    v_stale := v_now - p_grace_ms * interval '1 ms';
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    FOR i IN 1 .. coalesce(cardinality(p_bodies), 0) LOOP
        ord := i;
        q := p_of[i];
        answer := NULL;
        letter_id := NULL;
        v_digest := NULL;
        v_letter := false;
        v_holds := p_holds[i] IS TRUE AND p_rowless[i] IS NOT TRUE;
        v_made := 0;
        v_error := NULL;

        IF p_rowless[i] THEN
            IF p_tokens[i] <> c_none THEN
                v_digest := sha256('letter'::bytea || uuid_send(p_tokens[i]));
            ELSE
                v_digest := onceward.letter_digest(p_consumers[q], p_vhosts[q], p_queues[q], p_ids[i], p_raw_ids[i], p_bodies[i],
                                                   p_content_types[i], p_types[i], p_properties[i], p_headers[i], p_exchanges[i],
                                                   p_routing_keys[i], coalesce(p_deaths[i], 0));
            END IF;
            PERFORM FROM onceward.letter_lock k WHERE k.number = get_byte(v_digest, 0) & 63 FOR UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                answer := 'locked';
            ELSE
                answer := 'buried';
                IF p_redelivered[i] THEN
                    SELECT l.id INTO letter_id FROM onceward.dead_letter l WHERE l.digest = v_digest AND l.rowless LIMIT 1;
                END IF;
                v_letter := letter_id IS NULL;
            END IF;
        ELSE
            SELECT r.ctid, r.status, r.token, r.token_expires_at, r.attempt, r.last_error,
                   CASE WHEN p_exhausted[i] IS NOT TRUE THEN r.token = p_tokens[i] AND r.status IN ('processing', 'failed')
                        WHEN p_reasons[i] <> 'attempts' THEN
                            r.status IN ('failed', 'held') OR (r.status = 'waiting' AND r.token_expires_at <= v_stale)
                        WHEN r.status = 'failed' AND r.swept IS NOT TRUE THEN r.attempt >= p_max_attempts[q]
                        ELSE r.takeovers >= p_max_attempts[q] + 2
                             AND (r.status = 'failed'
                                  OR (r.status = 'processing'
                                      AND (r.token_expires_at <= v_stale
                                           OR (p_transactions[q]
                                               AND onceward.holder_is_gone(
                                                   r.claimed_by, r.takeovers, r.token_expires_at, r.max_expires_at,
                                                   p_max_windows[q] - p_windows[q], p_instance, p_number, p_own, p_gone))))) END
            INTO v_tid, v_status, v_token, v_expires, v_made, v_error, v_fits
            FROM onceward.inbox r WHERE r.consumer = p_consumers[q] AND r.message_id = p_ids[i];
            IF NOT FOUND THEN
                answer := 'vanished';
            ELSIF v_fits THEN
                -- Rows that were changed or locked since then were judged by outdated values.
                SELECT r.ctid INTO v_tid FROM onceward.inbox r
                WHERE r.ctid = v_tid AND r.token = v_token AND r.status = v_status AND r.token_expires_at = v_expires
                FOR UPDATE OF r SKIP LOCKED;
                IF FOUND THEN
                    UPDATE onceward.inbox r
                    SET status = CASE WHEN v_holds THEN 'held' ELSE 'dead' END, token = coalesce(p_tokens[i], r.token), token_expires_at = v_now, next_attempt_at = NULL,
                        http_status = coalesce(p_statuses[i], r.http_status),
                        last_error = coalesce(onceward.error_cut(p_errors[i]), r.last_error)
                    WHERE r.ctid = v_tid AND r.token = v_token AND r.status = v_status;
                    v_letter := FOUND;
                END IF;
                answer := CASE WHEN NOT v_letter THEN 'locked' WHEN v_holds THEN 'on_hold' ELSE 'buried' END;
                v_letter := v_letter AND NOT v_holds;
            ELSIF v_holds AND v_status = 'held' AND v_token = p_tokens[i] THEN
                answer := 'on_hold';
            ELSIF v_status = 'dead' AND v_token = p_tokens[i] THEN
                SELECT l.id INTO letter_id FROM onceward.dead_letter l
                WHERE l.consumer = p_consumers[q] AND l.message_id = p_ids[i] AND NOT l.rowless
                ORDER BY l.consumer DESC, l.message_id DESC, l.id DESC LIMIT 1;
                -- no letter: an operator has discarded it since
                answer := CASE WHEN letter_id IS NULL THEN 'dead' ELSE 'buried' END;
            ELSE
                answer := CASE WHEN v_status IN ('completed', 'dead') THEN v_status
                               WHEN v_status = 'waiting' AND p_exhausted[i] AND p_reasons[i] <> 'attempts' THEN 'locked'
                               ELSE 'lost' END;
            END IF;
        END IF;

        IF v_letter THEN
            INSERT INTO onceward.dead_letter AS l (consumer, vhost, queue, message_id, raw_id, rowless, reason, attempts, http_status,
                                                   last_error, fingerprint, body, content_type, message_type, properties, headers,
                                                   exchange, routing_key, deaths, digest, died_at, content_header)
            VALUES (p_consumers[q], p_vhosts[q], p_queues[q], p_ids[i], p_raw_ids[i], v_digest IS NOT NULL, p_reasons[i],
                    coalesce(p_attempts[i], v_made), p_statuses[i], coalesce(onceward.error_cut(p_errors[i]), v_error),
                    p_fingerprints[i], p_bodies[i], p_content_types[i], p_types[i], p_properties[i]::json, p_headers[i]::json,
                    p_exchanges[i], p_routing_keys[i], coalesce(p_deaths[i], 0), v_digest, v_died, p_content_headers[i])
            RETURNING l.id INTO letter_id;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_bury_many(text, bigint, boolean, text[], bigint, text[], text[], text[], boolean[], interval[],
                                                  interval[], integer[], integer[], text[], uuid[], bytea[], text[], integer[], text[],
                                                  text[], boolean[], boolean[], boolean[], integer[], bytea[], bytea[], text[], text[],
                                                  text[], text[], text[], bigint[], bytea[], boolean[]) FROM PUBLIC;
