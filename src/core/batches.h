#pragma once

#include "onceward/core/queue.h"

/* Requests with several messages: which deliveries share one, and how large the next one is after a failure. A request has
 * members without a cap, or members of one failed request only. Private to the core, and unused without
 * rules.batch.max_messages. */

enum {
    SLOT_UNITS = 1 << 20,  /* a slot of the application: each message of a request takes its share of one */
    REFUSALS_TOGETHER = 2, /* 429 or 503 in a row: then one member may be the cause */
};

static inline bool batches_are_on(const struct queue *q)
{
    return q->rules.batch.max_messages > 0;
}

/* Largest number of messages and bytes of a request: as configured, or as learned from the application. */
size_t batches_messages(const struct queue *q);
size_t batches_bytes(const struct queue *q);

/* May d share its next request, as far as the circuit breaker and the limiter are concerned? */
bool batches_may_share(const struct queue *q, const struct delivery *d);

/* A request succeeded; or had no answer within its window, or was too large: the learned size grows or shrinks. */
void batches_learn_more(struct queue *q, const struct request *r);
void batches_learn_hung(struct queue *q, const struct request *r);
void batches_learn_too_large(struct queue *q, const struct request *r);

/* Largest number of messages in a quarantined group with d. */
size_t batches_most_of_group(const struct queue *q, const struct delivery *d);

/* The share of a slot that d will take. */
uint32_t batches_share(const struct queue *q, const struct delivery *d);

/* Whole slots of so many units. */
static inline size_t slots_of(size_t units)
{
    return (units + SLOT_UNITS - 1) / SLOT_UNITS;
}

/* r has its first member: adds the messages that share its request, at most the share of one of n_free slots, and writes
 * its body. may: may d be sent now, beside others? */
typedef bool may_accompany_fn(const struct queue *q, int64_t now_ms, const struct delivery *d);
void batches_fill(struct queue *q, int64_t now_ms, struct request *r, int n_free, may_accompany_fn *may);

/* The window of r ended without an answer: its members are released, and go in small requests next. */
void batches_unanswered(struct request *r);

/* Has d failed in company, so that it is not charged? */
static inline bool batches_in_company(const struct delivery *d)
{
    return d->request && d->request->n_sent > 1;
}

/* d has failed with the whole of its request: the next one is half as large, or d goes alone. */
void batches_split(const struct queue *q, struct delivery *d);
void batches_split_by_half(struct delivery *d);

/* How much a request that failed as a whole counts for the circuit breaker, where a message counts 1. */
int batches_failure_weight(const struct queue *q);

/* Messages in flight, at most. */
size_t batches_most_open(const struct queue *q);

/* Does the failure of r show another bad message? One half of a failed request fails because of the same message; the
 * other one because of another. */
bool batches_failure_is_new(struct queue *q, const struct request *r);
