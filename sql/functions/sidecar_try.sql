-- Whether rows and letters can be written, for a sidecar that has stopped because they could not: claims two rows, settles one, buries
-- the other, and takes it all back. It answers 1, or raises what the real statements would.
--
-- Locks: none that last. Rows: none. Repeating it: it leaves nothing but dead tuples.
CREATE OR REPLACE FUNCTION onceward.sidecar_try(p_consumer text, OUT yes bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
    v_id     constant text := 'onceward.sidecar_try ' || gen_random_uuid();
    v_ids    constant text[] := ARRAY[v_id || ' 1', v_id || ' 2'];
    v_tokens constant uuid[] := ARRAY[gen_random_uuid(), gen_random_uuid()];
    v_prints constant bytea[] := ARRAY['\x00', '\x00']::bytea[];
    v_said   text;
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    BEGIN
        SELECT string_agg(c.answer, ' ') INTO v_said
        FROM onceward.sidecar_claim(p_consumer, false, 60000, 0, 1, 0, 'onceward.sidecar_try', false, v_ids, v_tokens, v_prints,
                                    ARRAY[NULL, NULL]::text[], ARRAY[0, 0]::bigint[], 60000) c;
        SELECT v_said || ' ' || string_agg(s.answer, ' ') INTO v_said
        FROM onceward.sidecar_settle(p_consumer, v_ids[1:1], v_tokens[1:1], ARRAY[200], ARRAY[NULL]::text[]) s;
        SELECT v_said || ' ' || string_agg(b.answer, ' ') INTO v_said
        FROM onceward.sidecar_bury(p_consumer, '', '', 1, 0, v_ids[2:2], v_tokens[2:2], v_prints[2:2], ARRAY[NULL]::text[],
                                   ARRAY[NULL]::integer[], ARRAY['tried']::text[], ARRAY['attempts']::text[], ARRAY[false],
                                   ARRAY[false], ARRAY[false], ARRAY[1], ARRAY[NULL]::bytea[], ARRAY['']::bytea[],
                                   ARRAY[NULL]::text[], ARRAY[NULL]::text[], ARRAY[NULL]::text[], ARRAY['']::text[],
                                   ARRAY['']::text[], ARRAY[0]::bigint[]) b;
        RAISE EXCEPTION USING ERRCODE = 'OW000'; -- nobody outside sees it
    EXCEPTION WHEN SQLSTATE 'OW000' THEN
        NULL;
    END;
    IF v_said NOT LIKE '%claimed completed buried' THEN
        RAISE EXCEPTION 'sidecar_try was answered %', v_said;
    END IF;
    yes := 1;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_try(text) FROM PUBLIC;
