-- Do both names stand for a common queue? A name may have a range: orders-{0..3} stands for four queues.
--
-- Locks, rows: none.
CREATE OR REPLACE FUNCTION onceward.queues_meet(p_a text, p_b text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH given AS (
        SELECT x.side, x.name, regexp_match(x.name, '^([^{}]*)\{([0-9]{1,9})\.\.([0-9]{1,9})\}([^{}]*)$') AS m
        FROM (VALUES (1, p_a), (2, p_b)) x (side, name)
    ), names AS (
        SELECT g.side, CASE WHEN g.m IS NULL THEN g.name
                            WHEN g.m[2] ~ '^0[0-9]' THEN g.m[1] || lpad(n::text, length(g.m[2]), '0') || g.m[4]
                            ELSE g.m[1] || n || g.m[4] END AS name
        FROM given g, LATERAL generate_series(coalesce(g.m[2], '0')::integer, coalesce(g.m[3], '0')::integer) n
    )
    SELECT p_a = p_b OR (position('{' IN p_a || p_b) > 0 AND EXISTS (
        SELECT FROM names a JOIN names b ON a.name = b.name WHERE a.side = 1 AND b.side = 2))
$$;

REVOKE ALL ON FUNCTION onceward.queues_meet(text, text) FROM PUBLIC;
