-- complete(token): the same as complete(token, NULL), for the usual case without an outcome to keep. See complete_result.sql.
--
-- Locks, rows, repeating: as there. It has no rights of its own: the caller needs EXECUTE on both.
CREATE OR REPLACE FUNCTION onceward.complete(token text) RETURNS text
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN onceward.complete(token, NULL::pg_catalog.text);
END
$$;

COMMENT ON FUNCTION onceward.complete(text) IS
    'In the transaction of the work, and first in it: marks the message of this Onceward-Token completed. OW001, OW002, OW003: let it abort the transaction.';

REVOKE ALL ON FUNCTION onceward.complete(text) FROM PUBLIC;
