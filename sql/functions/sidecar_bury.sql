-- Gives messages up: the row becomes dead and a full copy goes into dead_letter, in one transaction. Only then may the delivery be
-- rejected.
--
-- Three kinds of deaths:
--   with a token      the row must have it, and be processing or failed;
--   p_exhausted       nobody has claimed it: the row must be failed, or processing and expired longer than the grace, with all
--                     attempts used up; with the reason delivery_limit, failed, or waiting and its last token expired,
--                     however many were made. The row takes the offered token, so that a repeat is recognised;
--   p_rowless         no row of its own (no usable id, or another body): only the letter. A redelivered copy is inserted only
--                     when no letter with its digest exists. A repeat after a lost answer must be sent as redelivered.
--
-- Answers, one an item: buried (letter_id) | completed | locked (look again) | lost | vanished | dead (it was dead before, by another
-- death: nothing was inserted).
--
-- Locks: the rows it changes, in key order, SKIP LOCKED; for rowless letters one of 64 advisory transaction locks, so that two
-- sidecars do not insert the same copy at once, and that one is only tried ('locked'). It never waits. Rows: one an item.
-- Repeating it: the row keeps the token, so the second call answers 'buried' with the same letter and changes nothing.
CREATE OR REPLACE FUNCTION onceward.sidecar_bury(
    p_consumer text, p_vhost text, p_queue text, p_max_attempts integer, p_grace_ms bigint,
    p_ids text[], p_tokens uuid[], p_fingerprints bytea[], p_types text[], p_statuses integer[], p_errors text[], p_reasons text[],
    p_rowless boolean[], p_redelivered boolean[], p_exhausted boolean[], p_attempts integer[], p_raw_ids bytea[],
    p_bodies bytea[], p_content_types text[], p_properties text[], p_headers text[], p_exchanges text[],
    p_routing_keys text[], p_deaths bigint[])
RETURNS TABLE (ord integer, answer text, letter_id bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_indexscan = on
SET enable_tidscan = on
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_marked boolean := pg_try_advisory_xact_lock_shared(1869505329, 66); -- before the clock: see sidecar_claim_many
    v_now    timestamptz := clock_timestamp();
    v_stale  timestamptz := v_now - p_grace_ms * interval '1 ms';
    v_tid    tid;
    v_status text;
    v_token  uuid;
    v_made   integer; -- attempts, as the row has them
    v_error  text;
    v_digest bytea;
    v_letter boolean;
BEGIN
    PERFORM set_config('lock_timeout', '1s', true);
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    FOR i IN 1 .. coalesce(cardinality(p_bodies), 0) LOOP
        ord := i;
        answer := NULL;
        letter_id := NULL;
        v_digest := NULL;
        v_letter := false;
        v_made := 0;
        v_error := NULL;

        IF p_rowless[i] THEN
            v_digest := onceward.letter_digest(p_consumer, p_vhost, p_queue, p_ids[i], p_raw_ids[i], p_bodies[i], p_content_types[i],
                                               p_types[i], p_properties[i], p_headers[i], p_exchanges[i], p_routing_keys[i],
                                               coalesce(p_deaths[i], 0));
            IF NOT pg_try_advisory_xact_lock(1869505329, get_byte(v_digest, 0) & 63) THEN
                answer := 'locked';
            ELSE
                answer := 'buried';
                IF p_redelivered[i] THEN
                    SELECT l.id INTO letter_id FROM onceward.dead_letter l WHERE l.digest = v_digest AND l.rowless LIMIT 1;
                END IF;
                v_letter := letter_id IS NULL;
            END IF;
        ELSE
            SELECT r.ctid AS tid, r.status, r.token, r.attempt, r.last_error
            INTO v_tid, v_status, v_token, v_made, v_error
            FROM onceward.inbox r
            WHERE r.consumer = p_consumer AND r.message_id = p_ids[i]
              AND CASE WHEN p_exhausted[i] AND p_reasons[i] = 'delivery_limit' THEN
                  r.status = 'failed' OR (r.status = 'waiting' AND r.token_expires_at <= v_stale)
              WHEN p_exhausted[i] THEN
                  r.attempt >= p_max_attempts
                  AND (r.status = 'failed' OR (r.status = 'processing' AND r.token_expires_at <= v_stale))
              ELSE r.token = p_tokens[i] AND r.status IN ('processing', 'failed') END
            FOR UPDATE OF r SKIP LOCKED;
            IF FOUND THEN
                UPDATE onceward.inbox r
                SET status = 'dead', token = coalesce(p_tokens[i], r.token), token_expires_at = v_now, next_attempt_at = NULL,
                    http_status = coalesce(p_statuses[i], r.http_status),
                    last_error = coalesce(onceward.error_cut(p_errors[i]), r.last_error)
                WHERE r.ctid = v_tid AND r.token = v_token AND r.status = v_status;
                v_letter := FOUND;
                answer := CASE WHEN FOUND THEN 'buried' ELSE 'locked' END;
            ELSE
                -- What is there now, in a new snapshot. A row that would do, and was not to be had, is locked.
                SELECT CASE
                    WHEN r.status = 'completed' THEN 'completed'
                    WHEN r.status = 'dead' THEN CASE WHEN r.token = p_tokens[i] THEN 'buried' ELSE 'dead' END
                    WHEN p_exhausted[i] AND p_reasons[i] = 'delivery_limit' THEN
                        CASE WHEN r.status IN ('failed', 'waiting') THEN 'locked' ELSE 'lost' END
                    WHEN p_exhausted[i] AND r.attempt >= p_max_attempts
                         AND (r.status = 'failed' OR (r.status = 'processing' AND r.token_expires_at <= v_stale)) THEN 'locked'
                    WHEN p_exhausted[i] IS NOT TRUE AND r.token = p_tokens[i] AND r.status IN ('processing', 'failed') THEN 'locked'
                    ELSE 'lost' END
                INTO answer
                FROM onceward.inbox r WHERE r.consumer = p_consumer AND r.message_id = p_ids[i];
                IF NOT FOUND THEN
                    answer := 'vanished';
                ELSIF answer = 'buried' THEN
                    SELECT l.id INTO letter_id FROM onceward.dead_letter l
                    WHERE l.consumer = p_consumer AND l.message_id = p_ids[i] AND NOT l.rowless
                    ORDER BY l.consumer DESC, l.message_id DESC, l.id DESC LIMIT 1;
                    IF letter_id IS NULL THEN
                        answer := 'dead'; -- somebody discarded the letter since
                    END IF;
                END IF;
            END IF;
        END IF;

        IF v_letter THEN
            INSERT INTO onceward.dead_letter AS l (consumer, vhost, queue, message_id, raw_id, rowless, reason, attempts, http_status,
                                                   last_error, fingerprint, body, content_type, message_type, properties, headers,
                                                   exchange, routing_key, deaths, digest, died_at)
            VALUES (p_consumer, p_vhost, p_queue, p_ids[i], p_raw_ids[i], v_digest IS NOT NULL, p_reasons[i],
                    coalesce(p_attempts[i], v_made), p_statuses[i], coalesce(onceward.error_cut(p_errors[i]), v_error),
                    p_fingerprints[i], p_bodies[i], p_content_types[i], p_types[i], p_properties[i]::json, p_headers[i]::json,
                    p_exchanges[i], p_routing_keys[i], coalesce(p_deaths[i], 0), v_digest, v_now)
            RETURNING l.id INTO letter_id;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_bury(text, text, text, integer, bigint, text[], uuid[], bytea[], text[], integer[], text[],
                                             text[], boolean[], boolean[], boolean[], integer[], bytea[], bytea[], text[],
                                             text[], text[], text[], text[], bigint[]) FROM PUBLIC;
