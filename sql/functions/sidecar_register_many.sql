-- Records which queue, of which vhost and broker, each of several consumer names belongs to. A queue may have a range:
-- orders-{0..15} are 16. A recorded queue has no row in the answer, except for `range`. Answers, one per item:
--   refused   the name belongs to another queue (broker, vhost and queue name it): under one name, two queues would
--             take each other's messages for completed
--   taken     the queue, or one of the range, belongs to another consumer (former): this name would process its
--             messages again
--   former    the same, and p_takes_overs names that consumer: the caller is to use its name, which the rows have. So
--             a replica that still runs under the former name and one that takes it over meet in the same rows
--   order     the recorded range of an ordered queue is another one (p_order_keys: the sources of its order key; '':
--             not ordered; NULL: unknown). A change of the range moves keys to other partitions, so that later messages
--             of a key may precede earlier ones. It is made if p_takes_overs names the recorded range
--   mode      replicas of this consumer keep the order of each key and this one does not (p_order_keys), or the
--             reverse, or they take the keys from other sources (former: the recorded ones). The setting is changed if
--             p_takes_overs names the recorded queue or range
--   running   the same, and p_takes_overs confirms it, but a replica still runs with the recorded setting
--   changes   ord is 0. number: onceward.horizon.order_changes before this call read the records. Claims name it, and
--             fail once order.key of their consumer is changed (time_mark)
--   busy      the record is being changed, or the broker is not known yet (NULL): ask again
--   range     recorded, with `queue` as its range; former: the range before this call, if it has changed. A recorded
--             range that is wider is that of earlier or other replicas: the caller reads those partitions, too, until
--             they are empty
--
-- The range of a new replica extends the recorded one. With p_ended the caller has found all partitions outside its
-- range empty: then the record becomes the smallest range that has its own and those of the replicas that wrote their
-- presence lately.
--
-- p_takes_overs names the queue that this one has replaced, in any vhost and at any broker; the record is then
-- changed. It may be this queue's own name: then only the vhost or the broker is another.
--
-- A change of order.key is made while no claim is in flight: claims wait for its end, and those of replicas that
-- registered before then fail (time_mark). Such a replica may have been suspended, or have no presence row. After 200
-- ms behind a claim the answer is busy.
--
-- Locks: for a change of order.key onceward.horizon, against claims; the consumers' rows, only if they are changed,
-- SKIP LOCKED. It waits only for another's uncommitted insert of the same name or queue, at most a second. Rows: one
-- per item.
-- Repeating it: the second call finds the records of the first one.
CREATE OR REPLACE FUNCTION onceward.sidecar_register_many(
    p_consumers text[], p_brokers text[], p_vhosts text[], p_queues text[], p_takes_overs text[], p_ended boolean[] DEFAULT NULL,
    p_order_keys text[] DEFAULT NULL)
RETURNS TABLE (ord integer, answer text, queue text, vhost text, broker text, former text, number bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- @plan nested_loops
SET enable_memoize = off
SET enable_tidscan = on
AS $$
DECLARE
    v_changed text[];
    v_formers text[];
    v_changes bigint;
    v_change  bigint;
BEGIN
    PERFORM set_config('lock_timeout', '1s', true);
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    -- history_move has done this, unless the entries alone were restored.
    IF pg_relation_size('onceward.history') > 0 AND NOT EXISTS (SELECT FROM onceward.history_begun) THEN
        INSERT INTO onceward.history_begun DEFAULT VALUES;
    END IF;

    -- Before the records are read: a number that is too old only makes claims fail.
    SELECT h.order_changes INTO v_changes FROM onceward.horizon h;

    INSERT INTO onceward.consumer AS c (consumer, broker, vhost, queue, order_key)
    SELECT i.consumer, i.broker, i.vhost, i.queue, coalesce(i.order_key, '')
    FROM unnest(p_consumers, p_brokers, p_vhosts, p_queues, p_order_keys) i (consumer, broker, vhost, queue, order_key)
    LEFT JOIN LATERAL (SELECT true AS yes FROM onceward.consumer c WHERE c.consumer = i.consumer LIMIT 1) there ON true
    WHERE there.yes IS NULL AND i.broker IS NOT NULL
      AND NOT EXISTS (SELECT FROM onceward.consumer o
                      WHERE o.vhost = i.vhost AND o.broker = i.broker AND onceward.queues_meet(o.queue, i.queue))
    ORDER BY i.consumer COLLATE "C"
    ON CONFLICT DO NOTHING;

    BEGIN
        IF EXISTS (
            SELECT FROM unnest(p_consumers, p_brokers, p_queues, p_takes_overs, p_order_keys) i (consumer, broker, queue, takes_over, order_key)
            JOIN onceward.consumer c ON c.consumer = i.consumer AND c.order_key <> i.order_key
            WHERE i.broker IS NOT NULL AND c.queue IN (i.takes_over, onceward.queue_hull(i.queue, i.takes_over))
              AND NOT onceward.consumer_order_runs(c.consumer, c.order_key)) THEN
            PERFORM set_config('lock_timeout', '200ms', true);
            LOCK TABLE ONLY onceward.horizon IN SHARE ROW EXCLUSIVE MODE;
            PERFORM set_config('lock_timeout', '1s', true);
            UPDATE onceward.horizon h SET order_changes = h.order_changes + 1 RETURNING h.order_changes INTO v_change;
        END IF;

        WITH taken AS MATERIALIZED (
            SELECT i.consumer, i.broker, i.vhost, f.queue, f.former, f.tid, coalesce(i.order_key, f.order_key) AS order_key
            FROM unnest(p_consumers, p_brokers, p_vhosts, p_queues, p_takes_overs, p_ended, p_order_keys)
                 i (consumer, broker, vhost, queue, takes_over, ended, order_key)
            CROSS JOIN LATERAL (
                SELECT c.ctid AS tid, c.queue AS former, c.order_key,
                       CASE WHEN onceward.queue_hull(c.queue, i.queue) IS NULL OR (c.vhost, c.broker) <> (i.vhost, i.broker) THEN i.queue
                            WHEN i.ended THEN onceward.consumer_range(i.consumer, i.queue)
                            ELSE onceward.queue_hull(c.queue, i.queue) END AS queue
                FROM onceward.consumer c
                WHERE c.consumer = i.consumer AND i.broker IS NOT NULL
                  AND (coalesce(c.order_key = i.order_key, true)
                       OR v_change IS NOT NULL AND NOT onceward.consumer_order_runs(c.consumer, c.order_key))
                  AND ((c.queue, c.vhost, c.broker) <> (i.queue, i.vhost, i.broker) OR c.order_key <> i.order_key)
                  AND (c.queue = i.takes_over OR onceward.queue_hull(c.queue, i.takes_over) IS NOT NULL
                       OR (onceward.queue_hull(c.queue, i.queue) IS NOT NULL AND (c.vhost, c.broker) = (i.vhost, i.broker)))
                  AND (c.queue IN (i.takes_over, onceward.queue_hull(i.queue, i.takes_over))
                       OR coalesce(c.order_key = i.order_key, true)
                          AND (coalesce(i.order_key, '') = '' OR onceward.queue_hull(c.queue, i.queue) IS NULL))
                LIMIT 1 FOR UPDATE OF c SKIP LOCKED) f
            WHERE NOT EXISTS (SELECT FROM onceward.consumer o
                              WHERE o.vhost = i.vhost AND o.broker = i.broker AND o.consumer <> i.consumer
                                AND onceward.queues_meet(o.queue, f.queue))
            ORDER BY i.consumer COLLATE "C"
        ), changed AS (
            UPDATE onceward.consumer c SET broker = t.broker, vhost = t.vhost, queue = t.queue, order_key = t.order_key,
                order_changed = CASE WHEN c.order_key <> t.order_key THEN v_change ELSE c.order_changed END
            FROM taken t
            WHERE c.ctid = t.tid AND (c.broker, c.vhost, c.queue, c.order_key) <> (t.broker, t.vhost, t.queue, t.order_key)
            RETURNING t.consumer,
                      CASE WHEN t.former <> t.queue AND onceward.queue_hull(t.former, t.queue) IS NOT NULL THEN t.former END AS former
        )
        SELECT array_agg(c.consumer), array_agg(c.former) INTO v_changed, v_formers FROM changed c;
        v_changes := coalesce(v_change, v_changes);
    EXCEPTION WHEN unique_violation OR lock_not_available THEN
        -- Another consumer has one of the queues since: nothing is taken over, and the answers below name it. Or
        -- claims did not end in time.
        PERFORM set_config('lock_timeout', '1s', true);
    END;

    RETURN QUERY SELECT 0, 'changes', NULL::text, NULL::text, NULL::text, NULL::text, v_changes;

    RETURN QUERY
    SELECT i.ord::integer,
           CASE WHEN c.queue <> i.takes_over IS NOT FALSE AND (NOT c.is_same OR c.vhost <> i.vhost) THEN 'refused'
                WHEN i.broker IS NULL THEN 'busy'
                WHEN c.queue <> i.takes_over IS NOT FALSE AND c.broker <> i.broker THEN 'refused'
                WHEN c.order_key <> i.order_key AND c.is_confirmed AND onceward.consumer_order_runs(i.consumer, c.order_key) THEN 'running'
                WHEN c.is_same AND c.order_key <> i.order_key AND c.is_confirmed THEN 'busy'
                WHEN c.is_same AND c.order_key <> i.order_key THEN 'mode'
                WHEN i.order_key <> '' AND c.is_same AND c.queue <> i.queue AND NOT c.is_confirmed THEN 'order'
                WHEN c.is_same AND (c.vhost, c.broker) = (i.vhost, i.broker)
                     AND coalesce(onceward.queue_hull(c.queue, i.queue) = c.queue, c.queue = i.queue) THEN 'range'
                WHEN o.consumer IS NULL THEN 'busy'
                WHEN c.queue IS NULL AND o.consumer = i.takes_over THEN 'former'
                ELSE 'taken' END,
           c.queue, c.vhost, c.broker, coalesce(n.former, CASE WHEN (c.is_same OR c.is_confirmed) AND c.order_key <> i.order_key THEN c.order_key END, o.consumer),
           NULL::bigint
    FROM unnest(p_consumers, p_brokers, p_vhosts, p_queues, p_takes_overs, p_order_keys)
         WITH ORDINALITY i (consumer, broker, vhost, queue, takes_over, order_key, ord)
    LEFT JOIN LATERAL (SELECT c.queue, c.vhost, c.broker, c.order_key,
                              c.queue = i.queue OR onceward.queue_hull(c.queue, i.queue) IS NOT NULL AS is_same,
                              (c.queue IN (i.takes_over, onceward.queue_hull(i.queue, i.takes_over))) IS TRUE AS is_confirmed
                       FROM onceward.consumer c WHERE c.consumer = i.consumer LIMIT 1) c ON true
    LEFT JOIN LATERAL (SELECT f.former FROM unnest(v_changed, v_formers) f (consumer, former) WHERE f.consumer = i.consumer LIMIT 1) n ON true
    LEFT JOIN LATERAL (SELECT o.consumer FROM onceward.consumer o
                       WHERE o.vhost = i.vhost AND o.broker = i.broker AND o.consumer <> i.consumer
                         AND onceward.queues_meet(o.queue, i.queue)
                       ORDER BY o.consumer LIMIT 1) o ON true
    WHERE (c.queue = i.queue AND c.vhost = i.vhost AND c.broker = i.broker AND c.order_key = coalesce(i.order_key, c.order_key)) IS NOT TRUE
       OR n.former IS NOT NULL
    ORDER BY i.ord;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_register_many(text[], text[], text[], text[], text[], boolean[], text[]) FROM PUBLIC;
