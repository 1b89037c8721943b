-- Does a replica that was seen lately, and has not drained, run this consumer with this order key? '': without order.
--
-- Locks: none. Rows: one.
CREATE OR REPLACE FUNCTION onceward.consumer_order_runs(p_consumer text, p_order_key text) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM onceward.replica r, json_array_elements(CASE json_typeof(r.queues) WHEN 'array' THEN r.queues ELSE '[]' END) e (queue)
        WHERE r.seen_at > clock_timestamp() - interval '15 seconds' AND e.queue ->> 'consumer' = p_consumer
          AND coalesce(e.queue ->> 'order_key', '') = p_order_key AND e.queue ->> 'state' IS DISTINCT FROM 'drained');
END
$$;

REVOKE ALL ON FUNCTION onceward.consumer_order_runs(text, text) FROM PUBLIC;
