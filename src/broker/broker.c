/* One connection for one queue: making it, freeing it, its queue of events, and what can be asked about it
 * without sending anything.
 *
 * Invariants: after wire.is_lost nothing is sent or read. Only frames.c reads, and every write goes to
 * wire.out. An event that is not handed out at once waits in `events`; events of channel 1 wait in `held`
 * before it while a stream is suspected. */

#include "broker/connect.h"
#include "broker/internal.h"
#include "onceward/base/job.h"
#include "onceward/base/mem.h"
#include "onceward/base/random.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct queued_event *event_append(struct event_queue *q)
{
    struct queued_event *e = mem_zalloc(1, sizeof(*e));

    if (!q->first)
        q->last = &q->first;
    *q->last = e;
    q->last = &e->next;
    return e;
}

struct broker_event *event_add(struct event_queue *q, enum broker_event_kind kind)
{
    struct queued_event *e = event_append(q);

    e->event.kind = kind;
    return &e->event;
}

struct broker_event *event_add_consume(struct broker *b, enum broker_event_kind kind)
{
    return event_add(is_holding(b) ? &b->held : &b->events, kind);
}

bool event_take(struct event_queue *q, struct broker_event *ev)
{
    struct queued_event *e = q->first;

    if (!e)
        return false;
    q->first = e->next;
    *ev = e->event;
    free(e);
    return true;
}

void events_free(struct event_queue *q)
{
    struct broker_event ev;

    while (event_take(q, &ev))
        if (ev.kind == BROKER_DELIVERY)
            message_free(ev.message);
}

void held_release(struct broker *b)
{
    struct broker_event ev;

    b->stream = STREAM_NOT;
    b->n_held_bytes = 0;
    while (event_take(&b->held, &ev))
        *event_add(&b->events, ev.kind) = ev;
}

struct job *broker_connect(const struct config_broker *c, const struct config_queue *q, const char *instance,
                           struct fault *f)
{
    struct target *t = target_new(TO_CONSUME, c, q->queue, q->vhost, instance, f);

    if (!t)
        return NULL;
    struct job *job = job_start(attempt_run, attempt_drop, t);
    if (!job) {
        fault_set(f, "no thread could be started to connect to the broker: %s", strerror(errno));
        target_free(t);
    }
    return job;
}

int broker_attempt_take(void *result, struct broker **ret_broker, struct fault *f)
{
    struct attempt *a = result;

    if (!a->wire.connection) {
        *f = a->fault;
        attempt_free(a);
        return -1;
    }
    struct broker *b = mem_zalloc(1, sizeof(*b));
    random_bytes(&b->unique, sizeof(b->unique));
    b->wire = a->wire;
    b->queue = a->queue;
    b->version = a->version;
    b->consume = (struct channel){.number = CHANNEL_CONSUME, .generation = generation_next()};
    b->ask = (struct channel){.number = CHANNEL_ASK, .generation = generation_next()};
    event_add(&b->events, BROKER_CHANNEL_OPEN)->tag.generation = b->consume.generation;
    free(a->user);
    free(a);
    *ret_broker = b;
    return 0;
}

void broker_free(struct broker *b)
{
    struct fault ignored;

    if (!b)
        return;
    if (!b->wire.is_lost && b->closing < CLOSE_SENT) {
        connection_close(b);
        wire_flush(&b->wire, &ignored);
    }
    content_drop(&b->consume.content);
    content_drop(&b->ask.content);
    events_free(&b->events);
    events_free(&b->held);
    wire_deinit(&b->wire);
    free(b->queue);
    free(b->version);
    free(b);
}

int broker_fd(const struct broker *b)
{
    return b->wire.is_lost ? -1 : b->wire.fd;
}

const char *broker_version(const struct broker *b)
{
    return b->version;
}

bool broker_can_write(const struct broker *b, size_t n)
{
    size_t pending = wire_pending(&b->wire);

    return !b->wire.is_lost && (pending == 0 || (n < OUT_MAX / 32 && pending + n * 32 <= OUT_MAX));
}

bool broker_wants_write(const struct broker *b)
{
    return !b->wire.is_lost && wire_pending(&b->wire) > 0;
}

bool broker_channel_is_open(const struct broker *b)
{
    return !b->wire.is_lost && b->closing == CLOSE_NO && b->consume.state == CHANNEL_OPEN;
}
