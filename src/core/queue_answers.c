/* The answers of the application and of the database, and their consequences for deliveries. The rules are in life.c,
 * claim_rows.c and renewals.c.
 *
 * No decision about the application's answer overrides a committed completion: every statement after it (complete,
 * fail, release, dead_letter) is conditional on the row, and answers `completed` if the application has completed it.
 * An answer of the database without a row counts too: `completed` leads to an ack, all others to a new claim; nothing
 * is rejected because of it. */
#include "core/batch_answers.h"
#include "core/batches.h"
#include "core/life.h"
#include "core/notes.h"
#include "core/pauses.h"
#include "core/renewals.h"
#include "core/rows.h"

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

        if (d->claim->attempt > 1 || d->claim->n_given_back)
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

/* --- the database --- */

void queue_row(struct queue *q, int64_t now_ms, uint64_t ref, const struct row *r)
{
    typedef struct step answered(struct queue *, int64_t, struct delivery *, const struct row *);
    static answered *const by_operation[N_OPERATIONS] = {
        [OP_CLAIM] = row_of_claim, [OP_LOOK] = row_of_look,         [OP_RENEW] = row_of_renew,
        [OP_CHECK] = row_of_check, [OP_COMPLETE] = row_of_complete, [OP_FAIL] = row_of_fail,
        [OP_REVOKE] = row_of_fail, [OP_RELEASE] = row_of_release,   [OP_DEAD_LETTER] = row_of_dead_letter,
    };
    struct delivery *d = (struct delivery *)queue_find(q, ref);

    assert(r->op < N_OPERATIONS && r->answer < N_ROW_ANSWERS);
    if (!d || d->phase != PHASE_SENT || d->op != r->op || !by_operation[d->op])
        return; /* the delivery has moved on meanwhile */
    if (r->answer != ROW_LOCKED && r->answer != ROW_RETRY && r->answer != ROW_UNKNOWN)
        d->claim->locked_since_ms = 0;
    struct step s = r->answer == ROW_UNKNOWN || r->answer == ROW_RETRY ? row_repeat(q, now_ms, d, r)
                                                                       : by_operation[d->op](q, now_ms, d, r);

    life_go(q, now_ms, d, FACT_ROW, s);
    s = life_answer_kept(q, now_ms, d);
    if (s.kind != STEP_STAY)
        life_go(q, now_ms, d, FACT_ANSWER, s);
}

void queue_claim_took(struct queue *q, int64_t took_us)
{
    q->flow.claim_us += ((double)took_us - q->flow.claim_us) / 8;
}
