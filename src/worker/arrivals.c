/* Arrival: what a delivery is taken for, by its id, its body and how often it was delivered before. */
#include "worker.h"

#include "onceward/base/clock.h"
#include "onceward/base/mem.h"
#include "onceward/config/json.h"
#include "onceward/core/identity.h"

#include <inttypes.h>
#include <stdio.h>

#define FOR_EVER_MS ((int64_t)1 << 40)

static struct delivery *delivery_new(struct worker *w, const struct broker_event *ev)
{
    struct delivery *d = mem_zalloc(1, sizeof(*d));

    d->ref = ++w->next_ref;
    d->tag = ev->tag;
    d->consumer = ev->consumer;
    d->message = ev->message;
    d->n_bytes = ev->message ? ev->n_bytes : 0;
    d->n_wanted = ev->n_bytes;
    /* A classic queue counts nothing: what stands there is the publisher's. */
    d->n_delivered = ev->redelivered && ev->queue_kind != BROKER_KIND_CLASSIC ? ev->delivery_count : 0;
    d->n_rejected = ev->message ? message_rejections(ev->message, slice_of(w->q->queue)) : ev->n_rejected;
    d->received_us = clock_us();
    d->verdict = -1;
    d->state = DELIVERY_TO_CLAIM;
    list_init(&d->followers);
    list_push(&w->states[d->state], &d->in_state);
    list_push(&w->unacked, &d->in_tags);
    hash_insert(&w->by_ref, &d->by_ref, hash_number(d->ref));
    w->n_held_bytes += d->n_bytes;
    if (d->consumer == w->consumer_number)
        w->credit_used++;
    return d;
}

/* A delivery that cannot have a row is dead at once. */
static void give_up_at_arrival(struct worker *w, struct delivery *d, enum dead_reason reason,
                               const char *text)
{
    d->dead_reason = reason;
    d->rowless = true;
    delivery_set_error(d, text);
    delivery_event(w, d, DELIVERY_EV_GIVE_UP);
}

void worker_delivery_arrives(struct worker *w, struct broker_event *ev)
{
    struct delivery *d = delivery_new(w, ev);
    struct buf id = {0};
    struct fault f = {0};

    counter_add(&w->counts.received, 1);
    if (d->n_bytes > w->largest_seen)
        w->largest_seen = d->n_bytes;
    d->deaths = message_deaths(d->message);
    d->last_chance = delivery_is_near_its_last(w, d);
    fingerprint_make(d->message->body, d->message->body_len, d->fingerprint);
    enum identity_result found =
        identity_find(w->q->message_id, w->q->n_message_id, d->message, jsonread_pointer, &id, &f);
    d->id = mem_copy(id.data, id.len);
    d->id_len = id.len;
    buf_deinit(&id);
    if (found == IDENTITY_FOUND) {
        enum delivery_event e = delivery_join(w, d, DELIVERY_EV_TIMER);

        d->ready_ms = w->now_ms;
        if (!d->last_chance && suspect_recall(w, d) && e == DELIVERY_EV_TIMER)
            e = DELIVERY_EV_ALONE;
        if (e != DELIVERY_EV_TIMER)
            delivery_event(w, d, e);
        return;
    }
    bool missing = found == IDENTITY_MISSING || found == IDENTITY_EMPTY;
    give_up_at_arrival(w, d, missing ? DEAD_NO_MESSAGE_ID : DEAD_INVALID_MESSAGE_ID, f.text);
}

void worker_delivery_skipped(struct worker *w, const struct broker_event *ev)
{
    struct broker_event copy = *ev;
    char text[320];

    copy.message = NULL;
    if (ev->n_bytes > w->largest_seen && ev->body_len <= w->q->max_message_bytes)
        w->largest_seen = ev->n_bytes;
    struct delivery *d = delivery_new(w, &copy);
    if (ev->body_len <= w->q->max_message_bytes) {
        pause_quietly(w, PAUSE_BYTES_FULL, "max_bytes are held");
        d->wait = WAIT_HELD;
        d->delay_ms = ROOM_LOOK_MS;
        delivery_event(w, d, DELIVERY_EV_NOT_NOW);
        return;
    }
    snprintf(text, sizeof(text), "a message of %" PRIu64 " bytes, max_message is %zu", ev->body_len,
             w->q->max_message_bytes);
    report_text(w, EVENT_TOO_LARGE, text);
    if (w->q->too_large_is_reject) {
        counter_add(&w->counts.dead, 1);
        d->was_dead = true;
        delivery_event(w, d, delivery_circles(w, d) ? DELIVERY_EV_NOT_NOW : DELIVERY_EV_WAS_DEAD);
        return;
    }
    /* It stays unacked: nothing can be stored of it, and nothing may be lost. Where returns become dear, this
     * sidecar takes nothing more from the queue, so that it rests there when everybody has held it once. */
    if (!delivery_may_return(w, d)) {
        size_t len = strlen(text);

        snprintf(text + len, sizeof(text) - len,
                 "; delivered %" PRId64 " times of %d: nothing more is consumed here before max_message or "
                 "on_too_large is changed",
                 d->n_delivered, w->delivery_limit);
        w->too_large_stays = true;
    }
    d->wait = WAIT_HELD;
    d->delay_ms = delivery_is_near_its_last(w, d) ? FOR_EVER_MS : w->q->max_hold_ms;
    d->rowless = true;
    delivery_event(w, d, DELIVERY_EV_NOT_NOW);
    pause_set(w, PAUSE_TOO_LARGE, text);
}
