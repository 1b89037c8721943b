-- Stored messages: what arrived, whole, for queues with `store`, and how far replays of it have come.
--
-- Programs of versions 1 and 2 go on: nothing that they know changes.

CREATE SEQUENCE onceward.message_seq;

-- A partition for each day (UTC), message_20260131, and one for what belongs to none: message_default. They are made ahead and dropped
-- whole by sidecar_keep_messages. No constraint and no key: a message is written by the transaction that inserts its row, and the row decides.
-- The only index is in the order of the first claims, so that new entries go to its end. Within one call of sidecar_claim_store_many that is
-- the order of arrival.
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

COMMENT ON TABLE onceward.message IS 'Messages of queues with `store`, whole, as they came.';
COMMENT ON COLUMN onceward.message.received_at IS 'When the message was first claimed: that of its row.';
COMMENT ON COLUMN onceward.message.seq IS 'The order of arrival among those that one call claimed, which have one time.';
COMMENT ON COLUMN onceward.message.content_header IS 'The payload of the AMQP content header frame, as it came: the properties and headers.';

CREATE INDEX message_arrival ON onceward.message (consumer, received_at, seq);

CREATE TABLE onceward.message_default PARTITION OF onceward.message DEFAULT;
CREATE INDEX message_default_received ON onceward.message_default USING brin (received_at);

CREATE TABLE onceward.message_retention (
    consumer     text COLLATE "C" NOT NULL,
    retention_ms bigint           NOT NULL,
    seen_at      timestamptz      NOT NULL,
    PRIMARY KEY (consumer, retention_ms)
);

-- A row for each retention that a sidecar was configured with, since in a rollout there are two of them. The longest counts.
COMMENT ON TABLE onceward.message_retention IS 'How long the messages of a consumer are to be kept, and when a sidecar said so last.';

CREATE TABLE onceward.replay (
    name        text COLLATE "C" PRIMARY KEY,
    what        text        NOT NULL,
    received_at timestamptz NOT NULL,
    seq         bigint      NOT NULL,
    n           bigint      NOT NULL DEFAULT 0,
    began_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    moved_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE onceward.replay IS 'How far `onceward replay` has come, by name: what is before that place was confirmed by the broker.';
COMMENT ON COLUMN onceward.replay.what IS 'What it replays and where to, in words; another replay may not go on under its name.';
COMMENT ON COLUMN onceward.replay.n IS 'How many messages it has published.';

REVOKE ALL ON onceward.message, onceward.message_default, onceward.message_retention, onceward.replay FROM PUBLIC;
REVOKE ALL ON SEQUENCE onceward.message_seq FROM PUBLIC;

-- As in version 2: default privileges, or a GRANT ALL, may have given somebody the right to put triggers on what was made here.
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

INSERT INTO onceward.schema_version (version, oldest_compatible) VALUES (3, 1);
