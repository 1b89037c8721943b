/* Copies of messages near their delivery limit, published to their own queues. Each virtual host has a
 * connection for this, made on demand and closed after a while without copies. It is separate from the
 * consuming connection, because a broker that is short of memory reads no acks from a connection that has
 * published (https://www.rabbitmq.com/docs/connections#flow-control). The result of a copy reaches its queue
 * in the next turn. */
#include "sidecar/sidecar.h"

#include "onceward/base/failpoint.h"
#include "onceward/base/fault.h"
#include "onceward/base/log.h"
#include "onceward/base/mem.h"
#include "onceward/broker/decode.h"
#include "onceward/broker/sender.h"
#include "onceward/core/message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TICK_MS = 1000,
    N_EVENTS_A_TURN = 512,
    IDLE_MS = 30000,
    CONFIRM_MS = 30000, /* a confirm may take this long before the connection is given up */
    JOB_EXTRA_MS = 15000,
    FORBIDDEN = 403,
    SHORT_MAX = 255,
};

static const char not_allowed[] =
    "this user may not publish to the default exchange: grant write on amq.default, or set "
    "queues.<name>.delivery_limit to 0 if the queue has no delivery limit";
static const char other_id[] =
    "its message id would change, since a copy has a new expiration, user_id or delivery headers: let "
    "message_id look elsewhere, or set queues.<name>.delivery_limit to 0 if the queue has no delivery limit";
static const char too_long[] = "its properties and headers are longer than a frame that the broker takes";
static const char malformed[] = "its properties do not have the form that AMQP gives them";

static void socket_ready(void *owner, uint32_t events)
{
    (void)events;
    ((struct link_renewals *)owner)->readable = true;
}

/* --- results --- */

/* Removes the copy and reports its result. why: as for queue_published. */
static void tell(struct sidecar *s, struct link_renewals *r, size_t at, enum publication what,
                 const char *why)
{
    struct renewal_out one = r->out[at];
    struct sidecar_queue *sq = &s->queues[one.queue];

    memmove(&r->out[at], &r->out[at + 1], (--r->n_out - at) * sizeof(*r->out));
    sq->touched = true;
    queue_published(&sq->core, s->now_ms, one.ref, what, why);
}

static void all_failed(struct sidecar *s, struct link_renewals *r, enum publication what, const char *why)
{
    while (r->n_out)
        tell(s, r, 0, what, why);
}

static void disconnect(struct sidecar *s, struct link_renewals *r, const char *why)
{
    wait_remove(s->wait, &r->watch);
    sender_free(r->sender);
    r->sender = NULL;
    r->blocked = false;
    all_failed(s, r, PUBLICATION_FAILED, why);
}

static void lost(struct sidecar *s, struct link_renewals *r, const char *why)
{
    disconnect(s, r, why);
    dial_failed(s, &r->dial, why);
}

static void confirmed(struct sidecar *s, struct link_renewals *r, const struct sender_event *ev)
{
    FAILPOINT(PUBLISH_ANSWERED);
    for (size_t i = 0; i < r->n_out && r->out[i].tag <= ev->tag;) {
        const struct renewal_out *one = &r->out[i];

        if (!one->tag || (!ev->multiple && one->tag != ev->tag))
            i++;
        else if (ev->refused)
            tell(s, r, i, PUBLICATION_FAILED,
                 "the broker refused it (nack): the queue is full, or not available");
        else if (one->is_returned)
            tell(s, r, i, PUBLICATION_FAILED, "the broker returned it: there is no such queue");
        else
            tell(s, r, i, PUBLICATION_CONFIRMED, NULL);
    }
}

/* A returned message has no tag, so every copy in flight to that queue counts as failed. If such a copy
 * reaches the queue nevertheless, the inbox recognises it as a duplicate. */
static void returned(struct sidecar *s, struct link_renewals *r, struct slice queue)
{
    for (size_t i = 0; i < r->n_out; i++)
        r->out[i].is_returned |= slice_equal(slice_of(s->queues[r->out[i].queue].config->queue), queue);
}

static void blocked(const struct link_renewals *r, const struct sender_event *ev)
{
    struct log_line line;

    log_begin(&line, EVENT_LIMITS, NULL);
    log_text(&line, "vhost", r->dial.vhost);
    log_text(&line, "reason",
             ev->kind == SENDER_BLOCKED ? ev->fault.text : "the broker takes renewals again");
    log_end(&line);
}

static void event_came(struct sidecar *s, struct link_renewals *r, const struct sender_event *ev)
{
    bool is_forbidden;

    switch (ev->kind) {
    case SENDER_CONFIRMED:
        confirmed(s, r, ev);
        break;
    case SENDER_RETURNED:
        returned(s, r, ev->routing_key);
        break;
    case SENDER_CHANNEL_LOST:
        is_forbidden = strtol(ev->fault.code, NULL, 10) == FORBIDDEN;
        all_failed(s, r, is_forbidden ? PUBLICATION_FORBIDDEN : PUBLICATION_FAILED,
                   is_forbidden ? not_allowed : ev->fault.text);
        break;
    case SENDER_BLOCKED:
    case SENDER_UNBLOCKED:
        r->blocked = ev->kind == SENDER_BLOCKED;
        blocked(r, ev);
        break;
    default:
        break;
    }
}

/* --- the connection --- */

static void begin(struct sidecar *s, struct link_renewals *r)
{
    struct fault f = {0};
    struct job *job =
        sender_connect(&s->config->broker, SENDER_RENEWS, r->dial.vhost, s->config->instance, &f);

    if (job)
        dial_began(s, &r->dial, job, s->config->broker.connect_timeout_ms + JOB_EXTRA_MS);
    else
        dial_failed(s, &r->dial, f.text);
}

static void arrive(struct sidecar *s, struct link_renewals *r, void *result)
{
    struct fault f = {0};

    if (sender_attempt_take(result, &r->sender, &f)) {
        dial_failed(s, &r->dial, f.text);
        return;
    }
    r->used_ms = s->now_ms;
    if (wait_add(s->wait, &r->watch, sender_fd(r->sender), EPOLLIN, socket_ready, r, &f)) {
        lost(s, r, f.text);
        return;
    }
    r->readable = true;
    dial_succeeded(s, &r->dial, sender_version(r->sender));
}

static void events_read(struct sidecar *s, struct link_renewals *r)
{
    struct sender_event ev;
    struct fault f = {0};

    for (int n = 0; n < N_EVENTS_A_TURN; n++) {
        if (sender_next(r->sender, &ev, &f)) {
            lost(s, r, f.text);
            return;
        }
        if (ev.kind == SENDER_NOTHING) {
            r->readable = false;
            return;
        }
        event_came(s, r, &ev);
    }
}

/* Reports copies that could not be sent. */
static void refusals_tell(struct sidecar *s, struct link_renewals *r)
{
    for (size_t i = 0; i < r->n_out;)
        if (!r->out[i].tag)
            tell(s, r, i, PUBLICATION_REFUSED, r->out[i].refused);
        else
            i++;
}

static void tick(struct sidecar *s, struct link_renewals *r, bool wanted)
{
    struct fault f = {0};

    if (s->now_ms < r->tick_ms)
        return;
    r->tick_ms = s->now_ms + TICK_MS;
    r->readable = true;
    dial_time(s, &r->dial);
    if (sender_tick(r->sender, &f))
        lost(s, r, f.text);
    else if (r->n_out && s->now_ms - r->out[0].sent_ms >= CONFIRM_MS)
        lost(s, r, "the broker did not confirm a message in time");
    else if (!wanted && !r->n_out && s->now_ms - r->used_ms >= IDLE_MS)
        disconnect(s, r, "");
}

static bool is_wanted(const struct sidecar *s, const struct broker_link *k)
{
    for (size_t i = 0; i < s->n_queues; i++)
        if (s->queues[i].link == k && s->queues[i].core.held.wanted[OP_PUBLISH].len)
            return true;
    return false;
}

void renewals_step(struct sidecar *s)
{
    void *result;

    for (size_t i = 0; i < s->n_links; i++) {
        struct link_renewals *r = &s->links[i].renewals;
        bool wanted = is_wanted(s, &s->links[i]);

        refusals_tell(s, r);
        if (wanted && !r->sender && !s->links[i].closing && dial_is_due(s, &r->dial))
            begin(s, r);
        if (dial_result(s, &r->dial, &result))
            arrive(s, r, result);
        if (r->sender && r->readable)
            events_read(s, r);
        if (r->sender)
            tick(s, r, wanted);
    }
}

int64_t renewals_due_ms(const struct sidecar *s)
{
    int64_t due = INT64_MAX;

    for (size_t i = 0; i < s->n_links; i++) {
        const struct link_renewals *r = &s->links[i].renewals;

        if ((r->sender && r->readable) || (r->n_out && !r->out[0].tag))
            return s->now_ms;
        if (!r->sender && !r->dial.job && is_wanted(s, &s->links[i]) && r->dial.at_ms < due)
            due = r->dial.at_ms;
    }
    return due;
}

/* --- sending --- */

bool renewals_can(const struct sidecar_queue *sq)
{
    const struct link_renewals *r = &sq->link->renewals;

    return r->sender && !r->blocked && r->n_out < N_RENEWALS_OUT && sender_can_send(r->sender);
}

/* Would the copy have the same message id? */
static bool keeps_id(const struct sidecar_queue *sq, const struct delivery *d, struct slice properties)
{
    struct message *copy = message_new();
    struct buf id = {0};
    struct fault f = {0};
    bool same = message_decode(copy, properties) == 0;

    copy->routing_key = slice_of(sq->config->queue);
    copy->exchange = SLICE("");
    copy->body = d->arrival->message->body;
    copy->body_len = d->arrival->message->body_len;
    same = same && identify_message(sq, copy, &id, &f) == DEAD_NONE &&
           slice_equal(buf_slice(&id), delivery_slice(d));
    copy->body = NULL; /* the delivery owns the body */
    copy->body_len = 0;
    message_free(copy);
    buf_deinit(&id);
    return same;
}

void renewals_send(struct sidecar *s, struct sidecar_queue *sq, const struct delivery *d)
{
    struct link_renewals *r = &sq->link->renewals;
    struct renewal_out *one = &r->out[r->n_out];
    const struct message *m = d->arrival->message;
    struct slice queue = slice_of(sq->config->queue), properties;
    struct fault f = {0};

    *one = (struct renewal_out){.ref = d->ref, .queue = sq->index, .sent_ms = s->now_ms};
    buf_reset(&r->header);
    if (sender_edit(r->sender, &r->header, m->content_header, true, &properties, &f))
        one->refused = malformed;
    else if (properties.len > sender_header_max(r->sender))
        one->refused = too_long;
    else if (!keeps_id(sq, d, properties))
        one->refused = other_id;
    if (one->refused) { /* at the front, where renewals_due_ms looks */
        struct renewal_out it = *one;

        memmove(&r->out[1], &r->out[0], r->n_out++ * sizeof(*r->out));
        r->out[0] = it;
        return;
    }
    FAILPOINT(PUBLISH_BEFORE);
    r->n_out++;
    r->used_ms = s->now_ms;
    one->tag = sender_send(r->sender, &(struct sender_message){.exchange = SLICE(""),
                                                               .routing_key = queue,
                                                               .content_header = properties,
                                                               .body = {m->body, m->body_len}});
    r->wrote = true;
}

void renewals_flush(struct sidecar *s)
{
    struct fault f = {0};

    for (size_t i = 0; i < s->n_links; i++) {
        struct link_renewals *r = &s->links[i].renewals;

        if (!r->sender)
            continue;
        if (sender_flush(r->sender, &f)) {
            r->readable = true; /* sender_next reports the loss */
            continue;
        }
        FAILPOINT_IF(r->wrote, PUBLISH_SENT);
        r->wrote = false;
        wait_change(s->wait, &r->watch, EPOLLIN | (sender_wants_write(r->sender) ? EPOLLOUT : 0));
    }
}

void renewals_close(struct sidecar *s)
{
    for (size_t i = 0; i < s->n_links; i++) {
        struct link_renewals *r = &s->links[i].renewals;

        dial_deinit(s, &r->dial);
        if (r->sender)
            disconnect(s, r, "the sidecar ends");
        buf_deinit(&r->header);
    }
}
