/* Collects the state file's content: the process, its last reload, every queue. */
#include "sidecar/sidecar.h"

#include "onceward/base/clock.h"
#include "onceward/base/log.h"
#include "onceward/base/process.h"

#include <stdlib.h>
#include <unistd.h>

enum { EVERY_MS = 1000 };

static enum state_life life_of(const struct sidecar *s)
{
    if (s->ending == ENDING_NO || s->ending == ENDING_RELOAD || s->ending == ENDING_RANGES)
        return LIFE_RUNNING;
    for (size_t i = 0; i < s->n_queues; i++)
        if (s->queues[i].core.drain != DRAIN_DONE)
            return LIFE_DRAINING;
    return s->ending == ENDING_DRAIN && brokers_are_closed((struct sidecar *)s) ? LIFE_DRAINED
                                                                                : LIFE_DRAINING;
}

static struct state state_of(const struct sidecar *s)
{
    return (struct state){.instance = s->config->instance,
                          .start = s->file.start,
                          .pid = getpid(),
                          .process_started = process_started(getpid()),
                          .started_ms = s->started_ms,
                          .life = life_of(s),
                          .drains_until_ms = clock_wall_ms() + s->grace_ends_ms - s->now_ms,
                          .reload = s->reload};
}

static void report_failure(const struct sidecar *s, enum log_level level, const struct fault *f)
{
    struct log_line l;

    log_begin_at(&l, EVENT_STATE_FILE_FAILED, level, NULL);
    log_text(&l, "path", s->file.path);
    log_text(&l, "reason", f->text);
    log_end(&l);
}

int state_open(struct sidecar *s)
{
    struct config *c = s->config;
    struct fault f = {0};
    int answer = state_file_open(&s->file, c->state_file, c->instance_is_set ? c->instance : NULL, &f);
    bool shares_default = answer == STATE_FILE_TAKEN && !c->state_file_is_set;

    config_set_instance(c, s->file.instance);
    s->state_failed = answer != 0;
    if (shares_default)
        fault_wrap(&f, "set state_file, so that health, drain and reload find this sidecar");
    if (answer)
        report_failure(s, shares_default ? LOG_WARNING : LOG_ERROR, &f);
    return answer == STATE_FILE_TAKEN && !shares_default ? -1 : 0;
}

/* Is everything reached, and only a partition that leaves keeps the queue from its start? Other replicas may have
 * such partitions in their range until they end, and a rollout ends them only when this one is ready. */
static bool waits_for_leaving(const struct sidecar_queue *sq)
{
    return sq->core.pauses[PAUSE_LEAVING].since_ms && sq->core.generation && sq->sidecar->database.inbox &&
           sq->sidecar->applications[sq->application].reached;
}

/* Has the queue passed its first start? It has consumed once, or waits for something outside this pod. Once ready, it
 * stays ready: a probe of the present state would end pods for failures elsewhere. */
static bool is_ready(const struct sidecar_queue *sq)
{
    const struct queue *q = &sq->core;
    const struct sidecar *s = sq->sidecar;
    bool waits_outside = s->applications[sq->application].reached &&
                         (!s->database.inbox || !sq->link->broker || q->consumer.watch.no_queue);

    return q->ready || q->pauses[PAUSE_REFUSED].since_ms || q->pauses[PAUSE_STREAM].since_ms ||
           waits_for_leaving(sq) || waits_outside;
}

/* Once ready, a queue stays ready. */
static bool was_ready(struct sidecar_queue *first)
{
    first->was_ready |= sidecar_queue_all(first, is_ready);
    return first->was_ready;
}

/* Does an operator's pause alone keep the queue from its start, with broker, queue, database and application
 * reached? */
static bool is_held_by_operator(const struct sidecar_queue *sq)
{
    const struct queue *q = &sq->core;

    return q->commands.paused && q->generation && !q->limits_awaited && !q->consumer.watch.no_queue &&
           sq->sidecar->database.inbox && sq->sidecar->applications[sq->application].reached;
}

/* For rollouts, which no pause may delay, not even an operator's: see was_consuming(). */
static bool has_consumed(const struct sidecar_queue *sq)
{
    return sq->core.ready || is_held_by_operator(sq) || waits_for_leaving(sq) ||
           (sq->core.left_to_others && sq->link->broker && sq->sidecar->database.inbox);
}

/* A queue that was reached once stays so, also after a reload or a change of its range: a probe must not flap. */
static bool was_consuming(struct sidecar_queue *first)
{
    first->was_consuming |= sidecar_queue_all(first, has_consumed);
    return first->was_consuming;
}

static void write_state(struct sidecar *s, struct state *state)
{
    struct buf text = {0};
    struct fault f = {0};

    state_write(state, &text);
    bool failed = state_file_replace(&s->file, buf_slice(&text), &f) != 0;
    if (failed && !s->state_failed)
        report_failure(s, LOG_ERROR, &f);
    s->state_failed = failed;
    buf_deinit(&text);
}

void state_step(struct sidecar *s)
{
    static char only_outbox[] = "outbox";
    struct state state;

    if (s->now_ms < s->state_at_ms)
        return;
    s->state_at_ms = s->now_ms + EVERY_MS;
    state = state_of(s);
    for (size_t i = 0; i < s->n_queues; i += s->queues[i].config->n_partitions)
        state_add_queue(&state, &(struct state_queue){.name = s->queues[i].config->name,
                                                      .turned_ms_ago = 0,
                                                      .ready = was_ready(&s->queues[i]),
                                                      .consumed = was_consuming(&s->queues[i]),
                                                      .fits = !s->queues[i].refused_told});
    if (!s->n_queues)
        state_add_queue(&state, &(struct state_queue){.name = only_outbox,
                                                      .ready = outbox_is_ready(s),
                                                      .consumed = outbox_is_ready(s),
                                                      .fits = true});
    write_state(s, &state);
    state.instance = NULL; /* both belong to the configuration */
    state.reload = (struct state_reload){0};
    state_deinit(&state);
}

/* Writes the last state of the process, which lets `drain` tell an ended process from a killed one. */
void state_end(struct sidecar *s, int status)
{
    struct state state = state_of(s);
    struct buf text = {0};
    struct fault f;

    state.life = LIFE_ENDED;
    state.status = status;
    state_write(&state, &text);
    if (state_file_replace(&s->file, buf_slice(&text), &f) < 0 && s->file.is_locked)
        unlink(s->file.path);
    buf_deinit(&text);
}
