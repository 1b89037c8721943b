/* The connections to the broker and to the database: made by jobs, again and again for ever; what they bring;
 * and what becomes of the deliveries when one is lost. */
#include "worker.h"

#include "onceward/base/random.h"
#include "onceward/core/backoff.h"

#include <stdio.h>
#include <string.h>

enum {
    PROVEN_MS = 10000, /* a connection that lives for so long forgets the failures before it */
    REDIAL_FIRST_MS = 250,
    JOB_EXTRA_MS = 15000,  /* beyond the connect timeout, for name resolution and the first statements */
    N_HOSTS = 4,           /* of database.url: each may take the whole connect timeout */
    PAUSE_AFTER_MS = 1000, /* without a database */
};

static int64_t redial_later(struct worker *w, struct redial *r, const char *reason)
{
    int64_t wait =
        backoff_ms(REDIAL_FIRST_MS, FAILPOINT_MS(REDIAL_LAST), ++r->n_failures, random_below(UINT64_MAX));

    r->at_ms = w->now_ms + wait;
    r->up_ms = 0;
    if (!r->since_ms)
        r->since_ms = w->now_ms;
    snprintf(r->reason, sizeof(r->reason), "%.*s", (int)sizeof(r->reason) - 1, reason);
    return wait;
}

static void redial_failed(struct worker *w, struct redial *r, const char *peer, const char *reason)
{
    struct log_line l;
    int64_t wait = redial_later(w, r, reason);

    if (report_waiting(w, r == &w->to_broker ? WAITING_BROKER : WAITING_DATABASE, reason))
        return;
    log_begin(&l, EVENT_DISCONNECTED, w->q->name);
    log_text(&l, "peer", peer);
    log_text(&l, "reason", reason);
    log_int(&l, "next_try_ms", wait);
    log_end(&l);
}

static void redial_succeeded(struct worker *w, struct redial *r, const char *peer, const char *version)
{
    struct log_line l;

    waiting_over(&w->waiting, r == &w->to_broker ? WAITING_BROKER : WAITING_DATABASE);
    if (r->was_up)
        counter_add(&w->counts.reconnects, 1);
    r->was_up = true;
    log_begin(&l, EVENT_CONNECTED, w->q->name);
    log_text(&l, "peer", peer);
    if (version)
        log_text(&l, "version", version);
    if (r->since_ms)
        log_int(&l, "after_ms", w->now_ms - r->since_ms);
    log_end(&l);
    r->up_ms = w->now_ms;
    r->since_ms = 0;
}

/* Takes the job's result when it has ended. A job that is late beyond reason is given up: it owns its memory.
 */
static bool redial_result(struct worker *w, struct redial *r, const char *peer, void **result)
{
    if (job_take(r->job, result)) {
        r->job = NULL;
        return true;
    }
    if (w->now_ms > r->deadline_ms) {
        job_abandon(r->job);
        r->job = NULL;
        redial_failed(w, r, peer, "no answer within the connect timeout");
    }
    return false;
}

static bool broker_is_let_go(struct worker *w)
{
    broker_free(w->broker);
    w->broker = NULL;
    w->blocked = false;
    worker_channel_lost(w);
    if (w->n_consume_failures < 0)
        w->n_consume_failures = 0;
    if (w->drain != DRAIN_CLOSING)
        return true;
    w->drain = DRAIN_ENDED;
    return false;
}

static void broker_lost(struct worker *w, const struct fault *f)
{
    if (broker_is_let_go(w))
        redial_failed(w, &w->to_broker, "broker", f->text);
}

void worker_stream_found(struct worker *w, const struct fault *f)
{
    if (!broker_is_let_go(w))
        return;
    redial_later(w, &w->to_broker, f->text); /* the connection was good: what it leads to is not */
    w->to_broker.at_ms = w->now_ms + FAILPOINT_MS(REDIAL_LAST);
    pause_set(w, PAUSE_STREAM, f->text);
    report_text(w, EVENT_REFUSED, f->text);
}

static struct broker_room room_of(void *worker, uint32_t queue)
{
    (void)queue;
    return worker_room(worker);
}

void worker_step_broker(struct worker *w)
{
    const struct broker_queue queue = {.name = w->q->queue, .number = THE_QUEUE};
    struct redial *r = &w->to_broker;
    struct broker_event ev;
    struct fault f = {0};
    void *result;

    if (!w->broker && !r->job && w->now_ms >= r->at_ms && !w->drain) {
        r->job = broker_connect(&w->config->broker, w->q->vhost, &queue, 1, w->config->instance, &f);
        r->deadline_ms = w->now_ms + w->config->broker.connect_timeout_ms + JOB_EXTRA_MS;
        if (!r->job)
            redial_failed(w, r, "broker", f.text);
    }
    if (r->job && redial_result(w, r, "broker", &result)) {
        if (broker_attempt_take(result, &w->broker, &f)) {
            redial_failed(w, r, "broker", f.text);
        } else {
            FAILPOINT(BROKER_CONNECTED);
            worker_learn_limit(w);
            if (w->pauses & 1u << PAUSE_STREAM)
                broker_ask_kind(w->broker, THE_QUEUE, &f);
            redial_succeeded(w, r, "broker", broker_version(w->broker));
        }
    }
    w->more = w->broker;
    for (int n = 0; w->broker && n < N_DELIVERIES_A_TURN; n++) {
        if (broker_next(w->broker, room_of, w, &ev, &f)) {
            broker_lost(w, &f);
            return;
        }
        if (ev.kind == BROKER_NOTHING) {
            w->more = false;
            break;
        }
        worker_broker_event(w, &ev);
    }
}

static void inbox_lost(struct worker *w, const struct fault *f)
{
    struct link *k;

    /* A server that crashed has forgotten the claims that it had not written yet: they are made again, with
     * the same tokens. */
    while ((k = list_first(&w->states[DELIVERY_CLAIMED])))
        delivery_event(w, container_of(k, struct delivery, in_state), DELIVERY_EV_STALE);
    inbox_free(w->inbox);
    w->inbox = NULL;
    w->inbox_life++;
    w->locked_ref = 0;
    w->has_figures = false;
    w->claim_sent_us = 0;
    w->failing_ops = 0;
    redial_failed(w, &w->to_inbox, "database", f->text);
}

/* An enum inbox_attempt_result, or -1. A queue whose consumer name is not its own has no use for the connection. */
static int attempt_take(struct worker *w, void *result, struct fault *f)
{
    int code = inbox_attempt_take(result, &w->inbox, f);
    enum inbox_registration registration = code ? INBOX_REGISTERED : inbox_registration(w->inbox, 0, f);

    if (registration == INBOX_REGISTERED)
        return code;
    inbox_free(w->inbox);
    w->inbox = NULL;
    return registration == INBOX_REFUSED ? INBOX_SCHEMA : -1;
}

static void inbox_arrived(struct worker *w, void *result)
{
    struct redial *r = &w->to_inbox;
    struct fault f = {0};

    switch (attempt_take(w, result, &f)) {
    case 0:
        FAILPOINT(INBOX_CONNECTED);
        /* What earlier lives have claimed is taken over at once, however often: while it waited for its window, kills could bring it
         * to the queue's delivery limit. */
        if (w->config->instance_is_set)
            inbox_set_gone(w->inbox, (const char *const *)&w->config->instance, 1);
        redial_succeeded(w, r, "database", NULL);
        atomic_store(&w->is_fatal, false);
        w->inbox_life++;
        pause_clear(w, PAUSE_DATABASE);
        pause_clear(w, PAUSE_REFUSED);
        break;
    case INBOX_SCHEMA:
        atomic_store(&w->is_fatal, true);
        pause_set(w, PAUSE_REFUSED, f.text);
        pause_clear(w, PAUSE_DATABASE); /* it is there, and says no */
        redial_later(w, r, f.text);     /* the connection was good: what it leads to is not */
        report_text(w, EVENT_REFUSED, f.text);
        break;
    default:
        redial_failed(w, r, "database", f.text);
        break;
    }
}

static struct job *worker_connect_inbox(struct worker *w, struct fault *f)
{
    const struct config_queue *q = w->q;
    struct inbox_queue queue = {.consumer = q->consumer,
                                .vhost = w->vhost,
                                .queue = q->queue,
                                .takes_over = q->takes_over,
                                .transaction = q->transaction,
                                .token_window_ms = q->token_window_ms,
                                .max_window_ms = q->max_window_ms,
                                .max_attempts = q->max_attempts,
                                .revive = q->revive};
    struct inbox_self self = {
        .instance = w->config->instance, .number = w->started_ms, .own = w->config->instance_is_set};

    return inbox_connect(&w->config->database, &queue, 1, &self, f);
}

void worker_step_inbox(struct worker *w)
{
    struct redial *r = &w->to_inbox;
    struct inbox_row row;
    struct fault f = {0};
    struct log_line l;
    void *result;
    int got;

    if (!w->inbox && !r->job && w->now_ms >= r->at_ms) {
        r->job = worker_connect_inbox(w, &f);
        r->deadline_ms = w->now_ms + N_HOSTS * w->config->database.connect_timeout_ms + JOB_EXTRA_MS;
        if (!r->job)
            redial_failed(w, r, "database", f.text);
    }
    if (r->job && redial_result(w, r, "database", &result))
        inbox_arrived(w, result);
    if (!w->inbox)
        return;
    while ((got = inbox_next(w->inbox, &row, &f)) > 0)
        worker_row(w, &row);
    if (got < 0) {
        inbox_lost(w, &f);
        return;
    }
    struct inbox_holder holder;
    if (inbox_holder(w->inbox, &holder))
        worker_holder(w, &holder);
    if (inbox_figures(w->inbox, &w->figures)) {
        w->has_figures = true;
        worker_letters_are_weighed(w);
    }
    if (inbox_gave_up_prepared(w->inbox) && !w->said_unprepared) {
        w->said_unprepared = true;
        log_begin(&l, EVENT_LIMITS, w->q->name);
        log_text(&l, "reason",
                 "a pooler loses prepared statements: unnamed ones are used (database.prepared: off says so "
                 "at once)");
        log_end(&l);
    }
}

/* libpq's buffers never shrink: after a large letter the connection is made anew, in a moment when nothing
 * depends on it. */
static void inbox_slim(struct worker *w)
{
    if (!w->inbox || !inbox_is_swollen(w->inbox) || worker_n_out(w))
        return;
    /* A failure that is not written yet would be taken for one of the connection. */
    if (worker_n(w, DELIVERY_TO_BURY) || worker_n(w, DELIVERY_TO_FAIL) || worker_n(w, DELIVERY_WATCHING) ||
        worker_n(w, DELIVERY_TO_CHECK))
        return;
    for (int s = 0; s < N_DELIVERY_STATES; s++)
        if (delivery_is_at_database((enum delivery_state)s) && worker_n(w, (enum delivery_state)s))
            return;
    inbox_free(w->inbox);
    w->inbox = NULL;
    w->has_figures = false; /* some of them are the connection's */
    w->inbox_life++;
    w->claim_sent_us = 0;
    w->failing_ops = 0;
    w->to_inbox.at_ms = w->now_ms;
}

static void redial_proven(const struct worker *w, struct redial *r)
{
    if (r->up_ms && w->now_ms - r->up_ms >= PROVEN_MS)
        r->n_failures = 0;
}

bool worker_tick_connections(struct worker *w)
{
    struct fault f = {0};

    redial_proven(w, &w->to_broker);
    redial_proven(w, &w->to_inbox);
    if (w->broker && broker_tick(w->broker, &f)) {
        broker_lost(w, &f);
        return true;
    }
    inbox_slim(w);
    if (!w->inbox && w->to_inbox.since_ms && w->now_ms - w->to_inbox.since_ms >= PAUSE_AFTER_MS &&
        !atomic_load(&w->is_fatal))
        pause_set(w, PAUSE_DATABASE, w->to_inbox.reason);
    return false;
}
