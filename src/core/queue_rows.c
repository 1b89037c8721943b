/* What the database says, by what was asked. A zero-row answer is an answer: completed means ack, anything
 * else goes back to the claim; nothing is acked or rejected on it. */
#include "core/decide.h"

#include "onceward/base/mem.h"
#include "onceward/core/mutant.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    AGAIN_LAST_MS =
        300000, /* between two tries of an item that the database refuses while it works for others */
    DUPLICATES_OVER = 128, /* answers that the share of duplicates is an average of */
};

static bool is_near(const struct queue *q, const struct delivery *d)
{
    return decide_is_near(q, d);
}

static void note_code(struct note *n, const char *code)
{
    if (n)
        snprintf(n->code, sizeof(n->code), "%s", code ? code : "");
}

/* --- nothing was learnt --- */

/* Up to AGAIN_LAST_MS, and well below max_hold: what is refused for its last time before that is not held on.
 */
static int64_t again_last_ms(const struct queue *q)
{
    return q->rules.max_hold_ms / 4 < AGAIN_LAST_MS ? q->rules.max_hold_ms / 4 : AGAIN_LAST_MS;
}

static void row_refused(struct queue *q, int64_t now_ms, const struct delivery *d, const struct row *r)
{
    struct note *n = held_tell_limited(q, now_ms, EVENT_DATABASE_ERROR, d);

    note_code(n, r->sqlstate);
    note_text(n, "%.*s", (int)(r->detail.len < 400 ? r->detail.len : 400),
              r->detail.len ? r->detail.data : "");
}

/* The same again: at once after a lost connection (there is none to send it on), else with a growing wait. */
static void row_repeat(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    int64_t wait = 0;

    if (r->answer == ROW_RETRY) {
        char text[200];

        row_refused(q, now_ms, d, r);
        snprintf(text, sizeof(text), "%.*s (%s)", (int)(r->detail.len < 180 ? r->detail.len : 180),
                 r->detail.len ? r->detail.data : "a statement was refused", r->sqlstate ? r->sqlstate : "");
        database_refused(q->database, now_ms, r->sqlstate, text, d->op == OP_BURY);
        wait = held_lock_wait_ms(d);
        /* One item that is refused while the database works for others is tried ever more rarely, up to
         * AGAIN_LAST_MS. */
        for (int i = 8; i < d->n_waits && wait < again_last_ms(q); i++)
            wait *= 2;
        if (wait > again_last_ms(q))
            wait = again_last_ms(q);
    }
    /* A letter without a row may have been written: only a redelivered one is looked for before it is
     * inserted. */
    if (d->op == OP_BURY)
        d->copy.redelivered = true;
    if (wait)
        held_wait(q, now_ms, d, d->op, WAIT_AGAIN, now_ms + wait);
    else
        held_want(q, now_ms, d, d->op);
}

/* The token is not the row's any more, or the row is gone: a new claim decides. */
static void row_again(struct queue *q, int64_t now_ms, struct delivery *d)
{
    held_abandon(q, now_ms, d);
    held_accept(q, now_ms, d, 0);
    d->claim.has_token = d->claim.row_is_ours = false;
    held_wait(q, now_ms, d, OP_CLAIM, WAIT_AGAIN, now_ms + held_lock_wait_ms(d));
}

static void row_locked(struct queue *q, int64_t now_ms, struct delivery *d)
{
    if (!d->locked_since_ms)
        d->locked_since_ms = now_ms;
    held_wait(q, now_ms, d, d->op, WAIT_LOCKED, now_ms + (MUTANT(LOCKED_AT_ONCE) ? 0 : held_lock_wait_ms(d)));
}

/* --- the row is completed --- */

/* Said at most once a minute: it is a matter of how the application is built. */
static void early_answer(struct queue *q, int64_t now_ms, const struct delivery *d, bool completed)
{
    enum { EARLY_ANSWER_MS = 60000 };

    if (q->notes.early_answer_ms && now_ms - q->notes.early_answer_ms < EARLY_ANSWER_MS)
        return;
    q->notes.early_answer_ms = now_ms ? now_ms : 1;
    held_tell(q, EVENT_ANSWERED_BEFORE_COMMIT, d)->flag = completed;
}

static void count_duplicates(struct queue *q, bool duplicate)
{
    q->flow.duplicates += (duplicate - q->flow.duplicates) / DUPLICATES_OVER;
}

static void row_completed(struct queue *q, int64_t now_ms, struct delivery *d)
{
    bool failed = d->op == OP_FAIL || d->op == OP_RELEASE || d->op == OP_BURY || d->op == OP_REVOKE;

    if (d->op == OP_CLAIM || d->op == OP_LOOK) {
        counter_add(&q->counts.duplicates, 1);
        held_tell_limited(q, now_ms, EVENT_DUPLICATE, d);
        decide_ack(q, now_ms, d);
        return;
    }
    if (!d->claim.row_is_ours &&
        !MUTANT(BODY_NOT_COMPARED)) { /* its claim was never heard of: the row may be that of another body */
        row_again(q, now_ms, d);
        return;
    }
    if (failed && d->outcome.http_status / 100 == 2)
        early_answer(q, now_ms, d, true);
    else if (failed && !d->outcome.only_expired && (d->outcome.http_status || d->outcome.died)) {
        struct note *n = held_tell_limited(q, now_ms, EVENT_ANSWER_CONTRADICTS_ROW, d);

        note_text(n, "%s", d->outcome.error ? d->outcome.error : "");
    }
    counter_add(&q->counts.completed, 1);
    held_tell(q, EVENT_COMPLETED, d)->ms = now_ms - d->copy.received_ms;
    decide_success(q, now_ms, d);
    decide_ack(q, now_ms, d);
}

/* --- claims and looks --- */

static void row_facts(struct delivery *d, int64_t now_ms, const struct row *r)
{
    d->claim.attempt = r->attempt;
    d->claim.crashes = r->crashes;
    d->claim.takeovers = r->takeovers;
    d->claim.unproven_step = r->unproven_step;
    d->claim.unproven_at_ms = r->unproven_ms >= 0 ? now_ms - r->unproven_ms : -1;
}

static void row_claimed(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    row_facts(d, now_ms, r);
    d->claim.row_is_ours = true;
    d->n_waits = 0;
    if (r->taken_over)
        held_tell_limited(q, now_ms, EVENT_TAKEN_OVER, d);
    if (d->given_up) {
        decide_operator(q, now_ms, d);
    } else if (is_near(q, d)) {
        held_say(d, "the broker has delivered it almost as often as its delivery limit allows", NULL);
        decide_bury(q, now_ms, d, DEAD_DELIVERY_LIMIT, false);
    } else if (q->rules.max_age_ms && r->age_ms > q->rules.max_age_ms) {
        const char *last = d->outcome.said ? d->outcome.said : d->outcome.error;

        held_say_last(d, "older than max_age", slice_of(last ? last : ""));
        decide_die(q, now_ms, d, DEAD_TOO_OLD, false, NULL);
    } else if (!d->claim.alone && d->claim.crashes > 0 && d->claim.takeovers < N_ALONE_TAKEOVERS &&
               application_find_place(q->application, now_ms, held_holder(q, d))) {
        d->claim.alone = true; /* its row says of a sidecar's crash only */
        held_want(q, now_ms, d, OP_FORWARD);
    } else if (!d->claim.alone && (d->claim.crashes > 0 || d->claim.takeovers >= N_ALONE_TAKEOVERS) &&
               q->application->place.credit_ms > 0) {
        held_say(d, "it was with the application when that crashed: it goes alone", NULL);
        decide_release(q, now_ms, d, 0, -1, -1);
    } else {
        held_want(q, now_ms, d, OP_FORWARD);
    }
}

/* A wait longer than any backoff was asked for by the application, or made by a clock that has jumped and may
 * be put right: it is looked at now and then. */
static int64_t due_look_ms(const struct queue *q, int64_t wait_ms)
{
    int64_t most = q->rules.max_backoff_ms > HELD_LOOK_MS ? q->rules.max_backoff_ms : HELD_LOOK_MS;

    if (wait_ms > most)
        return most;
    return wait_ms > 0 ? wait_ms : 1;
}

/* The holder; or the row's last error, without the application's words. */
static int parked_text_len(const struct row *r)
{
    size_t len = r->detail.len;

    if (len && r->answer != ROW_HELD)
        len = outcome_brief(r->detail.data, len);
    return (int)(len < 200 ? len : 200);
}

static void row_parked(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    bool held = r->answer == ROW_HELD;
    struct note *n = held_tell_limited(q, now_ms, EVENT_PARKED, d);

    if (n) {
        n->reason = row_answer_name(r->answer);
        n->ms = r->wait_ms;
        n->flag = held;
        note_text(n, "%.*s", parked_text_len(r), r->detail.len ? r->detail.data : "");
    }
    if (held && MUTANT(HELD_IS_SENT)) {
        held_want(q, now_ms, d, OP_FORWARD);
        return;
    }
    d->claim.has_token = false;
    d->n_waits = 0;
    if (!held && d->given_up) {
        d->outcome.exhausted = true;
        d->claim.attempt = r->attempt;
        decide_operator(q, now_ms, d);
        return;
    }
    if (!held && is_near(q, d)) {
        held_say_last(d, "the broker would drop it before its next attempt is due", r->detail);
        d->outcome.exhausted = true;
        d->claim.attempt = r->attempt;
        decide_bury(q, now_ms, d, DEAD_DELIVERY_LIMIT, false);
        return;
    }
    if (!held) {
        held_wait(q, now_ms, d, OP_CLAIM, WAIT_DUE,
                  now_ms + (MUTANT(DUE_AT_ONCE) ? 0 : due_look_ms(q, r->wait_ms)));
        return;
    }
    if (d->message && returns_is_last(&q->returns, d->copy.delivery_count) && !MUTANT(HELD_AT_THE_LIMIT)) {
        decide_bury_held(q, now_ms, d);
        return;
    }
    int64_t wait = r->wait_ms + LOCK_LOOK_MS;
    held_wait(q, now_ms, d, OP_LOOK, WAIT_HELD,
              now_ms + (wait < LOCK_LOOK_MS   ? LOCK_LOOK_MS
                        : wait < HELD_LOOK_MS ? wait
                                              : HELD_LOOK_MS));
}

static void row_exhausted(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    d->claim.row_is_ours = true;
    d->claim.has_token = false;
    d->claim.attempt = r->attempt;
    d->claim.takeovers = r->takeovers;
    if (q->brake.on && !d->given_up && !is_near(q, d)) { /* nothing dies while everything fails */
        held_wait(q, now_ms, d, OP_CLAIM, WAIT_BRAKE, INT64_MAX);
        return;
    }
    if (r->detail.len)
        held_say_last(d, "", r->detail);
    else if (!d->outcome.error)
        held_say(d, "all attempts failed", NULL);
    if (MUTANT(EXHAUSTED_AGAIN)) {
        row_again(q, now_ms, d);
        return;
    }
    d->outcome.exhausted = true;
    if (d->given_up)
        decide_operator(q, now_ms, d);
    else
        decide_bury(q, now_ms, d, DEAD_ATTEMPTS, false);
}

/* With on_body_mismatch: duplicate this copy stands for the first body: its fingerprint is taken from the
 * answer's JSON. */
static bool adopt_fingerprint(struct delivery *d, struct slice detail)
{
    static const char key[] = "\"first_fingerprint\" : \"";
    const char *at = detail.len ? memmem(detail.data, detail.len, key, sizeof(key) - 1) : NULL;
    uint8_t bytes[sizeof(d->fingerprint)];

    if (!at || (size_t)(detail.data + detail.len - at) < sizeof(key) - 1 + 2 * sizeof(bytes))
        return false;
    at += sizeof(key) - 1;
    for (size_t i = 0; i < sizeof(bytes); i++)
        if (sscanf(at + 2 * i, "%2hhx", &bytes[i]) != 1)
            return false;
    memcpy(d->fingerprint, bytes, sizeof(bytes));
    return true;
}

static void row_mismatch(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    char text[1024];

    if (MUTANT(MISMATCH_ACKED)) {
        decide_ack(q, now_ms, d);
        return;
    }
    if (q->rules.mismatch_is_duplicate && adopt_fingerprint(d, r->detail)) {
        row_again(q, now_ms, d);
        return;
    }
    snprintf(text, sizeof(text), "%.*s", (int)(r->detail.len < 1000 ? r->detail.len : 1000),
             r->detail.len ? r->detail.data : "");
    note_text(held_tell_limited(q, now_ms, EVENT_BODY_MISMATCH, d), "%s", text);
    decide_die(q, now_ms, d, DEAD_BODY_MISMATCH, true, text);
}

static void claim_row(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    char text[512];

    count_duplicates(q, r->answer == ROW_COMPLETED);
    switch (r->answer) {
    case ROW_CLAIMED:
        row_claimed(q, now_ms, d, r);
        break;
    case ROW_COMPLETED:
        row_completed(q, now_ms, d);
        break;
    case ROW_HELD:
    case ROW_NOT_DUE:
        row_parked(q, now_ms, d, r);
        break;
    case ROW_LOCKED:
        row_locked(q, now_ms, d);
        break;
    case ROW_EXHAUSTED:
        row_exhausted(q, now_ms, d, r);
        break;
    case ROW_DEAD:
        decide_reject_again(q, now_ms, d);
        break;
    case ROW_MISMATCH:
        row_mismatch(q, now_ms, d, r);
        break;
    case ROW_DUE: /* it may be taken over, but goes alone */
        row_facts(d, now_ms, r);
        d->claim.takeovers += !MUTANT(TAKEOVER_NOT_ALONE); /* with this one */
        d->claim.has_token = false;
        decide_claim(q, now_ms, d);
        break;
    case ROW_INVALID:
        row_refused(q, now_ms, d, r);
        snprintf(text, sizeof(text), "%.*s", (int)(r->detail.len < 500 ? r->detail.len : 500),
                 r->detail.len ? r->detail.data : "");
        decide_die(q, now_ms, d, DEAD_INVALID_DATA, true, text);
        break;
    default:
        row_again(q, now_ms, d);
        break;
    }
}

static void look_row(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    count_duplicates(q, r->answer == ROW_COMPLETED);
    switch (r->answer) {
    case ROW_COMPLETED:
        row_completed(q, now_ms, d);
        break;
    case ROW_HELD:
        row_parked(q, now_ms, d, r);
        break;
    case ROW_MISMATCH:
        row_mismatch(q, now_ms, d, r);
        break;
    default: /* the claim decides */
        if (r->answer == ROW_DUE)
            row_facts(d, now_ms, r);
        decide_claim(q, now_ms, d);
        break;
    }
}

/* --- answered, and the row is read --- */

static void not_completed_yet(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    struct delivery_request *req = &d->request;
    int64_t until = req->accepted_until_ms ? req->accepted_until_ms : req->commit_until_ms;
    bool crashed = q->application->n_crashes != req->application.n_crashes;
    char text[96];

    if (req->accepted_until_ms && now_ms + r->wait_ms > until) { /* extended */
        until = now_ms + r->wait_ms;
        held_accept(q, now_ms, d, until);
    }
    if (now_ms < until) {
        int64_t wait = held_lock_wait_ms(d);

        held_wait(q, now_ms, d, OP_CHECK, WAIT_WATCHING, now_ms + wait < until ? now_ms + wait : until);
        return;
    }
    d->outcome.only_expired = req->accepted_until_ms != 0;
    if (req->accepted_until_ms) {
        held_say(d, "accepted with 202, and not completed within the window", NULL);
    } else {
        snprintf(text, sizeof(text), "answered %d without completing the token", d->outcome.http_status);
        held_say(d, text, NULL);
        early_answer(q, now_ms, d, false);
    }
    if (crashed && !d->claim.alone) { /* perhaps of it, perhaps of a neighbour: alone it will show */
        if (d->outcome.only_expired) {
            d->outcome.give_back = true;
            d->outcome.write_crashes = d->claim.crashes + 1;
            d->outcome.delay_ms = held_backoff_ms(q, d->claim.attempt);
            held_want(q, now_ms, d, OP_FAIL);
        } else {
            decide_release(q, now_ms, d, held_backoff_ms(q, d->claim.attempt), d->claim.crashes + 1, -1);
        }
        return;
    }
    decide_fail(q, now_ms, d, -1, -1);
}

static void check_row(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    switch (r->answer) {
    case ROW_COMPLETED:
        if (d->n_waits && !d->request.accepted_until_ms)
            early_answer(q, now_ms, d, true);
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
    struct note *n = held_tell_limited(q, now_ms, EVENT_GIVEN_BACK, d);

    counter_add(&q->counts.given_back, 1);
    if (n)
        n->ms = d->outcome.delay_ms > 0 ? d->outcome.delay_ms : 0;
}

static void tell_failed(struct queue *q, int64_t now_ms, struct delivery *d, bool released)
{
    struct note *n;

    if (d->outcome.only_expired)
        held_tell_limited(q, now_ms, EVENT_TOKEN_EXPIRED, d);
    if (released) {
        tell_given_back(q, now_ms, d);
    } else if (d->claim.attempt >= q->rules.max_attempts) {
        d->outcome.delay_ms = 0; /* there is no next one: the claim will find its attempts used up */
    } else {
        counter_add(&q->counts.retried, 1);
        n = held_tell_limited(q, now_ms, EVENT_RETRY, d);
        if (n)
            n->ms = d->outcome.delay_ms;
    }
}

/* Failed, or given back: what is next waits for its time. */
static void row_waits(struct queue *q, int64_t now_ms, struct delivery *d)
{
    held_abandon(q, now_ms, d);
    held_accept(q, now_ms, d, 0);
    d->claim.has_token = d->claim.alone = false;
    d->request.kept_verdict = -1;
    d->n_waits = 0;
    d->outcome.charged = d->outcome.give_back = false;
    held_wait(q, now_ms, d, OP_CLAIM, WAIT_DUE, now_ms + (d->outcome.delay_ms > 0 ? d->outcome.delay_ms : 0));
}

static void fail_row(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    bool revoked = d->op == OP_REVOKE;

    switch (r->answer) {
    case ROW_FAILED:
    case ROW_RELEASED:
        tell_failed(q, now_ms, d, r->answer == ROW_RELEASED);
        if (revoked) { /* nobody answered within the window */
            limiter_bad(&q->limiter, now_ms, d->request.mark, LIMITER_WAIT_LAST_MS, -1, held_random(q));
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
        if (revoked && d->request.out) {
            held_stays_out(q, now_ms, d);
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
        held_say(d, "failed, with an error text that the database refuses", NULL);
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
        held_say(d, "given back, with a text that the database refuses", NULL);
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
        n = held_tell(q, EVENT_DEAD, d);
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
        d->outcome.exhausted = d->outcome.rowless = false;
        row_again(q, now_ms, d);
        break;
    }
}

void queue_row(struct queue *q, int64_t now_ms, uint64_t ref, const struct row *r)
{
    typedef void answered(struct queue *, int64_t, struct delivery *, const struct row *);
    static answered *const by_operation[N_OPERATIONS] = {
        [OP_CLAIM] = claim_row,       [OP_LOOK] = look_row, [OP_CHECK] = check_row,
        [OP_COMPLETE] = complete_row, [OP_FAIL] = fail_row, [OP_REVOKE] = fail_row,
        [OP_RELEASE] = release_row,   [OP_BURY] = bury_row,
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
