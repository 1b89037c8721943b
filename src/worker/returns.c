/* What goes back to the broker, and what the delivery limit of a quorum queue makes of it: a return costs a
 * delivery, and the broker drops what it has delivered too often. */
#include "worker.h"

#include "onceward/base/clock.h"

#include <stdlib.h>

enum { LIMIT_SPARE = 2 }; /* what arrives this near the delivery limit is buried */

/* RabbitMQ 4 drops or dead-letters what was delivered too often to a quorum queue's consumers: 20 times
 * unless it was told otherwise (https://www.rabbitmq.com/docs/quorum-queues#poison-message-handling). Earlier
 * ones have no limit of their own. */
void worker_learn_limit(struct worker *w)
{
    enum { DEFAULT_LIMIT = 20, SINCE_VERSION = 4 };
    int configured = w->config->broker.delivery_limit;
    long major = strtol(broker_version(w->broker), NULL, 10);

    w->delivery_limit = configured >= 0 ? configured : major >= SINCE_VERSION ? DEFAULT_LIMIT : 0;
}

/* A return may cost a delivery. Pauses may use up half of what the limit allows; then it is held instead, and
 * the other half is for what cannot be helped: a kill of the sidecar, a broken connection, the end of
 * max_hold.
 */
bool delivery_may_return(const struct worker *w, const struct delivery *d)
{
    int64_t half = w->delivery_limit / 2, last = w->delivery_limit - 2 * LIMIT_SPARE;

    return !w->delivery_limit || d->n_delivered < (half < last ? half : last);
}

int64_t delivery_near_limit(const struct worker *w)
{
    return w->delivery_limit > LIMIT_SPARE ? w->delivery_limit - LIMIT_SPARE : 1;
}

bool delivery_is_near_its_last(const struct worker *w, const struct delivery *d)
{
    return w->delivery_limit && d->n_delivered >= delivery_near_limit(w);
}

bool delivery_is_at_its_last(const struct worker *w, const struct delivery *d)
{
    return w->delivery_limit && d->n_delivered > 0 && d->n_delivered + 1 >= w->delivery_limit;
}

/* It only waits here, but the row may hold its claim, if only as an answer that got lost: that is given back
 * first, so that the next holder neither waits for its end nor is charged for it. */
bool delivery_release_idle_claim(struct worker *w, struct delivery *d)
{
    if (!d->has_token || !delivery_is_idle(d->state) || delivery_next(d->state, DELIVERY_EV_GIVE_BACK) < 0)
        return false;
    d->delay_ms = 0;
    d->release_to = RELEASE_RETURN;
    delivery_set_error(d, "given back before it was sent");
    delivery_event(w, d, DELIVERY_EV_GIVE_BACK);
    return true;
}

static bool database_is_here(const struct worker *w)
{
    return w->inbox && !(w->pauses & 1u << PAUSE_DATABASE);
}

/* Stored whole instead of being returned, though its row is somebody else's: a letter that has an id is
 * redriven under it, and the row then decides. */
static void bury_at_its_last(struct worker *w, struct delivery *d)
{
    delivery_set_error(d,
                       "near the broker's delivery limit, and its row is at work elsewhere: see whether it "
                       "was completed before it is redriven");
    d->dead_reason = DEAD_DELIVERY_LIMIT;
    d->rowless = true;
    d->has_token = false;
    if (d->leader != d)
        delivery_drop_id(w, d);
    delivery_event(w, d, DELIVERY_EV_GIVE_UP);
}

/* The broker drops what is returned at its limit; and a return below costs one delivery, where the last
 * should be left for what cannot be helped. Without the database nothing can be stored, but then nothing is
 * consumed either: up to the limit it is as safe in the queue. What has no body here cannot be stored at all.
 */
bool delivery_only_waits(const struct worker *w, const struct delivery *d)
{
    return delivery_is_idle(d->state) ||
           (d->state == DELIVERY_TO_BURY && d->rowless && !database_is_here(w)); /* its letter is not begun */
}

bool delivery_return(struct worker *w, struct delivery *d)
{
    bool over = w->delivery_limit && d->n_delivered >= w->delivery_limit;

    if (d->was_dead && d->state == DELIVERY_PARKED) { /* nothing is lost by that, and no delivery charged */
        delivery_event(w, d, DELIVERY_EV_WAS_DEAD);
        return true;
    }
    if (!d->message && d->rowless && delivery_is_near_its_last(w, d) && !w->drain)
        return false;
    if (d->message && delivery_is_at_its_last(w, d) && (over || !d->has_token)) {
        if (database_is_here(w)) {
            if (d->state == DELIVERY_TO_CLAIM)
                return false; /* the claim, which is next, decides */
            if (delivery_next(d->state, DELIVERY_EV_GIVE_UP) >= 0) {
                bury_at_its_last(w, d);
                return true;
            }
        } else if (over && !w->drain) {
            return false;
        }
    }
    if (!delivery_release_idle_claim(w, d))
        delivery_event(w, d, DELIVERY_EV_RETURN);
    return true;
}

void worker_return_old(struct worker *w)
{
    struct log_line l;
    size_t n = 0;

    for (struct link *k = w->unacked.head.next, *next; k != &w->unacked.head; k = next) {
        struct delivery *d = container_of(k, struct delivery, in_tags);

        next = k->next;
        if (clock_us() / 1000 - d->received_us / 1000 < w->q->max_hold_ms)
            break; /* in the order of arrival */
        if (!delivery_only_waits(w, d))
            continue;
        n += delivery_return(w, d);
    }
    if (!n)
        return;
    log_begin(&l, EVENT_RETURNED, w->q->name);
    log_text(&l, "reason", "held for max_hold");
    log_int(&l, "n", (int64_t)n);
    log_end(&l);
}
