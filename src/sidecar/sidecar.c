/* The loop: one thread, which waits in one place.
 *
 * A turn waits, reads input (broker, database, applications) as facts for the queues' cores, advances their time,
 * carries out their actions, sends the collected batches, and frees ended deliveries. Nothing in a turn blocks: jobs
 * make the connections. */
#include "sidecar/sidecar.h"

#include "onceward/base/clock.h"
#include "onceward/base/failpoint.h"
#include "onceward/base/log.h"
#include "onceward/base/mem.h"
#include "onceward/base/random.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { TICK_MS = 1000, DRAIN_TICK_MS = 20, CLOSE_MS = 2000 };

/* --- signals --- */

static void drain_all(struct sidecar *s, int64_t until_ms)
{
    for (size_t i = 0; i < s->n_queues; i++) {
        queue_drain(&s->queues[i].core, s->now_ms, until_ms);
        s->queues[i].touched = true;
    }
    outbox_ends(s, false);
    s->grace_ends_ms = until_ms;
    s->state_at_ms = 0;
}

/* The first signal drains, the second ends the grace period. */
static void asked_to_end(struct sidecar *s)
{
    if (s->n_asked++ || s->ending == ENDING_DRAIN)
        for (size_t i = 0; s->n_asked > 1 && i < s->n_queues; i++) {
            queue_hurry(&s->queues[i].core, s->now_ms);
            s->queues[i].touched = true;
        }
    if (s->n_asked > 1)
        outbox_ends(s, true);
    s->ending = ENDING_STOP;
    reload_give_up(s);
    drain_all(s, s->now_ms + s->config->shutdown_grace_ms);
}

static void asked_to_drain(struct sidecar *s)
{
    if (s->ending != ENDING_NO && s->ending != ENDING_RELOAD && s->ending != ENDING_RANGES)
        return;
    s->ending = ENDING_DRAIN;
    reload_give_up(s);
    drain_all(s, s->now_ms + s->config->shutdown_grace_ms);
}

static int64_t longest_window_ms(const struct sidecar *s)
{
    int64_t longest = 0;

    for (size_t i = 0; i < s->n_queues; i++)
        if (s->queues[i].config->token_window_ms > longest)
            longest = s->queues[i].config->token_window_ms;
    return longest;
}

/* Begins a reload. Requests in flight may take their whole window, or with `now` only the grace period. */
static void asked_to_reload(struct sidecar *s, bool now)
{
    int64_t most_ms = now ? s->config->shutdown_grace_ms : longest_window_ms(s);

    enum ending before = s->ending;

    if (before == ENDING_RANGES) /* a reload asks for the ranges itself */
        s->ending = ENDING_NO;
    s->ending = reload_begins(s) ? ENDING_RELOAD : before;
    if (s->ending == ENDING_RELOAD)
        drain_all(s, s->now_ms + most_ms);
}

static void begin_again(struct sidecar *s)
{
    s->ending = ENDING_RANGES;
    drain_all(s, s->now_ms + longest_window_ms(s));
}

static void signalled(void *owner, uint32_t events)
{
    struct sidecar *s = owner;
    struct signalfd_siginfo info;

    (void)events;
    s->now_ms = clock_ms();
    while (read(s->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        switch (info.ssi_signo) {
        case SIGHUP:
        case SIGUSR2:
            asked_to_reload(s, info.ssi_signo == SIGUSR2);
            break;
        case SIGUSR1:
            asked_to_drain(s);
            break;
        default:
            asked_to_end(s);
            break;
        }
    }
}

static void signals_block(sigset_t *ret)
{
    static const int heard[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};

    sigemptyset(ret);
    for (size_t i = 0; i < sizeof(heard) / sizeof(heard[0]); i++)
        sigaddset(ret, heard[i]);
    sigprocmask(SIG_BLOCK, ret, NULL);
}

static int signals_open(struct sidecar *s, struct fault *f)
{
    sigset_t set;

    signals_block(&set);
    signal(SIGPIPE, SIG_IGN); /* libpq and OpenSSL write to sockets that may be closed */
    s->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (s->signals < 0)
        return fault_set(f, "signalfd: %s", strerror(errno));
    return wait_add(s->wait, &s->signals_watch, s->signals, EPOLLIN, signalled, s, f);
}

/* --- the turn --- */

static int64_t due_ms(const struct sidecar *s)
{
    int64_t due = time_earlier(actions_due_ms(s), forward_due_ms(s->forward));

    due = time_earlier(due, s->now_ms + TICK_MS);
    due = time_earlier(due, s->state_at_ms);
    due = time_earlier(due, housekeeping_due_ms(s));
    due = time_earlier(due, letters_due_ms(s));
    due = time_earlier(due, renewals_due_ms(s));
    due = time_earlier(due, store_due_ms(s));
    due = time_earlier(due, days_due_ms(s));
    due = time_earlier(due, replicas_due_ms(s));
    due = time_earlier(due, outbox_next_ms(s));
    if (s->ending != ENDING_NO && !s->is_idle)
        due = time_earlier(due, s->now_ms + DRAIN_TICK_MS);
    if (s->database.inbox && inbox_is_lost(s->database.inbox))
        return s->now_ms;
    if (!s->database.inbox && !s->database.dial.job && !s->database.closed)
        due = time_earlier(due, s->database.dial.at_ms);
    for (size_t i = 0; i < s->n_links; i++) {
        const struct broker_link *k = &s->links[i];

        if (k->readable && k->broker && !k->closed)
            return s->now_ms;
        if (!k->broker && !k->dial.job && !k->closing)
            due = time_earlier(due, k->dial.at_ms);
    }
    for (size_t i = 0; i < s->n_queues; i++)
        due = time_earlier(due, s->queues[i].stats_at_ms);
    return due;
}

static void turn(struct sidecar *s)
{
    wait_turn(s->wait, due_ms(s));
    s->now_ms = clock_ms();
    brokers_step(s);
    arguments_step(s);
    renewals_step(s);
    database_step(s);
    letters_step(s);
    requests_step(s);
    replicas_step(s);
    partitions_hold(s);
    actions_run(s);
    requests_probe(s);
    outbox_step(s);
    if (partitions_step(s))
        begin_again(s);
    housekeeping_step(s);
    store_step(s);
    days_step(s);
    figures_step(s);
    metrics_step(s);
    first_start_step(s);
    database_ask(s);
    state_step(s);
}

static bool is_drained(const struct sidecar *s)
{
    for (size_t i = 0; i < s->n_queues; i++)
        if (s->queues[i].core.drain != DRAIN_DONE)
            return false;
    return outbox_has_ended(s) || s->now_ms >= s->grace_ends_ms;
}

static bool has_drained(const struct sidecar_queue *sq)
{
    return sq->core.drain == DRAIN_DONE;
}

/* Logs each queue when it is drained, independently of the others. */
static void tell_drained(struct sidecar *s)
{
    struct log_line line;

    for (size_t i = 0; i < s->n_queues; i++) {
        struct sidecar_queue *sq = &s->queues[i];

        if (sq->told_drained || sq->first != sq || !sidecar_queue_all(sq, has_drained))
            continue;
        sq->told_drained = true;
        figures_say(sq);
        log_begin(&line, EVENT_DRAINED, sq->config->name);
        log_end(&line);
    }
}

/* Runs until the sidecar must end and has drained. */
static void run(struct sidecar *s)
{
    int64_t close_by_ms = 0;
    bool told = false;

    for (;;) {
        turn(s);
        tell_drained(s);
        if (s->ending == ENDING_NO || !is_drained(s))
            continue;
        if (!close_by_ms) {
            close_by_ms = s->now_ms + CLOSE_MS;
            renewals_close(s);
            brokers_close(s);
            replicas_say_now(s);
        }
        if ((!brokers_are_closed(s) || !replicas_have_said(s)) && s->now_ms < close_by_ms)
            continue;
        if (!told) {
            s->is_idle = true;
            letters_close(s);
            days_close(s);
            outbox_close(s);
            s->state_at_ms = 0;
            told = true;
        }
        if (s->ending != ENDING_DRAIN) {
            database_close(s);
            return;
        }
    }
}

/* --- start and end --- */

static struct queue_rules rules_of(const struct sidecar *s, const struct config_queue *q)
{
    int limit = q->delivery_limit >= 0 ? q->delivery_limit : s->config->broker.delivery_limit;

    return (struct queue_rules){
        .transaction = q->transaction,
        .token_window_ms = q->token_window_ms,
        .max_window_ms = q->max_window_ms,
        .commit_grace_ms = q->commit_grace_ms,
        .max_hold_ms = q->max_hold_ms,
        .pause_hold_ms = q->pause_hold_ms,
        .concurrency = q->forward.concurrency,
        .prefetch = q->prefetch,
        /* Never reached on an ordered queue, where the prefetch of each partition is the bound. */
        .max_parked = q->order.key.n ? q->prefetch * (int)q->n_partitions + 1 : q->max_parked,
        .max_bytes = q->max_bytes,
        .max_message_bytes = q->max_message_bytes,
        .max_attempts = q->max_attempts,
        .backoff_ms = q->backoff_ms,
        .max_backoff_ms = q->max_backoff_ms,
        .max_age_ms = q->max_age_ms,
        .permanent_status = q->permanent_status,
        .n_permanent_status = q->n_permanent_status,
        .brake = q->brake,
        .revive = q->revive,
        .mismatch_is_duplicate = q->mismatch_is_duplicate,
        .too_large_is_reject = q->too_large_is_reject,
        .ordered = q->order.key.n > 0,
        .unkeyed_is_dead = q->order.unkeyed_is_dead,
        .holds_dead = q->order.holds_dead,
        .store_response_bytes = q->store_response_bytes,
        .delivery_limit = returns_limit_of_key(limit),
        .stuck_ms = FAILPOINT_MS(STUCK),
        .stuck_again_ms = FAILPOINT_MS(STUCK_AGAIN),
        .stats_interval_ms = s->config->log.stats_interval_ms,
        .batch = {.max_messages = q->forward.batch.max_messages,
                  .max_bytes = q->forward.batch.max_bytes,
                  .consumer = slice_of(q->consumer),
                  .queue = slice_of(q->queue),
                  .content_type = slice_of(q->forward.content_type),
                  .error_body = q->forward.error_body},
    };
}

static int sidecar_queues_init(struct sidecar *s, struct fault *f)
{
    s->n_queues = s->config->n_queues;
    s->queues = mem_zalloc(s->n_queues, sizeof(*s->queues));
    for (size_t i = 0; i < s->n_queues; i++)
        s->queues[i] = (struct sidecar_queue){.sidecar = s,
                                              .config = &s->config->queues[i],
                                              .index = i,
                                              .first = &s->queues[i - s->config->queues[i].partition],
                                              .n_dead_letters = -1,
                                              .touched = true,
                                              .house.page = -1,
                                              .house.expiry.page = -1};
    if (requests_init(s, f) || brokers_init(s, f) || outbox_begin(s, f))
        return -1;
    for (size_t i = 0; i < s->n_queues; i++) {
        struct sidecar_queue *sq = &s->queues[i];
        struct queue_rules rules = rules_of(s, sq->config);
        uint64_t seed;

        random_bytes(&seed, sizeof(seed));
        queue_init(&sq->core, &rules, &s->applications[sq->application], &s->database.core, i + 1, seed,
                   s->now_ms);
        if (sq->first != sq)
            queue_join_share(&sq->core, &sq->first->core);
        handovers_init(sq);
        queue_commands_await(&sq->core);
        if (s->file.ended_uncleanly)
            queue_caution_begin(&sq->core, CAUTION_UNCLEAN);
    }
    s->file.ended_uncleanly = false; /* a reload is not a start */
    return 0;
}

static void log_started(const struct config *c)
{
    struct log_line l;

    log_begin(&l, EVENT_STARTED, NULL);
    log_text(&l, "version", ONCEWARD_VERSION);
    log_text(&l, "instance", c->instance);
    log_int(&l, "pid", getpid());
    log_int(&l, "queues", (int64_t)c->n_entries);
    if (config_public_digest(c))
        log_text(&l, "config", config_public_digest(c));
    log_end(&l);
}

static void log_stopped(int status)
{
    struct log_line l;

    log_begin(&l, EVENT_STOPPED, NULL);
    log_int(&l, "status", status);
    log_end(&l);
}

static int begin(struct sidecar *s, struct fault *f)
{
    s->now_ms = clock_ms();
    s->started_ms = clock_wall_ms();
    s->database.dial.peer = s->letters.side.dial.peer = s->store.side.dial.peer = "database";
    s->database.housekeeps = SIZE_MAX;
    database_init(&s->database.core, s->now_ms);
    if (wait_new(&s->wait, f) || signals_open(s, f) || forward_new(s->wait, &s->forward, f))
        return -1;
    if (sidecar_queues_init(s, f))
        return -1;
    metrics_begin(s);
    return 0;
}

static void deinit(struct sidecar *s)
{
    for (size_t i = 0; i < s->n_queues; i++)
        if (s->queues[i].core.application) {
            queue_deinit(&s->queues[i].core);
            free(s->queues[i].range);
        }
    metrics_free(s);
    forward_free(s->forward);
    letters_close(s);
    days_close(s);
    outbox_free(s);
    database_deinit(s);
    renewals_close(s);
    brokers_deinit(s);
    replicas_deinit(s);
    free(s->queues);
    free(s->applications);
    header_block_deinit(&s->headers);
    buf_deinit(&s->token);
    buf_deinit(&s->id);
    texts_deinit(&s->reload.outcome);
    if (s->signals >= 0)
        close(s->signals);
    wait_free(s->wait);
}

/* Makes a sidecar that has done nothing yet, and takes c. */
static struct sidecar *sidecar_new(struct config *c, sidecar_load *load, const char *path)
{
    struct sidecar *s = mem_zalloc(1, sizeof(*s));

    s->config = c;
    s->load = load;
    s->path = path;
    s->signals = -1;
    s->file.lock.fd = -1;
    return s;
}

static void sidecar_free(struct sidecar *s)
{
    deinit(s);
    state_file_close(&s->file);
    if (s->config)
        config_free(s->config);
    free(s);
}

/* Replaces a drained sidecar by a new one with the same configuration and lock. */
static struct sidecar *sidecar_replace(struct sidecar *s)
{
    struct sidecar *again = sidecar_new(s->config, s->load, s->path);

    again->file = s->file;
    again->state_failed = s->state_failed;
    again->reload = s->reload;
    again->begins_again = true;
    s->config = NULL;
    s->file = (struct state_file){.lock = {.fd = -1}};
    s->reload.outcome = (struct texts){0};
    deinit(s);
    free(s);
    return again;
}

/* Runs a sidecar from start to end. -1: it could not start. */
static int live(struct sidecar *s)
{
    struct fault f = {0};
    struct log_line l;

    if (begin(s, &f)) {
        log_begin(&l, EVENT_CONFIG_ERROR, NULL);
        log_text(&l, "reason", f.text);
        log_end(&l);
        return -1;
    }
    reload_take_over(s);
    run(s);
    return 0;
}

int sidecar_run(struct config *c, sidecar_load *load, const char *path, char **argv)
{
    struct sidecar *s = sidecar_new(c, load, path);
    sigset_t set;

    signals_block(&set); /* before the first line: SIGTERM waits for the loop */
    int status = state_open(s) ? 1 : 0;

    if (!status)
        log_started(c);
    while (!status) {
        status = live(s) ? 1 : 0;
        if (status || (s->ending != ENDING_RELOAD && s->ending != ENDING_RANGES))
            break;
        if (s->ending == ENDING_RELOAD)
            reload_carry_out(s, argv);
        partitions_widen(s);
        s = sidecar_replace(s);
    }
    if (s->file.is_locked || !status)
        state_end(s, status);
    log_stopped(status);
    sidecar_free(s);
    return status;
}
