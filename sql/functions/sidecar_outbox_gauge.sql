-- The waiting messages of the outbox, and its relay, for the stats and for people.
--
-- waiting: committed, and not confirmed by the written position; counted up to 10,000. Above that (exact is false)
-- it is the number of numbers drawn since, which is not less. Parked messages count, too. lag_ms: since the oldest
-- of them was published; 0: none. letters: of the outbox. holder: the relay; NULL when no sidecar has the lease, or
-- its time is over. bytes: of the three tables and the parked messages. turn_waits_ms: how long tables whose turn
-- is over could not be emptied; NULL: they could. restored: see sidecar_outbox_lease; then waiting and lag_ms are
-- meaningless.
--
-- Locks: none; it waits at most a second for a locked table. Rows: none changed. Repeating it: it only reads.
CREATE OR REPLACE FUNCTION onceward.sidecar_outbox_gauge(
    OUT waiting bigint, OUT exact boolean, OUT lag_ms bigint, OUT letters bigint, OUT lease bigint, OUT holder text, OUT left_ms bigint,
    OUT broker text, OUT vhost text, OUT bytes bigint, OUT turn_waits_ms bigint, OUT restored boolean)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    c_most constant integer := 10000;
    v_now  timestamptz := clock_timestamp();
    v_old  timestamptz;
    p      record;
BEGIN
    PERFORM set_config('lock_timeout', '1s', true);
    SELECT o.lease, CASE WHEN o.held_until > v_now THEN o.holder || '/' || o.number END,
           CASE WHEN o.held_until > v_now THEN ceil(1000 * extract(epoch FROM o.held_until - v_now)) END, o.broker, o.vhost
    INTO lease, holder, left_ms, broker, vhost
    FROM onceward.outbox o WHERE o.only_one;
    SELECT * INTO p FROM onceward.outbox_position q ORDER BY q.lease DESC, q.n DESC LIMIT 1;
    restored := p.resending IS NOT NULL OR p.table_oid IS DISTINCT FROM 'onceward.outbox_position'::regclass::oid
                OR p.system_identifier IS DISTINCT FROM onceward.outbox_system();
    SELECT w.n, w.oldest INTO waiting, v_old
    FROM onceward.outbox_waiting(p.done, p.floor, p.done_by, p.upto, p.last, c_most + 1) w;
    SELECT waiting + count(*), least(v_old, min(z.published_at)) INTO waiting, v_old
    FROM (SELECT z.published_at FROM onceward.outbox_parked z ORDER BY z.n LIMIT c_most + 1) z;
    exact := waiting <= c_most;
    IF NOT exact THEN
        SELECT greatest(waiting, n.last_value - greatest(p.floor, CASE WHEN p.resending IS NULL THEN p.last END)) INTO waiting FROM onceward.outbox_number n;
    END IF;
    lag_ms := coalesce(floor(1000 * extract(epoch FROM v_now - v_old)), 0);
    SELECT count(*) INTO letters FROM onceward.dead_letter l WHERE l.consumer = 'onceward-outbox' AND l.queue = '';
    bytes := pg_total_relation_size('onceward.outbox_0') + pg_total_relation_size('onceward.outbox_1') + pg_total_relation_size('onceward.outbox_2')
             + pg_total_relation_size('onceward.outbox_parked');
    turn_waits_ms := CASE WHEN NOT p.emptied THEN floor(1000 * extract(epoch FROM v_now - p.turned_at)) END;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_outbox_gauge() FROM PUBLIC;
