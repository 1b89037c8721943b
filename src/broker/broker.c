/* A connection for the queues of a virtual host: its start, its end, and information that needs no method.
 *
 * Invariants: after wire.is_lost nothing is sent or read. Only frames.c reads, and every write goes to wire.out. An
 * event that is not returned at once waits in `events`; before that, events of a channel wait in its `held` while the
 * kind of its queue is asked for. `numbers` has the user of each AMQP channel number; a channel that does not answer
 * loses its number and gets another one. */

#include "broker/connect.h"
#include "broker/internal.h"
#include "onceward/base/clock.h"
#include "onceward/base/job.h"
#include "onceward/base/mem.h"
#include "onceward/base/random.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct job *broker_connect(const struct config_broker *c, const char *vhost,
                           const struct broker_queue *queues, size_t n_queues, const char *instance,
                           struct fault *f)
{
    struct target *t = target_new(TO_CONSUME, c, vhost, queues, n_queues, instance, f);

    if (!t)
        return NULL;
    struct job *job = job_start(attempt_run, attempt_drop, t);
    if (!job) {
        fault_set(f, "no thread could be started to connect to the broker: %s", strerror(errno));
        target_free(t);
    }
    return job;
}

/* --- start --- */

static void queue_add(struct broker *b, size_t i, struct broker_queue *q)
{
    struct channel *c = &b->queues[i];

    assert(q->number < b->n_by_queue && !b->by_queue[q->number]);
    b->by_queue[q->number] = c;
    c->queue = (char *)(uintptr_t)q->name;
    c->queue_number = q->number;
    c->timeout_ms = q->timeout_ms;
    c->kind =
        q->kind == BROKER_KIND_STREAM ? BROKER_KIND_UNKNOWN : q->kind; /* a former stream is checked again */
    c->kind_ms = clock_ms();
    q->name = NULL;
    channel_init(b, c, (uint16_t)(i + 1));
}

static size_t numbers_max(const struct queue_list *l)
{
    size_t n = 0;

    for (size_t i = 0; i < l->n; i++)
        if (l->items[i].number >= n)
            n = (size_t)l->items[i].number + 1;
    return n;
}

/* Makes a broker from the parts of the attempt. */
static struct broker *broker_new(struct attempt *a, size_t n_channels)
{
    struct broker *b = mem_zalloc(1, sizeof(*b));
    size_t n = a->queues.n;

    random_bytes(&b->unique, sizeof(b->unique));
    b->filling = 1;
    b->wire = a->wire;
    b->version = a->version;
    b->cluster = a->cluster;
    a->wire = (struct wire){.fd = -1};
    a->version = a->cluster = NULL;
    b->n_queues = n;
    b->queues = mem_zalloc(n, sizeof(*b->queues));
    b->n_by_queue = numbers_max(&a->queues);
    b->by_queue = mem_zalloc(b->n_by_queue, sizeof(struct channel *));
    b->asked = mem_zalloc(n + 1, sizeof(*b->asked));
    b->n_numbers = n + 2 + CHANNELS_SPARE < n_channels + 1 ? n + 2 + CHANNELS_SPARE : n_channels + 1;
    b->numbers = mem_zalloc(b->n_numbers, sizeof(*b->numbers));
    for (size_t i = 0; i < n; i++)
        queue_add(b, i, &a->queues.items[i]);
    channel_init(b, &b->ask, (uint16_t)(n + 1));
    return b;
}

int broker_attempt_take(void *result, struct broker **ret_broker, struct fault *f)
{
    struct attempt *a = result;
    int r = 0;

    if (!a->wire.connection) {
        *f = a->fault;
        r = -1;
    } else {
        size_t n_channels = (size_t)amqp_get_channel_max(a->wire.connection);

        if (a->queues.n + 1 <= n_channels)
            *ret_broker = broker_new(a, n_channels);
        else
            r = fault_set(f,
                          "the broker allows %zu channels on a connection (its channel_max), and %zu queues "
                          "need %zu",
                          n_channels, a->queues.n, a->queues.n + 1);
    }
    attempt_free(a);
    return r;
}

void broker_free(struct broker *b)
{
    struct fault ignored;

    if (!b)
        return;
    if (!b->wire.is_lost && b->closing < CLOSE_SENT) {
        out_flush(b, &ignored);
        connection_close(b);
        wire_flush(&b->wire, &ignored);
    }
    for (size_t i = 0; i < b->n_queues; i++) {
        content_drop(&b->queues[i].content);
        events_free(&b->queues[i].held);
        free(b->queues[i].queue);
    }
    events_free(&b->events);
    wire_deinit(&b->wire);
    free(b->queues);
    free(b->by_queue);
    free(b->numbers);
    free(b->asked);
    free(b->version);
    free(b->cluster);
    free(b);
}

/* --- information --- */

int broker_fd(const struct broker *b)
{
    return b->wire.is_lost ? -1 : b->wire.fd;
}

const char *broker_version(const struct broker *b)
{
    return b->version;
}

const char *broker_cluster(const struct broker *b)
{
    return b->cluster;
}

bool broker_can_write(const struct broker *b, uint32_t queue, size_t n)
{
    enum { SMALL_BYTES = 33 }; /* a requeue with its tx.commit */
    const struct channel *c = channel_of_queue(b, queue);
    size_t share = OUT_MAX / b->n_queues > SHARE_MIN ? OUT_MAX / b->n_queues : SHARE_MIN;
    size_t written = c->written_in == b->filling ? c->n_written : 0;

    return !b->wire.is_lost &&
           (wire_pending(&b->wire) == 0 || (n < share / SMALL_BYTES && written + n * SMALL_BYTES <= share));
}

bool broker_wants_write(const struct broker *b)
{
    return !b->wire.is_lost && wire_pending(&b->wire) > 0;
}

bool broker_channel_is_open(const struct broker *b, uint32_t queue)
{
    return !b->wire.is_lost && b->closing == CLOSE_NO && channel_of_queue(b, queue)->state == CHANNEL_OPEN;
}

enum broker_kind broker_kind_of(const struct broker *b, uint32_t queue)
{
    return channel_of_queue(b, queue)->kind;
}
