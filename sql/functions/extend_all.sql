-- For applications: gives the long job of a whole request more time. Each token's window then ends in `seconds`
-- from now, but never earlier than before, and never later than max_window after its claim. Returns the earliest
-- new end; NULL for an empty array. Call it in a transaction of its own: it takes effect at the commit.
--
-- Raises like complete_all, and OW002 for seconds that are NULL, not a number, zero or less. Then no window is
-- extended.
--
-- Locks: the rows, SKIP LOCKED: a row that the application itself has locked by completing it keeps its end. Rows:
-- one changed per token.
-- Repeating it: moves the ends a little further, within the caps.
CREATE OR REPLACE FUNCTION onceward.extend_all(tokens text[], seconds double precision) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- @plan nested_loops
SET enable_memoize = off
SET enable_tidscan = on
AS $$
DECLARE
    v_n    integer := onceward.tokens_check(tokens);
    v_to   timestamptz;
    v_tids tid[];
    v_seen bigint;
    v_end  timestamptz;
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

    -- The cap comes first in the arithmetic: 1e300 seconds are not an interval.
    v_to := clock_timestamp() + least(seconds, 1e8) * interval '1 second';
    SELECT array_agg(f.tid) INTO v_tids
    FROM (SELECT t.consumer, t.message_id, t.secret FROM onceward.tokens_read(tokens) t OFFSET 0) i
    CROSS JOIN LATERAL (
        SELECT r.ctid AS tid FROM onceward.inbox r
        WHERE r.consumer = i.consumer AND r.message_id = i.message_id AND uuid_send(r.token) = i.secret AND r.status = 'processing'
        LIMIT 1 FOR UPDATE OF r SKIP LOCKED) f;
    UPDATE onceward.inbox r SET token_expires_at = least(r.max_expires_at, v_to)
    WHERE r.ctid = ANY (v_tids) AND r.status = 'processing' AND least(r.max_expires_at, v_to) > r.token_expires_at;

    SELECT count(*), min(f.token_expires_at) INTO v_seen, v_end
    FROM (SELECT t.consumer, t.message_id, t.secret FROM onceward.tokens_read(tokens) t OFFSET 0) i
    CROSS JOIN LATERAL (
        SELECT r.token_expires_at FROM onceward.inbox r
        WHERE r.consumer = i.consumer AND r.message_id = i.message_id AND uuid_send(r.token) = i.secret AND r.status = 'processing' LIMIT 1) f;
    IF v_seen < v_n THEN
        PERFORM onceward.tokens_refuse(tokens,
            'Stop the work of these messages, and extend the others without them. Extend well before the window is over.');
    END IF;
    RETURN v_end;
END
$$;

COMMENT ON FUNCTION onceward.extend_all(text[], double precision) IS
    'In a transaction of its own: gives the work of all these tokens so many seconds from now. Answers when the first window ends.';

REVOKE ALL ON FUNCTION onceward.extend_all(text[], double precision) FROM PUBLIC;
