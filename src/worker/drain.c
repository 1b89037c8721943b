/* The end of a queue's work: what is in flight may finish while the grace lasts, then it is given back, then
 * returned as it is. */
#include "worker.h"

enum {
    CLOSE_MS = 2000,
    RETURN_ALL_MS = 500,   /* for writing the returns */
    HELD_RETURN_MS = 3000, /* at the end of the grace, for the last words to database and broker */
};

static size_t n_unsettled(const struct worker *w)
{
    size_t n = 0;

    for (int s = 0; s < N_DELIVERY_STATES; s++)
        if (s != DELIVERY_GONE && s != DELIVERY_PARKED)
            n += w->states[s].len;
    return n;
}

static void return_idle(struct worker *w)
{
    static const enum delivery_state idle[] = {DELIVERY_FOLLOWING, DELIVERY_TO_CLAIM, DELIVERY_TO_LOOK,
                                               DELIVERY_SUSPECT, DELIVERY_PARKED};
    struct link *k;

    for (size_t i = 0; i < sizeof(idle) / sizeof(idle[0]); i++) {
        struct list *l = &w->states[idle[i]];

        for (k = l->head.next; k != &l->head;) {
            struct delivery *d = container_of(k, struct delivery, in_state);

            k = k->next;
            if (idle[i] == DELIVERY_FOLLOWING && d->leader && !delivery_is_idle(d->leader->state) &&
                w->drain == DRAIN_FINISHING)
                continue; /* it may yet be acked with the one that is in flight */
            delivery_return(w, d);
        }
    }
    while ((k = list_first(&w->states[DELIVERY_CLAIMED]))) {
        struct delivery *d = container_of(k, struct delivery, in_state);

        delivery_set_error(d, "the sidecar stops");
        d->delay_ms = 0;
        d->release_to = RELEASE_RETURN;
        delivery_event(w, d, DELIVERY_EV_GIVE_BACK);
    }
}

/* The grace is over: the attempts are given back. With transaction completion the fence makes it safe for the
 * next holder to begin at once; with response completion it must not before the window would have ended,
 * since the application may still be at work. */
static void give_up_in_flight(struct worker *w)
{
    static const enum delivery_state out[] = {DELIVERY_FORWARDING, DELIVERY_TO_REVOKE, DELIVERY_WATCHING,
                                              DELIVERY_TO_CHECK};
    struct link *k;

    for (size_t i = 0; i < sizeof(out) / sizeof(out[0]); i++) {
        while ((k = list_first(&w->states[out[i]]))) {
            struct delivery *d = container_of(k, struct delivery, in_state);

            if (delivery_is_out(d->state))
                forward_abandon(w->forward, 0, d->ref);
            delivery_set_error(d, "the sidecar stopped before it was answered");
            d->delay_ms = w->q->transaction ? 0 : -TAKEOVER_GRACE_MS; /* after the end, as the row has it */
            d->release_to = RELEASE_RETURN;
            delivery_event(w, d, DELIVERY_EV_GIVE_BACK);
        }
    }
}

/* The last resort, with a database that does not answer: their rows stay as they are. Closing with them
 * unacked would cost every one of them a delivery on some brokers, and a return on fewer. */
static void return_everything(struct worker *w)
{
    for (int s = 0; s < N_DELIVERY_STATES; s++) {
        if (s == DELIVERY_GONE || s == DELIVERY_TO_ACK || s == DELIVERY_TO_REJECT || s == DELIVERY_TO_RETURN)
            continue;
        for (struct link *k; (k = list_first(&w->states[s]));) {
            struct delivery *d = container_of(k, struct delivery, in_state);

            if (delivery_is_out(d->state))
                forward_abandon(w->forward, 0, d->ref);
            delivery_event(w, d, DELIVERY_EV_RETURN);
        }
    }
}

static void drain_begin(struct worker *w)
{
    struct log_line l;

    w->drain = DRAIN_FINISHING;
    w->drain_until_ms = w->now_ms + w->config->shutdown_grace_ms;
    log_begin(&l, EVENT_DRAINING, w->q->name);
    log_int(&l, "in_flight", (int64_t)worker_n_out(w));
    log_int(&l, "held", (int64_t)w->unacked.len);
    log_int(&l, "grace_ms", w->config->shutdown_grace_ms);
    log_end(&l);
}

static void drain_close(struct worker *w)
{
    struct fault f = {0};

    FAILPOINT(CLOSE_BEFORE);
    w->drain = DRAIN_CLOSING;
    w->drain_until_ms = w->now_ms + CLOSE_MS;
    if (!w->broker || broker_close(w->broker, &f))
        w->drain = DRAIN_ENDED;
}

void worker_step_drain(struct worker *w)
{
    int asked = atomic_load(&w->asked);

    if (!asked)
        return;
    if (w->drain == DRAIN_NO)
        drain_begin(w);
    if (asked > 1 && w->drain == DRAIN_FINISHING)
        w->drain_until_ms = w->now_ms;
    if (w->drain == DRAIN_RETURNING)
        give_up_in_flight(w);
    if (w->drain <= DRAIN_RETURNING) {
        /* Without credit nothing new comes; what was returned must not come back at once. */
        if (w->consumer == CONSUMER_NONE || !w->broker)
            return_idle(w);
        if (!n_unsettled(w) && w->consumer == CONSUMER_NONE)
            drain_close(w);
    }
    if (w->drain == DRAIN_FINISHING && w->now_ms >= w->drain_until_ms) {
        w->drain = DRAIN_RETURNING;
        w->drain_until_ms = w->now_ms + HELD_RETURN_MS;
    } else if (w->drain == DRAIN_RETURNING && w->now_ms >= w->drain_until_ms + RETURN_ALL_MS) {
        drain_close(w);
    } else if (w->drain == DRAIN_RETURNING && w->now_ms >= w->drain_until_ms) {
        return_everything(w);
    } else if (w->drain == DRAIN_CLOSING && w->now_ms >= w->drain_until_ms) {
        w->drain = DRAIN_ENDED;
    }
}
