/* The queue of a connection's events, and the functions that its files share. */

#include "broker/internal.h"
#include "onceward/base/mem.h"

#include <assert.h>
#include <stdlib.h>

void event_init(struct broker_event *ev, const struct channel *c, enum broker_event_kind kind)
{
    ev->kind = kind;
    ev->queue = c ? c->queue_number : 0;
    ev->copy = (struct delivery_copy){0};
    ev->message = NULL;
    ev->depth = ev->n_consumers = 0;
    ev->queue_kind = c ? c->kind : BROKER_KIND_UNKNOWN;
    ev->reason = BROKER_REASON_NONE;
    ev->fault.text[0] = ev->fault.code[0] = '\0';
}

struct broker_event *event_add(struct event_queue *q, const struct channel *c, enum broker_event_kind kind)
{
    struct queued_event *e = mem_zalloc(1, sizeof(*e));

    event_init(&e->event, c, kind);
    if (!q->first)
        q->last = &q->first;
    *q->last = e;
    q->last = &e->next;
    return &e->event;
}

struct broker_event *event_add_held(struct broker *b, struct channel *c, enum broker_event_kind kind)
{
    return event_add(c->kind_asked != QUESTION_NONE ? &c->held : &b->events, c, kind);
}

bool event_take(struct event_queue *q, struct broker_event *ev)
{
    struct queued_event *e = q->first;

    if (!e)
        return false;
    q->first = e->next;
    *ev = e->event;
    free(e);
    return true;
}

void events_free(struct event_queue *q)
{
    struct broker_event ev;

    while (event_take(q, &ev))
        if (ev.kind == BROKER_DELIVERY)
            message_free(ev.message);
}

struct channel *channel_of_queue(const struct broker *b, uint32_t queue)
{
    assert(queue < b->n_by_queue && b->by_queue[queue]);
    return b->by_queue[queue];
}

/* --- the message that a channel receives --- */

void content_drop(struct content *c)
{
    message_free(c->message);
    *c = (struct content){0};
}

void held_drop(struct broker *b, struct channel *c)
{
    struct event_queue held = c->held;
    struct broker_event ev;

    b->n_wanted -= c->kind_asked == QUESTION_WANTED;
    c->kind_asked = QUESTION_NONE;
    c->held = (struct event_queue){0};
    c->n_held_bytes = 0;
    while (event_take(&held, &ev)) {
        if (ev.kind == BROKER_DELIVERY)
            message_free(ev.message);
        else if (ev.kind != BROKER_SKIPPED)
            *event_add(&b->events, c, ev.kind) = ev;
    }
}

void kind_forget(struct channel *c)
{
    c->kind = BROKER_KIND_UNKNOWN;
}

/* --- the connection --- */

int broken(struct broker *b, struct fault *f, const char *what)
{
    b->wire.is_lost = true;
    return fault_set(f, "the broker broke the protocol: %s", what);
}

void channel_commit(struct broker *b, struct channel *c)
{
    if (!c->is_uncommitted || c->state != CHANNEL_OPEN)
        return;
    c->is_uncommitted = false;
    wire_put_method(&b->wire, c->number, AMQP_TX_COMMIT_METHOD, &(amqp_tx_commit_t){0});
}

static void channels_commit(struct broker *b)
{
    if (!b->is_uncommitted)
        return;
    b->is_uncommitted = false;
    for (size_t i = 0; i < b->n_queues; i++)
        channel_commit(b, &b->queues[i]);
}

int out_flush(struct broker *b, struct fault *f)
{
    channels_commit(b);
    if (wire_flush(&b->wire, f))
        return -1;
    if (!wire_pending(&b->wire))
        b->filling++;
    return 0;
}
