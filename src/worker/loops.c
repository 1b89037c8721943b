/* Dead messages that come back, because the queue's dead-letter exchange leads to the queue again. What is
 * dead is rejected, and nothing but time keeps it from going round thousands of times a minute. So each copy
 * is parked before it is rejected again, for longer from round to round, as the broker counts them. Others do
 * not wait for it: it stands for its id no more. */
#include "worker.h"

#include "onceward/base/random.h"
#include "onceward/core/backoff.h"

enum {
    FIRST_MS = 2000, /* half of it, on the average */
    LAST_MS = 300000,
    CROWDED_MS = 1000, /* where such copies would take the room of others for long */
};

static int64_t circle_wait_ms(const struct worker *w, const struct delivery *d)
{
    int64_t most = w->q->max_hold_ms < LAST_MS ? w->q->max_hold_ms : LAST_MS,
            round = d->n_rejected > w->q->revive ? d->n_rejected - w->q->revive : 1;

    if (worker_n(w, DELIVERY_PARKED) >= (size_t)w->q->max_parked / 2 && most > CROWDED_MS)
        most = CROWDED_MS;
    return backoff_ms(FIRST_MS, most, round < 32 ? (int)round : 32, random_below(UINT64_MAX));
}

bool delivery_circles(struct worker *w, struct delivery *d)
{
    if (!d->n_rejected || d->has_circled || w->drain || delivery_is_near_its_last(w, d))
        return false;
    d->has_circled = true;
    d->has_token = false; /* the row, if there is one, is not ours */
    d->wait = WAIT_DUE;
    d->delay_ms = circle_wait_ms(w, d);
    delivery_step_down(w, d);
    report_circling(w, d);
    return true;
}
