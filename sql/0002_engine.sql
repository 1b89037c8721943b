-- What the engine of many queues needs: crashes and takeovers of a row, who is there, what operators want, and letters as AMQP had them.
--
-- Programs of version 1 go on: every function of theirs keeps its signature and its meaning, and a column that they do not know is NULL
-- in the rows that they make. NULL says 0, false or never, and costs nothing in a row that has other NULLs already.

-- Behind all others, so that a completion's WAL does not have them.
ALTER TABLE onceward.inbox
    ADD COLUMN crashes       integer,
    ADD COLUMN takeovers     integer,
    ADD COLUMN alone         boolean,
    ADD COLUMN unproven_at   timestamptz,
    ADD COLUMN unproven_step integer;

COMMENT ON COLUMN onceward.inbox.crashes IS 'How often the application crashed with it.';
COMMENT ON COLUMN onceward.inbox.takeovers IS 'Claims that took it from a holder who had ended without a word.';
COMMENT ON COLUMN onceward.inbox.alone IS 'The newest claim was made while its sidecar had nothing else in work.';
COMMENT ON COLUMN onceward.inbox.unproven_at IS 'When it was last charged for a crash of an application that nobody had seen alive before.';
COMMENT ON COLUMN onceward.inbox.unproven_step IS 'How many such charges there were in a row.';

ALTER TABLE onceward.dead_letter ADD COLUMN content_header bytea;

COMMENT ON COLUMN onceward.dead_letter.content_header IS 'The payload of the AMQP content header frame, as it came.';

CREATE TABLE onceward.replica (
    instance text COLLATE "C" PRIMARY KEY,
    number   bigint      NOT NULL,
    counter  bigint      NOT NULL,
    version  text        NOT NULL,
    queues   json        NOT NULL,
    seen_at  timestamptz NOT NULL,
    -- Taken out of the former once, by whoever writes it, instead of by everybody who reads it.
    consuming jsonb GENERATED ALWAYS AS (jsonb_path_query_array(queues::jsonb, '$[*] ? (@.state == "consuming").consumer')) STORED
) WITH (fillfactor = 50);

-- No index but the key, and room on the page: written every few seconds, it stays one HOT update.
COMMENT ON TABLE onceward.replica IS 'Who is there: a row an instance, written every few seconds.';
COMMENT ON COLUMN onceward.replica.queues IS 'What its queues do, for people and for `onceward status`: an object a queue.';
COMMENT ON COLUMN onceward.replica.consuming IS 'The consumers of those that are consuming.';

CREATE TABLE onceward.control (
    consumer text COLLATE "C" PRIMARY KEY,
    paused   boolean     NOT NULL DEFAULT false,
    reason   text,
    by       text,
    since    timestamptz,
    give_up  text[]      NOT NULL DEFAULT '{}',
    give_up_by  text,
    held_number bigint NOT NULL DEFAULT 0,
    held_by     text,
    held_at     timestamptz,
    retry_number bigint NOT NULL DEFAULT 0,
    retry_by     text
);

-- Pauses and ids to give up are states: they hold until somebody ends them, or the message is dead. The other two are done once by each
-- replica that is there, which remembers the number that it has done.
COMMENT ON TABLE onceward.control IS 'What operators want of a consumer.';
COMMENT ON COLUMN onceward.control.since IS 'When it was paused, or resumed, last; `by` and `reason` belong to that.';
COMMENT ON COLUMN onceward.control.give_up IS 'Ids of messages that are to become dead letters when they are at hand.';
COMMENT ON COLUMN onceward.control.held_number IS 'How often what is held while everything fails was given up: all that had come before held_at.';
COMMENT ON COLUMN onceward.control.retry_number IS 'How often what waits for its time was to be looked at at once.';

REVOKE ALL ON onceward.replica, onceward.control FROM PUBLIC;

-- A trigger runs as whoever writes, which for applications is the owner. Default privileges, or a GRANT ALL, may have given the right.
DO $$
DECLARE
    v_sql text;
BEGIN
    FOR v_sql IN
        SELECT DISTINCT pg_catalog.format('REVOKE TRIGGER ON %s FROM %s CASCADE', c.oid::regclass,
                                          CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE g.grantee::regrole::text END)
        FROM pg_catalog.pg_class c CROSS JOIN LATERAL pg_catalog.aclexplode(c.relacl) g
        WHERE c.relnamespace = 'onceward'::regnamespace AND g.privilege_type = 'TRIGGER' AND g.grantee <> c.relowner
    LOOP
        EXECUTE v_sql;
    END LOOP;
END
$$;

INSERT INTO onceward.schema_version (version, oldest_compatible) VALUES (2, 1);
