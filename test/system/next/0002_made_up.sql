-- A made-up migration, for tests of the mechanism alone: a program of the next version is built with it, see test_sql_versions.py.
ALTER TABLE onceward.inbox ADD COLUMN made_up text;

INSERT INTO onceward.schema_version (version, oldest_compatible) VALUES (2, 1);
