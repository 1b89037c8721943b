/* The answer for one member of a request: see member_answer.h. */
#include "core/member_answer.h"

#include "core/life.h"
#include "core/notes.h"

#include "onceward/base/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void keep_result(struct queue *q, struct delivery *d, struct slice body)
{
    mem_clear(&d->outcome.result); /* of an earlier attempt, whose completion was not written */
    d->outcome.result_len = 0;
    if (!q->rules.store_response_bytes || !body.len || body.len > q->rules.store_response_bytes)
        return;
    d->outcome.result = mem_copy(body.data, body.len);
    d->outcome.result_len = body.len;
}

/* The answer is that of one member. */
void member_answered(struct queue *q, int64_t now_ms, struct delivery *d, enum verdict v,
                     const struct answer *a)
{
    assert(!d->in_request.next && v < N_VERDICTS);
    if (v == VERDICT_COMPLETE)
        keep_result(q, d, a->body);
    error_text_set(d, a->brief, a->error && strcmp(a->error, a->brief) != 0 ? a->error : NULL);
    d->outcome.http_status = a->status;
    /* A proxy says 504 when its patience ends: the application works on. */
    d->outcome.request = a->kind == ANSWER_TIMEOUT || (a->kind == ANSWER_STATUS && a->status == 504)
                             ? REQUEST_UNANSWERED
                             : REQUEST_ANSWERED;
    if (d->op == OP_FORWARD ||
        d->phase == PHASE_WANTED) { /* else the row is being asked whether the window is over */
        d->answer.kept_verdict = -1;
        life_go(q, now_ms, d, FACT_ANSWER, life_answered(q, now_ms, d, v, a->retry_after_ms));
        return;
    }
    d->answer.kept_verdict = (int)v;
    d->answer.kept_retry_after_ms = a->retry_after_ms;
}
