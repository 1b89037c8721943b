/* The process: signals, one thread a queue, the state file. Waits on a signalfd; touches no queue's data. */
#include "onceward/supervisor.h"

#include "onceward/base/buf.h"
#include "onceward/base/clock.h"
#include "onceward/base/fault.h"
#include "onceward/base/log.h"
#include "onceward/base/mem.h"
#include "onceward/base/process.h"
#include "onceward/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STATE_MS = 1000, LOOP_STALE_MS = 30000 };

struct supervisor {
    const struct config *config;
    struct worker **workers;
    size_t n_workers;
    int signals;
    int n_asked;
    int64_t started_ms, state_at_ms;
    bool state_failed;
};

/* The state file: one JSON object, replaced whole, so that a reader never sees half of it. Times are
 * wall-clock milliseconds; the age of the file is told by the monotonic clock, which a correction of the
 * other does not move. */
static void state_text(const struct supervisor *s, struct buf *out)
{
    buf_printf(
        out,
        "{\"pid\":%d,\"process_started\":%lld,\"version\":\"%s\",\"started_ms\":%lld,\"written_ms\":%lld,"
        "\"written_monotonic_ms\":%lld,\"draining\":%s,\"queues\":[",
        (int)getpid(), (long long)process_started(getpid()), ONCEWARD_VERSION, (long long)s->started_ms,
        (long long)clock_wall_ms(), (long long)clock_ms(), s->n_asked ? "true" : "false");
    for (size_t i = 0; i < s->n_workers; i++) {
        struct worker_pulse p;

        worker_pulse(s->workers[i], &p);
        int64_t age = clock_ms() - p.turned_ms;
        buf_add_text(out, i ? ",{\"queue\":" : "{\"queue\":");
        buf_add_json(out, slice_of(p.queue));
        buf_printf(out, ",\"turned_ms_ago\":%lld,\"live\":%s,\"ready\":%s,\"fits\":%s}", (long long)age,
                   age < LOOP_STALE_MS ? "true" : "false", p.ready ? "true" : "false",
                   p.fatal ? "false" : "true");
    }
    buf_add_text(out, "]}\n");
}

static int state_replace(const char *path, struct slice text)
{
    struct buf next = {0};

    buf_printf(&next, "%s.%d", path, (int)getpid());
    int fd = open(buf_text(&next), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    int failed = fd < 0 ? errno : 0;
    if (!failed && write(fd, text.data, text.len) != (ssize_t)text.len)
        failed = errno ? errno : EIO;
    if (fd >= 0)
        close(fd);
    if (!failed && rename(buf_text(&next), path))
        failed = errno;
    if (failed)
        unlink(buf_text(&next));
    buf_deinit(&next);
    return failed;
}

static void state_write(struct supervisor *s)
{
    struct buf text = {0};
    struct log_line l;

    if (!s->config->state_file || !*s->config->state_file)
        return;
    state_text(s, &text);
    int failed = state_replace(s->config->state_file, buf_slice(&text));
    if (failed && !s->state_failed) {
        log_begin(&l, EVENT_LIMITS, NULL);
        log_text(&l, "reason", "the state file cannot be written: health and drain will not work");
        log_text(&l, "path", s->config->state_file);
        log_text(&l, "error", strerror(failed));
        log_end(&l);
    }
    s->state_failed = failed != 0;
    buf_deinit(&text);
}

/* The folder of the default state file is ours to make. */
static void state_make_folder(const char *path)
{
    const char *slash = path ? strrchr(path, '/') : NULL;

    if (!slash || slash == path)
        return;
    char *folder = mem_copy(path, (size_t)(slash - path));
    mkdir(folder, 0755); /* when it fails, writing the file says why */
    free(folder);
}

static void supervisor_signal(struct supervisor *s)
{
    struct signalfd_siginfo info;
    struct log_line l;

    while (read(s->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGHUP) {
            log_begin(&l, EVENT_LIMITS, NULL);
            log_text(&l, "reason",
                     "SIGHUP: a changed configuration needs a restart; secrets in files are read again at "
                     "every connect");
            log_end(&l);
            continue;
        }
        for (size_t i = 0; i < s->n_workers; i++) {
            if (s->n_asked)
                worker_hurry(s->workers[i]);
            else
                worker_drain(s->workers[i]);
        }
        s->n_asked++;
        s->state_at_ms = 0;
    }
}

static bool all_ended(const struct supervisor *s)
{
    for (size_t i = 0; i < s->n_workers; i++)
        if (!worker_has_ended(s->workers[i]))
            return false;
    return true;
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
    struct fault f = {0};
    struct log_line l;

    for (size_t i = 0; i < s->config->n_queues; i++) {
        if (worker_start(s->config, &s->config->queues[i], &s->workers[i], &f)) {
            log_begin(&l, EVENT_CONFIG_ERROR, s->config->queues[i].name);
            log_text(&l, "reason", f.text);
            log_end(&l);
            return -1;
        }
        s->n_workers++;
    }
    return 0;
}

int supervisor_run(const struct config *c)
{
    struct supervisor s = {.config = c, .started_ms = clock_wall_ms(), .signals = signals_open()};
    struct log_line l;
    int status = 0;

    if (s.signals < 0)
        return 1;
    s.workers = mem_zalloc(c->n_queues, sizeof(struct worker *));
    log_started(c);
    state_make_folder(c->state_file);
    if (workers_start(&s)) {
        status = 1;
        for (size_t i = 0; i < s.n_workers; i++)
            worker_hurry(s.workers[i]);
    }
    while (!all_ended(&s)) {
        struct pollfd p = {s.signals, POLLIN, 0};

        if (clock_ms() >= s.state_at_ms) {
            s.state_at_ms = clock_ms() + STATE_MS;
            state_write(&s);
        }
        poll(&p, 1, s.n_asked || status ? 20 : STATE_MS);
        if (p.revents)
            supervisor_signal(&s);
    }
    for (size_t i = 0; i < s.n_workers; i++)
        worker_join(s.workers[i]);
    if (c->state_file)
        unlink(c->state_file);
    log_begin(&l, EVENT_STOPPED, NULL);
    log_int(&l, "status", status);
    log_end(&l);
    free(s.workers);
    close(s.signals);
    return status;
}
