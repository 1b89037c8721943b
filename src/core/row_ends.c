/* What an answer of the database comes to, whatever was asked: nothing was learnt, or the row is completed.
 * See rows.h. */
#include "core/rows.h"

#include "onceward/core/mutant.h"

#include <stdio.h>

enum {
    AGAIN_LAST_MS =
        300000, /* between two tries of an item that the database refuses while it works for others */
};

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

void row_refused(struct queue *q, int64_t now_ms, const struct delivery *d, const struct row *r)
{
    struct note *n = notes_tell_limited(q, now_ms, EVENT_DATABASE_ERROR, d);

    if (n)
        n->reason = operation_info(d->op)->name;
    note_code(n, r->sqlstate);
    note_text(n, "%.*s", (int)(r->detail.len < 400 ? r->detail.len : 400),
              r->detail.len ? r->detail.data : "");
}

void row_repeat(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
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
        /* Those that were refused in one statement do not come due together: in a few rounds the one that it
         * was refused for is alone. */
        wait -= (int64_t)(held_random(q) % (uint64_t)(wait / 2 + 1));
    }
    if (d->op == OP_BURY)
        d->outcome.unsure = true;
    if (wait)
        held_wait(q, now_ms, d, d->op, WAIT_AGAIN, now_ms + wait);
    else
        held_want(q, now_ms, d, d->op);
}

void row_again(struct queue *q, int64_t now_ms, struct delivery *d)
{
    held_leave_request(q, now_ms, d);
    held_accept(q, now_ms, d, 0);
    d->claim.has_token = d->claim.row_is_ours = false;
    held_wait(q, now_ms, d, OP_CLAIM, WAIT_AGAIN, now_ms + held_lock_wait_ms(d));
}

void row_locked(struct queue *q, int64_t now_ms, struct delivery *d)
{
    if (!d->locked_since_ms)
        d->locked_since_ms = now_ms;
    held_wait(q, now_ms, d, d->op, WAIT_LOCKED, now_ms + (MUTANT(LOCKED_AT_ONCE) ? 0 : held_lock_wait_ms(d)));
}

/* --- the row is completed --- */

void row_answered_early(struct queue *q, int64_t now_ms, const struct delivery *d, bool completed)
{
    enum { EARLY_ANSWER_MS = 60000 };

    if (q->notes.early_answer_ms && now_ms - q->notes.early_answer_ms < EARLY_ANSWER_MS)
        return;
    q->notes.early_answer_ms = now_ms ? now_ms : 1;
    notes_tell(q, EVENT_ANSWERED_BEFORE_COMMIT, d)->flag = completed;
}

void row_completed(struct queue *q, int64_t now_ms, struct delivery *d)
{
    bool failed = d->op == OP_FAIL || d->op == OP_RELEASE || d->op == OP_BURY || d->op == OP_REVOKE;

    if (d->op == OP_CLAIM || d->op == OP_LOOK || d->op == OP_RENEW) {
        counter_add(&q->counts.duplicates, 1);
        notes_tell_limited(q, now_ms, EVENT_DUPLICATE, d);
        decide_ack(q, now_ms, d);
        return;
    }
    if (!d->claim.row_is_ours &&
        !MUTANT(BODY_NOT_COMPARED)) { /* its claim was never heard of: the row may be that of another body */
        row_again(q, now_ms, d);
        return;
    }
    if (failed && d->outcome.http_status / 100 == 2)
        row_answered_early(q, now_ms, d, true);
    else if (failed && !d->outcome.only_expired && (d->outcome.http_status || d->outcome.died)) {
        struct note *n = notes_tell_limited(q, now_ms, EVENT_ANSWER_CONTRADICTS_ROW, d);

        note_text(n, "%s", d->outcome.error ? d->outcome.error : "");
    }
    counter_add(&q->counts.completed, 1);
    notes_tell(q, EVENT_COMPLETED, d)->ms = now_ms - d->copy.received_ms;
    decide_success(q, now_ms, d);
    decide_ack(q, now_ms, d);
}
