-- For applications, in the transaction of their work: marks the rows of all these tokens completed and returns
-- their number. Raises like complete does for one token; then no row is completed:
--
--   OW001  some are no longer valid: taken over, given up, used or unknown; or they follow a message of their key
--          that is neither completed nor among these tokens (see tokens_apart). DETAIL names ten of them
--   OW002  NULL, more than 10,000, one that is no token (DETAIL names its place), or one that occurs twice
--   OW003  all of them were used already
--
-- Two statements, each with a snapshot of its own under READ COMMITTED: lock the rows in one order, then change
-- them. One statement for both would miss a row that extend changed while the statement waited for its lock. UPDATE
-- … FROM unnest waits correctly, but its generic plan may walk through the whole primary key.
--
-- Locks: the rows, in the order of the tokens' text, until the caller's transaction ends. The text before the
-- second dot is the row's key, and no key contains a dot, so two tokens of two rows have the order of these rows in
-- every call: one call per transaction never deadlocks. It waits for a transaction that has used one of the tokens
-- and is still open. At REPEATABLE READ and SERIALIZABLE a row that was changed since the snapshot raises 40001.
-- Rows: one changed per token.
-- Repeating it: raises OW003.
--
-- Rights and settings: see complete_result.sql.
CREATE OR REPLACE FUNCTION onceward.complete_all(tokens text[]) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- @plan nested_loops
SET enable_memoize = off
SET enable_tidscan = on
AS $$
DECLARE
    v_n      integer := onceward.tokens_check(tokens);
    v_tids   tid[];
    v_behind boolean;
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    SELECT array_agg(f.tid), bool_or(i.before IS NOT NULL) INTO v_tids, v_behind
    FROM (SELECT t.consumer, t.message_id, t.secret, t.before FROM onceward.tokens_read(tokens) t OFFSET 0) i
    CROSS JOIN LATERAL (
        SELECT r.ctid AS tid FROM onceward.inbox r
        WHERE r.consumer = i.consumer AND r.message_id = i.message_id AND uuid_send(r.token) = i.secret AND r.status = 'processing'
        LIMIT 1 FOR UPDATE OF r) f;
    IF coalesce(cardinality(v_tids), 0) < v_n OR (v_behind AND cardinality(onceward.tokens_apart(tokens)) > 0) THEN
        PERFORM onceward.tokens_refuse(tokens,
            'Roll back and answer with an error: each message is delivered again unless it is done. Or call onceward.complete_valid() and do the work of the tokens that it answers.');
    END IF;

    UPDATE onceward.inbox r SET status = 'completed', completed_at = clock_timestamp()
    WHERE r.ctid = ANY (v_tids) AND r.status = 'processing';
    RETURN v_n;
END
$$;

COMMENT ON FUNCTION onceward.complete_all(text[]) IS
    'In the transaction of the work, and first in it: marks the messages of all these tokens completed, or raises. OW001, OW002, OW003: let it abort the transaction.';

REVOKE ALL ON FUNCTION onceward.complete_all(text[]) FROM PUBLIC;
