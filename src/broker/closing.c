/* The end of the connection, in steps: see enum close_state. */

#include "broker/internal.h"
#include "onceward/base/clock.h"

enum { LINGER_MS = 300, CLOSE_MS = 5000 /* for the answers of the channels */ };

void connection_close(struct broker *b)
{
    wire_put_method(&b->wire, 0, AMQP_CONNECTION_CLOSE_METHOD,
                    &(amqp_connection_close_t){.reply_code = AMQP_REPLY_SUCCESS,
                                               .reply_text = amqp_cstring_bytes("bye")});
    b->closing = CLOSE_SENT;
}

static bool all_ended(const struct broker *b)
{
    for (size_t i = 0; i < b->n_queues; i++)
        if (b->queues[i].state == CHANNEL_CLOSING)
            return false;
    return true;
}

static void channels_close(struct broker *b)
{
    for (size_t i = 0; i < b->n_queues; i++)
        channel_renew(b, &b->queues[i]);
    b->closing = CLOSE_CHANNELS_SENT;
    b->closing_ms = clock_ms();
}

void close_step(struct broker *b)
{
    if (b->closing == CLOSE_LINGERING && !wire_pending(&b->wire) && clock_ms() >= b->wire.sent_ms + LINGER_MS)
        channels_close(b);
    if (b->closing == CLOSE_CHANNELS_SENT && (all_ended(b) || clock_ms() - b->closing_ms >= CLOSE_MS))
        connection_close(b);
}

/* Ignores all frames but the answers that end the channels. */
void close_frame(struct broker *b, struct channel *c, const amqp_frame_t *frame)
{
    if (frame->frame_type != AMQP_FRAME_METHOD)
        return;
    amqp_method_number_t id = frame->payload.method.id;
    if (id == AMQP_CHANNEL_CLOSE_METHOD)
        wire_put_method(&b->wire, c->number, AMQP_CHANNEL_CLOSE_OK_METHOD, &(amqp_channel_close_ok_t){0});
    if (id == AMQP_CHANNEL_CLOSE_METHOD || id == AMQP_CHANNEL_CLOSE_OK_METHOD)
        c->state = CHANNEL_SHUT;
    close_step(b);
}

int broker_close(struct broker *b, struct fault *f)
{
    if (b->closing == CLOSE_NO && !b->wire.is_lost)
        b->closing = CLOSE_LINGERING;
    if (out_flush(b, f))
        return -1;
    close_step(b);
    return out_flush(b, f);
}
