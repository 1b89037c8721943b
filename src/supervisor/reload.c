/* SIGHUP: the file is read anew. What did not change is not touched; a queue that changed is drained as at
 * the end of the process, and starts again with its new configuration. One reload at a time: whoever asks
 * meanwhile gets another one after it. */
#include "supervisor/supervisor.h"

#include "onceward/base/clock.h"
#include "onceward/base/fault.h"

static void log_refused(const char *reason)
{
    struct log_line l;

    log_begin(&l, EVENT_RELOAD_REFUSED, NULL);
    log_text(&l, "reason", reason);
    log_text(&l, "advice", event_info(EVENT_RELOAD_REFUSED)->advice);
    log_end(&l);
}

static void log_reloaded(const struct supervisor *s)
{
    const struct config_diff *d = &s->diff;
    struct log_line l;
    struct texts not_started = {0};
    bool good;

    for (size_t i = 0; i < s->n_slots; i++)
        if (s->slots[i].failed)
            texts_add(&not_started, s->slots[i].queue->name);
    good = !d->needs_restart.n && !not_started.n;
    log_begin_at(&l, EVENT_RELOADED, good ? LOG_INFO : LOG_WARNING, NULL);
    log_int(&l, "took_ms", clock_ms() - s->reload_began_ms);
    log_texts(&l, "changed_keys", &d->changed_keys);
    log_texts(&l, "needs_restart", &d->needs_restart);
    log_texts(&l, "unchanged", &d->unchanged);
    log_texts(&l, "changed", &d->changed);
    log_texts(&l, "added", &d->added);
    log_texts(&l, "removed", &d->removed);
    if (not_started.n)
        log_texts(&l, "not_started", &not_started);
    log_end(&l);
    texts_deinit(&not_started);
}

/* Before anything is drained: can all that is to be started be started? */
static bool can_start(const struct config *c, const struct config_diff *d)
{
    struct fault f = {0};
    struct log_line l;
    bool all = true;

    for (size_t i = 0; i < c->n_queues; i++) {
        const struct config_queue *q = &c->queues[i];

        if (texts_has(&d->unchanged, q->name) || !worker_check(c, q, &f))
            continue;
        log_begin(&l, EVENT_CONFIG_ERROR, q->name);
        log_text(&l, "reason", f.text);
        log_end(&l);
        all = false;
    }
    return all;
}

/* A level that hides more waits for the line that says so. */
static void apply_now(struct supervisor *s, const struct config *next)
{
    enum log_level before = s->current->config->log.level, after = next->log.level;

    for (struct version *v = s->versions; v; v = v->next)
        config_apply_now(v->config, next);
    log_set_level(before < after ? before : after);
}

static void replace_queues(struct supervisor *s)
{
    const struct config *c = s->current->config;
    const struct config_diff *d = &s->diff;
    size_t n_before = s->n_slots;
    bool ready = true;

    for (size_t i = 0; i < n_before; i++)
        ready &= slot_is_ready(&s->slots[i]);
    for (size_t i = 0; i < n_before; i++) {
        const char *name = s->slots[i].queue->name;

        if (texts_has(&d->unchanged, name))
            continue;
        slot_leave(&s->slots[i]);
        if (!texts_has(&d->changed, name))
            continue;
        bool was_ready = slot_is_ready(&s->slots[i]), was_added = s->slots[i].failed && s->slots[i].is_added;

        slot_add(s, config_find_queue(c, name), was_ready)->is_added = was_added;
    }
    for (size_t i = 0; i < d->added.n; i++)
        slot_add(s, config_find_queue(c, d->added.items[i]), ready)->is_added = true;
}

static void reload_begin(struct supervisor *s)
{
    struct config_diff diff;

    s->reload_asked = false;
    s->reload_began_ms = clock_ms();
    struct config *next = s->load(s->path);
    if (!next) {
        log_refused("the file is not valid: see config_error; the old configuration stays");
        return;
    }
    config_compare(s->current->config, next, &diff);
    config_keep(next, s->current->config);
    if (!can_start(next, &diff)) {
        log_refused("a queue could not be started with it: see config_error; the old configuration stays");
        config_diff_deinit(&diff);
        config_free(next);
        return;
    }
    s->diff = diff;
    s->reloads = true;
    apply_now(s, next);
    version_add(s, next);
    replace_queues(s);
    s->state_at_ms = 0;
}

static void reload_end(struct supervisor *s)
{
    log_set_level(s->current->config->log.level);
    config_diff_deinit(&s->diff);
    s->reloads = false;
}

void reload_step(struct supervisor *s)
{
    if (s->n_asked && s->reload_asked)
        log_refused("the sidecar is about to end");
    if (s->n_asked)
        s->reload_asked = false;
    if (s->reload_asked && !s->reloads)
        reload_begin(s);
    slots_step(s);
    if (!s->reloads || (!slots_settle(s) && !s->n_asked))
        return;
    if (!s->n_asked)
        log_reloaded(s);
    reload_end(s);
}
