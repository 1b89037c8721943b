/* One queue: a thread, one broker connection, one database connection, one HTTP multi handle, and one place
 * where it waits.
 *
 * A turn reads what has come (broker, database, application, timers), turns it into events of deliveries,
 * sends what has come together (forwards, batches, acks), frees what is over, and waits. Nothing in a turn
 * blocks: connections are made by jobs. Only the atomics at the top of struct worker are touched by other
 * threads. */
#include "worker/worker.h"

#include "onceward/base/clock.h"
#include "onceward/base/mem.h"
#include "onceward/base/random.h"
#include "onceward/core/backoff.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    TICK_MS = 1000,
    TICK_DRAINING_MS = 50,
    TARGET_LOOK_MS = 20,
    PROVEN_MS = 10000, /* a connection that lives for so long forgets the failures before it */
    REDIAL_FIRST_MS = 250,
    JOB_EXTRA_MS = 15000,  /* beyond the connect timeout, for name resolution and the first statements */
    N_HOSTS = 4,           /* of database.url: each may take the whole connect timeout */
    PAUSE_AFTER_MS = 1000, /* without a database */
    CLOSE_MS = 2000,
    RETURN_ALL_MS = 500,   /* for writing the returns */
    HELD_RETURN_MS = 3000, /* at the end of the grace, for the last words to database and broker */
};

/* --- connections --- */

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

    log_begin(&l, EVENT_DISCONNECTED, w->q->name);
    log_text(&l, "peer", peer);
    log_text(&l, "reason", reason);
    log_int(&l, "next_try_ms", wait);
    log_end(&l);
}

static void redial_succeeded(struct worker *w, struct redial *r, const char *peer, const char *version)
{
    struct log_line l;

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

static void broker_lost(struct worker *w, const struct fault *f)
{
    broker_free(w->broker);
    w->broker = NULL;
    w->blocked = false;
    worker_channel_lost(w);
    if (w->n_consume_failures < 0)
        w->n_consume_failures = 0;
    if (w->drain == DRAIN_CLOSING) {
        w->drain = DRAIN_ENDED;
        return;
    }
    if (strcmp(f->code, "stream") != 0) {
        redial_failed(w, &w->to_broker, "broker", f->text);
        return;
    }
    redial_later(w, &w->to_broker, f->text); /* the connection was good: what it leads to is not */
    w->to_broker.at_ms = w->now_ms + FAILPOINT_MS(REDIAL_LAST);
    pause_set(w, PAUSE_STREAM, f->text);
    report_text(w, EVENT_REFUSED, f->text);
}

static void broker_step(struct worker *w)
{
    struct redial *r = &w->to_broker;
    struct broker_event ev;
    struct fault f = {0};
    void *result;

    if (!w->broker && !r->job && w->now_ms >= r->at_ms && !w->drain) {
        r->job = broker_connect(&w->config->broker, w->q, w->config->instance, &f);
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
                broker_suspect_stream(w->broker);
            redial_succeeded(w, r, "broker", broker_version(w->broker));
        }
    }
    w->more = w->broker;
    for (int n = 0; w->broker && n < N_DELIVERIES_A_TURN; n++) {
        if (broker_next(w->broker, worker_room(w), &ev, &f)) {
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

static void inbox_arrived(struct worker *w, void *result)
{
    struct redial *r = &w->to_inbox;
    struct fault f = {0};

    switch (inbox_attempt_take(result, &w->inbox, &f)) {
    case 0:
        FAILPOINT(INBOX_CONNECTED);
        redial_succeeded(w, r, "database", NULL);
        atomic_store(&w->is_fatal, false);
        w->inbox_life++;
        pause_clear(w, PAUSE_DATABASE);
        pause_clear(w, PAUSE_REFUSED);
        break;
    case INBOX_SCHEMA:
    case INBOX_REFUSED:
        atomic_store(&w->is_fatal, true);
        pause_set(w, PAUSE_REFUSED, f.text);
        redial_later(w, r, f.text); /* the connection was good: what it leads to is not */
        report_text(w, EVENT_REFUSED, f.text);
        break;
    default:
        redial_failed(w, r, "database", f.text);
        break;
    }
}

static void inbox_step(struct worker *w)
{
    struct redial *r = &w->to_inbox;
    struct inbox_row row;
    struct fault f = {0};
    struct log_line l;
    void *result;
    int got;

    if (!w->inbox && !r->job && w->now_ms >= r->at_ms) {
        r->job = inbox_connect(&w->config->database, w->q, w->vhost, w->config->instance,
                               w->config->instance_is_set && w->q->transaction, &f);
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
    if (inbox_figures(w->inbox, &w->figures))
        w->has_figures = true;
    if (inbox_gave_up_prepared(w->inbox) && !w->said_unprepared) {
        w->said_unprepared = true;
        log_begin(&l, EVENT_LIMITS, w->q->name);
        log_text(&l, "reason",
                 "a pooler loses prepared statements: unnamed ones are used (database.prepared: off says so "
                 "at once)");
        log_end(&l);
    }
}

static void forward_steps(struct worker *w)
{
    struct forward_answer a;

    while (forward_step(w->forward, &a))
        worker_answer(w, &a);
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
    w->inbox_life++;
    w->claim_sent_us = 0;
    w->failing_ops = 0;
    w->to_inbox.at_ms = w->now_ms;
}

/* --- once a second --- */

static void redial_proven(const struct worker *w, struct redial *r)
{
    if (r->up_ms && w->now_ms - r->up_ms >= PROVEN_MS)
        r->n_failures = 0;
}

static void worker_stats(struct worker *w)
{
    if (w->stats_at_ms > w->now_ms + w->config->log.stats_interval_ms)
        w->stats_at_ms = w->now_ms + w->config->log.stats_interval_ms; /* it has become shorter */
    if (w->now_ms < w->stats_at_ms)
        return;
    if (w->stats_at_ms) {
        report_stats(w);
        if (w->inbox)
            inbox_ask_figures(w->inbox);
        worker_ask_depth(w);
    }
    w->stats_at_ms = w->now_ms + w->config->log.stats_interval_ms;
}

static void worker_tick(struct worker *w)
{
    struct fault f = {0};

    if (w->now_ms < w->tick_at_ms)
        return;
    w->tick_at_ms = w->now_ms + (w->drain ? TICK_DRAINING_MS : TICK_MS);
    redial_proven(w, &w->to_broker);
    redial_proven(w, &w->to_inbox);
    if (w->broker && broker_tick(w->broker, &f)) {
        broker_lost(w, &f);
        return;
    }
    worker_return_old(w);
    inbox_slim(w);
    worker_watch_consumer(w);
    worker_pause_tick(w);
    if (!w->inbox && w->to_inbox.since_ms && w->now_ms - w->to_inbox.since_ms >= PAUSE_AFTER_MS &&
        !atomic_load(&w->is_fatal))
        pause_set(w, PAUSE_DATABASE, w->to_inbox.reason);
}

/* --- draining --- */

static size_t n_unsettled(const struct worker *w)
{
    size_t n = 0;

    for (int s = 0; s < N_DELIVERY_STATES; s++)
        if (s != DELIVERY_GONE && s != DELIVERY_PARKED)
            n += w->states[s].len;
    return n;
}

static void return_idle(struct worker *w)
{
    static const enum delivery_state idle[] = {DELIVERY_FOLLOWING, DELIVERY_TO_CLAIM, DELIVERY_TO_LOOK,
                                               DELIVERY_SUSPECT, DELIVERY_PARKED};
    struct link *k;

    for (size_t i = 0; i < sizeof(idle) / sizeof(idle[0]); i++) {
        struct list *l = &w->states[idle[i]];

        for (k = l->head.next; k != &l->head;) {
            struct delivery *d = container_of(k, struct delivery, in_state);

            k = k->next;
            if (idle[i] == DELIVERY_FOLLOWING && d->leader && !delivery_is_idle(d->leader->state) &&
                w->drain == DRAIN_FINISHING)
                continue; /* it may yet be acked with the one that is in flight */
            delivery_return(w, d);
        }
    }
    while ((k = list_first(&w->states[DELIVERY_CLAIMED]))) {
        struct delivery *d = container_of(k, struct delivery, in_state);

        delivery_set_error(d, "the sidecar stops");
        d->delay_ms = 0;
        d->release_to = RELEASE_RETURN;
        delivery_event(w, d, DELIVERY_EV_GIVE_BACK);
    }
}

/* The grace is over: the attempts are given back. With transaction completion the fence makes it safe for the
 * next holder to begin at once; with response completion it must not before the window would have ended,
 * since the application may still be at work. */
static void give_up_in_flight(struct worker *w)
{
    static const enum delivery_state out[] = {DELIVERY_FORWARDING, DELIVERY_TO_REVOKE, DELIVERY_WATCHING,
                                              DELIVERY_TO_CHECK};
    struct link *k;

    for (size_t i = 0; i < sizeof(out) / sizeof(out[0]); i++) {
        while ((k = list_first(&w->states[out[i]]))) {
            struct delivery *d = container_of(k, struct delivery, in_state);

            if (delivery_is_out(d->state))
                forward_abandon(w->forward, d->ref);
            delivery_set_error(d, "the sidecar stopped before it was answered");
            d->delay_ms = w->q->transaction ? 0 : -TAKEOVER_GRACE_MS; /* after the end, as the row has it */
            d->release_to = RELEASE_RETURN;
            delivery_event(w, d, DELIVERY_EV_GIVE_BACK);
        }
    }
}

/* The last resort, with a database that does not answer: their rows stay as they are. Closing with them
 * unacked would cost every one of them a delivery on some brokers, and a return on fewer. */
static void return_everything(struct worker *w)
{
    for (int s = 0; s < N_DELIVERY_STATES; s++) {
        if (s == DELIVERY_GONE || s == DELIVERY_TO_ACK || s == DELIVERY_TO_REJECT || s == DELIVERY_TO_RETURN)
            continue;
        for (struct link *k; (k = list_first(&w->states[s]));) {
            struct delivery *d = container_of(k, struct delivery, in_state);

            if (delivery_is_out(d->state))
                forward_abandon(w->forward, d->ref);
            delivery_event(w, d, DELIVERY_EV_RETURN);
        }
    }
}

static void drain_begin(struct worker *w)
{
    struct log_line l;

    w->drain = DRAIN_FINISHING;
    w->drain_until_ms = w->now_ms + w->config->shutdown_grace_ms;
    log_begin(&l, EVENT_DRAINING, w->q->name);
    log_int(&l, "in_flight", (int64_t)worker_n_out(w));
    log_int(&l, "held", (int64_t)w->unacked.len);
    log_int(&l, "grace_ms", w->config->shutdown_grace_ms);
    log_end(&l);
}

static void drain_close(struct worker *w)
{
    struct fault f = {0};

    FAILPOINT(CLOSE_BEFORE);
    w->drain = DRAIN_CLOSING;
    w->drain_until_ms = w->now_ms + CLOSE_MS;
    if (!w->broker || broker_close(w->broker, &f))
        w->drain = DRAIN_ENDED;
}

static void drain_step(struct worker *w)
{
    int asked = atomic_load(&w->asked);

    if (!asked)
        return;
    if (w->drain == DRAIN_NO)
        drain_begin(w);
    if (asked > 1 && w->drain == DRAIN_FINISHING)
        w->drain_until_ms = w->now_ms;
    if (w->drain == DRAIN_RETURNING)
        give_up_in_flight(w);
    if (w->drain <= DRAIN_RETURNING) {
        /* Without credit nothing new comes; what was returned must not come back at once. */
        if (w->consumer == CONSUMER_NONE || !w->broker)
            return_idle(w);
        if (!n_unsettled(w) && w->consumer == CONSUMER_NONE)
            drain_close(w);
    }
    if (w->drain == DRAIN_FINISHING && w->now_ms >= w->drain_until_ms) {
        w->drain = DRAIN_RETURNING;
        w->drain_until_ms = w->now_ms + HELD_RETURN_MS;
    } else if (w->drain == DRAIN_RETURNING && w->now_ms >= w->drain_until_ms + RETURN_ALL_MS) {
        drain_close(w);
    } else if (w->drain == DRAIN_RETURNING && w->now_ms >= w->drain_until_ms) {
        return_everything(w);
    } else if (w->drain == DRAIN_CLOSING && w->now_ms >= w->drain_until_ms) {
        w->drain = DRAIN_ENDED;
    }
}

/* --- the loop --- */

static int64_t wait_ms(const struct worker *w)
{
    int64_t until = w->tick_at_ms < w->stats_at_ms ? w->tick_at_ms : w->stats_at_ms,
            timer = worker_next_timer_ms(w);

    if (timer < until)
        until = timer;
    if (worker_next_housekeeping_ms(w) < until)
        until = worker_next_housekeeping_ms(w);
    if (w->pauses & 1u << PAUSE_APPLICATION && !w->probing && w->probe_at_ms < until)
        until = w->probe_at_ms;
    if (w->pauses & 1u << PAUSE_EVERYTHING_FAILS && w->brake_at_ms > w->now_ms && w->brake_at_ms < until)
        until = w->brake_at_ms;
    if (!w->broker && !w->to_broker.job && !w->drain && w->to_broker.at_ms < until)
        until = w->to_broker.at_ms;
    if (!w->inbox && !w->to_inbox.job && w->to_inbox.at_ms < until)
        until = w->to_inbox.at_ms;
    if (worker_n(w, DELIVERY_TO_ACK) && w->broker && until > w->now_ms + ACK_STARVED_MS)
        until = w->now_ms + ACK_STARVED_MS;
    /* Another queue's suspect is alone with the application, or ours waits to be. */
    if ((!target_is_free(w) || worker_n(w, DELIVERY_SUSPECT)) && until > w->now_ms + TARGET_LOOK_MS)
        until = w->now_ms + TARGET_LOOK_MS;
    if (w->drain && until > w->drain_until_ms)
        until = w->drain_until_ms;
    return until > w->now_ms ? until - w->now_ms : 0;
}

static void worker_wait(struct worker *w)
{
    struct pollfd fds[4];
    size_t n = 0;
    int64_t timeout = wait_ms(w);

    if (w->broker)
        fds[n++] = (struct pollfd){broker_fd(w->broker),
                                   (short)(POLLIN | (broker_wants_write(w->broker) ? POLLOUT : 0)), 0};
    if (w->inbox)
        fds[n++] = (struct pollfd){inbox_fd(w->inbox),
                                   (short)(POLLIN | (inbox_wants_write(w->inbox) ? POLLOUT : 0)), 0};
    if (w->to_broker.job)
        fds[n++] = (struct pollfd){job_fd(w->to_broker.job), POLLIN, 0};
    if (w->to_inbox.job)
        fds[n++] = (struct pollfd){job_fd(w->to_inbox.job), POLLIN, 0};
    if (w->more)
        timeout = 0;
    forward_wait(w->forward, fds, n, timeout);
}

static void worker_turn(struct worker *w)
{
    w->now_ms = clock_ms();
    atomic_store(&w->turned_ms, w->now_ms);
    broker_step(w);
    inbox_step(w);
    FAILPOINT_IF(worker_n_out(w), FORWARD_WAITING);
    forward_steps(w);
    worker_run_timers(w);
    worker_tick(w);
    worker_stats(w);
    worker_probe(w);
    drain_step(w);
    worker_forward_claimed(w);
    worker_submit_batches(w);
    worker_keep_house(w);
    worker_update_consumer(w);
    worker_write_acks(w);
    worker_reap(w);
}

static void *worker_main(void *p)
{
    struct worker *w = p;
    struct log_line l;

    while (w->drain != DRAIN_ENDED) {
        worker_turn(w);
        if (w->drain != DRAIN_ENDED)
            worker_wait(w);
    }
    report_stats(w);
    log_begin(&l, EVENT_DRAINED, w->q->name);
    log_end(&l);
    atomic_store(&w->has_ended, true);
    return NULL;
}

/* --- life --- */

static void worker_free(struct worker *w)
{
    struct link *k;

    if (w->to_broker.job)
        job_abandon(w->to_broker.job);
    if (w->to_inbox.job)
        job_abandon(w->to_inbox.job);
    if (w->broker)
        broker_free(w->broker);
    if (w->inbox)
        inbox_free(w->inbox);
    w->generation = 0;
    for (int s = 0; s < N_DELIVERY_STATES; s++) {
        while ((k = list_first(&w->states[s]))) {
            list_remove(&w->states[s], k);
            delivery_destroy(w, container_of(k, struct delivery, in_state));
        }
    }
    worker_leave_target(w);
    worker_forget_suspects(w);
    if (w->forward)
        forward_free(w->forward);
    hash_deinit(&w->by_ref);
    hash_deinit(&w->by_id);
    header_block_deinit(&w->headers);
    buf_deinit(&w->token_text);
    buf_deinit(&w->json[0]);
    buf_deinit(&w->json[1]);
    free(w->timers.heap);
    free(w->vhost);
    free(w);
}

int worker_start(const struct config *c, const struct config_queue *q, struct worker **ret, struct fault *f)
{
    struct worker *w = mem_zalloc(1, sizeof(*w));
    pthread_attr_t attr;
    sigset_t all, old;

    w->config = c;
    w->q = q;
    w->allowed = q->forward.concurrency;
    w->depth = -1;
    w->pauses = 1u << PAUSE_APPLICATION; /* until it is known to be ready; not worth a line yet */
    for (int s = 0; s < N_DELIVERY_STATES; s++)
        list_init(&w->states[s]);
    list_init(&w->unacked);
    worker_join_target(w);
    w->now_ms = clock_ms();
    w->paused_since_ms[PAUSE_APPLICATION] = w->now_ms;
    atomic_init(&w->turned_ms, w->now_ms);
    if (broker_vhost(&c->broker, q, &w->vhost, f) || forward_new(q, &w->forward, f)) {
        worker_free(w);
        return -1;
    }
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 8 << 20); /* header tables are decoded recursively by the AMQP library */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int failed = pthread_create(&w->thread, &attr, worker_main, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    if (failed) {
        worker_free(w);
        return fault_set(f, "no thread for queue %s: %s", q->name, strerror(failed));
    }
    *ret = w;
    return 0;
}

int worker_check(const struct config *c, const struct config_queue *q, struct fault *f)
{
    struct forward *forward = NULL;
    char *vhost = NULL;
    int failed = broker_vhost(&c->broker, q, &vhost, f) || forward_new(q, &forward, f);

    forward_free(forward);
    free(vhost);
    return failed ? -1 : 0;
}

static void worker_ask(struct worker *w, int what)
{
    atomic_store(&w->asked, what);
    forward_wake(w->forward);
}

void worker_drain(struct worker *w)
{
    worker_ask(w, 1);
}

void worker_hurry(struct worker *w)
{
    worker_ask(w, 2);
}

bool worker_has_ended(const struct worker *w)
{
    return atomic_load(&w->has_ended);
}

void worker_join(struct worker *w)
{
    pthread_join(w->thread, NULL);
    worker_free(w);
}

void worker_pulse(const struct worker *w, struct worker_pulse *ret)
{
    *ret = (struct worker_pulse){w->q->name, atomic_load(&w->turned_ms), atomic_load(&w->is_ready),
                                 atomic_load(&w->is_fatal)};
}
