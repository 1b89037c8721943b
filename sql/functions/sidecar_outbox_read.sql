-- The poll: published and committed messages, in the order in which they are to be sent, at most p_rows rows and
-- about p_bytes of bodies (at least one).
--
-- p_batch NULL: from the written position on. A batch as the last call answered it, with p_after, the last seq read
-- of it: the rows behind that. With p_after NULL, when the batch is over: the next batch. Reading ahead needs nothing
-- to be confirmed or written.
--
-- Answers the rows by seq (batch and over are NULL), then one with only batch, for the next call, and over: the batch
-- has no more rows. A body longer than p_max_message is not read: body_bytes has its size. headers and properties are
-- JSON. There is no row at all if the batch is from before a crash of the server, if the tables came from another
-- server (see sidecar_outbox_restore), or while they are being restored.
--
-- A batch is text: the snapshots and numbers of 0001_schema.sql, s1/floor/by/s2/ceiling/next floor/next by/life.
-- `next by` is assigned only if rows were found, since only then something will be sent; without it the search for
-- transactions in progress at s1 has no upper end.
--
-- Two things keep the plan. Conditions and orders are written so that exactly one index fits (a tie of costs read
-- everything): rows of (xid, seq) are compared as rows. And jit is off, or the price of the disabled plans would make
-- the planner compile.
--
-- Preparing the plan is most of the cost of a poll. So if no number was assigned since, and no transaction was in
-- progress, the plan does not run; and a few transactions at and above xmax(s1) are looked up by their ids, without
-- first finding out which of them have a row (as outbox_unseen does for many).
--
-- Locks: none; it waits at most 100 ms for a locked table. Rows: none changed. Repeating it: the same batch and p_after
-- have the same rows.
CREATE OR REPLACE FUNCTION onceward.sidecar_outbox_read(
    p_batch text, p_after bigint, p_rows integer, p_bytes bigint, p_max_message bigint)
RETURNS TABLE (batch text, over boolean, seq bigint, exchange text, routing_key text, message_id text, type text, headers text,
               properties text, body bytea, body_bytes bigint, age_ms bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- @plan nested_loops
SET enable_memoize = off
SET enable_sort = on
AS $$
DECLARE
    c_few      constant bigint := 8;
    v_life     text;
    v_position record;
    v_parts    text[];
    s1         pg_snapshot;
    v_floor    bigint;
    v_by       xid8;
    s2         pg_snapshot;
    v_ceiling  bigint;
    v_next     bigint;
    v_next_by  xid8;
    v_after    bigint := p_after;
    v_from     bigint;
    v_few      bigint;
    v_unseen   xid8[];
    v_head     text;
BEGIN
    PERFORM set_config('lock_timeout', '100ms', true);
    SELECT l.life INTO v_life FROM onceward.outbox_life l LIMIT 1;
    IF p_batch IS NULL THEN
        SELECT p.*, p.tableoid INTO v_position FROM onceward.outbox_position p ORDER BY p.lease DESC, p.n DESC LIMIT 1;
        IF NOT FOUND OR v_life IS NULL OR v_position.resending IS NOT NULL OR v_position.table_oid <> v_position.tableoid
           OR v_position.system_identifier <> onceward.outbox_system() THEN
            RETURN;
        END IF;
        s1 := v_position.done;
        v_floor := v_position.floor;
        v_by := v_position.done_by;
        s2 := v_position.upto;
        v_ceiling := v_position.ceiling;
        v_next := v_position.upto_floor;
        v_next_by := v_position.upto_by;
        v_after := v_position.last;
    ELSE
        v_parts := string_to_array(p_batch, '/', '');
        IF v_parts[8] IS DISTINCT FROM v_life THEN
            RETURN;
        END IF;
        IF p_after IS NULL THEN
            s1 := v_parts[4];
            v_floor := v_parts[6];
            v_by := v_parts[7];
        ELSE
            s1 := v_parts[1];
            v_floor := v_parts[2];
            v_by := v_parts[3];
            s2 := v_parts[4];
            v_ceiling := v_parts[5];
            v_next := v_parts[6];
            v_next_by := v_parts[7];
        END IF;
    END IF;
    IF s2 IS NULL THEN
        -- The floor is read before the snapshot is taken, the ceiling after it: the statement's snapshot is older
        -- than the values that it reads from a sequence.
        SELECT n.last_value INTO v_next FROM onceward.outbox_number n;
        SELECT pg_current_snapshot(), n.last_value INTO s2, v_ceiling FROM onceward.outbox_number n;
        v_next_by := NULL;
        v_after := 0;
    END IF;
    v_head := concat_ws('/', s1::text, v_floor::text, coalesce(v_by::text, ''), s2::text, v_ceiling::text, v_next::text);
    -- Equal snapshots: no transaction has ended since.
    IF v_after < v_floor AND s1::text <> s2::text THEN
        v_from := pg_snapshot_xmax(s1)::text;
        v_few := least(v_by, pg_snapshot_xmax(s2))::text::bigint - v_from;
        IF v_few > c_few THEN
            v_unseen := onceward.outbox_unseen(s1, v_floor, v_by, s2);
        ELSE
            IF right(s1::text, 1) <> ':' THEN
                v_unseen := ARRAY(SELECT x.id FROM pg_snapshot_xip(s1) x (id) WHERE pg_visible_in_snapshot(x.id, s2));
            END IF;
            FOR i IN 0 .. v_few - 1 LOOP
                IF pg_visible_in_snapshot((v_from + i)::text::xid8, s2) THEN
                    v_unseen := v_unseen || (v_from + i)::text::xid8;
                END IF;
            END LOOP;
        END IF;
    END IF;
    IF s1::text = s2::text OR (v_ceiling <= greatest(v_after, v_floor) AND coalesce(cardinality(v_unseen), 0) = 0) THEN
        RETURN QUERY SELECT concat_ws('/', v_head, coalesce(v_next_by::text, ''), v_life), true, NULL::bigint, NULL::text, NULL::text,
                            NULL::text, NULL::text, NULL::text, NULL::text, NULL::bytea, NULL::bigint, NULL::bigint;
        RETURN;
    END IF;

    RETURN QUERY
    WITH found AS MATERIALIZED (
        SELECT u.*, octet_length(u.body)::bigint AS bytes,
               sum(octet_length(u.body)) OVER (ORDER BY u.seq ROWS UNBOUNDED PRECEDING) - octet_length(u.body) AS before
        FROM (
            SELECT t.* FROM unnest(v_unseen) x (id) CROSS JOIN LATERAL (
                (SELECT z.* FROM onceward.outbox_0 z WHERE (z.xid, z.seq) > (x.id, v_after) AND (z.xid, z.seq) <= (x.id, v_floor)
                 ORDER BY z.xid, z.seq LIMIT p_rows)
                UNION ALL (SELECT z.* FROM onceward.outbox_1 z WHERE (z.xid, z.seq) > (x.id, v_after) AND (z.xid, z.seq) <= (x.id, v_floor)
                 ORDER BY z.xid, z.seq LIMIT p_rows)
                UNION ALL (SELECT z.* FROM onceward.outbox_2 z WHERE (z.xid, z.seq) > (x.id, v_after) AND (z.xid, z.seq) <= (x.id, v_floor)
                 ORDER BY z.xid, z.seq LIMIT p_rows)) t
            UNION ALL (
                SELECT z.* FROM onceward.outbox_0 z
                WHERE z.seq > greatest(v_after, v_floor) AND z.seq <= v_ceiling
                      AND NOT pg_visible_in_snapshot(z.xid, s1) AND pg_visible_in_snapshot(z.xid, s2)
                ORDER BY z.seq LIMIT p_rows)
            UNION ALL (
                SELECT z.* FROM onceward.outbox_1 z
                WHERE z.seq > greatest(v_after, v_floor) AND z.seq <= v_ceiling
                      AND NOT pg_visible_in_snapshot(z.xid, s1) AND pg_visible_in_snapshot(z.xid, s2)
                ORDER BY z.seq LIMIT p_rows)
            UNION ALL (
                SELECT z.* FROM onceward.outbox_2 z
                WHERE z.seq > greatest(v_after, v_floor) AND z.seq <= v_ceiling
                      AND NOT pg_visible_in_snapshot(z.xid, s1) AND pg_visible_in_snapshot(z.xid, s2)
                ORDER BY z.seq LIMIT p_rows)
            ORDER BY seq LIMIT p_rows) u
    )
    SELECT NULL::text, NULL::boolean, f.seq, f.exchange, f.routing_key, f.message_id, f.type, f.headers::text, f.properties::text,
           CASE WHEN f.bytes <= p_max_message THEN f.body END, f.bytes,
           floor(1000 * extract(epoch FROM clock_timestamp() - f.published_at))::bigint
    FROM found f WHERE f.before < p_bytes
    UNION ALL
    SELECT concat_ws('/', v_head, CASE WHEN c.n > 0 AND v_next_by IS NULL THEN pg_current_xact_id()::text
                                       ELSE coalesce(v_next_by::text, '') END, v_life),
           c.n < p_rows AND c.n = c.n_read, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM (SELECT count(*) AS n, count(*) FILTER (WHERE f.before < p_bytes) AS n_read FROM found f) c
    ORDER BY 3;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_outbox_read(text, bigint, integer, bigint, bigint) FROM PUBLIC;
