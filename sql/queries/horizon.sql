-- The clock's time, and the transactions that write times now, as an array. $1: all of them, not only writers of
-- stored messages, which have both locks. A standby shows no locks: its time lies so far before the last replayed
-- transaction that no older one can be open. The time is read first, so that later owners of these locks have a later
-- time.
--
-- Locks: none. Repeating it: only reads.
SELECT to_char((CASE WHEN pg_is_in_recovery() THEN coalesce(pg_last_xact_replay_timestamp() - interval '5 minutes', '0001-01-01Z') ELSE t END)
               AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
       ARRAY(
SELECT l.virtualtransaction
-- @part time_owners
       )::text
FROM (SELECT clock_timestamp() AS t OFFSET 0) now
