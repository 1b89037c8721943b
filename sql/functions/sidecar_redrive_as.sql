-- The first half of a redrive, for a letter whose message will be published under the id p_message_id, which has no
-- row of the letter's own: the letter has none, or died under another id than its message has now. The row of
-- p_message_id decides.
--
-- Answers
--   reset      that row was dead, and waits now with all its attempts; or there is none, and the message makes it
--   completed  that row, or the one that the letter died under, was completed; the letter is deleted
--   other      that row is claimed, or was reset before: it is unchanged
--   mismatch   that row has another body
--   held       the message is claimed under the id that it died under
--   gone       there is no such letter
--   locked     another transaction has locked one of the rows or the letter: try again
--
-- A history entry with the beginning of the letter's fingerprint, in place of a row, counts as completed.
--
-- Locks: the letter, then the row that it died under, then the other one, SKIP LOCKED: it never waits for one; and the
-- consumer's row of onceward.control if the id was to be given up, for at most a second. Rows: two.
-- Repeating it: after 'reset' it answers 'other' (or 'reset' again if there was no row), and the message may be
-- published nevertheless; after 'completed' it answers 'gone'.
CREATE OR REPLACE FUNCTION onceward.sidecar_redrive_as(p_id bigint, p_message_id text) RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- @plan index
AS $$
DECLARE
    v_now    timestamptz := clock_timestamp();
    v_letter record;
    v_row    record;
    v_other  boolean;
    v_print  integer;
BEGIN
    PERFORM set_config('lock_timeout', '1s', true);
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    SELECT l.consumer, l.message_id, l.rowless, l.fingerprint INTO v_letter
    FROM onceward.dead_letter l WHERE l.id = p_id FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        PERFORM FROM onceward.dead_letter l WHERE l.id = p_id;
        RETURN CASE WHEN FOUND THEN 'locked' ELSE 'gone' END;
    END IF;

    -- The former row stays dead. Only a later completion of it matters.
    v_other := NOT v_letter.rowless AND v_letter.message_id <> p_message_id;
    IF v_other THEN
        SELECT r.status, r.fingerprint IS NOT DISTINCT FROM v_letter.fingerprint AS is_same INTO v_row FROM onceward.inbox r
        WHERE r.consumer = v_letter.consumer AND r.message_id = v_letter.message_id FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            PERFORM FROM onceward.inbox r WHERE r.consumer = v_letter.consumer AND r.message_id = v_letter.message_id;
            IF FOUND THEN
                RETURN 'locked';
            END IF;
            -- After the row: this statement sees entries that were moved before it.
            PERFORM FROM onceward.history h
            WHERE h.hash = onceward.history_hash(v_letter.consumer, v_letter.message_id)
              AND h.print = onceward.history_print(v_letter.fingerprint);
            IF FOUND THEN
                DELETE FROM onceward.dead_letter l WHERE l.id = p_id;
                RETURN 'completed';
            END IF;
        ELSIF v_row.is_same AND v_row.status = 'completed' THEN
            DELETE FROM onceward.dead_letter l WHERE l.id = p_id;
            RETURN 'completed';
        ELSIF v_row.is_same AND v_row.status = 'processing' THEN
            RETURN 'held';
        END IF;
    END IF;

    SELECT r.ctid AS tid, r.status, r.fingerprint INTO v_row FROM onceward.inbox r
    WHERE r.consumer = v_letter.consumer AND r.message_id = p_message_id FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        PERFORM FROM onceward.inbox r WHERE r.consumer = v_letter.consumer AND r.message_id = p_message_id;
        IF FOUND THEN
            RETURN 'locked';
        END IF;
        SELECT h.print INTO v_print FROM onceward.history h
        WHERE h.hash = onceward.history_hash(v_letter.consumer, p_message_id) LIMIT 1;
        IF NOT FOUND THEN
            RETURN 'reset';
        ELSIF v_print IS DISTINCT FROM onceward.history_print(v_letter.fingerprint) THEN
            RETURN 'mismatch';
        END IF;
        DELETE FROM onceward.dead_letter l WHERE l.id = p_id;
        RETURN 'completed';
    END IF;
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
        UPDATE onceward.control k SET give_up = array_remove(k.give_up, p_message_id)
        WHERE k.consumer = v_letter.consumer AND p_message_id = ANY (k.give_up);
        RETURN 'reset';
    END IF;
    RETURN 'other';
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_redrive_as(bigint, text) FROM PUBLIC;
