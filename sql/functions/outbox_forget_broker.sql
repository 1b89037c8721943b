-- For operators, before the outbox is sent to another broker or vhost than the one recorded at its first use:
-- deletes the record, and the next sidecar that starts makes a new one. Waiting messages go to the new broker.
--
-- Returns the deleted record; NULL: there was none.
--
-- Locks: the row of onceward.outbox, for which it waits at most 5 s. Rows: one. Repeating it: has no further
-- effect.
CREATE OR REPLACE FUNCTION onceward.outbox_forget_broker() RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_was text;
BEGIN
    PERFORM set_config('lock_timeout', '5s', true);
    SELECT o.broker || ' (vhost ' || o.vhost || ')' INTO v_was FROM onceward.outbox o FOR UPDATE;
    UPDATE onceward.outbox o SET broker = NULL, vhost = NULL, first_used_at = NULL WHERE o.broker IS NOT NULL;
    RETURN v_was;
END
$$;

REVOKE ALL ON FUNCTION onceward.outbox_forget_broker() FROM PUBLIC;
