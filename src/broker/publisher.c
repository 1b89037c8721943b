/* Publishing with confirms, for commands, which may block: the sender of the loop, with a deadline for every wait. One
 * thread.
 *
 * Confirms come in any order; the count covers the confirmed messages from the first one on without a gap. A message
 * without a queue is returned before its confirm: from then on no message counts as confirmed. */

#include "onceward/broker/publisher.h"

#include "broker/connect.h"
#include "onceward/base/buf.h"
#include "onceward/base/clock.h"
#include "onceward/base/failpoint.h"
#include "onceward/base/mem.h"
#include "onceward/broker/sender.h"
#include "onceward/core/message.h"

#include <stdlib.h>

enum { AHEAD_MAX = 256 * 1024 - 1, SHORT_MAX = 255, CLOSE_MS = 1000 };

struct publisher {
    struct sender *sender;
    bool is_lost; /* unusable: the next message needs a new connection */
    int64_t timeout_ms;
    uint64_t n_published; /* on this connection; the confirm's delivery tag */
    bool is_returned;     /* the message in flight has no queue */
    uint64_t n_settled;   /* confirmed without a gap from the first one on; later ones are in `settled`, by
                             tag */
    uint64_t n_routed;    /* n_settled at the time of the return, if is_returned */
    bool settled[PUBLISHER_WINDOW];
    uint64_t refused;     /* refused tag; 0: none */
    struct fault blocked; /* why the broker takes no messages at present */
};

int publisher_open(const struct config_broker *c, const char *vhost, const char *instance,
                   struct publisher **ret, struct fault *f)
{
    struct target *t = target_new(TO_PUBLISH, c, vhost, NULL, 0, instance, f);
    struct attempt *a = t ? attempt_wait(t, clock_ms() + c->connect_timeout_ms, f) : NULL;
    struct sender *sender;

    if (!a || sender_attempt_take(a, &sender, f))
        return -1;
    *ret = mem_zalloc(1, sizeof(**ret));
    **ret = (struct publisher){.sender = sender, .timeout_ms = c->connect_timeout_ms};
    return 0;
}

/* Takes a confirm or nack. The broker's last answer about a message counts. */
static void on_settled(struct publisher *p, uint64_t tag, bool multiple, bool refused)
{
    uint64_t last = tag && tag < p->n_published ? tag : p->n_published;

    if (!multiple && (tag == 0 || tag > p->n_published))
        return;
    if (refused) {
        if (last > p->n_settled || last == p->n_published)
            p->refused = last;
        return;
    }
    if (multiple ? p->refused <= last : p->refused == last)
        p->refused = 0;
    for (uint64_t t = multiple ? p->n_settled + 1 : tag; t > p->n_settled && t <= last; t++)
        p->settled[t % PUBLISHER_WINDOW] = true;
    while (p->n_settled < p->n_published && p->settled[(p->n_settled + 1) % PUBLISHER_WINDOW])
        p->settled[++p->n_settled % PUBLISHER_WINDOW] = false;
}

static int on_event(struct publisher *p, const struct sender_event *ev, struct fault *f)
{
    switch (ev->kind) {
    case SENDER_CONFIRMED:
        on_settled(p, ev->tag, ev->multiple, ev->refused);
        return 0;
    case SENDER_RETURNED:
        if (!p->is_returned)
            p->n_routed = p->n_settled;
        p->is_returned = true; /* the confirm follows */
        return 0;
    case SENDER_CHANNEL_LOST:
        p->is_lost = true;
        *f = ev->fault;
        return -1;
    case SENDER_BLOCKED:
        p->blocked = ev->fault;
        return 0;
    case SENDER_UNBLOCKED:
        p->blocked = (struct fault){0};
        return 0;
    default:
        return 0;
    }
}

/* Sends and receives once, waiting no later than the deadline. */
static int pump(struct publisher *p, int64_t deadline_ms, struct fault *f)
{
    struct sender_event ev;

    if (sender_flush(p->sender, f))
        return -1;
    sender_wait(p->sender, deadline_ms);
    do
        if (sender_next(p->sender, &ev, f) || on_event(p, &ev, f))
            return -1;
    while (ev.kind != SENDER_NOTHING);
    return sender_flush(p->sender, f);
}

static int late(struct publisher *p, struct fault *f)
{
    p->is_lost = true; /* a late confirm must not be taken for the next message's */
    return fault_set(f, "the broker did not confirm within %lld ms%s%s", (long long)p->timeout_ms,
                     p->blocked.text[0] ? "; " : "", p->blocked.text);
}

/* Waits until at most `most` bytes are unsent. Progress extends the deadline. */
static int drain(struct publisher *p, size_t most, struct fault *f)
{
    int64_t deadline_ms = clock_ms() + p->timeout_ms;
    size_t before = SIZE_MAX;

    for (;;) {
        if (sender_flush(p->sender, f))
            return -1;
        size_t pending = sender_unsent(p->sender);
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
    if (user->data && !slice_equal(*user, slice_of(sender_user(p->sender))))
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
    int r = sender_encode(header, &copy, f);

    free(headers);
    return r;
}

/* Waits for confirms. Each one extends the deadline. */
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

/* Destination of a message. */
struct address_of {
    struct slice exchange, routing_key;
};

static int push_whole(struct publisher *p, const struct address_of *to, struct slice header,
                      struct slice body, struct fault *f)
{
    size_t most = sender_header_max(p->sender);

    if (header.len > most)
        return fault_set(f, "properties and headers take %zu bytes; the broker allows %zu", header.len, most);
    if (drain(p, AHEAD_MAX, f))
        return -1;
    p->n_published = sender_send(p->sender, &(struct sender_message){.exchange = to->exchange,
                                                                     .routing_key = to->routing_key,
                                                                     .content_header = header,
                                                                     .body = body,
                                                                     .mandatory = true});
    return 0;
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
    if (publisher_is_lost(p))
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

    if (may_send(p, &to, f) == 0 && sender_encode(&header, m, f) == 0)
        r = send_whole(p, &to, buf_slice(&header), (struct slice){m->body, m->body_len}, f);
    buf_deinit(&header);
    return r;
}

int publisher_send_raw(struct publisher *p, const char *exchange, const char *routing_key,
                       struct slice content_header, struct slice body, struct fault *f)
{
    const struct address_of to = {slice_of(exchange), slice_of(routing_key)};
    struct slice properties;
    struct buf header = {0};
    int r = -1;

    if (may_send(p, &to, f) == 0 &&
        sender_edit(p->sender, &header, content_header, false, &properties, f) == 0)
        r = send_whole(p, &to, properties, body, f);
    buf_deinit(&header);
    return r;
}

int publisher_push(struct publisher *p, const char *queue, struct slice content_header, struct slice body,
                   struct fault *f)
{
    const struct address_of to = {.routing_key = slice_of(queue)};
    struct slice properties;
    struct buf header = {0};
    int r = may_send(p, &to, f) ? -1 : publisher_settle(p, PUBLISHER_WINDOW - 1, f);

    if (r == 0 && (sender_edit(p->sender, &header, content_header, false, &properties, f) ||
                   push_whole(p, &to, properties, body, f) || drain(p, AHEAD_MAX, f)))
        r = -1;
    buf_deinit(&header);
    return r;
}

bool publisher_is_lost(const struct publisher *p)
{
    return p->is_lost || sender_fd(p->sender) < 0;
}

void publisher_close(struct publisher *p)
{
    if (!p)
        return;
    if (!publisher_is_lost(p))
        sender_close(p->sender, clock_ms() + (p->timeout_ms < CLOSE_MS ? p->timeout_ms : CLOSE_MS));
    sender_free(p->sender);
    free(p);
}
