/* Presence and levers: every few seconds one call for all queues says what this instance does, and learns who
 * else is there and what operators want.
 *
 * An instance is gone when three calls in a row, over ten seconds of this side's clock, found its counter
 * unchanged (design section 5.7). */
#include "sidecar/sidecar.h"

#include "onceward/base/log.h"
#include "onceward/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EVERY_MS = 5000, GONE_MS = 10000, N_SAME = 3, SEEN_MS = 10000 };

static struct replica *replica_of(struct sidecar_presence *p, const char *instance)
{
    for (size_t i = 0; i < p->n; i++)
        if (!strcmp(p->replicas[i].instance, instance))
            return &p->replicas[i];
    p->replicas = mem_realloc(p->replicas, (p->n + 1) * sizeof(*p->replicas));
    p->replicas[p->n] = (struct replica){.instance = mem_copy(instance, strlen(instance)), .counter = -1};
    return &p->replicas[p->n++];
}

static void saw(struct sidecar *s, struct replica *r, int64_t counter)
{
    if (counter != r->counter) {
        r->counter = counter;
        r->changed_ms = s->now_ms;
        r->n_same = 0;
        r->gone = false;
        return;
    }
    r->n_same++;
    r->gone = r->n_same >= N_SAME && s->now_ms - r->changed_ms >= GONE_MS;
}

static void tell_gone(struct sidecar *s)
{
    const char **gone = mem_zalloc(s->presence.n + 1, sizeof(*gone));
    size_t n = 0;

    for (size_t i = 0; i < s->presence.n; i++)
        if (s->presence.replicas[i].gone)
            gone[n++] = s->presence.replicas[i].instance;
    inbox_set_gone(s->database.inbox, gone, n);
    free(gone);
}

static void tell_others(struct sidecar *s, const struct inbox_presence *p)
{
    for (size_t i = 0; i < s->n_lanes; i++) {
        int n = 0;

        for (size_t k = 0; k < p->n_replicas; k++)
            n += p->replicas[k].consumes[i] &&
                 s->now_ms - replica_of(&s->presence, p->replicas[k].instance)->changed_ms < SEEN_MS;
        queue_presence(&s->lanes[i].core, s->now_ms, n);
    }
}

static void pull_levers(struct sidecar *s, const struct inbox_presence *p)
{
    for (size_t i = 0; i < s->n_lanes; i++) {
        const struct inbox_control *c = NULL;
        char why[256] = "";

        for (size_t k = 0; k < p->n_controls; k++)
            if (p->controls[k].queue == i)
                c = &p->controls[k];
        if (c)
            snprintf(why, sizeof(why), "%s%s%s", c->by, *c->by && *c->reason ? ": " : "", c->reason);
        queue_lever_pause(&s->lanes[i].core, s->now_ms, c && c->paused, why);
        buf_reset(&s->presence.json);
        for (size_t k = 0; c && k < c->n_give_up; k++) {
            buf_add_slice(&s->presence.json, c->give_up[k]);
            buf_add_char(&s->presence.json, '\0');
        }
        queue_lever_give_up(&s->lanes[i].core, s->now_ms, false, s->presence.json.data, s->presence.json.len);
        s->lanes[i].touched = true;
    }
}

static void answered(struct sidecar *s)
{
    struct inbox_presence p;
    struct fault f = {0};
    int got = inbox_presence(s->database.inbox, &p, &f);

    if (!got)
        return;
    s->presence.asked = false;
    if (got < 0)
        return;
    for (size_t i = 0; i < p.n_replicas; i++)
        saw(s, replica_of(&s->presence, p.replicas[i].instance), p.replicas[i].counter);
    tell_gone(s);
    tell_others(s, &p);
    pull_levers(s, &p);
    if (p.namesake && !s->presence.told_namesake) {
        s->presence.told_namesake = true;
        report_reason(&s->lanes[0], EVENT_LIMITS,
                      "another sidecar runs under this one's `instance`: give each its own, or none");
    }
}

static void states(struct sidecar *s)
{
    struct buf *b = &s->presence.json;

    buf_reset(b);
    buf_add_char(b, '[');
    for (size_t i = 0; i < s->n_lanes; i++) {
        const struct lane *l = &s->lanes[i];
        bool consuming = l->core.consumer.state == CONSUMER_ACTIVE && !l->core.left_to_others;

        buf_add_text(b, i ? ", {\"queue\": " : "{\"queue\": ");
        buf_add_json(b, slice_of(l->config->queue));
        buf_add_text(b, ", \"consumer\": ");
        buf_add_json(b, slice_of(l->config->consumer));
        buf_printf(b, ", \"state\": \"%s\", \"in_flight\": %zu, \"held\": %zu, \"limit\": %d}",
                   consuming && queue_state(&l->core) == QUEUE_CONSUMING
                       ? "consuming"
                       : queue_states[queue_state(&l->core)].name,
                   l->core.held.n_out, queue_n_held(&l->core), (int)l->core.limiter.limit);
    }
    buf_add_char(b, ']');
}

void replicas_step(struct sidecar *s)
{
    struct sidecar_presence *p = &s->presence;

    if (!s->database.inbox) {
        if (p->asked)
            for (size_t i = 0; i < s->n_lanes; i++)
                queue_presence(&s->lanes[i].core, s->now_ms, 0); /* unsure: nobody */
        p->asked = false;
        return;
    }
    if (p->asked && p->life == s->database.core.life)
        answered(s);
    if (s->now_ms < p->at_ms || (p->asked && p->life == s->database.core.life))
        return;
    states(s);
    inbox_ask_registration(s->database.inbox);
    inbox_ask_presence(s->database.inbox, ONCEWARD_VERSION, buf_slice(&p->json));
    p->asked = true;
    p->life = s->database.core.life;
    p->at_ms = s->now_ms + EVERY_MS;
}

void replicas_deinit(struct sidecar *s)
{
    for (size_t i = 0; i < s->presence.n; i++)
        free(s->presence.replicas[i].instance);
    free(s->presence.replicas);
    buf_deinit(&s->presence.json);
}
