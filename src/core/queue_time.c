/* The clock of a queue: timers, and once a second its bounds, what goes back to the broker, what is told. */
#include "core/decide.h"

#include "onceward/core/message.h"
#include "onceward/core/mutant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TICK_MS = 1000,
    TELL_MS = 1000, /* a pause is told when it has lasted for so long */
};

/* --- timers --- */

/* What is written if the database agrees that the window has ended. */
static void window_over(struct queue *q, int64_t now_ms, struct delivery *d)
{
    char text[80];

    snprintf(text, sizeof(text), "no answer within the window of %lld ms",
             (long long)q->rules.token_window_ms);
    held_say(d, text, NULL);
    d->outcome.only_expired = !MUTANT(EXTENSION_IGNORED);
    d->outcome.http_status = 0;
    d->outcome.write_crashes = d->outcome.write_unproven = -1;
    d->outcome.delay_ms = held_backoff_ms(q, d->claim.attempt);
    held_want(q, now_ms, d, OP_REVOKE);
}

/* One that did not fit goes back when there is room for it, to come again. */
static void room_timer(struct queue *q, int64_t now_ms, struct delivery *d)
{
    struct queue_room room;

    queue_room(q, &room);
    if (!q->held.n_bytes ||
        (!decide_is_near(q, d) && d->copy.n_bytes <= room.whole && pause_is_on(q, PAUSE_BYTES_FULL) == false))
        decide_requeue(q, now_ms, d);
    else
        held_wait(q, now_ms, d, OP_REQUEUE, WAIT_ROOM, now_ms + ROOM_LOOK_MS);
}

static void timer_fires(struct queue *q, int64_t now_ms, struct delivery *d)
{
    switch (d->wait) {
    case WAIT_NONE:
        if (d->op == OP_FORWARD && d->phase == PHASE_SENT && !MUTANT(WINDOW_WITHOUT_END))
            window_over(q, now_ms, d);
        break;
    case WAIT_ROOM:
        room_timer(q, now_ms, d);
        break;
    case WAIT_HELD:
        if (d->message)
            held_want(q, now_ms, d, d->op);
        else /* too large: held for max_hold */
            decide_leave(q, now_ms, d);
        break;
    case WAIT_CIRCLING:
        if (d->op == OP_REJECT)
            decide_reject(q, now_ms, d);
        else
            held_want(q, now_ms, d, d->op);
        break;
    case WAIT_DUE:
        queue_come_due(q, now_ms, d);
        break;
    default:
        held_want(q, now_ms, d, d->op);
        break;
    }
}

/* --- bounds --- */

static void update_parked(struct queue *q, int64_t now_ms)
{
    size_t n = queue_n_parked(q), most = (size_t)q->rules.max_parked;
    /* What is being released, or looked at, is here until then, and perhaps afterwards. */
    size_t n_asked = q->held.wanted[OP_RELEASE].len + q->held.sent[OP_RELEASE].len +
                     q->held.wanted[OP_CHECK].len + q->held.sent[OP_CHECK].len;
    struct note *line;
    const char *commonest = "waiting for their next attempt";

    if (pause_is_on(q, PAUSE_PARKED_FULL)) {
        if (n + n_asked < most - most / 10)
            pause_end(q, now_ms, PAUSE_PARKED_FULL);
        return;
    }
    if (n < most)
        return;
    line = held_tell(q, EVENT_PARKED_FULL, NULL);
    line->n = (int64_t)n;
    held_commonest_errors(q, &line->errors);
    if (line->errors.n)
        commonest = line->errors.items[0];
    if (q->brake.on)
        note_text(line,
                  "%zu parked while everything fails: `onceward give-up --consumer C --held` lets them die",
                  n);
    else
        note_text(line, "%zu parked; commonest: %s", n, commonest);
    pause_begin(q, now_ms, PAUSE_PARKED_FULL, line->text);
}

static void update_bytes(struct queue *q, int64_t now_ms)
{
    size_t most = q->rules.max_bytes, n = q->held.n_bytes, each = q->consumer.largest.seen;

    consumer_saw_size(&q->consumer, now_ms, 0);
    if (each < q->consumer.largest.before)
        each = q->consumer.largest.before;
    if (pause_is_on(q, PAUSE_BYTES_FULL) && (!n || (n + each <= most && n <= most / 2)))
        pause_end(q, now_ms, PAUSE_BYTES_FULL);
}

static void update_too_large(struct queue *q, int64_t now_ms)
{
    if (pause_is_on(q, PAUSE_TOO_LARGE) && now_ms >= q->too_large_until_ms)
        pause_end(q, now_ms, PAUSE_TOO_LARGE);
}

/* --- pauses that others' states make --- */

static void pause_follows(struct queue *q, int64_t now_ms, enum pause_reason r, bool on, const char *text)
{
    if (!on && pause_is_on(q, r))
        pause_end(q, now_ms, r);
    else if (on && !pause_is_on(q, r))
        pause_begin(q, now_ms, r, text);
}

/* At a limit of 1, and nothing good heard since: of interest while something waits. */
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
                  "the application is not reached");
    pause_follows(q, now_ms, PAUSE_OVERLOADED, is_slow(&q->limiter, now_ms, wants),
                  "no answer within the window");
    pause_follows(q, now_ms, PAUSE_DATABASE,
                  q->database->down_since_ms && now_ms - q->database->down_since_ms >= TELL_MS,
                  q->database->reason);
    if (pause_is_on(q, PAUSE_DATABASE))
        snprintf(q->pauses[PAUSE_DATABASE].text, sizeof(q->pauses[PAUSE_DATABASE].text), "%s",
                 q->database->reason);
}

/* Some end within a moment: those are not worth two lines. */
static bool is_told_at_once(enum pause_reason r)
{
    return r != PAUSE_APPLICATION && r != PAUSE_OVERLOADED && r != PAUSE_BYTES_FULL;
}

static void tell_pauses(struct queue *q, int64_t now_ms)
{
    for (int r = 0; r < N_PAUSE_REASONS; r++) {
        struct queue_pause *p = &q->pauses[r];

        if (!q->ready && (r == PAUSE_APPLICATION || r == PAUSE_DATABASE))
            continue; /* before its first start a queue waits: the shell tells that in another way */
        if (MUTANT(PAUSE_UNTOLD) || !p->since_ms || p->told ||
            (!is_told_at_once(r) && now_ms - p->since_ms < TELL_MS))
            continue;
        struct note *n = held_tell(q, EVENT_PAUSED, NULL);

        p->told = true;
        n->reason = pause_reasons[r].name;
        note_text(n, "%s", p->text);
    }
}

/* --- what goes back --- */

static void tell_returned(struct queue *q, int64_t n, const char *why)
{
    struct note *note;

    if (!n)
        return;
    note = held_tell(q, EVENT_RETURNED, NULL);
    note->n = n;
    note_text(note, "%s", why);
}

/* It only waits here, or its letter cannot be begun, or an application keeps its row locked: no request is
 * out. */
static bool may_leave(const struct queue *q, const struct delivery *d)
{
    if (d->request.out || d->phase != PHASE_WANTED || operation_info(d->op)->link == LINK_BROKER)
        return d->wait == WAIT_ROOM;
    return held_is_idle(d) || d->wait == WAIT_LOCKED || d->wait == WAIT_BRAKE ||
           (d->op == OP_BURY && d->outcome.rowless && !database_is_up(q->database));
}

/* Its row stays locked beyond max_hold: the row is left as it is. What is near the delivery limit is stored
 * whole, and does not count as returned. */
static bool leaves_old(struct queue *q, int64_t now_ms, struct delivery *d)
{
    bool near = decide_is_near(q, d), locked = d->wait == WAIT_LOCKED;

    if (locked && near && d->message && database_is_up(q->database))
        decide_bury_held(q, now_ms, d);
    else if (locked && !near && !held_is_idle(d))
        decide_requeue(q, now_ms, d);
    else if (!locked || !near)
        return decide_leave(q, now_ms, d) && !near;
    return !near;
}

static void return_old(struct queue *q, int64_t now_ms)
{
    int64_t n = 0;

    for (struct link *k = q->held.unacked.head.next, *next; k != &q->held.unacked.head; k = next) {
        struct delivery *d = container_of(k, struct delivery, in_tags);

        next = k->next;
        if (now_ms - d->copy.received_ms < q->rules.max_hold_ms || MUTANT(HOLD_WITHOUT_END))
            break; /* in the order of arrival */
        if (may_leave(q, d))
            n += leaves_old(q, now_ms, d);
    }
    tell_returned(q, n, "held for max_hold");
}

/* A pause in which nothing here can go, that somebody else may not have. */
static int64_t paused_since_ms(const struct queue *q)
{
    static const enum pause_reason pauses[] = {PAUSE_APPLICATION, PAUSE_OVERLOADED, PAUSE_OPERATOR,
                                               PAUSE_EVERYTHING_FAILS};
    int64_t since = INT64_MAX;

    for (size_t i = 0; i < sizeof(pauses) / sizeof(pauses[0]); i++)
        if (pause_is_on(q, pauses[i]) && q->pauses[pauses[i]].since_ms < since)
            since = q->pauses[pauses[i]].since_ms;
    return since;
}

/* It may go to somebody else. */
static bool is_left(const struct queue *q, const struct delivery *d)
{
    return (held_is_idle(d) || d->wait == WAIT_BRAKE) && !decide_is_near(q, d);
}

/* One stays to try with, where only a message can tell how the application is: one that may be tried soon. */
static const struct delivery *stays_to_try(const struct queue *q)
{
    const struct delivery *first = NULL;

    if (q->application->gone || q->application->probe.failing || q->lever.paused)
        return NULL;
    for (struct link *k = q->held.unacked.head.next; k != &q->held.unacked.head; k = k->next) {
        const struct delivery *d = container_of(k, struct delivery, in_tags);

        if (!d->message || d->wait == WAIT_FOLLOWING || !is_left(q, d))
            continue;
        if (!q->brake.on || !d->copy.redelivered)
            return d;
        if (!first)
            first = d;
    }
    return first;
}

static void leave_to_others(struct queue *q, int64_t now_ms)
{
    const struct delivery *stays;
    int64_t since = paused_since_ms(q), n = 0;

    /* What everybody does at the same time is of no use to anybody: a levered pause holds for all replicas.
     */
    q->left_to_others = since != INT64_MAX && now_ms - since >= q->rules.pause_hold_ms &&
                        (q->n_others > 0 || MUTANT(RETURNED_TO_NOBODY)) && database_is_up(q->database) &&
                        !q->lever.paused && !q->drain;
    if (!q->left_to_others || q->consumer.state == CONSUMER_ACTIVE)
        return;
    stays = stays_to_try(q);
    for (struct link *k = q->held.unacked.head.next, *next; k != &q->held.unacked.head; k = next) {
        struct delivery *d = container_of(k, struct delivery, in_tags);

        next = k->next;
        if (d != stays && is_left(q, d))
            n += decide_leave(q, now_ms, d);
    }
    tell_returned(q, n, "a pause has lasted for pause_hold, and another replica consumes");
}

static int by_due(const void *a, const void *b)
{
    const struct delivery *x = *(struct delivery *const *)a, *y = *(struct delivery *const *)b;

    return x->timer_ms < y->timer_ms ? 1 : x->timer_ms > y->timer_ms ? -1 : 0;
}

/* What waits for longer than pause_hold may fill half of max_parked: beyond that the latest due go back, so
 * that others pass; under the same rule as every return, somebody else could take it, or it makes room here.
 */
static void return_crowded(struct queue *q, int64_t now_ms)
{
    struct list *l = &q->held.waiting[WAIT_DUE];
    size_t n = 0, most = (size_t)q->rules.max_parked / 2;
    struct delivery **late;

    if (l->len <= most || q->drain || !database_is_up(q->database) ||
        now_ms - q->flow.crowded_ms < q->rules.pause_hold_ms)
        return;
    /* Alone on a queue that puts what is returned to its front, they would come right back. */
    if (!q->n_others && !(q->returns.kind == KIND_QUORUM && returns_limit(&q->returns) == LIMIT_UNKNOWN))
        return;
    late = calloc(l->len, sizeof(*late));
    if (!late)
        return;
    list_each(l, k)
    {
        struct delivery *d = container_of(k, struct delivery, in_list);

        if (d->timer_slot && d->timer_ms - now_ms > q->rules.pause_hold_ms && held_is_idle(d) &&
            !decide_is_near(q, d))
            late[n++] = d;
    }
    if (n > most) {
        qsort(late, n, sizeof(*late), by_due);
        for (size_t i = 0; i < n - most; i++)
            decide_leave(q, now_ms, late[i]);
        q->flow.crowded_ms = now_ms;
        tell_returned(q, (int64_t)(n - most), "not due for long, and they would keep others from coming");
    }
    free(late);
}

/* --- what is asked --- */

/* A row that stays locked for longer than the window: who holds it is told once an interval. */
static void ask_holder(struct queue *q, int64_t now_ms)
{
    if (q->asks.holder || now_ms - q->asks.holder_ms < q->rules.stats_interval_ms)
        return;
    list_each(&q->held.waiting[WAIT_LOCKED], k)
    {
        struct delivery *d = container_of(k, struct delivery, in_list);

        if (!d->locked_since_ms || now_ms - d->locked_since_ms <= q->rules.token_window_ms)
            continue;
        q->asks.holder = d->ref;
        q->asks.holder_ms = now_ms;
        return;
    }
}

static void watch_consumer(struct queue *q, int64_t now_ms)
{
    struct consumer_watch *w = &q->consumer.watch;
    enum consumer_remedy what;
    struct note *n;

    if (q->drain || !q->generation)
        return;
    what = consumer_watch(&q->consumer, now_ms, q->rules.stuck_ms, q->rules.stuck_again_ms);
    if (what == REMEDY_ASK_DEPTH) {
        q->asks.depth = true;
        w->asked_ms = now_ms;
        return;
    }
    if (what == REMEDY_NONE)
        return;
    n = held_tell(q, what == REMEDY_STANDBY ? EVENT_STANDBY : EVENT_STUCK, NULL);
    n->n = w->depth;
    n->ms = now_ms - w->since_ms;
    note_text(n, "%s", w->stuck_for);
    if (what == REMEDY_REOPEN)
        q->asks.reopen = w->stuck_for;
}

/* --- drain --- */

/* Idle ones go back once nothing new can come; what is out may finish until the end of the grace. */
static void drain_idle(struct queue *q, int64_t now_ms)
{
    for (struct link *k = q->held.unacked.head.next, *next; k != &q->held.unacked.head; k = next) {
        struct delivery *d = container_of(k, struct delivery, in_tags);

        next = k->next;
        if (d->wait == WAIT_FOLLOWING && d->leader && !held_is_idle(d->leader) && q->drain == DRAIN_FINISHING)
            continue; /* it may yet be acked with the one that is in flight */
        if (operation_info(d->op)->link == LINK_BROKER) {
            if (d->wait != WAIT_NONE)
                held_want(q, now_ms, d, d->op);
            continue;
        }
        if (held_is_idle(d))
            decide_leave(q, now_ms, d);
    }
}

/* The grace is over: the attempts are given back. With transaction completion the fence makes it safe for the
 * next holder to begin at once; with response completion it must not before the window would have ended,
 * since the application may still be at work. */
static void drain_out(struct queue *q, int64_t now_ms)
{
    for (struct link *k = q->held.unacked.head.next, *next; k != &q->held.unacked.head; k = next) {
        struct delivery *d = container_of(k, struct delivery, in_tags);

        next = k->next;
        if (d->ended || !(d->request.out || d->op == OP_CHECK) || d->op == OP_REVOKE)
            continue;
        held_say(d, "the sidecar stopped before it was answered", NULL);
        decide_release(q, now_ms, d, q->rules.transaction ? 0 : -TAKEOVER_GRACE_MS, -1, -1);
        if (!d->ended)
            d->outcome.then_requeue = true;
    }
}

/* What the broker would drop when it is given back, and whose row somebody has locked all the time: it is
 * stored whole, and the row is left as it is. */
static void drain_near(struct queue *q, int64_t now_ms)
{
    for (struct link *k = q->held.unacked.head.next, *next; k != &q->held.unacked.head; k = next) {
        struct delivery *d = container_of(k, struct delivery, in_tags);

        next = k->next;
        if (d->ended || d->wait != WAIT_LOCKED || !d->message || !decide_is_near(q, d) ||
            !database_is_up(q->database) || MUTANT(DRAIN_DROPS_LOCKED))
            continue;
        decide_bury_held(q, now_ms, d);
    }
}

/* The last resort, with a database that does not answer: rows stay as they are. Closing with them unacked
 * would cost every one of them a delivery on some brokers, and a requeue on fewer. */
static void drain_all(struct queue *q, int64_t now_ms)
{
    for (struct link *k = q->held.unacked.head.next, *next; k != &q->held.unacked.head; k = next) {
        struct delivery *d = container_of(k, struct delivery, in_tags);

        next = k->next;
        if (!d->ended && operation_info(d->op)->link != LINK_BROKER)
            decide_requeue(q, now_ms, d);
    }
}

static void step_drain(struct queue *q, int64_t now_ms)
{
    enum { HELD_RETURN_MS = 3000, LEAVE_MS = 500 };
    bool stopped = q->consumer.state == CONSUMER_NONE || !q->generation;

    if (q->drain == DRAIN_NO || q->drain == DRAIN_DONE || MUTANT(DRAIN_WITHOUT_END))
        return;
    if (q->drain == DRAIN_RELEASING)
        drain_out(q, now_ms);
    if (q->drain == DRAIN_RELEASING && q->drain_until_ms - now_ms <= HELD_RETURN_MS / 2)
        drain_near(q, now_ms);
    if (stopped && q->drain <= DRAIN_RELEASING)
        drain_idle(q, now_ms);
    if (q->drain == DRAIN_FINISHING && now_ms >= q->drain_until_ms) {
        q->drain = DRAIN_RELEASING;
        q->drain_until_ms = now_ms + HELD_RETURN_MS;
    } else if (q->drain == DRAIN_RELEASING && now_ms >= q->drain_until_ms) {
        q->drain = DRAIN_LEAVING;
        q->drain_until_ms = now_ms + LEAVE_MS;
    } else if (q->drain == DRAIN_LEAVING) {
        drain_all(q, now_ms);
    }
    if ((stopped && !queue_n_held(q)) || (q->drain == DRAIN_LEAVING && now_ms >= q->drain_until_ms))
        q->drain = DRAIN_DONE;
}

void queue_drain(struct queue *q, int64_t now_ms, int64_t until_ms)
{
    struct note *n;

    if (q->drain == DRAIN_FINISHING && until_ms < q->drain_until_ms)
        q->drain_until_ms = until_ms;
    if (q->drain)
        return;
    q->drain = DRAIN_FINISHING;
    q->drain_until_ms = until_ms;
    n = held_tell(q, EVENT_DRAINING, NULL);
    n->n = (int64_t)queue_n_held(q);
    n->ms = until_ms - now_ms;
}

void queue_hurry(struct queue *q, int64_t now_ms)
{
    if (q->drain == DRAIN_FINISHING)
        q->drain_until_ms = now_ms;
}

/* --- the clock --- */

static void tick(struct queue *q, int64_t now_ms)
{
    if (now_ms < q->tick_ms)
        return;
    q->tick_ms = now_ms + TICK_MS;
    return_old(q, now_ms);
    leave_to_others(q, now_ms);
    return_crowded(q, now_ms);
    watch_consumer(q, now_ms);
    ask_holder(q, now_ms);
}

/* The database works again: what it has refused is asked for at once. */
static void update_database(struct queue *q, int64_t now_ms)
{
    bool works = database_is_up(q->database);

    if (works && !q->database_worked)
        decide_again(q, now_ms);
    q->database_worked = works;
}

void queue_time(struct queue *q, int64_t now_ms)
{
    struct delivery *d;

    update_database(q, now_ms);
    while ((d = held_take_due(q, now_ms)))
        timer_fires(q, now_ms, d);
    limiter_busy(&q->limiter, now_ms, (int)q->held.n_out,
                 q->held.wanted[OP_CLAIM].len + q->held.wanted[OP_FORWARD].len > 0);
    update_parked(q, now_ms);
    update_bytes(q, now_ms);
    update_too_large(q, now_ms);
    update_pauses(q, now_ms);
    tell_pauses(q, now_ms);
    tick(q, now_ms);
    step_drain(q, now_ms);
}
