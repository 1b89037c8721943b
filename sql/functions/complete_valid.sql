-- For applications, in the transaction of their work: marks the rows of the tokens that are still valid completed,
-- and returns these tokens, in the order of the array. The caller then does the work of these messages only, so
-- that one token that was taken over does not spoil the others. A message that follows another one of its key is
-- valid only if that one is completed, or is valid and stands before it in the array (see tokens_in_order).
--
-- Raises OW002 like complete_all. At REPEATABLE READ and SERIALIZABLE a row that was changed since the snapshot
-- raises 40001 here, too.
--
-- Locks, rows, statements, rights: see complete_all.sql.
-- Repeating it: returns nothing, since no token is valid any more.
CREATE OR REPLACE FUNCTION onceward.complete_valid(tokens text[]) RETURNS SETOF text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- @plan nested_loops
SET enable_memoize = off
SET enable_tidscan = on
AS $$
DECLARE
    v_n      integer := onceward.tokens_check(tokens);
    v_tids   tid[];
    v_valid  text[];
    v_behind boolean;
    v_places integer[];
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    SELECT array_agg(f.tid ORDER BY i.ord), array_agg(i.token ORDER BY i.ord), bool_or(i.before IS NOT NULL)
    INTO v_tids, v_valid, v_behind
    FROM (SELECT t.* FROM onceward.tokens_read(tokens) t OFFSET 0) i
    CROSS JOIN LATERAL (
        SELECT r.ctid AS tid FROM onceward.inbox r
        WHERE r.consumer = i.consumer AND r.message_id = i.message_id AND uuid_send(r.token) = i.secret AND r.status = 'processing'
        LIMIT 1 FOR UPDATE OF r) f;
    IF v_behind THEN
        v_places := onceward.tokens_in_order(v_valid);
        IF cardinality(v_places) < cardinality(v_valid) THEN
            SELECT array_agg(u.tid ORDER BY u.ord), array_agg(u.token ORDER BY u.ord) INTO v_tids, v_valid
            FROM unnest(v_tids, v_valid) WITH ORDINALITY u (tid, token, ord)
            WHERE u.ord = ANY (v_places);
        END IF;
    END IF;

    UPDATE onceward.inbox r SET status = 'completed', completed_at = clock_timestamp()
    WHERE r.ctid = ANY (v_tids) AND r.status = 'processing';
    RETURN QUERY SELECT v.token FROM unnest(v_valid) v (token);
END
$$;

COMMENT ON FUNCTION onceward.complete_valid(text[]) IS
    'In the transaction of the work, and first in it: marks the messages of those of these tokens completed that are still valid, and answers them. Do the work of these only.';

REVOKE ALL ON FUNCTION onceward.complete_valid(text[]) FROM PUBLIC;
