-- Checks that rows and letters can be written, for a sidecar that stopped because they could not: claims two rows,
-- completes one, buries the other, and rolls everything back. It returns 1, or raises the error of the real
-- statements.
--
-- Locks: none that last. Rows: none. Repeating it: it leaves only dead tuples.
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
        FROM onceward.sidecar_claim_many(false, 'onceward.sidecar_try', 1, false, NULL, 60000, ARRAY[p_consumer], ARRAY[interval '60 s'],
                                         ARRAY[interval '60 s'], ARRAY[1], ARRAY[0], ARRAY[1, 1], v_ids, v_tokens, v_prints, NULL,
                                         ARRAY[0, 0]::bigint[], NULL) c;
        SELECT v_said || ' ' || string_agg(s.answer, ' ') INTO v_said
        FROM onceward.sidecar_settle_many(ARRAY[p_consumer], ARRAY[1], v_ids[1:1], v_tokens[1:1], ARRAY[200], NULL) s;
        SELECT v_said || ' ' || string_agg(b.answer, ' ') INTO v_said
        FROM onceward.sidecar_bury_many('onceward.sidecar_try', 1, false, NULL, 0, ARRAY[p_consumer], ARRAY[''], ARRAY[''], ARRAY[false],
                                        ARRAY[interval '60 s'], ARRAY[interval '60 s'], ARRAY[1], ARRAY[1], v_ids[2:2], v_tokens[2:2],
                                        v_prints[2:2], NULL, NULL, ARRAY['tried'], ARRAY['attempts'], NULL, NULL, NULL, ARRAY[1], NULL,
                                        ARRAY['']::bytea[], NULL, NULL, NULL, ARRAY[''], ARRAY[''], ARRAY[0]::bigint[], NULL) b;
        RAISE EXCEPTION USING ERRCODE = 'OW000'; -- caught below
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
