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

#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>

enum {
    TICK_MS = 1000,
    TICK_DRAINING_MS = 50,
    TARGET_LOOK_MS = 20,
};

static void forward_steps(struct worker *w)
{
    struct forward_event e;

    while (forward_step(w->forward, &e)) {
        if (e.kind == FORWARD_ANSWER)
            worker_answer(w, &e.answer);
        else
            worker_probed(w, &e.probe);
    }
}

/* --- once a second --- */

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
    if (w->now_ms < w->tick_at_ms)
        return;
    w->tick_at_ms = w->now_ms + (w->drain ? TICK_DRAINING_MS : TICK_MS);
    if (worker_tick_connections(w))
        return;
    worker_return_old(w);
    worker_watch_consumer(w);
    worker_pause_tick(w);
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
    if (worker_next_probe_ms(w) < until)
        until = worker_next_probe_ms(w);
    if (w->inbox && w->pauses & 1u << PAUSE_DATABASE && w->database_try_ms > w->now_ms &&
        w->database_try_ms < until)
        until = w->database_try_ms;
    if (trial_next_turn_ms(w) < until)
        until = trial_next_turn_ms(w);
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
    struct pollfd fds[5];
    nfds_t n = 0;
    int64_t timeout = wait_ms(w), forward_ms = forward_due_ms(w->forward) - clock_ms();

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
    fds[n++] = (struct pollfd){wait_fd(w->wait), POLLIN, 0};
    if (forward_ms < timeout)
        timeout = forward_ms;
    if (w->more || timeout < 0)
        timeout = 0;
    poll(fds, n, timeout > INT_MAX ? INT_MAX : (int)timeout);
    wait_turn(w->wait, 0);
}

static void worker_turn(struct worker *w)
{
    w->now_ms = clock_ms();
    atomic_store(&w->turned_ms, w->now_ms);
    worker_step_broker(w);
    worker_step_inbox(w);
    FAILPOINT_IF(worker_n_out(w), FORWARD_WAITING);
    forward_steps(w);
    worker_run_timers(w);
    worker_tick(w);
    worker_stats(w);
    worker_probe(w);
    worker_try_database(w);
    worker_step_drain(w);
    worker_forward_claimed(w);
    worker_submit_batches(w);
    worker_keep_house(w);
    worker_update_consumer(w);
    worker_write_acks(w);
    worker_reap(w);
}

static void worker_disconnect(struct worker *w)
{
    if (w->to_broker.job)
        job_abandon(w->to_broker.job);
    if (w->to_inbox.job)
        job_abandon(w->to_inbox.job);
    if (w->broker)
        broker_free(w->broker);
    if (w->inbox)
        inbox_free(w->inbox);
    w->to_broker.job = w->to_inbox.job = NULL;
    w->broker = NULL;
    w->inbox = NULL;
    w->has_figures = false;
    w->generation = 0;
}

/* Drained, and not to end yet: it says how it is, and is live. */
static void worker_idle(struct worker *w)
{
    w->now_ms = clock_ms();
    atomic_store(&w->turned_ms, w->now_ms);
    worker_stats(w);
    int64_t left = w->stats_at_ms - w->now_ms;
    wait_turn(w->wait, w->now_ms + (left < TICK_MS ? left : TICK_MS));
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
    worker_disconnect(w);
    atomic_store(&w->is_drained, true);
    while (atomic_load(&w->stays))
        worker_idle(w);
    atomic_store(&w->has_ended, true);
    return NULL;
}

/* --- life --- */

static void worker_free(struct worker *w)
{
    struct link *k;

    worker_disconnect(w);
    for (int s = 0; s < N_DELIVERY_STATES; s++) {
        while ((k = list_first(&w->states[s]))) {
            list_remove(&w->states[s], k);
            delivery_destroy(w, container_of(k, struct delivery, in_state));
        }
    }
    worker_leave_target(w);
    worker_forget_suspects(w);
    forward_free(w->forward);
    wait_free(w->wait);
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
    w->started_ms = clock_wall_ms();
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
    if (broker_vhost(&c->broker, q, &w->vhost, f) || wait_new(&w->wait, f) ||
        forward_new(w->wait, &w->forward, f) || forward_add(w->forward, q, &(size_t){0}, f)) {
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
    struct wait *wait = NULL;
    struct forward *forward = NULL;
    char *vhost = NULL;
    int failed = broker_vhost(&c->broker, q, &vhost, f) || wait_new(&wait, f) ||
                 forward_new(wait, &forward, f) || forward_add(forward, q, &(size_t){0}, f);

    forward_free(forward);
    wait_free(wait);
    free(vhost);
    return failed ? -1 : 0;
}

static void worker_ask(struct worker *w, int what)
{
    atomic_store(&w->asked, what);
    wait_wake(w->wait);
}

void worker_drain(struct worker *w)
{
    atomic_store(&w->stays, false);
    worker_ask(w, 1);
}

void worker_drain_and_stay(struct worker *w)
{
    atomic_store(&w->stays, true);
    worker_ask(w, 1);
}

void worker_hurry(struct worker *w)
{
    atomic_store(&w->stays, false);
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
    *ret = (struct worker_pulse){.queue = w->q->name,
                                 .turned_ms = atomic_load(&w->turned_ms),
                                 .ready = atomic_load(&w->is_ready),
                                 .drained = atomic_load(&w->is_drained),
                                 .fatal = atomic_load(&w->is_fatal)};
}
