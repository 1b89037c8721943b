-- Keeps the partitions of onceward.message: makes the days that sidecar_make_messages leaves, and drops the oldest day
-- when all of it is past the retention. It runs as the owner of the schema: the sidecar's role has no DDL. The
-- parameters, busy and ahead_ms are those of sidecar_make_messages.
--
-- A day takes two calls, so that claims wait for neither disk nor files. The first detaches the day and renames it
-- (message_20260131_gone), and commits without waiting for the disk; the second drops it. A crash may keep or undo
-- the first step; both are fine. The commit of a drop waits until the files are deleted, a second or more for some
-- GB: so this function is called on a connection that carries no claims.
--
-- If the default partition is large, missing days are made here: one per call, and then nothing is dropped.
--
-- Answers: made, the number of days; dropped, the name of the dropped day, or NULL; more: something is left, call
-- again soon; busy: as in sidecar_make_messages; stuck: the name of a day that could not be dropped.
--
-- Locks: that of sidecar_make_messages. First call: ACCESS EXCLUSIVE on the day and the default partition, and then
-- on the table, each after at most 50 ms. Claims that store wait only for the table, whose lock lasts for some
-- catalog rows. Second call: on the former day.
-- Rows: one. Repeating it: continues with the rest.
CREATE OR REPLACE FUNCTION onceward.sidecar_keep_messages(
    p_consumers text[], p_retentions bigint[], p_clock_ms bigint,
    OUT made integer, OUT dropped text, OUT more boolean, OUT busy boolean, OUT stuck text, OUT ahead_ms bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
    c_much constant bigint := 16777216; -- as in sidecar_make_messages
    v_old  timestamptz;
    v_due  boolean;
    v_name text;
    v_next text;
BEGIN
    PERFORM set_config('onceward.aside', 'on', true);
    SELECT m.made, m.due, m.old_at, m.busy, m.ahead_ms INTO made, v_due, v_old, busy, ahead_ms
    FROM onceward.sidecar_make_messages(p_consumers, p_retentions, p_clock_ms) m;
    more := false;
    -- The locks of a day that took long are released first.
    IF made > 0 AND pg_relation_size('onceward.message_default') > c_much THEN
        more := v_due;
        RETURN;
    END IF;
    IF NOT v_due THEN
        RETURN;
    END IF;
    PERFORM set_config('lock_timeout', '50ms', true);

    -- Tables that an earlier call has detached.
    SELECT c.relname INTO v_name FROM pg_class c
    WHERE c.relnamespace = 'onceward'::regnamespace AND c.relname ~ '^message_[0-9]{8}_gone$' AND c.relkind = 'r' AND NOT c.relispartition
    ORDER BY c.relname LIMIT 1;
    IF FOUND THEN
        BEGIN
            EXECUTE format('DROP TABLE onceward.%I', v_name);
            dropped := left(v_name, -5);
        EXCEPTION WHEN lock_not_available THEN
            busy := true;
            stuck := v_name;
            RETURN;
        END;
    END IF;

    -- The oldest day. One per call: otherwise the first one's locks would be held while the second waits for its own,
    -- or for the disk.
    SELECT min(c.relname) INTO v_next
    FROM pg_inherits h JOIN pg_class c ON c.oid = h.inhrelid
    WHERE h.inhparent = 'onceward.message'::regclass AND c.relname ~ '^message_[0-9]{8}$'
      AND (to_date(right(c.relname, 8), 'YYYYMMDD') + 1)::timestamp AT TIME ZONE 'UTC' <= v_old
      AND to_jsonb(h) ->> 'inhdetachpending' IS DISTINCT FROM 'true'; -- see sidecar_days_hindered
    IF v_next IS NOT NULL THEN
        more := true;
        IF dropped IS NOT NULL THEN
            RETURN;
        END IF;
        BEGIN
            EXECUTE format('LOCK TABLE onceward.%I, onceward.message_default IN ACCESS EXCLUSIVE MODE', v_next);
            EXECUTE format('ALTER TABLE onceward.message DETACH PARTITION onceward.%I', v_next);
            EXECUTE format('ALTER TABLE onceward.%I RENAME TO %I', v_next, v_next || '_gone');
            PERFORM set_config('synchronous_commit', 'off', true);
        EXCEPTION WHEN lock_not_available THEN
            busy := true;
            stuck := v_next;
            more := false;
        END;
        RETURN;
    END IF;

    IF dropped IS NULL AND pg_relation_size('onceward.message_default') > 0
       AND NOT EXISTS (SELECT FROM onceward.message_default d WHERE d.received_at > v_old) THEN
        BEGIN
            LOCK TABLE onceward.message_default IN ACCESS EXCLUSIVE MODE;
            -- Sessions that wrote to it at the check have ended by now, and their rows are visible.
            IF NOT EXISTS (SELECT FROM onceward.message_default d WHERE d.received_at > v_old) THEN
                TRUNCATE onceward.message_default;
                dropped := 'message_default';
            END IF;
        EXCEPTION WHEN lock_not_available THEN
            busy := true;
            stuck := 'message_default';
        END;
    END IF;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_keep_messages(text[], bigint[], bigint) FROM PUBLIC;
