-- The outbox: what applications publish in their own transactions, until a sidecar has brought it to the broker.
--
-- Nothing is updated or deleted on the way, and no old transaction holds it up. Three tables take turns: publish() appends to the one
-- whose turn it is, the relay reads them all, and those whose turn is over are truncated once nobody can still write to them and all of
-- theirs was confirmed.
--
-- What is new is told by snapshots. A batch (S1, S2] is what the snapshot S2 sees and the one before, S1, does not. Each row has the id of
-- its transaction, taken before anything else, and a number from a sequence, taken after it. So, with the number `floor` read before S1
-- was taken:
--   above floor    what S1 does not see is found by its number;
--   up to floor    what S1 does not see was in progress then: its transaction is one of S1's list, or at or above S1's xmax (that is the
--                  latest *completed* one + 1, so running ones may be above it), and below any id that was assigned after S1. Of each
--                  such transaction what follows is found by its id and number: one may have millions of rows, and a page is a page.
--
-- The position says up to where all was confirmed: a row appended each time, of which the highest (lease, n) counts. A row that is updated
-- each time would be a chain of dead versions as long as the oldest snapshot of the database lives.
--
-- Whose turn it is says a sequence, since that is read outside any snapshot; a transaction reads it after it has its id. A crash of the
-- server may make a sequence jump, and a jump is a turn like any other.
--
-- Programs of versions 1 to 3 go on: nothing that they know is changed.

-- Who relays, and where to. One row.
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

COMMENT ON TABLE onceward.outbox IS 'Which sidecar relays what onceward.publish() wrote, and the broker and vhost that it was first relayed to.';
COMMENT ON COLUMN onceward.outbox.lease IS 'Goes up by one each time somebody takes it. What a former holder does later has an older number, and no effect.';
COMMENT ON COLUMN onceward.outbox.number IS 'Of the holder''s life: a later one takes the lease of an earlier one at once.';

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
) WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off); -- truncated before there would be anything to vacuum

-- Compressing would cost the application more than the room is worth for so short a time.
ALTER TABLE onceward.outbox_0 ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE TABLE onceward.outbox_1 (LIKE onceward.outbox_0 INCLUDING STORAGE)
    WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off);
CREATE TABLE onceward.outbox_2 (LIKE onceward.outbox_0 INCLUDING STORAGE)
    WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off);

CREATE INDEX outbox_0_seq ON onceward.outbox_0 (seq);
CREATE INDEX outbox_1_seq ON onceward.outbox_1 (seq);
CREATE INDEX outbox_2_seq ON onceward.outbox_2 (seq);
CREATE INDEX outbox_0_xid ON onceward.outbox_0 (xid, seq);
CREATE INDEX outbox_1_xid ON onceward.outbox_1 (xid, seq);
CREATE INDEX outbox_2_xid ON onceward.outbox_2 (xid, seq);

COMMENT ON TABLE onceward.outbox_0 IS 'Published, and not forgotten yet: one of three that take turns.';
COMMENT ON TABLE onceward.outbox_1 IS 'Published, and not forgotten yet: one of three that take turns.';
COMMENT ON TABLE onceward.outbox_2 IS 'Published, and not forgotten yet: one of three that take turns.';
COMMENT ON COLUMN onceward.outbox_0.properties IS 'NULL: persistent, application/json.';
COMMENT ON COLUMN onceward.outbox_1.properties IS 'NULL: persistent, application/json.';
COMMENT ON COLUMN onceward.outbox_2.properties IS 'NULL: persistent, application/json.';

-- Both are called once: a sequence that never was says the same as one that gave its first number out.
CREATE SEQUENCE onceward.outbox_number OWNED BY onceward.outbox_0.seq;
CREATE SEQUENCE onceward.outbox_turn MINVALUE 0 START 0 OWNED BY onceward.outbox_0.xid;

SELECT pg_catalog.nextval('onceward.outbox_number'), pg_catalog.nextval('onceward.outbox_turn');

-- In a dump its rows come behind those of the tables above, by its name: a relay that meets a dump half restored finds no position.
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

COMMENT ON TABLE onceward.outbox_position IS 'Up to where all was confirmed. The highest (lease, n) counts.';
COMMENT ON COLUMN onceward.outbox_position.system_identifier IS 'Of the server, with table_oid of this table: in another one transactions have other ids, and all is sent again.';
COMMENT ON COLUMN onceward.outbox_position.done IS 'All that this snapshot sees was confirmed.';
COMMENT ON COLUMN onceward.outbox_position.floor IS 'The last number given out before `done` was taken.';
COMMENT ON COLUMN onceward.outbox_position.done_by IS 'What was in progress when `done` was taken is below: an id that was assigned later, or the highest there is.';
COMMENT ON COLUMN onceward.outbox_position.upto IS 'The batch that is being sent reaches up to this snapshot. Confirmed of it is what has a number up to `last`.';
COMMENT ON COLUMN onceward.outbox_position.turned IS 'The turn that was seen to have begun, before turned_by was assigned.';
COMMENT ON COLUMN onceward.outbox_position.emptied IS 'All tables but that of `turned` were emptied since.';
COMMENT ON COLUMN onceward.outbox_position.resending IS 'What came from another server is being made ready, up to this number: see sidecar_outbox_restore.';

-- Empty after a crash of the server, and in a standby that took over. What a relay remembers of snapshots is worth nothing then: ids of
-- transactions that left no trace are given out again.
CREATE UNLOGGED TABLE onceward.outbox_life (life uuid NOT NULL);

COMMENT ON TABLE onceward.outbox_life IS 'A secret that does not outlive a crash of the server.';

INSERT INTO onceward.outbox DEFAULT VALUES;
DO $$
DECLARE
    v_system bigint := 0; -- as outbox_system() has it
BEGIN
    IF pg_catalog.has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE') THEN
        SELECT c.system_identifier INTO v_system FROM pg_catalog.pg_control_system() c;
    END IF;
    INSERT INTO onceward.outbox_position (lease, system_identifier, table_oid, done, floor, done_by)
    SELECT 0, v_system, 'onceward.outbox_position'::regclass, '1:1:', 0, '1';
END
$$;

REVOKE ALL ON onceward.outbox, onceward.outbox_0, onceward.outbox_1, onceward.outbox_2, onceward.outbox_number, onceward.outbox_turn,
              onceward.outbox_position, onceward.outbox_life FROM PUBLIC;

-- As in 0002: default privileges may have given somebody the right.
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

INSERT INTO onceward.schema_version (version, oldest_compatible) VALUES (4, 1);
