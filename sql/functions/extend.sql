-- For applications: gives a long job more time. The window then ends in `seconds` from now, but never earlier than
-- before, and never later than max_window after the claim. Returns the new end. Call it in a transaction of its
-- own: it takes effect at the commit.
--
-- Raises like complete(token): OW001, OW002 (also for seconds that are NULL, not a number, zero or less), OW003.
--
-- Locks: the row, SKIP LOCKED: if the application itself has locked the row by complete(), its present end is
-- returned at once. Rows: one changed.
-- Repeating it: moves the end a little further, within the cap.
CREATE OR REPLACE FUNCTION onceward.extend(token text, seconds double precision) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_tidscan = on
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_key      text[] := onceward.token_read(token);
    v_secret   uuid := v_key[3];
    v_row      record;
    v_end      timestamptz;
    v_id       text;
    v_consumer text;
BEGIN
    IF seconds IS NULL OR seconds <= 0 OR seconds = 'NaN' THEN
        RAISE EXCEPTION USING ERRCODE = 'OW002',
            MESSAGE = 'the time to extend by must be more than zero seconds',
            DETAIL = format('It is %s.', coalesce(seconds::text, 'NULL')),
            HINT = 'Pass how many seconds the work still needs from now.';
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    SELECT r.ctid AS tid, r.token_expires_at, r.max_expires_at INTO v_row
    FROM onceward.inbox r
    WHERE r.consumer = v_key[1] AND r.message_id = v_key[2] AND r.token = v_secret AND r.status = 'processing'
    FOR UPDATE OF r SKIP LOCKED;
    IF FOUND THEN
        -- The cap comes first in the arithmetic too: 1e300 seconds are not an interval.
        v_end := greatest(v_row.token_expires_at,
                          least(v_row.max_expires_at, clock_timestamp() + least(seconds, 1e8) * interval '1 second'));
        UPDATE onceward.inbox r SET token_expires_at = v_end
        WHERE r.ctid = v_row.tid AND r.token = v_secret AND r.status = 'processing' AND v_end > r.token_expires_at;
        RETURN v_end;
    END IF;

    SELECT r.status, r.token_expires_at, r.last_error INTO v_row
    FROM onceward.inbox r WHERE r.consumer = v_key[1] AND r.message_id = v_key[2] AND r.token = v_secret;
    IF v_row.status = 'processing' THEN
        RETURN v_row.token_expires_at;
    END IF;
    v_id := quote_literal(onceward.error_shown(v_key[2]));
    v_consumer := quote_literal(onceward.error_shown(v_key[1]));
    IF v_row.status = 'completed' THEN
        RAISE EXCEPTION USING ERRCODE = 'OW003',
            MESSAGE = 'this transaction token was used already',
            DETAIL = format('Message %s of consumer %s is completed by it.', v_id, v_consumer),
            HINT = 'Roll back and answer with an error: a completed message stays completed. Call onceward.extend() before onceward.complete(), in a transaction of its own.';
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'OW001',
        MESSAGE = 'this transaction token is not valid any more',
        DETAIL = CASE WHEN v_row.status IS NULL
            THEN format('Message %s of consumer %s has been claimed again since, this token was never given out for it, or it was completed longer than compact_after ago.',
                        v_id, v_consumer)
            ELSE format('The sidecar gave up on this attempt at message %s of consumer %s: it is %s%s.',
                        v_id, v_consumer, v_row.status, coalesce(' (' || onceward.error_shown(v_row.last_error) || ')', '')) END,
        HINT = 'Stop the work and answer with an error: the message is delivered again. Extend well before the window is over.';
END
$$;

COMMENT ON FUNCTION onceward.extend(text, double precision) IS
    'In a transaction of its own: gives the work of this Onceward-Token so many seconds from now. Answers when its window ends.';

REVOKE ALL ON FUNCTION onceward.extend(text, double precision) FROM PUBLIC;
