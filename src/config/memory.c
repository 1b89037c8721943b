/* Fits the bytes that queues may hold into a memory limit: see memory.h. */
#include "onceward/config/memory.h"

#include "onceward/base/fault.h"
#include "onceward/config/config.h"
#include "onceward/core/outbox.h"

#include <stddef.h>
#include <stdio.h>

enum {
    LETTER_COPIES = 2, /* of a body while its dead letter is written, in addition to the message */
    OUTBOX_COPIES = 2, /* of a row that is larger than the ones read ahead: read, and written to the broker */
    MIB = 1 << 20,
    SHARE_STEPS = 30, /* halves: less than a byte of 1 GiB */
};

static uint64_t sum_of(const struct config *c)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < c->n_queues; i++)
        sum += c->queues[i].partition ? 0 : c->queues[i].max_bytes; /* the partitions of an entry share it */
    return sum;
}

static uint64_t largest_of(const struct config *c)
{
    uint64_t largest = 0;

    for (size_t i = 0; i < c->n_queues; i++)
        if (c->queues[i].max_message_bytes > largest)
            largest = c->queues[i].max_message_bytes;
    return largest;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Size of one request: a message that does not fit into batch.max_bytes has a request of its own. */
static uint64_t envelope_of(const struct config_queue *q)
{
    uint64_t alone = (uint64_t)q->max_message_bytes / 3 * 4;

    return alone > q->forward.batch.max_bytes ? alone : q->forward.batch.max_bytes;
}

/* Size of the requests with several messages in flight: copies of the held bodies, in base64 at worst. An ordered
 * queue may exceed max_bytes until the size of its messages is known. */
static uint64_t envelopes_of(const struct config_queue *q)
{
    uint64_t copies = (uint64_t)q->max_bytes / 3 * 4 * (q->order.key.n ? 2 : 1);

    if (q->partition || !q->forward.batch.max_messages)
        return 0;
    return smaller((uint64_t)q->forward.concurrency * envelope_of(q), copies);
}

/* Size of the answers to them that are kept until their rows are written. */
static uint64_t answers_of(const struct config_queue *q)
{
    if (q->partition || !q->forward.batch.max_messages || !config_batch_results(q))
        return 0;
    return (uint64_t)q->forward.concurrency * q->forward.max_response_bytes;
}

static uint64_t all_of(const struct config *c, uint64_t (*part_of)(const struct config_queue *q))
{
    uint64_t sum = 0;

    for (size_t i = 0; i < c->n_queues; i++)
        sum += part_of(&c->queues[i]);
    return sum;
}

/* Size of the outbox: rows read ahead, rows of stopped exchanges, and dead letters. A copy that renews a message is
 * as large as one of max_message, and fits into the quarter that is kept free. */
static uint64_t outbox_of(const struct config *c)
{
    return c->outbox.is_there ? 2 * (uint64_t)OUTBOX_HELD_BYTES + OUTBOX_LETTERS_BYTES +
                                    OUTBOX_COPIES * (uint64_t)c->outbox.max_message_bytes
                              : 0;
}

static uint64_t beside_of(const struct config *c)
{
    return all_of(c, envelopes_of) + all_of(c, answers_of) + outbox_of(c);
}

static unsigned long long mib(uint64_t bytes)
{
    return (bytes + MIB / 2) / MIB;
}

static void at_most(size_t *value, uint64_t most)
{
    if (*value > most)
        *value = (size_t)most;
}

static void queue_lower(struct config_queue *q, double share, uint64_t message)
{
    q->max_bytes = (size_t)((double)q->max_bytes * share);
    if (q->too_large_is_reject) /* lowering it would lose larger messages, and a single one may exceed
                                   max_bytes */
        return;
    at_most(&q->max_message_bytes, message);
    at_most(&q->max_message_bytes, q->max_bytes);
}

/* Size of the held bodies, and of their copies in batches, with this share of max_bytes. */
static uint64_t held_with(const struct config *c, double share, uint64_t message)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < c->n_queues; i++) {
        struct config_queue q = c->queues[i];

        queue_lower(&q, share, message);
        sum += (q.partition ? 0 : q.max_bytes) + envelopes_of(&q);
    }
    return sum;
}

/* Largest share of max_bytes that fits. */
static double share_of(const struct config *c, uint64_t room, uint64_t message)
{
    uint64_t sum = sum_of(c);
    double low = 0, high = sum > room ? (double)room / (double)sum : 1;

    if (held_with(c, high, message) <= room)
        return high;
    for (int i = 0; i < SHARE_STEPS; i++) {
        double middle = (low + high) / 2;

        *(held_with(c, middle, message) <= room ? &low : &high) = middle;
    }
    return low;
}

/* Lowers the number of kept answers, which have no other setting to lower: a lower max_response would cut them. */
static void answers_lower(struct config *c, uint64_t most)
{
    uint64_t answers = all_of(c, answers_of);

    for (size_t i = 0; answers > most && i < c->n_queues; i++) {
        struct config_queue *q = &c->queues[i];
        int lower = (int)((double)q->forward.concurrency * (double)most / (double)answers);

        if (config_batch_results(q))
            q->forward.concurrency = lower > 1 ? lower : 1;
    }
}

bool memory_fit(struct config *c, uint64_t limit, struct fault *text)
{
    uint64_t budget = limit / 4 * 3, sum = sum_of(c), largest = largest_of(c), message = largest,
             beside = beside_of(c), fixed;
    bool kept = false;
    char others[160] = "";
    double share;

    if (sum + LETTER_COPIES * largest + beside <= budget)
        return false;
    if (beside)
        snprintf(others, sizeof(others), ", beside batches in flight and the outbox (%llu MiB%s)",
                 mib(beside),
                 all_of(c, answers_of) > budget / 4
                     ? "; forward.concurrency is lowered for the answers with results"
                     : "");
    answers_lower(c, budget / 4);
    fixed = all_of(c, answers_of) + outbox_of(c);
    budget -= smaller(fixed, budget / 2);                   /* the rest of it has no setting to lower */
    message = smaller(message, budget / LETTER_COPIES / 2); /* max_bytes has the other half */
    share = share_of(c, budget - LETTER_COPIES * message, message);
    for (size_t i = 0; i < c->n_queues; i++) {
        struct config_queue *q = &c->queues[i];

        queue_lower(q, share, message);
        kept |=
            q->too_large_is_reject && (q->max_message_bytes > message || q->max_message_bytes > q->max_bytes);
    }
    fault_set(
        text,
        "the memory limit of %llu MiB is too low for max_bytes (%llu MiB in all) and the dead letter of "
        "a message of max_message (%llu MiB)%s: lowered to %llu MiB in all and %llu MiB%s. Set them, or "
        "raise the limit to %llu MiB",
        mib(limit), mib(sum), mib(largest), others, mib(sum_of(c)), mib(largest_of(c)),
        kept ? " (max_message stays where on_too_large is reject, which would lose messages)" : "",
        mib((sum + LETTER_COPIES * largest + beside) / 3 * 4 + MIB / 2));
    return true;
}
