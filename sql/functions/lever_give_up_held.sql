-- For operators: what the replicas hold now because everything fails is to become dead letters. Each that is there does it once, within five
-- seconds, with what it had received before this call; what comes later is not meant.
--
-- Answers the number of this time.
--
-- Locks: the consumer's row of onceward.control. Rows: one. Repeating it: is another time.
CREATE OR REPLACE FUNCTION onceward.lever_give_up_held(p_consumer text, p_by text) RETURNS bigint
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO onceward.control AS k (consumer, held_number, held_by, held_at) VALUES (p_consumer, 1, p_by, clock_timestamp())
    ON CONFLICT (consumer) DO UPDATE SET held_number = k.held_number + 1, held_by = p_by, held_at = clock_timestamp()
    RETURNING k.held_number
$$;

REVOKE ALL ON FUNCTION onceward.lever_give_up_held(text, text) FROM PUBLIC;
