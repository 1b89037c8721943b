/* The application's answers, and their consequences for deliveries.
 *
 * No decision here overrides a committed completion: every statement after an answer (complete, fail,
 * release, dead_letter) is conditional on the row, and answers `completed` if the application has completed it. */
#include "core/batch_answers.h"
#include "core/batches.h"
#include "core/life.h"
#include "core/notes.h"
#include "core/pauses.h"

#include "onceward/base/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* --- consequences for the application --- */

static bool is_overload(int status)
{
    return status == 429 || status == 503;
}

static bool is_crash(const struct answer *a)
{
    return a->kind == ANSWER_DIED ||
           (a->kind == ANSWER_STATUS && (a->status == 502 || a->status == 504 || a->status < 200));
}

/* "Not now" for a message that was not tried before: valid messages may follow, so the others do not wait
 * long. */
static int64_t overload_wait_most_ms(bool first_try)
{
    return first_try ? LIMITER_WAIT_UNTRIED_MS : LIMITER_WAIT_LAST_MS;
}

static bool all_are_new(const struct request *r)
{
    list_each(&r->members, k)
    {
        const struct delivery *d = container_of(k, struct delivery, in_request);

        if (d->claim.attempt > 1 || d->n_given_back)
            return false;
    }
    return true;
}

static void tell_limiters(struct queue *q, int64_t now_ms, const struct request *r, const struct answer *a)
{
    if (a->kind == ANSWER_UNREACHABLE) {
        application_unreachable(q->application, now_ms, a->refused);
        pause_begin(q, now_ms, PAUSE_APPLICATION, a->brief);
    } else if (a->kind == ANSWER_STATUS && is_overload(a->status)) {
        application_refused_politely(q->application, &r->application, a->status);
        limiter_blame(&q->share->limiter, a->status == 429 ? "answered 429" : "answered 503");
        limiter_bad(&q->share->limiter, now_ms, r->mark, overload_wait_most_ms(all_are_new(r)),
                    a->retry_after_ms, held_random(q));
        if (q->share->limiter.slow_since_ms)
            pause_begin(q, now_ms, PAUSE_OVERLOADED, a->brief);
    } else if (a->kind == ANSWER_STATUS && !is_crash(a)) {
        application_answered(q->application, now_ms, &r->application);
        limiter_good(&q->share->limiter, r->mark);
    }
}

void queue_answered(struct queue *q, int64_t now_ms, uint64_t request, const struct answer *a)
{
    const struct outcome_rules rules = {q->rules.transaction, q->rules.permanent_status,
                                        q->rules.n_permanent_status};
    struct request *r = request_find(q, request);
    enum verdict v = outcome_of(a->kind, a->status, &rules);
    struct delivery *d;

    if (!r)
        return;
    request_end(q, r);
    tell_limiters(q, now_ms, r, a);
    if (a->kind == ANSWER_STATUS)
        q->flow.service_us += ((double)a->took_us - q->flow.service_us) / 16;
    request_keep(r);
    if (batches_are_on(q))
        batches_answered(q, now_ms, r, a);
    else if (a->kind == ANSWER_STATUS && a->status / 100 == 2)
        q->application->n_succeeded++;
    while ((d = request_first(r))) {
        held_leave_request(q, now_ms, d);
        life_member_answered(q, now_ms, d, v, a);
    }
    assert(!r->members.len && !r->in_flight);
    request_unkeep(r);
}
