-- The order of a key within a request with several messages. The token of a message that shares a request with the
-- previous message of its key names that one, and may be completed only with it or after it. Otherwise an application
-- that completes a message, and not the one before it, would put the key out of order.
--
-- Answers the places in the array of the tokens that name a message which is neither among the tokens nor completed.
--
-- A row that is gone counts as not completed: it existed when the token was issued, and a message that is retried
-- gets another token.
--
-- Planner settings: those of its callers. Locks: none, since a completed row stays completed. Rows: none changed.
-- Repeating it: only reads.
CREATE OR REPLACE FUNCTION onceward.tokens_apart(p_tokens text[]) RETURNS integer[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- @plan nested_loops
SET enable_memoize = off
AS $$
DECLARE
    v_keys   text[] := (SELECT array_agg(split_part(u.token, '.', 2)) FROM unnest(p_tokens) u (token));
    v_places integer[];
BEGIN
    SELECT array_agg(b.ord) INTO v_places
    FROM (SELECT u.ord::integer AS ord, onceward.token_read(u.token, u.ord::integer) AS key
          FROM unnest(p_tokens) WITH ORDINALITY u (token, ord)
          WHERE split_part(u.token, '.', 4) <> '' AND split_part(u.token, '.', 3) <> ALL (v_keys) OFFSET 0) b
    WHERE NOT EXISTS (SELECT FROM onceward.inbox r
                      WHERE r.consumer = b.key[1] AND r.message_id = onceward.token_before(b.key) AND r.status = 'completed');
    RETURN coalesce(v_places, '{}');
END
$$;

REVOKE ALL ON FUNCTION onceward.tokens_apart(text[]) FROM PUBLIC;
