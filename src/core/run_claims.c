/* Claims of the messages of one key together: see run_claims.h.
 *
 * The first of a line may be claimed when every message before it has ended. Those behind it are claimed in the same
 * turn, so their claims reach the database together. Whatever the database answers, the part of the run that is claimed
 * without a gap is sent, and the rest is released. */
#include "core/run_claims.h"

#include "core/batches.h"
#include "core/held.h"
#include "core/order.h"
#include "core/runs.h"

#include "onceward/core/batch_envelope.h"

/* A message that has failed by itself goes alone while it fails: those behind it would be sent for nothing. */
static bool has_failed_alone(const struct delivery *d)
{
    return d->claim->crashes || d->claim->takeovers || (d->claim->tried_ms && !d->claim->next_cap);
}

/* Was the row locked, or not in the expected state? Those behind it would be claimed for nothing each time. */
static bool is_claimed_again(const struct delivery *d)
{
    return d->n_waits > 0;
}

/* Cap of the next request, as far as it is known. */
static int cap_of(const struct delivery *d)
{
    return d->claim->next_cap ? d->claim->next_cap : d->claim->batch_cap;
}

void run_claims_begin(struct queue *q, const struct delivery *d)
{
    struct order_run *r = &q->order.run;

    if (!key_place_is_first(&d->place) || d->place.line->places.len < 2 || d->given_up ||
        has_failed_alone(d) || is_claimed_again(d) || !batches_may_share(q, d))
        return;
    r->left = batches_messages(q) - 1;
    if (cap_of(d) && (size_t)cap_of(d) - 1 < r->left)
        r->left = (size_t)cap_of(d) - 1;
    r->n_bytes = ENVELOPE_ENDS + batches_member_bytes(q, d, NULL);
    r->cap = cap_of(d);
    r->failed_with = d->claim->failed_with;
    r->last = d->ref;
}

static bool may_follow(const struct queue *q, const struct delivery *d)
{
    const struct order_run *r = &q->order.run;

    return d->wait == WAIT_ORDER && !d->given_up && !has_failed_alone(d) && cap_of(d) == r->cap &&
           (!r->cap || d->claim->failed_with == r->failed_with);
}

struct delivery *run_claims_next(struct queue *q)
{
    struct order_run *r = &q->order.run;
    struct delivery *d = NULL;
    size_t n_bytes = SIZE_MAX;

    if (!r->last)
        return NULL;
    const struct delivery *last = queue_find(q, r->last);

    if (last && r->left && last->op == OP_CLAIM && last->phase == PHASE_SENT)
        d = runs_next_in_line(last);
    if (d && may_follow(q, d))
        n_bytes = r->n_bytes + batches_member_bytes(q, d, last);
    if (n_bytes > batches_bytes(q)) {
        r->last = 0;
        return NULL;
    }
    r->left--;
    r->n_bytes = n_bytes;
    r->last = d->ref;
    return d;
}
