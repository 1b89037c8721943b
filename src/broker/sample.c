/* Reads one message of a queue for a command: basic.get, then requeue. One thread; may block, each time with a
 * deadline. */

#include "broker/connect.h"
#include "onceward/base/clock.h"
#include "onceward/base/mem.h"
#include "onceward/broker/broker.h"
#include "onceward/broker/decode.h"
#include "onceward/core/message.h"

#include <stdlib.h>
#include <string.h>

enum { CHANNEL = 1, REQUEUE = 2 /* the second bit of basic.nack's flags */ };

enum sample_state { ASKED, HEADER, BODY, TAKEN, EMPTY, CLOSED };

struct sample {
    struct wire wire;
    enum sample_state state;
    struct message *message;
    uint64_t tag, body_len, n_left;
    size_t body_most; /* a longer body is read and discarded */
};

static int broken(struct sample *s, struct fault *f, const char *what)
{
    s->wire.is_lost = true;
    return fault_set(f, "the broker sent %s", what);
}

static int on_method(struct sample *s, const amqp_method_t *m, struct fault *f)
{
    switch (m->id) {
    case AMQP_BASIC_GET_OK_METHOD: {
        const amqp_basic_get_ok_t *ok = m->decoded;

        if (s->state != ASKED)
            return broken(s, f, "a message that was not requested");
        s->state = HEADER;
        s->tag = ok->delivery_tag;
        s->message = message_new();
        s->message->redelivered = ok->redelivered;
        return 0;
    }
    case AMQP_BASIC_GET_EMPTY_METHOD:
        if (s->state == ASKED)
            s->state = EMPTY;
        return 0;
    case AMQP_CHANNEL_CLOSE_METHOD: {
        const amqp_channel_close_t *close = m->decoded;

        s->wire.is_lost = true;
        return fault_set_close(f, "the broker closed the channel", close->reply_code, close->reply_text);
    }
    case AMQP_CONNECTION_CLOSE_METHOD: {
        const amqp_connection_close_t *close = m->decoded;

        s->wire.is_lost = true;
        return fault_set_close(f, "the broker closed the connection", close->reply_code, close->reply_text);
    }
    case AMQP_CHANNEL_CLOSE_OK_METHOD:
    case AMQP_CONNECTION_CLOSE_OK_METHOD:
        s->state = CLOSED;
        return 0;
    default:
        return 0;
    }
}

static int on_header(struct sample *s, const amqp_frame_t *frame, struct fault *f)
{
    amqp_bytes_t properties = frame->payload.properties.raw;

    if (s->state != HEADER || frame->payload.properties.class_id != AMQP_BASIC_CLASS)
        return broken(s, f, "an unexpected content header");
    /* Of malformed properties, everything before the fault is decoded. */
    (void)message_decode(s->message, (struct slice){properties.bytes, properties.len});
    s->body_len = s->n_left = frame->payload.properties.body_size;
    if (s->body_len && s->body_len <= s->body_most) {
        s->message->body = mem_realloc(NULL, s->body_len);
        s->message->body_len = s->body_len;
    }
    s->state = s->n_left ? BODY : TAKEN;
    return 0;
}

static int on_body(struct sample *s, const amqp_frame_t *frame, struct fault *f)
{
    amqp_bytes_t part = frame->payload.body_fragment;

    if (s->state != BODY || part.len > s->n_left)
        return broken(s, f, "a body out of its place");
    if (s->message->body && part.len)
        memcpy(s->message->body + (s->body_len - s->n_left), part.bytes, part.len);
    s->n_left -= part.len;
    if (!s->n_left)
        s->state = TAKEN;
    return 0;
}

static int on_frame(struct sample *s, const amqp_frame_t *frame, struct fault *f)
{
    switch (frame->frame_type) {
    case AMQP_FRAME_METHOD:
        return on_method(s, &frame->payload.method, f);
    case AMQP_FRAME_HEADER:
        return on_header(s, frame, f);
    case AMQP_FRAME_BODY:
        return on_body(s, frame, f);
    default:
        return 0;
    }
}

/* Runs until the state is `wanted` or later. Each frame extends the deadline, since a body may be long. */
static int pump(struct sample *s, enum sample_state wanted, int64_t timeout_ms, struct fault *f)
{
    int64_t deadline_ms = clock_ms() + timeout_ms;
    amqp_frame_t frame;
    int r;

    while (s->state < wanted) {
        if (wire_flush(&s->wire, f))
            return -1;
        if (clock_ms() >= deadline_ms)
            return fault_set(f, "the broker did not answer within %lld ms", (long long)timeout_ms);
        wire_wait(&s->wire, deadline_ms);
        while ((r = wire_read(&s->wire, &frame, f)) > 0) {
            r = on_frame(s, &frame, f);
            deadline_ms = clock_ms() + timeout_ms;
            if (r)
                return -1;
        }
        if (r < 0)
            return -1;
    }
    return 0;
}

/* Closes a channel or connection. The answer to the close proves that the broker has processed the requeue
 * before it. */
static int close_properly(struct sample *s, uint16_t channel, amqp_method_number_t id, void *method,
                          int64_t timeout_ms, struct fault *f)
{
    s->state = ASKED;
    wire_put_method(&s->wire, channel, id, method);
    return pump(s, CLOSED, timeout_ms, f);
}

static int give_back(struct sample *s, int64_t timeout_ms, struct fault *f)
{
    amqp_channel_close_t channel = {.reply_code = AMQP_REPLY_SUCCESS,
                                    .reply_text = amqp_cstring_bytes("bye")};
    amqp_connection_close_t connection = {.reply_code = AMQP_REPLY_SUCCESS,
                                          .reply_text = amqp_cstring_bytes("bye")};

    if (s->state == TAKEN)
        wire_put_settle(&s->wire, CHANNEL, AMQP_BASIC_NACK_METHOD, s->tag, REQUEUE);
    return close_properly(s, CHANNEL, AMQP_CHANNEL_CLOSE_METHOD, &channel, timeout_ms, f) ||
                   close_properly(s, 0, AMQP_CONNECTION_CLOSE_METHOD, &connection, timeout_ms, f)
               ? -1
               : 0;
}

int broker_sample(const struct config_broker *c, const struct config_queue *q, struct message **ret,
                  int *server_major, struct fault *f)
{
    struct target *t = target_new(TO_PUBLISH, c, q->vhost, NULL, 0, "check --sample", f);
    struct attempt *a = t ? attempt_wait(t, clock_ms() + c->connect_timeout_ms, f) : NULL;
    struct sample s = {.state = ASKED, .body_most = q->max_message_bytes};
    bool is_empty = false;

    if (!a)
        return -1;
    *server_major = a->version ? (int)strtol(a->version, NULL, 10) : 0;
    s.wire = a->wire;
    a->wire = (struct wire){.fd = -1};
    attempt_free(a);
    wire_put_method(&s.wire, CHANNEL, AMQP_BASIC_GET_METHOD,
                    &(amqp_basic_get_t){.queue = amqp_cstring_bytes(q->queue)});
    int failed = pump(&s, TAKEN, c->connect_timeout_ms, f);
    if (!failed) {
        is_empty = s.state == EMPTY;
        failed = give_back(&s, c->connect_timeout_ms, f);
    }
    wire_deinit(&s.wire);
    if (failed || is_empty) {
        message_free(s.message);
        return failed ? -1 : 1;
    }
    *ret = s.message;
    return 0;
}
