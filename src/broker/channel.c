/* The life of a channel. Both are opened again by themselves whatever closed them. Each opening of channel 1
 * is a generation; tags of an older one are refused, and frames that still arrive for a channel that is being
 * closed are dropped. Worker's thread. */

#include "broker/internal.h"
#include "onceward/base/clock.h"
#include "onceward/base/failpoint.h"

#include <stdatomic.h>
#include <string.h>

uint64_t generation_next(void)
{
    static atomic_uint_fast64_t last;

    return atomic_fetch_add(&last, 1) + 1;
}

void content_drop(struct content *c)
{
    message_free(c->message);
    *c = (struct content){0};
}

void channel_open_again(struct broker *b, struct channel *c)
{
    c->state = CHANNEL_OPENING;
    c->asked_ms = clock_ms();
    wire_put_method(&b->wire, c->number, AMQP_CHANNEL_OPEN_METHOD,
                    &(amqp_channel_open_t){.out_of_band = amqp_empty_bytes});
}

/* The deliveries of channel 1 are void: those that nobody has seen yet disappear. */
static void consume_lost(struct broker *b, const struct fault *why)
{
    struct broker_event ev;
    struct event_queue held = b->held;

    content_drop(&b->consume.content);
    b->held = (struct event_queue){0};
    b->n_held_bytes = 0;
    b->stream = STREAM_UNSUSPECTED; /* the name may be another queue's from now on */
    while (event_take(&held, &ev)) {
        if (ev.kind == BROKER_DELIVERY)
            message_free(ev.message);
        else if (ev.kind != BROKER_DRAINED)
            *event_add(&b->events, ev.kind) = ev;
    }
    event_add(&b->events, BROKER_CHANNEL_LOST)->fault = *why;
}

static bool close_to_reopen(struct broker *b, struct channel *c)
{
    if (c->state != CHANNEL_OPEN)
        return false;
    c->state = CHANNEL_CLOSING;
    c->asked_ms = clock_ms();
    wire_put_method(&b->wire, c->number, AMQP_CHANNEL_CLOSE_METHOD,
                    &(amqp_channel_close_t){.reply_code = AMQP_REPLY_SUCCESS,
                                            .reply_text = amqp_cstring_bytes("reopening")});
    return true;
}

void channel_give_up(struct broker *b, const struct fault *why)
{
    if (close_to_reopen(b, &b->consume))
        consume_lost(b, why);
}

void ask_give_up(struct broker *b)
{
    if (close_to_reopen(b, &b->ask) && b->depth == DEPTH_ASKED)
        b->depth = DEPTH_WANTED; /* it died with the channel */
}

/* Both kinds of ordinary queues are named where they refuse an argument that is for streams. */
static void probe_answered(struct broker *b, const struct fault *why)
{
    if (strstr(why->text, "rabbit_classic_queue") || strstr(why->text, "rabbit_quorum_queue"))
        held_release(b);
    else
        b->stream = STREAM_SUSPECTED;
}

int channel_closed(struct broker *b, struct channel *c, const amqp_channel_close_t *m, struct fault *f)
{
    struct fault why = {0};
    enum channel_state was = c->state;

    fault_set_close(&why, "the broker closed the channel", m->reply_code, m->reply_text);
    wire_put_method(&b->wire, c->number, AMQP_CHANNEL_CLOSE_OK_METHOD, &(amqp_channel_close_ok_t){0});
    content_drop(&c->content);
    if (was == CHANNEL_OPENING) {
        *f = why;
        return fault_wrap(f, "opening a channel again");
    }
    if (c == &b->consume) {
        if (was == CHANNEL_OPEN)
            consume_lost(b, &why);
    } else if (b->stream == STREAM_PROBED) {
        probe_answered(b, &why);
    } else {
        if (b->depth == DEPTH_ASKED) {
            struct broker_event *ev = event_add(&b->events, BROKER_DEPTH);
            ev->depth = -1;
            ev->fault = why;
            b->depth = DEPTH_IDLE;
            /* The question about streams, if it was asked behind, died with the channel: it is asked again.
             */
            if (b->stream == STREAM_ASKED)
                b->stream = STREAM_SUSPECTED;
        } else if (b->stream == STREAM_ASKED) {
            held_release(b);
        }
    }
    /* When both sides closed at once the broker answers our close as well, before it sees this. */
    channel_open_again(b, c);
    return 0;
}

void channel_close_answered(struct broker *b, struct channel *c)
{
    if (c->state == CHANNEL_CLOSING)
        channel_open_again(b, c);
}

void channel_opened(struct broker *b, struct channel *c)
{
    c->state = CHANNEL_OPEN;
    c->generation = generation_next();
    if (c == &b->consume)
        event_add(&b->events, BROKER_CHANNEL_OPEN)->tag.generation = b->consume.generation;
    else
        questions_send(b);
}

/* A channel of the broker's that waits for its queue answers nothing, while the connection's heartbeats go
 * on.
 */
int channel_tick(struct broker *b, const struct channel *c, struct fault *f)
{
    int64_t waited_ms = clock_ms() - c->asked_ms;

    if (c->state == CHANNEL_OPEN || b->closing != CLOSE_NO || waited_ms < FAILPOINT_MS(ANSWER))
        return 0;
    b->wire.is_lost = true;
    return fault_set(f, "the broker did not answer within %lld ms that a channel is %s", (long long)waited_ms,
                     c->state == CHANNEL_CLOSING ? "closed" : "opened");
}

void broker_reopen(struct broker *b, const char *why)
{
    struct fault f = {0};

    fault_set(&f, "%s", why);
    channel_give_up(b, &f);
}
