-- sidecar_keep_house for programs of version 1, which do not tell their clock: the database's counts alone.
--
-- Locks, rows, repeating: as there.
CREATE OR REPLACE FUNCTION onceward.sidecar_housekeep(
    p_consumer text, p_instance text, p_retention_ms bigint, p_late_ms bigint, p_from_page bigint, p_budget_us bigint,
    OUT purged bigint, OUT swept bigint, OUT orphans bigint, OUT next_page bigint, OUT took_us bigint, OUT away_ms bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    SELECT k.purged, k.swept, k.orphans, k.next_page, k.took_us, k.away_ms INTO purged, swept, orphans, next_page, took_us, away_ms
    FROM onceward.sidecar_keep_house(p_consumer, p_instance, p_retention_ms, p_late_ms, p_from_page, p_budget_us, NULL) k;
END
$$;

REVOKE ALL ON FUNCTION onceward.sidecar_housekeep(text, text, bigint, bigint, bigint, bigint) FROM PUBLIC;
