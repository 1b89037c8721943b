/* Presence: every few seconds one call for all queues says what this instance does, and learns who else is
 * there and what operators want.
 *
 * An instance is gone when three calls in a row, over ten seconds of this side's clock, found its counter
 * unchanged. */
#include "sidecar/sidecar.h"

#include "onceward/base/failpoint.h"
#include "onceward/base/log.h"
#include "onceward/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Five seconds between two calls are promised to operators: TIME(PRESENCE) and what the call takes. */
enum { GONE_MS = 10000, N_SAME = 3, SEEN_MS = 10000 };

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
    r->is_there = true;
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

/* Those that the database has forgotten: it keeps them for a day. */
static void forget_others(struct sidecar_presence *p)
{
    size_t n = 0;

    for (size_t i = 0; i < p->n; i++) {
        struct replica r = p->replicas[i];

        if (r.is_there)
            p->replicas[n++] = r;
        else
            free(r.instance);
    }
    p->n = n;
    for (size_t i = 0; i < n; i++)
        p->replicas[i].is_there = false;
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

/* Nothing is begun before the levers were read once: so that is said, and it is tried again. */
static void failed(struct sidecar *s, const struct fault *f)
{
    enum { AGAIN_MS = 60000 };
    struct log_line l;

    if (s->presence.told_failed_ms && s->now_ms - s->presence.told_failed_ms < AGAIN_MS)
        return;
    s->presence.told_failed_ms = s->now_ms;
    log_begin(&l, EVENT_DATABASE_ERROR, NULL);
    log_text(&l, "sqlstate", f->code);
    log_text(&l, "reason", f->text);
    log_end(&l);
}

static void answered(struct sidecar *s)
{
    struct inbox_presence p;
    struct fault f = {0};
    int got = inbox_presence(s->database.inbox, &p, &f);

    if (!got)
        return;
    s->presence.asked = false;
    if (got < 0) {
        failed(s, &f);
        return;
    }
    for (size_t i = 0; i < p.n_replicas; i++)
        saw(s, replica_of(&s->presence, p.replicas[i].instance), p.replicas[i].counter);
    forget_others(&s->presence);
    tell_gone(s);
    tell_others(s, &p);
    levers_pull(s, &p);
    if (p.namesake && !s->presence.told_namesake && s->n_lanes) {
        s->presence.told_namesake = true;
        report_reason(&s->lanes[0], EVENT_LIMITS,
                      "another sidecar runs under this one's `instance`: give each its own, or none");
    }
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
    if (p->life != s->database.core.life) {
        for (size_t i = 0; i < p->n; i++) /* while there was no database, nobody could show that he lives */
            p->replicas[i].n_same = 0;
    }
    shown_write(s, &p->json);
    inbox_ask_registration(s->database.inbox);
    inbox_ask_presence(s->database.inbox, ONCEWARD_VERSION, buf_slice(&p->json));
    p->asked = true;
    p->life = s->database.core.life;
    p->at_ms = s->now_ms + FAILPOINT_MS(PRESENCE);
}

int64_t replicas_due_ms(const struct sidecar *s)
{
    return s->database.inbox && !s->presence.asked ? s->presence.at_ms : INT64_MAX;
}

void replicas_deinit(struct sidecar *s)
{
    for (size_t i = 0; i < s->presence.n; i++)
        free(s->presence.replicas[i].instance);
    free(s->presence.replicas);
    buf_deinit(&s->presence.json);
}
