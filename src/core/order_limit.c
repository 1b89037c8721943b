/* The delivery limit of an ordered queue.
 *
 * Each return of the channel counts a delivery of all messages that are held, and beyond the limit the broker drops
 * them together. So the queue stops when a delivery with two returns left arrives: nothing is claimed, and the inbox
 * records the stop. Every replica reads it before it subscribes, and closes an idle channel when it learns of it. So
 * the messages return at most once more, with their present holder, and then wait in the queue until an operator
 * continues.
 *
 *   near ─▶ stopped, to be recorded ─▶ recorded ─▶ cleared by an operator ─▶ deliveries up to the count are accepted
 *
 * The inbox keeps the acceptance, so that a replica that starts later does not stop the queue again for the same
 * messages. The first delivery that is not near the limit, while none that is near is held, shows that they are done:
 * then the inbox forgets it.
 *
 * The holder keeps its channel for max_hold: an operator who continues by then has lost no delivery. After max_hold it
 * closes the channel itself, since on RabbitMQ 4.3 the consumer timeout would return a part of the messages.
 *
 * A message that the broker drops with its next return is processed, not stopped: to wait would lose it. */
#include "core/order_limit.h"

#include "core/notes.h"
#include "core/pauses.h"

#include <assert.h>
#include <stdio.h>

enum { LIMIT_SPARE = 2 };

/* Returns left until the broker drops the message. 0: with the next one. INT64_MAX: never. */
static int64_t n_returns_left(const struct queue *q, const struct delivery *d)
{
    int limit = returns_limit(&q->returns);

    if (limit == LIMIT_UNKNOWN || limit == LIMIT_NONE)
        return INT64_MAX;
    return limit - returns_count(&q->returns, d->arrival->copy.delivery_count);
}

static bool is_near(const struct queue *q, const struct delivery *d)
{
    return n_returns_left(q, d) <= LIMIT_SPARE;
}

static bool holds_near(const struct queue *q, int64_t n_left)
{
    for (const struct link *k = q->held.unacked.head.next; k != &q->held.unacked.head; k = k->next)
        if (n_returns_left(q, container_of((struct link *)k, struct delivery, in_tags)) <= n_left)
            return true;
    return false;
}

void order_limit_watch(struct queue *q, int64_t now_ms, const struct delivery *d)
{
    struct order_limit *l = &q->order.limit;
    char text[160];

    if (!is_near(q, d)) {
        if (l->accepted && !holds_near(q, LIMIT_SPARE)) {
            l->outdated = l->retry;
            l->accepted = 0;
        }
        return;
    }
    if (l->count || d->arrival->copy.delivery_count <= l->accepted || n_returns_left(q, d) <= 0)
        return;
    l->count = d->arrival->copy.delivery_count;
    assert(l->count > 0);
    snprintf(text, sizeof(text),
             "a message was delivered %lld times before, and the delivery limit of the queue is %d",
             (long long)l->count, returns_limit(&q->returns));
    pause_begin(q, now_ms, PAUSE_DELIVERY_LIMIT, text);
}

bool order_limit_is_last(const struct queue *q)
{
    return holds_near(q, 0);
}

bool order_limit_may_return(const struct queue *q, int64_t now_ms)
{
    const struct link *first = q->held.unacked.head.next;

    if (!q->order.limit.recorded || !q->held.unacked.len)
        return q->order.limit.recorded;
    const struct delivery *oldest = container_of((struct link *)first, struct delivery, in_tags);
    return now_ms - oldest->arrival->received_ms >= q->rules.max_hold_ms;
}

int64_t queue_stop_wanted(const struct queue *q, const char **ret_why)
{
    const struct order_limit *l = &q->order.limit;

    if (!l->count || l->recorded)
        return 0;
    *ret_why = q->pauses[PAUSE_DELIVERY_LIMIT].text;
    return l->count;
}

int64_t queue_stop_outdated(const struct queue *q)
{
    return q->order.limit.outdated;
}

void queue_stop_known(struct queue *q, int64_t now_ms, int64_t count, int64_t accepted, int64_t retry,
                      const char *why)
{
    struct order_limit *l = &q->order.limit;

    if (accepted < 0 || retry <= 0) /* not written by Onceward */
        accepted = retry = 0;
    /* The inbox answers with an outdated acceptance until it has been told. */
    l->accepted = retry == l->outdated ? 0 : accepted;
    l->retry = retry;
    if (retry != l->outdated)
        l->outdated = 0;
    if (count) {
        if (!pause_is_on(q, PAUSE_DELIVERY_LIMIT))
            pause_begin(q, now_ms, PAUSE_DELIVERY_LIMIT, why);
        l->recorded = true;
        l->count = count;
        return;
    }
    if (!l->count || (!l->recorded && l->count > l->accepted))
        return; /* not stopped, or the question was sent before the stop */
    l->count = 0;
    l->recorded = false;
    pause_end(q, now_ms, PAUSE_DELIVERY_LIMIT);
}
