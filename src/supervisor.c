/* The process: signals, one thread a queue, the state file. Waits on a signalfd; touches no queue's data.
 *
 * SIGTERM and SIGINT drain and end; SIGUSR1 drains, and the process stays until one of those; SIGHUP and
 * SIGUSR2 read the file anew. */
#include "supervisor/supervisor.h"

#include "onceward/base/clock.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { STATE_MS = 1000, CHANGING_MS = 20 };

/* The first signal drains, the second ends the grace. */
static void supervisor_end(struct supervisor *s)
{
    for (size_t i = 0; i < s->n_slots; i++) {
        slot_leave(&s->slots[i]);
        if (s->n_asked && s->slots[i].worker)
            worker_hurry(s->slots[i].worker);
    }
    s->n_asked++;
    s->state_at_ms = 0;
}

/* Asked again, or while it ends, nothing changes: the grace goes on. */
static void supervisor_drain(struct supervisor *s)
{
    if (s->stays || s->n_asked)
        return;
    for (size_t i = 0; i < s->n_slots; i++)
        slot_drain(&s->slots[i]);
    s->stays = true;
    s->state_at_ms = 0;
}

static void supervisor_signal(struct supervisor *s)
{
    struct signalfd_siginfo info;

    while (read(s->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        switch (info.ssi_signo) {
        case SIGHUP:
        case SIGUSR2:
            s->reload_asked = true;
            break;
        case SIGUSR1:
            supervisor_drain(s);
            break;
        default:
            supervisor_end(s);
            break;
        }
    }
}

/* As soon as it has drained the file says so. */
static void supervisor_tell(struct supervisor *s)
{
    bool has_drained = s->stays && s->told_life != LIFE_DRAINED && slots_are_drained(s);

    if (clock_ms() < s->state_at_ms && !has_drained)
        return;
    s->state_at_ms = clock_ms() + STATE_MS;
    state_tell(s);
}

static bool is_changing(const struct supervisor *s)
{
    return !slots_settle(s) || (s->stays && s->told_life != LIFE_DRAINED);
}

static int signals_open(void)
{
    static const int heard[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
    sigset_t set;

    sigemptyset(&set);
    for (size_t i = 0; i < sizeof(heard) / sizeof(heard[0]); i++)
        sigaddset(&set, heard[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN); /* libpq and OpenSSL write to sockets that may be gone */
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void log_started(const struct config *c)
{
    struct log_line l;

    log_begin(&l, EVENT_STARTED, NULL);
    log_text(&l, "version", ONCEWARD_VERSION);
    log_text(&l, "instance", c->instance);
    log_int(&l, "pid", getpid());
    log_int(&l, "queues", (int64_t)c->n_queues);
    log_end(&l);
}

static void log_stopped(int status)
{
    struct log_line l;

    log_begin(&l, EVENT_STOPPED, NULL);
    log_int(&l, "status", status);
    log_end(&l);
}

static int workers_start(struct supervisor *s)
{
    for (size_t i = 0; i < s->current->config->n_queues; i++) {
        slot_add(s, &s->current->config->queues[i], false);
        if (slot_start(&s->slots[i]))
            return -1;
    }
    return 0;
}

/* Answers the exit status. */
static int supervisor_work(struct supervisor *s)
{
    int status = 0;

    log_started(s->current->config);
    if (s->signals < 0 || workers_start(s)) {
        status = 1;
        supervisor_end(s);
        supervisor_end(s);
    }
    for (;;) {
        struct pollfd p = {s->signals, POLLIN, 0};

        reload_step(s);
        if (!s->n_slots)
            break;
        supervisor_tell(s);
        poll(&p, 1, is_changing(s) ? CHANGING_MS : STATE_MS);
        if (p.revents)
            supervisor_signal(s);
    }
    state_end(s, status);
    return status;
}

int supervisor_run(struct config *c, supervisor_load *load, const char *path)
{
    struct supervisor s = {
        .load = load, .path = path, .started_ms = clock_wall_ms(), .signals = signals_open()};

    version_add(&s, c);
    int status = state_open(&s) ? 1 : supervisor_work(&s);

    log_stopped(status);
    slots_deinit(&s);
    texts_deinit(&s.told.outcome);
    state_file_close(&s.file);
    if (s.signals >= 0)
        close(s.signals);
    return status;
}
