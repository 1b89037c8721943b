-- For operators: parked messages of an abandoned exchange become dead letters, which `onceward dead` shows, redrives
-- and discards. The relay continues with messages published later. With a routing key only its messages are given up,
-- which leaves a gap in its order.
--
-- Returns their number. Locks: the row of the lease, for which it waits at most 5 s. Rows: one per message.
-- Repeating it: gives up messages parked since.
CREATE OR REPLACE FUNCTION onceward.outbox_give_up(p_exchange text, p_routing_key text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_lease  bigint;
    v_vhost  text;
    v_buried bigint;
BEGIN
    PERFORM set_config('lock_timeout', '5s', true);
    SELECT o.lease, coalesce(o.vhost, '') INTO v_lease, v_vhost FROM onceward.outbox o FOR UPDATE;
    SELECT count(*) INTO v_buried FROM (
        SELECT array_agg(-z.n ORDER BY z.n) AS seqs, array_agg(z.message_id::text ORDER BY z.n) AS ids, count(*)::integer AS n
        FROM onceward.outbox_parked z WHERE z.exchange = p_exchange AND z.routing_key = coalesce(p_routing_key, z.routing_key)) a
    CROSS JOIN LATERAL onceward.sidecar_outbox_bury(v_lease, v_vhost, a.seqs, a.ids, array_fill('operator'::text, ARRAY[a.n]),
        array_fill('an operator gave up what was parked for this exchange'::text, ARRAY[a.n])) b
    WHERE b.answer = 'buried';
    RETURN v_buried;
END
$$;

REVOKE ALL ON FUNCTION onceward.outbox_give_up(text, text) FROM PUBLIC;
