-- The rights of the two roles. Run by the owner of the schema; safe to repeat.
-- PUBLIC has no rights: each function's own file revokes them.
--
-- No membership is granted: an administrator decides who may see other sessions (pg_read_all_stats shows every
-- query's text). Sidecars run without it, and their log reports what they cannot see.

GRANT USAGE ON SCHEMA onceward TO onceward_sidecar, onceward_app;

-- The sidecar: its rows, but no DDL.
GRANT SELECT ON onceward.schema_version TO onceward_sidecar;
GRANT SELECT, INSERT, UPDATE, DELETE ON onceward.inbox, onceward.dead_letter, onceward.consumer, onceward.control, onceward.replica
    TO onceward_sidecar;
GRANT SELECT, UPDATE ON onceward.letter_lock, onceward.horizon TO onceward_sidecar;
GRANT SELECT, INSERT, DELETE ON onceward.history TO onceward_sidecar;
GRANT SELECT, INSERT ON onceward.message, onceward.history_begun TO onceward_sidecar;
GRANT USAGE ON SEQUENCE onceward.message_seq, onceward.consumer_number TO onceward_sidecar;
GRANT SELECT ON onceward.message_retention TO onceward_sidecar;
GRANT SELECT, INSERT, UPDATE, DELETE ON onceward.replay TO onceward_sidecar;
GRANT SELECT, INSERT, UPDATE, DELETE ON onceward.outbox_position, onceward.outbox_life TO onceward_sidecar;
GRANT SELECT, INSERT, DELETE ON onceward.outbox_parked TO onceward_sidecar;
GRANT SELECT, UPDATE ON onceward.outbox, onceward.outbox_number, onceward.outbox_turn TO onceward_sidecar;
GRANT SELECT, UPDATE, DELETE, TRUNCATE ON onceward.outbox_0, onceward.outbox_1, onceward.outbox_2 TO onceward_sidecar;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA onceward TO onceward_sidecar;

-- The application: its functions only.
GRANT EXECUTE ON FUNCTION onceward.complete(text), onceward.complete(text, text), onceward.extend(text, double precision),
    onceward.complete_all(text[]), onceward.complete_valid(text[]), onceward.extend_all(text[], double precision),
    onceward.publish(text, text, jsonb, text, text, jsonb, jsonb), onceward.publish(text, text, bytea, text, text, jsonb, jsonb)
    TO onceward_app;
