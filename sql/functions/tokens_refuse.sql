-- Raises the reason why not all of these tokens could be used: OW003 if each was used already, else OW001. The
-- DETAIL names the first ten that are used, not valid, or behind another message that is not completed, and nothing
-- about rows whose token the caller does not have.
--
-- p_now: the completion time of the rows that the caller itself has completed with these tokens; NULL: none. These
-- tokens count as valid. If one of them is passed in two spellings, the second one counts as used.
--
-- It has the planner settings of its callers: otherwise its plan may be a sequential scan, which makes unrelated
-- serializable transactions fail.
--
-- Locks: none. Rows: none changed. Repeating it: raises again.
CREATE OR REPLACE FUNCTION onceward.tokens_refuse(p_tokens text[], p_hint text, p_now timestamptz DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- @plan nested_loops
SET enable_memoize = off
AS $$
DECLARE
    c_named constant integer := 10;
    v_used  bigint;
    v_bad   bigint;
    v_lost  bigint;
    v_names text;
    v_apart integer[] := onceward.tokens_apart(p_tokens);
BEGIN
    SELECT count(*) FILTER (WHERE b.used), count(*), count(*) FILTER (WHERE b.lost),
           string_agg(b.name, '; ' ORDER BY b.ord) FILTER (WHERE b.place <= c_named)
    INTO v_used, v_bad, v_lost, v_names
    FROM (
        SELECT t.ord, coalesce(r.status = 'completed', false) AS used, r.status IS NULL AS lost, row_number() OVER (ORDER BY t.ord) AS place,
               format('%s of consumer %s is %s', quote_literal(onceward.error_shown(t.message_id)), quote_literal(onceward.error_shown(t.consumer)),
                      CASE WHEN r.status IS NULL THEN 'not valid'
                           WHEN r.status = 'completed' THEN 'used'
                           WHEN r.status = 'processing' THEN
                               format('behind %s in its key, which is neither completed nor among these tokens',
                                      quote_literal(onceward.error_shown(onceward.token_before(ARRAY[t.consumer, t.message_id, '', t.before]))))
                           ELSE format('given up: %s%s', r.status, coalesce(' (' || onceward.error_shown(r.last_error) || ')', ''))
                           END) AS name
        FROM (SELECT i.*, row_number() OVER (PARTITION BY i.consumer, i.message_id, i.secret ORDER BY i.token COLLATE "C") AS nth
              FROM onceward.tokens_read(p_tokens) i OFFSET 0) t
        LEFT JOIN LATERAL (
            SELECT CASE WHEN r.status = 'completed' AND r.completed_at = p_now AND t.nth = 1 THEN 'processing' ELSE r.status END AS status,
                   r.last_error
            FROM onceward.inbox r
            WHERE r.consumer = t.consumer AND r.message_id = t.message_id AND uuid_send(r.token) = t.secret LIMIT 1) r ON true
        WHERE r.status IS DISTINCT FROM 'processing' OR t.ord = ANY (v_apart)) b;
    IF v_used = cardinality(p_tokens) THEN
        RAISE EXCEPTION USING ERRCODE = 'OW003',
            MESSAGE = 'these transaction tokens were used already',
            DETAIL = format('Each of the %s messages is completed by its token.', v_used),
            HINT = 'Roll back and answer with an error: completed messages stay completed. This happens when code completes its tokens twice, or a request is repeated.';
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'OW001',
        MESSAGE = 'not all of these transaction tokens are valid',
        -- All tokens are valid by now if the previous message of a key was completed while the caller ran.
        DETAIL = CASE WHEN v_bad = 0 THEN 'The message before one of them in its key was completed only during this call.'
                      ELSE format('%s of %s: %s%s.%s', v_bad, cardinality(p_tokens), v_names,
                          CASE WHEN v_bad > c_named THEN format('; and %s more', v_bad - c_named) ELSE '' END,
                          CASE WHEN v_lost > 0 THEN
                              ' Tokens that are not valid were replaced by a later claim or never given out, or their messages were completed longer than compact_after ago.'
                          ELSE '' END) END,
        HINT = p_hint;
END
$$;

REVOKE ALL ON FUNCTION onceward.tokens_refuse(text[], text, timestamp with time zone) FROM PUBLIC;
