#pragma once

#include <stdbool.h>
#include <stddef.h>

struct buf;

/* What is made from the table of keys. All are the same on every machine. */

/* The documentation's table, in Markdown: a row a key. */
void config_keys_markdown(struct buf *out);

/* What a key is, for people, in any case: that of this path ("queues.orders.retry.backoff", "retry.backoff"),
 * or each whose last name it is ("backoff"), also as "backoff_file". Answers how many. */
size_t config_keys_explain(struct buf *out, const char *name);

/* A key that the name may have been meant to be; false: no idea. */
bool config_keys_nearest(struct buf *out, const char *name);

/* Calls each(ctx, path, default, sentence) for every key. */
void config_keys_each(void (*each)(void *ctx, const char *path, const char *fallback, const char *sentence),
                      void *ctx);

/* A JSON Schema (2020-12) of the configuration file. */
void config_keys_schema(struct buf *out);
