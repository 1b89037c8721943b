-- For operators (`onceward forget`): removes the data of a consumer that no sidecar uses any more: its rows, its
-- history entries, its operator commands, its name; with p_letters its dead letters, too. One slice per call: the
-- rows in 1,000 pages, 1,000 letters, or the entries in 1,000 pages. So it reads both tables once, whatever share of
-- them belongs to the consumer. Stored messages are dropped with their days.
--
-- Answers: more (call again with the value of `next`) | in_use (a replica that uses it was seen within 10 minutes:
-- next names it; nothing was removed) | held (the rest is removed, but n_rows have a valid token, or are locked:
-- its name stays) | done.
--
-- A message that still arrives is new: the application processes it again, even if it was completed.
--
-- Locks: the rows and letters that it deletes, SKIP LOCKED: it never waits. Repeating it: deleted rows stay
-- deleted.
CREATE OR REPLACE FUNCTION onceward.consumer_forget(p_consumer text, p_letters boolean, p_after text DEFAULT '')
RETURNS TABLE (answer text, n_rows bigint, n_letters bigint, next text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    c_letters constant integer := 1000;
    c_pages   constant integer := 1000;
    v_now     timestamptz := clock_timestamp();
    v_part    constant text := split_part(p_after, ' ', 1); -- of the walk: rows, then history
    v_held    bigint := coalesce(nullif(split_part(p_after, ' ', 3), '')::bigint, 0); -- rows that the walk has left
    v_number  smallint;
    v_page    bigint;
BEGIN
    n_rows := 0;
    n_letters := 0;
    SELECT r.instance INTO next
    FROM onceward.replica r, json_array_elements(CASE json_typeof(r.queues) WHEN 'array' THEN r.queues ELSE '[]' END) q
    WHERE r.seen_at > v_now - interval '10 min' AND json_typeof(q.value) = 'object' AND q.value ->> 'consumer' = p_consumer
    LIMIT 1;
    IF FOUND THEN
        answer := 'in_use';
        RETURN NEXT;
        RETURN;
    END IF;

    answer := 'more';
    IF v_part IN ('', 'rows') THEN
        v_page := coalesce(nullif(split_part(p_after, ' ', 2), '')::bigint, 0);
        IF v_page < pg_relation_size('onceward.inbox') / current_setting('block_size')::bigint THEN
            -- The expression keeps the planner from walking through the index of the key.
            WITH taken AS MATERIALIZED (
                SELECT r.ctid AS tid, r.token FROM onceward.inbox r
                WHERE r.ctid >= format('(%s,0)', v_page)::tid AND r.ctid < format('(%s,0)', least(v_page + c_pages, 4294967295))::tid
                  AND r.consumer || '' = p_consumer AND (r.status = 'processing' AND r.token_expires_at > v_now) IS NOT TRUE
                FOR UPDATE OF r SKIP LOCKED
            )
            DELETE FROM onceward.inbox r USING taken t WHERE r.ctid = t.tid AND r.token = t.token;
            GET DIAGNOSTICS n_rows = ROW_COUNT;
            SELECT v_held + count(*) INTO v_held FROM onceward.inbox r
            WHERE r.ctid >= format('(%s,0)', v_page)::tid AND r.ctid < format('(%s,0)', least(v_page + c_pages, 4294967295))::tid
              AND r.consumer || '' = p_consumer;
            next := format('rows %s %s', v_page + c_pages, v_held);
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;

    next := p_after;
    IF p_letters THEN
        DELETE FROM onceward.dead_letter l
        WHERE l.id IN (SELECT d.id FROM onceward.dead_letter d WHERE d.consumer = p_consumer ORDER BY d.id LIMIT c_letters
                       FOR UPDATE OF d SKIP LOCKED);
        GET DIAGNOSTICS n_letters = ROW_COUNT;
        IF n_letters > 0 THEN
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;

    SELECT c.number INTO v_number FROM onceward.consumer c WHERE c.consumer = p_consumer;
    v_page := CASE v_part WHEN 'history' THEN split_part(p_after, ' ', 2)::bigint ELSE 0 END;
    IF v_number IS NOT NULL AND v_page < pg_relation_size('onceward.history') / current_setting('block_size')::bigint THEN
        DELETE FROM onceward.history h
        WHERE h.ctid >= format('(%s,0)', v_page)::tid AND h.ctid < format('(%s,0)', v_page + c_pages)::tid AND h.consumer = v_number;
        GET DIAGNOSTICS n_rows = ROW_COUNT;
        next := format('history %s %s', v_page + c_pages, v_held);
        RETURN NEXT;
        RETURN;
    END IF;

    n_rows := v_held;
    answer := CASE WHEN n_rows > 0 THEN 'held' ELSE 'done' END;
    IF n_rows = 0 THEN
        DELETE FROM onceward.control k WHERE k.consumer = p_consumer;
        DELETE FROM onceward.consumer c WHERE c.consumer = p_consumer;
    END IF;
    RETURN NEXT;
END
$$;

REVOKE ALL ON FUNCTION onceward.consumer_forget(text, boolean, text) FROM PUBLIC;
