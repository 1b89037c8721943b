-- complete(token): the same as complete(token, NULL), for the usual case without a result to keep. See
-- complete_result.sql.
--
-- This function only handles the usual case, in as few steps as possible, because each application's transaction
-- pays for it. Everything else, refusals above all, is left to the other function, which starts again.
--
-- Locks, rows, repeating, rights: as there.
CREATE OR REPLACE FUNCTION onceward.complete(token text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_key text[] := onceward.token_read(token);
BEGIN
    IF v_key[4] IS NULL AND current_setting('synchronous_commit') <> 'off' THEN
        UPDATE onceward.inbox r
        SET status = 'completed', completed_at = clock_timestamp()
        WHERE r.consumer = v_key[1] AND r.message_id = v_key[2] AND r.token = v_key[3]::uuid AND r.status = 'processing';
        IF FOUND THEN
            RETURN 'completed';
        END IF;
    END IF;
    RETURN onceward.complete(token, NULL::text);
END
$$;

COMMENT ON FUNCTION onceward.complete(text) IS
    'In the transaction of the work, and first in it: marks the message of this Onceward-Token completed. OW001, OW002, OW003: let it abort the transaction.';

REVOKE ALL ON FUNCTION onceward.complete(text) FROM PUBLIC;
