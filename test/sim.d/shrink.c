/* Finds the shortest plan that breaks the same promise: see run.h. */
#include "run.h"

#include "onceward/base/mem.h"

#include <string.h>

struct shrinking {
    struct plan *best;
    struct outcome *o;
    int n_left;
};

/* Does the candidate break the same promise? Then it becomes the best plan. */
static bool accept(struct shrinking *s, struct plan *candidate)
{
    struct outcome o;

    if (s->n_left-- <= 0) {
        plan_deinit(candidate);
        return false;
    }
    run_plan(candidate, TRACE_NONE, &o, NULL, NULL);
    if (!o.broken || strcmp(o.check, s->o->check) != 0) {
        plan_deinit(candidate);
        return false;
    }
    plan_deinit(s->best);
    *s->best = *candidate;
    *s->o = o;
    return true;
}

static void remove_range(void *items, size_t size, size_t *n, size_t at, size_t len)
{
    memmove((char *)items + at * size, (char *)items + (at + len) * size, (*n - at - len) * size);
    *n -= len;
}

/* Tries to leave out halves, quarters, … of the messages or the faults. */
static bool without_parts(struct shrinking *s, bool faults)
{
    bool any = false;
    size_t n = faults ? s->best->n_faults : s->best->n_messages;

    for (size_t len = n > 1 ? n / 2 : n; len; len /= 2)
        for (size_t at = 0; at < (faults ? s->best->n_faults : s->best->n_messages) && s->n_left > 0;) {
            struct plan c;
            size_t have = faults ? s->best->n_faults : s->best->n_messages,
                   take = at + len > have ? have - at : len;

            plan_copy(&c, s->best);
            if (faults)
                remove_range(c.faults, sizeof(*c.faults), &c.n_faults, at, take);
            else
                remove_range(c.messages, sizeof(*c.messages), &c.n_messages, at, take);
            if (accept(s, &c))
                any = true;
            else
                at += len;
        }
    return any;
}

static bool without_rates(struct shrinking *s)
{
    bool any = false;

    for (int d = 1; d < N_DEEDS; d++) {
        struct plan c;

        if (!s->best->application.rates[d])
            continue;
        plan_copy(&c, s->best);
        c.application.rates[d] = 0;
        any |= accept(s, &c);
    }
    return any;
}

static bool simpler(struct shrinking *s)
{
    struct plan c;
    bool any = false;

    if (s->best->n_sidecars > 1) {
        plan_copy(&c, s->best);
        c.n_sidecars--;
        for (size_t i = 0; i < c.n_faults; i++)
            if (c.faults[i].sidecar >= c.n_sidecars)
                c.faults[i].sidecar = 0;
        any |= accept(s, &c);
    }
    if (s->best->n_queues > 1) {
        plan_copy(&c, s->best);
        c.n_queues = 1;
        for (size_t i = 0; i < c.n_messages; i++)
            c.messages[i].queue = 0;
        for (size_t i = 0; i < c.n_faults; i++)
            c.faults[i].queue = 0;
        any |= accept(s, &c);
    }
    if (s->best->jitter) {
        plan_copy(&c, s->best);
        c.jitter = false;
        any |= accept(s, &c);
    }
    return any;
}

void shrink_plan(struct plan *p, struct outcome *o, int n_tries)
{
    struct shrinking s = {p, o, n_tries};
    bool any = true;

    while (any && s.n_left > 0) {
        any = without_parts(&s, true);
        any |= without_parts(&s, false);
        any |= without_rates(&s);
        any |= simpler(&s);
    }
}
