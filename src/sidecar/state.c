/* Reading the state file. It is replaced whole, so it is never half there; it may be left over from a sidecar
 * that was killed. */

#include "command/state.h"

#include "onceward/base/buf.h"
#include "onceward/base/clock.h"
#include "onceward/base/fault.h"
#include "onceward/base/mem.h"
#include "onceward/base/process.h"
#include "onceward/config/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int read_file(const char *path, struct buf *out, struct fault *f)
{
    FILE *file = fopen(path, "re");
    size_t n;

    if (!file)
        return fault_set(f, "no sidecar is running here: %s: %s", path, strerror(errno));
    n = fread(buf_reserve(out, JSON_BODY_MAX), 1, JSON_BODY_MAX, file);
    out->len = n;
    fclose(file);
    return 0;
}

/* The value at a pointer as text, or NULL. Valid until the next call with the same buffer. */
static const char *value_at(const struct buf *text, const char *pointer, struct buf *value)
{
    buf_reset(value);
    return jsonread_pointer(buf_slice(text), slice_of(pointer), value) ? NULL : buf_text(value);
}

static int64_t number_at(const struct buf *text, const char *pointer, struct buf *value)
{
    const char *found = value_at(text, pointer, value);

    return found ? strtoll(found, NULL, 10) : -1;
}

static bool flag_at(const struct buf *text, const char *pointer, struct buf *value)
{
    const char *found = value_at(text, pointer, value);

    return found && strcmp(found, "true") == 0;
}

static bool read_queue(const struct buf *text, size_t i, struct state *s, struct buf *value)
{
    char pointer[64];
    const char *name;

    snprintf(pointer, sizeof pointer, "/queues/%zu/queue", i);
    name = value_at(text, pointer, value);
    if (!name)
        return false;
    s->queues = mem_realloc(s->queues, (s->n_queues + 1) * sizeof *s->queues);
    struct state_queue *q = &s->queues[s->n_queues++];

    *q = (struct state_queue){.name = mem_copy(name, strlen(name))};
    snprintf(pointer, sizeof pointer, "/queues/%zu/turned_ms_ago", i);
    q->turned_ms_ago = number_at(text, pointer, value);
    snprintf(pointer, sizeof pointer, "/queues/%zu/ready", i);
    q->ready = flag_at(text, pointer, value);
    snprintf(pointer, sizeof pointer, "/queues/%zu/fits", i);
    q->fits = flag_at(text, pointer, value);
    snprintf(pointer, sizeof pointer, "/queues/%zu/failed", i);
    q->failed = flag_at(text, pointer, value);
    return true;
}

/* What is signalled by this file must be a process, not a group, and not what is left of a larger number. */
static bool state_is_plausible(const struct state *s)
{
    for (size_t i = 0; i < s->n_queues; i++)
        if (s->queues[i].turned_ms_ago < 0)
            return false;
    return s->pid > 0 && s->pid <= INT32_MAX && (s->n_queues || (s->ended && s->status >= 0));
}

int state_read(const char *path, struct state *ret, struct fault *f)
{
    struct buf text = {0}, value = {0};
    struct state s = {0};
    int answer = read_file(path, &text, f);

    if (answer == 0) {
        s.pid = number_at(&text, "/pid", &value);
        s.process_started = number_at(&text, "/process_started", &value);
        s.age_ms = clock_wall_ms() - number_at(&text, "/written_ms", &value);
        /* One in the future is of before a restart of the machine. */
        int64_t monotonic_ms = number_at(&text, "/written_monotonic_ms", &value);
        if (monotonic_ms >= 0 && monotonic_ms <= clock_ms())
            s.age_ms = clock_ms() - monotonic_ms;
        s.draining = flag_at(&text, "/draining", &value);
        s.ended = flag_at(&text, "/ended", &value);
        s.status = number_at(&text, "/status", &value);
        while (read_queue(&text, s.n_queues, &s, &value))
            ;
        if (!state_is_plausible(&s))
            answer = fault_set(f, "%s is not the state of a sidecar", path);
    }
    buf_deinit(&text);
    buf_deinit(&value);
    if (answer)
        state_deinit(&s);
    else
        *ret = s;
    return answer;
}

bool state_is_running(const struct state *s)
{
    int64_t started = process_started(s->pid);

    if (started < 0 || (started > 0 && s->process_started <= 0))
        return true; /* it cannot be told, but there is a process of that number */
    return started == s->process_started;
}

void state_deinit(struct state *s)
{
    for (size_t i = 0; i < s->n_queues; i++)
        free(s->queues[i].name);
    mem_clear(&s->queues);
    s->n_queues = 0;
}
