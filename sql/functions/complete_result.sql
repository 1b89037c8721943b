-- For applications, in the transaction of their work: marks the token's row completed and returns 'completed'. A
-- result that is not NULL is kept with the row.
--
--   OW001  the token is not the row's any more: taken over, given up, unknown; or it names a message before it in its
--          key (see tokens_apart) that is not completed, in this transaction or earlier
--   OW002  it is not a token, or the result is longer than 64 KiB
--   OW003  it was used already, by a transaction that committed (or by an earlier statement of this one)
--
-- The condition of the UPDATE is the fence: under READ COMMITTED, PostgreSQL checks it again on the row's newest
-- version after a wait. A token past its window still completes.
--
-- Locks: the row, until the caller's transaction ends. It waits for a transaction that has used the same token and
-- is still open, and for nothing else that lasts. Rows: one changed.
-- Repeating it: raises OW003, so that a transaction that runs twice has no effect the second time.
--
-- Any role with EXECUTE may call it. Hence SECURITY DEFINER with a pinned search_path, no information about rows
-- whose token the caller does not have, and no EXCEPTION block (it would cost a subtransaction). Only index scans:
-- a sequential scan would make unrelated serializable transactions fail.
CREATE OR REPLACE FUNCTION onceward.complete(token text, result text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_key      text[] := onceward.token_read(token);
    v_secret   uuid := v_key[3];
    v_status   text;
    v_error    text;
    v_id       text;
    v_consumer text;
BEGIN
    IF octet_length(result) > 65536 THEN
        RAISE EXCEPTION USING ERRCODE = 'OW002',
            MESSAGE = 'the result is too long',
            DETAIL = format('It has %s bytes; at most 65536 are kept with a completion.', octet_length(result)),
            HINT = 'Keep the outcome in a table of your own, and pass a reference to it, or nothing.';
    END IF;
    -- The completion is a fact once the caller commits: a crash after that must not lose it.
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    UPDATE onceward.inbox r
    SET status = 'completed', completed_at = clock_timestamp(), result = complete.result
    WHERE r.consumer = v_key[1] AND r.message_id = v_key[2] AND r.token = v_secret AND r.status = 'processing'
      AND (v_key[4] IS NULL
           OR EXISTS (SELECT FROM onceward.inbox p WHERE p.consumer = v_key[1] AND p.message_id = onceward.token_before(v_key) AND p.status = 'completed'));
    IF FOUND THEN
        RETURN 'completed';
    END IF;

    SELECT r.status, r.last_error INTO v_status, v_error
    FROM onceward.inbox r WHERE r.consumer = v_key[1] AND r.message_id = v_key[2] AND r.token = v_secret;
    v_id := quote_literal(onceward.error_shown(v_key[2]));
    v_consumer := quote_literal(onceward.error_shown(v_key[1]));
    IF v_status = 'completed' THEN
        RAISE EXCEPTION USING ERRCODE = 'OW003',
            MESSAGE = 'this transaction token was used already',
            DETAIL = format('Message %s of consumer %s is completed by it.', v_id, v_consumer),
            HINT = 'Roll back and answer with an error: a completed message stays completed. This happens when code calls onceward.complete() twice, or a request is repeated.';
    END IF;
    IF v_status = 'processing' AND v_key[4] IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'OW001',
            MESSAGE = 'this transaction token is not valid yet',
            DETAIL = format('Message %s of consumer %s comes behind message %s in its key, which is not completed.',
                            v_id, v_consumer, quote_literal(onceward.error_shown(onceward.token_before(v_key)))),
            HINT = 'Complete the messages of a key in the order of the request. After one that failed, leave out the others of its key, and name them with status 424.';
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'OW001',
        MESSAGE = 'this transaction token is not valid any more',
        DETAIL = CASE WHEN v_status IS NULL
            THEN format('Message %s of consumer %s has been claimed again since, this token was never given out for it, or it was completed longer than compact_after ago.',
                        v_id, v_consumer)
            ELSE format('The sidecar gave up on this attempt at message %s of consumer %s: it is %s%s.',
                        v_id, v_consumer, v_status, coalesce(' (' || onceward.error_shown(v_error) || ')', '')) END,
        HINT = 'Roll back and answer with an error: the message is delivered again. If this happens often, the work takes longer than token_window: raise it, or call onceward.extend().';
END
$$;

COMMENT ON FUNCTION onceward.complete(text, text) IS
    'As complete(token), and keeps the outcome (at most 64 KiB) with the message.';

REVOKE ALL ON FUNCTION onceward.complete(text, text) FROM PUBLIC;
