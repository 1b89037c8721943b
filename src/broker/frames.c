/* Turns frames from the broker into events. A violation of the protocol ends the connection with a reason,
 * never the program. */

#include "broker/internal.h"
#include "onceward/base/clock.h"

#include <stdio.h>

enum { N_FRAMES_MAX = 128 }; /* frames read without an event before other descriptors get their turn */

/* The caller's function for the room of a message, and its context. */
struct asking {
    broker_room_fn *room;
    void *context;
    struct broker_event *ev;
};

static void on_cancelled(struct broker *b, struct channel *c, const amqp_basic_cancel_t *m)
{
    struct fault why = {0};

    fault_set(&why, "the broker cancelled the consumer (queue %s deleted, moved, or timed out)", c->queue);
    struct broker_event *ev = event_add_held(b, c, BROKER_CANCELLED);
    ev->copy.consumer = consumer_of_tag(m->consumer_tag);
    ev->fault = why;
    /* Older brokers close the connection when a client answers a cancel; newer ones expect an answer. A new channel
     * suits both. */
    channel_give_up(b, c, BROKER_REASON_CANCELLED, &why);
}

static int on_queue_method(struct broker *b, struct channel *c, const amqp_method_t *m, struct fault *f)
{
    switch (m->id) {
    case AMQP_BASIC_DELIVER_METHOD:
        return content_deliver(b, c, m->decoded, f);
    case AMQP_BASIC_CONSUME_OK_METHOD: {
        const amqp_basic_consume_ok_t *ok = m->decoded;
        if (!c->consuming_ms)
            c->consuming_ms = clock_ms();
        event_add_held(b, c, BROKER_CONSUMING)->copy.consumer = consumer_of_tag(ok->consumer_tag);
        return 0;
    }
    case AMQP_BASIC_CANCEL_OK_METHOD: {
        const amqp_basic_cancel_ok_t *ok = m->decoded;
        event_add_held(b, c, BROKER_STOPPED)->copy.consumer = consumer_of_tag(ok->consumer_tag);
        return 0;
    }
    case AMQP_BASIC_CANCEL_METHOD:
        on_cancelled(b, c, m->decoded);
        return 0;
    default:
        return 0; /* qos-ok, and additions of later brokers */
    }
}

static int on_open_method(struct broker *b, struct channel *c, const amqp_method_t *m, struct fault *f)
{
    if (c->content.state != CONTENT_NONE)
        return broken(b, f, "a method inside a message");
    if (m->id == AMQP_CHANNEL_FLOW_METHOD) {
        const amqp_channel_flow_t *flow = m->decoded;
        wire_put_method(&b->wire, c->number, AMQP_CHANNEL_FLOW_OK_METHOD,
                        &(amqp_channel_flow_ok_t){.active = flow->active});
        return 0;
    }
    if (c != &b->ask)
        return on_queue_method(b, c, m, f);
    questions_method(b, m);
    return 0;
}

static int on_channel_method(struct broker *b, struct channel *c, const amqp_method_t *m, struct fault *f)
{
    switch (m->id) {
    case AMQP_CHANNEL_CLOSE_METHOD:
        if (c == &b->ask && c->state != CHANNEL_OPENING)
            questions_refused(b, m->decoded);
        if (channel_closed(b, c, m->decoded, f) == 0)
            return 0;
        b->wire.is_lost = true;
        return -1;
    case AMQP_CHANNEL_CLOSE_OK_METHOD:
        channel_close_answered(b, c);
        return 0;
    case AMQP_CHANNEL_OPEN_OK_METHOD:
        if (c->state != CHANNEL_OPENING)
            return 0;
        channel_opened(b, c);
        if (c == &b->ask)
            questions_send(b);
        return 0;
    default:
        return c->state == CHANNEL_OPEN ? on_open_method(b, c, m, f) : 0;
    }
}

static int on_channel_frame(struct broker *b, struct channel *c, const amqp_frame_t *frame,
                            const struct asking *a, struct fault *f)
{
    if (frame->frame_type == AMQP_FRAME_METHOD)
        return on_channel_method(b, c, &frame->payload.method, f);
    if (c->state != CHANNEL_OPEN || c == &b->ask)
        return 0;
    if (frame->frame_type == AMQP_FRAME_HEADER)
        return content_begin(b, c, frame, a->room, a->context, a->ev, f);
    return content_body(b, c, frame, a->ev, f);
}

/* The broker closes the connection. */
static int on_connection_close(struct broker *b, const amqp_connection_close_t *m, struct fault *f)
{
    struct fault ignored;

    wire_put_method(&b->wire, 0, AMQP_CONNECTION_CLOSE_OK_METHOD, &(amqp_connection_close_ok_t){0});
    wire_flush(&b->wire, &ignored);
    if (b->closing != CLOSE_NO) {
        b->closing = CLOSE_DONE;
        event_add(&b->events, NULL, BROKER_CLOSED);
        return 0;
    }
    fault_set_close(f, "the broker closed the connection", m->reply_code, m->reply_text);
    b->wire.is_lost = true;
    return -1;
}

static int on_connection_method(struct broker *b, const amqp_method_t *m, struct fault *f)
{
    if (b->closing == CLOSE_DONE)
        return 0; /* the connection is closed already */
    switch (m->id) {
    case AMQP_CONNECTION_CLOSE_METHOD:
        return on_connection_close(b, m->decoded, f);
    case AMQP_CONNECTION_CLOSE_OK_METHOD:
        if (b->closing == CLOSE_SENT) {
            b->closing = CLOSE_DONE;
            event_add(&b->events, NULL, BROKER_CLOSED);
        }
        return 0;
    case AMQP_CONNECTION_BLOCKED_METHOD: {
        const amqp_connection_blocked_t *blocked = m->decoded;
        fault_set(&event_add(&b->events, NULL, BROKER_BLOCKED)->fault, "%.*s", (int)blocked->reason.len,
                  blocked->reason.len ? (const char *)blocked->reason.bytes : "");
        return 0;
    }
    case AMQP_CONNECTION_UNBLOCKED_METHOD:
        event_add(&b->events, NULL, BROKER_UNBLOCKED);
        return 0;
    default:
        return 0;
    }
}

static int on_frame(struct broker *b, const amqp_frame_t *frame, const struct asking *a, struct fault *f)
{
    if (frame->channel == 0)
        return frame->frame_type == AMQP_FRAME_METHOD ? on_connection_method(b, &frame->payload.method, f)
                                                      : 0;
    if (frame->channel >= b->n_numbers || b->closing > CLOSE_CHANNELS_SENT)
        return 0; /* no frame may follow the connection's end */
    struct number *n = &b->numbers[frame->channel];
    if (!n->user)
        number_frame(b, n, frame->channel, frame);
    else if (b->closing != CLOSE_NO)
        close_frame(b, n->user, frame);
    else
        return on_channel_frame(b, n->user, frame, a, f);
    return 0;
}

int broker_next(struct broker *b, broker_room_fn *room, void *context, struct broker_event *ev,
                struct fault *f)
{
    const struct asking asking = {room, context, ev};
    amqp_frame_t frame;

    if (event_take(&b->events, ev))
        return 0;
    for (int n = 0;; n++) {
        bool pause = n >= N_FRAMES_MAX &&
                     !wire_has_input(&b->wire); /* the rest is still in the socket, where polling sees it */
        int r = pause ? 0 : wire_read(&b->wire, &frame, f);
        if (r < 0)
            return -1;
        if (r == 0)
            break;
        r = on_frame(b, &frame, &asking, f);
        if (r < 0)
            return -1;
        if (r > 0 || event_take(&b->events, ev))
            return 0;
    }
    event_init(ev, NULL, BROKER_NOTHING);
    close_step(b);
    return out_flush(b, f);
}
