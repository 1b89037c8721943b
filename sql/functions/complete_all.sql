-- For applications, in the transaction of their work: marks the rows of all these tokens completed and returns
-- their number. Raises like complete does for one token; then no row is completed:
--
--   OW001  some are no longer valid: taken over, given up, used or unknown; or they follow a message of their key
--          that is neither completed nor among these tokens (see tokens_apart). DETAIL names ten of them
--   OW002  NULL, more than 10,000, one that is no token (DETAIL names its place), or one that occurs twice
--   OW003  all of them were used already
--
-- A single UPDATE changes all rows in one order, and waits for rows that other transactions have locked. It also
-- changes a row that extend changed meanwhile. The id is compared by BETWEEN, because with = the generic plan may walk
-- through the whole primary key. If fewer rows than tokens changed, tokens_check finds a token that occurs twice, and
-- tokens_refuse finds every other reason. The time of completion distinguishes the rows of this call from others.
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
AS $$
DECLARE
    v_n    integer := CASE WHEN cardinality(tokens) <= 10000 THEN cardinality(tokens) ELSE onceward.tokens_check(tokens) END;
    v_now  timestamptz := clock_timestamp();
    v_done integer;
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    UPDATE onceward.inbox r SET status = 'completed', completed_at = v_now
    FROM (SELECT t.consumer, t.message_id, t.secret FROM onceward.tokens_read(tokens) t
          WHERE t.before IS NULL OR t.ord <> ALL ((SELECT onceward.tokens_apart(tokens))::integer[]) OFFSET 0) i
    WHERE r.message_id BETWEEN i.message_id AND i.message_id AND r.consumer = i.consumer
      AND uuid_send(r.token) = i.secret AND r.status = 'processing';
    GET DIAGNOSTICS v_done = ROW_COUNT;
    IF v_done < v_n THEN
        PERFORM onceward.tokens_check(tokens);
        PERFORM onceward.tokens_refuse(tokens,
            'Roll back and answer with an error: each message is delivered again unless it is done. Or call onceward.complete_valid() and do the work of the tokens that it answers.',
            v_now);
    END IF;
    RETURN v_n;
END
$$;

COMMENT ON FUNCTION onceward.complete_all(text[]) IS
    'In the transaction of the work, and first in it: marks the messages of all these tokens completed, or raises. OW001, OW002, OW003: let it abort the transaction.';

REVOKE ALL ON FUNCTION onceward.complete_all(text[]) FROM PUBLIC;
