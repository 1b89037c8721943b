-- Run by the image of PostgreSQL when it makes the database.
CREATE ROLE onceward_owner LOGIN PASSWORD 'change-me-first';
GRANT CREATE ON DATABASE app TO onceward_owner;
CREATE ROLE onceward_sidecar;
CREATE ROLE onceward_app;
CREATE ROLE payments_sidecar LOGIN PASSWORD 'change-me' IN ROLE onceward_sidecar;
CREATE ROLE payments_app LOGIN PASSWORD 'change-me-too' IN ROLE onceward_app;
-- The application's own table.
CREATE TABLE charges (order_id text NOT NULL, cents integer NOT NULL);
GRANT INSERT ON charges TO payments_app;
