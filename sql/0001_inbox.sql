-- The inbox, the dead letters, and the record of the schema itself.
--
-- How the files of sql/ are run (`onceward migrate`), in one transaction under pg_advisory_xact_lock:
--   1. every numbered file that onceward.schema_version does not have yet, in the order of the numbers (no such table: none was run);
--      a numbered file is never changed once it was released, and ends with the INSERT of its own row;
--   2. every file of sql/functions, in the order of the names: CREATE OR REPLACE, so they may be run again and again, also while
--      sidecars run. A function whose arguments or columns change is dropped in a numbered file first;
--   3. roles_create.sql behind a savepoint, then roles_grant.sql. Where the role may not create roles (42501) and they do not exist,
--      go back to the savepoint and print both files for the administrator instead; nothing else depends on them.
-- A program must not run any of this on a schema with a higher version than its own newest file: it would put old functions back.
--
-- Versions: `version` is the number of the newest migration. `oldest_compatible`, read from that same row, is the version of
-- the oldest program that may use the schema as it is now (a program's version is the number of the newest migration it contains). So a
-- program with number P consumes only when version >= P and oldest_compatible <= P. sidecar_schema() answers both.
--
-- Names are qualified throughout: the search_path of whoever runs this does not matter.

DO $$
BEGIN
    IF pg_catalog.current_setting('server_encoding') <> 'UTF8' THEN
        RAISE EXCEPTION USING ERRCODE = '0A000',
            MESSAGE = 'onceward needs a database with the encoding UTF8, this one has ' || pg_catalog.current_setting('server_encoding'),
            HINT = 'CREATE DATABASE … ENCODING ''UTF8'' TEMPLATE template0';
    END IF;
END
$$;

CREATE SCHEMA IF NOT EXISTS onceward;

CREATE TABLE onceward.schema_version (
    version           integer     PRIMARY KEY,
    oldest_compatible integer     NOT NULL CHECK (oldest_compatible <= version),
    applied_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    applied_by        text        NOT NULL DEFAULT session_user
);

COMMENT ON TABLE onceward.schema_version IS 'One row for each migration that was run. The newest row counts.';

-- One row for each message that was ever claimed, until the retention.
--
-- No index may name a column that settling changes, not even in a predicate: every completion would stop being a HOT
-- update. received_at never changes, so it may have one. fillfactor 48 leaves room for the one update that
-- every row gets, which makes it a word longer (at 50 one update in sixteen found none, depending on the length of the ids).
-- The key is COLLATE "C": it sorts like the sidecar sorts, and survives a change of the system's collations.
--
-- The order of the columns is for the WAL. It has only the bytes between the first and the last that an update changes, so the columns
-- that a completion changes stand together, and the others move by a whole word. No CHECK here: PostgreSQL makes the expression
-- of each one anew for every statement that writes, which is a tenth of the price of complete().
CREATE TABLE onceward.inbox (
    token            uuid        NOT NULL,
    status           text COLLATE "C" NOT NULL,
    http_status      integer,
    completed_at     timestamptz,
    received_at      timestamptz NOT NULL,
    alive_since      timestamptz,
    token_expires_at timestamptz NOT NULL,
    max_expires_at   timestamptz NOT NULL,
    next_attempt_at  timestamptz,
    attempt          integer     NOT NULL,
    fingerprint      bytea       NOT NULL,
    message_id       text COLLATE "C" NOT NULL,
    consumer         text COLLATE "C" NOT NULL,
    claimed_by       text        NOT NULL,
    message_type     text,
    last_error       text,
    result           text,
    PRIMARY KEY (consumer, message_id)
) WITH (
    fillfactor = 48,
    -- Purged rows must become room for new ones soon: a fiftieth of the table is enough, and vacuum need not be slow about it.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_vacuum_cost_delay = 1,
    -- Plans do not depend on statistics; people's queries still do, a little.
    autovacuum_analyze_scale_factor = 0.2,
    autovacuum_analyze_threshold = 10000
);

CREATE INDEX inbox_received_at ON onceward.inbox USING brin (received_at);

COMMENT ON TABLE onceward.inbox IS 'What onceward knows of each message. Change it only through the functions of this schema.';
COMMENT ON COLUMN onceward.inbox.status IS 'processing: a token is out. failed: will be tried again. waiting: given back without fault, or redriven. dead: given up, see dead_letter.';
COMMENT ON COLUMN onceward.inbox.attempt IS 'Claims that led to a forward; counted when it is claimed, given back by release.';
COMMENT ON COLUMN onceward.inbox.token IS 'The secret of the newest claim. It stays after the claim has ended, so that a repeated call is recognised.';
COMMENT ON COLUMN onceward.inbox.fingerprint IS 'The first 16 bytes of the SHA-256 of the body.';
COMMENT ON COLUMN onceward.inbox.received_at IS 'When the row was made. Never changes.';
COMMENT ON COLUMN onceward.inbox.alive_since IS 'When it was last brought back from the dead: the age of the message counts from here. NULL: from received_at.';
COMMENT ON COLUMN onceward.inbox.token_expires_at IS 'The end of the token''s window. For a dead row: when it died.';
COMMENT ON COLUMN onceward.inbox.max_expires_at IS 'How far extend() may move token_expires_at.';
COMMENT ON COLUMN onceward.inbox.claimed_by IS 'The instance that made the newest claim.';

-- One row a death. Only discard and redrive remove a letter.
CREATE TABLE onceward.dead_letter (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer     text COLLATE "C" NOT NULL,
    vhost        text        NOT NULL,
    queue        text        NOT NULL,
    message_id   text COLLATE "C",
    raw_id       bytea,
    rowless      boolean     NOT NULL,
    reason       text        NOT NULL,
    attempts     integer     NOT NULL,
    http_status  integer,
    last_error   text,
    fingerprint  bytea,
    body         bytea       NOT NULL,
    content_type text,
    message_type text,
    properties   json,
    headers      json,
    exchange     text        NOT NULL,
    routing_key  text        NOT NULL,
    deaths       bigint      NOT NULL,
    digest       bytea,
    died_at      timestamptz NOT NULL,
    CHECK (rowless OR message_id IS NOT NULL),
    CHECK (rowless = (digest IS NOT NULL))
);

-- For the lists and the counts; for the letters of one row; for the copies of a rowless death.
CREATE INDEX dead_letter_consumer ON onceward.dead_letter (consumer, id);
CREATE INDEX dead_letter_row ON onceward.dead_letter (consumer, message_id, id) WHERE NOT rowless;
CREATE INDEX dead_letter_digest ON onceward.dead_letter (digest) WHERE rowless;

COMMENT ON TABLE onceward.dead_letter IS 'A full copy of each message that was given up. See: onceward dead list.';
COMMENT ON COLUMN onceward.dead_letter.raw_id IS 'The message id, when it is not text.';
COMMENT ON COLUMN onceward.dead_letter.rowless IS 'The death was not that of the inbox row with this id: no usable id, or another body under a known id.';
COMMENT ON COLUMN onceward.dead_letter.deaths IS 'The sum of the counts in x-death when it died: more than that means somebody moved it back.';
COMMENT ON COLUMN onceward.dead_letter.digest IS 'Rowless: over everything that identifies the copy, so that a redelivery of it is recognised.';

-- Which queue a consumer name belongs to, and which sidecar keeps house for it (see sidecar_housekeep).
CREATE TABLE onceward.consumer (
    consumer      text COLLATE "C" PRIMARY KEY,
    vhost         text        NOT NULL,
    queue         text        NOT NULL,
    first_used_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    keeper        text,
    kept_until    timestamptz,
    keeper_page   bigint      NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

COMMENT ON TABLE onceward.consumer IS 'The queue that each consumer name was first used for; another queue under that name is refused.';
COMMENT ON COLUMN onceward.consumer.keeper IS 'The instance that purges and sweeps, until kept_until.';
COMMENT ON COLUMN onceward.consumer.keeper_page IS 'Where the walk through the inbox was when the lease was last written.';

REVOKE ALL ON SCHEMA onceward FROM PUBLIC;
REVOKE ALL ON onceward.schema_version, onceward.inbox, onceward.dead_letter, onceward.consumer FROM PUBLIC;

INSERT INTO onceward.schema_version (version, oldest_compatible) VALUES (1, 1);
