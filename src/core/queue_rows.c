/* What the database says, by what was asked. A zero-row answer is an answer: completed means ack, anything
 * else goes back to the claim; nothing is acked or rejected on it. */
#include "core/rows.h"

#include "core/renewals.h"

#include "onceward/base/mem.h"
#include "onceward/core/mutant.h"

#include <stdio.h>
#include <stdlib.h>

/* --- answered, and the row is read --- */

static void not_completed_yet(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    bool accepted = d->answer.accepted_until_ms != 0;
    int64_t until = accepted ? d->answer.accepted_until_ms : d->answer.commit_until_ms;
    bool crashed = q->application->n_crashes != d->request->application.n_crashes;
    char text[96];

    if (accepted && now_ms + r->wait_ms > until) { /* extended */
        until = now_ms + r->wait_ms;
        held_accept(q, now_ms, d, until);
    }
    if (now_ms < until) {
        int64_t wait = held_lock_wait_ms(d);

        held_wait(q, now_ms, d, OP_CHECK, WAIT_WATCHING, now_ms + wait < until ? now_ms + wait : until);
        return;
    }
    d->outcome.only_expired = d->outcome.unanswered = accepted;
    if (accepted) {
        words_say(d, "accepted with 202, and not completed within the window", NULL);
    } else {
        snprintf(text, sizeof(text), "answered %d without completing the token", d->outcome.http_status);
        words_say(d, text, NULL);
        row_answered_early(q, now_ms, d, false);
    }
    if (crashed && !d->claim.alone) { /* perhaps of it, perhaps of a neighbour: alone it will show */
        if (d->outcome.only_expired) {
            d->outcome.give_back = true;
            d->outcome.write_crashes = d->claim.crashes + 1;
            d->outcome.delay_ms = held_delay_ms(q, d, d->claim.attempt);
            held_want(q, now_ms, d, OP_FAIL);
        } else {
            decide_release(q, now_ms, d, held_delay_ms(q, d, d->claim.attempt), d->claim.crashes + 1, -1);
        }
        return;
    }
    decide_fail(q, now_ms, d, -1, -1);
}

static void check_row(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    switch (r->answer) {
    case ROW_COMPLETED:
        if (d->n_waits && !d->answer.accepted_until_ms)
            row_answered_early(q, now_ms, d, true);
        row_completed(q, now_ms, d);
        break;
    case ROW_CLAIMED:
        not_completed_yet(q, now_ms, d, r);
        break;
    case ROW_LOCKED:
        row_locked(q, now_ms, d);
        break;
    default:
        row_again(q, now_ms, d);
        break;
    }
}

/* --- what was to be written --- */

static void complete_row(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    if (MUTANT(LOST_IS_DONE) && r->answer == ROW_LOST) {
        decide_ack(q, now_ms, d);
        return;
    }
    switch (r->answer) {
    case ROW_COMPLETED:
        row_completed(q, now_ms, d);
        break;
    case ROW_LOCKED:
        row_locked(q, now_ms, d);
        break;
    case ROW_INVALID: /* only the stored answer can be at fault: the completion matters more */
        row_refused(q, now_ms, d, r);
        mem_clear(&d->outcome.result);
        d->outcome.result_len = 0;
        held_wait(q, now_ms, d, OP_COMPLETE, WAIT_AGAIN, now_ms + held_lock_wait_ms(d));
        break;
    default:
        row_again(q, now_ms, d);
        break;
    }
}

static void tell_given_back(struct queue *q, int64_t now_ms, const struct delivery *d)
{
    struct note *n = notes_tell_limited(q, now_ms, EVENT_GIVEN_BACK, d);

    counter_add(&q->counts.given_back, 1);
    if (n)
        n->ms = d->outcome.delay_ms > 0 ? d->outcome.delay_ms : 0;
}

static void tell_failed(struct queue *q, int64_t now_ms, struct delivery *d, bool released)
{
    struct note *n;

    if (d->outcome.only_expired)
        notes_tell_limited(q, now_ms, EVENT_TOKEN_EXPIRED, d);
    if (released) {
        tell_given_back(q, now_ms, d);
    } else if (d->claim.attempt >= q->rules.max_attempts) {
        d->outcome.delay_ms = 0; /* there is no next one: the claim will find its attempts used up */
    } else {
        counter_add(&q->counts.retried, 1);
        n = notes_tell_limited(q, now_ms, EVENT_RETRY, d);
        if (n)
            n->ms = d->outcome.delay_ms;
    }
}

/* Failed, or given back: what is next waits for its time. */
static void row_waits(struct queue *q, int64_t now_ms, struct delivery *d)
{
    held_leave_request(q, now_ms, d);
    held_accept(q, now_ms, d, 0);
    d->claim.has_token = d->claim.alone = false;
    d->answer.kept_verdict = -1;
    d->n_waits = 0;
    d->outcome.charged = d->outcome.give_back = false;
    held_wait(q, now_ms, d, OP_CLAIM, WAIT_DUE, now_ms + (d->outcome.delay_ms > 0 ? d->outcome.delay_ms : 0));
}

/* The window of a member ended without an answer, and its row failed: a bad mark for the limiter, once per request. */
static void request_unanswered(struct queue *q, int64_t now_ms, struct request *r)
{
    if (r->unanswered)
        return;
    r->unanswered = true;
    limiter_bad(&q->limiter, now_ms, r->mark, LIMITER_WAIT_LAST_MS, -1, held_random(q));
}

static void fail_row(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    bool revoked = d->op == OP_REVOKE;

    switch (r->answer) {
    case ROW_FAILED:
    case ROW_RELEASED:
        tell_failed(q, now_ms, d, r->answer == ROW_RELEASED);
        if (revoked) { /* nobody answered within the window */
            request_unanswered(q, now_ms, d->request);
            if (r->answer == ROW_FAILED)
                decide_window_failed(q, now_ms, d);
        }
        row_waits(q, now_ms, d);
        break;
    case ROW_COMPLETED:
        row_completed(q, now_ms, d);
        break;
    case ROW_EXTENDED:
        d->claim.window_ends_ms = now_ms + r->wait_ms + LOCK_LOOK_MS;
        d->n_waits = 0;
        if (revoked && delivery_is_in_flight(d)) {
            held_is_extended(q, now_ms, d);
        } else if (revoked) { /* answered meanwhile */
            held_want(q, now_ms, d, OP_REVOKE);
        } else {
            held_accept(q, now_ms, d, d->claim.window_ends_ms);
            held_wait(q, now_ms, d, OP_CHECK, WAIT_WATCHING, now_ms + LOCK_LOOK_MS);
        }
        break;
    case ROW_LOCKED:
        row_locked(q, now_ms, d);
        break;
    case ROW_INVALID: /* the words are at fault, not the failure */
        row_refused(q, now_ms, d, r);
        words_say(d, "failed, with an error text that the database refuses", NULL);
        held_wait(q, now_ms, d, d->op, WAIT_AGAIN, now_ms + HELD_LOOK_MS);
        break;
    default:
        row_again(q, now_ms, d);
        break;
    }
}

static void release_row(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    switch (r->answer) {
    case ROW_RELEASED:
        tell_given_back(q, now_ms, d);
        if (d->outcome.then_requeue || q->drain >= DRAIN_RELEASING) {
            d->claim.has_token = false;
            decide_requeue(q, now_ms, d);
        } else {
            row_waits(q, now_ms, d);
        }
        break;
    case ROW_COMPLETED:
        row_completed(q, now_ms, d);
        break;
    case ROW_LOCKED:
        row_locked(q, now_ms, d);
        break;
    case ROW_INVALID:
        row_refused(q, now_ms, d, r);
        words_say(d, "given back, with a text that the database refuses", NULL);
        held_wait(q, now_ms, d, OP_RELEASE, WAIT_AGAIN, now_ms + HELD_LOOK_MS);
        break;
    default: /* the row is not ours any more: nothing is left to give back */
        if (d->outcome.then_requeue) {
            d->claim.has_token = false;
            decide_requeue(q, now_ms, d);
        } else {
            row_again(q, now_ms, d);
        }
        break;
    }
}

static void bury_row(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    struct note *n;

    switch (r->answer) {
    case ROW_BURIED:
        counter_add(&q->counts.dead, 1);
        n = notes_tell(q, EVENT_DEAD, d);
        n->reason = dead_reasons[d->outcome.dead].name;
        n->n = r->letter;
        decide_given_up(q, d);
        decide_reject(q, now_ms, d);
        break;
    case ROW_DEAD:
        decide_reject_again(q, now_ms, d);
        break;
    case ROW_COMPLETED:
        row_completed(q, now_ms, d);
        break;
    case ROW_LOCKED:
        row_locked(q, now_ms, d);
        break;
    case ROW_INVALID: /* not even the letter can be written: it stays unacked, and is tried again later */
        row_refused(q, now_ms, d, r);
        held_wait(q, now_ms, d, OP_BURY, WAIT_AGAIN, now_ms + q->rules.max_backoff_ms);
        break;
    default:
        d->outcome.exhausted = d->outcome.rowless = d->outcome.unsure = false;
        row_again(q, now_ms, d);
        break;
    }
}

void queue_row(struct queue *q, int64_t now_ms, uint64_t ref, const struct row *r)
{
    typedef void answered(struct queue *, int64_t, struct delivery *, const struct row *);
    static answered *const by_operation[N_OPERATIONS] = {
        [OP_CLAIM] = row_of_claim, [OP_LOOK] = row_of_look,      [OP_RENEW] = row_of_renew,
        [OP_CHECK] = check_row,    [OP_COMPLETE] = complete_row, [OP_FAIL] = fail_row,
        [OP_REVOKE] = fail_row,    [OP_RELEASE] = release_row,   [OP_BURY] = bury_row,
    };
    struct delivery *d = (struct delivery *)queue_find(q, ref);

    if (!d || d->ended || d->phase != PHASE_SENT || d->op != r->op || !by_operation[d->op])
        return; /* it went another way meanwhile */
    if (r->answer != ROW_LOCKED && r->answer != ROW_RETRY && r->answer != ROW_UNKNOWN)
        d->locked_since_ms = 0;
    if (MUTANT(UNKNOWN_IS_DONE) && r->answer == ROW_UNKNOWN && d->op == OP_COMPLETE)
        decide_ack(q, now_ms, d);
    else if (r->answer == ROW_UNKNOWN || r->answer == ROW_RETRY)
        row_repeat(q, now_ms, d, r);
    else
        by_operation[d->op](q, now_ms, d, r);
    queue_answer_kept(q, now_ms, d);
}

void queue_claim_took(struct queue *q, int64_t took_us)
{
    q->flow.claim_us += ((double)took_us - q->flow.claim_us) / 8;
}
