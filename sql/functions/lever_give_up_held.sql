-- For operators: messages that the replicas hold because of the circuit breaker become dead letters. Each present
-- replica does this once, within five seconds, for the messages that it received before this call.
--
-- Returns the number of this command.
--
-- Locks: the consumer's row of onceward.control. Rows: one. Repeating it: is another command.
CREATE OR REPLACE FUNCTION onceward.lever_give_up_held(p_consumer text, p_by text) RETURNS bigint
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO onceward.control AS k (consumer, held_number, held_by, held_at) VALUES (p_consumer, 1, p_by, clock_timestamp())
    ON CONFLICT (consumer) DO UPDATE SET held_number = k.held_number + 1, held_by = p_by, held_at = clock_timestamp()
    RETURNING k.held_number
$$;

REVOKE ALL ON FUNCTION onceward.lever_give_up_held(text, text) FROM PUBLIC;
