#pragma once

struct buf;

/* What is made from the table of keys. All are the same on every machine. */

/* The documentation's table, in Markdown: a row a key. */
void config_keys_markdown(struct buf *out);

/* A JSON Schema (2020-12) of the configuration file. */
void config_keys_schema(struct buf *out);

/* The documentation's table of what a new value asks for at a reload, in Markdown. */
void config_reload_markdown(struct buf *out);
