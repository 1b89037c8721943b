/* Assembles a message from its frames. On one channel they arrive without a gap: method, header, bodies. Frames of
 * other channels may arrive between. Each frame is copied before the next is read, so a message is never held twice. */

#include "broker/internal.h"
#include "core/field_text.h"
#include "onceward/base/mem.h"
#include "onceward/broker/decode.h"

#include <string.h>

/* Ends a message. 1: ev is filled. 0: the event is queued. */
static int content_done(struct broker *b, struct channel *c, struct broker_event *ev)
{
    struct content done = c->content;
    bool holding = c->kind_asked != QUESTION_NONE;
    enum broker_event_kind kind = done.message ? BROKER_DELIVERY : BROKER_SKIPPED;

    c->content = (struct content){0};
    c->has_delivered = true;
    if (holding)
        ev = event_add_held(b, c, kind);
    else
        event_init(ev, c, kind);
    ev->copy = done.copy;
    ev->message = done.message;
    if (done.is_malformed)
        fault_set(&ev->fault, "the properties do not have the form that AMQP gives them");
    if (holding && done.message)
        c->n_held_bytes += done.copy.n_bytes;
    return !holding;
}

/* Does the message fit beside those that are queued on this channel? */
static bool fits(const struct channel *c, struct broker_room room, const struct content *t)
{
    size_t held = c->n_held_bytes;
    bool may_count = c->kind == BROKER_KIND_QUORUM || (c->kind != BROKER_KIND_CLASSIC && !held);

    if (room.urgent_count && may_count && t->message->redelivered &&
        t->copy.delivery_count >= room.urgent_count && t->copy.body_len <= room.urgent_body)
        return true;
    if (held && !room.each) /* other messages are queued */
        room.body = room.whole = room.body > held ? room.body - held : 0;
    return t->copy.body_len <= room.body && t->copy.n_bytes <= room.whole;
}

/* The properties and headers of a message come first, in one frame. They are decoded before the room is checked: a
 * frame is small, and its decoded form is at most some forty times as large. */
int content_begin(struct broker *b, struct channel *c, const amqp_frame_t *frame, broker_room_fn *room,
                  void *context, struct broker_event *ev, struct fault *f)
{
    struct content *t = &c->content;
    struct message *m = t->message;
    amqp_bytes_t properties = frame->payload.properties.raw;

    if (t->state != CONTENT_HEADER)
        return broken(b, f, "a content header without its method");
    if (frame->payload.properties.class_id != AMQP_BASIC_CLASS)
        return broken(b, f, "a content header of another class");
    t->state = CONTENT_BODY;
    t->copy.body_len = t->n_left = frame->payload.properties.body_size;
    t->is_malformed = message_decode(m, (struct slice){properties.bytes, properties.len}) < 0;
    t->copy.n_bytes = t->copy.body_len + message_bytes(m);
    if (m->n_headers) { /* the broker's counts, and the only signs of an unexpected kind of queue */
        t->copy.delivery_count = message_delivery_count(m);
        t->copy.n_rejected = message_rejections(m, slice_of(c->queue));
        kind_doubt(b, c, t);
    }
    if (fits(c, room(context, c->queue_number, m->redelivered), t)) {
        m->body = t->copy.body_len ? mem_realloc(NULL, t->copy.body_len) : NULL;
        m->body_len = t->copy.body_len;
    } else {
        message_free(m);
        t->message = NULL;
    }
    return t->copy.body_len ? 0 : content_done(b, c, ev);
}

int content_body(struct broker *b, struct channel *c, const amqp_frame_t *frame, struct broker_event *ev,
                 struct fault *f)
{
    struct content *t = &c->content;
    amqp_bytes_t part = frame->payload.body_fragment;

    if (t->state != CONTENT_BODY)
        return broken(b, f, "a body without its header");
    if (part.len > t->n_left)
        return broken(b, f, "a body longer than its header said");
    if (t->message && part.len)
        memcpy(t->message->body + (t->copy.body_len - t->n_left), part.bytes, part.len);
    t->n_left -= part.len;
    return t->n_left ? 0 : content_done(b, c, ev);
}

int content_deliver(struct broker *b, struct channel *c, const amqp_basic_deliver_t *d, struct fault *f)
{
    struct content *t = &c->content;

    if (t->state != CONTENT_NONE)
        return broken(b, f, "a delivery inside another");
    struct message *m = message_new();
    m->redelivered = d->redelivered;
    m->exchange = message_keep(m, d->exchange.bytes, d->exchange.len);
    m->routing_key = message_keep(m, d->routing_key.bytes, d->routing_key.len);
    *t = (struct content){
        .state = CONTENT_HEADER,
        .message = m,
        .copy = {.tag = {c->generation, d->delivery_tag}, .consumer = consumer_of_tag(d->consumer_tag)}};
    return 0;
}
