-- For operators: these messages become dead letters, reason `operator`, as soon as a sidecar has them; a sidecar
-- that holds them reads this within five seconds. At most 1,000 of a consumer at a time.
--
-- Answers, one row per id: at_hand (it has a row, and will be given up) | unseen (no row yet: given up when it
-- arrives) | completed, also if it is compacted | dead (there is nothing to give up, and the id is not recorded) |
-- full (1,000 are recorded already).
--
-- Locks: the consumer's row of onceward.control. Rows: one. Repeating it: an id is recorded once.
CREATE OR REPLACE FUNCTION onceward.lever_give_up(p_consumer text, p_ids text[], p_by text)
RETURNS TABLE (message_id text, answer text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    c_most  constant integer := 1000;
    v_noted text[];
BEGIN
    INSERT INTO onceward.control AS k (consumer) VALUES (p_consumer) ON CONFLICT (consumer) DO NOTHING;
    SELECT array_remove(k.give_up, NULL) INTO v_noted FROM onceward.control k WHERE k.consumer = p_consumer FOR UPDATE;
    FOR message_id, answer IN
        SELECT i.id, CASE WHEN r.status IN ('completed', 'dead') THEN r.status WHEN r.status IS NOT NULL THEN 'at_hand'
                          WHEN EXISTS (SELECT FROM onceward.history h WHERE h.hash = onceward.history_hash(p_consumer, i.id)) THEN 'completed'
                          ELSE 'unseen' END
        FROM unnest(p_ids) i (id) LEFT JOIN onceward.inbox r ON r.consumer = p_consumer AND r.message_id = i.id
        GROUP BY i.id, r.status ORDER BY i.id
    LOOP
        IF answer IN ('unseen', 'at_hand') AND message_id <> ALL (v_noted) THEN
            IF cardinality(v_noted) < c_most THEN
                v_noted := v_noted || message_id;
            ELSE
                answer := 'full';
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
    UPDATE onceward.control k SET give_up = v_noted, give_up_by = p_by WHERE k.consumer = p_consumer;
END
$$;

REVOKE ALL ON FUNCTION onceward.lever_give_up(text, text[], text) FROM PUBLIC;
