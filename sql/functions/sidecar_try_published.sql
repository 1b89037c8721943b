-- For `onceward try`: the messages that its application has published since the number p_floor. With p_discard,
-- also deletes those that no relay has sent.
--
-- p_transaction: count only messages of transactions that completed a row of p_consumer; others counts the rest,
-- which stays. Without it all are counted. While a relay has the lease (relay names it), it may send at any moment:
-- then nothing is deleted.
--
-- n, ids: the messages, at most ten ids. unsent: those that no relay has sent. discarded: deleted.
--
-- Locks: with p_discard the row of the lease, for which it waits at most 5 s: no relay starts meanwhile. Rows: the
-- messages.
-- Repeating it: deletes nothing more.
CREATE OR REPLACE FUNCTION onceward.sidecar_try_published(
    p_consumer text, p_floor bigint, p_transaction boolean, p_discard boolean,
    OUT n bigint, OUT others bigint, OUT unsent bigint, OUT discarded bigint, OUT ids text, OUT relay text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    c_ids  constant integer := 10;
    v_seqs bigint[];
    p      onceward.outbox_position;
BEGIN
    IF p_discard THEN
        PERFORM set_config('lock_timeout', '5s', true);
        PERFORM FROM onceward.outbox o FOR UPDATE;
    END IF;
    SELECT o.holder || '/' || o.number INTO relay FROM onceward.outbox o WHERE o.held_until > clock_timestamp();
    SELECT * INTO p FROM onceward.outbox_position q ORDER BY q.lease DESC, q.n DESC LIMIT 1;
    SELECT count(*) FILTER (WHERE f.ours), count(*) FILTER (WHERE NOT f.ours), array_agg(f.seq) FILTER (WHERE f.ours AND f.waits),
           string_agg(f.message_id, ', ' ORDER BY f.seq) FILTER (WHERE f.ours AND f.nth <= c_ids)
    INTO n, others, v_seqs, ids
    FROM (
        SELECT u.*, row_number() OVER (PARTITION BY u.ours ORDER BY u.seq) AS nth,
               EXISTS (SELECT FROM onceward.outbox_parked k WHERE k.seq = u.seq AND k.message_id = u.message_id)
               OR (NOT pg_visible_in_snapshot(u.xid, p.done)
                   AND (p.upto IS NULL OR u.seq > p.last OR NOT pg_visible_in_snapshot(u.xid, p.upto))) AS waits
        FROM (
            SELECT z.seq, z.xid, z.message_id,
                   NOT p_transaction OR EXISTS (SELECT FROM onceward.inbox r WHERE r.consumer = p_consumer AND r.status = 'completed'
                                                AND r.message_id >= p_consumer || '.' AND r.message_id < p_consumer || '/'
                                                AND r.xmin::text::bigint = z.xid::text::numeric % 4294967296) AS ours
            FROM (SELECT a.seq, a.xid, a.message_id FROM onceward.outbox_0 a WHERE a.seq > p_floor
                  UNION ALL SELECT a.seq, a.xid, a.message_id FROM onceward.outbox_1 a WHERE a.seq > p_floor
                  UNION ALL SELECT a.seq, a.xid, a.message_id FROM onceward.outbox_2 a WHERE a.seq > p_floor) z) u) f;
    unsent := coalesce(cardinality(v_seqs), 0);
    discarded := 0;
    IF p_discard AND relay IS NULL AND unsent > 0 THEN
        DELETE FROM onceward.outbox_0 z WHERE z.seq = ANY (v_seqs);
        DELETE FROM onceward.outbox_1 z WHERE z.seq = ANY (v_seqs);
        DELETE FROM onceward.outbox_2 z WHERE z.seq = ANY (v_seqs);
        DELETE FROM onceward.outbox_parked z WHERE z.seq = ANY (v_seqs);
        discarded := unsent;
    END IF;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_try_published(text, bigint, boolean, boolean) FROM PUBLIC;
