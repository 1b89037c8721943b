/* The oracle of the delivery limit of ordered queues: a stop near it stands in the database, every replica obeys it,
 * and the broker drops nothing that a stop could have saved. */
#include "oracle.h"

#include "broker_sim.h"
#include "database_sim.h"
#include "sidecar_sim.h"

enum { SPARE = 2, SOON_US = 15000000 }; /* two presence calls, and their delays */

static bool is_limited(const struct world *w, int queue)
{
    const struct plan_queue *p = &w->plan->queues[queue];

    return p->rules.ordered && p->quorum && p->limit != LIMIT_NONE;
}

/* Could the sidecar have made presence calls for a while? */
static bool is_healthy(const struct world *w, const struct sidecar *s)
{
    const struct database_sim *b = w->database;
    int64_t before = w->now_us - SOON_US;

    return s->alive && !s->draining && s->base && !s->base->cut && s->base->slow_until_us < before &&
           s->base_since_us < before && s->frozen_until_us < before && b->up && !b->full && !b->retries &&
           b->mended_us < before;
}

static bool stands(const struct world *w, int queue)
{
    const struct stop_sim *stop = &w->database->stops[queue];

    return stop->count && stop->at_us < w->now_us - SOON_US;
}

void oracle_subscribes(struct world *w, const struct sidecar *s, int queue)
{
    /* The first subscription of a process comes after its first presence call. */
    if (is_limited(w, queue) && stands(w, queue) && (is_healthy(w, s) || !s->queues[queue].core.ready))
        oracle_broken(w, "limit", "sidecar %d subscribes to a queue that is stopped near its delivery limit",
                      s->index);
}

void oracle_closes(struct world *w, const struct sidecar *s, int queue)
{
    const struct queue *q = &s->queues[queue].core;

    if (!is_limited(w, queue))
        return;
    for (const struct link *k = q->held.unacked.head.next; k != &q->held.unacked.head; k = k->next) {
        const struct delivery *d = container_of((struct link *)k, struct delivery, in_tags);

        if (d->arrival->copy.delivery_count >= w->plan->queues[queue].limit)
            oracle_broken(w, "limit", "%.*s is returned, and the broker drops it", (int)d->arrival->id_len,
                          d->arrival->id);
    }
}

/* Checks that a stopped queue claims nothing. */
void oracle_forwards_in_order(struct world *w, const struct sidecar *s, int queue)
{
    const struct queue *q = &s->queues[queue].core;
    int limit = w->plan->queues[queue].limit;

    if (!is_limited(w, queue) || w->database->stops[queue].n_continued)
        return;
    for (const struct link *k = q->held.unacked.head.next; k != &q->held.unacked.head; k = k->next) {
        const struct delivery *d = container_of((struct link *)k, struct delivery, in_tags);

        if (d->arrival->copy.delivery_count >= limit - SPARE && d->arrival->copy.delivery_count < limit &&
            world_ms(w) - d->arrival->received_ms > 1000)
            oracle_broken(w, "limit", "a message is POSTed, and %.*s is near its delivery limit",
                          (int)d->arrival->id_len, d->arrival->id);
    }
}

/* Checks a return near the limit: the holder had time to stop the queue, and no operator has accepted deliveries up
 * to this count. */
void oracle_returned(struct world *w, struct copy *m)
{
    const struct plan_queue *p = &w->plan->queues[m->truth->queue];
    int left = p->limit - (m->delivery_count - 1);

    if (!is_limited(w, m->truth->queue) || m->is_risked || left > SPARE || left < 1 ||
        m->delivery_count - 1 <= w->database->stops[m->truth->queue].accepted ||
        m->delivered_us > w->now_us - SOON_US || !is_healthy(w, w->sidecars[m->holder]))
        return;
    m->n_stops++;
}

/* The operator accepts that the messages near the limit are dropped with their next returns. */
void oracle_continues(struct world *w, int queue)
{
    for (size_t i = 0; i < w->broker->n_copies; i++) {
        struct copy *m = w->broker->copies[i];

        if (m->truth->queue != queue || m->delivery_count < w->plan->queues[queue].limit - 2 * SPARE)
            continue;
        m->is_risked = true;
        m->n_stops = 0;
    }
}

/* Places a message where the first of its remaining copies is. */
static void place_again(const struct world *w, struct truth *t)
{
    t->published_as = 0;
    t->placed_us = w->now_us;
    for (size_t i = 0; i < w->broker->n_copies; i++) {
        const struct copy *other = w->broker->copies[i];

        if (other->truth != t || other->state == COPY_DROPPED)
            continue;
        t->published_as = other->position;
        t->key = other->key;
        return;
    }
}

void oracle_dropped_in_order(struct world *w, const struct copy *m)
{
    place_again(w, m->truth);
    if (m->n_stops)
        oracle_broken(w, "lost",
                      "%s of an ordered queue was delivered too often, and no operator let it continue",
                      m->truth->id);
}

void oracle_second_of_limit(struct world *w, const struct sidecar *s, int queue)
{
    const struct queue *q = &s->queues[queue].core;
    const struct queue_pause *p = &q->pauses[PAUSE_DELIVERY_LIMIT];

    if (!is_limited(w, queue) || !is_healthy(w, s))
        return;
    const struct stop_sim *stop = &w->database->stops[queue];

    if (p->since_ms && world_ms(w) - p->since_ms > SOON_US / 1000 && !stop->count &&
        stop->at_us < w->now_us - SOON_US)
        oracle_broken(w, "limit",
                      "a queue is stopped near its delivery limit, and the database does not know it");
    if (stands(w, queue) && s->link && !s->link->cut && q->consumer.state == CONSUMER_ACTIVE &&
        !q->held.unacked.len)
        oracle_broken(w, "limit", "sidecar %d stays subscribed to a stopped queue, and holds nothing",
                      s->index);
}
