-- Presence and operator commands: records that this instance runs and what its queues do, and answers which other
-- instances run, and the commands for the given consumers. To be called every few seconds.
--
-- p_queues: a JSON array with an object for each queue. Its "consumer" and "may_consume" are read here, and with
-- p_ordered "stop": an ordered queue has nearly reached its delivery limit, which all replicas must know until an
-- operator retries (lever_retry): "count", the deliveries of the message, and "why"; or "outdated", the number of a
-- retry that let the queue continue, and whose messages are done. p_counter: the answer of the last call; NULL: none
-- on this connection. p_holders: instances whose claims the caller waits for. p_count: count the other instances.
--
-- Answers, in this order:
--   kind 'self'      number: the counter for the next call; yes: another process writes under this instance's name:
--                    the row was written between two calls, or has a larger number
--   kind 'others'    with p_count, one for each of p_consumers that other instances may consume, by their reports of
--                    the last 10 seconds: ord (its place in p_consumers), number: of these instances; and one
--                    without ord for the instances that consume none of them
--   kind 'peer'      with p_count and p_ordered, one for each ordered queue of p_consumers that another instance is
--                    subscribed to: ord, name: the instance, text: the queue, number: of its subscription, counter:
--                    deliveries that it has received, active: the queue delivers to it, yes: it could process a
--                    message now
--   kind 'holder'    one for each of p_holders that has a row: name, counter. The counter of an ended instance stays
--                    the same, and its row is deleted after 10 minutes
--   kind 'control'   one for each consumer that ever had an operator command: ord (its place in p_consumers), yes:
--                    paused, text: the reason, name: the operator of the last pause or resume, number: its time (ms
--                    since 1970)
--   kind 'stop'      with p_ordered, one for each stopped queue: ord, text: the queue, name: the reason, counter:
--                    deliveries of the message that stopped it. Or one for each queue that an operator lets continue:
--                    number: deliveries up to which it does, priority: of the retry, counter: NULL
--   kind 'retry'     each replica that has not carried out this number yet retries waiting messages: ord, number,
--                    name: the operator
--   kind 'held'      each replica that has not carried out this number yet gives up the messages that it holds because
--                    of the circuit breaker, if they arrived before the command: ord, number, name: the operator,
--                    counter: its age in ms
--   kind 'give_up'   one for each message to be given up: ord, text: its id, name: the operator of the last give-up
--
-- Ids to give up whose rows are dead or completed by now are taken off the list: a redriven message lives.
--
-- Rows that were not written for 10 minutes are deleted, by a replica's first call and once a minute, since each call
-- that counts reads all rows. So are rows that are 10 minutes ahead: the clock was set back, and a replica that has
-- ended since would count as present until that time. The interval between two such calls is the caller's, and grows
-- with the number of rows.
--
-- The commit is asynchronous, except for a stop: only a stop must outlive a crash.
--
-- Locks: the instance's row, and a consumer's when ids are taken off, SKIP LOCKED. It waits only for another's
-- uncommitted insert of the same name, or with a stop for the consumer's row of onceward.control, at most a second. A
-- call that finds the instance's row locked writes nothing. Rows: one, by a HOT update.
-- Repeating it: counts once more.
CREATE OR REPLACE FUNCTION onceward.sidecar_presence(
    p_instance text, p_number bigint, p_counter bigint, p_version text, p_host text, p_queues json, p_consumers text[], p_holders text[],
    p_count boolean, p_ordered boolean DEFAULT false)
RETURNS TABLE (kind text, ord integer, name text, number bigint, counter bigint, yes boolean, text text, priority bigint, active boolean)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- @plan index
SET enable_indexscan = on
SET enable_tidscan = on
AS $$
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_there record;
    v_wanted record;
    v_next  bigint := 1;
    v_only  text := p_consumers[1];
    v_stops json;
BEGIN
    PERFORM set_config('lock_timeout', '1s', true), set_config('synchronous_commit', 'off', true);

    SELECT r.ctid AS tid, r.number, r.counter INTO v_there
    FROM onceward.replica r WHERE r.instance = p_instance FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        v_next := v_there.counter + 1;
        UPDATE onceward.replica r
        SET number = p_number, counter = v_next, version = p_version, host = p_host, queues = p_queues, seen_at = v_now
        WHERE r.ctid = v_there.tid;
    ELSE
        INSERT INTO onceward.replica AS r (instance, number, counter, version, host, queues, seen_at)
        VALUES (p_instance, p_number, v_next, p_version, p_host, p_queues, v_now) ON CONFLICT (instance) DO NOTHING;
    END IF;
    IF p_counter IS NULL OR v_next % 12 = 0 THEN
        DELETE FROM onceward.replica r
        WHERE r.instance IN (SELECT o.instance FROM onceward.replica o
                             WHERE o.seen_at NOT BETWEEN v_now - interval '10 minutes' AND v_now + interval '10 minutes'
                               AND o.instance <> p_instance FOR UPDATE OF o SKIP LOCKED);
    END IF;

    kind := 'self';
    number := v_next;
    -- A server that crashed may have lost the last calls: then the counter is smaller, which proves nothing.
    yes := coalesce(v_there.number > p_number
                    OR (p_counter IS NOT NULL AND (v_there.number < p_number OR v_there.counter > p_counter)), false);
    RETURN NEXT;

    -- Most sidecars have one queue.
    IF p_count AND cardinality(p_consumers) = 1 THEN
        RETURN QUERY
        SELECT 'others', CASE WHEN r.may_consume ? v_only THEN 1 END, NULL::text, count(*), NULL::bigint, NULL::boolean, NULL::text,
               NULL::bigint, NULL::boolean
        FROM onceward.replica r
        WHERE r.seen_at > v_now - interval '10 seconds' AND r.instance <> p_instance
        GROUP BY 2;
    ELSIF p_count THEN
        RETURN QUERY
        SELECT 'others', array_position(p_consumers, e.consumer), NULL::text, count(*), NULL::bigint, NULL::boolean, NULL::text,
               NULL::bigint, NULL::boolean
        FROM onceward.replica r
        LEFT JOIN LATERAL (SELECT DISTINCT e.consumer COLLATE "C" FROM jsonb_array_elements_text(r.may_consume) e (consumer)
                           WHERE e.consumer = ANY (p_consumers)) e ON r.may_consume ?| p_consumers
        WHERE r.seen_at > v_now - interval '10 seconds' AND r.instance <> p_instance
        GROUP BY 2;
    END IF;
    IF p_count AND p_ordered THEN
        RETURN QUERY
        SELECT 'peer', array_position(p_consumers, (e.queue ->> 'consumer')::text), r.instance, (e.queue ->> 'subscription')::bigint,
               (e.queue ->> 'received')::bigint, e.queue ->> 'may_consume' IS NOT DISTINCT FROM 'true', e.queue ->> 'queue',
               NULL::bigint, e.queue ->> 'active' IS NOT DISTINCT FROM 'true'
        FROM onceward.replica r, json_array_elements(CASE json_typeof(r.queues) WHEN 'array' THEN r.queues ELSE '[]' END) e (queue)
        WHERE r.seen_at > v_now - interval '10 seconds' AND r.instance <> p_instance AND e.queue ->> 'consumer' = ANY (p_consumers)
          AND e.queue ->> 'subscription' ~ '^\d{1,18}$' AND e.queue ->> 'received' ~ '^\d{1,18}$';
    END IF;
    IF cardinality(p_holders) > 0 THEN
        RETURN QUERY
        SELECT 'holder', NULL::integer, r.instance, NULL::bigint, r.counter, NULL::boolean, NULL::text, NULL::bigint, NULL::boolean
        FROM onceward.replica r WHERE r.instance = ANY (p_holders);
    END IF;

    IF p_ordered THEN
        SELECT json_agg(e.queue) INTO v_stops FROM json_array_elements(p_queues) e (queue)
        WHERE e.queue -> 'stop' IS NOT NULL AND e.queue ->> 'consumer' = ANY (p_consumers);
        IF v_stops IS NOT NULL THEN
            PERFORM set_config('synchronous_commit', 'on', true);
            -- After a wait for the row, its newest version decides: another replica may have recorded a stop meanwhile.
            UPDATE onceward.control k
            SET stopped = k.stopped - ARRAY(
                SELECT e.queue ->> 'queue' FROM json_array_elements(v_stops) e (queue)
                WHERE e.queue ->> 'consumer' = k.consumer
                  AND (k.stopped -> (e.queue ->> 'queue') ->> 'retry')::bigint = (e.queue -> 'stop' ->> 'outdated')::bigint)
            WHERE k.consumer = ANY (p_consumers) AND EXISTS (
                SELECT FROM json_array_elements(v_stops) e (queue)
                WHERE e.queue ->> 'consumer' = k.consumer
                  AND (k.stopped -> (e.queue ->> 'queue') ->> 'retry')::bigint = (e.queue -> 'stop' ->> 'outdated')::bigint);
            -- A replica that does not know of an acceptance yet learns it below.
            INSERT INTO onceward.control AS k (consumer, stopped)
            SELECT e.queue ->> 'consumer',
                   jsonb_object_agg(e.queue ->> 'queue', (e.queue -> 'stop')::jsonb - 'outdated' || jsonb_build_object('at', v_now))
            FROM json_array_elements(v_stops) e (queue) WHERE e.queue -> 'stop' -> 'count' IS NOT NULL GROUP BY 1 ORDER BY 1
            ON CONFLICT (consumer) DO UPDATE
            SET stopped = k.stopped || (excluded.stopped - ARRAY(
                SELECT s.key FROM jsonb_each(k.stopped) s
                WHERE (s.value ->> 'accepted')::bigint >= (excluded.stopped -> s.key ->> 'count')::bigint));
        END IF;
        RETURN QUERY
        SELECT 'stop', array_position(p_consumers, k.consumer), coalesce(s.value ->> 'why', ''), (s.value ->> 'accepted')::bigint,
               (s.value ->> 'count')::bigint, NULL::boolean, s.key, (s.value ->> 'retry')::bigint, NULL::boolean
        FROM onceward.control k, jsonb_each(k.stopped) s WHERE k.consumer = ANY (p_consumers);
    END IF;

    -- Most consumers never had an operator command, and most of the others only a pause: so rare commands are read
    -- separately.
    RETURN QUERY
    SELECT 'control', array_position(p_consumers, k.consumer), coalesce(k.by, ''), floor(1000 * extract(epoch FROM k.since))::bigint,
           NULL::bigint, k.paused, coalesce(k.reason, ''), NULL::bigint, NULL::boolean
    FROM onceward.control k WHERE k.consumer = ANY (p_consumers)
    ORDER BY 2;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT bool_or(k.retry_number > 0 OR k.held_number > 0) AS once, bool_or(k.give_up <> '{}') AS give_up INTO v_wanted
    FROM onceward.control k WHERE k.consumer = ANY (p_consumers);

    IF v_wanted.once THEN
        RETURN QUERY
        SELECT l.kind, array_position(p_consumers, k.consumer), coalesce(l.by, ''), l.number, l.ago_ms, k.paused,
               coalesce(k.reason, ''), NULL::bigint, NULL::boolean
        FROM onceward.control k
        CROSS JOIN LATERAL (VALUES
            (1, 'retry', k.retry_by, k.retry_number, NULL),
            (2, 'held', k.held_by, k.held_number, floor(1000 * extract(epoch FROM v_now - k.held_at))::bigint)) l (n, kind, by, number, ago_ms)
        WHERE k.consumer = ANY (p_consumers) AND l.number > 0
        ORDER BY 2, l.n;
    END IF;
    IF NOT v_wanted.give_up THEN
        RETURN;
    END IF;

    UPDATE onceward.control k
    SET give_up = t.still
    FROM (SELECT k.ctid AS tid,
                 ARRAY(SELECT g.id FROM unnest(k.give_up) g (id)
                       WHERE NOT EXISTS (SELECT FROM onceward.inbox r WHERE r.consumer = k.consumer AND r.message_id = g.id
                                                                        AND r.status IN ('dead', 'completed'))) AS still
          FROM onceward.control k
          WHERE k.consumer = ANY (p_consumers) AND EXISTS (
              SELECT FROM unnest(k.give_up) g (id)
              JOIN onceward.inbox r ON r.consumer = k.consumer AND r.message_id = g.id AND r.status IN ('dead', 'completed'))
          FOR UPDATE OF k SKIP LOCKED) t
    WHERE k.ctid = t.tid;

    RETURN QUERY
    SELECT 'give_up', c.n::integer, coalesce(k.give_up_by, ''), NULL::bigint, NULL::bigint, NULL::boolean, g.id, NULL::bigint, NULL::boolean
    FROM unnest(p_consumers) WITH ORDINALITY c (consumer, n)
    JOIN onceward.control k ON k.consumer = c.consumer
    CROSS JOIN LATERAL unnest(k.give_up) g (id)
    WHERE g.id IS NOT NULL
    ORDER BY c.n;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_presence(text, bigint, bigint, text, text, json, text[], text[], boolean, boolean) FROM PUBLIC;
