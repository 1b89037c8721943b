/* Requests to the application, and what its answers mean for a delivery.
 *
 * Nothing is decided here against a committed completion: every statement that follows an answer (settle,
 * fail, release, bury) is conditional on the row, and answers `completed` where the application has completed
 * it. */
#include "worker.h"

#include "onceward/base/clock.h"
#include "onceward/core/token.h"

#include "onceward/base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { IN_VAIN_WINDOWS = 3 }; /* longer than anybody waits for what is out */

/* An exchange may last as long as its window can be extended; the worker's own timers end it before. */
static int64_t exchange_limit_ms(const struct worker *w)
{
    return w->q->max_window_ms + w->q->token_window_ms + TAKEOVER_GRACE_MS;
}

static void delivery_forward(struct worker *w, struct delivery *d)
{
    const struct config_queue *q = w->q;

    buf_reset(&w->token_text);
    token_write(&w->token_text, slice_of(q->consumer), delivery_id(d), d->token);
    struct request_facts facts = {
        .message_id = delivery_id(d),
        .queue = slice_of(q->queue),
        .consumer = slice_of(q->consumer),
        .token = buf_slice(&w->token_text),
        .content_type = slice_of(q->forward.content_type),
        .window_ms = d->window_ends_ms - w->now_ms,
        .attempt = d->attempt,
    };
    headers_write(&w->headers, d->message, &facts);
    struct forward_request r = {
        .ref = d->ref,
        .headers = &w->headers,
        .body = {d->message->body, d->message->body_len},
        .timeout_ms = exchange_limit_ms(w),
        .send_by_ms = d->window_ends_ms, /* from then on another holder's token may live */
        .fresh = d->suspect,             /* its death is to be its own, not that of a connection at its end */
    };
    FAILPOINT(FORWARD_BEFORE);
    forward_send(w->forward, &r);
    d->inbox_life = w->inbox ? w->inbox_life : 0;
    d->verdict = -1;
    d->sent_ms = w->sent_ms = w->now_ms;
    delivery_event(w, d, DELIVERY_EV_SENT);
    FAILPOINT(FORWARD_SENT);
}

static void give_back(struct worker *w, struct delivery *d, int64_t delay_ms, enum release_to to)
{
    d->delay_ms = delay_ms;
    d->release_to = to;
    delivery_event(w, d, DELIVERY_EV_GIVE_BACK);
}

/* Claims that came to nothing: no slot was free until the window was nearly over; or it is a suspect that
 * keeps others waiting, and the queue came to pause. */
static void give_back_unsent(struct worker *w)
{
    bool may_forward = worker_may_forward(w);

    for (struct link *k = w->states[DELIVERY_CLAIMED].head.next, *next;
         k != &w->states[DELIVERY_CLAIMED].head; k = next) {
        struct delivery *d = container_of(k, struct delivery, in_state);

        next = k->next;
        if (d->window_ends_ms - w->now_ms < w->q->token_window_ms / 10)
            delivery_set_error(d, "its window ended before it could be sent");
        else if (d->suspect && !may_forward)
            delivery_set_error(d, "the queue came to pause before it was sent");
        else
            continue;
        give_back(w, d, 0, d->suspect ? RELEASE_ALONE : RELEASE_PARK);
    }
}

/* Sends what has a token, while there are slots. What waited so long that a tenth of its window is gone gets
 * a new window first. */
void worker_forward_claimed(struct worker *w)
{
    struct log_line l;
    struct link *k;

    give_back_unsent(w);
    while ((k = list_first(&w->states[DELIVERY_CLAIMED])) && worker_n_busy(w) < (size_t)w->allowed &&
           worker_may_forward(w)) {
        struct delivery *d = container_of(k, struct delivery, in_state);

        if (d->window_ends_ms - w->now_ms < w->q->token_window_ms / 10 * 9) {
            if (d->n_reclaims++ < N_RECLAIMS_MAX) {
                delivery_event(w, d, DELIVERY_EV_STALE);
                continue;
            }
        }
        if (!target_enter(w, d))
            break;
        if (d->n_reclaims > N_RECLAIMS_MAX && worker_may_say(w, EVENT_SHORT_WINDOW)) {
            report_delivery_begin(&l, EVENT_SHORT_WINDOW, w, d);
            log_int(&l, "left_ms", d->window_ends_ms - w->now_ms);
            log_end(&l);
        }
        d->n_reclaims = 0;
        delivery_forward(w, d);
    }
}

/* The database connection broke during the life of the forward: that may have aborted the application's
 * transaction. */
bool delivery_is_tainted(const struct worker *w, const struct delivery *d)
{
    return d->inbox_life != w->inbox_life || !w->inbox;
}

/* It was answered before it was done, and the application died before it was: perhaps of a neighbour, perhaps
 * of this. Free as often as there are attempts, so that one that kills it in this way dies, too. */
static bool is_cut_short(const struct worker *w, const struct delivery *d)
{
    return d->n_spared < w->q->max_attempts && d->http_status / 100 == 2 &&
           target_deaths(w) != d->n_deaths_before;
}

/* A failure that is the message's own, as far as one can tell: written as such; or a death, when there is a
 * reason for one. */
static void delivery_charge(struct worker *w, struct delivery *d, enum dead_reason death)
{
    bool cut_short = is_cut_short(w, d), is_spared = cut_short || delivery_is_tainted(w, d);

    d->suspect |= cut_short;
    d->n_spared += cut_short;
    if (!is_spared)
        worker_failure(w, d);
    if (is_spared || w->pauses & 1u << PAUSE_EVERYTHING_FAILS) {
        if (d->only_expired) { /* it may have been extended since */
            d->give_back = true;
            d->delay_ms = delivery_backoff_ms(w, ++d->n_given_back);
            delivery_event(w, d, DELIVERY_EV_FAIL);
            return;
        }
        give_back(w, d, delivery_backoff_ms(w, ++d->n_given_back), d->suspect ? RELEASE_ALONE : RELEASE_PARK);
        return;
    }
    d->charged = true;
    d->give_back = false; /* a window's end that was not one may have left it */
    d->dead_reason = death;
    d->delay_ms = delivery_backoff_ms(w, d->attempt);
    delivery_event(w, d, death == DEAD_NONE ? DELIVERY_EV_FAIL : DELIVERY_EV_GIVE_UP);
}

void delivery_fail(struct worker *w, struct delivery *d)
{
    /* What may still be extended is failed by the database's clock; used-up attempts are then seen by the
     * next claim. */
    bool last = d->attempt >= w->q->max_attempts && !d->only_expired;

    delivery_charge(w, d, last ? DEAD_ATTEMPTS : DEAD_NONE);
}

/* The application died with this request out. Nothing else goes there before it has been looked at. */
static void delivery_died(struct worker *w, struct delivery *d)
{
    enum lone_death death = suspect_judge(w, d);

    target_died(w);
    pause_for_death(w, d);
    if (death != DEATH_AMONG_OTHERS)
        suspect_stand_back(w, d);
    if (death == DEATH_CHARGED) {
        delivery_fail(w, d);
        return;
    }
    if (d->suspect && death == DEATH_AMONG_OTHERS) {
        /* It waited to be alone, in vain, and others waited with it: now they may go for longer. */
        int64_t wait = worker_is_braked(w) ? 0 : IN_VAIN_WINDOWS * w->q->token_window_ms;

        d->was_in_vain |= !worker_is_braked(w); /* there it need not be alone */
        give_back(w, d, wait + delivery_backoff_ms(w, ++d->n_given_back), RELEASE_PARK);
        return;
    }
    if (!d->suspect && worker_may_say(w, EVENT_ALONE))
        report_delivery(w, EVENT_ALONE, d);
    d->suspect = true;
    give_back(w, d, 0, RELEASE_ALONE);
}

void delivery_apply_verdict(struct worker *w, struct delivery *d)
{
    enum verdict v = (enum verdict)d->verdict;

    d->verdict = -1;
    d->http_status = d->answered_status;
    free(d->error);
    d->error = d->answered;
    d->answered = NULL;
    d->only_expired = false;
    switch (v) {
    case VERDICT_COMPLETE:
        delivery_event(w, d, DELIVERY_EV_SETTLE);
        break;
    case VERDICT_CHECK:
        d->watch = WATCH_COMMIT;
        d->watch_until_ms = w->now_ms + w->q->commit_grace_ms;
        d->n_locks = 0;
        delivery_event(w, d, DELIVERY_EV_CHECK);
        break;
    case VERDICT_ACCEPTED:
        d->watch = WATCH_ACCEPTED;
        d->watch_until_ms = d->window_ends_ms;
        d->n_locks = 0;
        d->not_before_ms = w->now_ms + LOCK_FIRST_MS;
        delivery_event(w, d, DELIVERY_EV_CHECK);
        break;
    case VERDICT_NOT_NOW:
        give_back(w, d,
                  d->retry_after_ms >= 0 ? d->retry_after_ms : delivery_backoff_ms(w, d->n_given_back + 1),
                  RELEASE_PARK);
        d->n_given_back++;
        break;
    case VERDICT_UNAVAILABLE:
        give_back(w, d, 0, RELEASE_PARK);
        pause_for_refusal(w, d);
        break;
    case VERDICT_PERMANENT:
        delivery_charge(w, d, DEAD_PERMANENT);
        break;
    case VERDICT_DIED:
        delivery_died(w, d);
        break;
    case VERDICT_FAILED:
    case VERDICT_REVOKE:
    case N_VERDICTS:
        delivery_fail(w, d);
        break;
    }
}

/* Something in front of a dead application answers 502, 503 and 504. */
static bool is_sign_of_life(const struct forward_answer *a)
{
    return a->kind == ANSWER_STATUS && a->status >= 200 && (a->status < 502 || a->status > 504);
}

static void delivery_keep_result(struct worker *w, struct delivery *d, struct slice body)
{
    if (!w->q->store_response_bytes || !body.len || body.len > w->q->store_response_bytes)
        return;
    free(d->result);
    d->result = mem_copy(body.data, body.len);
    d->result_len = body.len;
}

void worker_answer(struct worker *w, const struct forward_answer *a)
{
    const struct outcome_rules rules = {w->q->transaction, w->q->permanent_status, w->q->n_permanent_status};
    struct delivery *d = worker_find(w, a->ref);

    if (!d || !delivery_is_out(d->state))
        return;
    FAILPOINT(FORWARD_ANSWERED);
    d->retry_after_ms = a->retry_after_ms;
    d->verdict = (int)outcome_of(a->kind, a->status, &rules);
    d->answered_status = a->status;
    free(d->answered);
    d->answered = mem_copy(a->brief, strlen(a->brief));
    free(d->said);
    d->said = strcmp(a->error, a->brief) != 0 ? mem_copy(a->error, strlen(a->error)) : NULL;
    if (is_sign_of_life(a))
        target_prove(w, d->n_deaths_before);
    else if (a->kind == ANSWER_UNREACHABLE && !a->waited)
        worker_saw_nobody(w, d->n_deaths_before);
    if (d->verdict == VERDICT_UNAVAILABLE || d->verdict == VERDICT_DIED)
        w->refused_after_ms =
            a->took_us / 1000 < w->q->token_window_ms ? a->took_us / 1000 : w->q->token_window_ms;
    if (a->kind == ANSWER_STATUS) {
        histogram_add(&w->forward_us, a->took_us);
        w->service_ema_us += ((double)a->took_us - w->service_ema_us) / 16;
        if (d->verdict != VERDICT_UNAVAILABLE && d->verdict != VERDICT_DIED) {
            worker_saw_answer(w, d);
            worker_trickle(w, 1);
        }
        if (d->verdict == VERDICT_COMPLETE)
            delivery_keep_result(w, d, a->body);
    }
    if (d->state != DELIVERY_REVOKING)
        delivery_apply_verdict(w, d);
}
