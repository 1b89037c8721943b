-- Records which queue each of several consumer names belongs to. Answers, one an item that is not, or cannot be, recorded: refused (the
-- name belongs to queue and vhost: two queues under one name would take each other's messages for completed) | busy (somebody is changing
-- the record: ask again). What is recorded has no row.
--
-- p_takes_overs names the queue that this one has replaced, in whatever vhost it was; the record is then changed. It may be this
-- queue's own name: then only the vhost is another.
--
-- Locks: the consumers' rows, only where they are changed, SKIP LOCKED: it never waits for one, except for another's uncommitted insert of
-- the same name, at most a second. Rows: one an item.
-- Repeating it: the second call finds what the first one recorded.
CREATE OR REPLACE FUNCTION onceward.sidecar_register_many(
    p_consumers text[], p_vhosts text[], p_queues text[], p_takes_overs text[])
RETURNS TABLE (ord integer, answer text, queue text, vhost text)
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

    INSERT INTO onceward.consumer AS c (consumer, vhost, queue)
    SELECT i.consumer, i.vhost, i.queue
    FROM unnest(p_consumers, p_vhosts, p_queues) i (consumer, vhost, queue)
    LEFT JOIN LATERAL (SELECT true AS yes FROM onceward.consumer c WHERE c.consumer = i.consumer LIMIT 1) there ON true
    WHERE there.yes IS NULL
    ORDER BY i.consumer COLLATE "C"
    ON CONFLICT (consumer) DO NOTHING;

    WITH taken AS MATERIALIZED (
        SELECT i.vhost, i.queue, f.tid
        FROM unnest(p_consumers, p_vhosts, p_queues, p_takes_overs) i (consumer, vhost, queue, takes_over)
        CROSS JOIN LATERAL (
            SELECT c.ctid AS tid FROM onceward.consumer c
            WHERE c.consumer = i.consumer AND (c.vhost, c.queue) <> (i.vhost, i.queue) AND c.queue = i.takes_over
            LIMIT 1 FOR UPDATE OF c SKIP LOCKED) f
        ORDER BY i.consumer COLLATE "C"
    )
    UPDATE onceward.consumer c SET vhost = t.vhost, queue = t.queue FROM taken t WHERE c.ctid = t.tid;

    RETURN QUERY
    SELECT i.ord::integer, CASE WHEN c.queue = i.takes_over OR c.queue IS NULL THEN 'busy' ELSE 'refused' END, c.queue, c.vhost
    FROM unnest(p_consumers, p_vhosts, p_queues, p_takes_overs) WITH ORDINALITY i (consumer, vhost, queue, takes_over, ord)
    LEFT JOIN LATERAL (SELECT c.vhost, c.queue FROM onceward.consumer c WHERE c.consumer = i.consumer LIMIT 1) c ON true
    WHERE (c.vhost = i.vhost AND c.queue = i.queue) IS NOT TRUE
    ORDER BY i.ord;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_register_many(text[], text[], text[], text[]) FROM PUBLIC;
