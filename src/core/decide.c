/* Where a delivery goes next: see decide.h. */
#include "core/decide.h"
#include "core/notes.h"

#include "onceward/base/buf.h"
#include "onceward/core/backoff.h"
#include "onceward/core/message.h"
#include "onceward/core/mutant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- pauses --- */

bool pause_is_on(const struct queue *q, enum pause_reason r)
{
    return q->pauses[r].since_ms != 0;
}

void pause_begin(struct queue *q, int64_t now_ms, enum pause_reason r, const char *text)
{
    struct queue_pause *p = &q->pauses[r];

    if (!p->since_ms)
        p->since_ms = now_ms ? now_ms : 1;
    snprintf(p->text, sizeof(p->text), "%.*s",
             (int)slice_cut(slice_of(text ? text : ""), sizeof(p->text) - 1).len, text ? text : "");
}

void pause_end(struct queue *q, int64_t now_ms, enum pause_reason r)
{
    struct queue_pause *p = &q->pauses[r];

    if (p->told) {
        struct note *n = notes_tell(q, EVENT_RESUMED, NULL);

        n->reason = pause_reasons[r].name;
        n->ms = now_ms - p->since_ms;
    }
    memset(p, 0, sizeof(*p));
}

/* --- waiting and going --- */

bool decide_needs_message(const struct queue *q)
{
    return !q->application->gone && !q->application->probe.failing && !q->lever.paused;
}

bool decide_is_near(const struct queue *q, const struct delivery *d)
{
    return held_is_near(q, d) && !MUTANT(LIMIT_IS_FAR);
}

void decide_claim(struct queue *q, int64_t now_ms, struct delivery *d)
{
    if (q->brake.on && d->tried_ms && !decide_is_near(q, d) && !d->given_up)
        held_wait(q, now_ms, d, OP_CLAIM, WAIT_BRAKE, INT64_MAX);
    else
        held_want(q, now_ms, d, OP_CLAIM);
}

void decide_release(struct queue *q, int64_t now_ms, struct delivery *d, int64_t delay_ms, int crashes,
                    int unproven)
{
    held_leave_request(q, now_ms, d);
    held_accept(q, now_ms, d, 0);
    if (crashes >= 0)
        d->claim.crashes = crashes;
    d->outcome.delay_ms = delay_ms;
    d->outcome.write_crashes = crashes;
    d->outcome.write_unproven = unproven;
    d->outcome.then_requeue = false;
    d->outcome.charged = false;
    held_want(q, now_ms, d, OP_RELEASE);
}

void decide_renew(struct queue *q, int64_t now_ms, struct delivery *d)
{
    held_leave_request(q, now_ms, d);
    held_accept(q, now_ms, d, 0);
    if (d->leader != d)
        held_step_down(q, now_ms, d);
    d->claim.has_token = false; /* its window ends by itself */
    d->n_waits = 0;
    held_want(q, now_ms, d, OP_PUBLISH);
}

/* Would the broker count its return, and is that one too many? */
static bool is_renewed_instead(const struct queue *q, const struct delivery *d)
{
    return decide_is_near(q, d) && held_can_renew(q, d) && returns_are_counted(&q->returns) &&
           q->drain < DRAIN_LEAVING;
}

void decide_requeue(struct queue *q, int64_t now_ms, struct delivery *d)
{
    if (is_renewed_instead(q, d)) {
        decide_renew(q, now_ms, d);
        return;
    }
    held_leave_request(q, now_ms, d);
    held_accept(q, now_ms, d, 0);
    held_step_down(q, now_ms, d);
    held_want(q, now_ms, d, OP_REQUEUE);
}

/* --- ends --- */

void decide_success(struct queue *q, int64_t now_ms, const struct delivery *d)
{
    const struct request *r = d->request;

    /* What was sent before everything failed says nothing about now. */
    if (q->brake.on && (!r || !r->probation || r->sent_ms < q->brake.since_ms))
        return;
    if (brake_succeeded(&q->brake))
        decide_brake_off(q, now_ms);
}

void decide_ack(struct queue *q, int64_t now_ms, struct delivery *d)
{
    struct delivery *f;

    held_leave_request(q, now_ms, d);
    held_accept(q, now_ms, d, 0);
    while (d->leader == d && (f = held_first_follower(d))) {
        counter_add(&q->counts.duplicates, 1);
        notes_tell_limited(q, now_ms, EVENT_DUPLICATE, f);
        held_want(q, now_ms, f, OP_ACK);
    }
    held_step_down(q, now_ms, d);
    held_want(q, now_ms, d, OP_ACK);
}

void decide_reject(struct queue *q, int64_t now_ms, struct delivery *d)
{
    held_leave_request(q, now_ms, d);
    held_accept(q, now_ms, d, 0);
    held_step_down(q, now_ms, d);
    held_want(q, now_ms, d, OP_REJECT);
}

/* Nothing but time keeps a message from going round thousands of times a minute: each round waits for longer,
 * as the broker counts them. */
static int64_t circle_wait_ms(struct queue *q, const struct delivery *d)
{
    enum { FIRST_MS = 2000, LAST_MS = 300000, CROWDED_MS = 1000 };
    int64_t most = q->rules.max_hold_ms < LAST_MS ? q->rules.max_hold_ms : LAST_MS;
    int64_t round = d->copy.n_rejected > q->rules.revive ? d->copy.n_rejected - q->rules.revive : 1;

    if (queue_n_parked(q) >= (size_t)q->rules.max_parked / 2 && most > CROWDED_MS)
        most = CROWDED_MS;
    return backoff_ms(FIRST_MS, most, round < 32 ? (int)round : 32, held_random(q));
}

/* Is it dead, and does it come back from the queue's own dead-letter exchange? Then it waits once before it
 * is rejected again; others of its id do not wait for it. */
static bool circles(struct queue *q, int64_t now_ms, struct delivery *d, enum operation then)
{
    static const char why[] = "the queue's dead-letter exchange leads back to it";

    if (!d->copy.n_rejected || d->has_circled || q->drain || decide_is_near(q, d))
        return false;
    int64_t wait = circle_wait_ms(q, d);
    bool again = d->was_dead && d->message;
    struct note *n = notes_tell_limited(q, now_ms, again ? EVENT_DEAD_AGAIN : EVENT_PARKED, d);

    if (n) {
        n->ms = wait;
        n->reason = why;
    }
    if (again)
        note_text(n, "rejected here %lld times: %s", (long long)d->copy.n_rejected, why);
    if (then == OP_REJECT)
        held_drop_body(q, d);
    d->has_circled = true;
    d->claim.has_token = false; /* the row, if there is one, is not ours */
    held_step_down(q, now_ms, d);
    held_wait(q, now_ms, d, then, WAIT_CIRCLING, now_ms + wait);
    return true;
}

void decide_reject_again(struct queue *q, int64_t now_ms, struct delivery *d)
{
    d->was_dead = true;
    if (circles(q, now_ms, d, OP_REJECT))
        return;
    notes_tell_limited(q, now_ms, EVENT_DEAD_AGAIN, d);
    decide_reject(q, now_ms, d);
}

void decide_bury(struct queue *q, int64_t now_ms, struct delivery *d, enum dead_reason why, bool rowless)
{
    held_leave_request(q, now_ms, d);
    held_accept(q, now_ms, d, 0);
    d->outcome.dead = why;
    d->outcome.rowless = rowless;
    if (rowless)
        d->claim.has_token = false;
    if (MUTANT(REJECT_FIRST)) {
        decide_reject(q, now_ms, d);
        return;
    }
    if (rowless && circles(q, now_ms, d, OP_BURY))
        return;
    held_want(q, now_ms, d, OP_BURY);
}

bool queue_letter_is_new(const struct delivery *d)
{
    return d->op == OP_BURY && d->outcome.rowless && !d->outcome.unsure && !MUTANT(LETTER_OF_ANOTHER);
}

bool queue_letter_is_looked_for(const struct delivery *d)
{
    return d->outcome.unsure || (d->copy.redelivered && MUTANT(LETTER_OF_ANOTHER));
}

/* Where its id stands in the list of those that are given up; NULL: nowhere. */
static char *find_given_up(const struct queue *q, const struct delivery *d)
{
    for (size_t at = 0; at < q->lever.ids_len; at += strlen(q->lever.ids + at) + 1)
        if (d->id_len && slice_equal(delivery_slice(d), slice_of(q->lever.ids + at)))
            return q->lever.ids + at;
    return NULL;
}

bool decide_is_given_up(const struct queue *q, const struct delivery *d)
{
    return find_given_up(q, d) != NULL;
}

void decide_given_up(struct queue *q, const struct delivery *d)
{
    char *id = find_given_up(q, d);

    if (!id)
        return;
    size_t len = strlen(id) + 1, behind = q->lever.ids_len - (size_t)(id - q->lever.ids) - len;

    memmove(id, id + len, behind);
    q->lever.ids_len -= len;
}

void decide_operator(struct queue *q, int64_t now_ms, struct delivery *d)
{
    const char *by = q->lever.give_up_by;
    char text[sizeof(q->lever.give_up_by) + 32];

    snprintf(text, sizeof(text), "given up by %s", *by ? by : "an operator");
    if (!d->outcome.error)
        words_say(d, text, NULL);
    decide_bury(q, now_ms, d, DEAD_OPERATOR, d->outcome.rowless);
}

/* --- failures, and the circuit breaker --- */

/* One without an id that its dead-letter exchange brings back is the same each time, as far as its body
 * tells.
 */
static uint64_t brake_id(const struct delivery *d)
{
    if (d->id_len)
        return hash_bytes(d->id, d->id_len);
    return d->copy.n_rejected ? hash_bytes(d->fingerprint, sizeof(d->fingerprint)) : hash_number(d->ref);
}

/* Deaths that were waiting to be written: it is not they. */
static void spare_deaths(struct queue *q, int64_t now_ms)
{
    list_each(&q->held.wanted[OP_BURY], k)
    {
        struct delivery *d = container_of(k, struct delivery, in_list);

        if (!d->outcome.charged)
            continue;
        d->outcome.charged = false;
        if (d->claim.has_token)
            decide_release(q, now_ms, d, held_delay_ms(q, d, ++d->n_given_back), d->outcome.write_crashes,
                           -1);
        else
            held_wait(q, now_ms, d, OP_BURY, WAIT_BRAKE, INT64_MAX);
    }
}

static void brake_says(struct queue *q, int64_t now_ms)
{
    enum pause_reason why = q->brake.no_ids ? PAUSE_NO_MESSAGE_IDS : PAUSE_EVERYTHING_FAILS;
    char text[sizeof(q->pauses[why].text)];

    brake_tell(&q->brake, text, sizeof(text));
    pause_begin(q, now_ms, why, text);
    if (!q->brake.no_ids && pause_is_on(q, PAUSE_NO_MESSAGE_IDS))
        pause_end(q, now_ms, PAUSE_NO_MESSAGE_IDS);
}

/* One more failed. Answers whether the brake is on now. */
static bool failed(struct queue *q, int64_t now_ms, const struct delivery *d, bool no_id)
{
    bool set = brake_failed(&q->brake, now_ms, brake_id(d), d->outcome.error ? d->outcome.error : "", no_id);

    if (q->brake.on)
        brake_says(q, now_ms);
    if (set)
        spare_deaths(q, now_ms);
    return q->brake.on;
}

void decide_again(struct queue *q, int64_t now_ms)
{
    struct link *k;

    while ((k = list_first(&q->held.waiting[WAIT_AGAIN]))) {
        struct delivery *d = container_of(k, struct delivery, in_list);

        d->n_waits = 0;
        held_want(q, now_ms, d, d->op);
    }
}

void decide_brake_off(struct queue *q, int64_t now_ms)
{
    struct link *k;

    pause_end(q, now_ms, PAUSE_EVERYTHING_FAILS);
    pause_end(q, now_ms, PAUSE_NO_MESSAGE_IDS);
    /* Those that would die count again: after a brake's worth of them the rest waits for the next success. */
    for (size_t n = q->held.waiting[WAIT_BRAKE].len; n && (k = list_first(&q->held.waiting[WAIT_BRAKE]));
         n--) {
        struct delivery *d = container_of(k, struct delivery, in_list);

        if (d->op == OP_BURY)
            decide_die(q, now_ms, d, d->outcome.dead, d->outcome.rowless, NULL);
        else
            held_want(q, now_ms, d, d->op);
    }
}

void decide_window_failed(struct queue *q, int64_t now_ms, struct delivery *d)
{
    failed(q, now_ms, d, false);
}

bool decide_is_tainted(const struct queue *q, const struct delivery *d)
{
    return request_is_tainted(q, d) && !MUTANT(LOSS_FORGOTTEN);
}

void decide_charge(struct queue *q, int64_t now_ms, struct delivery *d, enum dead_reason death, int crashes,
                   int unproven)
{
    bool spared = decide_is_tainted(q, d);

    held_accept(q, now_ms, d, 0);
    if (!spared)
        spared = failed(q, now_ms, d, false);
    if (crashes >= 0)
        d->claim.crashes = crashes;
    d->outcome.write_crashes = crashes;
    d->outcome.write_unproven = unproven;
    if (!spared) {
        d->outcome.charged = true;
        d->outcome.give_back = false;
        d->outcome.delay_ms = held_delay_ms(q, d, d->claim.attempt);
        if (death == DEAD_NONE)
            held_want(q, now_ms, d, OP_FAIL);
        else
            decide_bury(q, now_ms, d, death, false);
        return;
    }
    d->outcome.charged = false;
    d->outcome.delay_ms = held_delay_ms(q, d, ++d->n_given_back);
    if (d->outcome.only_expired) { /* it may have been extended since */
        d->outcome.give_back = true;
        held_want(q, now_ms, d, OP_FAIL);
        return;
    }
    decide_release(q, now_ms, d, d->outcome.delay_ms, crashes, -1);
}

void decide_fail(struct queue *q, int64_t now_ms, struct delivery *d, int crashes, int unproven)
{
    /* What may still be extended is failed by the database's clock; attempts that are used up are then seen
     * by the next claim. */
    bool last =
        d->claim.attempt + MUTANT(ONE_ATTEMPT_LESS) >= q->rules.max_attempts && !d->outcome.only_expired;

    decide_charge(q, now_ms, d, last ? DEAD_ATTEMPTS : DEAD_NONE, crashes, unproven);
}

void decide_die(struct queue *q, int64_t now_ms, struct delivery *d, enum dead_reason why, bool rowless,
                const char *text)
{
    bool no_id = why == DEAD_NO_MESSAGE_ID || why == DEAD_INVALID_MESSAGE_ID;

    if (text)
        words_say(d, text, NULL);
    d->outcome.dead = why;
    d->outcome.rowless = rowless;
    if (rowless)
        d->claim.has_token = false;
    if ((decide_is_near(q, d) && !held_can_renew(q, d)) || d->given_up) {
        decide_bury(q, now_ms, d, why, rowless);
        return;
    }
    if (!failed(q, now_ms, d, no_id)) {
        d->outcome.charged = true;
        decide_bury(q, now_ms, d, why, rowless);
        return;
    }
    if (d->claim.has_token)
        decide_release(q, now_ms, d, held_delay_ms(q, d, ++d->n_given_back), -1, -1);
    else
        held_wait(q, now_ms, d, OP_BURY, WAIT_BRAKE, INT64_MAX);
}

/* --- the words of a letter --- */

void decide_limit_words(const struct queue *q, const struct delivery *d, struct buf *ret)
{
    const char *why = d->not_renewed ? d->not_renewed : q->returns.no_renewal;

    buf_printf(ret, "delivered %lld times before; ", (long long)d->copy.delivery_count);
    returns_limit_words(&q->returns, ret);
    if (why)
        buf_printf(ret, "; not published to its queue again: %s", why);
    else if (d->op == OP_PUBLISH && d->outcome.error)
        buf_printf(ret, "; not published to its queue again: %.200s", d->outcome.error);
}

/* --- leaving --- */

void decide_bury_held(struct queue *q, int64_t now_ms, struct delivery *d)
{
    /* Nobody is at work on it: it dies of its own reason. */
    if (d->op == OP_BURY && (d->wait == WAIT_BRAKE || d->outcome.rowless)) {
        decide_bury(q, now_ms, d, d->outcome.dead, d->outcome.rowless);
        return;
    }
    bool elsewhere = d->op != OP_PUBLISH && d->op != OP_RENEW;
    struct buf text = {0};

    decide_limit_words(q, d, &text);
    if (elsewhere)
        buf_add_text(&text,
                     "; its row is at work elsewhere: see whether it was completed before it is redriven");
    words_say(d, buf_text(&text), NULL);
    buf_deinit(&text);
    if (d->leader != d)
        held_step_down(q, now_ms, d);
    d->claim.has_token = false; /* its window ends by itself */
    decide_bury(q, now_ms, d, DEAD_DELIVERY_LIMIT, true);
}

/* A copy that could not be published until now: the message is stored whole. A drain keeps trying. */
static bool leave_renewed(struct queue *q, int64_t now_ms, struct delivery *d)
{
    enum { PUBLISH_MS = 30000 };
    bool failed = d->op == OP_PUBLISH && (d->wait != WAIT_NONE || now_ms - d->ready_ms >= PUBLISH_MS);

    if (d->op != OP_PUBLISH && d->wait != WAIT_RENEWAL) {
        decide_renew(q, now_ms, d);
        return true;
    }
    if (q->drain || !database_is_up(q->database) || (d->op == OP_PUBLISH && !failed))
        return false;
    decide_bury_held(q, now_ms, d);
    return true;
}

bool decide_leave(struct queue *q, int64_t now_ms, struct delivery *d)
{
    if (d->was_dead) { /* nothing is lost by that, and no delivery is charged */
        decide_reject(q, now_ms, d);
        return true;
    }
    if (is_renewed_instead(q, d) && !d->claim.has_token)
        return leave_renewed(q, now_ms, d);
    if (decide_is_near(q, d) && !held_can_renew(q, d) && returns_are_counted(&q->returns) &&
        q->drain < DRAIN_LEAVING) {
        if (!d->message || !database_is_up(q->database) || d->claim.has_token)
            return false; /* what cannot be stored is held; what has a claim is decided by it */
        if (d->wait == WAIT_NONE && d->op == OP_CLAIM)
            return false; /* the claim, which is next, decides */
        decide_bury_held(q, now_ms, d);
        return true;
    }
    if (!d->claim.has_token) {
        decide_requeue(q, now_ms, d);
        return true;
    }
    words_say(d, "given back before it was sent", NULL);
    decide_release(q, now_ms, d, 0, -1, -1);
    if (!d->ended)
        d->outcome.then_requeue = true;
    return true;
}
