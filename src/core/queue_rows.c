/* Answers of the database, by the operation that was sent. An answer without a row counts too: `completed`
 * leads to an ack, all others to a new claim; nothing is rejected because of it. The rules are in life.c,
 * claim_rows.c and renewals.c. */
#include "core/rows.h"

#include "core/renewals.h"

#include <assert.h>

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
        d->locked_since_ms = 0;
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
