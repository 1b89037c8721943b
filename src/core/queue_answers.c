/* What the application says, and what it means for a delivery.
 *
 * Nothing is decided here against a committed completion: every statement that follows an answer (complete,
 * fail, release, bury) is conditional on the row, and answers `completed` where the application has completed
 * it. */
#include "core/decide.h"
#include "core/notes.h"

#include "onceward/base/mem.h"
#include "onceward/core/mutant.h"

#include <stdlib.h>
#include <string.h>

/* --- what it says of the application --- */

static bool is_overload(int status)
{
    return status == 429 || status == 503;
}

static bool is_crash(const struct answer *a)
{
    return a->kind == ANSWER_DIED ||
           (a->kind == ANSWER_STATUS && (a->status == 502 || a->status == 504 || a->status < 200));
}

/* "Not now" of a message that was not tried before: there may be good ones behind it, so it does not make the
 * others wait for long. */
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
        limiter_bad(&q->limiter, now_ms, r->mark, overload_wait_most_ms(all_are_new(r)), a->retry_after_ms,
                    held_random(q));
        if (q->limiter.slow_since_ms)
            pause_begin(q, now_ms, PAUSE_OVERLOADED, a->brief);
    } else if (a->kind == ANSWER_STATUS && !is_crash(a)) {
        application_answered(q->application, now_ms, &r->application);
        limiter_good(&q->limiter, r->mark);
    }
}

/* The application hears of a crash once per request, when the first member is dealt with. */
static enum crash crash_of(struct queue *q, int64_t now_ms, struct request *r, int64_t retry_after_ms)
{
    if (!r->crashed)
        r->whose =
            application_crashed(q->application, now_ms, &r->application, retry_after_ms, held_random(q));
    r->crashed = true;
    return r->whose;
}

/* --- what it says of the message --- */

static void crashed(struct queue *q, int64_t now_ms, struct delivery *d, int64_t retry_after_ms)
{
    enum crash whose = crash_of(q, now_ms, d->request, retry_after_ms);
    int crashes = d->claim.crashes + 1, step = d->claim.unproven_step;
    int64_t since = d->claim.unproven_at_ms < 0 ? -1 : now_ms - d->claim.unproven_at_ms;

    d->outcome.died = true;
    if (q->application->limiter.slow_since_ms)
        pause_begin(q, now_ms, PAUSE_APPLICATION, d->outcome.error ? d->outcome.error : "");
    switch (whose) {
    case CRASH_CHARGED:
        decide_fail(q, now_ms, d, crashes, -1);
        break;
    case CRASH_UNPROVEN:
        if (unproven_may_charge(since, step, q->rules.max_backoff_ms) &&
            application_charges_unproven(q->application, now_ms, q->rules.max_backoff_ms))
            decide_fail(q, now_ms, d, crashes, step + 1);
        else
            decide_release(q, now_ms, d, held_delay_ms(q, d, ++d->n_given_back), crashes, -1);
        break;
    case CRASH_QUARANTINED:
        if (!d->claim.crashes)
            notes_tell_limited(q, now_ms, EVENT_ALONE, d);
        decide_release(q, now_ms, d, held_delay_ms(q, d, d->claim.attempt), crashes, -1);
        break;
    case CRASH_NOT_ITS_OWN:
        decide_release(q, now_ms, d, held_delay_ms(q, d, ++d->n_given_back), -1, -1);
        break;
    }
}

static void not_now(struct queue *q, int64_t now_ms, struct delivery *d, int64_t retry_after_ms)
{
    int64_t backoff = held_backoff_ms(q, ++d->n_given_back);

    d->answer.put_off = true;
    decide_release(q, now_ms, d, retry_after_ms >= 0 ? retry_after_ms : backoff, -1, -1);
}

/* It answered: what follows is not a crash of it, so it need not be alone any more. */
static int crashes_after_answer(const struct delivery *d)
{
    return d->claim.crashes > 0 && d->claim.alone ? 0 : -1;
}

static void apply(struct queue *q, int64_t now_ms, struct delivery *d, enum verdict v, int64_t retry_after_ms)
{
    d->outcome.only_expired = d->outcome.give_back = false;
    switch (v) {
    case VERDICT_COMPLETE:
        held_want(q, now_ms, d, OP_COMPLETE);
        break;
    case VERDICT_CHECK:
        if (MUTANT(ACK_ON_ANSWER)) {
            decide_ack(q, now_ms, d);
            break;
        }
        d->answer.commit_until_ms = now_ms + q->rules.commit_grace_ms;
        d->n_waits = 0;
        held_want(q, now_ms, d, OP_CHECK);
        break;
    case VERDICT_ACCEPTED:
        d->n_waits = 0;
        held_accept(q, now_ms, d, d->claim.window_ends_ms > now_ms ? d->claim.window_ends_ms : now_ms + 1);
        held_wait(q, now_ms, d, OP_CHECK, WAIT_WATCHING,
                  MUTANT(ACCEPTED_FORGOTTEN) ? INT64_MAX : now_ms + LOCK_LOOK_MS);
        break;
    case VERDICT_NOT_NOW:
    case VERDICT_UNAVAILABLE:
        if (MUTANT(NOT_NOW_CHARGED)) {
            decide_fail(q, now_ms, d, -1, -1);
            break;
        }
        if (d->outcome.http_status)
            not_now(q, now_ms, d, retry_after_ms);
        else /* nobody was there: the limiter knows when somebody is */
            decide_release(q, now_ms, d, 0, -1, -1);
        break;
    case VERDICT_PERMANENT:
        decide_charge(q, now_ms, d, DEAD_PERMANENT, crashes_after_answer(d), -1);
        break;
    case VERDICT_DIED:
        crashed(q, now_ms, d, retry_after_ms);
        break;
    case VERDICT_FAILED:
    case VERDICT_REVOKE:
    case N_VERDICTS:
        decide_fail(q, now_ms, d, crashes_after_answer(d), -1);
        break;
    }
}

static void keep_result(struct queue *q, struct delivery *d, struct slice body)
{
    if (!q->rules.store_response_bytes || !body.len || body.len > q->rules.store_response_bytes)
        return;
    free(d->outcome.result);
    d->outcome.result = mem_copy(body.data, body.len);
    d->outcome.result_len = body.len;
}

/* The answer is that of one member. */
static void member_answered(struct queue *q, int64_t now_ms, struct delivery *d, enum verdict v,
                            const struct answer *a)
{
    if (v == VERDICT_COMPLETE)
        keep_result(q, d, a->body);
    words_say(d, a->brief, a->error && strcmp(a->error, a->brief) != 0 ? a->error : NULL);
    d->outcome.http_status = a->status;
    /* A proxy says 504 when its patience ends: the application works on. */
    d->outcome.unanswered = a->kind == ANSWER_TIMEOUT || (a->kind == ANSWER_STATUS && a->status == 504);
    if (d->op == OP_FORWARD) {
        apply(q, now_ms, d, v, a->retry_after_ms);
        return;
    }
    /* The database is just being asked whether its window is over. */
    d->answer.kept_verdict = (int)v;
    d->answer.kept_retry_after_ms = a->retry_after_ms;
    if (d->phase == PHASE_WANTED) { /* not asked yet */
        d->answer.kept_verdict = -1;
        apply(q, now_ms, d, v, a->retry_after_ms);
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
    while ((d = request_first(r))) {
        held_leave_request(q, now_ms, d);
        member_answered(q, now_ms, d, v, a);
    }
    request_unkeep(r);
}

void queue_answer_kept(struct queue *q, int64_t now_ms, struct delivery *d)
{
    int v = d->answer.kept_verdict;

    if (v < 0 || d->ended || d->phase == PHASE_SENT)
        return;
    d->answer.kept_verdict = -1;
    /* Its token lives, or nothing was learnt: then the answer counts. */
    if (d->op == OP_FORWARD || d->op == OP_REVOKE)
        apply(q, now_ms, d, (enum verdict)v, d->answer.kept_retry_after_ms);
}
