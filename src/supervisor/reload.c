/* SIGHUP, or `onceward reload`: the file is read anew. What did not change is not touched; a queue that
 * changed is drained as at the end of the process, and starts again with its new configuration. One reload at
 * a time: whoever asks meanwhile gets another one after it. */
#include "supervisor/supervisor.h"

#include "onceward/base/buf.h"
#include "onceward/base/clock.h"
#include "onceward/base/fault.h"

enum { OUTCOME_LINES = 50 };

/* For the state file. */
static void outcome_begin(struct supervisor *s, bool refused)
{
    texts_deinit(&s->told.outcome);
    s->told.refused = refused;
    s->told.ended++;
    s->state_at_ms = 0;
}

static void outcome_add(struct supervisor *s, const char *name, const struct texts *list)
{
    struct buf line = {0};

    if (!list->n)
        return;
    buf_printf(&line, "%s:", name);
    for (size_t i = 0; i < list->n && i < OUTCOME_LINES; i++)
        buf_printf(&line, "%s %s", i ? "," : "", list->items[i]);
    if (list->n > OUTCOME_LINES)
        buf_printf(&line, ", and %zu more", list->n - OUTCOME_LINES);
    texts_add(&s->told.outcome, buf_text(&line));
    buf_deinit(&line);
}

/* faults: what the log has said before; NULL: nothing. */
static void report_refused(struct supervisor *s, const char *reason, const struct texts *faults)
{
    struct log_line l;

    log_begin(&l, EVENT_RELOAD_REFUSED, NULL);
    log_text(&l, "reason", reason);
    log_text(&l, "advice", event_info(EVENT_RELOAD_REFUSED)->advice);
    log_end(&l);
    outcome_begin(s, true);
    for (size_t i = 0; faults && i < faults->n && i < OUTCOME_LINES; i++)
        texts_add(&s->told.outcome, faults->items[i]);
    texts_add(&s->told.outcome, reason);
}

static void outcome_reloaded(struct supervisor *s, const struct texts *not_started)
{
    const struct config_diff *d = &s->diff;

    outcome_begin(s, false);
    outcome_add(s, "changed", &d->changed);
    outcome_add(s, "added", &d->added);
    outcome_add(s, "removed", &d->removed);
    outcome_add(s, "unchanged", &d->unchanged);
    outcome_add(s, "changed keys", &d->changed_keys);
    outcome_add(s, "need a restart", &d->needs_restart);
    outcome_add(s, "not started yet", not_started);
}

static void report_reloaded(struct supervisor *s)
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
    outcome_reloaded(s, &not_started);
    texts_deinit(&not_started);
}

/* Before anything is drained: can all that is to be started be started? */
static bool can_start(const struct config *c, const struct config_diff *d, struct texts *faults)
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
        fault_wrap(&f, "%s", q->name);
        texts_add(faults, f.text);
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

static void reload_try(struct supervisor *s, struct texts *faults)
{
    struct config_diff diff;
    struct config *next = s->load(s->path, faults);

    if (!next) {
        report_refused(s, "the file is not valid: see config_error; the old configuration stays", faults);
        return;
    }
    config_compare(s->current->config, next, &diff);
    config_keep(next, s->current->config);
    if (!can_start(next, &diff, faults)) {
        report_refused(
            s, "a queue could not be started with it: see config_error; the old configuration stays", faults);
        config_diff_deinit(&diff);
        config_free(next);
        return;
    }
    s->diff = diff;
    s->reloads = true;
    apply_now(s, next);
    version_add(s, next);
    replace_queues(s);
}

static void reload_begin(struct supervisor *s)
{
    struct texts faults = {0};

    s->reload_asked = false;
    s->reload_began_ms = clock_ms();
    s->told.begun++;
    s->state_at_ms = 0;
    reload_try(s, &faults);
    texts_deinit(&faults);
}

/* Whoever waits for it learns that it will not come. */
static void reload_give_up(struct supervisor *s)
{
    static const char reason[] = "the sidecar is about to end, or was drained";

    if (s->reload_asked) {
        s->told.begun++;
        report_refused(s, reason, NULL);
    } else if (s->reloads) {
        outcome_begin(s, true);
        texts_add(&s->told.outcome, reason);
    }
    s->reload_asked = false;
}

static void reload_end(struct supervisor *s)
{
    log_set_level(s->current->config->log.level);
    config_diff_deinit(&s->diff);
    s->reloads = false;
}

void reload_step(struct supervisor *s)
{
    bool over = s->n_asked || s->stays;

    if (over)
        reload_give_up(s);
    if (s->reload_asked && !s->reloads)
        reload_begin(s);
    slots_step(s);
    if (!s->reloads || (!slots_settle(s) && !over))
        return;
    if (!over)
        report_reloaded(s);
    reload_end(s);
}
