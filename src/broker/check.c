/* Single checks of a queue, for commands, which may block, on the same kind of connection as for consuming. */

#include "broker/connect.h"
#include "broker/internal.h"
#include "onceward/base/clock.h"

enum { THE_QUEUE = 0 };

static struct broker_room no_room(void *context, uint32_t queue, bool redelivered)
{
    (void)context, (void)queue, (void)redelivered;
    return (struct broker_room){0};
}

/* Waits for an event of this kind. 0, or -1: lost or late. */
static int event_wait(struct broker *b, enum broker_event_kind kind, int64_t deadline_ms,
                      struct broker_event *ev, struct fault *f)
{
    while (clock_ms() < deadline_ms) {
        if (broker_next(b, no_room, NULL, ev, f))
            return -1;
        if (ev->kind == kind)
            return 0;
        if (ev->kind == BROKER_NOTHING)
            wire_wait(&b->wire, deadline_ms);
    }
    return fault_set(f, "the broker did not answer in time");
}

static int queue_check(struct broker *b, const char *queue, int64_t deadline_ms, struct fault *f)
{
    struct broker_event ev;

    if (broker_ask_depth(b, THE_QUEUE, f) || event_wait(b, BROKER_DEPTH, deadline_ms, &ev, f))
        return fault_wrap(f, "looking for queue %s", queue);
    if (ev.depth < 0) {
        *f = ev.fault;
        return fault_wrap(f, "looking for queue %s", queue);
    }
    if (broker_ask_kind(b, THE_QUEUE, f) || event_wait(b, BROKER_KIND, deadline_ms, &ev, f))
        return fault_wrap(f, "looking at queue %s", queue);
    if (ev.queue_kind != BROKER_KIND_STREAM)
        return 0;
    *f = ev.fault;
    return -1;
}

int broker_check(const struct config_broker *c, const struct config_queue *q, struct fault *f)
{
    const struct broker_queue queue = {.name = q->queue, .number = THE_QUEUE};
    int64_t deadline_ms = clock_ms() + c->connect_timeout_ms;
    struct target *t = target_new(TO_CONSUME, c, q->vhost, &queue, 1, "check", f);
    struct attempt *a = t ? attempt_wait(t, deadline_ms, f) : NULL;
    struct broker *b;
    struct broker_event ev;
    struct fault ignored;

    if (!a || broker_attempt_take(a, &b, f))
        return -1;
    int r = queue_check(b, q->queue, deadline_ms, f);
    if (broker_close(b, &ignored) == 0)
        event_wait(b, BROKER_CLOSED, deadline_ms, &ev, &ignored);
    broker_free(b);
    return r;
}
