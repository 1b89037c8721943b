/* The inbox for the loop: batches in, rows out. inbox.h has the promises, batch.h and pipeline.h the parts.
 *
 * Every submitted item is in exactly one batch until its row was returned. One thread, that of the loop. */
#include "onceward/inbox/inbox.h"

#include "asks.h"
#include "pipeline.h"

#include "onceward/base/clock.h"
#include "onceward/base/fault.h"
#include "onceward/base/mem.h"

#include <assert.h>
#include <stdlib.h>

enum { BATCH_MAX_ITEMS = 1024 };

void inbox_free(struct inbox *i)
{
    if (!i)
        return;
    for (int op = 0; op < N_INBOX_OPS; op++)
        batch_deinit(&i->batches[op]);
    for (int q = 0; q < N_QUESTIONS; q++)
        question_deinit(&i->answers[q]);
    PQclear(i->rows);
    PQclear(i->error);
    PQfinish(i->conn);
    buf_deinit(&i->outbox_snapshot);
    presence_deinit(&i->presence);
    free(i->dead_letters);
    queues_deinit(&i->queues);
    call_scalars_deinit(&i->scalars);
    free(i->sorted);
    free(i);
}

enum inbox_registration inbox_registration(const struct inbox *i, size_t queue, struct fault *f)
{
    assert(queue < i->queues.n);
    if (f && i->queues.refusals[queue])
        fault_set(f, "%s", i->queues.refusals[queue]);
    return i->queues.registrations[queue];
}

bool inbox_is_of_other_broker(const struct inbox *i, size_t queue)
{
    assert(queue < i->queues.n);
    return i->queues.registrations[queue] == INBOX_REFUSED && i->queues.of_other_broker[queue];
}

const char *inbox_range(const struct inbox *i, size_t queue)
{
    assert(queue < i->queues.n);
    return i->queues.ranges[queue];
}

char *inbox_take_former_range(struct inbox *i, size_t queue)
{
    char *former = i->queues.formers[queue];

    i->queues.formers[queue] = NULL;
    return former;
}

void inbox_end_range(struct inbox *i, size_t queue, bool ended)
{
    assert(queue < i->queues.n);
    i->queues.ended[queue] = ended;
}

const char *inbox_consumer(const struct inbox *i, size_t queue)
{
    assert(queue < i->queues.n);
    return i->queues.list[queue].consumer;
}

void inbox_set_broker(struct inbox *i, size_t queue, const char *broker)
{
    assert(queue < i->queues.n);
    queues_set_broker(&i->queues, queue, broker);
}

void inbox_unregister(struct inbox *i, size_t queue)
{
    assert(queue < i->queues.n);
    i->queues.registrations[queue] = INBOX_BUSY;
}

void inbox_set_gone(struct inbox *i, const char *const *instances, size_t n)
{
    call_scalars_gone(&i->scalars, instances, n);
}

int inbox_fd(const struct inbox *i)
{
    return PQsocket(i->conn);
}

bool inbox_wants_write(const struct inbox *i)
{
    return i->unsent && !i->lost;
}

bool inbox_is_free(const struct inbox *i, enum inbox_op op)
{
    return !i->lost && i->batches[op].state == BATCH_FREE;
}

int64_t inbox_waiting_ms(const struct inbox *i)
{
    return i->lost || !i->n_segments ? 0 : clock_ms() - i->waiting_since_ms;
}

bool inbox_is_lost(const struct inbox *i)
{
    return i->lost;
}

bool inbox_gave_up_prepared(const struct inbox *i)
{
    return i->gave_up_prepared;
}

bool inbox_is_swollen(const struct inbox *i)
{
    return i->swollen;
}

/* Orders items by primary key: every sidecar locks rows in that order. */
static int item_compare(const void *a, const void *b, void *arg)
{
    const struct inbox_item *const *left = a, *const *right = b;
    const struct queues *q = arg;
    size_t left_rank = q->ranks[(*left)->queue], right_rank = q->ranks[(*right)->queue];

    return left_rank == right_rank  ? slice_compare((*left)->message_id, (*right)->message_id)
           : left_rank < right_rank ? -1
                                    : 1;
}

static bool item_is_fit(const struct inbox *i, enum inbox_op op, const struct inbox_item *item)
{
    if (item->queue >= i->queues.n || i->queues.registrations[item->queue] != INBOX_REGISTERED)
        return false;
    bool transaction = i->queues.list[item->queue].transaction;

    if (op == INBOX_CLAIM || op == INBOX_CLAIM_STORE)
        return !transaction;
    return op == INBOX_CLAIM_ASYNC || op == INBOX_CLAIM_STORE_ASYNC ? transaction : true;
}

int inbox_submit(struct inbox *i, enum inbox_op op, const struct inbox_item *items, size_t n, struct fault *f)
{
    struct batch *b = &i->batches[op];

    assert(n > 0 && n <= BATCH_MAX_ITEMS && b->state == BATCH_FREE);
    if (i->sorted_cap < n) {
        i->sorted = mem_realloc(i->sorted, n * sizeof(*i->sorted));
        i->sorted_cap = n;
    }
    for (size_t k = 0; k < n; k++) {
        assert(item_is_fit(i, op, &items[k]));
        i->sorted[k] = &items[k];
    }
    qsort_r(i->sorted, n, sizeof(*i->sorted), item_compare, &i->queues);
    batch_fill(b, i->queues.list, i->sorted, n);
    if (!i->lost)
        pipeline_send(i, b);
    else
        batch_lose(b, i->fault.text);
    if (!i->lost)
        return 0;
    *f = i->fault;
    return -1;
}

/* Returns the next answered row, and advances batches whose range is finished. */
static bool row_next(struct inbox *i, struct inbox_row *row)
{
    for (int op = 0; op < N_INBOX_OPS; op++) {
        struct batch *b = &i->batches[op];

        for (;;) {
            if ((b->state == BATCH_ANSWERING || b->state == BATCH_FAILED) && batch_next(b, row))
                return true;
            if (b->state != BATCH_TO_SEND)
                break;
            if (i->lost)
                batch_lose(b, i->fault.text);
            else
                pipeline_send(i, b);
        }
    }
    return false;
}

int inbox_next(struct inbox *i, struct inbox_row *row, struct fault *f)
{
    for (;;) {
        if (row_next(i, row))
            return 1;
        if (i->lost) {
            /* Sending may have failed after the batch was checked above. */
            if (row_next(i, row))
                return 1;
            *f = i->fault;
            return -1;
        }
        if (!pipeline_read(i))
            return 0;
        asks_read_registration(i);
    }
}
