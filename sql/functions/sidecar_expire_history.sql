-- Walks a piece of the history and deletes the entries that have expired: those whose whole day is older than their
-- consumer's retention, or than the longest one if the consumer is gone. They also expire after compaction was
-- switched off.
--
-- This walk is separate from that of sidecar_keep_house: an inbox that grows quickly does not delay it, and a large
-- history does not delay the purge, the sweep and the moves.
--
-- The keeper of the first consumer that has a keeper now runs this walk once a day, for all consumers. For all other
-- callers next_page is -1, and nothing was done; also when the day's walk has ended, and when the clocks
-- differ by more than a minute (see sidecar_keep_house). A lease that ends later than any possible one does not
-- count, so a consumer that was abandoned while the clock was ahead does not keep the others from the walk.
--
-- p_retention_ms: the caller's, which counts for its own consumer if it is longer than the one in the consumer's row.
-- p_from_page: next_page of the previous call; below 0: the page noted last in the row, so that the walk survives
-- restarts. It stops as soon as p_budget_us are over, but processes at least one page. next_page is 0 after the end,
-- or n_pages while the consumer's row is locked, so that the end could not be recorded.
--
-- An asynchronous commit is enough: an entry that a crash restores is deleted on the next day.
--
-- Locks: the entries; the consumer's row (every 1,024 pages and at the end), SKIP LOCKED. Rows: one.
-- Repeating it: deleted entries stay deleted.
CREATE OR REPLACE FUNCTION onceward.sidecar_expire_history(
    p_consumer text, p_instance text, p_retention_ms bigint, p_from_page bigint, p_budget_us bigint, p_clock_ms bigint,
    OUT expired bigint, OUT next_page bigint, OUT n_pages bigint, OUT took_us bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- @plan nested_loops
SET enable_tidscan = on
AS $$
DECLARE
    c_lease constant interval := '60 s'; -- as in sidecar_keep_house
    c_apart constant bigint := 60000;
    c_noted constant bigint := 1024;     -- pages between two notes of the page
    v_now   constant timestamptz := clock_timestamp();
    v_end   constant timestamptz := v_now + p_budget_us * interval '1 us';
    v_ahead constant bigint := coalesce(floor(1000 * extract(epoch FROM v_now))::bigint - p_clock_ms, 0);
    v_both  constant timestamptz := v_now - greatest(v_ahead, 0) * interval '1 ms'; -- the earlier of the two clocks
    v_today constant smallint := (v_both AT TIME ZONE 'UTC')::date - date '2000-01-01';
    v_mine  record;
    v_page  bigint;
    v_least smallint[]; -- by the consumer's number: the first day that is kept; NULL: the consumer is gone
    v_gone  smallint;   -- the same for consumers that are gone
    v_tids  tid[];
    v_n     bigint;
BEGIN
    expired := 0;
    next_page := -1;
    n_pages := pg_relation_size('onceward.history') / current_setting('block_size')::bigint;
    took_us := 0;
    PERFORM set_config('lock_timeout', '1s', true), set_config('synchronous_commit', 'off', true);

    SELECT c.history_page INTO v_mine FROM onceward.consumer c
    WHERE c.consumer = p_consumer AND c.keeper = p_instance AND c.kept_until BETWEEN v_now AND v_now + c_lease
      AND c.history_day IS DISTINCT FROM v_today
      AND p_consumer = (SELECT min(k.consumer) FROM onceward.consumer k WHERE k.kept_until BETWEEN v_now AND v_now + c_lease);
    IF NOT FOUND OR abs(v_ahead) > c_apart THEN
        RETURN;
    END IF;
    -- A noted page behind the end is that of a longer table: this walk has read nothing of the present one.
    v_page := CASE WHEN p_from_page >= 0 THEN p_from_page WHEN v_mine.history_page < n_pages THEN v_mine.history_page ELSE 0 END;

    SELECT array_agg(CASE WHEN c.known THEN coalesce(c.least, -32768) END ORDER BY n.n), coalesce(min(c.least), -32768)
    INTO v_least, v_gone
    FROM generate_series(1, (SELECT max(c.number) FROM onceward.consumer c)) n (n)
    LEFT JOIN LATERAL (
        SELECT true AS known,
               ((v_both - greatest(c.retention_ms, CASE c.consumer WHEN p_consumer THEN p_retention_ms END) * interval '1 ms')
                AT TIME ZONE 'UTC')::date - date '2000-01-01' AS least
        FROM onceward.consumer c WHERE c.number = n.n LIMIT 1) c ON true;
    WHILE v_page < n_pages LOOP
        SELECT array_agg(h.ctid) INTO v_tids FROM onceward.history h
        WHERE h.ctid >= format('(%s,0)', v_page)::tid AND h.ctid < format('(%s,0)', least(v_page + 1, 4294967295))::tid
          AND h.day < coalesce(v_least[h.consumer], v_gone);
        IF v_tids IS NOT NULL THEN
            DELETE FROM onceward.history h WHERE h.ctid = ANY (v_tids) AND h.day < coalesce(v_least[h.consumer], v_gone);
            GET DIAGNOSTICS v_n = ROW_COUNT;
            expired := expired + v_n;
        END IF;
        v_page := v_page + 1;
        EXIT WHEN clock_timestamp() >= v_end;
    END LOOP;

    next_page := CASE WHEN v_page < n_pages THEN v_page ELSE 0 END;
    IF next_page = 0 OR v_page / c_noted > v_mine.history_page / c_noted THEN
        PERFORM FROM onceward.consumer c WHERE c.consumer = p_consumer FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            next_page := v_page;
        ELSE
            UPDATE onceward.consumer c
            SET history_page = next_page, history_day = CASE WHEN next_page = 0 THEN v_today ELSE c.history_day END
            WHERE c.consumer = p_consumer;
        END IF;
    END IF;
    took_us := floor(1000000 * extract(epoch FROM clock_timestamp() - v_now))::bigint;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_expire_history(text, text, bigint, bigint, bigint, bigint) FROM PUBLIC;
