/* Rules for answers to a claim and to a lookup: see rows.h. */
#include "core/batches.h"
#include "core/pauses.h"
#include "core/quarantine.h"
#include "core/rows.h"

#include "onceward/base/buf.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { DUPLICATES_OVER = 128 /* answers in the moving average of duplicates */ };

/* Is the message near its delivery limit, without a possible renewal? */
static bool is_near(const struct queue *q, const struct delivery *d)
{
    return held_is_near(q, d) && !held_can_renew(q, d);
}

static void say_limit(const struct queue *q, struct delivery *d)
{
    struct buf text = {0};

    life_limit_words(q, d, &text);
    error_text_set(d, buf_text(&text), NULL);
    buf_deinit(&text);
}

static void count_duplicates(struct queue *q, bool duplicate)
{
    q->flow.duplicates += (duplicate - q->flow.duplicates) / DUPLICATES_OVER;
}

static void row_facts(struct delivery *d, int64_t now_ms, const struct row *r)
{
    d->claim->attempt = r->attempt;
    d->claim->crashes = r->crashes;
    d->claim->takeovers = r->takeovers;
    d->claim->batch_cap = r->batch_cap;
    d->claim->unproven_step = r->unproven_step;
    d->claim->unproven_at_ms = r->unproven_ms >= 0 ? now_ms - r->unproven_ms : -1;
}

static struct step row_claimed(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    assert(d->op == OP_CLAIM && delivery_has_token(d));
    row_facts(d, now_ms, r);
    if (r->age_ms > now_ms - d->arrival->received_ms)
        batches_claimed_before(q, d);
    d->claim->of_row = CLAIM_HELD;
    d->row_end = ROW_END_NONE; /* an operator's command was missed */
    d->n_waits = 0;
    if (r->taken_over)
        notes_tell_limited(q, now_ms, EVENT_TAKEN_OVER, d);
    if (d->given_up) {
        return life_give_up(q, now_ms, d, LETTER_CLAIMED);
    } else if (is_near(q, d)) {
        say_limit(q, d);
        return life_dead_letter(q, now_ms, d, DEAD_DELIVERY_LIMIT, LETTER_CLAIMED);
    } else if (q->rules.max_age_ms && r->age_ms > q->rules.max_age_ms) {
        const char *last = d->outcome.said ? d->outcome.said : d->outcome.error;

        error_text_set_last(d, "older than max_age", slice_of(last ? last : ""));
        return life_die(q, now_ms, d, DEAD_TOO_OLD, LETTER_CLAIMED, NULL);
    } else if (!d->claim->alone && d->claim->crashes > 0 && d->claim->takeovers < N_ALONE_TAKEOVERS &&
               quarantine_find(q, now_ms, d)) {
        d->claim->alone = true; /* its row only records a sidecar's crash */
        return step_want(OP_FORWARD);
    } else if (!d->claim->alone && (d->claim->crashes > 0 || d->claim->takeovers >= N_ALONE_TAKEOVERS) &&
               (q->application->place.credit_ms > 0 || d->claim->crashes >= N_ALONE_CRASHES)) {
        error_text_set(d, "the application crashed while it was in flight: it is sent alone", NULL);
        return life_release(d, 0, row_as_it_is());
    } else {
        return step_want(OP_FORWARD);
    }
}

/* A wait longer than any backoff was requested by the application, or comes from a clock that jumped and may be
 * corrected: the row is read now and then. */
static int64_t due_look_ms(const struct queue *q, int64_t wait_ms)
{
    int64_t most = q->rules.max_backoff_ms > HELD_LOOK_MS ? q->rules.max_backoff_ms : HELD_LOOK_MS;

    if (wait_ms > most)
        return most;
    return wait_ms > 0 ? wait_ms : 1;
}

/* Length of the claim owner's name, or of the row's last error without the application's own text. */
static int parked_text_len(const struct row *r)
{
    size_t len = r->detail.len;

    if (len && r->answer != ROW_HELD)
        len = outcome_brief(r->detail.data, len);
    return (int)(len < 200 ? len : 200);
}

static struct step row_parked(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    assert(r->answer == ROW_HELD || r->answer == ROW_NOT_DUE);
    bool held = r->answer == ROW_HELD;
    struct note *n = notes_tell_limited(q, now_ms, EVENT_PARKED, d);

    if (n) {
        n->reason = row_answer_name(r->answer);
        n->ms = r->wait_ms;
        n->flag = held;
        note_text(n, "%.*s", parked_text_len(r), r->detail.len ? r->detail.data : "");
    }
    delivery_drop_token(d);
    d->n_waits = 0;
    if (!held && d->given_up) {
        d->claim->attempt = r->attempt;
        return life_give_up(q, now_ms, d, LETTER_UNCLAIMED);
    }
    if (!held && is_near(q, d)) {
        struct buf text = {0};

        life_limit_words(q, d, &text);
        error_text_set_last(d, buf_text(&text), r->detail);
        buf_deinit(&text);
        d->claim->attempt = r->attempt;
        return life_dead_letter(q, now_ms, d, DEAD_DELIVERY_LIMIT, LETTER_UNCLAIMED);
    }
    if (!held) {
        return step_wait(OP_CLAIM, WAIT_DUE, now_ms + due_look_ms(q, r->wait_ms));
    }
    if (d->arrival->message && is_near(q, d) &&
        returns_is_last(&q->returns, d->arrival->copy.delivery_count)) {
        return life_dead_letter_held(q, now_ms, d);
    }
    /* The owner may be an earlier start of this instance, whose token outlives the next two crashes. */
    if (held_can_renew(q, d) && held_is_near(q, d) &&
        returns_is_last(&q->returns, d->arrival->copy.delivery_count)) {
        return life_renew(d);
    }
    int64_t wait = r->wait_ms + LOCK_LOOK_MS;
    return step_wait(d->op == OP_RENEW ? OP_RENEW : OP_LOOK, WAIT_HELD,
                     now_ms + (wait < LOCK_LOOK_MS   ? LOCK_LOOK_MS
                               : wait < HELD_LOOK_MS ? wait
                                                     : HELD_LOOK_MS));
}

/* Were all attempts used up when the row was last read? */
static bool is_exhausted(const struct queue *q, const struct delivery *d)
{
    return delivery_owns_row(d) && !delivery_has_token(d) &&
           (d->claim->attempt >= q->rules.max_attempts || d->claim->takeovers >= q->rules.max_attempts + 2);
}

/* Can this message show the circuit breaker that the application has recovered? */
static bool may_be_tried(const struct queue *q, const struct delivery *d)
{
    switch (d->wait) {
    case WAIT_FOLLOWING:
    case WAIT_SURPLUS:
    case WAIT_ROOM:
    case WAIT_CIRCLING:
    case WAIT_RENEWAL:
    case WAIT_ORDER:
    case WAIT_ON_HOLD:
        return false;
    case WAIT_HELD:
        return d->arrival->message != NULL;
    case WAIT_BRAKE:
        return d->op != OP_DEAD_LETTER && !is_exhausted(q, d);
    default:
        return true;
    }
}

/* Do others wait for the key, the room or the credit of this message, so that none of them can be tried? */
static bool is_in_the_way(const struct queue *q, const struct delivery *d)
{
    bool key_waits = d->place.line && d->place.line->places.len > 1;
    bool is_fixed = q->rules.ordered || q->returns.limits.single_active;
    bool is_full = pause_is_on(q, PAUSE_BYTES_FULL) || pause_is_on(q, PAUSE_PARKED_FULL) ||
                   (is_fixed && q->held.unacked.len >= (size_t)q->consumer.prefetch);

    if (!key_waits && !is_full)
        return false;
    for (const struct link *k = q->held.unacked.head.next; k != &q->held.unacked.head; k = k->next) {
        const struct delivery *other = container_of((struct link *)k, struct delivery, in_tags);

        if (other != d && may_be_tried(q, other))
            return false;
    }
    return true;
}

/* While everything fails, the message may not be at fault. */
static struct step row_exhausted(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    d->claim->of_row = CLAIM_ENDED;
    d->claim->attempt = r->attempt;
    d->claim->takeovers = r->takeovers;
    if (q->share->brake.on && !d->given_up && !is_near(q, d) && !is_in_the_way(q, d)) {
        return step_wait(OP_CLAIM, WAIT_BRAKE, INT64_MAX);
    }
    if (r->detail.len)
        error_text_set_last(d, "", r->detail);
    else if (!d->outcome.error)
        error_text_set(d, "all attempts failed", NULL);
    if (d->given_up)
        return life_give_up(q, now_ms, d, LETTER_UNCLAIMED);
    else
        return life_dead_letter(q, now_ms, d, DEAD_ATTEMPTS, LETTER_UNCLAIMED);
}

/* Was the first body completed? An entry of the history has only a part of the fingerprint, so it cannot be adopted. */
static bool first_is_completed(struct slice detail)
{
    static const char text[] = "\"first_status\" : \"completed\"";

    return detail.len && memmem(detail.data, detail.len, text, sizeof(text) - 1);
}

/* Takes the fingerprint of the first body from the answer's JSON. With `on_body_mismatch: duplicate` this copy stands
 * for that body. */
static bool adopt_fingerprint(struct delivery *d, struct slice detail)
{
    static const char key[] = "\"first_fingerprint\" : \"";
    const char *at = detail.len ? memmem(detail.data, detail.len, key, sizeof(key) - 1) : NULL;
    uint8_t bytes[sizeof(d->arrival->fingerprint)];

    if (!at || (size_t)(detail.data + detail.len - at) < sizeof(key) - 1 + 2 * sizeof(bytes))
        return false;
    at += sizeof(key) - 1;
    for (size_t i = 0; i < sizeof(bytes); i++)
        if (sscanf(at + 2 * i, "%2hhx", &bytes[i]) != 1)
            return false;
    memcpy(d->arrival->fingerprint, bytes, sizeof(bytes));
    return true;
}

static struct step row_mismatch(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    char text[1024];

    if (q->rules.mismatch_is_duplicate && first_is_completed(r->detail)) {
        return row_completed(q, now_ms, d);
    }
    if (q->rules.mismatch_is_duplicate && adopt_fingerprint(d, r->detail)) {
        return row_again(now_ms, d);
    }
    snprintf(text, sizeof(text), "%.*s", (int)(r->detail.len < 1000 ? r->detail.len : 1000),
             r->detail.len ? r->detail.data : "");
    note_text(notes_tell_limited(q, now_ms, EVENT_BODY_MISMATCH, d), "%s", text);
    return life_die(q, now_ms, d, DEAD_BODY_MISMATCH, LETTER_ROWLESS, text);
}

struct step row_of_claim(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    char text[512];

    count_duplicates(q, r->answer == ROW_COMPLETED);
    switch (r->answer) {
    case ROW_CLAIMED:
        return row_claimed(q, now_ms, d, r);
    case ROW_COMPLETED:
        return row_completed(q, now_ms, d);
    case ROW_HELD:
    case ROW_NOT_DUE:
        return row_parked(q, now_ms, d, r);
    case ROW_LOCKED:
        return row_locked(now_ms, d);
    case ROW_EXHAUSTED:
        return row_exhausted(q, now_ms, d, r);
    case ROW_DEAD:
        return life_reject_again(q, now_ms, d);
    case ROW_ON_HOLD:
        row_facts(d, now_ms, r);
        if (r->detail.len)
            error_text_set_last(d, "", r->detail);
        return row_on_hold(q, now_ms, d);
    case ROW_MISMATCH:
        return row_mismatch(q, now_ms, d, r);
    case ROW_DUE: /* may be taken over, but only alone */
        row_facts(d, now_ms, r);
        d->claim->takeovers++; /* including this one */
        delivery_drop_token(d);
        return life_claim(q, d);
    case ROW_INVALID:
        row_refused(q, now_ms, d, r);
        snprintf(text, sizeof(text), "%.*s", (int)(r->detail.len < 500 ? r->detail.len : 500),
                 r->detail.len ? r->detail.data : "");
        return life_die(q, now_ms, d, DEAD_INVALID_DATA, LETTER_ROWLESS, text);
    default:
        return row_again(now_ms, d);
    }
}

struct step row_of_look(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    count_duplicates(q, r->answer == ROW_COMPLETED);
    switch (r->answer) {
    case ROW_COMPLETED:
        return row_completed(q, now_ms, d);
    case ROW_HELD:
        return row_parked(q, now_ms, d, r);
    case ROW_MISMATCH:
        return row_mismatch(q, now_ms, d, r);
    default: /* the claim decides */
        if (r->answer == ROW_DUE)
            row_facts(d, now_ms, r);
        return life_claim(q, d);
    }
}
