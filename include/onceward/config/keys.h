#pragma once

#include <stdbool.h>
#include <stddef.h>

struct buf;

/* Texts made from the table of keys. They are the same on every machine. */

/* Writes the documentation's table, in Markdown: one row per key. */
void config_keys_markdown(struct buf *out);

/* Explains a key, ignoring case: the key with this path ("queues.orders.retry.backoff", "retry.backoff"), or
 * every key with this last name ("backoff"), also as "backoff_file". Returns the number of keys. */
size_t config_keys_explain(struct buf *out, const char *name);

/* Finds the key that a misspelt name probably means. False: none is close. */
bool config_keys_nearest(struct buf *out, const char *name);

/* Calls each(ctx, path, default, sentence) for every key. */
void config_keys_each(void (*each)(void *ctx, const char *path, const char *fallback, const char *sentence),
                      void *ctx);

/* Writes a JSON Schema (2020-12) of the configuration file. */
void config_keys_schema(struct buf *out);
