/* What the state file is told: of the process, of its last reload, of every queue. */
#include "supervisor/supervisor.h"

#include "onceward/base/buf.h"
#include "onceward/base/clock.h"
#include "onceward/base/fault.h"
#include "onceward/base/process.h"
#include "onceward/sidecar/state.h"

#include <stdlib.h>
#include <unistd.h>

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

static void add_queue(struct state *to, const struct slot *slot)
{
    struct worker_pulse p = {.turned_ms = clock_ms()}; /* one that is about to start lacks nothing */

    if (slot->worker)
        worker_pulse(slot->worker, &p);
    state_add_queue(to, &(struct state_queue){.name = slot->queue->name,
                                              .turned_ms_ago = clock_ms() - p.turned_ms,
                                              .ready = slot_is_ready(slot),
                                              .fits = !p.fatal,
                                              .failed = slot->failed});
}

static enum state_life life_of(const struct supervisor *s)
{
    if (!s->n_asked && !s->stays)
        return LIFE_RUNNING;
    return s->stays && slots_are_drained(s) ? LIFE_DRAINED : LIFE_DRAINING;
}

static struct state state_of(const struct supervisor *s)
{
    return (struct state){.instance = s->current->config->instance,
                          .start = s->file.start,
                          .pid = getpid(),
                          .process_started = process_started(getpid()),
                          .started_ms = s->started_ms,
                          .life = life_of(s),
                          .reload = s->told};
}

static void report_failure(const struct supervisor *s, const struct fault *f)
{
    struct log_line l;

    log_begin(&l, EVENT_STATE_FILE_FAILED, NULL);
    log_text(&l, "path", s->file.path);
    log_text(&l, "reason", f->text);
    log_end(&l);
}

int state_open(struct supervisor *s)
{
    struct config *c = s->current->config;
    struct fault f = {0};
    int answer = state_file_open(&s->file, c->state_file, c->instance_is_set ? c->instance : NULL, &f);

    config_set_instance(c, s->file.instance);
    s->state_failed = answer != 0;
    if (answer)
        report_failure(s, &f);
    return answer == STATE_FILE_TAKEN ? -1 : 0;
}

void state_tell(struct supervisor *s)
{
    struct state state = state_of(s);
    struct buf text = {0};
    struct fault f = {0};

    for (size_t i = 0; i < s->n_slots; i++)
        if (!is_hidden(s, &s->slots[i]))
            add_queue(&state, &s->slots[i]);
    state_write(&state, &text);
    bool failed = state_file_replace(&s->file, buf_slice(&text), &f) != 0;
    if (failed && !s->state_failed)
        report_failure(s, &f);
    s->state_failed = failed;
    s->told_life = state.life;
    state.instance = NULL; /* both are not its own */
    state.reload = (struct state_reload){0};
    state_deinit(&state);
    buf_deinit(&text);
}

/* What is left when the process ends: so `drain` can tell one that has ended from one that was killed. */
void state_end(struct supervisor *s, int status)
{
    struct state state = state_of(s);
    struct buf text = {0};
    struct fault f;

    state.life = LIFE_ENDED;
    state.status = status;
    state_write(&state, &text);
    if (state_file_replace(&s->file, buf_slice(&text), &f) < 0)
        unlink(s->file.path);
    buf_deinit(&text);
}
