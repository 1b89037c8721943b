#pragma once

#include "array.h"
#include "call.h"

#include "onceward/base/buf.h"
#include "onceward/inbox/inbox.h"

#include <libpq-fe.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A batch: items of one kind, encoded once, sent in one or more ranges from the front to the back, each its
 * own call and transaction.
 *
 *     FREE ──fill──▶ TO_SEND ──sent──▶ OUT ──answer──▶ ANSWERING ──all rows given──▶ TO_SEND (next range) | FREE
 *                       ▲                │ ──refused──▶ FAILED ──all rows given──▶ the same
 *                       └── split, again ┘
 *
 * ends[] is a stack: the topmost is where the present range ends, the ones below are where later ranges end
 * at most. Splitting a range pushes its middle. Items before `at` were all answered; in the present range
 * `answered` tells. */
enum batch_state { BATCH_FREE, BATCH_TO_SEND, BATCH_OUT, BATCH_ANSWERING, BATCH_FAILED };

struct batch_entry {
    uint64_t ref;
    size_t bytes;
    uint32_t queue;
    bool answered;
};

struct batch {
    enum inbox_op op;
    enum batch_state state;
    struct batch_entry *entries;
    size_t n, cap;
    size_t at;
    size_t ends[16];
    size_t n_ends;
    struct call_data data;
    PGresult *result;      /* ANSWERING */
    int row;               /* the next one of it */
    struct inbox_row rest; /* what it says of n_rest entries that it does not name */
    size_t n_rest, n_named;
    size_t sweep;            /* then, and when FAILED: the next entry that may be unanswered */
    enum row_answer failure; /* FAILED, and for what the answer left out */
    char sqlstate[6];
    struct buf detail;
    char id_text[24];
};

void batch_init(struct batch *b, enum inbox_op op);
void batch_deinit(struct batch *b);

/* FREE to TO_SEND: encodes the items in this order, in which those of one queue stand together. */
void batch_fill(struct batch *b, const struct inbox_queue *queues, const struct inbox_item *const *items,
                size_t n);

/* The number of items in the present range, and what they weigh. */
size_t batch_range(const struct batch *b);
size_t batch_range_bytes(const struct batch *b);

/* Makes the present range weigh at most max bytes, or be one item. An item above `alone` bytes is a range of
 * its own. */
void batch_range_limit(struct batch *b, size_t max, size_t alone);

/* OUT to TO_SEND: the present range in two, or as it is. */
void batch_split(struct batch *b);
void batch_again(struct batch *b);

/* OUT to ANSWERING: takes the result. */
void batch_answer(struct batch *b, PGresult *result);

/* OUT to FAILED: the whole range is answered alike. */
void batch_fail(struct batch *b, enum row_answer answer, const char *sqlstate, const char *detail);

/* Any state but FREE to FAILED: whatever was not answered yet is unknown. */
void batch_lose(struct batch *b, const char *detail);

/* Is the present range one item, and the last? */
bool batch_is_last_item(const struct batch *b);

/* Gives back the memory of the encoded items: nothing can need them again, the last item alone is out. */
void batch_forget(struct batch *b);

/* ANSWERING, FAILED: the next row. false: the range is done, and the state is TO_SEND or FREE. */
bool batch_next(struct batch *b, struct inbox_row *row);
