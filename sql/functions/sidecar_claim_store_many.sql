-- sidecar_claim_many for queues with `store`: the messages whose rows it inserts are stored whole, in the same
-- transaction. So every row has its message, as long as both are kept, and the message is stored once, however often
-- it is claimed again.
--
-- Parameters and answers are those of sidecar_claim_many. p_arrivals: numbers in the order of arrival. A message
-- whose p_bodies is NULL is not stored.
--
-- Its own rows are those written by this transaction or a block of it (whose number is higher) with the offered token,
-- and not claimed before (alive_since).
--
-- Locks: those of sidecar_claim_many, and before them the table of messages in the mode of an INSERT, so that
-- readers in the order of arrival can tell from pg_locks when all claims before some time are committed. That waits
-- only for sidecar_keep_messages, which gives up after 50 ms.
-- Rows: one per item. Repeating it: as sidecar_claim_many; an existing row stores nothing.
CREATE OR REPLACE FUNCTION onceward.sidecar_claim_store_many(
    p_transaction boolean, p_instance text, p_number bigint, p_own boolean, p_gone text[], p_grace_ms bigint,
    p_consumers text[], p_windows interval[], p_max_windows interval[], p_max_attempts integer[], p_revives integer[],
    p_queues integer[], p_ids text[], p_tokens uuid[], p_fingerprints bytea[], p_types text[], p_deaths bigint[], p_alone boolean[],
    p_arrivals bigint[], p_exchanges text[], p_routing_keys text[], p_content_headers bytea[], p_bodies bytea[],
    p_order_changes bigint DEFAULT NULL, p_hashes uuid[] DEFAULT NULL)
RETURNS TABLE (ord integer, answer text, attempt integer, takeovers integer, crashes integer, unproven_ms bigint, unproven_step integer,
               batch_cap integer, wait_ms bigint, age_ms bigint, taken_over boolean, namesake boolean, detail text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- @plan nested_loops
SET enable_memoize = off
SET enable_indexonlyscan = on
AS $$
DECLARE
    v_at timestamptz; -- time of all of them, if all are new
BEGIN
    PERFORM set_config('lock_timeout', '1s', true);
    LOCK TABLE ONLY onceward.message IN ROW EXCLUSIVE MODE;

    FOR ord, answer, attempt, takeovers, crashes, unproven_ms, unproven_step, batch_cap, wait_ms, age_ms, taken_over, namesake, detail IN
        SELECT c.* FROM onceward.sidecar_claim_many(p_transaction, p_instance, p_number, p_own, p_gone, p_grace_ms, p_consumers, p_windows,
                                                    p_max_windows, p_max_attempts, p_revives, p_queues, p_ids, p_tokens, p_fingerprints,
                                                    p_types, p_deaths, p_alone, p_order_changes, p_hashes) c
    LOOP
        RETURN NEXT;
    END LOOP;

    -- Nearly always all messages are new. Then there is one answer and one time for all.
    IF answer = 'claimed' AND ord = -cardinality(p_ids) THEN
        SELECT r.received_at INTO v_at FROM onceward.inbox r
        WHERE r.consumer = p_consumers[p_queues[1]] AND r.message_id = p_ids[1];
    END IF;

    -- Bodies are not part of the sorted rows: they are copied once, into the table.
    INSERT INTO onceward.message (consumer, message_id, received_at, message_type, exchange, routing_key, content_header, body)
    SELECT p_consumers[i.queue], i.id, own.received_at, i.type, coalesce(i.exchange, ''), coalesce(i.routing_key, ''), p_content_headers[i.n],
           p_bodies[i.n]
    FROM (SELECT u.* FROM unnest(p_queues, p_ids, p_tokens, p_types, p_arrivals, p_exchanges, p_routing_keys)
              WITH ORDINALITY u (queue, id, token, type, arrival, exchange, routing_key, n)
          ORDER BY u.arrival) i
    CROSS JOIN LATERAL (
        SELECT v_at AS received_at WHERE v_at IS NOT NULL
        UNION ALL
        (SELECT r.received_at FROM onceward.inbox r
         WHERE v_at IS NULL AND r.consumer = p_consumers[i.queue] AND r.message_id = i.id
           AND r.token = i.token AND age(r.xmin) <= age(pg_current_xact_id()::xid) AND r.alive_since IS NULL
         LIMIT 1)) own
    WHERE p_bodies[i.n] IS NOT NULL;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_claim_store_many(boolean, text, bigint, boolean, text[], bigint, text[], interval[], interval[],
                                                         integer[], integer[], integer[], text[], uuid[], bytea[], text[], bigint[],
                                                         boolean[], bigint[], text[], text[], bytea[], bytea[], bigint, uuid[]) FROM PUBLIC;
