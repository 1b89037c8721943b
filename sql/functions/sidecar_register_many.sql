-- Records which queue, of which vhost and broker, each of several consumer names belongs to. Answers, one an item that is not, or cannot be,
-- recorded:
--   refused   the name belongs to another queue (broker, vhost and queue say which): two queues under one name would take each other's
--             messages for completed
--   taken     the queue belongs to another consumer (former): its messages would be done again under this name
--   former    the same, and p_takes_overs names that consumer: the caller is to use its name, under which the rows are. So a replica that
--             still runs under the former name and one that takes it over meet in the same rows
--   busy      the record is being changed, or the broker is not known yet (NULL): ask again
-- What is recorded has no row.
--
-- p_takes_overs names the queue that this one has replaced, in whatever vhost and at whatever broker it was; the record is then changed.
-- It may be this queue's own name: then only the vhost or the broker is another.
--
-- Locks: the consumers' rows, only where they are changed, SKIP LOCKED: it never waits for one, except for another's uncommitted insert of
-- the same name or queue, at most a second. Rows: one an item.
-- Repeating it: the second call finds what the first one recorded.
CREATE OR REPLACE FUNCTION onceward.sidecar_register_many(
    p_consumers text[], p_brokers text[], p_vhosts text[], p_queues text[], p_takes_overs text[])
RETURNS TABLE (ord integer, answer text, queue text, vhost text, broker text, former text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_memoize = off
SET enable_material = off
SET enable_nestloop = on
SET enable_indexscan = on
SET enable_tidscan = on
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    PERFORM set_config('lock_timeout', '1s', true);
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    INSERT INTO onceward.consumer AS c (consumer, broker, vhost, queue)
    SELECT i.consumer, i.broker, i.vhost, i.queue
    FROM unnest(p_consumers, p_brokers, p_vhosts, p_queues) i (consumer, broker, vhost, queue)
    LEFT JOIN LATERAL (SELECT true AS yes FROM onceward.consumer c WHERE c.consumer = i.consumer LIMIT 1) there ON true
    WHERE there.yes IS NULL AND i.broker IS NOT NULL
      AND NOT EXISTS (SELECT FROM onceward.consumer o WHERE (o.queue, o.vhost, o.broker) = (i.queue, i.vhost, i.broker))
    ORDER BY i.consumer COLLATE "C"
    ON CONFLICT DO NOTHING;

    BEGIN
        WITH taken AS MATERIALIZED (
            SELECT i.broker, i.vhost, i.queue, f.tid
            FROM unnest(p_consumers, p_brokers, p_vhosts, p_queues, p_takes_overs) i (consumer, broker, vhost, queue, takes_over)
            CROSS JOIN LATERAL (
                SELECT c.ctid AS tid FROM onceward.consumer c
                WHERE c.consumer = i.consumer AND (c.queue, c.vhost, c.broker) <> (i.queue, i.vhost, i.broker) AND c.queue = i.takes_over
                  AND NOT EXISTS (SELECT FROM onceward.consumer o WHERE (o.queue, o.vhost, o.broker) = (i.queue, i.vhost, i.broker))
                LIMIT 1 FOR UPDATE OF c SKIP LOCKED) f
            ORDER BY i.consumer COLLATE "C"
        )
        UPDATE onceward.consumer c SET broker = t.broker, vhost = t.vhost, queue = t.queue FROM taken t WHERE c.ctid = t.tid;
    EXCEPTION WHEN unique_violation THEN
        NULL; -- another consumer has got one of the queues since: nothing is taken over, and the answers below name it
    END;

    RETURN QUERY
    SELECT i.ord::integer,
           CASE WHEN c.queue <> i.takes_over IS NOT FALSE AND (c.queue, c.vhost) <> (i.queue, i.vhost) THEN 'refused'
                WHEN i.broker IS NULL THEN 'busy'
                WHEN c.queue <> i.takes_over IS NOT FALSE AND c.broker <> i.broker THEN 'refused'
                WHEN o.consumer IS NULL THEN 'busy'
                WHEN c.queue IS NULL AND o.consumer = i.takes_over THEN 'former'
                ELSE 'taken' END,
           c.queue, c.vhost, c.broker, o.consumer
    FROM unnest(p_consumers, p_brokers, p_vhosts, p_queues, p_takes_overs) WITH ORDINALITY i (consumer, broker, vhost, queue, takes_over, ord)
    LEFT JOIN LATERAL (SELECT c.queue, c.vhost, c.broker FROM onceward.consumer c WHERE c.consumer = i.consumer LIMIT 1) c ON true
    LEFT JOIN LATERAL (SELECT o.consumer FROM onceward.consumer o
                       WHERE (o.queue, o.vhost, o.broker) = (i.queue, i.vhost, i.broker) AND o.consumer <> i.consumer
                       ORDER BY o.consumer LIMIT 1) o ON true
    WHERE (c.queue = i.queue AND c.vhost = i.vhost AND c.broker = i.broker) IS NOT TRUE
    ORDER BY i.ord;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_register_many(text[], text[], text[], text[], text[]) FROM PUBLIC;
