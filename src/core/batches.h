#pragma once

#include "onceward/core/queue.h"

/* Requests with several messages: which deliveries share one, and how large the next one is after a failure. The
 * members of a request have no cap, or come from one failed request. Private to the core, and unused without
 * rules.batch.max_messages. */

enum {
    SLOT_UNITS = 1 << 20,  /* of a slot: each message of a request takes its share */
    REFUSALS_TOGETHER = 2, /* consecutive answers 429 or 503, after which one member may be the cause */
};

bool batches_are_on(const struct queue *q);

/* Largest number of messages and bytes of a request: as configured, or as learned from the application. */
size_t batches_messages(const struct queue *q);
size_t batches_bytes(const struct queue *q);

/* May the circuit breaker and the limiter let d share its next request? */
bool batches_may_share(const struct queue *q, const struct delivery *d);

/* The learned size of requests grows after a success, and shrinks after a window without an answer or a body that was
 * too large. */
void batches_learn_more(struct queue *q, const struct request *r);
void batches_learn_hung(struct queue *q, const struct request *r);
void batches_learn_too_large(struct queue *q, const struct request *r);

/* Largest number of messages in a quarantined group with d. */
size_t batches_most_of_group(const struct queue *q, const struct delivery *d);

/* The share of a slot that d will take. */
uint32_t batches_share(const struct queue *q, const struct delivery *d);

/* Slots that so many units take, rounded up. */
size_t slots_of(size_t units);

/* Adds the messages that share the request with its first member, and writes its body. At most the share of one of
 * n_free slots. may: may this delivery be sent now, beside others? */
typedef bool may_accompany_fn(const struct queue *q, int64_t now_ms, const struct delivery *d);
void batches_fill(struct queue *q, int64_t now_ms, struct request *r, int n_free, may_accompany_fn *may);

/* Bytes that d will add to the body of a request, with its attempts as last read. The body of d is not read.
 * before: the previous member of the same key; NULL: none. */
size_t batches_member_bytes(const struct queue *q, const struct delivery *d, const struct delivery *before);

/* The window of r ended without an answer: its members are released, and go in small requests next. */
void batches_unanswered(struct request *r);

/* Remembers that d was claimed for an earlier delivery, whose refusals are not known here. */
void batches_claimed_before(const struct queue *q, struct delivery *d);

/* Did d fail in company, so that it is not charged? */
static inline bool batches_in_company(const struct delivery *d)
{
    return d->request && d->request->n_sent > 1;
}

/* d has failed with its whole request: the next one is half as large, or d goes alone. */
void batches_split(const struct queue *q, struct delivery *d);
void batches_split_by_half(struct delivery *d);

/* Weight of a request that failed as a whole for the circuit breaker, where a message weighs 1. */
int batches_failure_weight(const struct queue *q);

/* Largest number of messages in flight. */
size_t batches_most_open(const struct queue *q);

/* Does the failure of r show another bad message? Of the halves of a failed request, the first to fail shows the same
 * message, the second another one. */
bool batches_failure_is_new(struct queue *q, const struct request *r);
