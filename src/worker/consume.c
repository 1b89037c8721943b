/* The consumer: its credit, what its queue tells, and whether anything comes.
 *
 * Parked deliveries never use up the prefetch: when they hold more than half of it, the consumer is cancelled
 * and starts again under a new number on the same channel. What the old one holds stays owned and ackable,
 * and the new one has fresh credit. Bytes are bounded in the same way: the prefetch is lowered by consuming
 * again. */
#include "worker.h"

#include "onceward/base/clock.h"
#include "onceward/base/random.h"
#include "onceward/base/texts.h"
#include "onceward/core/backoff.h"

#include <inttypes.h>
#include <stdio.h>

enum { LARGEST_FORGET_MS = 60000, REGROW_MS = 1000, CONSUME_FIRST_MS = 1000, DEPTH_LATE_MS = 5000 };

struct broker_room worker_room(const struct worker *w)
{
    size_t left = w->n_held_bytes < w->q->max_bytes ? w->q->max_bytes - w->n_held_bytes : 0;
    struct broker_room room = {.body = left, .whole = left};

    /* Near the delivery limit it is stored, and that takes its body: better too much memory than a message
     * less. */
    if (w->delivery_limit) {
        room.urgent_count = delivery_near_limit(w);
        room.urgent_body = w->q->max_message_bytes;
    }
    if (!w->n_held_bytes) { /* one alone may exceed the bound, by its headers too */
        room.body = w->q->max_message_bytes;
        room.whole = SIZE_MAX;
    }
    return room;
}

static size_t largest_seen(const struct worker *w)
{
    return w->largest_seen > w->largest_before ? w->largest_seen : w->largest_before;
}

/* As many deliveries of the largest size seen lately as there is room for. */
static size_t fitting_prefetch(const struct worker *w)
{
    size_t largest = largest_seen(w), held = w->n_held_bytes;

    if (largest * (size_t)w->q->prefetch <= w->q->max_bytes / 2)
        return (size_t)w->q->prefetch;
    size_t room = w->q->max_bytes > held ? w->q->max_bytes - held : 0;
    return room / largest;
}

static size_t n_parked(const struct worker *w)
{
    return worker_n(w, DELIVERY_PARKED) + worker_n(w, DELIVERY_FOLLOWING) + worker_n(w, DELIVERY_SUSPECT);
}

/* With those whose wait is over, and that have not got their turn. */
static size_t n_waiting(const struct worker *w)
{
    return n_parked(w) + worker_n(w, DELIVERY_TO_CLAIM) + worker_n(w, DELIVERY_CLAIMING) +
           worker_n(w, DELIVERY_TO_LOOK) + worker_n(w, DELIVERY_LOOKING);
}

/* What fits, by bytes and by number. One, while one at a time is tried: the others are as well in the queue,
 * where other replicas get them. */
static int wanted_prefetch(const struct worker *w)
{
    size_t most = (size_t)(w->q->max_parked > w->q->prefetch ? w->q->max_parked : w->q->prefetch);
    size_t n = fitting_prefetch(w), room = most > n_waiting(w) ? most - n_waiting(w) : 0;

    if (n > room)
        n = room;
    if (n < 1 || worker_is_trying(w))
        return 1;
    return n < (size_t)w->q->prefetch ? (int)n : w->q->prefetch;
}

static size_t n_with_error(const struct worker *w, const char *error)
{
    size_t n = 0;

    list_each(&w->states[DELIVERY_PARKED], k)
    {
        const struct delivery *d = container_of(k, struct delivery, in_state);

        n += d->error && !strcmp(d->error, error);
    }
    return n;
}

/* The errors that most of the parked ones have, for the operator: of those that came first, and the commonest
 * first. */
static void commonest_errors(const struct worker *w, struct texts *ret)
{
    enum { LOOKED_AT = 32, TOLD = 3 };

    while (ret->n < TOLD) {
        const char *best = NULL;
        size_t best_n = 0, looked = 0;

        list_each(&w->states[DELIVERY_PARKED], k)
        {
            const struct delivery *d = container_of(k, struct delivery, in_state);

            if (++looked > LOOKED_AT)
                break;
            if (!d->error || !*d->error || texts_has(ret, d->error))
                continue;
            size_t n = n_with_error(w, d->error);

            if (n > best_n) {
                best_n = n;
                best = d->error;
            }
        }
        if (!best)
            return;
        texts_add(ret, best);
    }
}

static void parked_full(struct worker *w)
{
    struct texts errors = {0};
    struct log_line l;
    char text[256];

    commonest_errors(w, &errors);
    snprintf(text, sizeof(text), "%zu parked; commonest: %s", n_parked(w),
             errors.n ? errors.items[0] : "waiting for their next attempt");
    log_begin(&l, EVENT_PARKED_FULL, w->q->name);
    log_text(&l, "reason", text);
    log_int(&l, "n", (int64_t)n_parked(w));
    log_texts(&l, "errors", &errors);
    log_end(&l);
    texts_deinit(&errors);
    pause_set(w, PAUSE_PARKED_FULL, text);
}

static void update_parked_full(struct worker *w)
{
    bool full = w->pauses & 1u << PAUSE_PARKED_FULL;

    if (!full && n_parked(w) >= (size_t)w->q->max_parked)
        parked_full(w);
    else if (full && n_waiting(w) < (size_t)w->q->max_parked - (size_t)w->q->max_parked / 10)
        pause_clear(w, PAUSE_PARKED_FULL);
}

static void update_bytes(struct worker *w)
{
    if (w->now_ms - w->largest_since_ms > LARGEST_FORGET_MS) {
        w->largest_before = w->largest_seen;
        w->largest_seen = 0;
        w->largest_since_ms = w->now_ms;
    }
    char text[128];

    if (!(w->pauses & 1u << PAUSE_BYTES_FULL))
        return;
    if (!w->n_held_bytes ||
        (w->n_held_bytes + largest_seen(w) <= w->q->max_bytes && w->n_held_bytes <= w->q->max_bytes / 2)) {
        pause_clear(w, PAUSE_BYTES_FULL);
        return;
    }
    snprintf(text, sizeof(text), "%zu bytes are held, the largest lately has %zu, max_bytes is %zu",
             w->n_held_bytes, largest_seen(w), w->q->max_bytes);
    snprintf(w->pause_text[PAUSE_BYTES_FULL], sizeof(w->pause_text[0]), "%s", text);
}

/* Is the credit of the present consumer used up by what only waits, or larger than what fits? */
static bool needs_renewal(const struct worker *w)
{
    if (w->credit_parked > (size_t)w->consumer_prefetch / 2 || (w->consumer_is_trial && !worker_is_trying(w)))
        return true;
    size_t largest = largest_seen(w);
    if (w->consumer_prefetch > 1 && largest * (size_t)w->consumer_prefetch > w->q->max_bytes)
        return true;
    /* It grows back, when it is what limits. */
    return w->now_ms - w->renewed_ms >= REGROW_MS && w->consumer_prefetch < w->q->prefetch &&
           w->credit_used * 2 >= (size_t)w->consumer_prefetch &&
           wanted_prefetch(w) >= 2 * w->consumer_prefetch;
}

void worker_update_consumer(struct worker *w)
{
    struct fault f = {0};

    update_parked_full(w);
    update_bytes(w);
    if (!w->broker || !w->generation || !broker_channel_is_open(w->broker, THE_QUEUE) ||
        !broker_can_write(w->broker, THE_QUEUE, 2))
        return;
    bool want = worker_may_consume(w);
    if (w->consumer == CONSUMER_ACTIVE && (!want || needs_renewal(w))) {
        FAILPOINT(CANCEL_BEFORE);
        if (!broker_cancel(w->broker, THE_QUEUE, w->consumer_number, &f))
            w->consumer = CONSUMER_STOPPING;
        w->stuck_for = NULL;
        FAILPOINT(CANCEL_SENT);
    } else if (w->consumer == CONSUMER_NONE && want && w->now_ms >= w->consume_at_ms) {
        int prefetch = wanted_prefetch(w);

        FAILPOINT(CONSUME_BEFORE);
        if (broker_consume(w->broker, THE_QUEUE, w->consumer_number + 1, prefetch, &f))
            return;
        FAILPOINT(CONSUME_SENT);
        w->consumer_number++;
        w->stuck_for = NULL;
        w->consumer_prefetch = prefetch;
        w->consumer_is_trial = worker_is_trying(w);
        w->renewed_ms = w->now_ms;
        w->credit_used = w->credit_parked = 0;
        w->consumer = CONSUMER_STARTING;
    }
}

static void consumer_is_active(struct worker *w)
{
    struct log_line l;

    w->consumer = CONSUMER_ACTIVE;
    w->stuck_for = NULL;
    w->no_queue = false;
    pause_clear(w, PAUSE_STREAM);
    if (w->n_consume_failures >= 0 || w->config->log.level == LOG_DEBUG) {
        log_begin(&l, EVENT_CONSUMING, w->q->name);
        log_int(&l, "prefetch", w->consumer_prefetch);
        log_end(&l);
    }
    w->n_consume_failures = -1; /* said; the renewals of credit are not news */
    if (!atomic_exchange(&w->is_ready, true)) {
        log_begin(&l, EVENT_READY, w->q->name);
        log_end(&l);
    }
}

/* A queue that is not there, or whose node is down, and that is what the depth's absence means. */
static void note_queue(struct worker *w, const struct broker_event *ev)
{
    w->no_queue = ev->reason == BROKER_REASON_NO_QUEUE;
    if (w->no_queue) {
        w->depth = -1;
        snprintf(w->depth_reason, sizeof(w->depth_reason), "%.127s", ev->fault.text);
    }
}

static void channel_lost(struct worker *w, const struct broker_event *ev)
{
    struct log_line l;

    log_begin(&l, EVENT_DISCONNECTED, w->q->name);
    log_text(&l, "peer", "broker");
    log_text(&l, "reason", ev->fault.text);
    if (w->n_consume_failures < 0)
        w->n_consume_failures = 0;
    int64_t wait = backoff_ms(CONSUME_FIRST_MS, FAILPOINT_MS(CONSUME_LAST), ++w->n_consume_failures,
                              random_below(UINT64_MAX));
    w->consume_at_ms = w->now_ms + wait;
    log_int(&l, "next_try_ms", wait);
    log_end(&l);
}

void worker_broker_event(struct worker *w, struct broker_event *ev)
{
    struct log_line l;

    switch (ev->kind) {
    case BROKER_DELIVERY:
        FAILPOINT(DELIVERED);
        w->stuck_for = NULL;
        w->n_stuck = 0;
        w->standby = false;
        if (ev->tag.generation == w->generation)
            worker_delivery_arrives(w, ev);
        else
            message_free(ev->message);
        break;
    case BROKER_SKIPPED:
        if (ev->tag.generation == w->generation)
            worker_delivery_skipped(w, ev);
        break;
    case BROKER_CONSUMING:
        FAILPOINT(CONSUME_ANSWERED);
        if (ev->consumer == w->consumer_number && w->consumer == CONSUMER_STARTING)
            consumer_is_active(w);
        break;
    case BROKER_STOPPED:
        FAILPOINT(CANCEL_ANSWERED);
        if (ev->consumer == w->consumer_number)
            w->consumer = CONSUMER_NONE;
        break;
    case BROKER_CANCELLED:
        report_text(w, EVENT_CANCELLED, ev->fault.text); /* the loss of the channel follows */
        break;
    case BROKER_CHANNEL_LOST:
        if (w->consumer != CONSUMER_NONE || w->generation)
            channel_lost(w, ev);
        note_queue(w, ev);
        worker_channel_lost(w);
        break;
    case BROKER_CHANNEL_OPEN:
        w->generation = ev->tag.generation;
        w->consumer = CONSUMER_NONE;
        w->depth = -1; /* what it was before the interruption says nothing */
        w->depth_asked_ms = 0;
        if (!w->no_queue)
            w->depth_reason[0] = '\0';
        break;
    case BROKER_DEPTH:
        w->depth = ev->depth;
        w->depth_of_ms = w->depth_asked_ms;
        w->depth_asked_ms = 0;
        snprintf(w->depth_reason, sizeof(w->depth_reason), "%.127s", ev->depth < 0 ? ev->fault.text : "");
        if (w->no_queue && ev->depth >= 0)
            w->consume_at_ms = w->now_ms; /* it is back */
        note_queue(w, ev);
        break;
    case BROKER_KIND:
        if (ev->queue_kind == BROKER_KIND_STREAM)
            worker_stream_found(w, &ev->fault);
        break;
    case BROKER_BLOCKED:
    case BROKER_UNBLOCKED:
        w->blocked = ev->kind == BROKER_BLOCKED;
        log_begin(&l, EVENT_LIMITS, w->q->name);
        log_text(&l, "reason", w->blocked ? ev->fault.text : "the broker takes publishes again");
        log_end(&l);
        break;
    case BROKER_CLOSED:
        w->drain = w->drain ? DRAIN_ENDED : w->drain;
        break;
    case BROKER_NOTHING:
        break;
    }
}

/* --- connected, and nothing comes --- */

/* The queue's process may answer nothing, for minutes, while the connection is well: then its last depth is
 * old news. */
void worker_ask_depth(struct worker *w)
{
    struct fault f = {0};
    int64_t waited_ms = w->depth_asked_ms ? w->now_ms - w->depth_asked_ms : 0;

    if (!w->broker || !w->generation || !broker_can_write(w->broker, THE_QUEUE, 1))
        return;
    if (waited_ms >= DEPTH_LATE_MS) {
        w->depth = -1;
        snprintf(w->depth_reason, sizeof(w->depth_reason), "the broker has not answered for %" PRId64 " ms",
                 waited_ms);
    }
    if (!w->depth_asked_ms)
        w->depth_asked_ms = w->now_ms;
    broker_ask_depth(w->broker, THE_QUEUE, &f); /* a loss shows again in broker_next */
}

/* Something could come and nothing does: is that because there is nothing? The figures may be an hour apart,
 * so it is asked here too. Acted upon is only a depth from after the last delivery. */
static bool depth_is_news(struct worker *w)
{
    bool may_come = w->consumer == CONSUMER_ACTIVE && w->credit_used < (size_t)w->consumer_prefetch;
    int64_t patience_ms = FAILPOINT_MS(STUCK) / 2;

    if (!may_come)
        return true;
    bool is_old = w->depth_of_ms < w->stuck_since_ms || w->now_ms - w->depth_of_ms >= patience_ms;
    if (is_old && w->now_ms - w->stuck_since_ms >= patience_ms && !w->depth_asked_ms)
        worker_ask_depth(w);
    return w->depth_of_ms >= w->stuck_since_ms;
}

/* Why nothing can come, though something should; NULL: all is well. */
static const char *stuck_reason(const struct worker *w)
{
    switch (w->consumer) {
    case CONSUMER_STARTING:
        return "the broker does not answer that it is asked to deliver";
    case CONSUMER_STOPPING:
        return "the broker does not answer that it is asked to stop delivering";
    case CONSUMER_ACTIVE:
        return w->depth > 0 && w->credit_used < (size_t)w->consumer_prefetch
                   ? "nothing was delivered, though the queue is not empty"
                   : NULL;
    default:
        return NULL;
    }
}

void worker_watch_consumer(struct worker *w)
{
    enum { N_REMEDIES = 2, DOUBLINGS_MAX = 6 };
    struct log_line l;
    const char *reason = w->drain ? NULL : stuck_reason(w);

    if (reason != w->stuck_for) {
        w->stuck_for = reason;
        w->stuck_since_ms = w->now_ms;
    }
    if (!depth_is_news(w) || !reason || w->now_ms - w->stuck_since_ms < FAILPOINT_MS(STUCK) ||
        w->now_ms < w->stuck_at_ms)
        return;
    w->standby = w->consumer == CONSUMER_ACTIVE && w->n_stuck >= N_REMEDIES;
    log_begin(&l, w->standby ? EVENT_STANDBY : EVENT_STUCK, w->q->name);
    log_text(&l, "reason", reason);
    if (w->depth >= 0)
        log_int(&l, "depth", w->depth);
    log_int(&l, "nothing_for_ms", w->now_ms - w->stuck_since_ms);
    log_end(&l);
    w->stuck_at_ms = w->now_ms + ((int64_t)FAILPOINT_MS(STUCK_AGAIN)
                                  << (w->n_stuck < DOUBLINGS_MAX ? w->n_stuck : DOUBLINGS_MAX));
    w->n_stuck++;
    if (!w->standby)
        broker_reopen(w->broker, THE_QUEUE, reason);
}
