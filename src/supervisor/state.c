/* The state file: one JSON object, replaced whole, so that a reader never sees half of it. Times are
 * wall-clock milliseconds; the age of the file is told by the monotonic clock, which a correction of the
 * other does not move. */
#include "supervisor/supervisor.h"

#include "onceward/base/buf.h"
#include "onceward/base/clock.h"
#include "onceward/base/mem.h"
#include "onceward/base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOOP_STALE_MS = 30000 };

/* The queue is listed by the one that leaves. */
static bool is_hidden(const struct supervisor *s, const struct slot *slot)
{
    if (slot->worker)
        return false;
    for (size_t i = 0; i < s->n_slots; i++)
        if (s->slots[i].worker && !strcmp(s->slots[i].queue->name, slot->queue->name))
            return true;
    return false;
}

static void queue_text(const struct slot *slot, struct buf *out)
{
    struct worker_pulse p = {.turned_ms = clock_ms()}; /* one that is about to start lacks nothing */

    if (slot->worker)
        worker_pulse(slot->worker, &p);
    int64_t age = clock_ms() - p.turned_ms;
    buf_add_text(out, "{\"queue\":");
    buf_add_json(out, slice_of(slot->queue->name));
    buf_printf(out, ",\"turned_ms_ago\":%lld,\"live\":%s,\"ready\":%s,\"fits\":%s%s}", (long long)age,
               age < LOOP_STALE_MS ? "true" : "false", slot_is_ready(slot) ? "true" : "false",
               p.fatal ? "false" : "true", slot->failed ? ",\"failed\":true" : "");
}

static void state_text(const struct supervisor *s, struct buf *out)
{
    size_t n = 0;

    buf_printf(
        out,
        "{\"pid\":%d,\"process_started\":%lld,\"version\":\"%s\",\"started_ms\":%lld,\"written_ms\":%lld,"
        "\"written_monotonic_ms\":%lld,\"draining\":%s,\"queues\":[",
        (int)getpid(), (long long)process_started(getpid()), ONCEWARD_VERSION, (long long)s->started_ms,
        (long long)clock_wall_ms(), (long long)clock_ms(), s->n_asked ? "true" : "false");
    for (size_t i = 0; i < s->n_slots; i++) {
        if (is_hidden(s, &s->slots[i]))
            continue;
        if (n++)
            buf_add_char(out, ',');
        queue_text(&s->slots[i], out);
    }
    buf_add_text(out, "]}\n");
}

/* What is left when the process ends: so `drain` can tell one that has ended from one that was killed. */
static void end_text(const struct supervisor *s, int status, struct buf *out)
{
    buf_printf(out,
               "{\"pid\":%d,\"process_started\":%lld,\"version\":\"%s\",\"started_ms\":%lld,"
               "\"written_ms\":%lld,\"written_monotonic_ms\":%lld,\"ended\":true,\"status\":%d}\n",
               (int)getpid(), (long long)process_started(getpid()), ONCEWARD_VERSION,
               (long long)s->started_ms, (long long)clock_wall_ms(), (long long)clock_ms(), status);
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

void state_write(struct supervisor *s)
{
    const char *path = s->current->config->state_file;
    struct buf text = {0};
    struct log_line l;

    if (!path || !*path)
        return;
    state_text(s, &text);
    int failed = state_replace(path, buf_slice(&text));
    if (failed && !s->state_failed) {
        log_begin(&l, EVENT_LIMITS, NULL);
        log_text(&l, "reason", "the state file cannot be written: health and drain will not work");
        log_text(&l, "path", path);
        log_text(&l, "error", strerror(failed));
        log_end(&l);
    }
    s->state_failed = failed != 0;
    buf_deinit(&text);
}

void state_end(const struct supervisor *s, int status)
{
    const char *path = s->current->config->state_file;
    struct buf text = {0};

    if (!path || !*path)
        return;
    end_text(s, status, &text);
    if (state_replace(path, buf_slice(&text)))
        unlink(path);
    buf_deinit(&text);
}

/* The folder of the default state file is ours to make. */
void state_make_folder(const char *path)
{
    const char *slash = path ? strrchr(path, '/') : NULL;

    if (!slash || slash == path)
        return;
    char *folder = mem_copy(path, (size_t)(slash - path));
    mkdir(folder, 0755); /* when it fails, writing the file says why */
    free(folder);
}
