/* Measured scenarios of requests with several messages: how many requests and crashes a bad message costs, and whether
 * the others are done. */
#include "measured_rig.h"

#include <stdio.h>

enum { BATCH = 100 };

static void batch_plan(struct plan *p, int concurrency, bool transaction)
{
    plan_plain(p, 15);
    p->queues[0].rules.concurrency = concurrency;
    p->queues[0].rules.transaction = transaction;
    plan_batch(&p->queues[0].rules, BATCH); /* with the default prefetch and max_parked of that */
    p->queues[0].rules.max_parked =
        2 * p->queues[0].rules.prefetch > 1000 ? 2 * p->queues[0].rules.prefetch : 1000;
    p->stop_us = 6 * (int64_t)HOUR_S * SECOND;
}

/* The first message shows that the application knows batches. */
static void add_among(struct plan *p, enum character c, size_t n)
{
    plan_add(p, 0, CHARACTER_GOOD, 1, 0, 0);
    plan_add(p, 0, CHARACTER_GOOD, n / 2, SECOND, 0);
    if (c != CHARACTER_GOOD)
        plan_add(p, 0, c, 1, SECOND, 0);
    plan_add(p, 0, CHARACTER_GOOD, n - n / 2 - (c != CHARACTER_GOOD), SECOND, 0);
}

/* Ceiling of the binary logarithm of BATCH: 7. */
enum { EXTRA_MOST = 2 * 7 + 1 };

static void one_poison(struct report *r)
{
    char text[160];

    for (int transaction = 0; transaction < 2; transaction++) {
        struct figures none = {0}, f = {0};
        struct plan p;

        for (int bad = 0; bad < 2; bad++) {
            batch_plan(&p, 1, transaction);
            p.queues[0].rules.max_attempts = 2;
            add_among(&p, bad ? CHARACTER_500 : CHARACTER_GOOD, BATCH);
            measure(&p, bad ? &f : &none);
        }
        /* In `response` each message goes alone after the failure. Its second attempt is not counted. */
        int extra = (int)(f.out.counts.n_posts - none.out.counts.n_posts) - 1;
        int most = transaction ? EXTRA_MOST : BATCH;

        snprintf(text, sizeof(text), "%d more requests (at most %d), %zu of 100 good ones done, %d charged",
                 extra, most, f.n_done[CHARACTER_GOOD], f.n_charged);
        verdict(r, &f,
                f.n_dead[CHARACTER_500] == 1 && extra <= most && f.n_done[CHARACTER_GOOD] == 100 &&
                    !f.n_charged,
                transaction ? "one poison in a batch of 100"
                            : "one poison in a batch of 100, completion response",
                text);
    }
}

static void one_killer(struct report *r)
{
    struct figures f = {0};
    struct plan p;
    char text[160];

    batch_plan(&p, 16, true);
    p.application.service_us = 20000;
    p.application.restart_us = 5 * (int64_t)SECOND;
    add_among(&p, CHARACTER_KILLER, 1600);
    measure(&p, &f);
    int uncharged = f.n_kills - p.queues[0].rules.max_attempts;

    snprintf(text, sizeof(text),
             "found after %d crashes (at most 2), %zu of 1,600 good ones done after %.0f s, %d charged",
             uncharged, f.n_done[CHARACTER_GOOD], (double)f.last_good_us / SECOND, f.n_charged);
    verdict(r, &f,
            f.n_dead[CHARACTER_KILLER] == 1 && uncharged <= 2 && f.n_done[CHARACTER_GOOD] == 1600 &&
                !f.n_charged,
            "one killer among 1,600 in flight", text);
}

/* A single message is never answered, with a window of ten minutes. */
static void one_hangs(struct report *r)
{
    struct figures f = {0};
    struct plan p;
    char text[160];

    batch_plan(&p, 1, true);
    p.queues[0].rules.token_window_ms = 600000;
    p.queues[0].rules.max_hold_ms = 1800000;
    add_among(&p, CHARACTER_HANG, BATCH);
    measure(&p, &f);
    snprintf(text, sizeof(text),
             "%zu of 100 good ones done after %.0f s (at most 3,700), %d charged; it is %s",
             f.n_done[CHARACTER_GOOD], (double)f.last_good_us / SECOND, f.n_charged,
             f.n_dead[CHARACTER_HANG] ? "dead" : "not dead");
    verdict(r, &f,
            f.n_done[CHARACTER_GOOD] == 100 && f.last_good_us <= 3700 * (int64_t)SECOND && !f.n_charged &&
                f.n_dead[CHARACTER_HANG] == 1,
            "one hangs, window ten minutes, batches of 100", text);
}

/* A message is always refused, and the application's answer does not name it. With a Retry-After all messages of a
 * request are due at the same time. */
static void one_is_refused(struct report *r)
{
    static const struct {
        enum character kind;
        int retry_after_ms;
        const char *name;
    } cases[] = {{CHARACTER_503, 0, "one is always answered 503, batches of 100"},
                 {CHARACTER_429, 0, "one is always answered 429, batches of 100"},
                 {CHARACTER_429, 5000, "one always 429, Retry-After 5 s, batches of 100"}};
    struct figures f = {0};
    struct plan p;
    char text[160];

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        batch_plan(&p, 1, true);
        p.stop_us = HOUR_S * (int64_t)SECOND;
        add_among(&p, cases[i].kind, BATCH);
        for (size_t m = 0; m < p.n_messages; m++)
            if (p.messages[m].character == CHARACTER_429)
                p.messages[m].param = cases[i].retry_after_ms;
        measure(&p, &f);
        snprintf(text, sizeof(text), "%zu of 100 good ones done after %.0f s (at most 120), %d charged",
                 f.n_done[CHARACTER_GOOD], (double)f.last_good_us / SECOND, f.n_charged);
        verdict(r, &f,
                f.n_done[CHARACTER_GOOD] == 100 && f.last_good_us <= 120 * (int64_t)SECOND && !f.n_charged,
                cases[i].name, text);
    }
}

/* All requests are refused for ten minutes, which is no member's fault: they have their size afterwards, also if the
 * sidecar was restarted meanwhile. */
static void refused_plan(struct plan *p, bool restarted)
{
    batch_plan(p, 4, true);
    plan_add(p, 0, CHARACTER_GOOD, 1, 0, 0);
    plan_add(p, 0, CHARACTER_GOOD, 1600, 2 * SECOND, 0);
    plan_break(p, FAULT_APP_503, SECOND, 600 * (int64_t)SECOND);
    if (restarted)
        plan_break(p, FAULT_KILL, 300 * (int64_t)SECOND, SECOND)->param = 0;
}

static void all_are_refused(struct report *r)
{
    char text[160];

    for (int restarted = 0; restarted < 2; restarted++) {
        struct figures f = {0}, before = {0};
        struct plan p;

        refused_plan(&p, restarted);
        p.stop_us = 601 * (int64_t)SECOND;
        measure(&p, &before);
        refused_plan(&p, restarted);
        measure(&p, &f);
        int n = (int)(f.out.counts.n_posts - before.out.counts.n_posts);

        snprintf(text, sizeof(text),
                 "then %zu of 1,601 done after %.0f s, in %d requests (at most 40), %d charged",
                 f.n_done[CHARACTER_GOOD], (double)f.last_good_us / SECOND - 601, n, f.n_charged);
        verdict(r, &f, f.n_done[CHARACTER_GOOD] == 1601 && n <= 40 && !f.n_charged,
                restarted ? "all answered 503 for 10 min, and a restart"
                          : "all answered 503 for 10 min, batches of 100",
                text);
    }
}

/* A deployment fails every message, in one of the ways in which it can answer. The circuit breaker allows as many
 * tries as `concurrency` in each second. Without batches up to 20 messages in a row may be dead before it is set. */
struct bad_answer {
    int status;
    bool named, transaction;
    const char *name;
};

static void bad_deploy_of(struct report *r, const struct bad_answer *b, int slots)
{
    struct figures f = {0};
    struct plan p;
    char name[80], text[160];
    int most = 50 + 10 * slots;

    batch_plan(&p, slots, b->transaction);
    p.application.names_failures = b->named;
    plan_add(&p, 0, CHARACTER_GOOD, 1, 0, 0);
    plan_add(&p, 0, CHARACTER_GOOD, 1600, 2 * SECOND, 0);
    plan_break(&p, FAULT_APP_500, SECOND, 20 * (int64_t)SECOND)->param = b->status;
    p.stop_us = 12 * (int64_t)SECOND;
    measure(&p, &f);
    snprintf(name, sizeof(name), "%s, batches of 100, concurrency %d%s", b->name, slots,
             b->transaction ? "" : ", response");
    snprintf(text, sizeof(text),
             "%llu requests in 10 s (at most 50, and %d trials), %zu dead, %d charged (at most 20 each)",
             (unsigned long long)f.out.counts.n_posts, most - 50, f.n_dead[CHARACTER_GOOD], f.n_charged);
    verdict(r, &f,
            f.out.counts.n_posts <= (uint64_t)most && f.n_dead[CHARACTER_GOOD] <= 20 && f.n_charged <= 20,
            name, text);
}

static void bad_deploy(struct report *r)
{
    static const int slots[] = {1, 4, 16};
    static const struct bad_answer all[] = {
        {500, false, true, "all answered 500"}, {404, false, true, "all answered 404"},
        {422, false, true, "all answered 422"}, {422, false, false, "all answered 422"},
        {422, true, true, "all named 422"},     {422, true, false, "all named 422"},
        {500, true, true, "all named 500"},
    };

    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        for (size_t k = 0; k < 3; k++)
            bad_deploy_of(r, &all[i], slots[k]);
}

/* The application hangs with every request. */
static void all_hang(struct report *r)
{
    struct figures f = {0};
    struct plan p;
    char text[160];

    batch_plan(&p, 4, true);
    plan_add(&p, 0, CHARACTER_GOOD, 1, 0, 0);
    plan_add(&p, 0, CHARACTER_GOOD, 1600, 2 * SECOND, 0);
    plan_break(&p, FAULT_APP_HANG, SECOND, 600 * (int64_t)SECOND);
    p.stop_us = 590 * (int64_t)SECOND;
    measure(&p, &f);
    snprintf(text, sizeof(text), "%llu requests in 590 s (at most 100), %zu dead, %d charged",
             (unsigned long long)f.out.counts.n_posts, f.n_dead[CHARACTER_GOOD], f.n_charged);
    verdict(r, &f, f.out.counts.n_posts <= 100 && !f.n_dead[CHARACTER_GOOD] && !f.n_charged,
            "no request is answered, batches of 100", text);
}

/* The application takes 20 messages in a request at most: three refused requests halve the learned size to 12, and it
 * grows above 20 with every sixth success of a full request. A size that was not learned would be found again with each
 * message: there must be few requests, on average a third full. */
static void too_many_messages(struct report *r)
{
    static const struct {
        enum deed deed;
        const char *name;
    } cases[] = {{DEED_413, "above 20 messages answered 413, batches of 100"},
                 {DEED_HANG, "above 20 messages not answered, batches of 100"}};
    struct figures f = {0};
    struct plan p;
    char text[160];

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        batch_plan(&p, 1, true);
        p.application.most_messages = 20;
        p.application.too_many = cases[i].deed;
        add_among(&p, CHARACTER_GOOD, 6400);
        measure(&p, &f);
        snprintf(
            text, sizeof(text),
            "%llu of %llu requests (at most 960) were above (3 and 1 in 7), %zu of 6,401 done, %d charged",
            (unsigned long long)f.out.counts.n_too_many, (unsigned long long)f.out.counts.n_posts,
            f.n_done[CHARACTER_GOOD], f.n_charged);
        verdict(r, &f,
                f.out.counts.n_posts <= 960 && f.out.counts.n_too_many <= 3 + f.out.counts.n_posts / 7 &&
                    f.n_done[CHARACTER_GOOD] == 6401 && !f.n_charged,
                cases[i].name, text);
    }
}

/* A third of the messages of each request is named as failed. The others succeed, so neither does the number of
 * requests at once fall, nor is the circuit breaker set. */
static void many_are_named(struct report *r)
{
    static const struct {
        enum character kind;
        const char *name;
    } cases[] = {{CHARACTER_500, "a third named 500, batches of 100"},
                 {CHARACTER_503, "a third named 503, batches of 100"},
                 {CHARACTER_429, "a third named 429, batches of 100"}};
    char text[160];

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct figures f = {0};
        struct plan p;

        batch_plan(&p, 4, true);
        p.application.names_failures = true;
        p.application.service_us = 50000;
        p.queues[0].rules.backoff_ms = p.queues[0].rules.max_backoff_ms =
            60000; /* no request has only failed messages */
        plan_add(&p, 0, CHARACTER_GOOD, 1, 0, 0);
        for (int k = 0; k < 900; k++) {
            plan_add(&p, 0, cases[i].kind, 1, SECOND, 0);
            plan_add(&p, 0, CHARACTER_GOOD, 2, SECOND, 0);
        }
        p.stop_us = 10 * (int64_t)SECOND;
        measure(&p, &f);
        snprintf(text, sizeof(text),
                 "%zu of 1,801 good ones done after %.1f s (at most 2), circuit breaker set %llu times (0)",
                 f.n_done[CHARACTER_GOOD], (double)f.last_good_us / SECOND - 1,
                 (unsigned long long)f.out.counts.n_breakers);
        verdict(r, &f,
                f.n_done[CHARACTER_GOOD] == 1801 && f.last_good_us <= 3 * (int64_t)SECOND &&
                    !f.out.counts.n_breakers && !f.n_charged,
                cases[i].name, text);
    }
}

void batches(struct report *r)
{
    one_poison(r);
    one_killer(r);
    one_hangs(r);
    one_is_refused(r);
    all_are_refused(r);
    bad_deploy(r);
    all_hang(r);
    too_many_messages(r);
    many_are_named(r);
}
