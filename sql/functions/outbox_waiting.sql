-- The number of messages that are committed but not confirmed by a position, counted up to p_most, and when the
-- oldest of them was published.
--
-- s1, p_floor, p_by: the position's snapshot and its numbers; s_upto, p_last: of the batch that is being sent, or
-- NULL. Called by the functions for sidecars, in their search_path and with their settings; the plan is that of
-- sidecar_outbox_read.
--
-- Locks: none. Rows: none changed. Repeating it: it only reads.
CREATE OR REPLACE FUNCTION onceward.outbox_waiting(
    s1 pg_snapshot, p_floor bigint, p_by xid8, s_upto pg_snapshot, p_last bigint, p_most integer, OUT n bigint, OUT oldest timestamptz)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- @plan nested_loops
SET enable_memoize = off
SET enable_sort = on
AS $$
DECLARE
    s2       pg_snapshot := pg_current_snapshot();
    v_unseen xid8[] := onceward.outbox_unseen(s1, p_floor, p_by, s2);
BEGIN
    SELECT count(*), min(w.published_at) INTO n, oldest FROM (
        SELECT u.published_at FROM (
            SELECT t.* FROM (
                SELECT y.id, CASE WHEN pg_visible_in_snapshot(y.id, s_upto) THEN p_last ELSE 0 END AS past FROM unnest(v_unseen) y (id)
            ) x CROSS JOIN LATERAL (
                (SELECT z.seq, z.xid, z.published_at FROM onceward.outbox_0 z
                 WHERE (z.xid, z.seq) > (x.id, x.past) AND (z.xid, z.seq) <= (x.id, p_floor) ORDER BY z.xid, z.seq LIMIT p_most)
                UNION ALL (SELECT z.seq, z.xid, z.published_at FROM onceward.outbox_1 z
                 WHERE (z.xid, z.seq) > (x.id, x.past) AND (z.xid, z.seq) <= (x.id, p_floor) ORDER BY z.xid, z.seq LIMIT p_most)
                UNION ALL (SELECT z.seq, z.xid, z.published_at FROM onceward.outbox_2 z
                 WHERE (z.xid, z.seq) > (x.id, x.past) AND (z.xid, z.seq) <= (x.id, p_floor) ORDER BY z.xid, z.seq LIMIT p_most)) t
            UNION ALL (
                SELECT z.seq, z.xid, z.published_at FROM onceward.outbox_0 z
                WHERE z.seq > p_floor AND NOT pg_visible_in_snapshot(z.xid, s1) AND pg_visible_in_snapshot(z.xid, s2)
                      AND (s_upto IS NULL OR z.seq + 0 > p_last OR NOT pg_visible_in_snapshot(z.xid, s_upto))
                ORDER BY z.seq LIMIT p_most)
            UNION ALL (
                SELECT z.seq, z.xid, z.published_at FROM onceward.outbox_1 z
                WHERE z.seq > p_floor AND NOT pg_visible_in_snapshot(z.xid, s1) AND pg_visible_in_snapshot(z.xid, s2)
                      AND (s_upto IS NULL OR z.seq + 0 > p_last OR NOT pg_visible_in_snapshot(z.xid, s_upto))
                ORDER BY z.seq LIMIT p_most)
            UNION ALL (
                SELECT z.seq, z.xid, z.published_at FROM onceward.outbox_2 z
                WHERE z.seq > p_floor AND NOT pg_visible_in_snapshot(z.xid, s1) AND pg_visible_in_snapshot(z.xid, s2)
                      AND (s_upto IS NULL OR z.seq + 0 > p_last OR NOT pg_visible_in_snapshot(z.xid, s_upto))
                ORDER BY z.seq LIMIT p_most)
            ORDER BY seq LIMIT p_most) u) w;
END
$$;

REVOKE ALL ON FUNCTION onceward.outbox_waiting(pg_snapshot, bigint, xid8, pg_snapshot, bigint, integer) FROM PUBLIC;
