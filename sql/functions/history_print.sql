-- The part of a fingerprint kept in onceward.history: its first 4 bytes.
--
-- Locks, rows: none.
CREATE OR REPLACE FUNCTION onceward.history_print(p_fingerprint bytea) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT ('x' || encode(substr(p_fingerprint, 1, 4), 'hex'))::bit(32)::integer
$$;

REVOKE ALL ON FUNCTION onceward.history_print(bytea) FROM PUBLIC;
