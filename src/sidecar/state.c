/* Writes and reads the text of the state file. The file is replaced as a whole, so a reader never sees half of it. It
 * may come from a sidecar that was killed. Its age is measured by the clock that never jumps. Pure, except for
 * reading the file and the clocks; any thread. */

#include "onceward/sidecar/state.h"

#include "onceward/base/buf.h"
#include "onceward/base/clock.h"
#include "onceward/base/fault.h"
#include "onceward/base/mem.h"
#include "onceward/base/process.h"
#include "onceward/config/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const life_names[] = {
    [LIFE_RUNNING] = "running",
    [LIFE_DRAINING] = "draining",
    [LIFE_DRAINED] = "drained",
    [LIFE_ENDED] = "ended",
};

enum { N_LIVES = sizeof(life_names) / sizeof(*life_names) };

/* --- to the file --- */

static const char *flag(bool yes)
{
    return yes ? "true" : "false";
}

static void write_queue(const struct state_queue *q, struct buf *out)
{
    buf_add_text(out, "{\"queue\":");
    buf_add_json(out, slice_of(q->name));
    buf_printf(out,
               ",\"turned_ms_ago\":%lld,\"live\":%s,\"ready\":%s,\"consumed\":%s,\"fits\":%s,\"failed\":%s}",
               (long long)q->turned_ms_ago, flag(q->turned_ms_ago < STATE_STALE_MS), flag(q->ready),
               flag(q->consumed), flag(q->fits), flag(q->failed));
}

static void write_reload(const struct state_reload *r, struct buf *out)
{
    buf_printf(out, ",\"reload\":{\"begun\":%lld,\"ended\":%lld,\"refused\":%s,\"outcome\":[",
               (long long)r->begun, (long long)r->ended, flag(r->refused));
    for (size_t i = 0; i < r->outcome.n; i++) {
        if (i)
            buf_add_char(out, ',');
        buf_add_json(out, slice_of(r->outcome.items[i]));
    }
    buf_add_text(out, "]}");
}

void state_write(const struct state *s, struct buf *out)
{
    buf_printf(out, "{\"pid\":%lld,\"process_started\":%lld,\"version\":\"%s\"", (long long)s->pid,
               (long long)s->process_started, ONCEWARD_VERSION);
    if (s->instance) {
        buf_add_text(out, ",\"instance\":");
        buf_add_json(out, slice_of(s->instance));
    }
    buf_printf(out,
               ",\"start\":%lld,\"started_ms\":%lld,\"written_ms\":%lld,\"written_monotonic_ms\":%lld,"
               "\"state\":\"%s\",\"draining\":%s,\"drained\":%s",
               (long long)s->start, (long long)s->started_ms, (long long)clock_wall_ms(),
               (long long)clock_ms(), life_names[s->life],
               flag(s->life == LIFE_DRAINING || s->life == LIFE_DRAINED), flag(s->life == LIFE_DRAINED));
    if (s->life == LIFE_DRAINING)
        buf_printf(out, ",\"drains_until_ms\":%lld", (long long)s->drains_until_ms);
    if (s->life == LIFE_ENDED) {
        buf_printf(out, ",\"ended\":true,\"status\":%lld}\n", (long long)s->status);
        return;
    }
    write_reload(&s->reload, out);
    buf_add_text(out, ",\"queues\":[");
    for (size_t i = 0; i < s->n_queues; i++) {
        if (i)
            buf_add_char(out, ',');
        write_queue(&s->queues[i], out);
    }
    buf_add_text(out, "]}\n");
}

void state_add_queue(struct state *s, const struct state_queue *q)
{
    s->queues = mem_realloc(s->queues, (s->n_queues + 1) * sizeof(*s->queues));
    s->queues[s->n_queues] = *q;
    s->queues[s->n_queues++].name = mem_copy(q->name, strlen(q->name));
}

/* --- from the file --- */

struct reading {
    struct buf text;
    struct buf value; /* of the latest lookup */
};

static int read_file(const char *path, struct buf *out, struct fault *f)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");

    if (!file)
        return fault_set(f, "no sidecar is running here: %s: %s", path, strerror(errno));
    out->len = fread(buf_reserve(out, JSON_BODY_MAX), 1, JSON_BODY_MAX, file);
    fclose(file);
    return 0;
}

/* Reads the value at a pointer as text, or NULL. Valid until the next lookup. */
static const char *value_at(struct reading *r, const char *pointer)
{
    buf_reset(&r->value);
    return jsonread_pointer(buf_slice(&r->text), slice_of(pointer), &r->value) ? NULL : buf_text(&r->value);
}

static int64_t number_at(struct reading *r, const char *pointer)
{
    const char *found = value_at(r, pointer);

    return found ? strtoll(found, NULL, 10) : -1;
}

static bool flag_at(struct reading *r, const char *pointer)
{
    const char *found = value_at(r, pointer);

    return found && strcmp(found, "true") == 0;
}

/* Makes "/queues/3/ready": a field of the i-th element of a list. */
static const char *pointer_to(char *room, size_t size, const char *list, size_t i, const char *field)
{
    snprintf(room, size, "%s/%zu%s", list, i, field);
    return room;
}

static bool read_queue(struct reading *r, size_t i, struct state *s)
{
    char at[64];
    const char *name = value_at(r, pointer_to(at, sizeof(at), "/queues", i, "/queue"));

    if (!name)
        return false;
    state_add_queue(s, &(struct state_queue){.name = (char *)name});
    struct state_queue *q = &s->queues[s->n_queues - 1];

    q->turned_ms_ago = number_at(r, pointer_to(at, sizeof(at), "/queues", i, "/turned_ms_ago"));
    q->ready = flag_at(r, pointer_to(at, sizeof(at), "/queues", i, "/ready"));
    q->fits = flag_at(r, pointer_to(at, sizeof(at), "/queues", i, "/fits"));
    q->consumed = flag_at(r, pointer_to(at, sizeof(at), "/queues", i, "/consumed"));
    q->failed = flag_at(r, pointer_to(at, sizeof(at), "/queues", i, "/failed"));
    return true;
}

static void read_reload(struct reading *r, struct state_reload *reload)
{
    char at[64];
    const char *line;

    reload->begun = number_at(r, "/reload/begun");
    reload->ended = number_at(r, "/reload/ended");
    reload->refused = flag_at(r, "/reload/refused");
    for (size_t i = 0; (line = value_at(r, pointer_to(at, sizeof(at), "/reload/outcome", i, ""))); i++)
        texts_add(&reload->outcome, line);
}

static enum state_life read_life(struct reading *r)
{
    const char *name = value_at(r, "/state");

    for (int i = 0; name && i < N_LIVES; i++)
        if (!strcmp(name, life_names[i]))
            return (enum state_life)i;
    if (flag_at(r, "/ended")) /* the file of an earlier version has only the flags */
        return LIFE_ENDED;
    return flag_at(r, "/draining") ? LIFE_DRAINING : LIFE_RUNNING;
}

static int64_t read_age_ms(struct reading *r)
{
    int64_t age_ms = clock_wall_ms() - number_at(r, "/written_ms"),
            written_ms = number_at(r, "/written_monotonic_ms");

    /* A time in the future is from before a restart of the machine. */
    return written_ms >= 0 && written_ms <= clock_ms() ? clock_ms() - written_ms : age_ms;
}

static void read_state(struct reading *r, struct state *s)
{
    const char *instance = value_at(r, "/instance");

    s->instance = instance ? mem_copy(instance, strlen(instance)) : NULL;
    s->start = number_at(r, "/start");
    s->pid = number_at(r, "/pid");
    s->process_started = number_at(r, "/process_started");
    s->started_ms = number_at(r, "/started_ms");
    s->age_ms = read_age_ms(r);
    s->life = read_life(r);
    s->status = number_at(r, "/status");
    s->drains_until_ms = number_at(r, "/drains_until_ms");
    read_reload(r, &s->reload);
    while (read_queue(r, s->n_queues, s))
        ;
}

/* Is the process id positive (not a group) and not truncated? */
static bool state_is_plausible(const struct state *s)
{
    for (size_t i = 0; i < s->n_queues; i++)
        if (s->queues[i].turned_ms_ago < 0)
            return false;
    return s->pid > 0 && s->pid <= INT32_MAX && (s->n_queues || (s->life == LIFE_ENDED && s->status >= 0));
}

int state_read(const char *path, struct state *ret, struct fault *f)
{
    struct reading r = {0};
    struct state s = {0};
    int answer = read_file(path, &r.text, f);

    if (answer == 0) {
        read_state(&r, &s);
        if (!state_is_plausible(&s))
            answer = fault_set(f, "%s is not the state of a sidecar", path);
    }
    buf_deinit(&r.text);
    buf_deinit(&r.value);
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
        return true; /* the process is unknown, but one with that number exists */
    return started == s->process_started;
}

void state_deinit(struct state *s)
{
    for (size_t i = 0; i < s->n_queues; i++)
        free(s->queues[i].name);
    mem_clear(&s->queues);
    mem_clear(&s->instance);
    texts_deinit(&s->reload.outcome);
    s->n_queues = 0;
}
