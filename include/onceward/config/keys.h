#pragma once

struct buf;

/* What is made from the table of keys. Both are the same on every machine. */

/* The documentation's table, in Markdown: a row a key. */
void config_keys_markdown(struct buf *out);

/* A JSON Schema (2020-12) of the configuration file. */
void config_keys_schema(struct buf *out);
