/* The workers, and the configurations that they run with.
 *
 * A worker is started only when none that leaves has its name, its queue or its consumer name: with a
 * configured instance the new one would take the rows of the old one for its own of a former life. */
#include "supervisor/supervisor.h"

#include "onceward/base/clock.h"
#include "onceward/base/fault.h"
#include "onceward/base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { START_AGAIN_MS = 1000 };

/* --- versions --- */

static void version_leave(struct supervisor *s, struct version *v)
{
    struct version **at = &s->versions;

    if (--v->n_users)
        return;
    while (*at != v)
        at = &(*at)->next;
    *at = v->next;
    config_free(v->config);
    free(v);
}

void version_add(struct supervisor *s, struct config *c)
{
    struct version *v = mem_zalloc(1, sizeof(*v)), *before = s->current;

    *v = (struct version){.next = s->versions, .config = c, .n_users = 1};
    s->versions = v;
    s->current = v;
    if (before)
        version_leave(s, before);
}

/* --- slots --- */

struct slot *slot_add(struct supervisor *s, const struct config_queue *q, bool was_ready)
{
    s->slots = mem_realloc(s->slots, (s->n_slots + 1) * sizeof(*s->slots));
    s->slots[s->n_slots++] = (struct slot){.version = s->current, .queue = q, .was_ready = was_ready};
    s->current->n_users++;
    return &s->slots[s->n_slots - 1];
}

/* Said again once an interval: it has no worker, so no figures tell of it. */
static void tell_failure(struct slot *slot, const struct fault *f)
{
    struct log_line l;

    if (slot->failed && clock_ms() - slot->told_at_ms < slot->version->config->log.stats_interval_ms)
        return;
    slot->told_at_ms = clock_ms();
    log_begin(&l, EVENT_CONFIG_ERROR, slot->queue->name);
    log_text(&l, "reason", f->text);
    log_int(&l, "next_try_ms", START_AGAIN_MS);
    log_end(&l);
}

int slot_start(struct slot *slot)
{
    struct fault f = {0};

    slot->start_at_ms = clock_ms() + START_AGAIN_MS;
    if (worker_start(slot->version->config, slot->queue, &slot->worker, &f)) {
        tell_failure(slot, &f);
        slot->failed = true;
        return -1;
    }
    slot->failed = false;
    return 0;
}

void slot_leave(struct slot *slot)
{
    slot->leaving = true;
    if (slot->worker)
        worker_drain(slot->worker);
}

void slot_drain(struct slot *slot)
{
    if (slot->worker && !slot->leaving)
        worker_drain_and_stay(slot->worker);
}

bool slot_is_ready(const struct slot *slot)
{
    struct worker_pulse p = {0};

    if (slot->failed && slot->is_added)
        return false;
    if (slot->worker)
        worker_pulse(slot->worker, &p);
    return slot->was_ready || p.ready;
}

static void slot_remove(struct supervisor *s, struct slot *slot)
{
    version_leave(s, slot->version);
    s->n_slots--;
    memmove(slot, slot + 1, (size_t)(s->slots + s->n_slots - slot) * sizeof(*slot));
}

static bool slot_may_start(const struct supervisor *s, const struct slot *slot)
{
    for (size_t i = 0; i < s->n_slots; i++) {
        const struct slot *other = &s->slots[i];

        if (other->leaving && (!strcmp(other->queue->name, slot->queue->name) ||
                               !strcmp(other->queue->queue, slot->queue->queue) ||
                               !strcmp(other->queue->consumer, slot->queue->consumer)))
            return false;
    }
    return true;
}

void slots_step(struct supervisor *s)
{
    for (size_t i = 0; i < s->n_slots;) {
        struct slot *slot = &s->slots[i];

        if (slot->worker && worker_has_ended(slot->worker)) {
            worker_join(slot->worker);
            slot->worker = NULL;
        }
        if (slot->leaving && !slot->worker)
            slot_remove(s, slot);
        else
            i++;
    }
    for (size_t i = 0; i < s->n_slots; i++) {
        struct slot *slot = &s->slots[i];

        if (!s->stays && !slot->worker && !slot->leaving && clock_ms() >= slot->start_at_ms &&
            slot_may_start(s, slot))
            slot_start(slot);
    }
}

bool slots_settle(const struct supervisor *s)
{
    for (size_t i = 0; i < s->n_slots; i++)
        if (s->slots[i].leaving || !s->slots[i].start_at_ms)
            return false;
    return true;
}

bool slots_are_drained(const struct supervisor *s)
{
    struct worker_pulse p;

    for (size_t i = 0; i < s->n_slots; i++) {
        if (!s->slots[i].worker)
            continue;
        worker_pulse(s->slots[i].worker, &p);
        if (!p.drained || s->slots[i].leaving)
            return false;
    }
    return true;
}

void slots_deinit(struct supervisor *s)
{
    version_leave(s, s->current);
    mem_clear(&s->slots);
}
