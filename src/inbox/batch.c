/* Batches: see batch.h for the model. No I/O; one thread, the connection's. */
#include "batch.h"

#include "onceward/base/mem.h"
#include "text.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEPT_BYTES = 16 << 10, /* a larger buffer is freed after the batch */
    KEPT_ENTRIES = 256,
    DETAIL_MAX_BYTES = 1024,
};

void batch_init(struct batch *b, enum inbox_op op)
{
    bool is_claim = op == INBOX_CLAIM_ASYNC || op == INBOX_CLAIM_STORE || op == INBOX_CLAIM_STORE_ASYNC;

    *b = (struct batch){.op = op, .row_op = is_claim ? INBOX_CLAIM : op};
}

static void result_clear(struct batch *b)
{
    PQclear(b->result);
    b->result = NULL;
}

void batch_deinit(struct batch *b)
{
    result_clear(b);
    call_data_deinit(&b->data, 0);
    buf_deinit(&b->detail);
    mem_clear(&b->entries);
    b->state = BATCH_FREE;
}

void batch_fill(struct batch *b, const struct inbox_queue *queues, const struct inbox_item *const *items,
                size_t n)
{
    assert(b->state == BATCH_FREE && n > 0);
    if (b->cap < n) {
        b->entries = mem_realloc(b->entries, n * sizeof(*b->entries));
        b->cap = n;
    }
    for (size_t i = 0; i < n; i++)
        b->entries[i] = (struct batch_entry){.ref = items[i]->ref,
                                             .bytes = call_item_bytes(b->op, items[i]),
                                             .queue = (uint32_t)items[i]->queue};
    call_encode(b->op, &b->data, queues, items, n);
    b->n = n;
    b->at = 0;
    b->ends[0] = n;
    b->n_ends = 1;
    b->state = BATCH_TO_SEND;
}

static size_t range_end(const struct batch *b)
{
    return b->ends[b->n_ends - 1];
}

size_t batch_range(const struct batch *b)
{
    return range_end(b) - b->at;
}

size_t batch_range_bytes(const struct batch *b)
{
    size_t bytes = 0;

    for (size_t i = b->at; i < range_end(b); i++)
        bytes += b->entries[i].bytes;
    return bytes;
}

static void end_push(struct batch *b, size_t end)
{
    assert(b->n_ends < sizeof(b->ends) / sizeof(b->ends[0]) && end > b->at && end < range_end(b));
    b->ends[b->n_ends++] = end;
}

void batch_range_limit(struct batch *b, size_t max, size_t alone)
{
    size_t bytes = b->entries[b->at].bytes;

    for (size_t i = b->at + 1; i < range_end(b); i++) {
        bytes += b->entries[i].bytes;
        if (bytes > max || b->entries[i - 1].bytes > alone || b->entries[i].bytes > alone) {
            end_push(b, i);
            return;
        }
    }
}

void batch_split(struct batch *b)
{
    assert(b->state == BATCH_OUT && batch_range(b) > 1);
    end_push(b, b->at + batch_range(b) / 2);
    b->state = BATCH_TO_SEND;
}

void batch_again(struct batch *b)
{
    assert(b->state == BATCH_OUT);
    b->state = BATCH_TO_SEND;
}

static void failure_set(struct batch *b, enum row_answer answer, const char *sqlstate, const char *detail)
{
    b->failure = answer;
    snprintf(b->sqlstate, sizeof(b->sqlstate), "%s", sqlstate);
    buf_reset(&b->detail);
    text_add(&b->detail, slice_of(detail), DETAIL_MAX_BYTES);
}

void batch_answer(struct batch *b, PGresult *result)
{
    assert(b->state == BATCH_OUT && !b->result);
    b->result = result;
    b->row = 0;
    b->n_rest = b->n_named = 0;
    b->sweep = b->at;
    b->state = BATCH_ANSWERING;
    b->failure = ROW_RETRY;
    b->sqlstate[0] = '\0';
    buf_reset(&b->detail);
}

void batch_fail(struct batch *b, enum row_answer answer, const char *sqlstate, const char *detail)
{
    assert(b->state == BATCH_OUT);
    b->sweep = b->at;
    b->state = BATCH_FAILED;
    failure_set(b, answer, sqlstate, detail);
}

void batch_lose(struct batch *b, const char *detail)
{
    assert(b->state != BATCH_FREE);
    result_clear(b);
    b->ends[0] = b->n;
    b->n_ends = 1;
    b->sweep = b->at;
    b->state = BATCH_FAILED;
    failure_set(b, ROW_UNKNOWN, "", detail);
}

bool batch_is_last_item(const struct batch *b)
{
    return batch_range(b) == 1 && range_end(b) == b->n;
}

void batch_forget(struct batch *b)
{
    assert(b->state == BATCH_OUT && batch_is_last_item(b));
    call_data_deinit(&b->data, KEPT_BYTES);
}

static void range_done(struct batch *b)
{
    result_clear(b);
    if (range_end(b) < b->n) {
        call_skip(b->op, &b->data, batch_range(b));
        b->at = range_end(b);
        b->n_ends--;
        b->state = BATCH_TO_SEND;
        return;
    }
    call_data_deinit(&b->data, KEPT_BYTES);
    if (b->cap > KEPT_ENTRIES) {
        mem_clear(&b->entries);
        b->cap = 0;
    }
    b->state = BATCH_FREE;
}

/* Finds the entry with this ord. NULL: out of range, or answered before; such a row is ignored. */
static struct batch_entry *entry_find(struct batch *b, int ord)
{
    if (ord < 1 || (size_t)ord > batch_range(b))
        return NULL;
    struct batch_entry *e = &b->entries[b->at + (size_t)ord - 1];

    return e->answered ? NULL : e;
}

static void row_fail(const struct batch *b, struct inbox_row *row)
{
    *row = (struct inbox_row){
        .op = b->row_op, .row = {.answer = b->failure, .unproven_ms = -1, .detail = buf_slice(&b->detail)}};
    memcpy(row->row.sqlstate, b->sqlstate, sizeof(row->row.sqlstate));
}

static void entry_answer(struct batch_entry *e, struct inbox_row *row)
{
    row->ref = e->ref;
    row->queue = e->queue;
    e->answered = true;
}

/* Finds the next row of the result that names an entry. False: none left. */
static bool named_next(struct batch *b, struct inbox_row *row)
{
    while (b->result && b->row < PQntuples(b->result)) {
        struct inbox_row made = {.op = b->row_op, .row = {.unproven_ms = -1}};
        int ord;
        bool known = call_row(b->op, b->result, b->row++, &made, &ord, &b->detail);
        struct batch_entry *e = entry_find(b, ord);

        if (known && ord < 0) {
            b->rest = made;
            b->n_rest = (size_t) - (int64_t)ord;
        }
        if (!e)
            continue;
        b->n_named++;
        if (known)
            *row = made;
        else
            row_fail(b, row);
        entry_answer(e, row);
        return true;
    }
    return false;
}

/* Finds the next entry that no row has named. False: none left. */
static bool rest_next(struct batch *b, struct inbox_row *row)
{
    /* The collective row counts only if the numbers add up: a wrong count must not lead to an ack. */
    bool has_rest = b->result && b->n_rest && b->n_rest + b->n_named == batch_range(b);

    while (b->sweep < range_end(b) && b->entries[b->sweep].answered)
        b->sweep++;
    if (b->sweep == range_end(b))
        return false;
    if (has_rest) {
        *row = b->rest;
    } else {
        if (b->result)
            failure_set(b, ROW_RETRY, "", "the database did not answer for this message");
        row_fail(b, row);
    }
    entry_answer(&b->entries[b->sweep++], row);
    return true;
}

bool batch_next(struct batch *b, struct inbox_row *row)
{
    assert(b->state == BATCH_ANSWERING || b->state == BATCH_FAILED);
    if (named_next(b, row) || rest_next(b, row))
        return true;
    range_done(b);
    return false;
}
