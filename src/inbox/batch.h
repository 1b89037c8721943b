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
 * ends[] is a stack: its top is the end of the present range, the entries below are upper bounds for the ends
 * of later ranges. Splitting a range pushes its middle. Items before `at` are answered; in the present range
 * `answered` marks those that are. */
enum batch_state { BATCH_FREE, BATCH_TO_SEND, BATCH_OUT, BATCH_ANSWERING, BATCH_FAILED };

struct batch_entry {
    uint64_t ref;
    size_t bytes;
    uint32_t queue;
    bool answered;
};

struct batch {
    enum inbox_op op;
    enum inbox_op row_op; /* of its rows: callers do not distinguish the kinds of claims */
    enum batch_state state;
    struct batch_entry *entries;
    size_t n, cap;
    size_t at;
    size_t ends[16];
    size_t n_ends;
    struct call_data data;
    PGresult *result;      /* ANSWERING */
    int row;               /* the next one of it */
    struct inbox_row rest; /* answer for the n_rest entries that the result does not name */
    size_t n_rest, n_named;
    size_t sweep;            /* ANSWERING the rest, and FAILED: next entry that may be unanswered */
    enum row_answer failure; /* FAILED, and for entries missing in the answer */
    char sqlstate[6];
    struct buf detail;
};

void batch_init(struct batch *b, enum inbox_op op);
void batch_deinit(struct batch *b);

/* FREE to TO_SEND: encodes the items in this order, grouped by queue. */
void batch_fill(struct batch *b, const struct inbox_queue *queues, const struct inbox_item *const *items,
                size_t n);

/* Number of items in the present range, and their size. */
size_t batch_range(const struct batch *b);
size_t batch_range_bytes(const struct batch *b);

/* Shortens the present range to at most max bytes, or to one item. An item above `alone` bytes gets a range
 * of its own. */
void batch_range_limit(struct batch *b, size_t max, size_t alone);

/* OUT to TO_SEND: splits the present range in two, or keeps it. */
void batch_split(struct batch *b);
void batch_again(struct batch *b);

/* OUT to ANSWERING: takes the result. */
void batch_answer(struct batch *b, PGresult *result);

/* OUT to FAILED: all entries of the range get the same answer. */
void batch_fail(struct batch *b, enum row_answer answer, const char *sqlstate, const char *detail);

/* Any state but FREE to FAILED: unanswered entries are unknown. */
void batch_lose(struct batch *b, const char *detail);

/* Is the present range one item, and the last? */
bool batch_is_last_item(const struct batch *b);

/* Frees the encoded items: only the last item is in flight, so they are not needed again. */
void batch_forget(struct batch *b);

/* ANSWERING, FAILED: returns the next row. False: the range is finished, and the state is TO_SEND or FREE. */
bool batch_next(struct batch *b, struct inbox_row *row);
