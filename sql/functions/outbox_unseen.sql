-- The ids of the transactions that were in progress at s1, have ended for s2, and may have messages with numbers up
-- to p_floor: all in xip(s1), and those from xmax(s1) on, below p_by (NULL: no end), that have such a row.
--
-- The latter are found by stepping from one to the next, however many rows each has. Rows with higher numbers are
-- skipped in the index. Transactions in progress at s2 are left out: all their rows would be tried, and none be
-- visible.
--
-- The plan: only one index fits a row comparison and its order, since sorting is off (except for the few edges).
--
-- Called by the functions for sidecars, in their search_path and with their settings. s1 and s2 must be taken
-- before the call.
-- Locks: none. Rows: none changed. Repeating it: it only reads.
CREATE OR REPLACE FUNCTION onceward.outbox_unseen(s1 pg_snapshot, p_floor bigint, p_by xid8, s2 pg_snapshot) RETURNS xid8[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- @plan nested_loops
SET enable_memoize = off
SET enable_sort = off
AS $$
DECLARE
    c_last constant bigint := 9223372036854775807; -- behind all numbers
    v_from xid8 := pg_snapshot_xmax(s1);
    v_end  xid8 := least(p_by, pg_snapshot_xmax(s2));
BEGIN
    RETURN ARRAY(
        WITH RECURSIVE step (id, seq, upto, found) AS (
            SELECT e.id, e.seq, lead(e.id, 1, v_end) OVER (ORDER BY e.id, e.seq), false
            FROM (SELECT v_from AS id, 0::bigint AS seq
                  UNION ALL SELECT x.id, c_last FROM pg_snapshot_xip(s2) x (id) WHERE x.id >= v_from AND x.id < v_end) e
            UNION ALL
            SELECT n.id, c_last, s.upto, true FROM step s CROSS JOIN LATERAL (SELECT least(
                (SELECT z.xid FROM onceward.outbox_0 z
                 WHERE (z.xid, z.seq) > (s.id, s.seq) AND z.xid < s.upto AND z.seq <= p_floor ORDER BY z.xid, z.seq LIMIT 1),
                (SELECT z.xid FROM onceward.outbox_1 z
                 WHERE (z.xid, z.seq) > (s.id, s.seq) AND z.xid < s.upto AND z.seq <= p_floor ORDER BY z.xid, z.seq LIMIT 1),
                (SELECT z.xid FROM onceward.outbox_2 z
                 WHERE (z.xid, z.seq) > (s.id, s.seq) AND z.xid < s.upto AND z.seq <= p_floor ORDER BY z.xid, z.seq LIMIT 1)
                )) n (id) WHERE n.id IS NOT NULL)
        SELECT x.id FROM pg_snapshot_xip(s1) x (id) WHERE pg_visible_in_snapshot(x.id, s2)
        UNION ALL SELECT s.id FROM step s WHERE s.found);
END
$$;

REVOKE ALL ON FUNCTION onceward.outbox_unseen(pg_snapshot, bigint, xid8, pg_snapshot) FROM PUBLIC;
