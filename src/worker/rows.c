/* What comes back from the database, by what was asked. A zero-row answer is an answer: completed means ack,
 * anything else goes back to the claim; nothing is acked or rejected on it. */
#include "worker.h"

#include "onceward/base/clock.h"
#include "onceward/base/mem.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    SLOW_ERROR_MS = 1000,
    COPIES_EMA_OVER = 128, /* answers */
};

/* The same statement again, later: at once after a lost connection (there is none to send it on), else with a
 * growing wait. */
static void row_repeat(struct worker *w, struct delivery *d, const struct inbox_row *row)
{
    if (row->answer == ROW_RETRY) {
        int64_t wait = delivery_lock_wait_ms(d);

        report_database_error(w, row->sqlstate, row->detail);
        worker_op_fails(w, row);
        d->not_before_ms = w->now_ms + (sqlstate_is_lasting(row->sqlstate) ? SLOW_ERROR_MS : wait);
    }
    /* A letter without a row may have been written: only a redelivered one is looked for before it is
     * inserted. */
    if (d->state == DELIVERY_BURYING && d->message)
        d->message->redelivered = true;
    delivery_event(w, d, DELIVERY_EV_REPEAT);
}

static void row_again(struct worker *w, struct delivery *d, const struct inbox_row *row)
{
    (void)row;
    d->has_token = d->row_is_ours = false;
    d->not_before_ms = w->now_ms + delivery_lock_wait_ms(d);
    delivery_event(w, d, DELIVERY_EV_AGAIN);
}

static void row_locked(struct worker *w, struct delivery *d)
{
    d->not_before_ms = w->now_ms + delivery_lock_wait_ms(d);
    if (!d->locked_since_ms)
        d->locked_since_ms = w->now_ms;
    else if (w->inbox && w->now_ms >= w->locked_told_ms &&
             w->now_ms - d->locked_since_ms > w->q->token_window_ms) {
        w->locked_ref = d->ref;
        w->locked_told_ms = w->now_ms + w->config->log.stats_interval_ms;
        inbox_ask_holder(w->inbox, 0, delivery_id(d));
    }
}

/* The holder of the lock is known: said once an interval. */
void worker_holder(struct worker *w, const struct inbox_holder *h)
{
    struct delivery *d = worker_find(w, w->locked_ref);
    struct log_line l;

    w->locked_ref = 0;
    bool knows_age = *h->state && (h->pid || *h->gid);

    if (!d || !d->locked_since_ms || (!h->pid && !*h->state))
        return;
    report_delivery_begin(&l, EVENT_ROW_LOCKED, w, d);
    log_int(&l, "locked_ms", w->now_ms - d->locked_since_ms);
    if (h->pid) {
        log_int(&l, "pid", h->pid);
        log_text(&l, "application", h->application);
    }
    if (*h->gid)
        log_text(&l, "gid", h->gid);
    log_text(&l, "state", *h->state ? h->state : NULL);
    log_int(&l, "age_ms", knows_age ? h->age_ms : w->now_ms - d->locked_since_ms);
    if (h->pid && !knows_age)
        log_text(&l, "reason",
                 "state and age are shown to members of pg_read_all_stats only; age_ms is how long it was seen "
                 "from here");
    log_end(&l);
}

/* A wait longer than any backoff was asked for by the application, or made by a clock that has jumped since
 * and may be put right: it is looked at now and then. */
static int64_t due_look_ms(const struct worker *w, int64_t wait_ms)
{
    int64_t most = w->q->max_backoff_ms > HELD_LOOK_MS ? w->q->max_backoff_ms : HELD_LOOK_MS;

    if (wait_ms > most)
        return most;
    return wait_ms > 0 ? wait_ms : 1;
}

/* What the row has kept: the letter has it whole, the log without what the application wrote. */
static void set_kept_error(struct delivery *d, const char *before, struct slice kept)
{
    struct slice brief = {kept.data, kept.len ? outcome_brief(kept.data, kept.len) : 0};
    struct buf text = {0};

    buf_add_text(&text, before);
    buf_add_slice(&text, brief);
    delivery_set_error(d, buf_text(&text));
    if (brief.len < kept.len) {
        buf_add(&text, kept.data + brief.len, kept.len - brief.len);
        d->said = mem_copy(text.data, text.len);
    }
    buf_deinit(&text);
}

static void give_up(struct worker *w, struct delivery *d, enum dead_reason reason, bool rowless,
                    struct slice detail)
{
    if (detail.len)
        set_kept_error(d, "", (struct slice){detail.data, detail.len < 1000 ? detail.len : 1000});
    d->dead_reason = reason;
    d->rowless = rowless;
    delivery_event(w, d,
                   rowless && reason == DEAD_INVALID_DATA ? DELIVERY_EV_UNWRITABLE : DELIVERY_EV_GIVE_UP);
}

static void row_park(struct worker *w, struct delivery *d, const struct inbox_row *row)
{
    struct log_line l;

    if (row->answer == ROW_NOT_DUE && delivery_is_at_its_last(w, d)) {
        set_kept_error(d, "the broker would drop it before its next attempt is due; last: ",
                       (struct slice){row->detail.data, row->detail.len < 300 ? row->detail.len : 300});
        d->exhausted = true;
        d->attempt = row->attempt + row->takeovers;
        give_up(w, d, DEAD_DELIVERY_LIMIT, false, (struct slice){0});
        return;
    }
    d->has_token = row->answer == ROW_LOCKED && d->has_token; /* the locked row may hold it */
    if (row->answer != ROW_LOCKED)
        d->n_locks = 0;
    switch (row->answer) {
    case ROW_HELD:
        d->wait = WAIT_HELD;
        d->delay_ms =
            row->wait_ms + LOCK_FIRST_MS < HELD_LOOK_MS ? row->wait_ms + LOCK_FIRST_MS : HELD_LOOK_MS;
        if (d->delay_ms < LOCK_FIRST_MS)
            d->delay_ms = LOCK_FIRST_MS;
        break;
    case ROW_LOCKED:
        row_locked(w, d);
        d->wait = WAIT_LOCKED;
        d->delay_ms = d->not_before_ms - w->now_ms;
        d->not_before_ms = 0;
        break;
    default:
        d->wait = WAIT_DUE;
        d->delay_ms = due_look_ms(w, row->wait_ms);
        break;
    }
    if (row->answer != ROW_LOCKED && worker_may_say(w, EVENT_PARKED)) {
        report_delivery_begin(&l, EVENT_PARKED, w, d);
        log_text(&l, "why", row_answer_name(row->answer));
        log_int(&l, "wait_ms", row->wait_ms);
        if (row->detail.len && row->answer == ROW_HELD)
            log_slice(&l, "holder", row->detail);
        else if (row->detail.len)
            log_slice(&l, "last_error",
                      (struct slice){row->detail.data, outcome_brief(row->detail.data, row->detail.len)});
        log_end(&l);
    }
    delivery_event(w, d, DELIVERY_EV_NOT_NOW);
    if (d->state == DELIVERY_PARKED && row->answer == ROW_NOT_DUE)
        d->due_ms = w->now_ms + row->wait_ms;
}

/* Said at most once a minute: it is a matter of how the application is built. */
static void early_answer(struct worker *w, const struct delivery *d, bool completed)
{
    struct log_line l;

    if (w->early_answer_told_ms && w->now_ms - w->early_answer_told_ms < 60000)
        return;
    w->early_answer_told_ms = w->now_ms;
    report_delivery_begin(&l, EVENT_ANSWERED_BEFORE_COMMIT, w, d);
    log_bool(&l, "completed", completed);
    log_end(&l);
}

/* Completed, by whomever. How it came to be known decides what is said and counted. */
static void row_completed(struct worker *w, struct delivery *d, const struct inbox_row *row)
{
    struct log_line l;
    enum delivery_state s = d->state;
    (void)row;

    if (s == DELIVERY_CLAIMING || s == DELIVERY_LOOKING) {
        counter_add(&w->counts.duplicates, 1);
        report_delivery(w, EVENT_DUPLICATE, d);
        delivery_event(w, d, DELIVERY_EV_COMPLETED);
        return;
    }
    if (s == DELIVERY_FAILING || s == DELIVERY_RELEASING || s == DELIVERY_BURYING || s == DELIVERY_REVOKING) {
        if (d->http_status / 100 == 2) {
            early_answer(w, d, true);
        } else if (!d->only_expired &&
                   worker_may_say(w, EVENT_ANSWER_CONTRADICTS_ROW)) { /* it said something */
            report_delivery_begin(&l, EVENT_ANSWER_CONTRADICTS_ROW, w, d);
            log_text(&l, "answer", d->error);
            log_end(&l);
        }
        if (s == DELIVERY_REVOKING)
            forward_abandon(w->forward, 0, d->ref);
    }
    counter_add(&w->counts.completed, 1);
    histogram_add(&w->end_to_end_us, clock_us() - d->received_us);
    if (w->config->log.messages != MESSAGES_NONE)
        report_delivery(w, EVENT_COMPLETED, d);
    worker_success(w, d);
    delivery_event(w, d, DELIVERY_EV_COMPLETED);
}

/* Takes over the fingerprint of the first body, from the answer's JSON: with on_body_mismatch: duplicate this
 * copy stands for that. */
static bool fingerprint_adopt(struct delivery *d, struct slice detail)
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

static void row_mismatch(struct worker *w, struct delivery *d, const struct inbox_row *row)
{
    struct log_line l;

    if (w->q->mismatch_is_duplicate && fingerprint_adopt(d, row->detail)) {
        row_again(w, d, row);
        return;
    }
    if (worker_may_say(w, EVENT_BODY_MISMATCH)) {
        report_delivery_begin(&l, EVENT_BODY_MISMATCH, w, d);
        log_slice(&l, "rows", row->detail);
        log_end(&l);
    }
    give_up(w, d, DEAD_BODY_MISMATCH, true, row->detail);
}

static void row_claimed(struct worker *w, struct delivery *d, const struct inbox_row *row)
{
    char text[512];

    d->attempt = row->attempt + row->takeovers;
    d->row_is_ours = true;
    d->n_locks = 0;
    if (row->taken_over && worker_may_say(w, EVENT_TAKEN_OVER))
        report_delivery(w, EVENT_TAKEN_OVER, d);
    delivery_event(w, d, DELIVERY_EV_CLAIMED);
    if (w->q->max_age_ms && row->age_ms > w->q->max_age_ms) {
        snprintf(text, sizeof(text), "%s", d->said ? d->said : d->error ? d->error : "");
        set_kept_error(d, *text ? "older than max_age; last: " : "older than max_age", slice_of(text));
        d->dead_reason = DEAD_TOO_OLD;
        delivery_event(w, d, DELIVERY_EV_GIVE_UP);
    } else if (d->last_chance) {
        delivery_set_error(d, "the broker has delivered it almost as often as its delivery limit allows");
        d->dead_reason = DEAD_DELIVERY_LIMIT;
        delivery_event(w, d, DELIVERY_EV_GIVE_UP);
    } else if (!worker_may_forward(w)) {
        d->delay_ms = 0;
        delivery_set_error(d, "claimed while the queue came to pause");
        delivery_event(w, d, DELIVERY_EV_GIVE_BACK);
    }
}

static void row_exhausted(struct worker *w, struct delivery *d, const struct inbox_row *row)
{
    d->row_is_ours = true;
    if (worker_is_braked(w)) {
        d->used_up = true;
        d->wait = WAIT_DUE;
        d->has_token = false;
        d->delay_ms = delivery_backoff_ms(w, ++d->n_given_back);
        delivery_event(w, d, DELIVERY_EV_NOT_NOW); /* nothing dies while the brake is on */
        return;
    }
    d->attempt = row->attempt + row->takeovers;
    d->exhausted = true;
    give_up(w, d, DEAD_ATTEMPTS, false, row->detail);
}

static void row_was_dead(struct worker *w, struct delivery *d, const struct inbox_row *row)
{
    (void)row;
    d->was_dead = true;
    if (d->state == DELIVERY_CLAIMING && delivery_circles(w, d)) {
        delivery_event(w, d, DELIVERY_EV_NOT_NOW);
        return;
    }
    report_dead_again(w, d);
    delivery_event(w, d, DELIVERY_EV_WAS_DEAD);
}

static void row_still_locked(struct worker *w, struct delivery *d, const struct inbox_row *row)
{
    (void)row;
    row_locked(w, d);
    delivery_event(w, d, DELIVERY_EV_LOCKED);
}

static void claim_invalid(struct worker *w, struct delivery *d, const struct inbox_row *row)
{
    give_up(w, d, DEAD_INVALID_DATA, true, row->detail);
}

/* Of a copy without a claim: the claim decides. */
static void look_due(struct worker *w, struct delivery *d, const struct inbox_row *row)
{
    (void)row;
    delivery_event(w, d, DELIVERY_EV_DUE);
}

/* The row was still processing under our token when the answer of the application said that it is, or will
 * be, completed. */
static void check_not_completed(struct worker *w, struct delivery *d, const struct inbox_row *row)
{
    char text[120];

    if (d->watch == WATCH_ACCEPTED && w->now_ms + row->wait_ms > d->watch_until_ms)
        d->watch_until_ms = w->now_ms + row->wait_ms; /* extended */
    if (w->now_ms < d->watch_until_ms) {
        delivery_event(w, d, DELIVERY_EV_CLAIMED);
        return;
    }
    d->only_expired = d->watch == WATCH_ACCEPTED;
    if (d->watch == WATCH_ACCEPTED) {
        delivery_set_error(d, "accepted with 202, and not completed within the window");
    } else {
        snprintf(text, sizeof(text), "answered %d without completing the token", d->http_status);
        delivery_set_error(d, text);
        early_answer(w, d, false);
    }
    delivery_fail(w, d);
}

static void check_completed(struct worker *w, struct delivery *d, const struct inbox_row *row)
{
    if (d->n_locks && d->watch == WATCH_COMMIT)
        early_answer(w, d, true);
    row_completed(w, d, row);
}

/* Only the stored answer can be at fault: the completion matters more. */
static void settle_invalid(struct worker *w, struct delivery *d, const struct inbox_row *row)
{
    free(d->result);
    d->result = NULL;
    d->result_len = 0;
    report_database_error(w, row->sqlstate, row->detail);
    delivery_event(w, d, DELIVERY_EV_UNWRITABLE);
}

static void report_given_back(struct worker *w, const struct delivery *d)
{
    struct log_line l;

    counter_add(&w->counts.given_back, 1);
    if (!worker_may_say(w, EVENT_GIVEN_BACK))
        return;
    report_delivery_begin(&l, EVENT_GIVEN_BACK, w, d);
    log_int(&l, "next_attempt_ms", d->delay_ms > 0 ? d->delay_ms : 0);
    log_end(&l);
}

static void fail_done(struct worker *w, struct delivery *d, const struct inbox_row *row)
{
    struct log_line l;
    bool revoked = d->state == DELIVERY_REVOKING;

    if (revoked)
        forward_abandon(w->forward, 0, d->ref);
    free(d->answered);
    d->answered = NULL;
    d->verdict = -1;
    if (d->only_expired && worker_may_say(w, EVENT_TOKEN_EXPIRED))
        report_delivery(w, EVENT_TOKEN_EXPIRED, d);
    if (row->answer == ROW_RELEASED) {
        report_given_back(w, d);
    } else if (d->attempt >= w->q->max_attempts) {
        d->delay_ms = 0; /* there is no next one: the claim will find its attempts used up */
    } else {
        counter_add(&w->counts.retried, 1);
        if (worker_may_say(w, EVENT_RETRY)) {
            report_delivery_begin(&l, EVENT_RETRY, w, d);
            log_int(&l, "next_attempt_ms", d->delay_ms);
            log_end(&l);
        }
    }
    if (revoked && row->answer == ROW_FAILED)
        worker_failure(w, d);
    d->wait = WAIT_DUE;
    d->has_token = false;
    delivery_event(w, d, DELIVERY_EV_DONE);
}

static void fail_extended(struct worker *w, struct delivery *d, const struct inbox_row *row)
{
    d->window_ends_ms = d->watch_until_ms = w->now_ms + row->wait_ms + LOCK_FIRST_MS;
    d->n_locks = 0;
    delivery_event(w, d, DELIVERY_EV_EXTENDED);
}

/* The words are at fault, not the failure. */
static void fail_invalid(struct worker *w, struct delivery *d, const struct inbox_row *row)
{
    report_database_error(w, row->sqlstate, row->detail);
    delivery_set_error(d, "failed, with an error text that the database refuses");
    d->not_before_ms = w->now_ms + LOCK_LAST_MS;
    delivery_event(w, d, d->state == DELIVERY_REVOKING ? DELIVERY_EV_REPEAT : DELIVERY_EV_UNWRITABLE);
}

static void fail_repeat(struct worker *w, struct delivery *d, const struct inbox_row *row)
{
    d->not_before_ms = w->now_ms + LOCK_FIRST_MS;
    row_repeat(w, d, row);
}

static void fail_other(struct worker *w, struct delivery *d, const struct inbox_row *row)
{
    if (d->state == DELIVERY_REVOKING)
        forward_abandon(w->forward, 0, d->ref);
    row_again(w, d, row);
}

static void release_done(struct worker *w, struct delivery *d, const struct inbox_row *row)
{
    (void)row;
    report_given_back(w, d);
    d->wait = WAIT_DUE;
    d->has_token = false;
    if (d->release_to == RELEASE_RETURN || w->drain >= DRAIN_RETURNING)
        delivery_event(w, d, DELIVERY_EV_RETURN);
    else
        delivery_event(w, d, d->release_to == RELEASE_ALONE ? DELIVERY_EV_ALONE : DELIVERY_EV_DONE);
}

/* The row is not ours any more: nothing is left to give back. */
static void release_other(struct worker *w, struct delivery *d, const struct inbox_row *row)
{
    if (d->release_to != RELEASE_RETURN) {
        row_again(w, d, row);
        return;
    }
    d->has_token = false;
    delivery_event(w, d, DELIVERY_EV_RETURN);
}

static void release_invalid(struct worker *w, struct delivery *d, const struct inbox_row *row)
{
    report_database_error(w, row->sqlstate, row->detail);
    delivery_set_error(d, "given back, with a text that the database refuses");
    d->not_before_ms = w->now_ms + LOCK_LAST_MS;
    delivery_event(w, d, DELIVERY_EV_UNWRITABLE);
}

static void bury_done(struct worker *w, struct delivery *d, const struct inbox_row *row)
{
    struct log_line l;
    char letter[24];

    counter_add(&w->counts.dead, 1);
    report_delivery_begin(&l, EVENT_DEAD, w, d);
    log_text(&l, "reason", dead_reasons[d->dead_reason].name);
    snprintf(letter, sizeof(letter), "%.*s", (int)row->id.len, row->id.len ? row->id.data : "");
    log_int(&l, "letter", strtoll(letter, NULL, 10));
    log_end(&l);
    delivery_event(w, d, DELIVERY_EV_DONE);
}

/* Not even the letter can be written: it stays unacked, and is tried again later. */
static void bury_invalid(struct worker *w, struct delivery *d, const struct inbox_row *row)
{
    report_database_error(w, row->sqlstate, row->detail);
    d->wait = WAIT_DUE;
    d->delay_ms = w->q->max_backoff_ms;
    delivery_event(w, d, DELIVERY_EV_UNWRITABLE);
}

/* --- what is done with an answer, by what was asked --- */

typedef void (*row_action)(struct worker *, struct delivery *, const struct inbox_row *);

enum { ASKED_CHECK = N_INBOX_OPS, N_ASKED }; /* a look of what was answered is a check */

static const struct {
    row_action action[N_ROW_ANSWERS];
    row_action other;
} rows[N_ASKED] = {
    [INBOX_CLAIM] = {{[ROW_CLAIMED] = row_claimed,
                      [ROW_COMPLETED] = row_completed,
                      [ROW_HELD] = row_park,
                      [ROW_NOT_DUE] = row_park,
                      [ROW_LOCKED] = row_park,
                      [ROW_EXHAUSTED] = row_exhausted,
                      [ROW_DEAD] = row_was_dead,
                      [ROW_MISMATCH] = row_mismatch,
                      [ROW_INVALID] = claim_invalid,
                      [ROW_UNKNOWN] = row_repeat,
                      [ROW_RETRY] = row_repeat},
                     row_again},
    [INBOX_LOOK] = {{[ROW_COMPLETED] = row_completed,
                     [ROW_HELD] = row_park,
                     [ROW_MISMATCH] = row_mismatch,
                     [ROW_UNKNOWN] = row_repeat,
                     [ROW_RETRY] = row_repeat},
                    look_due},
    [ASKED_CHECK] = {{[ROW_COMPLETED] = check_completed,
                      [ROW_CLAIMED] = check_not_completed,
                      [ROW_UNKNOWN] = row_repeat,
                      [ROW_RETRY] = row_repeat},
                     row_again},
    [INBOX_SETTLE] = {{[ROW_COMPLETED] = row_completed,
                       [ROW_LOCKED] = row_still_locked,
                       [ROW_INVALID] = settle_invalid,
                       [ROW_UNKNOWN] = row_repeat,
                       [ROW_RETRY] = row_repeat},
                      row_again},
    [INBOX_FAIL] = {{[ROW_FAILED] = fail_done,
                     [ROW_RELEASED] = fail_done,
                     [ROW_COMPLETED] = row_completed,
                     [ROW_EXTENDED] = fail_extended,
                     [ROW_LOCKED] = row_still_locked,
                     [ROW_INVALID] = fail_invalid,
                     [ROW_UNKNOWN] = fail_repeat,
                     [ROW_RETRY] = fail_repeat},
                    fail_other},
    [INBOX_RELEASE] = {{[ROW_RELEASED] = release_done,
                        [ROW_COMPLETED] = row_completed,
                        [ROW_LOCKED] = row_still_locked,
                        [ROW_INVALID] = release_invalid,
                        [ROW_UNKNOWN] = row_repeat,
                        [ROW_RETRY] = row_repeat},
                       release_other},
    [INBOX_BURY] = {{[ROW_BURIED] = bury_done,
                     [ROW_DEAD] = row_was_dead,
                     [ROW_COMPLETED] = row_completed,
                     [ROW_LOCKED] = row_still_locked,
                     [ROW_INVALID] = bury_invalid,
                     [ROW_UNKNOWN] = row_repeat,
                     [ROW_RETRY] = row_repeat},
                    row_again},
};

void worker_row(struct worker *w, const struct inbox_row *row)
{
    struct delivery *d = worker_find(w, row->ref);

    if (row->op == INBOX_CLAIM && w->claim_sent_us) {
        double took = (double)(clock_us() - w->claim_sent_us);

        w->claim_ema_us += (took - w->claim_ema_us) / 8;
        w->claim_sent_us = 0;
    }
    if (row->answer != ROW_UNKNOWN && row->answer != ROW_RETRY && row->answer != ROW_INVALID)
        worker_op_works(w, row->op);
    if (!d || !delivery_is_at_database(d->state))
        return; /* given back meanwhile */
    FAILPOINT_AT(failpoint_of(d->state, FAILPOINT_STEP_ANSWERED));
    if (row->answer != ROW_RETRY && row->answer != ROW_LOCKED && row->answer != ROW_UNKNOWN)
        d->not_before_ms = 0;
    if (row->answer != ROW_LOCKED)
        d->locked_since_ms = 0;
    if (row->answer < ROW_UNKNOWN &&
        (d->state == DELIVERY_LOOKING || (d->state == DELIVERY_CLAIMING && !d->looked)))
        w->copies_ema += ((row->answer == ROW_COMPLETED) - w->copies_ema) / COPIES_EMA_OVER;
    int asked = row->op == INBOX_LOOK && d->state == DELIVERY_CHECKING ? ASKED_CHECK : (int)row->op;
    row_action action = rows[asked].action[row->answer];

    (action ? action : rows[asked].other)(w, d, row);
    /* The application's answer came while the database was asked whether its window is over. */
    if (row->op == INBOX_FAIL && d->state == DELIVERY_FORWARDING && d->verdict >= 0)
        delivery_apply_verdict(w, d);
}
