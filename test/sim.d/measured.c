/* Measured scenarios: see measured.h. The required figure stands beside each. */
#include "measured.h"

#include "measured_rig.h"

#include "broker_sim.h"
#include "oracle.h"
#include "sidecar_sim.h"

#include <stdio.h>
#include <string.h>

static int64_t first_sent_us(const struct truth *t)
{
    const struct post *p = t->posts;

    while (p && p->next)
        p = p->next;
    return p ? p->sent_us - WORLD_START_US : INT64_MAX;
}

static void look(struct world *w, void *context)
{
    struct figures *f = context;

    f->first_after_us = INT64_MAX;
    for (size_t i = 0; i < w->n_truths; i++) {
        const struct truth *t = &w->truths[i];
        int64_t at = t->done_us - WORLD_START_US;
        bool done = t->row.status == INBOX_COMPLETED;

        f->n[t->character]++;
        f->n_done[t->character] += done;
        f->n_dead[t->character] += t->row.status == INBOX_DEAD;
        f->n_kills += t->n_kills;
        if (t->n_kills > f->most_kills)
            f->most_kills = t->n_kills;
        if (t->character == CHARACTER_KILLER && t->done_us - t->published_us > f->slowest_dead_us)
            f->slowest_dead_us = t->done_us - t->published_us;
        f->n_of_queue[t->queue] += done;
        if (done && t->posts)
            f->n_done_by[t->posts->sidecar->index]++;
        if (done && at > f->after_us && at < f->first_after_us)
            f->first_after_us = at;
        if (t->character != CHARACTER_GOOD)
            continue;
        f->n_charged += t->n_charges > 0;
        f->n_blamed += t->n_blamed;
        if (t->n_charges > f->most_charged)
            f->most_charged = t->n_charges;
        f->n_stored += !done && (t->row.n_letters > 0 || t->stored);
        f->n_lost +=
            !done && !t->n_open_copies && t->row.status != INBOX_DEAD && !t->row.n_letters && !t->stored;
        if (first_sent_us(t) > f->last_sent_us)
            f->last_sent_us = first_sent_us(t);
        f->n_before += done && at <= f->after_us;
        if (done && at > f->last_good_us)
            f->last_good_us = at;
    }
}

void measure(struct plan *p, struct figures *f)
{
    int64_t after_us = f->after_us;

    *f = (struct figures){.after_us = after_us};
    p->no_checks_of_progress = true;
    plan_sort(p);
    run_plan(p, TRACE_NONE, &f->out, look, f);
    plan_deinit(p);
}

/* --- verdicts --- */

void verdict(struct report *r, const struct figures *f, bool good, const char *name, const char *text)
{
    good = good && !f->out.broken;
    r->n++;
    r->n_bad += !good;
    if (!r->quiet)
        printf("%-4s %-52s %s%s%s\n", good ? "ok" : "BAD", name, text, f->out.broken ? "; BROKEN " : "",
               f->out.broken ? f->out.text : "");
    if (good || !r->first || r->n_bad > 1)
        return;
    snprintf(r->first->check, sizeof(r->first->check), "%.31s", name);
    snprintf(r->first->text, sizeof(r->first->text), "%s", text);
    r->first->broken = true;
}

/* --- throughput beside bad answers --- */

enum { FLOW_S = 5, FLOW_MESSAGES = 20000 };

static void flow_plan(struct plan *p, enum deed d, unsigned per_10000)
{
    plan_plain(p, 7);
    p->application.service_us = 5000;
    if (d)
        p->application.rates[d] = (uint16_t)per_10000;
    plan_add(p, 0, CHARACTER_GOOD, FLOW_MESSAGES, 0, 0);
    p->stop_us = FLOW_S * (int64_t)SECOND;
}

static void flow(struct report *r)
{
    static const struct {
        enum deed deed;
        unsigned per_10000;
        double at_least;
    } cases[] = {{DEED_503, 10, 0.9},   {DEED_503, 200, 0.9},  {DEED_503, 500, 0.75},  {DEED_503, 1000, 0.5},
                 {DEED_429, 200, 0.85}, {DEED_500, 200, 0.85}, {DEED_RESET, 100, 0.6}, {DEED_502, 100, 0.6}};
    struct figures none = {0}, f = {0};
    struct plan p;
    char name[80], text[120];

    flow_plan(&p, DEED_OK, 0);
    measure(&p, &none);
    snprintf(text, sizeof(text), "%zu/s, at least 2,700 of the 3,200 that 16 at once could do",
             none.n_done[CHARACTER_GOOD] / FLOW_S);
    verdict(r, &none, none.n_done[CHARACTER_GOOD] / FLOW_S >= 2700, "flow: nothing bad", text);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        flow_plan(&p, cases[i].deed, cases[i].per_10000);
        measure(&p, &f);
        double ratio = (double)f.n_done[CHARACTER_GOOD] / (double)none.n_done[CHARACTER_GOOD];

        snprintf(name, sizeof(name), "flow: %.1f %% of answers %s", cases[i].per_10000 / 100.0,
                 deed_name(cases[i].deed));
        snprintf(text, sizeof(text), "%.2f of the throughput, at least %.2f (%zu/s without)", ratio,
                 cases[i].at_least, none.n_done[CHARACTER_GOOD] / FLOW_S);
        verdict(r, &f, ratio >= cases[i].at_least, name, text);
    }
}

/* Defaults of the configuration; the broker is as slow as one whose replicas write each ack to disk, and the database
 * writes each commit to disk. */
static void defaults_plan(struct plan *p, enum deed d, unsigned per_10000, int64_t backoff_ms)
{
    flow_plan(p, d, per_10000);
    p->application.service_us = 2000;
    p->queues[0].rules.backoff_ms = backoff_ms;
    p->broker_us = 2500;
    p->commit_us = 2500;
    plan_add(p, 0, CHARACTER_GOOD, FLOW_MESSAGES, 0, 0);
}

static void flow_defaults(struct report *r)
{
    static const struct {
        enum deed deed;
        unsigned per_10000;
        int64_t backoff_ms;
        double at_least;
    } cases[] = {{DEED_503, 200, 1000, 0.9}, {DEED_503, 200, 100, 0.9},    {DEED_503, 500, 1000, 0.75},
                 {DEED_503, 500, 100, 0.75}, {DEED_429, 200, 1000, 0.85},  {DEED_500, 200, 1000, 0.85},
                 {DEED_500, 200, 100, 0.85}, {DEED_RESET, 100, 1000, 0.6}, {DEED_502, 100, 1000, 0.6}};
    struct figures none = {0}, f = {0};
    struct plan p;
    char name[80], text[120];

    defaults_plan(&p, DEED_OK, 0, 1000);
    measure(&p, &none);
    snprintf(text, sizeof(text), "%zu/s", none.n_done[CHARACTER_GOOD] / FLOW_S);
    verdict(r, &none, none.n_done[CHARACTER_GOOD] > 0, "flow at the defaults: nothing bad", text);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        defaults_plan(&p, cases[i].deed, cases[i].per_10000, cases[i].backoff_ms);
        measure(&p, &f);
        double ratio = (double)f.n_done[CHARACTER_GOOD] / (double)none.n_done[CHARACTER_GOOD];

        snprintf(name, sizeof(name), "flow at the defaults: %.1f %% %s, backoff %lld ms",
                 cases[i].per_10000 / 100.0, deed_name(cases[i].deed), (long long)cases[i].backoff_ms);
        snprintf(text, sizeof(text), "%.2f of the throughput, at least %.2f", ratio, cases[i].at_least);
        verdict(r, &f, ratio >= cases[i].at_least, name, text);
    }
}

static void capacity_plan(struct plan *p, int concurrency, int capacity)
{
    plan_plain(p, 8);
    p->application.service_us = 5000;
    p->application.capacity = capacity;
    p->queues[0].rules.concurrency = concurrency;
    p->queues[0].rules.prefetch = 256;
    plan_add(p, 0, CHARACTER_GOOD, FLOW_MESSAGES, 0, 0);
    p->stop_us = 10 * (int64_t)SECOND;
}

static void capacity(struct report *r)
{
    struct figures best = {0}, f = {0};
    struct plan p;
    char text[120];

    capacity_plan(&p, 5, 0);
    measure(&p, &best);
    capacity_plan(&p, 64, 5);
    measure(&p, &f);
    double ratio = (double)f.n_done[CHARACTER_GOOD] / (double)best.n_done[CHARACTER_GOOD];

    snprintf(text, sizeof(text), "used at %.2f, at least 0.85", ratio);
    verdict(r, &f, ratio >= 0.85, "capacity: 5 of 64 at once", text);
}

static void one_bad(struct report *r)
{
    struct figures none = {0}, f = {0};
    struct plan p;
    char text[120];

    for (int bad = 0; bad < 2; bad++) {
        plan_plain(&p, 9);
        if (bad)
            plan_add(&p, 0, CHARACTER_503, 1, 0, 0);
        plan_add(&p, 0, CHARACTER_GOOD, 2000, 1, 0);
        p.stop_us = 120 * (int64_t)SECOND;
        measure(&p, bad ? &f : &none);
    }
    snprintf(text, sizeof(text), "%.2f s later, at most 1 s (%.2f s without)",
             (double)(f.last_good_us - none.last_good_us) / SECOND, (double)none.last_good_us / SECOND);
    verdict(r, &f, f.n_done[CHARACTER_GOOD] == 2000 && f.last_good_us <= none.last_good_us + SECOND,
            "one always 503 among 2,000", text);
}

static void many_bad(struct report *r)
{
    struct figures f = {0};
    struct plan p;
    char text[120];

    plan_plain(&p, 10);
    plan_add(&p, 0, CHARACTER_400, 300, 0, 0);
    plan_add(&p, 0, CHARACTER_GOOD, 50, 1000, 0);
    p.stop_us = 120 * (int64_t)SECOND;
    measure(&p, &f);
    snprintf(text, sizeof(text),
             "%zu of 50 good ones done, the last after %.1f s, at most 60 s; %zu good ones dead",
             f.n_done[CHARACTER_GOOD], (double)f.last_good_us / SECOND, f.n_dead[CHARACTER_GOOD]);
    verdict(r, &f, f.n_done[CHARACTER_GOOD] == 50 && f.last_good_us <= 60 * (int64_t)SECOND,
            "300 times 400 before 50 good ones", text);
}

/* More messages than the prefetch hold no credit, and a first try delays the others by at most a second. */
static void many_busy(struct report *r)
{
    static const size_t sizes[] = {30, 200};
    char name[80], text[120];
    struct plan p;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        struct figures f = {0};
        int most_s = 30 + (int)sizes[i] * 5 / 4;

        plan_plain(&p, 10);
        plan_add(&p, 0, CHARACTER_503, sizes[i], 0, 0);
        plan_add(&p, 0, CHARACTER_GOOD, 50, 1000, 0);
        p.stop_us = 3600 * (int64_t)SECOND;
        measure(&p, &f);
        snprintf(name, sizeof(name), "%zu times 503 before 50 good ones", sizes[i]);
        snprintf(text, sizeof(text), "%zu of 50 good ones done, the last after %.1f s, at most %d s",
                 f.n_done[CHARACTER_GOOD], (double)f.last_good_us / SECOND, most_s);
        verdict(r, &f, f.n_done[CHARACTER_GOOD] == 50 && f.last_good_us <= most_s * (int64_t)SECOND, name,
                text);
    }
}

static void neighbours(struct report *r)
{
    struct figures alone = {0}, f = {0};
    struct plan p;
    char text[120];

    for (int both = 0; both < 2; both++) {
        plan_plain(&p, 11);
        p.n_queues = 2;
        p.application.service_us = 5000;
        if (both)
            plan_add(&p, 1, CHARACTER_503, FLOW_MESSAGES / 2, 0, 0);
        plan_add(&p, 0, CHARACTER_GOOD, FLOW_MESSAGES / 2, 0, 0);
        p.stop_us = 2 * (int64_t)SECOND;
        measure(&p, both ? &f : &alone);
    }
    double ratio = (double)f.n_of_queue[0] / (double)alone.n_of_queue[0];

    snprintf(text, sizeof(text), "%.2f of its speed alone, at least 0.90", ratio);
    verdict(r, &f, ratio >= 0.9, "two queues, one path always 503", text);
}

/* --- outages --- */

struct outage {
    enum fault_kind kind;
    bool proxy;
    int within_s, charges;
    const char *name;
};

static void outage_plan(struct plan *p, const struct outage *o, int limit, bool told, int version)
{
    plan_plain(p, 13);
    p->queues[0].quorum = limit != LIMIT_NONE;
    p->queues[0].limit = limit;
    p->queues[0].version = version;
    p->queues[0].rules.delivery_limit = told ? limit : LIMIT_UNKNOWN;
    p->application.proxy = o->proxy;
    plan_add(p, 0, CHARACTER_GOOD, 20, 0, 0);
    plan_add(p, 0, CHARACTER_GOOD, 100, SECOND - 5000, 100);
    plan_add(p, 0, CHARACTER_GOOD, 100, 10 * (int64_t)SECOND, 1000);
    plan_break(p, o->kind, SECOND, HOUR_S * (int64_t)SECOND);
    p->stop_us = (HOUR_S + 900) * (int64_t)SECOND;
}

/* Deliveries held for max_hold are returned, and stored whole near the limit: some become dead letters, but none is
 * lost. */
static void outages(struct report *r)
{
    static const struct outage all[] = {{FAULT_APP_DOWN, false, 2, 0, "application"},
                                        {FAULT_APP_DOWN, true, 12, 4, "application behind a proxy"},
                                        {FAULT_APP_503, false, 12, 0, "application that says 503"},
                                        {FAULT_APP_500, false, 20, 60, "application that says 500"},
                                        {FAULT_DATABASE_CRASH, false, 6, 0, "database"},
                                        {FAULT_DATABASE_FULL, false, 16, 0, "database that refuses"},
                                        {FAULT_BROKER_DOWN, false, 6, 0, "broker"}};
    static const struct {
        int limit, version;
        bool told;
    } queues[] = {{LIMIT_NONE, 310, false}, {2, 310, true},  {2, 310, false},  {5, 310, false},
                  {5, 400, true},           {5, 400, false}, {20, 400, false}, {20, 430, false}};
    char name[100], text[160], limit[16];
    struct plan p;

    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        for (size_t k = 0; k < sizeof(queues) / sizeof(*queues); k++) {
            struct figures f = {.after_us = (HOUR_S + 1) * (int64_t)SECOND};

            outage_plan(&p, &all[i], queues[k].limit, queues[k].told, queues[k].version);
            measure(&p, &f);
            int64_t after = f.first_after_us - f.after_us;

            plan_limit_text(queues[k].limit, limit);
            snprintf(name, sizeof(name), "an hour without %s, %s limit %s%s", all[i].name,
                     queues[k].limit == LIMIT_NONE ? "classic" : "quorum", limit,
                     queues[k].told ? " told" : "");
            snprintf(text, sizeof(text),
                     "%zu of 220 done, %zu lost, %zu dead, %d charged; first after %.1f s (at most %d)",
                     f.n_done[CHARACTER_GOOD], f.n_lost, f.n_dead[CHARACTER_GOOD], f.n_charged,
                     f.first_after_us == INT64_MAX ? -1.0 : (double)after / SECOND, all[i].within_s);
            verdict(r, &f,
                    f.n_done[CHARACTER_GOOD] + f.n_dead[CHARACTER_GOOD] == 220 &&
                        (queues[k].limit <= 5 ? true : !f.n_dead[CHARACTER_GOOD]) &&
                        f.out.counts.n_refused <= (all[i].proxy ? 1100u : 100u) && !f.n_lost &&
                        f.n_charged <= all[i].charges &&
                        (f.first_after_us == INT64_MAX ? f.n_dead[CHARACTER_GOOD] > 0
                                                       : after <= all[i].within_s * (int64_t)SECOND),
                    name, text);
        }
}

/* --- kills during a drain --- */

static void kill_plan(struct plan *p, bool transaction, int n_sidecars)
{
    plan_plain(p, 14);
    p->n_sidecars = n_sidecars;
    p->queues[0].rules.transaction = transaction;
    p->application.service_us = 5000;
    plan_add(p, 0, CHARACTER_GOOD, 10000, 0, 0);
    p->stop_us = 200 * (int64_t)SECOND;
}

static void kills(struct report *r)
{
    struct plan p;
    char text[120];

    for (int transaction = 0; transaction < 2; transaction++) {
        struct figures none = {0}, f = {0};
        int more_s = transaction ? 3 : 30 + 3 + 2; /* the window, and the grace period of a takeover */

        kill_plan(&p, transaction, 1);
        measure(&p, &none);
        kill_plan(&p, transaction, 1);
        for (int i = 0; i < 5; i++)
            plan_break(&p, FAULT_KILL, (300 + 500 * i) * 1000ll, 100000)->param = 0;
        measure(&p, &f);
        snprintf(text, sizeof(text), "all %zu done %.1f s later, at most %d s", f.n_done[CHARACTER_GOOD],
                 (double)(f.last_good_us - none.last_good_us) / SECOND, more_s);
        verdict(r, &f,
                f.n_done[CHARACTER_GOOD] == 10000 &&
                    f.last_good_us - none.last_good_us <= more_s * (int64_t)SECOND,
                transaction ? "killed 5 times in a drain of 10,000, transaction"
                            : "killed 5 times in a drain of 10,000, response",
                text);
    }
    struct figures f = {0};

    kill_plan(&p, true, 2);
    plan_break(&p, FAULT_KILL, SECOND / 2, 0)->sidecar = 0;
    measure(&p, &f);
    snprintf(text, sizeof(text), "all %zu done after %.1f s, at most 20 s", f.n_done[CHARACTER_GOOD],
             (double)f.last_good_us / SECOND);
    verdict(r, &f, f.n_done[CHARACTER_GOOD] == 10000 && f.last_good_us <= 20 * (int64_t)SECOND,
            "two replicas, one killed for good", text);
}

/* --- a broken replica beside a good one --- */

/* Plan of two replicas, of which the first has an application that answers 500 to everything for this long. */
static void broken_plan(struct plan *p, int for_s)
{
    plan_plain(p, 17);
    p->n_sidecars = 2;
    p->application.service_us = 5000;
    plan_break(p, FAULT_APP_500, 0, for_s * (int64_t)SECOND)->sidecar = 0;
    plan_add(p, 0, CHARACTER_GOOD, 400, 0, 0);
}

/* The good replica soon does everything: after pause_hold and half a minute, during which the other one tries only
 * one message. When more messages arrive, the broken replica detects its recovery. */
static void broken_replica(struct report *r)
{
    struct figures f = {0};
    struct plan p;
    char text[120];

    broken_plan(&p, 1200);
    p.stop_us = 1300 * (int64_t)SECOND;
    measure(&p, &f);
    snprintf(text, sizeof(text), "%zu of 400 done, the last after %.1f s, at most 100 s; %zu dead",
             f.n_done[CHARACTER_GOOD], (double)f.last_good_us / SECOND, f.n_dead[CHARACTER_GOOD]);
    verdict(r, &f, f.n_done[CHARACTER_GOOD] == 400 && f.last_good_us <= 100 * (int64_t)SECOND,
            "a broken replica beside a good one", text);
    broken_plan(&p, 300);
    plan_add(&p, 0, CHARACTER_GOOD, 4500, 0, 100000);
    p.stop_us = 400 * (int64_t)SECOND;
    measure(&p, &f);
    snprintf(text, sizeof(text), "does %zu of the last 1,000, at least 100; %zu dead", f.n_done_by[0],
             f.n_dead[CHARACTER_GOOD]);
    verdict(r, &f, f.n_done_by[0] >= 100 && !f.n_dead[CHARACTER_GOOD], "a replica that was broken", text);
}

/* A sidecar is killed more often within a window than the delivery limit allows. Each message is renewed before the
 * broker drops it, also one that waits for the window of its own dead owner. */
static void kills_at_the_limit(struct report *r)
{
    static const struct {
        int limit, version;
        bool told;
        bool readable;
    } queues[] = {{5, 310, true, false},          {5, 310, false, true},           {5, 310, false, false},
                  {LIMIT_NONE, 310, false, true}, {LIMIT_NONE, 310, false, false}, {20, 310, true, false},
                  {20, 400, false, true},         {20, 400, false, false},         {5, 400, false, false},
                  {5, 430, false, false}};
    char name[100], text[120], limit[16];
    struct plan p;

    for (size_t k = 0; k < sizeof(queues) / sizeof(*queues); k++) {
        struct figures f = {0};

        plan_plain(&p, 15);
        p.queues[0].quorum = true;
        p.queues[0].limit = queues[k].limit;
        p.queues[0].readable = queues[k].readable;
        p.queues[0].version = queues[k].version;
        p.queues[0].rules.delivery_limit = queues[k].told ? queues[k].limit : LIMIT_UNKNOWN;
        p.application.service_us = 2 * SECOND;
        plan_add(&p, 0, CHARACTER_GOOD, 55, 0, 0);
        for (int i = 0; i < 25; i++)
            plan_break(&p, FAULT_KILL, (300 + 700 * i) * 1000ll, 100000)->param = 0;
        p.stop_us = 300 * (int64_t)SECOND;
        measure(&p, &f);
        plan_limit_text(queues[k].limit, limit);
        snprintf(name, sizeof(name), "killed 25 times within a window, limit %s%s", limit,
                 queues[k].told       ? " told"
                 : queues[k].readable ? " read"
                                      : "");
        snprintf(text, sizeof(text), "%zu of 55 done, %zu stored, %zu lost", f.n_done[CHARACTER_GOOD],
                 f.n_stored, f.n_lost);
        verdict(r, &f, !f.n_lost && !f.n_stored && f.n_done[CHARACTER_GOOD] == 55, name, text);
    }
}

/* At a limit of 1, with one answer in five 503: a good answer ends the wait, so each wait is short. */
static void slow_again(struct report *r)
{
    struct figures f = {0};
    struct plan p;
    char text[120];

    plan_plain(&p, 16);
    p.queues[0].rules.concurrency = 1;
    p.application.service_us = 5000;
    p.application.rates[DEED_503] = 2000;
    plan_add(&p, 0, CHARACTER_GOOD, FLOW_MESSAGES, 0, 0);
    p.stop_us = 60 * (int64_t)SECOND;
    measure(&p, &f);
    snprintf(text, sizeof(text), "%zu done in a minute, at least 1,200", f.n_done[CHARACTER_GOOD]);
    verdict(r, &f, f.n_done[CHARACTER_GOOD] >= 1200, "one at a time, 20 % of answers 503", text);
}

/* Seeds that once broke a promise, each rarely. */
static void found(struct report *r)
{
    static const uint64_t seeds[] = {32749,  37329,  37589,  42519,   52932,  81747,  82247,
                                     95654,  12391,  97887,  81340,   112206, 176069, 237153,
                                     243290, 367305, 371276, 5000126, 5065154};
    char name[40];
    struct plan p;

    for (size_t i = 0; i < sizeof(seeds) / sizeof(*seeds); i++) {
        struct figures f = {0};

        plan_make(&p, seeds[i]);
        run_plan(&p, TRACE_NONE, &f.out, NULL, NULL);
        plan_deinit(&p);
        snprintf(name, sizeof(name), "seed %llu", (unsigned long long)seeds[i]);
        verdict(r, &f, true, name, f.out.broken ? f.out.text : "no promise broken");
    }
}

static const struct {
    const char *name;
    scenario_fn *fn;
} scenarios[] = {{"flow", flow},
                 {"flow-defaults", flow_defaults},
                 {"capacity", capacity},
                 {"long-jobs", long_jobs},
                 {"one-bad", one_bad},
                 {"many-bad", many_bad},
                 {"many-busy", many_busy},
                 {"neighbours", neighbours},
                 {"killers", killers},
                 {"batches", batches},
                 {"steady-killers", steady_killers},
                 {"outages", outages},
                 {"kills", kills},
                 {"broken-replica", broken_replica},
                 {"kills-at-the-limit", kills_at_the_limit},
                 {"slow-again", slow_again},
                 {"no-ids", no_ids},
                 {"left-to-others", left_to_others},
                 {"drain-locked", drain_locked},
                 {"long-pause", long_pause},
                 {"drain-refused", drain_refused},
                 {"held-at-the-limit", held_at_the_limit},
                 {"limit-of-0", limit_of_0},
                 {"renewal-loop", renewal_loop},
                 {"given-up-near-the-limit", given_up_near_the_limit},
                 {"other-body", other_body},
                 {"late-completion", late_completion},
                 {"resets", resets},
                 {"in-vain", in_vain},
                 {"brake-of-1", brake_of_1},
                 {"brake-without-room", brake_without_room},
                 {"found", found}};

int measured_run(const char *name)
{
    struct report r = {0};

    if (name && !strcmp(name, "list")) {
        for (size_t i = 0; i < sizeof(scenarios) / sizeof(*scenarios); i++)
            printf("%s\n", scenarios[i].name);
        return 0;
    }
    for (size_t i = 0; i < sizeof(scenarios) / sizeof(*scenarios); i++)
        if (!name || !strcmp(name, scenarios[i].name))
            scenarios[i].fn(&r);
    printf("%d measured, %d bad\n", r.n, r.n_bad);
    return r.n_bad != 0 || !r.n;
}

bool measured_catches(struct outcome *ret)
{
    struct report r = {.quiet = true, .first = ret};

    *ret = (struct outcome){0};
    for (size_t i = 0; i < sizeof(scenarios) / sizeof(*scenarios) && !r.n_bad; i++)
        scenarios[i].fn(&r);
    return r.n_bad != 0;
}
