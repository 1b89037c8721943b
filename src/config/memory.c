/* Fits the bytes that queues may hold into a memory limit: see memory.h. */
#include "onceward/config/memory.h"

#include "onceward/base/fault.h"
#include "onceward/config/config.h"
#include "onceward/core/outbox.h"

#include <stddef.h>
#include <stdio.h>

enum {
    LETTER_COPIES = 2, /* of a body while its dead letter is written, in addition to the message */
    OUTBOX_COPIES = 2, /* of a row that is larger than those read ahead: read, and written to the broker */
    MIB = 1 << 20,
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

/* The bodies of the batches in flight, and the rows of the outbox. A copy that renews a message is as large as one of
 * max_message, and the quarter that is kept free has room for it. */
static uint64_t beside_of(const struct config *c)
{
    uint64_t beside = 0;

    for (size_t i = 0; i < c->n_queues; i++) {
        const struct config_queue *q = &c->queues[i];

        if (!q->partition && q->forward.batch.max_messages)
            beside += (uint64_t)q->forward.concurrency * q->forward.batch.max_bytes;
    }
    if (c->outbox.is_there) /* read ahead, those of stopped exchanges, and dead letters */
        beside += 2 * (uint64_t)OUTBOX_HELD_BYTES + OUTBOX_LETTERS_BYTES +
                  OUTBOX_COPIES * (uint64_t)c->outbox.max_message_bytes;
    return beside;
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

bool memory_fit(struct config *c, uint64_t limit, struct fault *text)
{
    uint64_t budget = limit / 4 * 3, sum = sum_of(c), largest = largest_of(c), message = largest, room,
             beside = beside_of(c);
    bool kept = false;
    char others[80] = "";

    if (sum + LETTER_COPIES * largest + beside <= budget)
        return false;
    budget -=
        beside < budget / 2 ? beside : budget / 2; /* the rest of it has no setting that may be lowered */
    if (message > budget / LETTER_COPIES / 2) /* half of the budget, so that max_bytes has the other half */
        message = budget / LETTER_COPIES / 2;
    room = budget - LETTER_COPIES * message;
    for (size_t i = 0; i < c->n_queues; i++) {
        struct config_queue *q = &c->queues[i];

        if (sum > room)
            q->max_bytes = (size_t)((double)q->max_bytes * (double)room / (double)sum);
        if (q->too_large_is_reject) { /* lowering it would lose larger messages, and one alone may exceed
                                         max_bytes */
            kept |= q->max_message_bytes > message || q->max_message_bytes > q->max_bytes;
            continue;
        }
        at_most(&q->max_message_bytes, message);
        at_most(&q->max_message_bytes, q->max_bytes);
    }
    if (beside)
        snprintf(others, sizeof(others), ", beside batches in flight and the outbox (%llu MiB)", mib(beside));
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
