/* Plans: see plan.h. */
#include "plan.h"

#include "random.h"

#include "onceward/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SECOND = 1000000, SLOT_KILLERS_MAX = 3 };

static const char *const characters[N_CHARACTERS] = {"good",         "400",    "500",     "503",
                                                     "429",          "killer", "flaky",   "hang",
                                                     "sidecar_bomb", "no_id",  "invalid", "poison_200"};

static const char *const deeds[N_DEEDS] = {"ok",          "500",        "503",
                                           "429",         "409",        "400",
                                           "502",         "reset",      "commit_reset",
                                           "commit_504",  "commit_500", "rollback",
                                           "hang",        "hang_late",  "early",
                                           "early_never", "202",        "202_never",
                                           "twice",       "lock_long",  "lock_rollback",
                                           "extend",      "crash",      "commit_crash",
                                           "unsent",      "some_fail",  "some_forgotten",
                                           "some_crash",  "no_echo",    "unknown_name",
                                           "404",         "413"};

static const char *const faults[N_FAULTS] = {
    "kill",           "kill_at",     "freeze",       "drain",         "broker_cut",     "broker_slow",
    "channel",        "broker_down", "database_cut", "database_slow", "database_crash", "database_full",
    "database_retry", "clock",       "app_crash",    "app_down",      "app_503",        "app_500",
    "app_slow",       "app_hang",    "pause",        "redrive"};

static const int permanent[] = {400, 410, 413, 415, 422};
static const int permanent_of_all_kinds[] = {400, 409, 410, 413, 415, 422, 429, 502, 503};

const char *character_name(enum character c)
{
    return characters[c];
}

const char *deed_name(enum deed d)
{
    return deeds[d];
}

const char *fault_name(enum fault_kind k)
{
    return faults[k];
}

static void rules_plain(struct queue_rules *r)
{
    *r = (struct queue_rules){.token_window_ms = 30000,
                              .max_window_ms = 1200000,
                              .commit_grace_ms = 1000,
                              .max_hold_ms = 1500000,
                              .pause_hold_ms = 30000,
                              .concurrency = 16,
                              .prefetch = 128,
                              .max_parked = 1000,
                              .max_bytes = 64 << 20,
                              .max_message_bytes = 64 << 20,
                              .max_attempts = 8,
                              .backoff_ms = 1000,
                              .max_backoff_ms = 300000,
                              .permanent_status = permanent,
                              .n_permanent_status = sizeof(permanent) / sizeof(*permanent),
                              .brake = 20,
                              .revive = 3,
                              .delivery_limit = LIMIT_UNKNOWN,
                              .stuck_ms = 60000,
                              .stuck_again_ms = 600000,
                              .stats_interval_ms = 10000};
}

void plan_batch(struct queue_rules *r, int max_messages)
{
    int prefetch = 2 * r->concurrency * max_messages;

    r->batch = (struct queue_batch_rules){.max_messages = max_messages,
                                          .max_bytes = 256 << 10,
                                          .consumer = SLICE("consumer"),
                                          .queue = SLICE("queue")};
    if (r->prefetch < prefetch)
        r->prefetch = prefetch;
}

void plan_plain(struct plan *p, uint64_t seed)
{
    *p = (struct plan){.seed = seed,
                       .n_sidecars = 1,
                       .n_queues = 1,
                       .stats_interval_ms = 10000,
                       .settle_us = 3600ll * SECOND, /* 8 hanging attempts, each a window and a wait of one */
                       .own_rows = true};
    for (int i = 0; i < QUEUES_MAX; i++) {
        p->queues[i] = (struct plan_queue){.quorum = true, .readable = true, .version = 400, .limit = 20};
        rules_plain(&p->queues[i].rules);
    }
    p->application = (struct plan_application){.service_us = 2000, .restart_us = 100000};
}

int plan_add(struct plan *p, int queue, enum character c, size_t n, int64_t at_us, int64_t gap_us)
{
    int first = p->n_messages ? p->messages[p->n_messages - 1].number + 1 : 0;

    p->messages = mem_realloc(p->messages, (p->n_messages + n) * sizeof(*p->messages));
    for (size_t i = 0; i < n; i++)
        p->messages[p->n_messages++] = (struct plan_message){.at_us = at_us + (int64_t)i * gap_us,
                                                             .number = first + (int)i,
                                                             .queue = queue,
                                                             .character = c,
                                                             .twin_of = -1,
                                                             .bytes = 500};
    return first;
}

struct plan_fault *plan_break(struct plan *p, enum fault_kind kind, int64_t at_us, int64_t for_us)
{
    p->faults = mem_realloc(p->faults, (p->n_faults + 1) * sizeof(*p->faults));
    p->faults[p->n_faults] =
        (struct plan_fault){.kind = kind, .at_us = at_us, .for_us = for_us, .sidecar = -1, .queue = -1};
    return &p->faults[p->n_faults++];
}

void plan_copy(struct plan *to, const struct plan *from)
{
    *to = *from;
    to->messages = (struct plan_message *)mem_copy(from->messages ? (const void *)from->messages : "",
                                                   from->n_messages * sizeof(*from->messages));
    to->faults = (struct plan_fault *)mem_copy(from->faults ? (const void *)from->faults : "",
                                               from->n_faults * sizeof(*from->faults));
}

void plan_deinit(struct plan *p)
{
    free(p->messages);
    free(p->faults);
}

static int by_time(const void *a, const void *b)
{
    const struct plan_message *m = a, *n = b;

    if (m->at_us != n->at_us)
        return m->at_us < n->at_us ? -1 : 1;
    return m->number < n->number ? -1 : m->number > n->number;
}

void plan_sort(struct plan *p)
{
    if (p->n_messages)
        qsort(p->messages, p->n_messages, sizeof(*p->messages), by_time);
}

/* --- at random --- */

static int64_t one_of(uint64_t *r, size_t n, const int64_t *of)
{
    return of[random_below(r, n)];
}
#define ONE_OF(r, ...) one_of(r, sizeof((int64_t[]){__VA_ARGS__}) / 8, (int64_t[]){__VA_ARGS__})

static void make_rules(uint64_t *r, struct queue_rules *q)
{
    rules_plain(q);
    q->transaction = random_chance(r, 6500);
    q->token_window_ms = ONE_OF(r, 2000, 3000, 5000, 10000, 30000);
    q->max_window_ms = q->token_window_ms * ONE_OF(r, 1, 4, 10);
    q->max_hold_ms = q->max_window_ms + ONE_OF(r, 20000, 60000, 300000);
    q->pause_hold_ms = ONE_OF(r, 2000, 10000, 30000);
    q->concurrency = (int)ONE_OF(r, 1, 2, 4, 16);
    q->prefetch = q->concurrency * (int)ONE_OF(r, 1, 2, 8);
    q->max_parked = (int)ONE_OF(r, 10, 50, 200, 1000);
    q->max_attempts = (int)ONE_OF(r, 2, 3, 8);
    q->backoff_ms = ONE_OF(r, 50, 200, 1000);
    q->max_backoff_ms = ONE_OF(r, 2000, 5000, 20000);
    q->brake = (int)ONE_OF(r, 5, 10, 20);
    q->mismatch_is_duplicate = random_chance(r, 2000);
    if (random_chance(r, 1500)) {
        q->max_bytes = 256 << 10;
        q->max_message_bytes = 256 << 10;
    }
}

static void make_queue(uint64_t *r, struct plan_queue *q)
{
    make_rules(r, &q->rules);
    q->quorum = random_chance(r, 6000);
    q->version = (int)ONE_OF(r, 310, 400, 430);
    if (q->quorum && random_chance(r, 5000)) { /* the limit is known */
        q->limit = (int)ONE_OF(r, LIMIT_NONE, 2, 3, 5, 20);
        q->rules.delivery_limit = q->limit;
    } else if (q->quorum) {
        uint64_t own = *r ^ 0x4c494d4954; /* r itself is left as it is: the plans of known seeds stay */

        q->limit = q->version >= 400 ? (int)ONE_OF(&own, LIMIT_NONE, 5, 20, 20)
                                     : (int)ONE_OF(r, LIMIT_NONE, 2, 3, 5, 20);
    }
    uint64_t small = *r ^ 0x534d414c4c;

    if (q->quorum && random_chance(&small, 500)) { /* too small to be protected from kills */
        q->limit = (int)ONE_OF(&small, 0, 0, 1);
        if (q->rules.delivery_limit != LIMIT_UNKNOWN)
            q->rules.delivery_limit = q->limit;
    }
    q->readable = random_chance(r, 5000);
    q->moved_back = random_chance(r, 800);
    if (random_chance(r, 500))
        q->max_length = (int)ONE_OF(r, 20, 100);
}

int plan_read_limit(const struct plan_queue *p)
{
    if (p->version >= 400)
        return p->limit == LIMIT_SINCE_4 ? LIMIT_UNKNOWN : p->limit;
    return p->limit == LIMIT_NONE ? LIMIT_UNKNOWN : p->limit;
}

int plan_known_limit(const struct plan_queue *p)
{
    int told = p->rules.delivery_limit, read = p->readable ? plan_read_limit(p) : LIMIT_UNKNOWN;

    if (!p->quorum)
        return LIMIT_NONE;
    if (told != LIMIT_UNKNOWN && (read == LIMIT_UNKNOWN || told < read))
        return told;
    if (read != LIMIT_UNKNOWN)
        return read;
    return p->version >= 400 && p->readable ? LIMIT_SINCE_4 : LIMIT_UNKNOWN;
}

static void make_application(uint64_t *r, struct plan_application *a)
{
    a->service_us = ONE_OF(r, 500, 2000, 10000, 50000, 300000);
    a->capacity = random_chance(r, 2000) ? (int)ONE_OF(r, 1, 3, 5) : 0;
    a->restart_us = ONE_OF(r, 100000, 2000000, 20000000);
    a->proxy = random_chance(r, 3000);
    a->ready_url = random_chance(r, 4000);
    if (random_chance(r, 2500))
        return;
    for (int d = 1; d < DEED_UNSENT; d++)
        if (random_chance(r, 2500))
            a->rates[d] = (uint16_t)ONE_OF(r, 20, 100, 300, 1000);
    if (a->rates[DEED_CRASH] > 100)
        a->rates[DEED_CRASH] = 100;
    if (a->rates[DEED_COMMIT_CRASH] > 100)
        a->rates[DEED_COMMIT_CRASH] = 100;
}

static enum character bad_character(uint64_t *r)
{
    return (enum character)ONE_OF(r, CHARACTER_400, CHARACTER_500, CHARACTER_503, CHARACTER_429,
                                  CHARACTER_KILLER, CHARACTER_FLAKY, CHARACTER_HANG, CHARACTER_SIDECAR_BOMB,
                                  CHARACTER_NO_ID, CHARACTER_INVALID, CHARACTER_POISON_200);
}

static void make_messages(struct plan *p, uint64_t *r, int64_t until_us)
{
    size_t n = (size_t)ONE_OF(r, 5, 20, 60, 150, 400), n_bad = 0, n_killers = 0,
           most = (size_t)ONE_OF(r, 0, 0, 1, 2, 4);

    for (size_t i = 0; i < n; i++) {
        int queue = (int)random_below(r, (uint64_t)p->n_queues);
        int64_t at_us = random_chance(r, 4000) ? 0 : random_between(r, 0, until_us);

        plan_add(p, queue, CHARACTER_GOOD, 1, at_us, 0);
        struct plan_message *m = &p->messages[p->n_messages - 1];

        if (p->queues[queue].rules.max_bytes < 1 << 20)
            m->bytes = ONE_OF(r, 500, 20000, 100000, 250000);
        if (i && random_chance(r, 600)) {
            m->twin_of = (int)random_below(r, i);
            m->queue = p->messages[m->twin_of].queue;
            if (p->messages[m->twin_of].twin_of >= 0 || p->messages[m->twin_of].character == CHARACTER_NO_ID)
                m->twin_of = -1;
            else
                m->other_body = n_bad < most && !p->queues[m->queue].moved_back && random_chance(r, 2500);
            n_bad += m->other_body;
        }
        if (m->twin_of < 0 && n_bad < most && random_chance(r, 1000)) {
            m->character = bad_character(r);
            /* A message that is always answered "not now" takes the bytes that another needs, which is logged and
             * left to an operator. */
            if (p->queues[queue].rules.max_bytes < 1 << 20 &&
                (m->character == CHARACTER_503 || m->character == CHARACTER_429))
                m->character = CHARACTER_500;
            m->param = m->character == CHARACTER_429 ? ONE_OF(r, 100, 5000, 60000) : ONE_OF(r, 1, 2, 4);
            n_bad++;
            n_killers += m->character == CHARACTER_KILLER;
        }
    }
    if (n_killers) /* behind a proxy only ready.url detects its recovery in time */
        p->application.ready_url |= p->application.proxy;
}

static void make_fault(struct plan *p, uint64_t *r, int64_t until_us)
{
    struct plan_fault *f =
        plan_break(p, (enum fault_kind)random_below(r, N_FAULTS), random_between(r, 0, until_us), 0);

    f->for_us =
        random_chance(r, 5000) ? random_between(r, 1000, SECOND) : random_between(r, SECOND, 40ll * SECOND);
    f->sidecar = random_chance(r, 8000) ? (int)random_below(r, (uint64_t)p->n_sidecars) : -1;
    f->queue = (int)random_below(r, (uint64_t)p->n_queues);
    f->param = f->kind == FAULT_CLOCK ? random_between(r, -40000, 40000) : random_between(r, 1, 200);
    if (f->kind == FAULT_KILL || f->kind == FAULT_KILL_AT) {
        f->for_us = ONE_OF(r, 100000, SECOND, 15ll * SECOND);
        f->param = f->kind == FAULT_KILL ? random_chance(r, 3000) : random_between(r, 1, 300);
    }
}

/* Adds a publisher without ids, so that the circuit breaker switches on, and channels are lost meanwhile. There is
 * room for all its messages: otherwise the good ones behind them would wait for an operator. */
static void make_no_ids(struct plan *p, uint64_t *r, int64_t until_us)
{
    int queue = (int)random_below(r, (uint64_t)p->n_queues);
    struct queue_rules *rules = &p->queues[queue].rules;
    size_t n = (size_t)ONE_OF(r, 10, 30, 60), n_losses = (size_t)ONE_OF(r, 1, 2, 4);
    int64_t at_us = random_between(r, 0, until_us);

    if (rules->max_bytes < 1 << 20) /* the bytes would be missing for a good one, which is logged, too */
        return;
    plan_add(p, queue, CHARACTER_NO_ID, n, at_us, 0);
    p->settle_us *= 2; /* successes reset the circuit breaker, and may be whole windows apart */
    if (rules->max_parked < 200)
        rules->max_parked = 200;
    for (size_t i = 0; i < n_losses; i++)
        plan_break(p, random_chance(r, 5000) ? FAULT_CHANNEL : FAULT_BROKER_CUT,
                   random_between(r, at_us, until_us + 20ll * SECOND), 0)
            ->queue = queue;
}

/* Gives the queue the smallest limit that an ordered queue may have, and so many losses of its channels that it is
 * reached. */
static void make_limited(struct plan *p, int64_t until_us)
{
    struct plan_queue *q = &p->queues[0];
    uint64_t own = random_mix(p->seed ^ 0x20);
    int n_losses = (int)ONE_OF(&own, 20, 21, 60, 60);

    q->quorum = true;
    q->limit = 20;
    q->rules.delivery_limit = random_chance(&own, 5000) ? 20 : LIMIT_UNKNOWN;
    if (random_chance(&own, 7000)) /* no message ends meanwhile */
        plan_break(p, FAULT_APP_503, 0, until_us);
    if (n_losses < 60)
        until_us /= 3;
    for (int i = 0; i < n_losses; i++) {
        struct plan_fault *f = plan_break(p, random_chance(&own, 5000) ? FAULT_CHANNEL : FAULT_KILL,
                                          random_between(&own, 0, until_us), ONE_OF(&own, 100000, 1000000));

        f->queue = 0;
        f->sidecar = (int)random_below(&own, (uint64_t)p->n_sidecars);
    }
}

/* Makes a queue ordered: with a single active consumer, and keys. */
static void order_queue(struct plan *p, uint64_t *r, int queue)
{
    struct plan_queue *q = &p->queues[queue];

    q->rules.ordered = true;
    q->rules.transaction = random_chance(r, 9000);
    q->n_keys = (int)ONE_OF(r, 1, 3, 10, 50);
    q->single_active = q->readable = true;
    q->quorum = random_chance(r, 8000);
    q->limit = q->version >= 400 ? LIMIT_NONE : (int)ONE_OF(r, LIMIT_NONE, 1000);
    q->rules.delivery_limit = q->limit;
    q->rules.holds_dead = p->seed % 2;
    if (q->rules.holds_dead) {
        q->limit = q->rules.delivery_limit = LIMIT_NONE;
    }
    q->moved_back = q->auto_delete = false;
    q->max_length = 0;
    q->rules.max_bytes = 64 << 20;
    q->rules.max_message_bytes = 256 << 10;
    q->rules.max_parked = q->rules.prefetch + 1;
    for (size_t i = 0; i < p->n_messages; i++) {
        struct plan_message *m = &p->messages[i];

        /* A message that is always answered "not now" would block its key indefinitely, and many without an id would
         * fill the prefetch. */
        if (m->queue == queue && (m->character == CHARACTER_503 || m->character == CHARACTER_429))
            m->character = CHARACTER_500;
        if (m->queue == queue && m->character == CHARACTER_NO_ID)
            m->character = CHARACTER_GOOD;
        m->other_key |= m->queue == queue && m->twin_of >= 0 && random_chance(r, 5000);
    }
}

/* Makes ordered queues: the first, or both as partitions of one consumer; with several replicas more often than not. */
static void make_ordered(struct plan *p, uint64_t *r, int64_t until_us)
{
    order_queue(p, r, 0);
    if (p->seed % 8 == 4)
        make_limited(p, until_us);
    if (p->n_sidecars == 1 && random_chance(r, 5000))
        p->n_sidecars = (int)ONE_OF(r, 2, 3);
    if (p->n_queues == 1 || random_chance(r, 3000))
        return;
    order_queue(p, r, 1);
    p->queues[1].version = p->queues[0].version;
    p->queues[1].quorum = p->queues[0].quorum;
}

/* Makes requests with several messages, which the application answers in every way. */
static void make_batches(struct plan *p, uint64_t *r)
{
    struct plan_application *a = &p->application;

    for (int i = 0; i < p->n_queues; i++) {
        struct queue_rules *q = &p->queues[i].rules;

        int prefetch = q->prefetch;

        plan_batch(q, (int)ONE_OF(r, 2, 3, 8, 30, 100));
        if (q->ordered)
            q->prefetch = prefetch;
        if (random_chance(r, 2000))
            q->batch.max_bytes = 1024;
    }
    for (int i = 0; i < p->n_queues && p->seed % 8 == 0; i++) {
        p->queues[i].rules.permanent_status = permanent_of_all_kinds;
        p->queues[i].rules.n_permanent_status =
            sizeof(permanent_of_all_kinds) / sizeof(*permanent_of_all_kinds);
    }
    a->names_failures = random_chance(r, 5000);
    for (int d = DEED_SOME_FAIL; d < N_DEEDS; d++)
        if (random_chance(r, 2500))
            a->rates[d] = (uint16_t)ONE_OF(r, 100, 300, 1000);
    if (a->rates[DEED_SOME_CRASH] > 100)
        a->rates[DEED_SOME_CRASH] = 100;
}

/* Sets ages, grace periods, single attempts and Retry-After. */
static void make_times(struct plan *p, uint64_t *r)
{
    for (int i = 0; i < p->n_queues; i++) {
        struct queue_rules *q = &p->queues[i].rules;

        if (random_chance(r, 1500))
            q->max_age_ms = ONE_OF(r, 3000, 20000, 100000);
        if (random_chance(r, 5000))
            q->commit_grace_ms = ONE_OF(r, 100, 400, 1900);
        if (random_chance(r, 1000))
            q->max_attempts = 1;
    }
    p->application.retry_after = random_chance(r, 5000);
}

void plan_make(struct plan *p, uint64_t seed)
{
    uint64_t r = random_mix(seed ^ 0x0123456789abcdef);
    int64_t busy_us = ONE_OF(&r, 5ll * SECOND, 60ll * SECOND, 150ll * SECOND);

    plan_plain(p, seed);
    p->n_sidecars = (int)ONE_OF(&r, 1, 1, 1, 2, 2, 3);
    p->n_queues = (int)ONE_OF(&r, 1, 1, 2);
    for (int i = 0; i < p->n_queues; i++)
        make_queue(&r, &p->queues[i]);
    make_application(&r, &p->application);
    p->own_rows = random_chance(&r, 7000);
    p->jitter = true;
    make_messages(p, &r, busy_us);
    size_t n = (size_t)ONE_OF(&r, 0, 1, 2, 4, 8, 16);

    for (size_t i = 0; i < n; i++)
        make_fault(p, &r, busy_us);
    /* A separate generator, so that other seeds keep their plans. */
    r = random_mix(seed ^ 0x1d5);
    if (random_chance(&r, 400))
        make_no_ids(p, &r, busy_us);
    if (random_chance(&r, 800))
        p->application.rates[DEED_UNSENT] = (uint16_t)ONE_OF(&r, 100, 1000, 5000);
    for (int i = 0; i < p->n_queues; i++) /* quorum queues with x-expires are deleted likewise, later */
        p->queues[i].auto_delete = random_chance(&r, 5000);
    r = random_mix(seed ^ 0x0de8);
    if (random_chance(&r, 1500))
        make_ordered(p, &r, busy_us + 50ll * SECOND);
    r = random_mix(seed ^ 0xba7c);
    if (random_chance(&r, 2500))
        make_batches(p, &r);
    r = random_mix(seed ^ 0x7e57);
    make_times(p, &r);
    p->quiet_us = busy_us + 60ll * SECOND;
    plan_sort(p);
}

void plan_limit_text(int limit, char ret[16])
{
    snprintf(ret, 16, limit == LIMIT_NONE ? "none" : "%d", limit);
}

void plan_print(const struct plan *p)
{
    const struct plan_application *a = &p->application;

    printf("seed %llu: %d sidecars, %zu messages, %zu faults, quiet from %lld s on\n",
           (unsigned long long)p->seed, p->n_sidecars, p->n_messages, p->n_faults,
           (long long)(p->quiet_us / SECOND));
    for (int i = 0; i < p->n_queues; i++) {
        const struct plan_queue *q = &p->queues[i];
        const struct queue_rules *r = &q->rules;
        char limit[16];

        plan_limit_text(q->limit, limit);
        printf("  queue %d: %s, RabbitMQ %d.%d, delivery limit %s %s%s%s; %s, window %lld ms, max_hold %lld, "
               "concurrency %d, prefetch %d, "
               "max_parked %d, max_attempts %d, backoff %lld to %lld, brake %d, batch %d, commit_grace %lld, "
               "max_age %lld\n",
               i, q->quorum ? "quorum" : "classic", q->version / 100, q->version % 100, limit,
               r->delivery_limit == LIMIT_UNKNOWN ? "(not told)" : "(told)", q->readable ? " (read)" : "",
               r->holds_dead    ? ", ordered, on_dead hold"
               : r->ordered     ? ", ordered"
               : q->auto_delete ? ", auto-delete"
               : q->max_length  ? ", drop-head"
                                : "",
               r->transaction ? "transaction" : "response", (long long)r->token_window_ms,
               (long long)r->max_hold_ms, r->concurrency, r->prefetch, r->max_parked, r->max_attempts,
               (long long)r->backoff_ms, (long long)r->max_backoff_ms, r->brake, r->batch.max_messages,
               (long long)r->commit_grace_ms, (long long)r->max_age_ms);
    }
    printf("  application: %lld us a request, %d at once (0: any), back after %lld ms%s%s%s;",
           (long long)a->service_us, a->capacity, (long long)(a->restart_us / 1000),
           a->proxy ? ", behind a proxy" : "", a->ready_url ? ", with ready.url" : "",
           a->retry_after ? ", with Retry-After" : "");
    for (int d = 1; d < N_DEEDS; d++)
        if (a->rates[d])
            printf(" %s %.1f %%", deeds[d], a->rates[d] / 100.0);
    printf("\n");
    for (size_t i = 0; i < p->n_faults; i++)
        printf("  at %9.3f s %s, sidecar %d, queue %d, for %.3f s, %lld\n",
               (double)p->faults[i].at_us / SECOND, faults[p->faults[i].kind], p->faults[i].sidecar,
               p->faults[i].queue, (double)p->faults[i].for_us / SECOND, (long long)p->faults[i].param);
    for (size_t i = 0; i < p->n_messages && p->n_messages <= 20; i++) {
        const struct plan_message *m = &p->messages[i];

        printf("  at %9.3f s message %d for queue %d: %s%s%s\n", (double)m->at_us / SECOND, m->number,
               m->queue, characters[m->character],
               m->twin_of < 0  ? ""
               : m->other_body ? ", an id that came before, with another body"
                               : ", a copy",
               m->other_key ? ", under another key" : "");
    }
}
