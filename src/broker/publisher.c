/* Publishing with confirms, for commands, which may block. It uses the same buffer and frames as the
 * consuming connection, so every wait has a deadline, also when the broker does not read. One thread.
 *
 * Confirms come in any order; the count covers the confirmed messages from the first one on without a gap. A
 * message without a queue is returned before its confirm: from then on no message counts as confirmed. */

#include "onceward/broker/publisher.h"

#include "broker/connect.h"
#include "broker/edit.h"
#include "broker/encode.h"
#include "onceward/base/clock.h"
#include "onceward/base/failpoint.h"
#include "onceward/base/mem.h"
#include "onceward/core/message.h"

#include <stdlib.h>
#include <string.h>

enum { CHANNEL_PUBLISH = 1, AHEAD_MAX = 256 * 1024, SHORT_MAX = 255, FRAME_AROUND = 8 };

struct publisher {
    struct wire wire;
    char *user;
    int64_t timeout_ms;
    uint64_t n_published; /* on this connection; the confirm's delivery tag */
    bool is_returned;     /* the message in flight has no queue */
    uint64_t n_settled;   /* confirmed without a gap from the first one on; later ones are in `settled`, by
                             tag */
    uint64_t n_routed;    /* n_settled at the time of the return, if is_returned */
    bool settled[PUBLISHER_WINDOW];
    uint64_t refused;  /* refused tag; 0: none */
    char blocked[128]; /* why the broker takes no messages at present */
};

int publisher_open(const struct config_broker *c, const char *vhost, const char *instance,
                   struct publisher **ret, struct fault *f)
{
    struct target *t = target_new(TO_PUBLISH, c, vhost, NULL, 0, instance, f);
    struct attempt *a = t ? attempt_wait(t, clock_ms() + c->connect_timeout_ms, f) : NULL;

    if (!a)
        return -1;
    struct publisher *p = mem_zalloc(1, sizeof(*p));
    *p = (struct publisher){.wire = a->wire, .user = a->user, .timeout_ms = c->connect_timeout_ms};
    a->wire = (struct wire){.fd = -1};
    a->user = NULL;
    attempt_free(a);
    *ret = p;
    return 0;
}

/* The broker's last answer about a message counts. */
static int on_settled(struct publisher *p, uint64_t tag, bool multiple, bool refused)
{
    uint64_t last = tag && tag < p->n_published ? tag : p->n_published;

    if (!multiple && (tag == 0 || tag > p->n_published))
        return 0;
    if (refused) {
        if (last > p->n_settled || last == p->n_published)
            p->refused = last;
        return 0;
    }
    if (multiple ? p->refused <= last : p->refused == last)
        p->refused = 0;
    for (uint64_t t = multiple ? p->n_settled + 1 : tag; t > p->n_settled && t <= last; t++)
        p->settled[t % PUBLISHER_WINDOW] = true;
    while (p->n_settled < p->n_published && p->settled[(p->n_settled + 1) % PUBLISHER_WINDOW])
        p->settled[++p->n_settled % PUBLISHER_WINDOW] = false;
    return 0;
}

static int on_method(struct publisher *p, const amqp_method_t *m, struct fault *f)
{
    switch (m->id) {
    case AMQP_BASIC_ACK_METHOD: {
        const amqp_basic_ack_t *ack = m->decoded;
        return on_settled(p, ack->delivery_tag, ack->multiple, false);
    }
    case AMQP_BASIC_NACK_METHOD: {
        const amqp_basic_nack_t *nack = m->decoded;
        return on_settled(p, nack->delivery_tag, nack->multiple, true);
    }
    case AMQP_BASIC_RETURN_METHOD:
        if (!p->is_returned)
            p->n_routed = p->n_settled;
        p->is_returned = true; /* the confirm follows */
        return 0;
    case AMQP_CHANNEL_CLOSE_METHOD: {
        const amqp_channel_close_t *close = m->decoded;
        p->wire.is_lost = true; /* unusable: the next message needs a new connection */
        return fault_set_close(f, "the broker closed the channel", close->reply_code, close->reply_text);
    }
    case AMQP_CONNECTION_CLOSE_METHOD: {
        const amqp_connection_close_t *close = m->decoded;
        p->wire.is_lost = true;
        return fault_set_close(f, "the broker closed the connection", close->reply_code, close->reply_text);
    }
    case AMQP_CONNECTION_BLOCKED_METHOD: {
        const amqp_connection_blocked_t *blocked = m->decoded;
        size_t len =
            blocked->reason.len < sizeof(p->blocked) - 1 ? blocked->reason.len : sizeof(p->blocked) - 1;
        if (len)
            memcpy(p->blocked, blocked->reason.bytes, len);
        p->blocked[len] = '\0';
        return 0;
    }
    case AMQP_CONNECTION_UNBLOCKED_METHOD:
        p->blocked[0] = '\0';
        return 0;
    default:
        return 0;
    }
}

/* Sends and receives once, waiting no later than the deadline. */
static int pump(struct publisher *p, int64_t deadline_ms, struct fault *f)
{
    amqp_frame_t frame;
    int r;

    if (wire_flush(&p->wire, f))
        return -1;
    wire_wait(&p->wire, deadline_ms);
    while ((r = wire_read(&p->wire, &frame, f)) > 0) {
        if (frame.frame_type == AMQP_FRAME_METHOD && on_method(p, &frame.payload.method, f))
            return -1;
    }
    return r < 0 ? -1 : wire_flush(&p->wire, f);
}

static int late(struct publisher *p, struct fault *f)
{
    p->wire.is_lost = true; /* a late confirm must not be taken for the next message's */
    if (p->blocked[0])
        return fault_set(f, "the broker did not confirm within %lld ms; it takes no messages at present: %s",
                         (long long)p->timeout_ms, p->blocked);
    return fault_set(f, "the broker did not confirm within %lld ms", (long long)p->timeout_ms);
}

/* Waits until fewer than `most` bytes are unsent. Progress extends the deadline. */
static int drain(struct publisher *p, size_t most, struct fault *f)
{
    int64_t deadline_ms = clock_ms() + p->timeout_ms;
    size_t before = SIZE_MAX;

    for (;;) {
        if (wire_flush(&p->wire, f))
            return -1;
        size_t pending = wire_pending(&p->wire);
        if (pending <= most)
            return 0;
        int64_t now = clock_ms();
        if (pending < before)
            deadline_ms = now + p->timeout_ms;
        else if (now >= deadline_ms)
            return late(p, f);
        before = pending;
        if (pump(p, deadline_ms, f))
            return -1;
    }
}

/* Copies the fields that may be published again; `headers` has room for all of them. */
static struct message publishable(const struct publisher *p, const struct message *m, struct field *headers)
{
    struct message copy = *m;
    struct slice *user = &copy.properties[PROPERTY_USER_ID];

    copy.has_delivery_mode = true;
    copy.delivery_mode = 2; /* persistent */
    copy.properties[PROPERTY_EXPIRATION] = (struct slice){0};
    if (user->data && !slice_equal(*user, slice_of(p->user)))
        *user = (struct slice){0};
    copy.headers = headers;
    copy.n_headers = 0;
    for (size_t i = 0; i < m->n_headers; i++)
        if (!header_is_spent(m->headers[i].name))
            headers[copy.n_headers++] = m->headers[i];
    return copy;
}

static int header_build(const struct publisher *p, const struct message *m, struct buf *header,
                        struct fault *f)
{
    struct field *headers = mem_zalloc(m->n_headers + 1, sizeof(*headers));
    struct message copy = publishable(p, m, headers);
    int r = message_encode(header, &copy, f);

    free(headers);
    return r;
}

static int body_send(struct publisher *p, struct slice body, struct fault *f)
{
    size_t part = p->wire.frame_max - FRAME_AROUND;

    for (size_t at = 0; at < body.len; at += part) {
        size_t len = body.len - at < part ? body.len - at : part;
        wire_put_frame(&p->wire, AMQP_FRAME_BODY, CHANNEL_PUBLISH, (struct slice){body.data + at, len});
        if (drain(p, AHEAD_MAX, f))
            return -1;
    }
    return 0;
}

/* Each confirm extends the deadline. */
int publisher_settle(struct publisher *p, size_t n, struct fault *f)
{
    int64_t deadline_ms = clock_ms() + p->timeout_ms;
    uint64_t before = p->n_settled;

    while (!p->refused && p->n_published - p->n_settled > n) {
        if (p->n_settled != before)
            deadline_ms = clock_ms() + p->timeout_ms;
        before = p->n_settled;
        if (clock_ms() >= deadline_ms)
            return late(p, f);
        if (pump(p, deadline_ms, f))
            return -1;
    }
    if (p->refused)
        return fault_set(f, "the broker refused the message (nack)");
    return p->is_returned ? 1 : 0;
}

uint64_t publisher_confirmed(const struct publisher *p)
{
    return p->is_returned ? p->n_routed : p->n_settled;
}

/* The destination of a message. */
struct address_of {
    struct slice exchange, routing_key;
};

static int push_whole(struct publisher *p, const struct address_of *to, struct slice header,
                      struct slice body, struct fault *f)
{
    if (header.len > p->wire.frame_max - FRAME_AROUND)
        return fault_set(f, "properties and headers take %zu bytes; the broker allows %zu", header.len,
                         p->wire.frame_max - FRAME_AROUND);
    p->n_published++;
    wire_put_method(&p->wire, CHANNEL_PUBLISH, AMQP_BASIC_PUBLISH_METHOD,
                    &(amqp_basic_publish_t){.exchange = bytes_of_slice(to->exchange),
                                            .routing_key = bytes_of_slice(to->routing_key),
                                            .mandatory = 1});
    wire_put_frame(&p->wire, AMQP_FRAME_HEADER, CHANNEL_PUBLISH, header);
    return body_send(p, body, f);
}

/* Publishes one message, and resets the state of its confirm afterwards. */
static int send_whole(struct publisher *p, const struct address_of *to, struct slice header,
                      struct slice body, struct fault *f)
{
    int r;

    if (push_whole(p, to, header, body, f) || drain(p, 0, f))
        return -1;
    FAILPOINT(REDRIVE_PUBLISHED);
    r = publisher_settle(p, 0, f);
    p->settled[p->n_published % PUBLISHER_WINDOW] = false;
    p->n_settled = p->n_published;
    p->is_returned = false;
    p->refused = 0;
    return r;
}

static int may_send(const struct publisher *p, const struct address_of *to, struct fault *f)
{
    if (p->wire.is_lost)
        return fault_set(f, "the connection to the broker is lost");
    if (to->exchange.len > SHORT_MAX)
        return fault_set(f, "the exchange's name has more than 255 bytes");
    if (to->routing_key.len > SHORT_MAX)
        return fault_set(f, to->exchange.len ? "the routing key has more than 255 bytes"
                                             : "the queue's name has more than 255 bytes");
    return 0;
}

int publisher_send(struct publisher *p, const char *exchange, const char *routing_key,
                   const struct message *m, struct fault *f)
{
    const struct address_of to = {slice_of(exchange), slice_of(routing_key)};
    struct buf header = {0};
    int r = -1;

    if (may_send(p, &to, f) == 0 && header_build(p, m, &header, f) == 0)
        r = send_whole(p, &to, buf_slice(&header), (struct slice){m->body, m->body_len}, f);
    buf_deinit(&header);
    return r;
}

int publisher_send_to(struct publisher *p, struct slice exchange, struct slice routing_key,
                      const struct message *m, struct fault *f)
{
    const struct address_of to = {exchange, routing_key};
    struct buf header = {0};
    int r = -1;

    if (may_send(p, &to, f) == 0 && message_encode(&header, m, f) == 0)
        r = send_whole(p, &to, buf_slice(&header), (struct slice){m->body, m->body_len}, f);
    buf_deinit(&header);
    return r;
}

int publisher_send_raw(struct publisher *p, const char *exchange, const char *routing_key,
                       struct slice content_header, struct slice body, struct fault *f)
{
    const struct address_of to = {slice_of(exchange), slice_of(routing_key)};
    struct buf header = {0};
    int r = -1;

    if (may_send(p, &to, f) == 0 &&
        content_header_edit(&header, content_header, body.len, slice_of(p->user), false, f) == 0)
        r = send_whole(p, &to, buf_slice(&header), body, f);
    buf_deinit(&header);
    return r;
}

int publisher_push(struct publisher *p, const char *queue, struct slice content_header, struct slice body,
                   struct fault *f)
{
    const struct address_of to = {.routing_key = slice_of(queue)};
    struct buf header = {0};
    int r = may_send(p, &to, f) ? -1 : publisher_settle(p, PUBLISHER_WINDOW - 1, f);

    if (r == 0 && (content_header_edit(&header, content_header, body.len, slice_of(p->user), false, f) ||
                   push_whole(p, &to, buf_slice(&header), body, f) || drain(p, AHEAD_MAX, f)))
        r = -1;
    buf_deinit(&header);
    return r;
}

bool publisher_is_lost(const struct publisher *p)
{
    return p->wire.is_lost;
}

void publisher_close(struct publisher *p)
{
    struct fault ignored;

    if (!p)
        return;
    if (!p->wire.is_lost) {
        wire_put_method(&p->wire, 0, AMQP_CONNECTION_CLOSE_METHOD,
                        &(amqp_connection_close_t){.reply_code = AMQP_REPLY_SUCCESS,
                                                   .reply_text = amqp_cstring_bytes("bye")});
        /* Waits for close-ok, since the broker logs a warning about a connection that breaks off. */
        int64_t deadline_ms = clock_ms() + (p->timeout_ms < 1000 ? p->timeout_ms : 1000);
        while (clock_ms() < deadline_ms && pump(p, deadline_ms, &ignored) == 0)
            ;
    }
    wire_deinit(&p->wire);
    free(p->user);
    free(p);
}
