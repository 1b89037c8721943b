/* Publishing with confirms, for the loop. sender.h has the reason for a connection of its own.
 *
 * Invariants: after wire.is_lost nothing is sent or read. The part of a body that does not fit into the output buffer
 * is copied, and follows piece by piece; no other message begins before its last piece. While the channel is not
 * open, only the methods that open it are sent. */

#include "onceward/broker/sender.h"

#include "broker/connect.h"
#include "broker/edit.h"
#include "broker/encode.h"
#include "onceward/base/buf.h"
#include "onceward/base/clock.h"
#include "onceward/base/mem.h"
#include "onceward/broker/decode.h"
#include "onceward/core/message.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHANNEL = 1,
    AHEAD_MAX = 256 * 1024, /* bytes pending for the socket above which no new message begins */
    FRAME_AROUND = 8,
    HEADER_AROUND = 12, /* class, weight and body size */
    CLASS_BASIC = 60,
    SHORT_MAX = 255,
    N_FRAMES_MAX = 256, /* frames read without an event before other descriptors get their turn */
};

enum channel_state { OPENING, SELECTING, OPEN };

struct sender {
    struct wire wire;
    char *version, *cluster, *user;
    enum channel_state channel;
    uint64_t n_sent;   /* on this channel: the latest tag */
    struct slice rest; /* the part of `body` that is not in the buffer yet */
    struct buf body;   /* a copy: the caller may free the message before the socket accepts it */
    struct returned {
        struct message *message; /* being assembled; NULL: none */
        struct slice exchange, routing_key;
        uint64_t body_len, n_left;
        bool has_header;
    } returned;
};

struct job *sender_connect(const struct config_broker *c, enum sender_purpose why, const char *vhost,
                           const char *instance, struct fault *f)
{
    struct target *t = target_new(why == SENDER_RENEWS ? TO_RENEW : TO_RELAY, c, vhost, NULL, 0, instance, f);

    if (!t)
        return NULL;
    struct job *job = job_start(attempt_run, attempt_drop, t);
    if (!job) {
        fault_set(f, "no thread could be started to connect to the broker: %s", strerror(errno));
        target_free(t);
    }
    return job;
}

int sender_attempt_take(void *result, struct sender **ret, struct fault *f)
{
    struct attempt *a = result;

    if (!a->wire.connection) {
        *f = a->fault;
        attempt_free(a);
        return -1;
    }
    struct sender *s = mem_zalloc(1, sizeof(*s));
    *s = (struct sender){
        .wire = a->wire, .version = a->version, .cluster = a->cluster, .user = a->user, .channel = OPEN};
    a->wire = (struct wire){.fd = -1};
    a->version = a->cluster = a->user = NULL;
    attempt_free(a);
    *ret = s;
    return 0;
}

static void returned_drop(struct sender *s)
{
    message_free(s->returned.message);
    s->returned = (struct returned){0};
}

static void put_close(struct sender *s)
{
    struct fault ignored;

    if (s->wire.is_lost || s->rest.len)
        return;
    wire_put_method(&s->wire, 0, AMQP_CONNECTION_CLOSE_METHOD,
                    &(amqp_connection_close_t){.reply_code = AMQP_REPLY_SUCCESS,
                                               .reply_text = amqp_cstring_bytes("bye")});
    wire_flush(&s->wire, &ignored);
}

void sender_close(struct sender *s, int64_t deadline_ms)
{
    struct fault ignored;
    amqp_frame_t frame;

    put_close(s);
    while (!s->wire.is_lost && clock_ms() < deadline_ms) {
        wire_wait(&s->wire, deadline_ms);
        while (wire_read(&s->wire, &frame, &ignored) > 0)
            ;
        wire_flush(&s->wire, &ignored);
    }
    s->wire.is_lost = true;
}

void sender_free(struct sender *s)
{
    if (!s)
        return;
    put_close(s);
    returned_drop(s);
    wire_deinit(&s->wire);
    buf_deinit(&s->body);
    free(s->version);
    free(s->cluster);
    free(s->user);
    free(s);
}

int sender_fd(const struct sender *s)
{
    return s->wire.is_lost ? -1 : s->wire.fd;
}

const char *sender_version(const struct sender *s)
{
    return s->version;
}

const char *sender_user(const struct sender *s)
{
    return s->user;
}

const char *sender_cluster(const struct sender *s)
{
    return s->cluster;
}

int sender_encode(struct buf *out, const struct message *m, struct fault *f)
{
    struct buf whole = {0};
    int r = message_encode(&whole, m, f);

    if (!r)
        buf_add(out, whole.data + HEADER_AROUND, whole.len - HEADER_AROUND);
    buf_deinit(&whole);
    return r;
}

int sender_edit(const struct sender *s, struct buf *out, struct slice content_header, bool keeps_expiration,
                struct slice *ret, struct fault *f)
{
    size_t from = out->len + HEADER_AROUND;

    if (content_header_edit(out, content_header, 0, slice_of(s->user), keeps_expiration, f))
        return -1;
    *ret = (struct slice){out->data + from, out->len - from};
    return 0;
}

/* --- receiving --- */

static int broken(struct sender *s, struct fault *f, const char *what)
{
    s->wire.is_lost = true;
    return fault_set(f, "the broker broke the protocol: %s", what);
}

static int settled(struct sender_event *ev, uint64_t tag, bool multiple, bool refused)
{
    ev->kind = SENDER_CONFIRMED;
    ev->tag = tag;
    ev->multiple = multiple;
    ev->refused = refused;
    return 0;
}

static int return_begins(struct sender *s, const amqp_basic_return_t *m, struct fault *f)
{
    if (s->returned.message)
        return broken(s, f, "a message begins before the previous one ended");
    struct message *copy = message_new();
    s->returned = (struct returned){.message = copy};
    s->returned.exchange = message_keep(copy, m->exchange.bytes, m->exchange.len);
    s->returned.routing_key = message_keep(copy, m->routing_key.bytes, m->routing_key.len);
    return 0;
}

/* Opens the closed channel again, under the same number. */
static void channel_closed(struct sender *s, const amqp_channel_close_t *m, struct sender_event *ev)
{
    ev->kind = SENDER_CHANNEL_LOST;
    fault_set_close(&ev->fault, "the broker closed the channel", m->reply_code, m->reply_text);
    wire_put_method(&s->wire, CHANNEL, AMQP_CHANNEL_CLOSE_OK_METHOD, &(amqp_channel_close_ok_t){0});
    wire_put_method(&s->wire, CHANNEL, AMQP_CHANNEL_OPEN_METHOD, &(amqp_channel_open_t){0});
    returned_drop(s);
    s->channel = OPENING;
    s->n_sent = 0;
    s->rest = (struct slice){0};
    buf_deinit(&s->body);
}

static int on_channel(struct sender *s, const amqp_method_t *m, struct sender_event *ev, struct fault *f)
{
    switch (m->id) {
    case AMQP_BASIC_ACK_METHOD: {
        const amqp_basic_ack_t *ack = m->decoded;
        return s->channel == OPEN ? settled(ev, ack->delivery_tag, ack->multiple, false) : 0;
    }
    case AMQP_BASIC_NACK_METHOD: {
        const amqp_basic_nack_t *nack = m->decoded;
        return s->channel == OPEN ? settled(ev, nack->delivery_tag, nack->multiple, true) : 0;
    }
    case AMQP_BASIC_RETURN_METHOD:
        return return_begins(s, m->decoded, f);
    case AMQP_CHANNEL_CLOSE_METHOD:
        channel_closed(s, m->decoded, ev);
        return 0;
    case AMQP_CHANNEL_OPEN_OK_METHOD:
        if (s->channel == OPENING) {
            wire_put_method(&s->wire, CHANNEL, AMQP_CONFIRM_SELECT_METHOD, &(amqp_confirm_select_t){0});
            s->channel = SELECTING;
        }
        return 0;
    case AMQP_CONFIRM_SELECT_OK_METHOD:
        if (s->channel == SELECTING) {
            s->channel = OPEN;
            ev->kind = SENDER_CHANNEL_OPEN;
        }
        return 0;
    default:
        return 0;
    }
}

static int on_connection(struct sender *s, const amqp_method_t *m, struct sender_event *ev, struct fault *f)
{
    switch (m->id) {
    case AMQP_CONNECTION_CLOSE_METHOD: {
        const amqp_connection_close_t *close = m->decoded;
        struct fault ignored;

        wire_put_method(&s->wire, 0, AMQP_CONNECTION_CLOSE_OK_METHOD, &(amqp_connection_close_ok_t){0});
        wire_flush(&s->wire, &ignored);
        s->wire.is_lost = true;
        return fault_set_close(f, "the broker closed the connection", close->reply_code, close->reply_text);
    }
    case AMQP_CONNECTION_BLOCKED_METHOD: {
        const amqp_connection_blocked_t *blocked = m->decoded;

        ev->kind = SENDER_BLOCKED;
        fault_set(&ev->fault, "the broker takes no messages at present: %.*s", (int)blocked->reason.len,
                  blocked->reason.len ? (const char *)blocked->reason.bytes : "");
        return 0;
    }
    case AMQP_CONNECTION_UNBLOCKED_METHOD:
        ev->kind = SENDER_UNBLOCKED;
        return 0;
    default:
        return 0;
    }
}

static void return_ends(struct sender *s, struct sender_event *ev)
{
    const struct returned *r = &s->returned;

    ev->kind = SENDER_RETURNED;
    ev->message_id = r->message->properties[PROPERTY_MESSAGE_ID];
    ev->exchange = r->exchange;
    ev->routing_key = r->routing_key;
    ev->body_len = r->body_len;
}

/* The content of a returned message; no other content arrives here. */
static int on_content(struct sender *s, const amqp_frame_t *frame, struct sender_event *ev, struct fault *f)
{
    struct returned *r = &s->returned;

    if (s->channel != OPEN)
        return 0;
    if (!r->message || r->has_header != (frame->frame_type == AMQP_FRAME_BODY))
        return broken(s, f, "a content without its method");
    if (frame->frame_type == AMQP_FRAME_HEADER) {
        amqp_bytes_t properties = frame->payload.properties.raw;

        r->has_header = true;
        r->body_len = r->n_left = frame->payload.properties.body_size;
        /* Messages of our own are well-formed. */
        message_decode(r->message, (struct slice){properties.bytes, properties.len});
    } else if (frame->payload.body_fragment.len > r->n_left) {
        return broken(s, f, "a body longer than its header says");
    } else {
        r->n_left -= frame->payload.body_fragment.len;
    }
    if (!r->n_left)
        return_ends(s, ev);
    return 0;
}

static int on_frame(struct sender *s, const amqp_frame_t *frame, struct sender_event *ev, struct fault *f)
{
    if (frame->channel == 0)
        return frame->frame_type == AMQP_FRAME_METHOD ? on_connection(s, &frame->payload.method, ev, f) : 0;
    if (frame->channel != CHANNEL)
        return 0;
    if (frame->frame_type == AMQP_FRAME_METHOD)
        return on_channel(s, &frame->payload.method, ev, f);
    return on_content(s, frame, ev, f);
}

int sender_next(struct sender *s, struct sender_event *ev, struct fault *f)
{
    amqp_frame_t frame;
    int r;

    if (s->returned.message && s->returned.has_header && !s->returned.n_left)
        returned_drop(s); /* already reported */
    *ev = (struct sender_event){.kind = SENDER_NOTHING};
    for (int n = 0; n < N_FRAMES_MAX; n++) {
        r = wire_read(&s->wire, &frame, f);
        if (r <= 0)
            return r;
        if (on_frame(s, &frame, ev, f))
            return -1;
        if (ev->kind != SENDER_NOTHING)
            return 0;
    }
    return 0;
}

/* --- sending --- */

/* Fills the output buffer from the current body. */
static void body_fill(struct sender *s)
{
    size_t part = s->wire.frame_max - FRAME_AROUND;

    while (s->rest.len && wire_pending(&s->wire) < AHEAD_MAX) {
        size_t len = s->rest.len < part ? s->rest.len : part;

        wire_put_frame(&s->wire, AMQP_FRAME_BODY, CHANNEL, (struct slice){s->rest.data, len});
        s->rest.data += len;
        s->rest.len -= len;
    }
    if (!s->rest.len)
        buf_deinit(&s->body);
}

int sender_flush(struct sender *s, struct fault *f)
{
    size_t before;

    do {
        body_fill(s);
        before = wire_pending(&s->wire);
        if (wire_flush(&s->wire, f))
            return -1;
    } while (s->rest.len && wire_pending(&s->wire) < before);
    return 0;
}

int sender_tick(struct sender *s, struct fault *f)
{
    return wire_tick(&s->wire, f);
}

bool sender_wants_write(const struct sender *s)
{
    return !s->wire.is_lost && wire_pending(&s->wire) > 0;
}

size_t sender_unsent(const struct sender *s)
{
    return s->rest.len + wire_pending(&s->wire);
}

void sender_wait(struct sender *s, int64_t deadline_ms)
{
    wire_wait(&s->wire, deadline_ms);
}

bool sender_can_send(const struct sender *s)
{
    return !s->wire.is_lost && s->channel == OPEN && !s->rest.len && wire_pending(&s->wire) < AHEAD_MAX;
}

size_t sender_header_max(const struct sender *s)
{
    return s->wire.frame_max - FRAME_AROUND - HEADER_AROUND;
}

static void header_put(struct sender *s, const struct sender_message *m)
{
    struct buf *out = &s->wire.out;

    buf_add_char(out, AMQP_FRAME_HEADER);
    buf_add_u16(out, CHANNEL);
    buf_add_u32(out, (uint32_t)(HEADER_AROUND + m->content_header.len));
    buf_add_u16(out, CLASS_BASIC);
    buf_add_u16(out, 0); /* weight, unused */
    buf_add_u64(out, m->body.len);
    buf_add_slice(out, m->content_header);
    buf_add_char(out, (char)AMQP_FRAME_END);
}

uint64_t sender_send(struct sender *s, const struct sender_message *m)
{
    assert(sender_can_send(s));
    assert(m->exchange.len <= SHORT_MAX && m->routing_key.len <= SHORT_MAX);
    assert(m->content_header.len <= sender_header_max(s));
    wire_put_method(&s->wire, CHANNEL, AMQP_BASIC_PUBLISH_METHOD,
                    &(amqp_basic_publish_t){.exchange = bytes_of_slice(m->exchange),
                                            .routing_key = bytes_of_slice(m->routing_key),
                                            .mandatory = m->mandatory});
    header_put(s, m);
    s->rest = m->body;
    body_fill(s);
    if (s->rest.len) {
        buf_add_slice(&s->body, s->rest);
        s->rest = buf_slice(&s->body);
    }
    return ++s->n_sent;
}
