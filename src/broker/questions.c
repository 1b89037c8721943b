/* The channel for questions: the depth of a queue, and its kind.
 *
 * Depths are asked for by passive declares. Those of many queues are sent together and answered in order. For a missing
 * queue the broker closes the channel: that answers the first question, and the later ones are repeated.
 *
 * AMQP has no question for a queue's kind. But classic and quorum queues refuse basic.consume with an argument for
 * streams, and name their kind in the refusal. A stream refuses it for another reason, since the channel has no
 * prefetch. No message or consumer is touched. Each answer closes the channel and writes a line into the broker's
 * log, so the kind is asked for only when it matters, one queue at a time.
 *
 * The broker's channel blocks on the queue that a question is about. When that queue does not answer, the channel is
 * abandoned and the other questions move to a new one. No further question about that queue is sent before the old
 * channel has ended. */

#include "broker/internal.h"
#include "onceward/base/clock.h"
#include "onceward/base/failpoint.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* --- questions in flight --- */

static void asked_add(struct broker *b, struct channel *c, bool is_kind)
{
    assert(b->n_asked <= b->n_queues && b->n_wanted > 0);
    if (b->n_asked == 0)
        b->answered_ms = clock_ms();
    b->asked[b->n_asked++] = (struct asked){c, is_kind};
    b->n_wanted--;
}

static struct asked asked_first(struct broker *b)
{
    struct asked first = b->asked[0];

    b->n_asked--;
    memmove(b->asked, b->asked + 1, b->n_asked * sizeof(*b->asked));
    b->answered_ms = clock_ms();
    return first;
}

/* Puts back the questions that ended with their channel. */
static void put_questions_back(struct broker *b)
{
    for (size_t i = 0; i < b->n_asked; i++) {
        struct channel *c = b->asked[i].about;
        enum question *q = b->asked[i].is_kind ? &c->kind_asked : &c->depth;

        if (*q == QUESTION_ASKED) {
            *q = QUESTION_WANTED;
            b->n_wanted++;
        }
    }
    b->n_asked = 0;
}

/* --- sending --- */

static void depth_send(struct broker *b, struct channel *c)
{
    wire_put_method(&b->wire, b->ask.number, AMQP_QUEUE_DECLARE_METHOD,
                    &(amqp_queue_declare_t){.queue = amqp_cstring_bytes(c->queue), .passive = 1});
    c->depth = QUESTION_ASKED;
    asked_add(b, c, false);
}

static void kind_send(struct broker *b, struct channel *c)
{
    amqp_table_entry_t offset = {amqp_cstring_bytes("x-stream-offset"), {.kind = AMQP_FIELD_KIND_UTF8}};

    offset.value.value.bytes = amqp_cstring_bytes("next");
    wire_put_method(
        &b->wire, b->ask.number, AMQP_BASIC_CONSUME_METHOD,
        &(amqp_basic_consume_t){.queue = amqp_cstring_bytes(c->queue), .arguments = {1, &offset}});
    c->kind_asked = QUESTION_ASKED;
    asked_add(b, c, true);
}

void questions_send(struct broker *b)
{
    /* The answer about a kind closes the channel, and with it every question sent later. */
    bool is_last = b->n_asked && b->asked[b->n_asked - 1].is_kind;

    if (b->ask.state != CHANNEL_OPEN || b->closing != CLOSE_NO || is_last || !b->n_wanted)
        return;
    for (size_t i = 0; i < b->n_queues; i++)
        if (b->queues[i].depth == QUESTION_WANTED)
            depth_send(b, &b->queues[i]);
    for (size_t i = 0; i < b->n_queues; i++)
        if (b->queues[i].kind_asked == QUESTION_WANTED) {
            kind_send(b, &b->queues[i]);
            return;
        }
}

/* --- answers --- */

static void depth_unknown(struct broker *b, struct channel *c, enum broker_reason reason,
                          const struct fault *why)
{
    struct broker_event *ev = event_add(&b->events, c, BROKER_DEPTH);

    ev->depth = -1;
    ev->reason = reason;
    ev->fault = *why;
    c->depth = QUESTION_NONE;
    if (reason == BROKER_REASON_FORBIDDEN)
        c->refused_ms = clock_ms();
}

static void held_release(struct broker *b, struct channel *c)
{
    struct broker_event ev;

    c->n_held_bytes = 0;
    while (event_take(&c->held, &ev)) {
        struct broker_event *later = event_add(&b->events, c, ev.kind);

        *later = ev;
        later->queue_kind = c->kind;
    }
}

static void kind_learnt(struct broker *b, struct channel *c, enum broker_kind kind, enum broker_reason reason,
                        const struct fault *why)
{
    struct fault stream = {0};

    c->kind = kind;
    c->kind_ms = clock_ms();
    c->kind_asked = QUESTION_NONE;
    struct broker_event *ev = event_add(&b->events, c, BROKER_KIND);
    ev->reason = reason;
    if (kind == BROKER_KIND_OTHER)
        ev->fault = *why;
    if (kind != BROKER_KIND_STREAM) {
        channel_unshut(b, c);
        held_release(b, c);
        return;
    }
    fault_set(&stream, "queue %s is a stream; streams are not supported", c->queue);
    ev->fault = stream;
    c->stays_shut = true;
    channel_give_up(b, c, BROKER_REASON_STREAM, &stream);
}

static bool ends_with(struct slice s, struct slice end)
{
    return s.len >= end.len && !memcmp(s.data + s.len - end.len, end.data, end.len);
}

/* Reads the kind from a refusal. A queue's name may contain anything, so only the beginning and the end of the
 * sentence are compared. */
static enum broker_kind kind_of_refusal(const amqp_channel_close_t *m)
{
    struct slice text = {m->reply_text.bytes, m->reply_text.len};

    if (m->reply_code != AMQP_PRECONDITION_FAILED)
        return BROKER_KIND_OTHER;
    if (slice_starts_with(text, SLICE("PRECONDITION_FAILED - consumer prefetch count is not set")))
        return BROKER_KIND_STREAM;
    if (ends_with(text, SLICE("of queue type rabbit_classic_queue")))
        return BROKER_KIND_CLASSIC;
    if (ends_with(text, SLICE("of queue type rabbit_quorum_queue")))
        return BROKER_KIND_QUORUM;
    return BROKER_KIND_OTHER;
}

void questions_refused(struct broker *b, const amqp_channel_close_t *m)
{
    struct fault why = {0};

    if (b->n_asked == 0)
        return;
    struct asked first = asked_first(b);
    struct channel *c = first.about;
    put_questions_back(b);
    fault_set_close(&why, CLOSED_CHANNEL, m->reply_code, m->reply_text);
    if (first.is_kind && c->kind_asked == QUESTION_ASKED) {
        enum broker_kind kind = kind_of_refusal(m);
        kind_learnt(b, c, kind,
                    kind == BROKER_KIND_OTHER ? reason_of_code(m->reply_code) : BROKER_REASON_NONE, &why);
    } else if (!first.is_kind) {
        depth_unknown(b, c, reason_of_code(m->reply_code), &why);
    }
}

static void fault_set_silent(struct fault *f, const struct channel *c)
{
    fault_set(f, "queue %s does not answer the broker", c->queue);
}

static void kind_ask(struct broker *b, struct channel *c)
{
    struct fault why = {0};

    if (c->n_unanswered) {
        fault_set_silent(&why, c);
        kind_learnt(b, c, BROKER_KIND_OTHER, BROKER_REASON_SILENT, &why);
        return;
    }
    c->kind_asked = QUESTION_WANTED;
    b->n_wanted++;
    questions_send(b);
}

/* Asks for the kind of a silent consumer's queue: a stream does not deliver messages that are older than its
 * consumer. */
static void silence_doubt(struct broker *b, struct channel *c)
{
    bool is_silent = c->consuming_ms && !c->has_delivered && clock_ms() - c->consuming_ms >= SILENCE_MS;

    if (c->state == CHANNEL_OPEN && is_silent && c->kind == BROKER_KIND_UNKNOWN &&
        c->kind_asked == QUESTION_NONE)
        kind_ask(b, c);
}

static void on_declare_ok(struct broker *b, const amqp_queue_declare_ok_t *ok)
{
    if (b->n_asked == 0 || b->asked[0].is_kind)
        return;
    struct channel *c = asked_first(b).about;
    struct broker_event *ev = event_add(&b->events, c, BROKER_DEPTH);
    ev->depth = ok->message_count;
    ev->n_consumers = ok->consumer_count;
    c->depth = QUESTION_NONE;
    if (ok->message_count)
        silence_doubt(b, c);
    questions_send(b);
}

/* A stream accepts such a consumer, if the broker's configuration gives channels a prefetch; other queues never do. */
static void on_consume_ok(struct broker *b)
{
    if (b->n_asked == 0 || !b->asked[0].is_kind)
        return;
    struct channel *c = asked_first(b).about;
    put_questions_back(b);
    channel_renew(b, &b->ask);
    if (c->kind_asked == QUESTION_ASKED)
        kind_learnt(b, c, BROKER_KIND_STREAM, BROKER_REASON_NONE, NULL);
}

void questions_method(struct broker *b, const amqp_method_t *m)
{
    if (m->id == AMQP_QUEUE_DECLARE_OK_METHOD)
        on_declare_ok(b, m->decoded);
    else if (m->id == AMQP_BASIC_CONSUME_OK_METHOD)
        on_consume_ok(b);
}

/* --- no answer --- */

/* Checks former streams again: another queue may have taken the name. */
static void streams_look(struct broker *b)
{
    for (size_t i = 0; i < b->n_queues; i++) {
        struct channel *c = &b->queues[i];

        if (c->state == CHANNEL_SHUT && c->kind_asked == QUESTION_NONE &&
            clock_ms() - c->kind_ms >= FAILPOINT_MS(REDIAL_LAST))
            kind_ask(b, c);
    }
}

int questions_tick(struct broker *b, struct fault *f)
{
    int64_t limit_ms = FAILPOINT_MS(ANSWER) < QUESTION_MS ? FAILPOINT_MS(ANSWER) : QUESTION_MS;
    int64_t waited_ms = clock_ms() - b->answered_ms;
    struct fault why = {0};

    if (b->closing == CLOSE_NO)
        streams_look(b);
    if (b->n_asked == 0 || waited_ms < limit_ms || b->ask.state != CHANNEL_OPEN || b->closing != CLOSE_NO)
        return 0;
    struct asked first = asked_first(b);
    struct channel *c = first.about;
    put_questions_back(b);
    fault_set_silent(&why, c);
    if (!first.is_kind)
        depth_unknown(b, c, BROKER_REASON_SILENT, &why);
    else if (c->kind_asked == QUESTION_ASKED)
        kind_learnt(b, c, BROKER_KIND_OTHER, BROKER_REASON_SILENT, &why);
    if (channel_move(b, &b->ask, c, true))
        return 0;
    b->wire.is_lost = true;
    return fault_set(f, "within %lld ms the broker did not answer a question about queue %s",
                     (long long)waited_ms, c->queue);
}

/* --- asking --- */

/* Answers a question without asking, if the answer is known. */
static bool depth_is_refused(struct broker *b, struct channel *c)
{
    struct fault why = {0};

    if (c->n_unanswered) {
        fault_set_silent(&why, c);
        depth_unknown(b, c, BROKER_REASON_SILENT, &why);
        return true;
    }
    if (c->refused_ms && clock_ms() - c->refused_ms < REFUSED_MS) {
        int64_t was_ms = c->refused_ms;

        fault_set(&why, "the broker does not allow it for this user");
        depth_unknown(b, c, BROKER_REASON_FORBIDDEN, &why);
        c->refused_ms = was_ms;
        return true;
    }
    return false;
}

int broker_ask_depth(struct broker *b, uint32_t queue, struct fault *f)
{
    struct channel *c = channel_of_queue(b, queue);

    if (c->depth == QUESTION_NONE && !b->wire.is_lost && !depth_is_refused(b, c)) {
        c->depth = QUESTION_WANTED;
        b->n_wanted++;
        questions_send(b);
    }
    return out_flush(b, f);
}

int broker_ask_kind(struct broker *b, uint32_t queue, struct fault *f)
{
    struct channel *c = channel_of_queue(b, queue);
    bool is_known = c->kind != BROKER_KIND_UNKNOWN && c->kind != BROKER_KIND_OTHER;

    if (c->kind_asked == QUESTION_NONE && !is_known && !b->wire.is_lost)
        kind_ask(b, c);
    return out_flush(b, f);
}

void kind_doubt(struct broker *b, struct channel *c, const struct content *t)
{
    bool is_old = clock_ms() - c->kind_ms >= KIND_OLD_MS;
    bool has_count = t->copy.delivery_count && c->kind != BROKER_KIND_QUORUM;

    if (c->kind_asked != QUESTION_NONE || (c->kind != BROKER_KIND_UNKNOWN && !is_old))
        return;
    if (has_count || message_header(t->message, SLICE("x-stream-offset")))
        kind_ask(b, c);
}
