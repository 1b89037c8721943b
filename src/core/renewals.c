/* Renewal of messages near their delivery limit: see renewals.h. */
#include "core/renewals.h"

#include "core/claims.h"
#include "core/pauses.h"
#include "core/rows.h"
#include "onceward/core/backoff.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum {
    PUBLISH_FIRST_MS = 500, /* between two tries to publish a copy */
    PUBLISH_LAST_MS = 30000,
    LOOP_LOOK_MS = 60000, /* between two lookups of a row that may not be renewed */
    FORBIDDEN_MS = 60000, /* between two tries of a refused permission */
};

static const char drops_head[] =
    "the queue drops its oldest message when it is full, so a copy could push another message out: declare it "
    "with x-overflow reject-publish, or without x-max-length and x-max-length-bytes";

/* --- the limits of the queue --- */

void queue_limits_await(struct queue *q)
{
    q->limits_awaited = true;
}

void queue_limits_known(struct queue *q, const struct queue_limits *limits)
{
    bool was_near = returns_limit_is_near(&q->returns);

    q->limits_awaited = false;
    q->returns.limits = *limits;
    if (limits->read && limits->drops_head) {
        q->returns.no_renewal = drops_head;
        q->returns.no_renewal_until_ms = 0;
    } else if (q->returns.no_renewal == drops_head) {
        q->returns.no_renewal = NULL;
    }
    if (returns_limit_is_near(&q->returns) && (!q->ready || !was_near))
        queue_caution_begin(q, CAUTION_LIMIT);
    q->flow.last_chances = true;
}

/* --- start of a renewal --- */

bool renewal_is_next(const struct queue *q, const struct delivery *d)
{
    return d->renewal == RENEWAL_OPEN && !delivery_has_token(d) && held_can_renew(q, d) && held_is_near(q, d);
}

bool next_renewal(struct queue *q, int64_t now_ms, unsigned can, struct action *ret)
{
    struct link *k;

    if (q->flow.last_chances && q->drain < DRAIN_LEAVING) {
        list_each(&q->held.wanted[OP_CLAIM], c)
        {
            if (renewal_is_next(q, delivery_at(c)))
                life_go(q, now_ms, delivery_at(c), FACT_TURN, step_want(OP_RENEW));
        }
    }
    if (q->database->linked && database_is_up(q->database) && can & 1u << OP_RENEW &&
        action_take_first(q, now_ms, OP_RENEW, ret))
        return true;
    k = list_first(&q->held.wanted[OP_PUBLISH]);
    assert(!k || (delivery_at(k)->arrival->message && delivery_at(k)->arrival->id_len && !q->rules.ordered));
    return k && can & 1u << OP_PUBLISH && action_take(q, now_ms, delivery_at(k), ACTION_PUBLISH, ret);
}

/* --- the row --- */

/* A message that exceeds its pace is renewed nevertheless, since the broker continues to count its deliveries, and
 * the queue pauses. A message without renewals left is held. */
static struct step renewed_too_often(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    bool is_counted = r->wait_ms > 0;
    int64_t wait = is_counted ? r->wait_ms : LOOP_LOOK_MS;
    char text[256];

    snprintf(text, sizeof(text),
             "message %.60s was renewed %s; each time its delivery limit was near again before its end",
             d->arrival->id, is_counted ? "more than 10 times in a minute" : "1,000 times");
    pause_begin(q, now_ms, PAUSE_RENEWAL_LOOP, text);
    if (now_ms + wait > q->loop_until_ms)
        q->loop_until_ms = now_ms + wait;
    if (is_counted)
        return step_want(OP_PUBLISH);
    return step_wait(OP_RENEW, WAIT_RENEWAL, now_ms + wait);
}

void renewals_time(struct queue *q, int64_t now_ms)
{
    if (pause_is_on(q, PAUSE_RENEWAL_LOOP) && now_ms >= q->loop_until_ms)
        pause_end(q, now_ms, PAUSE_RENEWAL_LOOP);
    if (q->returns.no_renewal_until_ms && now_ms >= q->returns.no_renewal_until_ms) {
        q->returns.no_renewal = NULL;
        q->returns.no_renewal_until_ms = 0;
    }
}

struct step row_of_renew(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    assert(d->op == OP_RENEW && !delivery_has_token(d));
    switch (r->answer) {
    case ROW_RENEWED:
    case ROW_TOO_OFTEN:
        if (d->given_up)
            return life_end_renewal(q, now_ms, d);
        if (r->answer == ROW_TOO_OFTEN)
            return renewed_too_often(q, now_ms, d, r);
        d->n_waits = 0;
        return step_want(OP_PUBLISH);
    case ROW_DEAD:
        if (message_deaths(
                d->arrival
                    ->message)) { /* by a dead-letter exchange: the claim decides whether it is revived */
            d->renewal = RENEWAL_AFTER_CLAIM;
            return step_want(OP_CLAIM);
        }
        return life_reject_again(q, now_ms, d);
    case ROW_COMPLETED:
    case ROW_HELD:
    case ROW_LOCKED:
    case ROW_MISMATCH:
    case ROW_INVALID:
        return row_of_claim(q, now_ms, d, r);
    default:
        return row_again(now_ms, d);
    }
}

/* --- the copy --- */

static struct step after_confirm(struct queue *q, int64_t now_ms, struct delivery *d)
{
    q->counts.renewed.total++;
    notes_tell_limited(q, now_ms, EVENT_RENEWED, d);
    /* The consumer stays in this pause. So its deliveries, whose copies are safe, are kept to stop others from
     * arriving. */
    if (pause_is_on(q, PAUSE_RENEWAL_LOOP) && returns_need_consumer(&q->returns))
        return step_with(step_wait(OP_ACK, WAIT_RENEWAL, q->loop_until_ms), EFFECT_RELEASE_FOLLOWERS);
    return step_with(step_want(OP_ACK), EFFECT_RELEASE_FOLLOWERS);
}

static struct step after_failed_publication(struct queue *q, int64_t now_ms, struct delivery *d,
                                            const char *why)
{
    struct note *n = notes_tell_limited(q, now_ms, EVENT_NOT_RENEWED, d);
    int64_t wait = backoff_ms(PUBLISH_FIRST_MS, PUBLISH_LAST_MS, ++d->n_waits, held_random(q));

    error_text_set(d, why, NULL);
    if (n)
        n->ms = wait;
    note_text(n, "%s", why);
    return step_wait(OP_PUBLISH, WAIT_DUE, now_ms + wait);
}

void queue_published(struct queue *q, int64_t now_ms, uint64_t ref, enum publication what, const char *why)
{
    struct delivery *d = (struct delivery *)queue_find(q, ref);

    if (what == PUBLICATION_FORBIDDEN && q->returns.no_renewal != drops_head) {
        q->returns.no_renewal = why;
        q->returns.no_renewal_until_ms = now_ms + FORBIDDEN_MS;
        q->flow.last_chances = true;
    }
    if (!d || d->op != OP_PUBLISH || d->phase != PHASE_SENT)
        return; /* the delivery has moved on meanwhile */
    bool confirmed = what == PUBLICATION_CONFIRMED;
    struct step s;

    if (confirmed) {
        s = after_confirm(q, now_ms, d);
    } else if (what == PUBLICATION_FAILED && d->given_up) { /* the copy, if there is one, finds a dead row */
        s = life_end_renewal(q, now_ms, d);
    } else if (what == PUBLICATION_FAILED) {
        s = after_failed_publication(q, now_ms, d, why);
    } else { /* refused, forbidden */
        d->renewal = RENEWAL_REFUSED;
        d->not_renewed = why;
        s = life_end_renewal(q, now_ms, d);
    }
    life_go(q, now_ms, d, FACT_PUBLISHED, s);
}
