/* The clock of a queue: timers, and the once-a-second work: bounds, returns to the broker, log lines. */
#include "core/batches.h"
#include "core/handover.h"
#include "core/life.h"
#include "core/notes.h"
#include "core/order.h"
#include "core/pauses.h"
#include "core/renewals.h"
#include "core/steps.h"

#include "onceward/core/message.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum {
    TICK_MS = 1000,
    TELL_MS = 1000, /* a pause is logged after it has lasted this long */
};

/* --- timers --- */

static void request_timer(struct queue *q, int64_t now_ms, struct request *r)
{
    assert(r->members.len > 0);
    request_is_overdue(q, r);
    if (batches_are_on(q))
        batches_unanswered(r);
    list_each(&r->members, k)
    {
        struct delivery *d = container_of(k, struct delivery, in_request);

        if (d->op == OP_FORWARD) /* the others are being revoked already */
            life_go(q, now_ms, d, FACT_WINDOW, life_window_over(q, d));
    }
}

static void timer_fires(struct queue *q, int64_t now_ms, struct timer *t)
{
    if (t->owner == TIMER_OF_REQUEST) {
        request_timer(q, now_ms, container_of(t, struct request, timer));
        return;
    }
    struct delivery *d = container_of(t, struct delivery, timer);

    life_go(q, now_ms, d, FACT_DUE, life_due(q, now_ms, d));
}

/* --- bounds --- */

/* The bound for copies of held messages: a publisher that repeats itself must not keep others from arriving. */
static size_t surplus_bound(const struct queue *q)
{
    size_t fitting = q->rules.max_bytes / SURPLUS_BYTES, least = (size_t)q->rules.max_parked;

    return fitting > least ? fitting : least;
}

/* Adds this queue's part to the sums over all partitions. */
static void say_to_share(struct queue *q, int64_t now_ms)
{
    bool wants = queue_wants_slot(q), hangs = queue_may_hang(q, now_ms);
    size_t n_parked = queue_n_parked(q);

    q->share->n_wanting += (size_t)wants - q->said.wants;
    q->share->n_hanging += (size_t)hangs - q->said.hangs;
    q->share->n_parked += n_parked - q->said.n_parked;
    q->said.wants = wants;
    q->said.hangs = hangs;
    q->said.n_parked = n_parked;
    assert(q->share->n_wanting <= q->share->n_queues && q->share->n_hanging <= q->share->n_queues);
}

static void update_parked(struct queue *q, int64_t now_ms)
{
    size_t n = q->share->n_parked, most = (size_t)q->rules.max_parked;
    /* Deliveries that are being released or checked stay here until that ends, and perhaps afterwards. */
    size_t n_asked = q->held.wanted[OP_RELEASE].len + q->held.sent[OP_RELEASE].len +
                     q->held.wanted[OP_CHECK].len + q->held.sent[OP_CHECK].len;
    struct note *line;
    const char *commonest = "waiting for their next attempt";

    if (pause_is_on(q, PAUSE_PARKED_FULL)) {
        if (n + n_asked < most - most / 10 &&
            q->held.waiting[WAIT_SURPLUS].len < surplus_bound(q) - surplus_bound(q) / 10)
            pause_end(q, now_ms, PAUSE_PARKED_FULL);
        return;
    }
    if (n < most && q->held.waiting[WAIT_SURPLUS].len < surplus_bound(q))
        return;
    line = notes_tell(q, EVENT_PARKED_FULL, NULL);
    line->n = (int64_t)n;
    error_text_commonest(q, &line->errors);
    if (line->errors.n)
        commonest = line->errors.items[0];
    if (q->share->brake.on)
        note_text(line,
                  "%zu parked while everything fails: `onceward give-up --consumer C --held` makes dead "
                  "letters of them",
                  n);
    else
        note_text(line, "%zu parked; most frequent: %s", n, commonest);
    pause_begin(q, now_ms, PAUSE_PARKED_FULL, line->text);
}

static void update_bytes(struct queue *q, int64_t now_ms)
{
    size_t most = q->rules.max_bytes, n = q->share->n_bytes, each = q->consumer.largest.seen;

    consumer_saw_size(&q->consumer, now_ms, 0);
    if (each < q->consumer.largest.before)
        each = q->consumer.largest.before;
    if (pause_is_on(q, PAUSE_BYTES_FULL) && (!n || (n + each <= most && n <= most / 2)))
        pause_end(q, now_ms, PAUSE_BYTES_FULL);
}

/* --- pauses that follow the state of others --- */

static void pause_follows(struct queue *q, int64_t now_ms, enum pause_reason r, bool on, const char *text)
{
    if (!on && pause_is_on(q, r))
        pause_end(q, now_ms, r);
    else if (on && !pause_is_on(q, r))
        pause_begin(q, now_ms, r, text);
}

/* Has the limiter stayed at 1 without a good answer? Relevant only while messages wait. */
static bool is_slow(const struct limiter *l, int64_t now_ms, bool wants)
{
    return l->slow_since_ms && (wants || now_ms < l->wait_until_ms);
}

static void update_pauses(struct queue *q, int64_t now_ms)
{
    const struct application *a = q->application;
    bool wants = queue_n_held(q) > 0;

    pause_follows(q, now_ms, PAUSE_APPLICATION,
                  a->gone || a->probe.failing || is_slow(&a->limiter, now_ms, wants),
                  "the application cannot be reached");
    pause_follows(q, now_ms, PAUSE_OVERLOADED, is_slow(&q->share->limiter, now_ms, wants),
                  "no answer within the window");
    pause_follows(q, now_ms, PAUSE_DATABASE,
                  q->database->down_since_ms && now_ms - q->database->down_since_ms >= TELL_MS,
                  q->database->reason);
    if (pause_is_on(q, PAUSE_DATABASE))
        snprintf(q->pauses[PAUSE_DATABASE].text, sizeof(q->pauses[PAUSE_DATABASE].text), "%s",
                 q->database->reason);
}

/* Is the pause logged at once? Some end within a moment, and are not worth two lines. */
static bool is_told_at_once(enum pause_reason r)
{
    return r != PAUSE_APPLICATION && r != PAUSE_OVERLOADED && r != PAUSE_BYTES_FULL;
}

static void tell_pauses(struct queue *q, int64_t now_ms)
{
    for (int r = 0; r < N_PAUSE_REASONS; r++) {
        struct queue_pause *p = &q->pauses[r];

        if (!q->ready && (r == PAUSE_APPLICATION || r == PAUSE_DATABASE))
            continue; /* before the first start the shell logs what a queue waits for */
        if (!p->since_ms || p->told || (!is_told_at_once(r) && now_ms - p->since_ms < TELL_MS))
            continue;
        p->told = true;
        if (!pause_is_first(q, (enum pause_reason)r))
            continue;
        struct note *n = notes_tell(q, EVENT_PAUSED, NULL);

        n->reason = pause_reasons[r].name;
        note_text(n, "%s", p->text);
    }
}

/* --- questions --- */

/* Asks for the lock's owner once per interval, if a row stays locked longer than the window, to log it. */
static void ask_lock_holder(struct queue *q, int64_t now_ms)
{
    if (q->asks.lock_holder || now_ms - q->asks.lock_holder_ms < q->rules.stats_interval_ms)
        return;
    list_each(&q->held.waiting[WAIT_LOCKED], k)
    {
        struct delivery *d = container_of(k, struct delivery, in_list);

        if (!d->claim->locked_since_ms || now_ms - d->claim->locked_since_ms <= q->rules.token_window_ms)
            continue;
        q->asks.lock_holder = d->ref;
        q->asks.lock_holder_ms = now_ms;
        return;
    }
}

static void watch_consumer(struct queue *q, int64_t now_ms)
{
    struct consumer_watch *w = &q->consumer.watch;
    enum consumer_remedy what;
    struct note *n;

    if (q->drain || !q->generation || handover_is_standby(q))
        return;
    what = consumer_watch(&q->consumer, now_ms, q->rules.stuck_ms, q->rules.stuck_again_ms);
    if (what == REMEDY_ASK_DEPTH) {
        q->asks.depth = true;
        w->asked_ms = now_ms;
        return;
    }
    if (what == REMEDY_NONE)
        return;
    n = notes_tell(q, what == REMEDY_STANDBY ? EVENT_STANDBY : EVENT_STUCK, NULL);
    n->n = w->depth;
    n->ms = now_ms - w->since_ms;
    note_text(n, "%s", w->stuck_for);
    if (what == REMEDY_REOPEN)
        q->asks.reopen = w->stuck_for;
}

/* --- the clock --- */

static void work_each_second(struct queue *q, int64_t now_ms)
{
    if (now_ms < q->tick_ms)
        return;
    q->tick_ms = now_ms + TICK_MS;
    return_step(q, now_ms);
    watch_consumer(q, now_ms);
    if (q->rules.ordered) {
        handover_step(q, now_ms);
        order_watch(q, now_ms);
    }
    ask_lock_holder(q, now_ms);
}

/* The database works again: refused statements are repeated at once. */
static void update_database(struct queue *q, int64_t now_ms)
{
    bool works = database_is_up(q->database);

    if (works && !q->database_worked)
        life_try_again(q, now_ms);
    q->database_worked = works;
}

void queue_time(struct queue *q, int64_t now_ms)
{
    struct timer *t;

    update_database(q, now_ms);
    while ((t = timers_take_due(&q->held.timers, now_ms)))
        timer_fires(q, now_ms, t);
    say_to_share(q, now_ms);
    limiter_busy(&q->share->limiter, now_ms,
                 (int)(q->share->n_in_flight + slots_of(q->share->accepted_units)), q->share->n_wanting > 0,
                 q->share->n_hanging > 0);
    life_follow_breaker(q, now_ms);
    update_parked(q, now_ms);
    update_bytes(q, now_ms);
    renewals_time(q, now_ms);
    update_pauses(q, now_ms);
    tell_pauses(q, now_ms);
    work_each_second(q, now_ms);
    drain_step(q, now_ms);
    order_step(q, now_ms);
}
