-- May a claim be taken over before its window ends, because its owner is known to have ended? True for an earlier
-- start of this instance (p_own), and for an instance of p_gone. Only for rows of `transaction` queues, whose tokens
-- the application itself fences.
--
-- False if the application has extended the window: it is still working. A row that was taken over before is not
-- taken at once from an earlier start: a job longer than the time between two crashes would never end.
--
-- p_slack: the time by which an unextended window ends before max_expires_at. p_holder is "instance/number"; an
-- instance without a number proves nothing.
--
-- Locks: none. Rows: none. Repeating it: it only computes.
CREATE OR REPLACE FUNCTION onceward.holder_is_gone(
    p_holder text, p_takeovers integer, p_expires timestamptz, p_max_expires timestamptz, p_slack interval,
    p_instance text, p_number bigint, p_own boolean, p_gone text[]) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN p_max_expires - p_expires >= p_slack
       AND CASE WHEN p_own AND coalesce(p_takeovers, 0) <= 0 AND left(p_holder, length(p_instance) + 1) = p_instance || '/'
                THEN substr(p_holder, length(p_instance) + 2) ~ '^[0-9]{1,18}$'
                     AND substr(p_holder, length(p_instance) + 2)::bigint < p_number
                ELSE cardinality(p_gone) > 0 AND p_holder ~ '/[0-9]{1,18}$'
                     AND regexp_replace(p_holder, '/[0-9]{1,18}$', '') = ANY (p_gone) END;
END
$$;

REVOKE ALL ON FUNCTION onceward.holder_is_gone(text, integer, timestamp with time zone, timestamp with time zone, interval, text, bigint,
                                               boolean, text[]) FROM PUBLIC;
