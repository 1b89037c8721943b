/* What the broker sends: frames to events. A message's frames arrive on its channel in one piece, method,
 * header, bodies; each is copied and its memory given back before the next is read, so a message is never
 * held twice. What is not allowed by the protocol ends the connection with a reason, never the program.
 * Worker's thread. */

#include "broker/decode.h"
#include "broker/internal.h"
#include "onceward/base/mem.h"

#include <stdio.h>
#include <string.h>

enum { N_FRAMES_MAX = 128 }; /* read without an event before others get their turn */

static int broken(struct broker *b, struct fault *f, const char *what)
{
    b->wire.is_lost = true;
    return fault_set(f, "the broker broke the protocol: %s", what);
}

static void event_init(struct broker_event *ev, enum broker_event_kind kind)
{
    ev->kind = kind;
    ev->tag = (struct broker_tag){0};
    ev->consumer = 0;
    ev->message = NULL;
    ev->body_len = ev->n_bytes = 0;
    ev->delivery_count = ev->n_rejected = 0;
    ev->depth = 0;
    ev->fault.text[0] = ev->fault.code[0] = '\0';
}

/* --- content --- */

/* 1: ev is filled. 0: it waits, or was nobody's. */
static int content_done(struct broker *b, struct channel *c, struct broker_event *ev)
{
    struct content done = c->content;

    c->content = (struct content){0};
    if (c == &b->ask) {
        /* What basic.get took, to learn that this is no stream, goes back. */
        wire_put_settle(&b->wire, CHANNEL_ASK, AMQP_BASIC_NACK_METHOD, done.tag, 2);
        if (b->stream == STREAM_ASKED)
            held_release(b);
        return 0;
    }
    bool holding = is_holding(b);
    enum broker_event_kind kind = done.message ? BROKER_DELIVERY : BROKER_DRAINED;
    if (holding)
        ev = event_add(&b->held, kind);
    else
        event_init(ev, kind);
    ev->tag = (struct broker_tag){c->generation, done.tag};
    ev->consumer = done.consumer;
    ev->message = done.message;
    ev->body_len = done.body_len;
    ev->n_bytes = done.n_bytes;
    ev->delivery_count = done.delivery_count;
    ev->n_rejected = done.n_rejected;
    if (holding && done.message)
        b->n_held_bytes += done.n_bytes;
    return !holding;
}

void broker_ask_stream(struct broker *b, bool is_empty)
{
    if (b->stream != STREAM_UNSUSPECTED)
        return;
    b->stream = is_empty ? STREAM_SUSPECTED : STREAM_UNSURE;
    questions_send(b);
}

bool broker_is_no_stream(const struct broker *b)
{
    return b->stream == STREAM_NOT;
}

static void suspect_stream(struct broker *b, const struct message *m)
{
    if (message_header(m, SLICE("x-stream-offset")))
        broker_ask_stream(b, false);
}

/* Is there room for it beside what waits here? */
static bool fits(const struct broker *b, struct broker_room room, const struct content *t)
{
    size_t held = b->n_held_bytes;

    if (room.urgent_count && t->body_len <= room.urgent_body &&
        message_delivery_count(t->message) >= room.urgent_count)
        return true;
    if (held) /* it is not the only one */
        room.body = room.whole = room.body > held ? room.body - held : 0;
    return t->body_len <= room.body && t->n_bytes <= room.whole;
}

/* The headers come first, in one frame. They are decoded before it is known whether they fit: a frame is
 * small, and what becomes of it at most some forty times as large. */
static int on_header(struct broker *b, struct channel *c, const amqp_frame_t *frame, struct broker_room room,
                     struct broker_event *ev, struct fault *f)
{
    struct content *t = &c->content;
    uint64_t len = frame->payload.properties.body_size;

    if (t->state != CONTENT_HEADER)
        return broken(b, f, "a content header without its method");
    if (frame->payload.properties.class_id != AMQP_BASIC_CLASS)
        return broken(b, f, "a content header of another class");
    t->state = CONTENT_BODY;
    t->body_len = t->n_left = len;
    if (t->message) {
        message_decode(t->message, frame->payload.properties.decoded);
        t->n_bytes = len + message_bytes(t->message);
        if (fits(b, room, t)) {
            suspect_stream(b, t->message);
            t->message->body = len ? mem_realloc(NULL, len) : NULL;
            t->message->body_len = len;
        } else {
            t->delivery_count = message_delivery_count(t->message);
            t->n_rejected = message_rejections(t->message, slice_of(b->queue));
            message_free(t->message);
            t->message = NULL;
        }
    }
    return len ? 0 : content_done(b, c, ev);
}

static int on_body(struct broker *b, struct channel *c, const amqp_frame_t *frame, struct broker_event *ev,
                   struct fault *f)
{
    struct content *t = &c->content;
    amqp_bytes_t part = frame->payload.body_fragment;

    if (t->state != CONTENT_BODY)
        return broken(b, f, "a body without its header");
    if (part.len > t->n_left)
        return broken(b, f, "a body longer than its header said");
    if (t->message && part.len)
        memcpy(t->message->body + (t->body_len - t->n_left), part.bytes, part.len);
    t->n_left -= part.len;
    return t->n_left ? 0 : content_done(b, c, ev);
}

static int on_deliver(struct broker *b, const amqp_basic_deliver_t *d, struct fault *f)
{
    struct content *t = &b->consume.content;

    if (t->state != CONTENT_NONE)
        return broken(b, f, "a delivery inside another");
    struct message *m = message_new();
    m->redelivered = d->redelivered;
    m->exchange = message_keep(m, d->exchange.bytes, d->exchange.len);
    m->routing_key = message_keep(m, d->routing_key.bytes, d->routing_key.len);
    *t = (struct content){.state = CONTENT_HEADER,
                          .message = m,
                          .tag = d->delivery_tag,
                          .consumer = consumer_of_tag(d->consumer_tag)};
    return 0;
}

/* --- methods --- */

static void on_cancelled(struct broker *b, const amqp_basic_cancel_t *m)
{
    struct fault why = {0};

    fault_set(&why, "the broker cancelled the consumer (queue %s deleted, moved, or timed out)", b->queue);
    struct broker_event *ev = event_add_consume(b, BROKER_CANCELLED);
    ev->consumer = consumer_of_tag(m->consumer_tag);
    ev->fault = why;
    /* Older brokers end the connection when it is answered, newer ones wait for an answer: a new channel
     * suits all. */
    channel_give_up(b, &why);
}

static int on_consume_method(struct broker *b, const amqp_method_t *m, struct fault *f)
{
    switch (m->id) {
    case AMQP_BASIC_DELIVER_METHOD:
        return on_deliver(b, m->decoded, f);
    case AMQP_BASIC_CONSUME_OK_METHOD: {
        const amqp_basic_consume_ok_t *ok = m->decoded;
        event_add_consume(b, BROKER_CONSUMING)->consumer = consumer_of_tag(ok->consumer_tag);
        return 0;
    }
    case AMQP_BASIC_CANCEL_OK_METHOD: {
        const amqp_basic_cancel_ok_t *ok = m->decoded;
        event_add_consume(b, BROKER_STOPPED)->consumer = consumer_of_tag(ok->consumer_tag);
        return 0;
    }
    case AMQP_BASIC_CANCEL_METHOD:
        on_cancelled(b, m->decoded);
        return 0;
    default:
        return 0; /* qos-ok, and what later brokers may add */
    }
}

static int on_ask_method(struct broker *b, const amqp_method_t *m, struct fault *f)
{
    struct content *t = &b->ask.content;

    switch (m->id) {
    case AMQP_QUEUE_DECLARE_OK_METHOD: {
        const amqp_queue_declare_ok_t *ok = m->decoded;
        if (b->depth == DEPTH_ASKED)
            event_add(&b->events, BROKER_DEPTH)->depth = ok->message_count;
        b->depth = DEPTH_IDLE;
        questions_send(b);
        return 0;
    }
    case AMQP_BASIC_CONSUME_OK_METHOD: /* whatever this is: the other question decides */
        if (b->stream == STREAM_PROBED)
            b->stream = STREAM_SUSPECTED;
        ask_give_up(b);
        return 0;
    case AMQP_BASIC_GET_OK_METHOD: {
        const amqp_basic_get_ok_t *ok = m->decoded;
        if (t->state != CONTENT_NONE)
            return broken(b, f, "a message inside another");
        *t = (struct content){.state = CONTENT_HEADER, .tag = ok->delivery_tag};
        return 0;
    }
    case AMQP_BASIC_GET_EMPTY_METHOD:
        if (b->stream == STREAM_ASKED)
            held_release(b);
        return 0;
    default:
        return 0;
    }
}

static int on_channel_frame(struct broker *b, struct channel *c, const amqp_frame_t *frame,
                            struct broker_room room, struct broker_event *ev, struct fault *f)
{
    const amqp_method_t *m = &frame->payload.method;

    if (frame->frame_type != AMQP_FRAME_METHOD) {
        if (c->state != CHANNEL_OPEN)
            return 0;
        return frame->frame_type == AMQP_FRAME_HEADER ? on_header(b, c, frame, room, ev, f)
               : frame->frame_type == AMQP_FRAME_BODY ? on_body(b, c, frame, ev, f)
                                                      : 0;
    }
    if (m->id == AMQP_CHANNEL_CLOSE_METHOD) {
        if (channel_closed(b, c, m->decoded, f) == 0)
            return 0;
        b->wire.is_lost = true;
        return -1;
    }
    if (m->id == AMQP_CHANNEL_CLOSE_OK_METHOD) {
        channel_close_answered(b, c);
        return 0;
    }
    if (c->state == CHANNEL_OPENING && m->id == AMQP_CHANNEL_OPEN_OK_METHOD) {
        channel_opened(b, c);
        return 0;
    }
    if (c->state != CHANNEL_OPEN)
        return 0;
    if (c->content.state != CONTENT_NONE)
        return broken(b, f, "a method inside a message");
    if (m->id == AMQP_CHANNEL_FLOW_METHOD) {
        const amqp_channel_flow_t *flow = m->decoded;
        wire_put_method(&b->wire, c->number, AMQP_CHANNEL_FLOW_OK_METHOD,
                        &(amqp_channel_flow_ok_t){.active = flow->active});
        return 0;
    }
    return c == &b->consume ? on_consume_method(b, m, f) : on_ask_method(b, m, f);
}

/* The connection is over, by the broker's will. */
static int on_connection_close(struct broker *b, const amqp_connection_close_t *m, struct fault *f)
{
    struct fault ignored;

    wire_put_method(&b->wire, 0, AMQP_CONNECTION_CLOSE_OK_METHOD, &(amqp_connection_close_ok_t){0});
    wire_flush(&b->wire, &ignored);
    if (b->closing != CLOSE_NO) {
        b->closing = CLOSE_DONE;
        event_add(&b->events, BROKER_CLOSED);
        return 0;
    }
    fault_set_close(f, "the broker closed the connection", m->reply_code, m->reply_text);
    if (b->stream == STREAM_ASKED && m->reply_code == AMQP_NOT_IMPLEMENTED) {
        struct fault text = *f;
        fault_set(f, "queue %s is a stream; streams are not supported (%s)", b->queue, text.text);
        snprintf(f->code, sizeof(f->code), "stream");
    }
    b->wire.is_lost = true;
    return -1;
}

static int on_connection_method(struct broker *b, const amqp_method_t *m, struct fault *f)
{
    if (b->closing == CLOSE_DONE)
        return 0; /* the last word was said */
    switch (m->id) {
    case AMQP_CONNECTION_CLOSE_METHOD:
        return on_connection_close(b, m->decoded, f);
    case AMQP_CONNECTION_CLOSE_OK_METHOD:
        if (b->closing == CLOSE_SENT) {
            b->closing = CLOSE_DONE;
            event_add(&b->events, BROKER_CLOSED);
        }
        return 0;
    case AMQP_CONNECTION_BLOCKED_METHOD: {
        const amqp_connection_blocked_t *blocked = m->decoded;
        fault_set(&event_add(&b->events, BROKER_BLOCKED)->fault, "%.*s", (int)blocked->reason.len,
                  blocked->reason.len ? (const char *)blocked->reason.bytes : "");
        return 0;
    }
    case AMQP_CONNECTION_UNBLOCKED_METHOD:
        event_add(&b->events, BROKER_UNBLOCKED);
        return 0;
    default:
        return 0;
    }
}

/* Only the end of channel 1 is of interest. */
static void on_frame_while_closing(struct broker *b, const amqp_frame_t *frame)
{
    if ((b->closing != CLOSE_CHANNEL_SENT && b->closing != CLOSE_LINGERING) ||
        frame->channel != CHANNEL_CONSUME || frame->frame_type != AMQP_FRAME_METHOD)
        return;
    amqp_method_number_t id = frame->payload.method.id;
    if (id == AMQP_CHANNEL_CLOSE_METHOD)
        wire_put_method(&b->wire, CHANNEL_CONSUME, AMQP_CHANNEL_CLOSE_OK_METHOD,
                        &(amqp_channel_close_ok_t){0});
    if (id == AMQP_CHANNEL_CLOSE_METHOD || id == AMQP_CHANNEL_CLOSE_OK_METHOD)
        connection_close(b);
}

static int on_frame(struct broker *b, const amqp_frame_t *frame, struct broker_room room,
                    struct broker_event *ev, struct fault *f)
{
    if (frame->channel == 0)
        return frame->frame_type == AMQP_FRAME_METHOD ? on_connection_method(b, &frame->payload.method, f)
                                                      : 0;
    if (b->closing != CLOSE_NO) {
        on_frame_while_closing(b, frame);
        return 0;
    }
    if (frame->channel == CHANNEL_CONSUME)
        return on_channel_frame(b, &b->consume, frame, room, ev, f);
    if (frame->channel == CHANNEL_ASK)
        return on_channel_frame(b, &b->ask, frame, room, ev, f);
    return 0;
}

int broker_next(struct broker *b, struct broker_room room, struct broker_event *ev, struct fault *f)
{
    amqp_frame_t frame;

    if (event_take(&b->events, ev))
        return 0;
    for (int n = 0;; n++) {
        bool pause = n >= N_FRAMES_MAX &&
                     !wire_has_input(&b->wire); /* the rest is still in the socket, so polling sees it */
        int r = pause ? 0 : wire_read(&b->wire, &frame, f);
        if (r < 0)
            return -1;
        if (r == 0)
            break;
        r = on_frame(b, &frame, room, ev, f);
        if (r < 0)
            return -1;
        wire_release(&b->wire, frame.channel);
        if (r > 0 || event_take(&b->events, ev))
            return 0;
    }
    event_init(ev, BROKER_NOTHING);
    close_step(b);
    return wire_flush(&b->wire, f);
}
