/* Faults and their repair. */
#include "faults.h"

#include "broker_sim.h"
#include "database_sim.h"
#include "oracle.h"
#include "random.h"
#include "sidecar_sim.h"

typedef void on_sidecar(struct world *w, struct sidecar *s, const struct plan_fault *f);

static void on_each(struct world *w, const struct plan_fault *f, on_sidecar *fn)
{
    for (int i = 0; i < w->plan->n_sidecars; i++)
        if (f->sidecar < 0 || f->sidecar == i)
            fn(w, w->sidecars[i], f);
}

static void kill_it(struct world *w, struct sidecar *s, const struct plan_fault *f)
{
    sidecar_kill(w, s, f->for_us, f->param);
}

static void kill_at(struct world *w, struct sidecar *s, const struct plan_fault *f)
{
    (void)w;
    s->kill_at = s->n_actions + (uint64_t)f->param;
    s->kill_for_us = f->for_us;
    s->kill_forgets = false;
}

static void freeze(struct world *w, struct sidecar *s, const struct plan_fault *f)
{
    sidecar_freeze(w, s, f->for_us);
}

static void drain(struct world *w, struct sidecar *s, const struct plan_fault *f)
{
    sidecar_drain(w, s, f->for_us);
}

/* Breaks a connection. Each side notices at once, or by its heartbeat. */
static void broker_cut(struct world *w, struct sidecar *s, const struct plan_fault *f)
{
    bool silent = random_chance(&w->random, 3000);

    (void)f;
    sidecar_cut_broker(w, s, silent ? random_between(&w->random, 0, 20000000) : 500,
                       silent ? random_between(&w->random, 0, 30000000) : 500);
}

/* Lengthens a standstill; a longer one stays. */
static void until(int64_t *at_us, int64_t end_us)
{
    if (*at_us < end_us)
        *at_us = end_us;
}

static void broker_slow(struct world *w, struct sidecar *s, const struct plan_fault *f)
{
    if (s->link)
        until(&s->link->slow_until_us, w->now_us + f->for_us);
}

static void channel(struct world *w, struct sidecar *s, const struct plan_fault *f)
{
    sidecar_channel_closed(w, s, f->queue < 0 ? 0 : f->queue);
}

static void broker_off(struct world *w, struct sidecar *s, const struct plan_fault *f)
{
    (void)f;
    sidecar_cut_broker(w, s, 500, 0);
}

static void base_cut(struct world *w, struct sidecar *s, const struct plan_fault *f)
{
    (void)f;
    sidecar_cut_base(w, s, random_chance(&w->random, 3000) ? random_between(&w->random, 0, 10000000) : 500);
}

static void base_off(struct world *w, struct sidecar *s, const struct plan_fault *f)
{
    (void)f;
    sidecar_cut_base(w, s, 500);
}

static void base_slow(struct world *w, struct sidecar *s, const struct plan_fault *f)
{
    if (s->base)
        until(&s->base->slow_until_us, w->now_us + f->for_us);
}

static void app_down(struct world *w, struct sidecar *s, const struct plan_fault *f)
{
    s->app.back_us = w->now_us + f->for_us;
    if (s->app.up)
        app_sim_crash(w, &s->app, f->for_us);
}

static void app_503(struct world *w, struct sidecar *s, const struct plan_fault *f)
{
    (void)w;
    s->app.forced = f->kind == FAULT_APP_503 ? 503 : f->param >= 300 ? (int)f->param : 500;
}

static void app_slow(struct world *w, struct sidecar *s, const struct plan_fault *f)
{
    (void)w;
    (void)f;
    s->app.slower = 20;
}

static void app_hangs(struct world *w, struct sidecar *s, const struct plan_fault *f)
{
    (void)w;
    (void)f;
    s->app.hangs = true;
}

static void app_well(struct world *w, struct sidecar *s, const struct plan_fault *f)
{
    (void)w;
    (void)f;
    s->app.forced = 0;
    s->app.slower = 1;
    s->app.hangs = false;
}

static void paused(struct world *w, struct sidecar *s, const struct plan_fault *f)
{
    sidecar_pause(w, s, f->queue < 0 ? 0 : f->queue, true);
}

static void resumed(struct world *w, struct sidecar *s, const struct plan_fault *f)
{
    sidecar_pause(w, s, f->queue < 0 ? 0 : f->queue, false);
}

static void clock_jumps(struct world *w, int64_t ms)
{
    TRACE(w, "the database's clock jumps by %lld ms", (long long)ms);
    w->database->skew_us += ms * 1000;
    for (size_t i = 0; i < w->n_truths; i++)
        w->truths[i].jumped |= w->truths[i].row.status == INBOX_PROCESSING;
}

static void redrive(struct world *w)
{
    if (!w->database->up)
        return;
    for (size_t i = 0; i < w->n_truths; i++) {
        struct truth *t = &w->truths[i];

        if (!inbox_sim_redrive(&t->row, database_now(w)))
            continue;
        TRACE(w, "an operator redrives %s", t->id);
        t->row.n_letters = 0;
        broker_publish(w, t, t->row.body, t->bytes);
    }
}

static void fault_ends(struct world *w, void *object, uint64_t unused, uint64_t unused2)
{
    const struct plan_fault *f = object;

    (void)unused;
    (void)unused2;
    TRACE(w, "%s is over", fault_name(f->kind));
    switch (f->kind) {
    case FAULT_BROKER_DOWN:
        w->broker->up = true;
        break;
    case FAULT_DATABASE_FULL:
        w->database->full = false;
        w->database->mended_us = w->now_us;
        break;
    case FAULT_DATABASE_RETRY:
        w->database->retries = false;
        w->database->mended_us = w->now_us;
        break;
    case FAULT_APP_503:
    case FAULT_APP_500:
    case FAULT_APP_SLOW:
    case FAULT_APP_HANG:
        on_each(w, f, app_well);
        break;
    case FAULT_PAUSE:
        on_each(w, f, resumed);
        break;
    default:
        break;
    }
}

static on_sidecar *const at_sidecars[N_FAULTS] = {
    [FAULT_KILL] = kill_it,
    [FAULT_KILL_AT] = kill_at,
    [FAULT_FREEZE] = freeze,
    [FAULT_DRAIN] = drain,
    [FAULT_BROKER_CUT] = broker_cut,
    [FAULT_BROKER_SLOW] = broker_slow,
    [FAULT_CHANNEL] = channel,
    [FAULT_BROKER_DOWN] = broker_off,
    [FAULT_DATABASE_CUT] = base_cut,
    [FAULT_DATABASE_SLOW] = base_slow,
    [FAULT_DATABASE_CRASH] = base_off,
    [FAULT_APP_CRASH] = app_down,
    [FAULT_APP_DOWN] = app_down,
    [FAULT_APP_503] = app_503,
    [FAULT_APP_500] = app_503,
    [FAULT_APP_SLOW] = app_slow,
    [FAULT_APP_HANG] = app_hangs,
    [FAULT_PAUSE] = paused,
};

void fault_begins(struct world *w, const struct plan_fault *f)
{
    TRACE(w, "FAULT %s, sidecar %d, for %lld ms, %lld", fault_name(f->kind), f->sidecar,
          (long long)(f->for_us / 1000), (long long)f->param);
    switch (f->kind) {
    case FAULT_BROKER_DOWN: /* for all sidecars */
        w->broker->up = false;
        for (int i = 0; i < w->plan->n_sidecars; i++)
            broker_off(w, w->sidecars[i], f);
        break;
    case FAULT_DATABASE_CRASH:
        for (int i = 0; i < w->plan->n_sidecars; i++)
            base_off(w, w->sidecars[i], f);
        database_crashes(w, f->for_us);
        break;
    case FAULT_DATABASE_FULL:
        w->database->full = true;
        break;
    case FAULT_DATABASE_RETRY:
        w->database->retries = true;
        break;
    case FAULT_CLOCK:
        clock_jumps(w, f->param);
        break;
    case FAULT_REDRIVE:
        redrive(w);
        break;
    default:
        on_each(w, f, at_sidecars[f->kind]);
    }
    if (f->for_us)
        world_at(w, w->now_us + f->for_us, fault_ends, (void *)f, 0, 0);
}
