#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The limit of requests in flight, learned from the answers, as TCP limits its segments (slow start, additive
 * increase, multiplicative decrease: RFC 5681, section 3.1). Two limiters apply to each request: the queue's
 * counts "not now" answers and ends of windows, and the application's counts crashes and refusals. A value; no
 * I/O, no clock.
 *
 * - It starts at LIMITER_FIRST, and after an outage at 1. A good answer adds 1 below `threshold` and 1/limit
 * above it, up to `most`.
 * - Long jobs give no answer for a while. When every slot has been taken for LIMITER_DOUBLE_MS the limit
 * doubles, up to `threshold`, provided that no bad answer came recently and the application does not seem
 * to hang. Otherwise a full LIMITER_BUSY_MS adds 1.
 * - A budget of LIMITER_BUDGET: a bad answer costs 1, a good one restores 1/10. When half of it is spent, the
 * limit is cut to 7/10 and the budget is full again. So an application that refuses now and then costs
 * nothing.
 * - At 1, each further bad answer doubles a wait. Any good answer ends it.
 * - Answers to requests that were sent before the latest cut change nothing.
 * - The reason of the latest cut is kept, to show operators why the limit is low. */

enum {
    LIMITER_BUDGET = 10,
    LIMITER_WAIT_FIRST_MS = 100,
    LIMITER_WAIT_UNTRIED_MS = 1000, /* the longest wait while untried messages are answered "not now" */
    LIMITER_WAIT_LAST_MS = 10000,
    LIMITER_FIRST = 4,       /* requests in flight after a fresh start, if `most` allows it */
    LIMITER_DOUBLE_MS = 100, /* the limit doubles when every slot was taken for this long (see above) */
    LIMITER_BUSY_MS = 1000,  /* or grows by 1 after this long */
};

struct limiter {
    double limit, threshold, budget;
    int most;
    uint64_t n_cuts;       /* recorded with a request: see limiter_mark */
    int64_t wait_ms;       /* present wait; 0: none */
    int64_t wait_until_ms; /* no request is sent before then */
    int64_t full_since_ms; /* every slot has been taken since then; 0: not now */
    int64_t full_step_ms;  /* duration of that after which the limit grows */
    int64_t slow_since_ms; /* the limit has been 1 with a wait since then; 0: not now */
    const char *reason;    /* of the latest cut; NULL: none yet */
    const char *blamed;    /* reason of a cut by the next bad answer */
};

void limiter_init(struct limiter *l, int most);

/* Mark to keep with a request when it is sent, and to pass with its answer. */
uint64_t limiter_mark(const struct limiter *l);

/* Counts a good answer to a request with that mark. */
void limiter_good(struct limiter *l, uint64_t mark);

/* Names the kind of the bad answers that follow, in a few words of static text. */
static inline void limiter_blame(struct limiter *l, const char *reason)
{
    l->blamed = reason;
}

/* Kind of the answers that lowered the limit. NULL: it has been growing since the start, or is `most`. */
static inline const char *limiter_reason(const struct limiter *l)
{
    return (int)l->limit < l->most ? l->reason : NULL;
}

/* Counts a bad answer to a request with that mark. wait_most_ms: the longest wait for this kind of answer;
 * retry_after_ms: from the answer, obeyed up to wait_most_ms, -1: none. random: 64 random bits, for jitter. */
void limiter_bad(struct limiter *l, int64_t now_ms, uint64_t mark, int64_t wait_most_ms,
                 int64_t retry_after_ms, uint64_t random);

/* The application is not available: the limit becomes 1 at once, whatever the marks of earlier requests. The
 * probes decide how long to wait. */
void limiter_collapse(struct limiter *l, int64_t now_ms);

/* Number of requests that may be in flight; 0 during a wait. */
int limiter_room(const struct limiter *l, int64_t now_ms);

/* Growth without answers, for each turn. n_out: slots taken. more: a message waits for a slot. hangs: the oldest
 * request is older than half its window. */
void limiter_busy(struct limiter *l, int64_t now_ms, int n_out, bool more, bool hangs);

/* Time at which limiter_room or limiter_busy may next change without a new fact; INT64_MAX: never. */
int64_t limiter_deadline(const struct limiter *l, int64_t now_ms);
