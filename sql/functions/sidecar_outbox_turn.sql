-- A step of the tables' turns, which the owner of the lease calls now and then.
--
-- Answers
--   turned   the next table's turn has begun, or its begin was recorded: call again
--   emptied  the tables whose turn is over were emptied
--   waits    a transaction may still write to one of those, or not all of their rows are confirmed. Or the position
--            is another server's, and its ids mean nothing here: a pooler may lead to a restored copy since the lease
--            was taken
--   rests    not enough for a turn: less than p_min_bytes in the table whose turn it is, and the last turn is less
--            than p_min_ms ago; or nothing at all
--   busy     a lock was not available at once, or within 100 ms: a dump may be reading
--   lost     another relay has the lease
--
-- A table is emptied when no transaction can write to it any more, and all its rows are confirmed. A writer has an id
-- before it reads the turn. turned_by was assigned after the turn was seen to have begun, so a writer that read an
-- earlier turn has an id below it. When the oldest id in progress at the position's snapshot is above turned_by, all
-- those writers had ended by then, and their rows are before the position. A crash of the server may make the
-- sequence jump, so nothing is derived from a count: the sequence, read in this same call, names the present turn,
-- which must be the recorded one. The next turn takes another call.
--
-- Locks: the row of the lease, SKIP LOCKED; the tables that it empties, ACCESS EXCLUSIVE, at most 100 ms: they have
-- no writers any more. Rows: one; with 'emptied' older positions, too. Repeating it: the next step.
CREATE OR REPLACE FUNCTION onceward.sidecar_outbox_turn(p_lease bigint, p_min_bytes bigint, p_min_ms bigint) RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- @plan index
AS $$
DECLARE
    c_no_end constant xid8 := '9223372036854775807';
    c_old    constant integer := 10000; -- positions per turn; at a hundred milliseconds each, 17 minutes of them
    v_hold   text := onceward.outbox_hold(p_lease);
    v_now    timestamptz := clock_timestamp();
    p        record;
    v_turn   bigint;
    v_answer text;
    v_table  text;
    v_floor  bigint;
    s2       pg_snapshot;
    v_later  boolean;
BEGIN
    IF v_hold <> 'held' THEN
        RETURN v_hold;
    END IF;
    SELECT * INTO p FROM onceward.outbox_position q ORDER BY q.lease DESC, q.n DESC LIMIT 1;
    IF p.resending IS NOT NULL OR p.table_oid IS DISTINCT FROM 'onceward.outbox_position'::regclass::oid
       OR p.system_identifier IS DISTINCT FROM onceward.outbox_system() THEN
        RETURN 'waits';
    END IF;
    v_turn := pg_sequence_last_value('onceward.outbox_turn');

    IF p.turned IS DISTINCT FROM v_turn THEN
        p.turned := v_turn;
        p.turned_by := pg_current_xact_id(); -- after the line above
        p.turned_at := v_now;
        p.emptied := false;
        v_answer := 'turned';
    ELSIF p.emptied THEN
        v_table := 'onceward.outbox_' || v_turn % 3;
        IF pg_relation_size(v_table::regclass) = 0
           OR (pg_table_size(v_table::regclass) < p_min_bytes AND v_now < p.turned_at + p_min_ms * interval '1 ms') THEN
            RETURN 'rests';
        END IF;
        PERFORM nextval('onceward.outbox_turn');
        RETURN 'turned';
    ELSIF pg_snapshot_xmin(p.done) > p.turned_by THEN
        BEGIN
            FOREACH v_table IN ARRAY ARRAY['outbox_0', 'outbox_1', 'outbox_2'] LOOP
                IF v_table <> 'outbox_' || v_turn % 3 AND pg_relation_size(('onceward.' || v_table)::regclass) > 0 THEN
                    EXECUTE format('LOCK TABLE onceward.%I IN ACCESS EXCLUSIVE MODE', v_table);
                    -- This cannot happen. If it does, a table that is never emptied is better than a lost message.
                    EXECUTE format('SELECT EXISTS (SELECT FROM onceward.%I z WHERE z.xid >= $1)', v_table)
                        INTO v_later USING pg_snapshot_xmin(p.done);
                    IF v_later THEN
                        RETURN 'waits';
                    END IF;
                    EXECUTE format('TRUNCATE onceward.%I', v_table);
                END IF;
            END LOOP;
        EXCEPTION WHEN lock_not_available THEN
            RETURN 'busy';
        END;
        -- Not in each call: dead rows are read again as long as an old snapshot keeps them.
        DELETE FROM onceward.outbox_position d WHERE d.ctid = ANY (ARRAY(
            SELECT q.ctid FROM onceward.outbox_position q WHERE (q.lease, q.n) < (p.lease, p.n) ORDER BY q.lease, q.n LIMIT c_old));
        p.emptied := true;
        v_answer := 'emptied';
    ELSE
        -- When nothing is published no relay writes a position. It may move to a place behind which nothing waits.
        IF p.upto IS NULL AND p.resending IS NULL THEN
            SELECT n.last_value INTO v_floor FROM onceward.outbox_number n;
            s2 := pg_current_snapshot();
            IF s2::text <> p.done::text
               AND (SELECT w.n FROM onceward.outbox_waiting(p.done, p.floor, p.done_by, NULL, NULL, 1) w) = 0 THEN
                p.done := s2;
                p.floor := v_floor;
                -- No upper end: this transaction has had its id since it locked the lease's row, before s2 was
                -- taken. A session that published meanwhile has a higher one, and may still be in progress above
                -- s2's xmax.
                p.done_by := c_no_end;
                v_answer := 'waits';
            END IF;
        END IF;
        IF v_answer IS NULL THEN
            RETURN 'waits';
        END IF;
    END IF;

    INSERT INTO onceward.outbox_position (lease, system_identifier, table_oid, done, floor, done_by, upto, ceiling, last, upto_floor,
                                          upto_by, turned, turned_by, turned_at, emptied, resending)
    VALUES (p_lease, p.system_identifier, p.table_oid, p.done, p.floor, p.done_by, p.upto, p.ceiling, p.last, p.upto_floor,
            p.upto_by, p.turned, p.turned_by, p.turned_at, p.emptied, p.resending);
    RETURN v_answer;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_outbox_turn(bigint, bigint, bigint) FROM PUBLIC;
