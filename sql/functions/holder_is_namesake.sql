-- Is the claim owner another process that runs under this instance's name? p_holder is "instance/number"; a larger
-- number than the caller's own, or none, cannot belong to an earlier start.
--
-- Locks: none. Rows: none. Repeating it: it only computes.
CREATE OR REPLACE FUNCTION onceward.holder_is_namesake(p_holder text, p_instance text, p_number bigint) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN p_holder = p_instance
        OR (left(p_holder, length(p_instance) + 1) = p_instance || '/'
            AND CASE WHEN substr(p_holder, length(p_instance) + 2) ~ '^[0-9]{1,18}$'
                     THEN substr(p_holder, length(p_instance) + 2)::bigint > p_number
                     ELSE strpos(substr(p_holder, length(p_instance) + 2), '/') = 0 END);
END
$$;

REVOKE ALL ON FUNCTION onceward.holder_is_namesake(text, text, bigint) FROM PUBLIC;
