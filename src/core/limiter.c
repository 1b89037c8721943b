/* The limiter: see limiter.h. */
#include "onceward/core/limiter.h"

#include <assert.h>

/* Factor of a cut, that of CUBIC (RFC 9438, section 4.6). An application that takes 5 of 64 at once is used at 94 %
 * with it, and at 85 % with a half. */
static const double KEPT = 0.7;

void limiter_init(struct limiter *l, int most)
{
    assert(most >= 1);
    *l = (struct limiter){.limit = most < LIMITER_FIRST ? most : LIMITER_FIRST,
                          .threshold = most,
                          .budget = LIMITER_BUDGET,
                          .most = most,
                          .blamed = "bad answers"};
}

uint64_t limiter_mark(const struct limiter *l)
{
    return l->n_cuts;
}

static void limiter_raise(struct limiter *l, double by)
{
    l->limit += by;
    if (l->limit > l->most)
        l->limit = l->most;
    assert(l->limit >= 1);
}

void limiter_good(struct limiter *l, uint64_t mark)
{
    assert(mark <= l->n_cuts);
    if (mark != l->n_cuts)
        return;
    l->wait_ms = l->wait_until_ms = l->slow_since_ms = 0;
    l->budget += 0.1;
    if (l->budget > LIMITER_BUDGET)
        l->budget = LIMITER_BUDGET;
    limiter_raise(l, l->limit < l->threshold ? 1 : 1 / l->limit);
}

/* Sets the next wait with a jitter of a quarter either way, so that replicas refused together do not retry
 * together. */
static void limiter_wait(struct limiter *l, int64_t now_ms, int64_t most_ms, int64_t retry_after_ms,
                         uint64_t random)
{
    int64_t wait = l->wait_ms ? l->wait_ms * 2 : LIMITER_WAIT_FIRST_MS;

    assert(l->limit == 1 && most_ms > 0);
    if (wait > most_ms)
        wait = most_ms;
    l->wait_ms = wait;
    wait = wait * 3 / 4 + (int64_t)(random % (uint64_t)(wait / 2 + 1));
    if (retry_after_ms > wait)
        wait = retry_after_ms < most_ms ? retry_after_ms : most_ms;
    l->wait_until_ms = now_ms + wait;
    if (!l->slow_since_ms)
        l->slow_since_ms = now_ms;
}

void limiter_bad(struct limiter *l, int64_t now_ms, uint64_t mark, int64_t wait_most_ms,
                 int64_t retry_after_ms, uint64_t random)
{
    assert(mark <= l->n_cuts);
    if (mark != l->n_cuts)
        return;
    l->full_since_ms = 0;
    if (l->limit < 2) {
        l->limit = l->threshold = 1;
        l->reason = l->blamed;
        limiter_wait(l, now_ms, wait_most_ms, retry_after_ms, random);
        return;
    }
    l->budget--;
    if (l->budget > LIMITER_BUDGET / 2.0)
        return;
    l->limit = l->threshold = l->limit * KEPT < 1 ? 1 : l->limit * KEPT;
    l->budget = LIMITER_BUDGET;
    l->reason = l->blamed;
    l->n_cuts++;
    assert(l->limit >= 1 && l->limit <= l->most);
}

void limiter_collapse(struct limiter *l, int64_t now_ms)
{
    if (l->limit > 1)
        l->threshold = l->limit / 2 < 1 ? 1 : l->limit / 2;
    l->limit = 1;
    l->budget = LIMITER_BUDGET;
    l->full_since_ms = 0;
    l->reason = "the application was not available";
    l->n_cuts++;
    if (!l->slow_since_ms)
        l->slow_since_ms = now_ms;
}

int limiter_room(const struct limiter *l, int64_t now_ms)
{
    assert(l->limit >= 1);
    return now_ms < l->wait_until_ms ? 0 : (int)l->limit;
}

/* Were there no recent bad answers? A bad one takes a whole mark, and ten good ones restore it. */
static bool limiter_is_unmarked(const struct limiter *l)
{
    return l->budget > LIMITER_BUDGET - 0.5;
}

void limiter_busy(struct limiter *l, int64_t now_ms, int n_out, bool more, bool hangs)
{
    bool doubles = l->limit < l->threshold && limiter_is_unmarked(l) && !hangs;

    if (!more || n_out < (int)l->limit || l->limit >= l->most || now_ms < l->wait_until_ms) {
        l->full_since_ms = 0;
        return;
    }
    if (!l->full_since_ms)
        l->full_since_ms = now_ms;
    assert(l->limit < l->most);
    l->full_step_ms = doubles ? LIMITER_DOUBLE_MS : LIMITER_BUSY_MS;
    if (now_ms - l->full_since_ms < l->full_step_ms)
        return;
    l->full_since_ms = now_ms;
    if (!doubles)
        limiter_raise(l, 1);
    else
        limiter_raise(l, l->limit * 2 < l->threshold ? l->limit : l->threshold - l->limit);
}

int64_t limiter_deadline(const struct limiter *l, int64_t now_ms)
{
    if (now_ms < l->wait_until_ms)
        return l->wait_until_ms;
    return l->full_since_ms ? l->full_since_ms + l->full_step_ms : INT64_MAX;
}
