-- Puts messages that cannot be sent into dead_letter, whole, as letters without an inbox row: consumer
-- 'onceward-outbox', queue '' (not a possible name), the exchange and routing key that they were published to. p_ids:
-- their ids, as a check.
--
-- A negative number is that of a parked row, which is deleted with its letter. With the reason 'parked' a message
-- goes to outbox_parked instead, as its exchange is stopped: answer buried, letter_id NULL. One call parks in the
-- order of its items.
--
-- Answers, one per item: buried (letter_id) | gone (another session has handled the message) | lost (another relay
-- has the lease) | busy (another transaction has locked the lease: ask again).
--
-- Locks: the row of the lease, SKIP LOCKED: it never waits; and that of time_mark. Rows: one per item.
-- Repeating it: parks nothing twice; finds the letter by its digest and answers 'buried' with the same id.
CREATE OR REPLACE FUNCTION onceward.sidecar_outbox_bury(
    p_lease bigint, p_vhost text, p_seqs bigint[], p_ids text[], p_reasons text[], p_errors text[])
RETURNS TABLE (ord integer, answer text, letter_id bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- @plan index
AS $$
DECLARE
    v_hold   text;
    v_died   timestamptz;
    v_row    record;
    v_digest bytea;
BEGIN
    v_hold := onceward.outbox_hold(p_lease);
    v_died := onceward.time_mark();
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    FOR i IN 1 .. coalesce(cardinality(p_seqs), 0) LOOP
        ord := i;
        letter_id := NULL;
        answer := v_hold;
        IF v_hold = 'held' THEN
            SELECT u.* INTO v_row FROM (
                SELECT z.* FROM onceward.outbox_0 z WHERE z.seq = p_seqs[i]
                UNION ALL SELECT z.* FROM onceward.outbox_1 z WHERE z.seq = p_seqs[i]
                UNION ALL SELECT z.* FROM onceward.outbox_2 z WHERE z.seq = p_seqs[i]
                UNION ALL SELECT NULL, z.seq, z.published_at, z.exchange, z.routing_key, z.message_id, z.type, z.headers, z.properties, z.body
                FROM onceward.outbox_parked z WHERE z.n = -p_seqs[i]) u WHERE u.message_id = p_ids[i];
            IF NOT FOUND THEN
                answer := 'gone';
            ELSIF p_reasons[i] = 'parked' THEN
                answer := 'buried';
                INSERT INTO onceward.outbox_parked (seq, published_at, exchange, routing_key, message_id, type, headers, properties, body)
                SELECT v_row.seq, v_row.published_at, v_row.exchange, v_row.routing_key, v_row.message_id, v_row.type, v_row.headers,
                       v_row.properties, v_row.body
                WHERE NOT EXISTS (SELECT FROM onceward.outbox_parked z WHERE z.seq = v_row.seq AND z.message_id = v_row.message_id);
            ELSE
                answer := 'buried';
                v_digest := sha256(convert_to(format('outbox %s %s', p_seqs[i], p_ids[i]), 'UTF8'));
                SELECT l.id INTO letter_id FROM onceward.dead_letter l WHERE l.digest = v_digest AND l.rowless LIMIT 1;
                IF NOT FOUND THEN
                    INSERT INTO onceward.dead_letter AS l (
                        consumer, vhost, queue, message_id, rowless, reason, attempts, last_error, fingerprint, body, content_type,
                        message_type, properties, headers, exchange, routing_key, deaths, digest, died_at)
                    SELECT 'onceward-outbox', p_vhost, '', v_row.message_id, true, p_reasons[i], 0, onceward.error_cut(p_errors[i]),
                           substr(sha256(v_row.body), 1, 16), v_row.body, x.properties ->> 'content_type', v_row.type,
                           (x.properties || jsonb_strip_nulls(jsonb_build_object('message_id', v_row.message_id, 'type', v_row.type)))::json,
                           v_row.headers::json, v_row.exchange, v_row.routing_key, 0, v_digest, v_died
                    FROM (SELECT '{"delivery_mode": 2}'::jsonb || coalesce(v_row.properties, '{"content_type": "application/json"}')) x (properties)
                    RETURNING l.id INTO letter_id;
                END IF;
                DELETE FROM onceward.outbox_parked z WHERE z.n = -p_seqs[i];
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_outbox_bury(bigint, text, bigint[], text[], text[], text[]) FROM PUBLIC;
