/* The connections to the broker, one per virtual host: made, read, lost. Their events become facts for the
 * queues. */
#include "sidecar/sidecar.h"

#include "onceward/base/clock.h"
#include "onceward/base/failpoint.h"
#include "onceward/base/fault.h"
#include "onceward/base/log.h"
#include "onceward/base/mem.h"
#include "onceward/config/json.h"
#include "onceward/core/identity.h"
#include "onceward/core/message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    N_EVENTS_A_TURN = 512,
    TICK_MS = 1000,
    TICK_CLOSING_MS = 50,
    JOB_EXTRA_MS = 15000 /* for name resolution */
};

static bool is_on(const struct broker_link *k, const struct sidecar_queue *sq)
{
    return sq->link == k;
}

static void socket_ready(void *owner, uint32_t events)
{
    (void)events;
    ((struct broker_link *)owner)->readable = true;
}

/* --- facts --- */

static enum queue_kind kind_of(enum broker_kind k)
{
    switch (k) {
    case BROKER_KIND_CLASSIC:
        return KIND_CLASSIC;
    case BROKER_KIND_QUORUM:
        return KIND_QUORUM;
    default:
        return KIND_UNKNOWN;
    }
}

/* Fills in the id, the key and the fingerprint of a message. f: why it has no id, or no key. */
static struct arrival *identified(struct sidecar_queue *sq, const struct message *m, struct fault *f)
{
    const struct config_queue *q = sq->config;
    struct buf *room = &sq->sidecar->id;
    enum dead_reason no_id = identify_message(sq, m, room, f);
    struct arrival *a = arrival_new(buf_slice(room));

    a->no_id = no_id;
    fingerprint_make(m->body, m->body_len, a->fingerprint);
    if (q->order.key.n) {
        a->was_here = message_was_in(m, slice_of(q->queue));
        a->has_key = key_make(q->order.key.items, q->order.key.n, m, jsonread_id, room, a->key);
    }
    if (!a->has_key && q->order.unkeyed_is_dead && no_id == DEAD_NONE)
        identify_no_key(sq, m, f);
    return a;
}

static void delivered(struct sidecar_queue *sq, const struct broker_event *ev)
{
    struct fault f = {0};

    FAILPOINT(DELIVERED);
    struct arrival *a = ev->message ? identified(sq, ev->message, &f) : arrival_new((struct slice){0});

    a->copy = ev->copy;
    a->message = ev->message;
    queue_delivered(&sq->core, sq->sidecar->now_ms, a, f.text[0] ? f.text : NULL);
}

static const char *stream_text = "the queue is a stream: replace it with a classic or a quorum queue";

static void channel_lost(struct sidecar_queue *sq, const struct broker_event *ev)
{
    int code = ev->reason == BROKER_REASON_NO_QUEUE ? 404 : ev->reason == BROKER_REASON_FORBIDDEN ? 403 : 1;
    int64_t now_ms = sq->sidecar->now_ms;

    if (ev->reason == BROKER_REASON_STREAM) {
        queue_refused(&sq->core, now_ms, PAUSE_STREAM, stream_text);
        report_reason(sq, EVENT_REFUSED, stream_text);
    }
    if (ev->reason == BROKER_REASON_NO_QUEUE)
        arguments_forget(sq);
    snprintf(sq->depth_reason, sizeof(sq->depth_reason), "%.127s", ev->fault.text);
    queue_channel_lost(&sq->core, now_ms, code, ev->fault.text);
}

static void channel_opened(struct sidecar_queue *sq, const struct broker_event *ev)
{
    const struct broker *b = sq->link->broker;
    char *rest;
    int major = (int)strtol(broker_version(b), &rest, 10);
    int minor = *rest == '.' ? (int)strtol(rest + 1, NULL, 10) : 0;

    queue_channel_open(&sq->core, sq->sidecar->now_ms, ev->copy.tag.generation, major, minor,
                       kind_of(broker_kind_of(b, ev->queue)));
    arguments_want(sq);
}

static void of_queue(struct sidecar_queue *sq, struct broker_event *ev)
{
    struct queue *q = &sq->core;
    int64_t now_ms = sq->sidecar->now_ms;

    sq->touched = true;
    switch (ev->kind) {
    case BROKER_DELIVERY:
    case BROKER_SKIPPED:
        delivered(sq, ev);
        break;
    case BROKER_CONSUMING:
        FAILPOINT(CONSUME_ANSWERED);
        queue_refused(q, now_ms, PAUSE_STREAM, NULL);
        queue_consuming(q, now_ms, ev->copy.consumer);
        if (q->rules.ordered) /* others choose the active replica by it */
            replicas_hurry(sq->sidecar);
        break;
    case BROKER_STOPPED:
        FAILPOINT(CANCEL_ANSWERED);
        queue_stopped(q, now_ms, ev->copy.consumer);
        break;
    case BROKER_CANCELLED:
        arguments_forget(sq);
        report_reason(sq, EVENT_CANCELLED, ev->fault.text); /* BROKER_CHANNEL_LOST follows */
        break;
    case BROKER_CHANNEL_LOST:
        channel_lost(sq, ev);
        break;
    case BROKER_CHANNEL_OPEN:
        queue_refused(q, now_ms, PAUSE_STREAM, NULL); /* a stream's channel stays closed */
        channel_opened(sq, ev);
        break;
    case BROKER_DEPTH:
        snprintf(sq->depth_reason, sizeof(sq->depth_reason), "%.127s", ev->depth < 0 ? ev->fault.text : "");
        queue_depth(q, now_ms, ev->depth, ev->reason == BROKER_REASON_NO_QUEUE);
        break;
    case BROKER_KIND:
        queue_kind_known(q, kind_of(ev->queue_kind));
        break;
    default:
        break;
    }
}

static void blocked(const struct broker_link *k, const struct broker_event *ev)
{
    struct log_line line;

    log_begin(&line, EVENT_LIMITS, NULL);
    log_text(&line, "vhost", k->vhost);
    log_text(&line, "reason",
             ev->kind == BROKER_BLOCKED ? ev->fault.text : "the broker takes publishes again");
    log_end(&line);
}

/* --- the connection --- */

static struct broker_room room_of(void *context, uint32_t number, bool redelivered)
{
    struct sidecar *s = context;
    const struct sidecar_queue *sq = &s->queues[number];
    struct queue_room room;

    queue_room(&sq->core, redelivered, &room);
    return (struct broker_room){.body = room.body,
                                .whole = room.whole,
                                .urgent_count = room.near_count == INT64_MAX ? 0 : room.near_count,
                                .urgent_body = sq->config->max_message_bytes,
                                .each = room.each};
}

static void lost(struct sidecar *s, struct broker_link *k, const char *reason)
{
    wait_remove(s->wait, &k->watch);
    broker_free(k->broker);
    k->broker = NULL;
    k->readable = false;
    for (size_t i = 0; i < s->n_queues; i++)
        if (is_on(k, &s->queues[i])) {
            queue_channel_lost(&s->queues[i].core, s->now_ms, 0, reason);
            s->queues[i].touched = true;
            arguments_forget(&s->queues[i]); /* a new queue may have the name by then */
        }
    if (k->closing)
        k->closed = true;
    else
        dial_failed(s, &k->dial, reason);
}

/* Consumer timeout, which must never end on an ordered queue: the broker would take back a part of the deliveries,
 * and hand it to another consumer. The argument outranks the broker's own value and a policy. */
static int64_t timeout_of(const struct config_queue *q)
{
    int64_t twice = 2 * q->max_hold_ms;

    if (q->order.key.n)
        return twice > q->consumer_timeout_ms ? twice : q->consumer_timeout_ms;
    return q->consumer_timeout_ms == CONFIG_CONSUMER_TIMEOUT_MS ? 0 : q->consumer_timeout_ms;
}

static struct broker_queue queue_of(const struct sidecar_queue *sq)
{
    return (struct broker_queue){
        .name = sq->config->queue, .number = (uint32_t)sq->index, .timeout_ms = timeout_of(sq->config)};
}

static void begin(struct sidecar *s, struct broker_link *k)
{
    struct broker_queue *queues = mem_zalloc(s->n_queues, sizeof(*queues));
    struct fault f = {0};
    struct job *job;
    size_t n = 0;

    for (size_t i = 0; i < s->n_queues; i++)
        if (is_on(k, &s->queues[i]))
            queues[n++] = queue_of(&s->queues[i]);
    job = broker_connect(&s->config->broker, k->vhost, queues, n, s->config->instance, &f);
    free(queues);
    if (job)
        dial_began(s, &k->dial, job, s->config->broker.connect_timeout_ms + JOB_EXTRA_MS);
    else
        dial_failed(s, &k->dial, f.text);
}

static void arrive(struct sidecar *s, struct broker_link *k, void *result)
{
    struct fault f = {0};

    if (broker_attempt_take(result, &k->broker, &f)) {
        dial_fault(s, &k->dial, &f);
        return;
    }
    FAILPOINT(BROKER_CONNECTED);
    if (wait_add(s->wait, &k->watch, broker_fd(k->broker), EPOLLIN, socket_ready, k, &f)) {
        lost(s, k, f.text);
        return;
    }
    k->readable = true;
    free(k->cluster);
    k->cluster = mem_copy(broker_cluster(k->broker), strlen(broker_cluster(k->broker)));
    database_broker_is(s, k);
    dial_succeeded(s, &k->dial, broker_version(k->broker));
}

static void read_events(struct sidecar *s, struct broker_link *k)
{
    struct broker_event ev;
    struct fault f = {0};

    for (int n = 0; n < N_EVENTS_A_TURN; n++) {
        if (broker_next(k->broker, room_of, s, &ev, &f)) {
            lost(s, k, f.text);
            return;
        }
        if (ev.kind == BROKER_NOTHING) {
            k->readable = false;
            return;
        }
        if (ev.kind == BROKER_CLOSED) {
            k->closed = true;
            return;
        }
        if (ev.kind == BROKER_BLOCKED || ev.kind == BROKER_UNBLOCKED)
            blocked(k, &ev);
        else
            of_queue(&s->queues[ev.queue], &ev);
    }
}

static void watch_kind(struct sidecar_queue *sq)
{
    struct fault f = {0}; /* broker_next reports a loss */

    if (broker_kind_of(sq->link->broker, (uint32_t)sq->index) != BROKER_KIND_UNKNOWN)
        return;
    switch (queue_doubt(&sq->core, sq->sidecar->now_ms)) {
    case DOUBT_NONE:
        break;
    case DOUBT_DEPTH:
        queue_depth_asked(&sq->core, sq->sidecar->now_ms);
        broker_ask_depth(sq->link->broker, (uint32_t)sq->index, &f);
        break;
    case DOUBT_KIND:
        broker_ask_kind(sq->link->broker, (uint32_t)sq->index, &f);
        break;
    }
}

/* Must Onceward reconnect to read the broker's name again? A connection reads it once. It is given up only if each of
 * its queues is refused because of the name, and none holds deliveries, which the broker would redeliver. */
static bool must_ask_name(const struct sidecar *s, const struct broker_link *k)
{
    bool is_used = false;

    if (!s->database.inbox || k->closing || s->now_ms - k->dial.up_ms < FAILPOINT_MS(BROKER_NAME))
        return false;
    for (size_t i = 0; i < s->n_queues; i++) {
        const struct sidecar_queue *sq = &s->queues[i];

        if (!is_on(k, sq))
            continue;
        if (sq->core.drain || queue_n_held(&sq->core) ||
            !inbox_is_of_other_broker(s->database.inbox, sq->config->entry))
            return false;
        is_used = true;
    }
    return is_used;
}

static void tick(struct sidecar *s, struct broker_link *k)
{
    struct fault f = {0};

    if (s->now_ms < k->tick_ms)
        return;
    k->tick_ms = s->now_ms + (k->closing ? TICK_CLOSING_MS : TICK_MS);
    dial_time(s, &k->dial);
    k->readable = true; /* the library may have buffered input */
    for (size_t i = 0; i < s->n_queues && !k->closing; i++)
        if (is_on(k, &s->queues[i]))
            watch_kind(&s->queues[i]);
    if (must_ask_name(s, k))
        lost(s, k, "its name is not the recorded one: Onceward reconnects to read it again");
    else if (broker_tick(k->broker, &f))
        lost(s, k, f.text);
}

void brokers_step(struct sidecar *s)
{
    void *result;

    for (size_t i = 0; i < s->n_links; i++) {
        struct broker_link *k = &s->links[i];

        if (!k->broker && !k->closing && dial_is_due(s, &k->dial))
            begin(s, k);
        if (dial_result(s, &k->dial, &result))
            arrive(s, k, result);
        if (k->broker && !k->closed && k->readable)
            read_events(s, k);
        if (k->broker && !k->closed)
            tick(s, k);
    }
}

/* --- start and end --- */

static struct broker_link *link_of(struct sidecar *s, const char *vhost)
{
    for (size_t i = 0; i < s->n_links; i++)
        if (!strcmp(s->links[i].vhost, vhost))
            return &s->links[i];
    return NULL;
}

int brokers_init(struct sidecar *s, struct fault *f)
{
    s->links = mem_zalloc(s->n_queues, sizeof(*s->links)); /* enough, so that addresses stay the same */
    for (size_t i = 0; i < s->n_queues; i++) {
        struct sidecar_queue *sq = &s->queues[i];
        char *vhost;

        if (broker_vhost(&s->config->broker, sq->config, &vhost, f))
            return -1;
        sq->link = link_of(s, vhost);
        if (sq->link) {
            free(vhost);
            continue;
        }
        sq->link = &s->links[s->n_links++];
        sq->link->vhost = vhost;
        sq->link->dial = (struct dial){.peer = "broker", .vhost = vhost};
        sq->link->renewals.dial = (struct dial){.peer = "renewals", .vhost = vhost};
    }
    return 0;
}

void brokers_close(struct sidecar *s)
{
    struct fault f = {0};

    arguments_close(s);
    for (size_t i = 0; i < s->n_links; i++) {
        struct broker_link *k = &s->links[i];

        if (k->closing)
            continue;
        FAILPOINT(CLOSE_BEFORE);
        k->closing = true;
        k->tick_ms = 0;
        dial_deinit(s, &k->dial);
        if (!k->broker || broker_close(k->broker, &f))
            k->closed = true;
    }
}

bool brokers_are_closed(struct sidecar *s)
{
    for (size_t i = 0; i < s->n_links; i++)
        if (!s->links[i].closed)
            return false;
    return true;
}

void brokers_deinit(struct sidecar *s)
{
    arguments_close(s);
    for (size_t i = 0; i < s->n_links; i++) {
        struct broker_link *k = &s->links[i];

        dial_deinit(s, &k->dial);
        if (k->broker) {
            wait_remove(s->wait, &k->watch);
            broker_free(k->broker);
        }
        free(k->vhost);
        free(k->cluster);
    }
    free(s->links);
}
