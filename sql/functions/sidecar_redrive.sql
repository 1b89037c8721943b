-- The first half of a redrive: prepares the row of a dead letter for its message, which is published again.
--
-- Answers
--   reset      the row was dead, and waits now with all its attempts; or it was purged, and the message makes a new one
--   completed  the message was completed since, and a history entry may have replaced its row; the letter is deleted
--   other      the row is claimed, or was reset before: it is unchanged
--   mismatch   the row of its id, or the history entry, has another body
--   rowless    the letter has no row of its own. A letter of the delivery limit that has an id is redriven by the row
--              of that id
--   gone       there is no such letter
--   locked     another transaction has locked the row or the letter: try again
--
-- Locks: the letter, then the row, SKIP LOCKED: it never waits for one; and the consumer's row of onceward.control if
-- the id was to be given up, for at most a second. Rows: one.
-- Repeating it: after 'reset' it answers 'other', and the message may be published nevertheless; after 'completed' it
-- answers 'gone'.
CREATE OR REPLACE FUNCTION onceward.sidecar_redrive(p_id bigint) RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- @plan index
AS $$
DECLARE
    v_now    timestamptz := clock_timestamp();
    v_letter record;
    v_row    record;
    v_print  integer;
BEGIN
    PERFORM set_config('lock_timeout', '1s', true);
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    SELECT l.consumer, l.message_id, l.rowless, l.fingerprint,
           l.rowless AND (l.reason <> 'delivery_limit' OR l.message_id IS NULL) AS apart
    INTO v_letter
    FROM onceward.dead_letter l WHERE l.id = p_id FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        PERFORM FROM onceward.dead_letter l WHERE l.id = p_id;
        RETURN CASE WHEN FOUND THEN 'locked' ELSE 'gone' END;
    END IF;
    IF v_letter.apart THEN
        RETURN 'rowless';
    END IF;

    SELECT r.ctid AS tid, r.status, r.fingerprint INTO v_row FROM onceward.inbox r
    WHERE r.consumer = v_letter.consumer AND r.message_id = v_letter.message_id FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        PERFORM FROM onceward.inbox r WHERE r.consumer = v_letter.consumer AND r.message_id = v_letter.message_id;
        IF FOUND THEN
            RETURN 'locked';
        END IF;
        -- After the row: this statement sees entries that were moved before it.
        SELECT h.print INTO v_print FROM onceward.history h
        WHERE h.hash = onceward.history_hash(v_letter.consumer, v_letter.message_id) LIMIT 1;
        IF NOT FOUND THEN
            RETURN 'reset';
        ELSIF v_print IS DISTINCT FROM onceward.history_print(v_letter.fingerprint) THEN
            RETURN 'mismatch';
        END IF;
        DELETE FROM onceward.dead_letter l WHERE l.id = p_id;
        RETURN 'completed';
    END IF;

    -- Another message under the same id: the letter was stored without reading the row, or its own row was removed.
    IF v_row.fingerprint IS DISTINCT FROM v_letter.fingerprint THEN
        RETURN 'mismatch';
    ELSIF v_row.status = 'completed' THEN
        DELETE FROM onceward.dead_letter l WHERE l.id = p_id;
        RETURN 'completed';
    ELSIF v_row.status = 'dead' THEN
        -- A new secret: the token of the death becomes worthless. The age starts again, or an old message would die
        -- at once.
        UPDATE onceward.inbox r
        SET status = 'waiting', attempt = 0, token = gen_random_uuid(), next_attempt_at = v_now, alive_since = v_now,
            crashes = NULL, takeovers = NULL, alone = NULL, unproven_at = NULL, unproven_step = NULL,
            renewals = NULL, renewals_until = NULL, batch_cap = NULL
        WHERE r.ctid = v_row.tid AND r.status = 'dead';
        IF NOT FOUND THEN
            RETURN 'locked';
        END IF;
        -- A redriven message must not be given up any more.
        UPDATE onceward.control k SET give_up = array_remove(k.give_up, v_letter.message_id)
        WHERE k.consumer = v_letter.consumer AND v_letter.message_id = ANY (k.give_up);
        RETURN 'reset';
    END IF;
    RETURN 'other';
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_redrive(bigint) FROM PUBLIC;
