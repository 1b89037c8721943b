-- The whole schema: inbox, history, dead letters, replicas, operator commands, stored messages, outbox, and the
-- record of the schema itself.
--
-- How `onceward migrate` runs the files of sql/, in one transaction under pg_advisory_xact_lock:
--   1. every numbered file that onceward.schema_version lacks, in the order of the numbers (no such table: all).
--      A numbered file never changes once it was released, and ends with the INSERT of its own row;
--   2. every file of sql/functions, in the order of the names: CREATE OR REPLACE, so they may be run again and again,
--      also while sidecars run. A numbered file must first drop a function whose arguments or columns change;
--   3. roles_create.sql behind a savepoint, then roles_grant.sql. If the role may not create roles (42501) and they
--      do not exist, go back to the savepoint and print both files for an administrator; nothing else depends on them.
-- A program must not do this on a schema with a higher version than its own newest file: that would restore old
-- functions.
--
-- Versions: `version` is the number of the newest migration. `oldest_compatible`, in that same row, is the version
-- of the oldest program that may use the present schema (a program's version is the number of its newest
-- migration). So a program with number P consumes only when version >= P and oldest_compatible <= P.
-- sidecar_schema() returns both.
--
-- Names are qualified throughout, so the search_path of the caller does not matter.

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

-- A row for each message that was ever claimed, until the end of the retention.
--
-- No index may contain a column that a completion changes, not even in a predicate: completions would no longer be
-- HOT updates. received_at never changes, so it may have one. fillfactor 48 leaves room for the one update that
-- every row gets, which makes it a word longer (at 50 one update in sixteen found no room, depending on the length
-- of the ids). The key is COLLATE "C": it sorts like the sidecar, and survives a change of the system's collations.
-- The id comes first in the key: an index that begins with the consumer compares two texts at each step of each
-- descent. So all rows of one consumer are only found by reading the whole table.
--
-- The order of the columns reduces the WAL, which contains only the bytes between the first and the last changed
-- one. So the columns that a completion changes are adjacent, and the others move by a whole word. No CHECK here:
-- PostgreSQL prepares the expression of each CHECK again for every writing statement, which is a tenth of the cost
-- of complete().
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
    -- Behind all others, so that the WAL of a completion does not contain them. NULL means 0, false or never, and
    -- takes no space.
    crashes          integer,
    takeovers        integer,
    alone            boolean,
    unproven_at      timestamptz,
    unproven_step    integer,
    renewals         integer,
    renewals_until   timestamptz,
    batch_cap        integer,
    swept            boolean,
    PRIMARY KEY (message_id, consumer)
) WITH (
    fillfactor = 48,
    -- The space of purged rows must be reused soon: a fiftieth of the table is enough, and vacuum need not be slow.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_vacuum_cost_delay = 1,
    -- Only people's own queries need statistics, a little: the functions' plans do not depend on them.
    autovacuum_analyze_scale_factor = 0.2,
    autovacuum_analyze_threshold = 10000
);

CREATE INDEX inbox_received_at ON onceward.inbox USING brin (received_at);

COMMENT ON TABLE onceward.inbox IS 'The state of each message. Change it only through the functions of this schema.';
COMMENT ON COLUMN onceward.inbox.status IS 'processing: a token is in use. failed: will be tried again. waiting: released without a charge, or redriven. dead: given up, see dead_letter. held: given up in an ordered queue, waits for an operator.';
COMMENT ON COLUMN onceward.inbox.attempt IS 'Claims that led to a forward; counted by the claim, taken off by a release.';
COMMENT ON COLUMN onceward.inbox.token IS 'The secret of the newest claim. It stays after the end of the claim, so that a repeated call is recognised.';
COMMENT ON COLUMN onceward.inbox.fingerprint IS 'The first 16 bytes of the SHA-256 of the body.';
COMMENT ON COLUMN onceward.inbox.received_at IS 'When the row was created, by the database''s clock, but not before the horizon. Changes at most once: at the first claim of a row that a renewal created.';
COMMENT ON COLUMN onceward.inbox.alive_since IS 'Start of the message''s age: when it was last revived, else when it was received. NULL: claimed only once.';
COMMENT ON COLUMN onceward.inbox.token_expires_at IS 'The end of the token''s window. For a dead row: when it died.';
COMMENT ON COLUMN onceward.inbox.max_expires_at IS 'The latest value to which extend() may move token_expires_at.';
COMMENT ON COLUMN onceward.inbox.claimed_by IS 'The instance that made the newest claim.';
COMMENT ON COLUMN onceward.inbox.crashes IS 'Crashes of the application with this message.';
COMMENT ON COLUMN onceward.inbox.takeovers IS 'Claims that took it from an owner that had ended without an answer.';
COMMENT ON COLUMN onceward.inbox.alone IS 'The newest claim was made while its sidecar had no other message in progress.';
COMMENT ON COLUMN onceward.inbox.unproven_at IS 'When it was last charged for a crash of an application that had not been seen alive before.';
COMMENT ON COLUMN onceward.inbox.unproven_step IS 'Consecutive charges of that kind.';
COMMENT ON COLUMN onceward.inbox.renewals IS 'Copies published to its own queue because its delivery limit was near.';
COMMENT ON COLUMN onceward.inbox.swept IS 'Of a failed row: the housekeeper ended a claim whose token had expired without an answer. No failure was written: an answer that arrives later still settles the row. complete() of the application is refused.';
COMMENT ON COLUMN onceward.inbox.batch_cap IS 'Largest size of the next request with this message, after a larger one failed. NULL: as configured.';
COMMENT ON COLUMN onceward.inbox.renewals_until IS 'The pace of renewals: each moves it by 6 s, to at most a minute ahead.';

-- A row per death. Only discard and redrive remove a letter.
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
    content_header bytea,
    CHECK (rowless OR message_id IS NOT NULL),
    CHECK (rowless = (digest IS NOT NULL))
);

-- For lists and counts; for the letters of one row; for copies of a letter without a row.
CREATE INDEX dead_letter_consumer ON onceward.dead_letter (consumer, id);
CREATE INDEX dead_letter_row ON onceward.dead_letter (consumer, message_id, id) WHERE NOT rowless;
CREATE INDEX dead_letter_digest ON onceward.dead_letter (digest) WHERE rowless;

COMMENT ON TABLE onceward.dead_letter IS 'A full copy of each message that was given up. See: onceward dead list.';
COMMENT ON COLUMN onceward.dead_letter.raw_id IS 'The message id, when it is not text.';
COMMENT ON COLUMN onceward.dead_letter.rowless IS 'The letter is not that of the inbox row with this id: no usable id, or another body under a known id.';
COMMENT ON COLUMN onceward.dead_letter.deaths IS 'The sum of the counts in x-death at its death: a larger sum means that the message was moved back.';
COMMENT ON COLUMN onceward.dead_letter.digest IS 'Rowless: digest of everything that identifies the copy, so that a redelivery of it is recognised.';
-- Letters without a row and with one digest are written one at a time, under the lock of one of these rows. A row
-- lock requires rights, unlike an advisory lock, which every login of the database may take.
CREATE TABLE onceward.letter_lock (number integer PRIMARY KEY);
INSERT INTO onceward.letter_lock SELECT generate_series(0, 63);

COMMENT ON TABLE onceward.letter_lock IS 'Rows that only serve as locks, see sidecar_bury_many. They never change.';

-- The time up to which an export or a replay has read, and the number of changes of `order.key`. One row, which every
-- claim reads.
CREATE TABLE onceward.horizon (
    only_one boolean     PRIMARY KEY DEFAULT true CHECK (only_one),
    passed   timestamptz NOT NULL,
    order_changes bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO onceward.horizon (passed) VALUES ('-infinity');

COMMENT ON TABLE onceward.horizon IS 'The time up to which exports and replays have read: see time_mark.';
COMMENT ON COLUMN onceward.horizon.passed IS 'No new row, letter or message gets an earlier time, even if the clock is set back.';
COMMENT ON COLUMN onceward.horizon.order_changes IS 'Changes of onceward.consumer.order_key, of all consumers. A replica that registered before the latest one of its consumer claims nothing.';

COMMENT ON COLUMN onceward.dead_letter.content_header IS 'The payload of the AMQP content header frame, as received.';

-- The queue of a consumer name, and the sidecar that keeps house for it (see sidecar_keep_house).
CREATE SEQUENCE onceward.consumer_number AS smallint;

CREATE TABLE onceward.consumer (
    consumer      text COLLATE "C" PRIMARY KEY,
    broker        text        NOT NULL,
    vhost         text        NOT NULL,
    queue         text        NOT NULL,
    first_used_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    keeper        text,
    kept_until    timestamptz,
    keeper_page   bigint      NOT NULL DEFAULT 0,
    number        smallint    UNIQUE,
    retention_ms  bigint,
    retention_at  timestamptz,
    history_day   smallint,
    history_page  bigint      NOT NULL DEFAULT 0,
    compacted_to  timestamptz,
    order_key     text COLLATE "C" NOT NULL DEFAULT '',
    order_changed bigint      NOT NULL DEFAULT 0,
    UNIQUE (queue, vhost, broker)
) WITH (fillfactor = 50);

COMMENT ON TABLE onceward.consumer IS 'The queue that each consumer name was first used for; another queue under that name is refused.';
COMMENT ON COLUMN onceward.consumer.queue IS 'The queue, or with a range all queues that its replicas read: orders-{0..15}.';
COMMENT ON COLUMN onceward.consumer.broker IS 'The name of its cluster, as the broker reports it.';
COMMENT ON COLUMN onceward.consumer.keeper IS 'The instance that purges and sweeps, until kept_until.';
COMMENT ON COLUMN onceward.consumer.keeper_page IS 'The page of the walk through the inbox when the lease was last written.';
COMMENT ON COLUMN onceward.consumer.number IS 'Its number in onceward.history. NULL: no row of it was ever moved there.';
COMMENT ON COLUMN onceward.consumer.retention_ms IS 'The longest retention that a replica reported within the hour before retention_at.';
COMMENT ON COLUMN onceward.consumer.compacted_to IS 'History entries may have replaced rows that were completed before then. NULL: they never did.';
COMMENT ON COLUMN onceward.consumer.order_key IS 'Its replicas process the messages of each key in order: the sources of the key. Empty: not ordered. A replica with another setting is refused.';
COMMENT ON COLUMN onceward.consumer.order_changed IS 'The number of the latest change of order_key: see onceward.horizon.order_changes.';
COMMENT ON COLUMN onceward.consumer.history_day IS 'The day on which its keeper last finished the search for expired history entries.';
COMMENT ON COLUMN onceward.consumer.history_page IS 'The page of that search when it was last noted; 0: it has ended.';

-- Ids whose completed rows were replaced, 24 bytes each. Every snapshot has either an id's row or its entry
-- (sidecar_keep_house moves it in one statement), so a claim that looks for both in one statement finds one of
-- them.
--
-- No key: nothing needs its uniqueness, and a hash index is smaller than a unique one. Hence REPLICA IDENTITY FULL:
-- without it a publication of all tables would make the expiry fail. Entries are never updated, so the vacuum that
-- first sees them can freeze them.
CREATE TABLE onceward.history (
    hash     uuid     NOT NULL,
    print    integer  NOT NULL,
    consumer smallint NOT NULL,
    day      smallint NOT NULL
) WITH (
    fillfactor = 100,
    autovacuum_freeze_min_age = 0,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.05
);

ALTER TABLE onceward.history REPLICA IDENTITY FULL;

CREATE INDEX history_hash ON onceward.history USING hash (hash);

COMMENT ON TABLE onceward.history IS 'Completed messages whose row was replaced after `compact_after`. See history_hash().';
COMMENT ON COLUMN onceward.history.hash IS 'The first 16 bytes of the SHA-256 of the consumer, a zero byte and the message id.';
COMMENT ON COLUMN onceward.history.print IS 'The first 4 bytes of the fingerprint.';
COMMENT ON COLUMN onceward.history.consumer IS 'onceward.consumer.number';
COMMENT ON COLUMN onceward.history.day IS 'The day of the completion, UTC, counted from 2000-01-01.';

-- The switch of the claims' lookup. The size of the history would do as well, but PostgreSQL asks the file system
-- for each GB of it: at 66 GB that was 180 of the 460 µs of a claim.
CREATE TABLE onceward.history_begun (began_at timestamptz NOT NULL DEFAULT clock_timestamp());

COMMENT ON TABLE onceward.history_begun IS 'Empty until the first row is replaced by a history entry: claims look for entries only if there is a row. Several rows are no fault.';

REVOKE ALL ON SCHEMA onceward FROM PUBLIC;
REVOKE ALL ON onceward.schema_version, onceward.inbox, onceward.dead_letter, onceward.letter_lock, onceward.horizon, onceward.consumer, onceward.history, onceward.history_begun FROM PUBLIC;

CREATE TABLE onceward.replica (
    instance text COLLATE "C" PRIMARY KEY,
    number   bigint      NOT NULL,
    counter  bigint      NOT NULL,
    version  text        NOT NULL,
    host     text        NOT NULL DEFAULT '',
    queues   json        NOT NULL,
    seen_at  timestamptz NOT NULL,
    -- Extracted once by the instance that writes the row, and not by each instance that reads it.
    may_consume jsonb GENERATED ALWAYS AS (jsonb_path_query_array(queues::jsonb, '$[*] ? (@.may_consume == true).consumer')) STORED
) WITH (fillfactor = 50);

-- No index except the key, and room on the page: the row is written every few seconds, and must stay a HOT update.
COMMENT ON TABLE onceward.replica IS 'The running instances: a row per instance, written every few seconds.';
COMMENT ON COLUMN onceward.replica.host IS 'The name of its machine or pod.';
COMMENT ON COLUMN onceward.replica.queues IS 'The states of its queues, for people and for `onceward status`: one object per queue.';
COMMENT ON COLUMN onceward.replica.may_consume IS 'The consumers whose messages this instance could take now, also as a standby of a single active consumer.';

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
    retry_by     text,
    stopped      jsonb  NOT NULL DEFAULT '{}'
);

-- Pauses and ids to give up are states: they last until an operator ends them, or the message is dead. Each present
-- replica carries out the other two once, and remembers their number.
COMMENT ON TABLE onceward.control IS 'Operator commands for a consumer.';
COMMENT ON COLUMN onceward.control.since IS 'When it was last paused or resumed; `by` and `reason` belong to that.';
COMMENT ON COLUMN onceward.control.give_up IS 'Ids of messages that become dead letters as soon as a sidecar has them.';
COMMENT ON COLUMN onceward.control.held_number IS 'Number of the latest command to give up held messages: those that arrived before held_at.';
COMMENT ON COLUMN onceward.control.stopped IS 'Ordered queues near their delivery limit, which no replica consumes until an operator retries: by name, with `count`, `why` and `at`. After the retry, until its messages are done: `accepted`, the deliveries up to which the queue continues, `retry`, the number of that command, and `at`.';
COMMENT ON COLUMN onceward.control.retry_number IS 'Number of the latest command to retry waiting messages at once.';

REVOKE ALL ON onceward.replica, onceward.control FROM PUBLIC;

-- Stored messages: complete messages of queues with `store`, and the progress of their replays.

CREATE SEQUENCE onceward.message_seq;

-- A partition per day (UTC), message_20260131, and message_default for all other rows. sidecar_make_messages
-- creates them ahead, and sidecar_keep_messages drops whole ones. No constraint and no key: a message is written by
-- the transaction that inserts its row, and the row decides. The only index is in the order of the first claims, so
-- that new entries go to its end. Within one call of sidecar_claim_store_many that is the order of arrival.
CREATE TABLE onceward.message (
    consumer       text COLLATE "C" NOT NULL,
    message_id     text COLLATE "C" NOT NULL,
    received_at    timestamptz      NOT NULL,
    seq            bigint           NOT NULL DEFAULT nextval('onceward.message_seq'),
    message_type   text,
    exchange       text             NOT NULL,
    routing_key    text             NOT NULL,
    content_header bytea,
    body           bytea            NOT NULL
) PARTITION BY RANGE (received_at);

COMMENT ON TABLE onceward.message IS 'Complete messages of queues with `store`, as received.';
COMMENT ON COLUMN onceward.message.received_at IS 'When the message was first claimed: received_at of its row.';
COMMENT ON COLUMN onceward.message.seq IS 'The order of arrival among messages that one call claimed, which have the same time.';
COMMENT ON COLUMN onceward.message.content_header IS 'The payload of the AMQP content header frame, as received: the properties and headers.';

CREATE INDEX message_arrival ON onceward.message (consumer, received_at, seq);

CREATE TABLE onceward.message_default PARTITION OF onceward.message DEFAULT;
CREATE INDEX message_default_received ON onceward.message_default USING brin (received_at);

CREATE TABLE onceward.message_retention (
    consumer     text COLLATE "C" NOT NULL,
    retention_ms bigint           NOT NULL,
    seen_at      timestamptz      NOT NULL,
    PRIMARY KEY (consumer, retention_ms)
);

-- A row per retention that a sidecar was configured with, since a rollout has two of them. The longest counts.
COMMENT ON TABLE onceward.message_retention IS 'The retentions of a consumer''s messages, and when a sidecar last reported each.';

CREATE TABLE onceward.replay (
    name        text COLLATE "C" PRIMARY KEY,
    what        text        NOT NULL,
    received_at timestamptz NOT NULL,
    seq         bigint      NOT NULL,
    n           bigint      NOT NULL DEFAULT 0,
    began_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    moved_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE onceward.replay IS 'The progress of `onceward replay`, by name: the broker has confirmed everything before the position.';
COMMENT ON COLUMN onceward.replay.what IS 'Source and destination, in words; another replay may not continue under its name.';
COMMENT ON COLUMN onceward.replay.n IS 'Messages published so far.';

REVOKE ALL ON onceward.message, onceward.message_default, onceward.message_retention, onceward.replay FROM PUBLIC;
REVOKE ALL ON SEQUENCE onceward.message_seq FROM PUBLIC;

-- The outbox: messages that applications publish in their own transactions, until a sidecar has sent them to the
-- broker.
--
-- No row is updated or deleted on the way, and no old transaction holds the outbox up. Three tables take turns:
-- publish() appends to the table whose turn it is, and the relay reads all of them. A table whose turn is over is
-- truncated once no transaction can still write to it and all its rows are confirmed.
--
-- Snapshots identify new rows. A batch (S1, S2] contains the rows that snapshot S2 sees and the earlier S1 does
-- not. Each row has its transaction's id, assigned before anything else, and a number from a sequence, drawn after
-- it. So, with the number `floor` read before S1 was taken:
--   above floor    rows that S1 does not see are found by their numbers;
--   up to floor    rows that S1 does not see were in progress then: their transaction is in S1's list, or at or above
--                  S1's xmax (the latest *completed* one + 1, so running ones may be above it), and below any id that
--                  was assigned after S1. The rows of each such transaction are found by id and number: one may have
--                  millions of rows, and pages are bounded.
--
-- The position records how far all rows are confirmed. A row is appended each time, and the highest (lease, n)
-- counts. One row updated each time would become a chain of dead versions as long as the database's oldest snapshot
-- lives.
--
-- A sequence holds the present turn, since it can be read outside any snapshot; a transaction reads it after it has
-- its id. A crash of the server may make a sequence jump, and a jump is a turn like any other.

-- The relay, and the destination. One row.
CREATE TABLE onceward.outbox (
    only_one      boolean     PRIMARY KEY DEFAULT true CHECK (only_one),
    broker        text,
    vhost         text,
    first_used_at timestamptz,
    lease         bigint      NOT NULL DEFAULT 0,
    holder        text,
    number        bigint,
    held_until    timestamptz
) WITH (fillfactor = 20);

COMMENT ON TABLE onceward.outbox IS 'The sidecar that relays the messages of onceward.publish(), and the broker and vhost of the first relay.';
COMMENT ON COLUMN onceward.outbox.lease IS 'Increases by one each time it is taken. Later statements of a former owner have an older number, and no effect.';
COMMENT ON COLUMN onceward.outbox.number IS 'Number of the owner''s start: a later start takes the lease of an earlier one at once.';

CREATE TABLE onceward.outbox_0 (
    xid          xid8        NOT NULL,
    seq          bigint      NOT NULL,
    published_at timestamptz NOT NULL,
    exchange     text        NOT NULL,
    routing_key  text        NOT NULL,
    message_id   text        NOT NULL,
    type         text,
    headers      jsonb,
    properties   jsonb,
    body         bytea       NOT NULL
) WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off); -- truncated before vacuum could be useful

-- Compression would cost the application more than it saves for rows that live so briefly.
ALTER TABLE onceward.outbox_0 ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE TABLE onceward.outbox_1 (LIKE onceward.outbox_0 INCLUDING STORAGE)
    WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off);
CREATE TABLE onceward.outbox_2 (LIKE onceward.outbox_0 INCLUDING STORAGE)
    WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off);

-- Only a relay after a restore updates rows. Without an identity a publication of all tables would refuse that.
ALTER TABLE onceward.outbox_0 REPLICA IDENTITY FULL;
ALTER TABLE onceward.outbox_1 REPLICA IDENTITY FULL;
ALTER TABLE onceward.outbox_2 REPLICA IDENTITY FULL;

CREATE INDEX outbox_0_seq ON onceward.outbox_0 (seq);
CREATE INDEX outbox_1_seq ON onceward.outbox_1 (seq);
CREATE INDEX outbox_2_seq ON onceward.outbox_2 (seq);
CREATE INDEX outbox_0_xid ON onceward.outbox_0 (xid, seq);
CREATE INDEX outbox_1_xid ON onceward.outbox_1 (xid, seq);
CREATE INDEX outbox_2_xid ON onceward.outbox_2 (xid, seq);

COMMENT ON TABLE onceward.outbox_0 IS 'Published messages that are not truncated yet: one of three tables that take turns.';
COMMENT ON TABLE onceward.outbox_1 IS 'Published messages that are not truncated yet: one of three tables that take turns.';
COMMENT ON TABLE onceward.outbox_2 IS 'Published messages that are not truncated yet: one of three tables that take turns.';
COMMENT ON COLUMN onceward.outbox_0.properties IS 'NULL: persistent, application/json.';
COMMENT ON COLUMN onceward.outbox_1.properties IS 'NULL: persistent, application/json.';
COMMENT ON COLUMN onceward.outbox_2.properties IS 'NULL: persistent, application/json.';

-- Both are called once, because a sequence without a call looks like one that returned its first number.
CREATE SEQUENCE onceward.outbox_number OWNED BY onceward.outbox_0.seq;
CREATE SEQUENCE onceward.outbox_turn MINVALUE 0 START 0 OWNED BY onceward.outbox_0.xid;

SELECT pg_catalog.nextval('onceward.outbox_number'), pg_catalog.nextval('onceward.outbox_turn');

-- The name puts its rows behind those of the tables above in a dump: a relay finds no position while the dump is only
-- half restored.
CREATE TABLE onceward.outbox_position (
    lease             bigint      NOT NULL,
    n                 bigint      GENERATED ALWAYS AS IDENTITY,
    system_identifier bigint      NOT NULL,
    table_oid         oid         NOT NULL,
    done              pg_snapshot NOT NULL,
    floor             bigint      NOT NULL,
    done_by           xid8        NOT NULL,
    upto              pg_snapshot,
    ceiling           bigint,
    last              bigint,
    upto_floor        bigint,
    upto_by           xid8,
    turned            bigint,
    turned_by         xid8,
    turned_at         timestamptz,
    emptied           boolean     NOT NULL DEFAULT false,
    resending         bigint,
    PRIMARY KEY (lease, n)
);

COMMENT ON TABLE onceward.outbox_position IS 'The position up to which all rows are confirmed. The highest (lease, n) counts.';
COMMENT ON COLUMN onceward.outbox_position.system_identifier IS 'With table_oid, identifies the server and this table: on another one transactions have other ids, and every row is sent again.';
COMMENT ON COLUMN onceward.outbox_position.done IS 'All rows that this snapshot sees are confirmed.';
COMMENT ON COLUMN onceward.outbox_position.floor IS 'The last number drawn before `done` was taken.';
COMMENT ON COLUMN onceward.outbox_position.done_by IS 'Upper bound of the transactions in progress when `done` was taken: an id assigned later, or the highest possible one.';
COMMENT ON COLUMN onceward.outbox_position.upto IS 'End of the batch that is being sent. Its rows with a number up to `last` are confirmed.';
COMMENT ON COLUMN onceward.outbox_position.turned IS 'The turn that was seen to have begun, before turned_by was assigned.';
COMMENT ON COLUMN onceward.outbox_position.emptied IS 'All tables except that of `turned` were emptied since.';
COMMENT ON COLUMN onceward.outbox_position.resending IS 'Rows from another server are prepared up to this number: see sidecar_outbox_restore.';

-- Rows of a stopped exchange, which refuses everything, in the order of sending. They wait here so that the
-- position, and rows for other exchanges, can move on.
CREATE TABLE onceward.outbox_parked (
    n            bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    seq          bigint      NOT NULL,
    published_at timestamptz NOT NULL,
    exchange     text COLLATE "C" NOT NULL,
    routing_key  text        NOT NULL,
    message_id   text COLLATE "C" NOT NULL,
    type         text,
    headers      jsonb,
    properties   jsonb,
    body         bytea       NOT NULL
);
ALTER TABLE onceward.outbox_parked ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE UNIQUE INDEX outbox_parked_exchange ON onceward.outbox_parked (exchange, n);
CREATE INDEX outbox_parked_seq ON onceward.outbox_parked (seq);

COMMENT ON TABLE onceward.outbox_parked IS 'Published messages whose exchange is stopped: the relay sends them first, in order, once the exchange takes messages again.';
COMMENT ON COLUMN onceward.outbox_parked.n IS 'The order of sending.';

-- Empty after a crash of the server, and in a standby that took over. Snapshots that a relay remembers are then
-- worthless: the server assigns the ids of transactions without a trace again.
CREATE UNLOGGED TABLE onceward.outbox_life (life uuid NOT NULL);

COMMENT ON TABLE onceward.outbox_life IS 'A secret that does not outlive a crash of the server.';

INSERT INTO onceward.outbox DEFAULT VALUES;
DO $$
DECLARE
    v_system bigint := 0; -- like outbox_system()
BEGIN
    IF pg_catalog.has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE') THEN
        SELECT c.system_identifier INTO v_system FROM pg_catalog.pg_control_system() c;
    END IF;
    INSERT INTO onceward.outbox_position (lease, system_identifier, table_oid, done, floor, done_by)
    SELECT 0, v_system, 'onceward.outbox_position'::regclass, '1:1:', 0, '1';
END
$$;

REVOKE ALL ON onceward.outbox, onceward.outbox_0, onceward.outbox_1, onceward.outbox_2, onceward.outbox_number, onceward.outbox_turn,
              onceward.outbox_position, onceward.outbox_life, onceward.outbox_parked FROM PUBLIC;

-- A trigger runs with the rights of the writing role, which for applications is the owner. Default privileges, or a
-- GRANT ALL, may have granted the right to create one.
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

INSERT INTO onceward.schema_version (version, oldest_compatible) VALUES (1, 1);
