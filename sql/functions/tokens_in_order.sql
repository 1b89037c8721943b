-- The longest part of each key that may be completed. Answers the places in the array of the tokens that name no
-- message before them, or a completed one, or one whose token stands before them in the array and is answered, too.
-- See tokens_apart.
--
-- p_tokens: valid ones. Most name the one just before them, so that is looked at first.
--
-- Planner settings: those of its callers. Locks: none, since a completed row stays completed. Rows: none changed.
-- Repeating it: only reads.
CREATE OR REPLACE FUNCTION onceward.tokens_in_order(p_tokens text[]) RETURNS integer[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- @plan nested_loops
SET enable_memoize = off
AS $$
DECLARE
    v_places integer[] := '{}';
    v_keys   text[] := '{}';
    v_last   text;
    v_parts  text[];
    v_key    text[];
BEGIN
    FOR place IN 1 .. coalesce(cardinality(p_tokens), 0) LOOP
        v_parts := string_to_array(p_tokens[place], '.');
        IF cardinality(v_parts) = 4 AND v_parts[3] IS DISTINCT FROM v_last AND v_parts[3] <> ALL (v_keys) THEN
            v_key := onceward.token_read(p_tokens[place], place);
            CONTINUE WHEN NOT EXISTS (
                SELECT FROM onceward.inbox r
                WHERE r.consumer = v_key[1] AND r.message_id = onceward.token_before(v_key) AND r.status = 'completed');
        END IF;
        v_last := v_parts[2];
        v_keys := v_keys || v_last;
        v_places := v_places || place;
    END LOOP;
    RETURN v_places;
END
$$;

REVOKE ALL ON FUNCTION onceward.tokens_in_order(text[]) FROM PUBLIC;
