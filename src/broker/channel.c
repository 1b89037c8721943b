/* Opening and closing of channels. Every channel except a stream's is opened again automatically. Each opening of a
 * queue's channel is a generation; tags of an older one are refused, and frames that still arrive for a closing channel
 * are dropped.
 *
 * A channel that the broker blocks on its queue answers nothing, not even a close, while the connection and the other
 * channels work. The queue then gets a channel under another number. The old number is free again once the broker has
 * answered after all. */

#include "broker/internal.h"
#include "onceward/base/clock.h"
#include "onceward/base/failpoint.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

enum { GENERATION_SHIFT = 16 }; /* the lower bits have the channel's number */

static uint64_t generation_next(uint16_t number)
{
    static atomic_uint_fast64_t last;

    return (atomic_fetch_add(&last, 1) + 1) << GENERATION_SHIFT | number;
}

/* Finds the channel that may have that generation. NULL: none. */
struct channel *channel_of_generation(const struct broker *b, uint64_t generation)
{
    size_t number = generation & (((uint64_t)1 << GENERATION_SHIFT) - 1);

    return number < b->n_numbers ? b->numbers[number].user : NULL;
}

void channel_open_again(struct broker *b, struct channel *c)
{
    c->state = CHANNEL_OPENING;
    c->is_uncommitted = false; /* acks are lost with the tags */
    c->asked_ms = clock_ms();
    wire_put_method(&b->wire, c->number, AMQP_CHANNEL_OPEN_METHOD,
                    &(amqp_channel_open_t){.out_of_band = amqp_empty_bytes});
}

void channel_init(struct broker *b, struct channel *c, uint16_t number)
{
    assert(number < b->n_numbers && !b->numbers[number].user);
    c->number = number;
    b->numbers[number].user = c;
    channel_open_again(b, c);
}

static void close_send(struct broker *b, uint16_t number)
{
    wire_put_method(&b->wire, number, AMQP_CHANNEL_CLOSE_METHOD,
                    &(amqp_channel_close_t){.reply_code = AMQP_REPLY_SUCCESS,
                                            .reply_text = amqp_cstring_bytes("reopening")});
}

void channel_renew(struct broker *b, struct channel *c)
{
    if (c->state != CHANNEL_OPEN)
        return;
    channel_commit(b, c);
    c->state = CHANNEL_CLOSING;
    c->asked_ms = clock_ms();
    close_send(b, c->number);
}

/* Voids the deliveries of a queue's channel: those not returned yet disappear. */
static void channel_lost(struct broker *b, struct channel *c, enum broker_reason reason,
                         const struct fault *why)
{
    content_drop(&c->content);
    held_drop(b, c);
    if (reason == BROKER_REASON_NO_QUEUE || reason == BROKER_REASON_CANCELLED)
        kind_forget(c);
    struct broker_event *ev = event_add(&b->events, c, BROKER_CHANNEL_LOST);
    ev->reason = reason;
    ev->fault = *why;
}

void channel_give_up(struct broker *b, struct channel *c, enum broker_reason reason, const struct fault *why)
{
    if (c->state != CHANNEL_OPEN)
        return;
    channel_renew(b, c);
    channel_lost(b, c, reason, why);
}

void channel_unshut(struct broker *b, struct channel *c)
{
    c->stays_shut = false;
    if (c->state == CHANNEL_SHUT)
        channel_open_again(b, c);
}

enum broker_reason reason_of_code(uint16_t code)
{
    switch (code) {
    case AMQP_NOT_FOUND:
        return BROKER_REASON_NO_QUEUE;
    case AMQP_ACCESS_REFUSED:
        return BROKER_REASON_FORBIDDEN;
    default:
        return BROKER_REASON_OTHER;
    }
}

/* Handles a channel that is closed on both sides. */
static void channel_ended(struct broker *b, struct channel *c)
{
    if (c->stays_shut)
        c->state = CHANNEL_SHUT;
    else
        channel_open_again(b, c);
}

int channel_closed(struct broker *b, struct channel *c, const amqp_channel_close_t *m, struct fault *f)
{
    struct fault why = {0};
    enum channel_state was = c->state;

    fault_set_close(&why, CLOSED_CHANNEL, m->reply_code, m->reply_text);
    wire_put_method(&b->wire, c->number, AMQP_CHANNEL_CLOSE_OK_METHOD, &(amqp_channel_close_ok_t){0});
    content_drop(&c->content);
    if (memmem(m->reply_text.bytes, m->reply_text.len, TIMEOUT_ARGUMENT, strlen(TIMEOUT_ARGUMENT)))
        c->timeout_ms = 0; /* the queue's kind has no such timeout: the next consumer is started without it */
    if (was == CHANNEL_OPENING) {
        *f = why;
        return fault_wrap(f, "opening a channel");
    }
    if (was == CHANNEL_OPEN && c != &b->ask)
        channel_lost(b, c, reason_of_code(m->reply_code), &why);
    /* When both sides closed at once, the broker answers our close as well, before it sees the open. */
    channel_ended(b, c);
    return 0;
}

void channel_close_answered(struct broker *b, struct channel *c)
{
    if (c->state == CHANNEL_CLOSING)
        channel_ended(b, c);
}

void channel_opened(struct broker *b, struct channel *c)
{
    c->state = CHANNEL_OPEN;
    c->generation = generation_next(c->number);
    c->consuming_ms = 0;
    c->has_delivered = false;
    c->is_transactional = false;
    if (c->stays_shut)
        channel_renew(b, c);
    else if (c != &b->ask)
        event_add(&b->events, c, BROKER_CHANNEL_OPEN)->copy.tag.generation = c->generation;
}

/* --- abandoned numbers --- */

bool channel_move(struct broker *b, struct channel *c, struct channel *given_up_for, bool over_question)
{
    size_t to = 1;

    while (to < b->n_numbers && (b->numbers[to].user || b->numbers[to].given_up_for))
        to++;
    if (to == b->n_numbers)
        return false;
    channel_commit(b, c);
    if (c->state == CHANNEL_OPEN)
        close_send(b, c->number);
    b->numbers[c->number] = (struct number){.given_up_for = given_up_for, .over_question = over_question};
    given_up_for->n_unanswered += over_question;
    b->numbers[to].user = c;
    c->number = (uint16_t)to;
    content_drop(&c->content);
    if (c->stays_shut)
        c->state = CHANNEL_SHUT;
    else
        channel_open_again(b, c);
    return true;
}

void number_frame(struct broker *b, struct number *n, uint16_t number, const amqp_frame_t *frame)
{
    if (!n->given_up_for || frame->frame_type != AMQP_FRAME_METHOD)
        return;
    amqp_method_number_t id = frame->payload.method.id;
    if (id == AMQP_CHANNEL_CLOSE_METHOD)
        wire_put_method(&b->wire, number, AMQP_CHANNEL_CLOSE_OK_METHOD, &(amqp_channel_close_ok_t){0});
    if (id == AMQP_CHANNEL_CLOSE_OK_METHOD) {
        n->given_up_for->n_unanswered -= n->over_question;
        *n = (struct number){0};
    }
}

int channel_tick(struct broker *b, struct channel *c, struct fault *f)
{
    int64_t waited_ms = clock_ms() - c->asked_ms;
    bool waits = c->state == CHANNEL_OPENING || c->state == CHANNEL_CLOSING;

    if (!waits || waited_ms < FAILPOINT_MS(ANSWER))
        return 0;
    if (c->state == CHANNEL_CLOSING && channel_move(b, c, c, false))
        return 0;
    b->wire.is_lost = true;
    return fault_set(f, "the broker did not answer within %lld ms that a channel is %s", (long long)waited_ms,
                     c->state == CHANNEL_CLOSING ? "closed" : "opened");
}

void broker_reopen(struct broker *b, uint32_t queue, const char *why)
{
    struct channel *c = channel_of_queue(b, queue);
    struct fault f = {0};

    fault_set(&f, "%s", why);
    kind_forget(c);
    if (b->wire.is_lost || b->closing != CLOSE_NO)
        return;
    if (c->stays_shut)
        channel_unshut(b, c);
    else
        channel_give_up(b, c, BROKER_REASON_REOPENED, &f);
}
