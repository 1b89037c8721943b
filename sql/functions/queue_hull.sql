-- The smallest pattern that has all queues of two: orders-{0..3} and orders-{2..5} make orders-{0..5}. NULL if one of
-- the names has no range, if their fixed parts differ, or if their numbers of leading zeros do.
--
-- Locks, rows: none.
CREATE OR REPLACE FUNCTION onceward.queue_hull(p_a text, p_b text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format('%s{%s..%s}%s', a.m[1], lpad(n.first::text, greatest(a.width, length(n.first::text)), '0'),
                  lpad(n.last::text, greatest(a.width, length(n.last::text)), '0'), a.m[4])
    FROM (SELECT m, CASE WHEN m[2] ~ '^0[0-9]' THEN length(m[2]) ELSE 0 END AS width
          FROM regexp_match(p_a, '^([^{}]*)\{([0-9]{1,9})\.\.([0-9]{1,9})\}([^{}]*)$') m) a,
         (SELECT m, CASE WHEN m[2] ~ '^0[0-9]' THEN length(m[2]) ELSE 0 END AS width
          FROM regexp_match(p_b, '^([^{}]*)\{([0-9]{1,9})\.\.([0-9]{1,9})\}([^{}]*)$') m) b,
         LATERAL (SELECT least(a.m[2]::integer, b.m[2]::integer) AS first, greatest(a.m[3]::integer, b.m[3]::integer) AS last) n
    WHERE (a.m[1], a.m[4], a.width) = (b.m[1], b.m[4], b.width)
$$;

REVOKE ALL ON FUNCTION onceward.queue_hull(text, text) FROM PUBLIC;
