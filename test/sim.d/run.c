/* A run of a plan: see run.h. */
#include "run.h"

#include "broker_sim.h"
#include "database_sim.h"
#include "faults.h"
#include "operator_sim.h"
#include "oracle.h"
#include "random.h"
#include "sidecar_sim.h"

#include "onceward/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SECOND = 1000000 };

static struct truth *truth_of(struct world *w, int number)
{
    for (size_t i = 0; i < w->n_truths; i++)
        if (w->truths[i].number == number)
            return &w->truths[i];
    return NULL;
}

static int key_of(const struct plan *p, const struct plan_message *m)
{
    int n = p->queues[m->queue].n_keys;

    return n ? (m->number + m->other_key) % n : -1;
}

static void publish(struct world *w, void *object, uint64_t truth, uint64_t unused)
{
    const struct plan_message *m = object;
    struct truth *t = &w->truths[truth];
    bool is_first = !t->published_as;
    struct copy *copy;

    (void)unused;
    t->n_open_copies--; /* counted as open before its publish */
    if (!t->published_us)
        t->published_us = w->now_us;
    copy = broker_publish(w, t, m->other_body, m->bytes);
    copy->key = key_of(w->plan, m);
    if (is_first)
        t->key = copy->key;
}

/* Publishes twins behind their originals. */
static void publish_all(struct world *w)
{
    const struct plan *p = w->plan;

    w->truths = world_alloc(w, (p->n_messages + 1) * sizeof(*w->truths));
    for (int twins = 0; twins < 2; twins++)
        for (size_t i = 0; i < p->n_messages; i++) {
            const struct plan_message *m = &p->messages[i];
            struct truth *t = m->twin_of >= 0 && twins ? truth_of(w, m->twin_of) : NULL;

            if (twins != (m->twin_of >= 0))
                continue;
            if (!t) {
                t = &w->truths[w->n_truths++];
                *t = (struct truth){.number = m->number,
                                    .queue = m->queue,
                                    .character = m->character,
                                    .param = m->param,
                                    .bytes = m->bytes};
                t->row.unproven_us = -1;
                t->key = key_of(p, m);
                t->id_len = (size_t)snprintf(t->id, sizeof(t->id), "m%d", m->number);
            }
            t->n_open_copies++;
            t->other_body |= m->other_body;
            world_at(w, WORLD_START_US + m->at_us, publish, (void *)m, (uint64_t)(t - w->truths), 0);
        }
}

static void break_it(struct world *w, void *object, uint64_t unused, uint64_t unused2)
{
    (void)unused;
    (void)unused2;
    fault_begins(w, object);
}

static void second(struct world *w, void *object, uint64_t unused, uint64_t unused2)
{
    (void)object;
    (void)unused;
    (void)unused2;
    oracle_second(w);
    operator_second(w);
    world_at(w, w->now_us + SECOND, second, NULL, 0, 0);
}

static void set_up(struct world *w)
{
    const struct plan *p = w->plan;

    oracle_init(w);
    broker_sim_init(w);
    database_sim_init(w);
    for (int i = 0; i < p->n_sidecars; i++)
        sidecar_create(w, i);
    publish_all(w);
    for (int i = 0; i < p->n_sidecars; i++)
        sidecar_start(w, w->sidecars[i]);
    for (size_t i = 0; i < p->n_faults; i++)
        world_at(w, WORLD_START_US + p->faults[i].at_us, break_it, &p->faults[i], 0, 0);
    world_at(w, w->now_us, second, NULL, 0, 0);
}

/* Ends all faults. */
static void make_quiet(struct world *w)
{
    TRACE(w, "nothing breaks any more");
    w->quiet = true;
    w->broker->up = w->database->up = true;
    w->database->full = w->database->retries = false;
    w->database->mended_us = w->now_us;
    for (int i = 0; i < w->plan->n_sidecars; i++) {
        struct sidecar *s = w->sidecars[i];

        s->kill_at = 0;
        s->app.forced = 0;
        s->app.slower = 1;
        s->app.hangs = false;
        s->app.back_us = 0;
        for (int q = 0; q < w->plan->n_queues; q++)
            sidecar_pause(w, s, q, false);
        if (!s->app.up)
            app_sim_start(w, &s->app);
    }
}

static bool run_until(struct world *w, int64_t at_us, bool stop_when_settled)
{
    int64_t look_us = w->now_us;

    while (!w->ended && w->n_heap && w->heap[1].at_us <= at_us) {
        if (!world_step(w))
            break;
        if (stop_when_settled && w->now_us >= look_us) {
            look_us = w->now_us + SECOND / 4;
            if (oracle_is_settled(w))
                return true;
        }
    }
    if (!w->ended && w->now_us < at_us)
        w->now_us = at_us;
    return oracle_is_settled(w);
}

/* Drains all sidecars at the end, which must end within the grace period and leave nothing behind. */
static void drain_all(struct world *w)
{
    enum { GRACE_US = 40000000 };
    int64_t thawed_us = w->now_us;

    w->closing = true;
    for (int i = 0; i < w->plan->n_sidecars; i++)
        if (w->sidecars[i]->frozen_until_us > thawed_us)
            thawed_us = w->sidecars[i]->frozen_until_us;
    run_until(w, thawed_us, false);
    for (int i = 0; i < w->plan->n_sidecars; i++)
        sidecar_drain(w, w->sidecars[i], 0);
    run_until(w, w->now_us + GRACE_US, false);
    for (int i = 0; i < w->plan->n_sidecars && !w->ended; i++)
        if (w->sidecars[i]->alive)
            oracle_broken(w, "drain", "sidecar %d has not drained within %d s", i, GRACE_US / SECOND);
}

static void run_to_its_end(struct world *w)
{
    const struct plan *p = w->plan;
    bool settled;

    if (p->stop_us)
        settled = run_until(w, WORLD_START_US + p->stop_us, true);
    else
        settled = run_until(w, WORLD_START_US + p->quiet_us, p->n_faults == 0);
    if (!w->ended && !p->stop_us && (p->n_faults || !settled)) {
        make_quiet(w);
        run_until(w, WORLD_START_US + p->quiet_us + p->settle_us, true);
    }
    w->oracle->settled_us = w->now_us;
}

static void tear_down(struct world *w)
{
    for (int i = 0; i < w->plan->n_sidecars; i++)
        sidecar_destroy(w, w->sidecars[i]);
    broker_sim_deinit(w);
    database_sim_deinit(w);
    world_deinit(w);
}

void run_plan(const struct plan *p, enum trace_mode trace, struct outcome *ret, looks_fn *looks,
              void *context)
{
    struct world w;

    world_init(&w, p);
    w.trace.mode = trace;
    set_up(&w);
    run_to_its_end(&w);
    if (!w.ended && !p->no_checks_of_progress) {
        oracle_end(&w);
        if (!w.ended)
            drain_all(&w);
    }
    if (looks)
        looks(&w, context);
    *ret = (struct outcome){.broken = w.oracle->check[0] != 0,
                            .at_us = w.oracle->at_us - WORLD_START_US,
                            .settled_us = w.oracle->settled_us - WORLD_START_US,
                            .counts = w.counts};
    snprintf(ret->check, sizeof(ret->check), "%s", w.oracle->check);
    snprintf(ret->text, sizeof(ret->text), "%s", w.oracle->text);
    ret->trace_hash = w.trace.hash;
    tear_down(&w);
}
