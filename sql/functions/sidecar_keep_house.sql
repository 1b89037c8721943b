-- Walks a piece of the table:
--   deletes rows past the retention: completed ones, counted from their completion, and dead ones without a letter,
--   counted from their death;
--   ends tokens that expired longer than p_late_ms ago without an answer and without a redelivery: failed, due at
--   once. No other function would find them, since the message may not arrive again;
--   replaces completed rows by entries of onceward.history (history_move) p_compact_ms after their completion. NULL:
--   never; less than an hour counts as an hour, on which the claims' look at the clock relies. The consumer's row
--   records, ahead of the moves, the time up to which rows may have been moved: it tells an export whether rows of
--   its period are missing;
--   counts unfinished, the failed and waiting rows, and orphans, those of them that have been due for longer than
--   p_late_ms.
-- The walk stops as soon as p_budget_us are over, and answers the page to continue with; 0 after the end of the table.
-- If another sidecar is the keeper, next_page is -1, the call did no work, and the next one is due after away_ms.
-- away_ms is -1 if the consumer is not registered: consumer_forget has removed its record. The caller is to register.
--
-- A deletion needs two clocks: a row must be old by the database's clock and by p_clock_ms, the caller's in
-- milliseconds since 1970. If they differ by more than a minute the walk does not run, and ahead_ms is the lead of the
-- database's clock (below 0: behind); otherwise ahead_ms is 0. NULL: only the database's clock counts.
--
-- history_due: this consumer's keeper deletes expired history entries for all consumers, and has not finished today:
-- see sidecar_expire_history, a separate walk.
--
-- The effective retention is the longest one that any replica, keeper or not, has reported within the hour: while
-- replicas with different configurations run, nothing is deleted early. A longer one counts at once. An hour at
-- whose end no sidecar kept house does not count, since no replica could report during an outage of the database.
--
-- There is one keeper per consumer: a lease in the consumer's row, written about twice a minute. The next keeper
-- continues with the page noted last (p_from_page counts only for the keeper; -1: unknown). And there is one call at
-- a time in a database, by a lock of onceward.consumer that conflicts with itself only. Both hold behind a pooler.
--
-- The walk goes by page number, since an index over these conditions would cost every completion its HOT update. A
-- piece is first only read, so that a walk that finds nothing writes nothing; each row found is checked again under
-- its lock.
--
-- The purge may commit asynchronously: a row that a crash restores is purged again, and any later claim of its id is
-- behind it in the WAL. The sweep ends tokens, so it commits synchronously.
--
-- Locks: onceward.consumer in SHARE UPDATE EXCLUSIVE mode, NOWAIT; the consumer's row (when the lease is written),
-- then the rows it changes; all SKIP LOCKED: it never waits. Rows: one.
-- Repeating it: deleted rows stay deleted, and swept ones are no longer processing; the same pages may be read again.
CREATE OR REPLACE FUNCTION onceward.sidecar_keep_house(
    p_consumer text, p_instance text, p_retention_ms bigint, p_late_ms bigint, p_from_page bigint, p_budget_us bigint, p_clock_ms bigint,
    p_compact_ms bigint,
    OUT purged bigint, OUT swept bigint, OUT orphans bigint, OUT unfinished bigint, OUT next_page bigint, OUT took_us bigint,
    OUT away_ms bigint, OUT ahead_ms bigint, OUT moved bigint, OUT history_due boolean, OUT n_pages bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- @plan nested_loops
SET enable_tidscan = on
AS $$
DECLARE
    c_lease  constant interval := '60 s';
    c_pages  constant integer := 8;   -- read between two checks of the clock
    c_rows   constant integer := 100; -- changed between two checks of the clock
    c_apart  constant bigint := 60000; -- ms between the clocks
    -- moved between two checks of the clock; a move takes four times as long as a deletion
    c_moves  constant integer := 16;
    c_few    constant integer := 2;    -- pages, when there are rows to move: the rest of a piece is read again
    c_least  constant interval := '1 hour'; -- between a completion and its move: see sidecar_claim_many
    c_ahead  constant interval := '1 minute'; -- by which compacted_to is recorded ahead, so that few calls write it
    c_said   constant interval := '1 hour'; -- how long a reported retention counts
    v_now    constant timestamptz := clock_timestamp();
    v_end    constant timestamptz := v_now + p_budget_us * interval '1 us';
    v_ahead  constant bigint := coalesce(floor(1000 * extract(epoch FROM v_now))::bigint - p_clock_ms, 0);
    v_both   constant timestamptz := v_now - greatest(v_ahead, 0) * interval '1 ms'; -- the earlier of the two clocks
    v_young  constant timestamptz := CASE WHEN p_compact_ms IS NOT NULL THEN v_both - greatest(p_compact_ms * interval '1 ms', c_least) END;
    v_late   constant timestamptz := v_both - p_late_ms * interval '1 ms';
    v_sync   constant text := current_setting('synchronous_commit');
    v_pages  constant bigint := pg_relation_size('onceward.inbox') / current_setting('block_size')::bigint;
    v_old    timestamptz;
    v_lease  record;
    v_number smallint;
    v_to     timestamptz; -- recorded end of the rows that may have been moved
    v_step   integer;
    v_moves  tid[];
    v_known  boolean;
    v_mine   boolean;
    v_page   bigint := p_from_page;
    v_olds   tid[];
    v_lates  tid[];
    v_waits  bigint;
    v_open   bigint;
    v_n      bigint;
BEGIN
    purged := 0;
    swept := 0;
    orphans := 0;
    unfinished := 0;
    next_page := -1;
    took_us := 0;
    away_ms := 0;
    ahead_ms := 0;
    moved := 0;
    history_due := false;
    n_pages := v_pages;
    PERFORM set_config('lock_timeout', '1s', true), set_config('synchronous_commit', 'off', true);

    -- A lease that ends later than any possible one was written by a clock that was ahead.
    SELECT c.keeper, c.kept_until, c.keeper_page, c.number, c.retention_ms, c.retention_at, c.history_day, c.compacted_to INTO v_lease
    FROM onceward.consumer c WHERE c.consumer = p_consumer;
    v_known := FOUND;
    v_mine := coalesce(v_lease.keeper = p_instance AND v_lease.kept_until > v_now, false);
    -- Every replica reports, including those that are not the keeper, and those whose clock differs. A new or longer
    -- retention is written at once. A shorter one replaces it after the hour. The hour begins again if no sidecar
    -- kept house at its end: then no replica could report, or the clock has stepped.
    IF coalesce(v_lease.retention_ms < p_retention_ms OR v_lease.retention_at NOT BETWEEN v_now - c_said AND v_now
                OR v_lease.retention_ms = p_retention_ms AND v_lease.retention_at <= v_now - c_lease, true) THEN
        PERFORM FROM onceward.consumer c WHERE c.consumer = p_consumer FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            IF v_lease.retention_at <= v_now AND v_lease.kept_until BETWEEN v_now AND v_now + c_lease THEN
                v_lease.retention_ms := p_retention_ms;
            ELSE
                v_lease.retention_ms := greatest(v_lease.retention_ms, p_retention_ms);
            END IF;
            UPDATE onceward.consumer c SET retention_ms = v_lease.retention_ms, retention_at = v_now WHERE c.consumer = p_consumer;
        END IF;
    END IF;
    IF abs(v_ahead) > c_apart THEN
        ahead_ms := v_ahead;
        next_page := p_from_page;
        RETURN;
    END IF;
    v_old := v_both - greatest(p_retention_ms, v_lease.retention_ms) * interval '1 ms';
    IF NOT v_known THEN
        away_ms := -1;
        RETURN;
    END IF;
    IF NOT v_mine AND v_lease.kept_until > v_now AND v_lease.kept_until <= v_now + c_lease THEN
        away_ms := ceil(1000 * extract(epoch FROM v_lease.kept_until - v_now))::bigint;
        RETURN;
    END IF;
    BEGIN
        LOCK TABLE ONLY onceward.consumer IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
    EXCEPTION WHEN lock_not_available THEN
        away_ms := 100;
        RETURN;
    END;
    IF NOT v_mine OR v_page < 0 THEN
        v_page := v_lease.keeper_page;
    END IF;
    IF v_page >= v_pages THEN
        v_page := 0;
    END IF;
    v_number := v_lease.number;
    v_to := v_lease.compacted_to;
    IF p_compact_ms IS NOT NULL AND v_number IS NULL THEN
        PERFORM FROM onceward.consumer c WHERE c.consumer = p_consumer AND c.number IS NULL FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN -- locked, or another call has assigned one since it was read, or the consumer was removed
            away_ms := 1000;
            RETURN;
        END IF;
        -- Numbers are never reused, since entries may outlive their consumer.
        v_number := nextval('onceward.consumer_number');
        UPDATE onceward.consumer c SET number = v_number WHERE c.consumer = p_consumer;
    END IF;
    IF NOT v_mine OR v_lease.kept_until NOT BETWEEN v_now + c_lease / 2 AND v_now + c_lease THEN
        PERFORM FROM onceward.consumer c
        WHERE c.consumer = p_consumer AND c.keeper IS NOT DISTINCT FROM v_lease.keeper
          AND c.kept_until IS NOT DISTINCT FROM v_lease.kept_until
        FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            UPDATE onceward.consumer c SET keeper = p_instance, kept_until = v_now + c_lease, keeper_page = v_page
            WHERE c.consumer = p_consumer;
        ELSIF NOT v_mine THEN
            away_ms := 1000;
            RETURN;
        END IF;
    END IF;

    v_step := CASE WHEN v_young IS NULL THEN c_pages ELSE c_few END;
    <<walk>>
    WHILE v_page < v_pages LOOP
        -- The expression keeps the planner from using the primary key, which would read the whole consumer.
        SELECT array_agg(f.tid) FILTER (WHERE f.found = 'old'), array_agg(f.tid) FILTER (WHERE f.found = 'late'),
               array_agg(f.tid) FILTER (WHERE f.found = 'move'),
               count(*) FILTER (WHERE f.found = 'waits'), count(*) FILTER (WHERE f.found IN ('waits', 'open'))
        INTO v_olds, v_lates, v_moves, v_waits, v_open
        FROM (SELECT r.ctid AS tid,
                     CASE r.status
                     WHEN 'completed' THEN CASE WHEN r.completed_at <= v_old THEN 'old' WHEN r.completed_at <= v_young THEN 'move' END
                     WHEN 'processing' THEN CASE WHEN r.token_expires_at <= v_late THEN 'late' END
                     WHEN 'dead' THEN CASE WHEN r.token_expires_at <= v_old
                         AND NOT EXISTS (SELECT FROM onceward.dead_letter l
                                         WHERE l.consumer = r.consumer AND l.message_id = r.message_id AND NOT l.rowless)
                         THEN 'old' END
                     WHEN 'held' THEN 'open' -- until an operator decides
                     ELSE CASE WHEN greatest(r.next_attempt_at, r.token_expires_at) <= v_late THEN 'waits' ELSE 'open' END
                     END AS found
              FROM onceward.inbox r
              WHERE r.ctid >= format('(%s,0)', v_page)::tid AND r.ctid < format('(%s,0)', least(v_page + v_step, 4294967295))::tid
                AND r.consumer || '' = p_consumer) f;

        -- The next call reads a piece again if it was left in the middle.
        FOR v_at IN 1 .. coalesce(array_length(v_olds, 1), 0) BY c_rows LOOP
            EXIT walk WHEN v_at > 1 AND clock_timestamp() >= v_end;
            WITH taken AS MATERIALIZED (
                SELECT r.ctid AS tid, r.token FROM onceward.inbox r
                WHERE r.ctid = ANY (v_olds[v_at : v_at + c_rows - 1]) AND r.consumer || '' = p_consumer
                  AND CASE r.status
                      WHEN 'completed' THEN r.completed_at <= v_old
                      WHEN 'dead' THEN r.token_expires_at <= v_old
                          AND NOT EXISTS (SELECT FROM onceward.dead_letter l
                                          WHERE l.consumer = r.consumer AND l.message_id = r.message_id AND NOT l.rowless)
                      ELSE false END
                FOR UPDATE OF r SKIP LOCKED
            )
            DELETE FROM onceward.inbox r USING taken t
            WHERE r.ctid = t.tid AND r.token = t.token AND r.status IN ('completed', 'dead');
            GET DIAGNOSTICS v_n = ROW_COUNT;
            purged := purged + v_n;
        END LOOP;
        IF v_moves IS NOT NULL AND v_to >= v_young IS NOT TRUE THEN
            PERFORM FROM onceward.consumer c WHERE c.consumer = p_consumer FOR UPDATE SKIP LOCKED;
            EXIT walk WHEN NOT FOUND;
            v_to := v_young + c_ahead;
            UPDATE onceward.consumer c SET compacted_to = v_to WHERE c.consumer = p_consumer;
        END IF;
        FOR v_at IN 1 .. coalesce(array_length(v_moves, 1), 0) BY c_moves LOOP
            EXIT walk WHEN v_at > 1 AND clock_timestamp() >= v_end;
            moved := moved + onceward.history_move(p_consumer, v_number, v_moves[v_at : v_at + c_moves - 1], v_young);
        END LOOP;
        FOR v_at IN 1 .. coalesce(array_length(v_lates, 1), 0) BY c_rows LOOP
            EXIT walk WHEN v_at > 1 AND clock_timestamp() >= v_end;
            WITH taken AS MATERIALIZED (
                SELECT r.ctid AS tid, r.token FROM onceward.inbox r
                WHERE r.ctid = ANY (v_lates[v_at : v_at + c_rows - 1]) AND r.consumer || '' = p_consumer
                  AND r.status = 'processing' AND r.token_expires_at <= v_late
                FOR UPDATE OF r SKIP LOCKED
            )
            UPDATE onceward.inbox r
            SET status = 'failed', swept = true, next_attempt_at = v_now, last_error = 'token expired without an answer', http_status = NULL
            FROM taken t
            WHERE r.ctid = t.tid AND r.token = t.token AND r.status = 'processing' AND r.token_expires_at <= v_late;
            GET DIAGNOSTICS v_n = ROW_COUNT;
            swept := swept + v_n;
        END LOOP;
        orphans := orphans + v_waits;
        unfinished := unfinished + v_open;
        v_page := least(v_page + v_step, v_pages);
        v_step := CASE WHEN v_moves IS NULL THEN c_pages ELSE c_few END;
        EXIT walk WHEN clock_timestamp() >= v_end;
    END LOOP;

    IF v_lease.history_day IS DISTINCT FROM ((v_both AT TIME ZONE 'UTC')::date - date '2000-01-01')::smallint THEN
        history_due := EXISTS (SELECT FROM onceward.history_begun)
            AND p_consumer IS NOT DISTINCT FROM (SELECT min(c.consumer) FROM onceward.consumer c
                                                 WHERE c.kept_until BETWEEN v_now AND v_now + c_lease);
    END IF;
    IF swept > 0 THEN
        PERFORM set_config('synchronous_commit', CASE v_sync WHEN 'off' THEN 'on' ELSE v_sync END, true);
    END IF;
    -- 0 means that the walk has ended. So a first piece that was left in the middle continues behind page 0, and may
    -- leave a few rows of that page to the next walk.
    next_page := CASE WHEN v_page < v_pages THEN greatest(v_page, 1) ELSE 0 END;
    took_us := floor(1000000 * extract(epoch FROM clock_timestamp() - v_now))::bigint;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_keep_house(text, text, bigint, bigint, bigint, bigint, bigint, bigint) FROM PUBLIC;
