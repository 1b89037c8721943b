/* The process: signals, one thread a queue, the state file. Waits on a signalfd; touches no queue's data. */
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

static void supervisor_signal(struct supervisor *s)
{
    struct signalfd_siginfo info;

    while (read(s->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGHUP)
            s->reload_asked = true;
        else
            supervisor_end(s);
    }
}

static int signals_open(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
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

static int workers_start(struct supervisor *s)
{
    for (size_t i = 0; i < s->current->config->n_queues; i++) {
        slot_add(s, &s->current->config->queues[i], false);
        if (slot_start(&s->slots[i]))
            return -1;
    }
    return 0;
}

int supervisor_run(struct config *c, supervisor_load *load, const char *path)
{
    struct supervisor s = {
        .load = load, .path = path, .started_ms = clock_wall_ms(), .signals = signals_open()};
    struct log_line l;
    int status = 0;

    version_add(&s, c);
    log_started(c);
    state_make_folder(c->state_file);
    if (s.signals < 0 || workers_start(&s)) {
        status = 1;
        supervisor_end(&s);
        supervisor_end(&s);
    }
    for (;;) {
        struct pollfd p = {s.signals, POLLIN, 0};

        reload_step(&s);
        if (!s.n_slots)
            break;
        if (clock_ms() >= s.state_at_ms) {
            s.state_at_ms = clock_ms() + STATE_MS;
            state_write(&s);
        }
        poll(&p, 1, slots_settle(&s) ? STATE_MS : CHANGING_MS);
        if (p.revents)
            supervisor_signal(&s);
    }
    state_end(&s, status);
    log_begin(&l, EVENT_STOPPED, NULL);
    log_int(&l, "status", status);
    log_end(&l);
    slots_deinit(&s);
    if (s.signals >= 0)
        close(s.signals);
    return status;
}
