/* An application, shared by its queues: see application.h. */
#include "onceward/core/application.h"

#include "onceward/core/backoff.h"

#include <assert.h>

enum {
    PROBE_FIRST_MS = 50,
    READY_LOOK_MS = 1000,   /* longest interval between two calls of ready.url, also when the application is
                               well */
    PLACE_SHARE = 10,       /* slots may stay idle for quarantine for a tenth of all time */
    PLACE_CREDIT_MS = 2000, /* upper bound of the unused part of that */
    OTHERS_FIRST_MS = 100, /* wait after its return, before a message that cannot be charged is quarantined */
};

void application_init(struct application *a, const struct application_rules *rules, int64_t now_ms)
{
    assert(rules->concurrency >= 1);
    *a = (struct application){.rules = *rules, .gone = true};
    limiter_init(&a->limiter, rules->concurrency);
    batch_size_init(&a->batch_size, rules->batch_messages, rules->batch_bytes);
    a->limiter.slow_since_ms = now_ms;
    a->probe.at_ms = now_ms;
    a->place.credit_ms = PLACE_CREDIT_MS;
    a->place.credit_at_ms = now_ms;
}

/* --- slots --- */

static int n_busy(const struct application *a)
{
    return a->n_out + a->n_reserved;
}

int application_taken(const struct application *a)
{
    assert(a->n_out >= 0 && a->n_reserved >= 0 && a->n_accepted >= 0);
    return n_busy(a) + a->n_accepted;
}

/* Is the application kept free for a quarantined message, or running only that one? */
static bool is_kept(const struct application *a, int64_t now_ms)
{
    return a->place.owner && !(a->place.taken && now_ms >= a->place.until_ms);
}

int application_room(const struct application *a, int64_t now_ms)
{
    int room = limiter_room(&a->limiter, now_ms) - application_taken(a);

    if (a->gone || a->probe.failing || is_kept(a, now_ms))
        return 0;
    return room > 0 ? room : 0;
}

bool application_may_send(const struct application *a, int64_t now_ms, int n_of_queue)
{
    if (a->gone || a->probe.failing || is_kept(a, now_ms) || !limiter_room(&a->limiter, now_ms))
        return false;
    return !n_of_queue || application_room(a, now_ms) > 0;
}

void application_time(struct application *a, int64_t now_ms, bool more, bool hangs)
{
    limiter_busy(&a->limiter, now_ms, a->n_out + a->n_accepted, more, hangs);
}

void application_reserve(struct application *a)
{
    a->n_reserved++;
}

void application_unreserve(struct application *a)
{
    assert(a->n_reserved > 0);
    a->n_reserved--;
}

void application_sent(struct application *a, bool alone, struct application_request *ret)
{
    a->n_out++;
    *ret = (struct application_request){.number = ++a->n_sent,
                                        .mark = limiter_mark(&a->limiter),
                                        .n_crashes = a->n_crashes,
                                        .n_succeeded = a->n_succeeded,
                                        .alone = alone};
}

void application_returned(struct application *a)
{
    assert(a->n_out > 0);
    a->n_out--;
}

/* --- answers --- */

static void saw_alive(struct application *a, uint64_t number)
{
    if (number <= a->crash_sent)
        return;
    a->seen_alive = true;
    a->unproven_step = 0;
}

void application_answered(struct application *a, int64_t now_ms, const struct application_request *r)
{
    (void)now_ms;
    assert(r->number > 0 && r->number <= a->n_sent);
    a->n_in_vain = 0;
    saw_alive(a, r->number);
    limiter_good(&a->limiter, r->mark);
}

void application_refused_politely(struct application *a, const struct application_request *r, int status)
{
    a->n_in_vain = 0;
    if (status == 429)
        saw_alive(a, r->number);
}

static void probe_soon(struct application *a, int64_t now_ms)
{
    if (a->probe.at_ms > now_ms)
        a->probe.at_ms = now_ms;
}

static int64_t probe_last_ms(const struct application *a)
{
    return a->rules.ready_interval_ms > PROBE_FIRST_MS ? a->rules.ready_interval_ms : PROBE_FIRST_MS;
}

/* If a connect succeeds but nothing can be sent (a refused client certificate is reported after the handshake), each
 * successful probe would allow the next request at once. */
static int64_t first_probe_ms(const struct application *a)
{
    int64_t wait = PROBE_FIRST_MS;

    for (int i = 1; i < a->n_in_vain && wait < probe_last_ms(a); i++)
        wait *= 2;
    return wait < probe_last_ms(a) ? wait : probe_last_ms(a);
}

void application_unreachable(struct application *a, int64_t now_ms, bool refused)
{
    a->refused |= refused;
    if (!a->gone) {
        a->gone = true;
        a->probe.n_failures = 0;
        a->n_in_vain++;
        limiter_collapse(&a->limiter, now_ms);
        a->probe.at_ms = now_ms + first_probe_ms(a);
    }
}

enum crash application_crashed(struct application *a, int64_t now_ms, const struct application_request *r,
                               int64_t retry_after_ms, uint64_t random)
{
    bool alone = r->alone && r->number == a->n_sent; /* no other request has joined it */

    assert(r->number > 0 && r->number <= a->n_sent && r->n_crashes <= a->n_crashes);
    if (r->number > a->crash_sent) {
        a->crash_sent = a->n_sent;
        a->n_crashes++;
        a->alive_before = a->seen_alive;
        a->seen_alive = a->refused = false;
        probe_soon(a, now_ms);
    }
    limiter_blame(&a->limiter, "the application crashed");
    limiter_bad(&a->limiter, now_ms, r->mark, LIMITER_WAIT_LAST_MS, retry_after_ms, random);
    if (alone)
        return a->alive_before ? CRASH_CHARGED : CRASH_UNPROVEN;
    /* After the first crash of all, the application was never seen before, alive or dead. */
    return a->alive_before || a->n_crashes == 1 ? CRASH_QUARANTINED : CRASH_NOT_ITS_OWN;
}

bool unproven_may_charge(int64_t since_ms, int step, int64_t max_backoff_ms)
{
    int64_t wait = max_backoff_ms;

    for (int i = 1; i < step && wait < INT64_MAX / 2; i++)
        wait *= 2;
    return since_ms < 0 || since_ms >= wait;
}

bool application_charges_unproven(struct application *a, int64_t now_ms, int64_t max_backoff_ms)
{
    if (a->unproven_step && !unproven_may_charge(now_ms - a->unproven_ms, a->unproven_step, max_backoff_ms))
        return false;
    a->unproven_step++;
    a->unproven_ms = now_ms;
    return true;
}

/* --- probes --- */

bool application_wants_probe(const struct application *a, int64_t now_ms)
{
    return !a->probe.sent && now_ms >= a->probe.at_ms;
}

void application_probe_sent(struct application *a)
{
    a->probe.sent = true;
    a->probe.n_crashes = a->n_crashes;
}

static void probe_failed(struct application *a, int64_t now_ms, bool refused, uint64_t random)
{
    if (refused)
        a->refused = true;
    if (!a->gone && !a->probe.failing) {
        a->probe.n_failures = 0;
        limiter_collapse(&a->limiter, now_ms);
    }
    /* An application that listens and whose ready.url answers an error is available for connections. */
    if (refused || !a->rules.has_ready_url)
        a->gone = true;
    a->probe.failing = a->rules.has_ready_url;
    a->probe.at_ms = now_ms + backoff_ms(PROBE_FIRST_MS, probe_last_ms(a), ++a->probe.n_failures, random);
}

void application_probed(struct application *a, int64_t now_ms, bool ready, bool refused, uint64_t random)
{
    bool is_news = a->probe.n_crashes == a->n_crashes; /* sent after the latest crash */

    a->probe.sent = false;
    if (!ready) {
        probe_failed(a, now_ms, refused, random);
        return;
    }
    if (is_news && (a->rules.has_ready_url || a->refused)) {
        a->seen_alive = true;
        a->unproven_step = 0;
    }
    /* A ready.url may have another port. If the application refuses connections, only an answer proves its
     * return. */
    if ((!a->reached || (a->rules.has_ready_url ? a->probe.failing && !a->gone : a->gone)) &&
        now_ms >= a->limiter.wait_until_ms && a->n_in_vain < 2)
        a->limiter.slow_since_ms = 0;
    if (a->gone || a->probe.failing)
        a->back_ms = now_ms;
    a->reached = true;
    a->gone = a->probe.failing = false;
    a->probe.n_failures = 0;
    if (!is_news) { /* the probe proves nothing about the time after the crash */
        a->probe.at_ms = now_ms;
        return;
    }
    a->probe.at_ms = a->rules.has_ready_url
                         ? now_ms + (a->rules.ready_interval_ms > READY_LOOK_MS ? a->rules.ready_interval_ms
                                                                                : READY_LOOK_MS)
                         : INT64_MAX;
}

/* --- quarantine --- */

static void place_account(struct application *a, int64_t now_ms)
{
    int64_t passed = now_ms - a->place.credit_at_ms;

    a->place.credit_at_ms = now_ms;
    a->place.credit_ms += a->place.owner ? -passed : passed / PLACE_SHARE;
    if (a->place.credit_ms > PLACE_CREDIT_MS)
        a->place.credit_ms = PLACE_CREDIT_MS;
    if (a->place.credit_ms < -a->rules.window_ms)
        a->place.credit_ms = -a->rules.window_ms;
}

/* Keeps remainders below PLACE_SHARE: the account is settled only after enough time. */
static void place_settle(struct application *a, int64_t now_ms)
{
    if (a->place.owner || now_ms - a->place.credit_at_ms >= PLACE_SHARE)
        place_account(a, now_ms);
}

/* Will ready.url soon show whether the application is back? */
static bool awaits_news(const struct application *a)
{
    return a->rules.has_ready_url && a->n_crashes && !a->seen_alive;
}

int64_t application_others_first_ms(const struct application *a)
{
    return a->n_crashes ? a->back_ms + OTHERS_FIRST_MS : 0;
}

enum place application_take_place(struct application *a, int64_t now_ms, uint64_t owner, bool patient)
{
    bool quiet = !n_busy(a) && !a->n_abandoned && !a->n_accepted;

    assert(owner);
    place_settle(a, now_ms);
    if (a->place.owner && a->place.owner != owner)
        return is_kept(a, now_ms) ? PLACE_WAIT : PLACE_BESIDE;
    /* No request could be sent now, so no slots are kept free. */
    if (a->gone || a->probe.failing || !limiter_room(&a->limiter, now_ms) || awaits_news(a)) {
        application_leave_place(a, now_ms, owner);
        return PLACE_WAIT;
    }
    if (!a->place.owner) {
        if (!quiet && a->place.credit_ms <= 0 && !(patient && now_ms >= a->place.rested_ms))
            return PLACE_BESIDE;
        a->place.owner = owner;
        a->place.taken = false;
        a->place.since_ms = now_ms;
    }
    if (!quiet && now_ms - a->place.since_ms < a->rules.window_ms)
        return PLACE_WAIT;
    if (!quiet) { /* a job longer than any window is in flight, so quarantine is impossible */
        application_leave_place(a, now_ms, owner);
        return PLACE_BESIDE;
    }
    assert(a->place.owner == owner);
    a->place.taken = true;
    a->place.until_ms = INT64_MAX;
    return PLACE_TAKEN;
}

bool application_find_place(struct application *a, int64_t now_ms, uint64_t owner)
{
    if ((a->place.owner && a->place.owner != owner) || n_busy(a) > 1 || a->n_abandoned || a->n_accepted ||
        awaits_news(a))
        return false;
    assert(owner);
    place_settle(a, now_ms);
    a->place.owner = owner;
    a->place.taken = true;
    a->place.since_ms = now_ms;
    a->place.until_ms = INT64_MAX;
    return true;
}

void application_share_place(struct application *a, uint64_t owner, int64_t at_ms)
{
    if (a->place.owner == owner && a->place.taken)
        a->place.until_ms = at_ms;
}

void application_leave_place(struct application *a, int64_t now_ms, uint64_t owner)
{
    if (a->place.owner != owner)
        return;
    place_settle(a, now_ms);
    a->place.rested_ms = now_ms + (now_ms - a->place.since_ms);
    a->place.owner = 0;
    a->place.taken = false;
}

int64_t application_deadline(const struct application *a, int64_t now_ms)
{
    int64_t at = a->probe.sent ? INT64_MAX : a->probe.at_ms, limit = limiter_deadline(&a->limiter, now_ms);

    if (limit < at)
        at = limit;
    if (a->place.owner && !a->place.taken && a->place.since_ms + a->rules.window_ms > now_ms &&
        a->place.since_ms + a->rules.window_ms < at)
        at = a->place.since_ms + a->rules.window_ms;
    if (a->place.owner && a->place.taken && a->place.until_ms > now_ms && a->place.until_ms < at)
        at = a->place.until_ms;
    return at;
}
