-- The smallest pattern that has the queues of p_queue, and those of the consumer's replicas that have not drained: all
-- queues to be read.
--
-- Locks: none. Rows: one.
CREATE OR REPLACE FUNCTION onceward.consumer_range(p_consumer text, p_queue text) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_other text;
BEGIN
    FOR v_other IN
        SELECT DISTINCT e.queue ->> 'pattern'
        FROM onceward.replica r, json_array_elements(CASE json_typeof(r.queues) WHEN 'array' THEN r.queues ELSE '[]' END) e (queue)
        WHERE r.seen_at > clock_timestamp() - interval '30 seconds' AND e.queue ->> 'consumer' = p_consumer
          AND e.queue ->> 'pattern' IS NOT NULL AND e.queue ->> 'state' IS DISTINCT FROM 'drained'
    LOOP
        p_queue := coalesce(onceward.queue_hull(p_queue, v_other), p_queue);
    END LOOP;
    RETURN p_queue;
END
$$;

REVOKE ALL ON FUNCTION onceward.consumer_range(text, text) FROM PUBLIC;
