-- Makes the partitions of onceward.message for today and the seven coming days, and answers whether
-- sidecar_keep_messages has work. It is quick, however much is to be dropped, so it may be called on a connection
-- that carries claims. It runs as the owner of the schema: the sidecar's role has no DDL.
--
-- PostgreSQL reads the whole default partition for each day that is made. If that has more than 16 MB, nothing is
-- made here and due is true: sidecar_keep_messages makes the days, the nearest first, one per call.
--
-- p_consumers: consumers whose messages the caller stores. p_retentions: how long, in ms. A day is dropped whole, so
-- the longest reported retention counts for all consumers: one reported within the last hour, or, for a consumer
-- without any, one reported within its own length. p_clock_ms: the caller's clock, in milliseconds since 1970. As in
-- sidecar_keep_house, nothing is done because of one clock: if the two differ by more than a minute, ahead_ms is not
-- 0 and nothing was done.
--
-- Answers: made, the number of days; due: sidecar_keep_messages has something to drop or to make; old_at: messages
-- from before then are past the retention; busy: another session holds a needed lock, or another sidecar runs this,
-- so that something is left for the next call.
--
-- Rows of up to about 8 KB stay in one piece: PostgreSQL's default, to move bodies elsewhere and to try to compress
-- them, cost a third of the claims. With lz4, if the server has it, rows of 2 KB and more are compressed, which costs
-- less than it saves in writing.
--
-- A row in the default partition (its day was not made in time) keeps its day from being made, and is dropped when
-- all rows there are old. A table that has the name of a day, and is no partition, keeps only that day from being
-- made: sidecar_days_hindered reports it.
--
-- Locks: onceward.message_retention in SHARE UPDATE EXCLUSIVE mode, NOWAIT. To make a day: the table in SHARE UPDATE
-- EXCLUSIVE mode, and the default partition, each after at most 50 ms; claims do not wait for them.
-- Rows: one. Repeating it: existing partitions are not made again.
CREATE OR REPLACE FUNCTION onceward.sidecar_make_messages(
    p_consumers text[], p_retentions bigint[], p_clock_ms bigint,
    OUT made integer, OUT due boolean, OUT old_at timestamptz, OUT busy boolean, OUT ahead_ms bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
    c_ahead constant integer := 7;      -- days
    c_apart constant bigint := 60000;   -- ms between the clocks
    c_fresh constant interval := '1 hour';
    -- ms; no configuration has less, and a login that calls this directly must not either
    c_least constant bigint := 3600000;
    c_most  constant bigint := 315360000000;
    c_much  constant bigint := 16777216; -- bytes of the default partition; also in sidecar_keep_messages
    v_now   constant timestamptz := clock_timestamp();
    v_ahead constant bigint := floor(1000 * extract(epoch FROM v_now))::bigint - p_clock_ms;
    v_today constant date := (v_now AT TIME ZONE 'UTC')::date;
    v_day   date;
    v_name  text;
    v_sql   text;
    v_days  date[];
    v_much  constant boolean := pg_relation_size('onceward.message_default') > c_much;
    -- for a call by sidecar_keep_messages
    v_aside constant boolean := coalesce(current_setting('onceward.aside', true) = 'on', false);
    v_later boolean := false;
    v_lz4   boolean;
BEGIN
    made := 0;
    due := false;
    busy := false;
    ahead_ms := 0;
    IF abs(v_ahead) > c_apart THEN
        ahead_ms := v_ahead;
        RETURN;
    END IF;
    PERFORM set_config('lock_timeout', '50ms', true);
    BEGIN
        LOCK TABLE ONLY onceward.message_retention IN SHARE UPDATE EXCLUSIVE MODE NOWAIT; -- conflicts with itself only
    EXCEPTION WHEN lock_not_available THEN
        busy := true;
        RETURN;
    END;

    -- Written once an hour, since it is the only regular write here. No other function writes these rows.
    INSERT INTO onceward.message_retention AS m (consumer, retention_ms, seen_at)
    SELECT s.consumer, least(greatest(s.retention_ms, c_least), c_most), v_now
    FROM unnest(p_consumers, p_retentions) s (consumer, retention_ms)
    GROUP BY 1, 2
    ON CONFLICT (consumer, retention_ms) DO UPDATE SET seen_at = excluded.seen_at
    WHERE m.seen_at NOT BETWEEN v_now - c_fresh / 2 AND v_now;
    DELETE FROM onceward.message_retention m
    WHERE m.seen_at < v_now - c_fresh
      AND (EXISTS (SELECT FROM onceward.message_retention n WHERE n.consumer = m.consumer AND n.seen_at >= v_now - c_fresh)
           OR m.seen_at < v_now - m.retention_ms * interval '1 ms');
    SELECT v_now - greatest(v_ahead, 0) * interval '1 ms' - coalesce(max(m.retention_ms), 0) * interval '1 ms' INTO old_at
    FROM onceward.message_retention m;

    SELECT array_agg(to_date(right(c.relname, 8), 'YYYYMMDD') ORDER BY c.relname) INTO v_days
    FROM pg_inherits h JOIN pg_class c ON c.oid = h.inhrelid
    WHERE h.inhparent = 'onceward.message'::regclass AND c.relname ~ '^message_[0-9]{8}$'
      AND to_jsonb(h) ->> 'inhdetachpending' IS DISTINCT FROM 'true';

    FOR v_at IN 0 .. c_ahead LOOP
        EXIT WHEN NOT EXISTS (SELECT FROM onceward.message_retention);
        v_day := v_today + v_at;
        v_name := 'message_' || to_char(v_day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('onceward.' || v_name) IS NOT NULL
            OR EXISTS (SELECT FROM onceward.message_default d
                       WHERE d.received_at >= v_day::timestamp AT TIME ZONE 'UTC' AND d.received_at < (v_day + 1)::timestamp AT TIME ZONE 'UTC');
        IF v_much AND (made > 0 OR NOT v_aside) THEN
            v_later := true;
            EXIT;
        END IF;
        v_lz4 := EXISTS (SELECT FROM pg_settings s WHERE s.name = 'default_toast_compression' AND 'lz4' = ANY (s.enumvals));
        BEGIN
            EXECUTE format('CREATE TABLE onceward.%I (LIKE onceward.message INCLUDING ALL) WITH (toast_tuple_target = %s)', v_name,
                           CASE WHEN v_lz4 THEN 128 ELSE 8160 END);
            IF v_lz4 THEN
                EXECUTE format('ALTER TABLE onceward.%I ALTER body SET COMPRESSION lz4, ALTER content_header SET COMPRESSION lz4', v_name);
                FOR v_sql IN
                    SELECT format('ALTER TABLE onceward.%I ALTER %I SET STORAGE MAIN', v_name, t.attname)
                    FROM pg_attribute t WHERE t.attrelid = 'onceward.message'::regclass AND t.attnum > 0 AND t.attlen = -1
                LOOP
                    EXECUTE v_sql;
                END LOOP;
            END IF;
            -- No role may access it by its own name, whatever default privileges grant.
            FOR v_sql IN
                SELECT DISTINCT format('REVOKE ALL ON onceward.%I FROM %s CASCADE', v_name,
                                       CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE g.grantee::regrole::text END)
                FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) g
                WHERE c.oid = format('onceward.%I', v_name)::regclass AND g.grantee <> c.relowner
            LOOP
                EXECUTE v_sql;
            END LOOP;
            EXECUTE format('ALTER TABLE onceward.message ATTACH PARTITION onceward.%I FOR VALUES FROM (%L) TO (%L)', v_name,
                           v_day::text || ' 00:00:00+00', (v_day + 1)::text || ' 00:00:00+00');
            made := made + 1;
        -- a row for that day has just arrived in the default partition
        EXCEPTION WHEN lock_not_available OR check_violation THEN
            busy := true;
            EXIT;
        END;
    END LOOP;

    due := v_later
        OR EXISTS (SELECT FROM unnest(v_days) d (day) WHERE (d.day + 1)::timestamp AT TIME ZONE 'UTC' <= old_at)
        OR EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = 'onceward'::regnamespace AND c.relname ~ '^message_[0-9]{8}_gone$'
                   AND c.relkind = 'r' AND NOT c.relispartition)
        OR (pg_relation_size('onceward.message_default') > 0
            AND NOT EXISTS (SELECT FROM onceward.message_default d WHERE d.received_at > old_at));
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_make_messages(text[], bigint[], bigint) FROM PUBLIC;
