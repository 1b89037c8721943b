/* The answer for one member of a request: see member_answer.h. */
#include "core/member_answer.h"

#include "core/life.h"
#include "core/notes.h"

#include "onceward/base/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Keeps an answer until the row shows whether the window is over: the answer counts if the token is still valid. */
static void keep_answer(struct delivery *d, const struct member_answer *a)
{
    struct member_answer *kept = mem_zalloc(1, sizeof(*kept) + a->body.len);
    char *body = (char *)(kept + 1);

    *kept = *a;
    if (a->body.len)
        memcpy(body, a->body.data, a->body.len);
    kept->body.data = body;
    free(d->answer.kept);
    d->answer.kept = kept;
}

void member_answered(struct queue *q, int64_t now_ms, struct delivery *d, enum verdict v,
                     const struct answer *a)
{
    assert(!d->in_request.next && v < N_VERDICTS);
    bool is_stored = v == VERDICT_COMPLETE && a->body.len <= q->rules.store_response_bytes;
    const struct member_answer own = {
        .verdict = v, .retry_after_ms = a->retry_after_ms, .body = is_stored ? a->body : (struct slice){0}};

    error_text_set(d, a->brief, a->error && strcmp(a->error, a->brief) != 0 ? a->error : NULL);
    d->outcome.http_status = a->status;
    /* A proxy answers 504 when it stops waiting: the application works on. */
    d->outcome.request = a->kind == ANSWER_TIMEOUT || (a->kind == ANSWER_STATUS && a->status == 504)
                             ? REQUEST_UNANSWERED
                             : REQUEST_ANSWERED;
    if (d->op != OP_FORWARD && d->phase != PHASE_WANTED) {
        keep_answer(d, &own);
        return;
    }
    mem_clear(&d->answer.kept);
    life_go(q, now_ms, d, FACT_ANSWER, life_answered(q, now_ms, d, &own));
}
