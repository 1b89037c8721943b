/* The consumer: its credit, and the detection of missing deliveries. See consumer.h. */
#include "onceward/core/consumer.h"

#include <assert.h>

enum { LARGEST_FORGET_MS = 60000, REGROW_MS = 1000 };

static size_t largest(const struct consumer *c)
{
    return c->largest.seen > c->largest.before ? c->largest.seen : c->largest.before;
}

/* Number of deliveries of the largest recent size that fit. */
static size_t fitting(const struct consumer *c, const struct consumer_load *l)
{
    size_t each = largest(c), room = l->max_bytes > l->n_bytes ? l->max_bytes - l->n_bytes : 0;

    if (each * (size_t)l->prefetch <= l->max_bytes / 2)
        return (size_t)l->prefetch;
    assert(each > 0);
    return room / each;
}

int consumer_prefetch(const struct consumer *c, const struct consumer_load *l)
{
    size_t most = (size_t)(l->max_parked > l->prefetch ? l->max_parked : l->prefetch);
    size_t n = fitting(c, l), room = most > l->n_waiting ? most - l->n_waiting : 0;

    if (l->fixed)
        return l->prefetch;
    if (n > room)
        n = room;
    if (l->most && n > (size_t)l->most)
        n = (size_t)l->most;
    if (n < 1 || l->cautious)
        return 1;
    return n < (size_t)l->prefetch ? (int)n : l->prefetch;
}

bool consumer_needs_renewal(const struct consumer *c, const struct consumer_load *l, int64_t now_ms)
{
    int fits = consumer_prefetch(c, l);

    assert(fits >= 1 && fits <= l->prefetch);
    if (l->yields && !c->yielded) /* also at prefetch 1: cancelling the former consumer hands the queue on */
        return true;
    if (l->fixed)
        return false;
    if (l->most)
        return c->prefetch > l->most;
    if (l->cautious && c->prefetch > 1)
        return true;
    if (c->n_parked > (size_t)c->prefetch / 4 || (c->bounded && !l->cautious))
        return true;
    if (c->prefetch > 1 && largest(c) * (size_t)c->prefetch > l->max_bytes)
        return true;
    /* A reduced prefetch that limits the throughput grows back. */
    return now_ms - c->started_ms >= REGROW_MS && c->prefetch < l->prefetch &&
           c->n_used * 2 >= (size_t)c->prefetch && fits >= 2 * c->prefetch;
}

void consumer_saw_size(struct consumer *c, int64_t now_ms, size_t n_bytes)
{
    if (now_ms - c->largest.since_ms > LARGEST_FORGET_MS) {
        c->largest.before = c->largest.seen;
        c->largest.seen = 0;
        c->largest.since_ms = now_ms;
    }
    if (n_bytes > c->largest.seen)
        c->largest.seen = n_bytes;
}

void consumer_depth(struct consumer *c, int64_t depth, bool no_queue)
{
    c->watch.depth = depth;
    c->watch.depth_of_ms = c->watch.asked_ms;
    c->watch.asked_ms = 0;
    c->watch.no_queue = no_queue;
}

/* Reason why deliveries cannot come although they should; NULL: none. */
static const char *stuck_reason(const struct consumer *c)
{
    switch (c->state) {
    case CONSUMER_STARTING:
        return "the broker does not answer the subscription";
    case CONSUMER_STOPPING:
        return "the broker does not answer the cancel";
    case CONSUMER_ACTIVE:
        if (c->former)
            return "the broker does not answer the cancel";
        return c->watch.depth > 0 && c->n_used < (size_t)c->prefetch
                   ? "nothing was delivered, though the queue is not empty"
                   : NULL;
    default:
        return NULL;
    }
}

enum consumer_remedy consumer_watch(struct consumer *c, int64_t now_ms, int64_t stuck_ms, int64_t again_ms)
{
    enum { N_REOPENS = 2, DOUBLINGS_MAX = 6 };
    struct consumer_watch *w = &c->watch;
    const char *reason = stuck_reason(c);
    bool may_come = c->state == CONSUMER_ACTIVE && c->n_used < (size_t)c->prefetch;

    if (reason != w->stuck_for) {
        w->stuck_for = reason;
        w->since_ms = now_ms;
    }
    /* Only a depth that was measured after the last delivery counts. */
    if (may_come && w->depth_of_ms < w->since_ms) {
        bool patient = now_ms - w->since_ms < stuck_ms / 2;

        return patient || w->asked_ms ? REMEDY_NONE : REMEDY_ASK_DEPTH;
    }
    if (!reason || now_ms - w->since_ms < stuck_ms || now_ms < w->not_before_ms)
        return REMEDY_NONE;
    w->standby = c->state == CONSUMER_ACTIVE && w->n_remedies >= N_REOPENS;
    w->not_before_ms = now_ms + (again_ms << (w->n_remedies < DOUBLINGS_MAX ? w->n_remedies : DOUBLINGS_MAX));
    w->n_remedies++;
    return w->standby ? REMEDY_STANDBY : REMEDY_REOPEN;
}
