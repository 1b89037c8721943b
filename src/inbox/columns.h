#pragma once

#include "array.h"

#include "onceward/inbox/inbox.h"

#include <stddef.h>

/* A batch's data about its items and their queues, as arrays for the functions of the schema. */

enum column {
    COLUMN_OF, /* the item's queue: its place in the columns of queues, from 1 */
    COLUMN_IDS,
    COLUMN_LETTER_IDS,
    COLUMN_TOKENS,
    COLUMN_FINGERPRINTS,
    COLUMN_TYPES,
    COLUMN_DEATHS,
    COLUMN_ALONE,
    COLUMN_STATUSES,
    COLUMN_RESULTS,
    COLUMN_ERRORS,
    COLUMN_DELAYS,
    COLUMN_ONLY_EXPIRED,
    COLUMN_GIVE_BACK,
    COLUMN_CRASHES,
    COLUMN_UNPROVEN_STEPS,
    COLUMN_BATCH_CAPS,
    COLUMN_REASONS,
    COLUMN_ROWLESS,
    COLUMN_LOOKED_FOR,
    COLUMN_EXHAUSTED,
    COLUMN_ATTEMPTS,
    COLUMN_RAW_IDS,
    COLUMN_BODIES,
    COLUMN_CONTENT_TYPES,
    COLUMN_PROPERTIES,
    COLUMN_HEADERS,
    COLUMN_EXCHANGES,
    COLUMN_ROUTING_KEYS,
    COLUMN_LETTER_DEATHS,
    COLUMN_CONTENT_HEADERS,
    COLUMN_ARRIVALS,
    COLUMN_STORED_EXCHANGES,
    COLUMN_STORED_ROUTING_KEYS,
    COLUMN_STORED_CONTENT_HEADERS,
    COLUMN_STORED_BODIES,
    N_COLUMNS
};

enum queue_column {
    QUEUE_CONSUMERS,
    QUEUE_VHOSTS,
    QUEUE_NAMES,
    QUEUE_TRANSACTIONS,
    QUEUE_WINDOWS,
    QUEUE_MAX_WINDOWS,
    QUEUE_MAX_ATTEMPTS,
    QUEUE_REVIVES,
    N_QUEUE_COLUMNS
};

/* Items must be grouped by queue. */
void column_encode(enum column c, struct array *a, const struct inbox_item *const *items, size_t n);

/* Adds the values of the items' queues, in the order of their first items. Returns the number of queues. */
size_t column_of_queues(enum queue_column c, struct array *a, const struct inbox_queue *queues,
                        const struct inbox_item *const *items, size_t n);
