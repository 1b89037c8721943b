#pragma once

#include "array.h"

#include "onceward/inbox/inbox.h"

#include <stddef.h>

/* A batch's data about its items and their queues, as arrays for the functions of the schema. */

enum column {
#define COLUMN(id, type, bytes, value, rule) COLUMN_##id,
#include "columns.def"
    N_COLUMNS
};

enum queue_column {
#define QUEUE_COLUMN(id, type, member, rule) QUEUE_##id,
#include "columns.def"
    N_QUEUE_COLUMNS
};

/* Encodes one column. Items must be grouped by queue. */
void column_encode(enum column c, struct array *a, const struct inbox_queue *queues,
                   const struct inbox_item *const *items, size_t n);

/* Adds the values of the items' queues, in the order of their first items. Returns the number of queues. */
size_t column_of_queues(enum queue_column c, struct array *a, const struct inbox_queue *queues,
                        const struct inbox_item *const *items, size_t n);
