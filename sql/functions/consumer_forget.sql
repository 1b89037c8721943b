-- For operators (`onceward forget`): removes the data of a consumer that no sidecar uses any more: its rows, its
-- history entries, its operator commands, its name; with p_letters its dead letters, too. One slice per call: at
-- most 10,000 rows, 1,000 letters, or the entries in 1,000 pages. Stored messages are dropped with their days.
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
    c_rows    constant integer := 10000;
    c_letters constant integer := 1000;
    c_pages   constant integer := 1000;
    c_history constant text := repeat(U&'\+10FFFF', 64); -- before a page of the history in p_after: behind all ids, of at most 255 bytes
    v_now     timestamptz := clock_timestamp();
    v_upto    text;
    v_number  smallint;
    v_page    bigint := 0;
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
    SELECT max(s.message_id) INTO v_upto
    FROM (SELECT r.message_id FROM onceward.inbox r WHERE r.consumer = p_consumer AND r.message_id > p_after COLLATE "C"
          ORDER BY r.message_id LIMIT c_rows) s;
    IF v_upto IS NOT NULL THEN
        WITH taken AS MATERIALIZED (
            SELECT r.ctid AS tid, r.token FROM onceward.inbox r
            WHERE r.consumer = p_consumer AND r.message_id > p_after COLLATE "C" AND r.message_id <= v_upto COLLATE "C"
              AND (r.status = 'processing' AND r.token_expires_at > v_now) IS NOT TRUE
            FOR UPDATE OF r SKIP LOCKED
        )
        DELETE FROM onceward.inbox r USING taken t WHERE r.ctid = t.tid AND r.token = t.token;
        GET DIAGNOSTICS n_rows = ROW_COUNT;
        next := v_upto;
        RETURN NEXT;
        RETURN;
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
    IF starts_with(p_after, c_history) THEN
        v_page := substr(p_after, 65);
    END IF;
    IF v_number IS NOT NULL AND v_page < pg_relation_size('onceward.history') / current_setting('block_size')::bigint THEN
        DELETE FROM onceward.history h
        WHERE h.ctid >= format('(%s,0)', v_page)::tid AND h.ctid < format('(%s,0)', v_page + c_pages)::tid AND h.consumer = v_number;
        GET DIAGNOSTICS n_rows = ROW_COUNT;
        next := c_history || v_page + c_pages;
        RETURN NEXT;
        RETURN;
    END IF;

    SELECT count(*) INTO n_rows FROM onceward.inbox r WHERE r.consumer = p_consumer;
    answer := CASE WHEN n_rows > 0 THEN 'held' ELSE 'done' END;
    IF n_rows = 0 THEN
        DELETE FROM onceward.control k WHERE k.consumer = p_consumer;
        DELETE FROM onceward.consumer c WHERE c.consumer = p_consumer;
    END IF;
    RETURN NEXT;
END
$$;

REVOKE ALL ON FUNCTION onceward.consumer_forget(text, boolean, text) FROM PUBLIC;
