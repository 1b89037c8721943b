/* What is said to the broker about deliveries: acks, rejects, returns; many at once, and in the order of
 * their tags. */
#include "worker.h"

#include <stdlib.h>

enum { N_WRITES_A_TURN = 256 };

/* Acks the settled prefix of all tags at once, then what has waited long enough for its predecessors, singly
 * and ascending. */
static int write_prefix(struct worker *w, struct fault *f)
{
    struct delivery *last = NULL;

    list_each(&w->unacked, k)
    {
        struct delivery *d = container_of(k, struct delivery, in_tags);

        if (d->state != DELIVERY_TO_ACK)
            break;
        last = d;
    }
    if (!last)
        return 0;
    struct broker_tag tag = last->tag;
    bool multiple = container_of(w->unacked.head.next, struct delivery, in_tags) != last;
    FAILPOINT(ACK_BEFORE);
    int r = broker_ack(w->broker, tag, multiple, f);
    FAILPOINT(ACK_WRITTEN);

    if (r < 0)
        return r;
    struct link *k;
    while ((k = list_first(&w->unacked))) {
        struct delivery *d = container_of(k, struct delivery, in_tags);
        bool end = d == last;

        delivery_event(w, d, DELIVERY_EV_SENT);
        if (end)
            break;
    }
    return 0;
}

static int by_tag(const void *a, const void *b)
{
    const struct delivery *x = *(struct delivery *const *)a, *y = *(struct delivery *const *)b;

    return x->tag.number < y->tag.number ? -1 : x->tag.number > y->tag.number;
}

/* Nothing is left to claim while there are free slots, and acks would bring more. */
static bool is_starved(const struct worker *w)
{
    return w->unacked.len * 4 >= (size_t)w->consumer_prefetch * 3 && !worker_n(w, DELIVERY_TO_CLAIM) &&
           worker_n_busy(w) < (size_t)w->allowed;
}

static int write_singles(struct worker *w, struct fault *f)
{
    struct delivery *ready[N_WRITES_A_TURN];
    size_t n = 0;
    int64_t patience_ms = is_starved(w) ? ACK_STARVED_MS : ACK_SINGLE_MS;

    /* Credit lasts for 100,000/s all the same. */
    if (worker_n(w, DELIVERY_TO_ACK) * 4 > (size_t)w->consumer_prefetch * 3)
        patience_ms = w->consumer_prefetch < 1000 ? w->consumer_prefetch / 100 : ACK_STARVED_MS;

    list_each(&w->states[DELIVERY_TO_ACK], k)
    {
        struct delivery *d = container_of(k, struct delivery, in_state);

        if (n == N_WRITES_A_TURN)
            break;
        if (w->drain || w->now_ms - d->ready_ms >= patience_ms)
            ready[n++] = d;
    }
    qsort(ready, n, sizeof(struct delivery *), by_tag);
    for (size_t i = 0; i < n; i++) {
        FAILPOINT(ACK_BEFORE);
        int r = broker_ack(w->broker, ready[i]->tag, false, f);
        FAILPOINT(ACK_WRITTEN);

        if (r < 0)
            return r;
        delivery_event(w, ready[i], DELIVERY_EV_SENT);
    }
    return 0;
}

static int write_each(struct worker *w, enum delivery_state s,
                      int (*write_one)(struct broker *, struct broker_tag, struct fault *), struct fault *f)
{
    struct link *k;

    for (int n = 0; n < N_WRITES_A_TURN && (k = list_first(&w->states[s])); n++) {
        struct delivery *d = container_of(k, struct delivery, in_state);

        FAILPOINT_AT(failpoint_of(s, FAILPOINT_STEP_BEFORE));
        if (write_one(w->broker, d->tag, f) < 0)
            return -1;
        FAILPOINT_AT(failpoint_of(s, FAILPOINT_STEP_SENT));
        delivery_event(w, d, DELIVERY_EV_SENT);
    }
    return 0;
}

void worker_write_acks(struct worker *w)
{
    struct fault f = {0};

    if (!w->broker || !w->generation || !broker_channel_is_open(w->broker, THE_QUEUE))
        return;
    size_t n_acks = worker_n(w, DELIVERY_TO_ACK), n_rejects = worker_n(w, DELIVERY_TO_REJECT),
           n_returns = worker_n(w, DELIVERY_TO_RETURN);
    if (!n_acks && !n_rejects && !n_returns)
        return;
    if (!broker_can_write(w->broker, THE_QUEUE, 3 * N_WRITES_A_TURN + 1))
        return;
    /* A loss shows again in broker_next, which is where the connection is given up. */
    if (write_prefix(w, &f) || write_singles(w, &f) || write_each(w, DELIVERY_TO_REJECT, broker_reject, &f) ||
        write_each(w, DELIVERY_TO_RETURN, broker_requeue, &f))
        return;
    broker_flush(w->broker, &f);
    FAILPOINT_IF(worker_n(w, DELIVERY_TO_ACK) < n_acks, ACK_FLUSHED);
    FAILPOINT_IF(worker_n(w, DELIVERY_TO_REJECT) < n_rejects, REJECT_FLUSHED);
    FAILPOINT_IF(worker_n(w, DELIVERY_TO_RETURN) < n_returns, RETURN_FLUSHED);
}
