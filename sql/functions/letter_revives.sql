-- May a dead message be claimed again? Yes, if the broker has dead-lettered it more often than its newest letter
-- records (so it was moved back), and it may still be revived. A publisher can forge that header, so it never revives
-- a message that an operator gave up.
--
-- Without a letter, no: an operator discarded it, and the dead row records that.
--
-- Locks: none. Rows: none. Repeating it: it only reads.
CREATE OR REPLACE FUNCTION onceward.letter_revives(p_consumer text, p_message_id text, p_deaths bigint, p_revive integer)
RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    IF p_deaths <= 0 OR p_revive <= 0 THEN
        RETURN false;
    END IF;
    RETURN coalesce((SELECT p_deaths > l.deaths AND l.reason <> 'operator' FROM onceward.dead_letter l
                                WHERE l.consumer = p_consumer AND l.message_id = p_message_id AND NOT l.rowless
                                ORDER BY l.consumer DESC, l.message_id DESC, l.id DESC LIMIT 1)
                    AND p_revive >= (SELECT count(*) FROM onceward.dead_letter l
                                     WHERE l.consumer = p_consumer AND l.message_id = p_message_id AND NOT l.rowless), false);
END
$$;

REVOKE ALL ON FUNCTION onceward.letter_revives(text, text, bigint, integer) FROM PUBLIC;
