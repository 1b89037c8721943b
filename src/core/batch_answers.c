/* The answer to a request with several messages, for each of them: see batch_answers.h. */
#include "core/batch_answers.h"

#include "core/batches.h"
#include "core/life.h"
#include "core/request.h"
#include "core/runs.h"

#include "onceward/base/buf.h"
#include "onceward/base/mem.h"
#include "onceward/core/batch_answer.h"
#include "onceward/core/token.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BAD_ANSWERS_MOST = 3, /* in a row: then the queue pauses */
    ERROR_TEXT_MAX = 256, /* of a failure that an answer names */
};

struct batch_work {
    struct delivery **deliveries;
    struct batch_member *members; /* the deliveries, then the members that have left the request */
    bool *unattempted;            /* stands behind a failed member of its key */
    size_t n, n_members;
    struct buf tokens;
};

static void add_tokens(const struct queue *q, const struct request *r, struct batch_work *w)
{
    for (size_t i = 0; i < w->n_members; i++) {
        size_t at = w->tokens.len;

        token_write(&w->tokens, q->rules.batch.consumer, w->members[i].id,
                    i < w->n ? w->deliveries[i]->claim->token : r->left[i - w->n].token);
        w->members[i].token.len = w->tokens.len - at;
    }
    assert(w->tokens.len > 0);
    for (size_t i = 0, at = 0; i < w->n_members; at += w->members[i++].token.len)
        w->members[i].token.data = w->tokens.data + at;
}

static void work_init(const struct queue *q, const struct request *r, const struct answer *a,
                      struct batch_work *w)
{
    *w = (struct batch_work){.n = r->members.len, .n_members = r->members.len + r->n_left};
    w->deliveries = mem_zalloc(w->n + 1, sizeof(*w->deliveries));
    w->members = mem_zalloc(w->n_members + 1, sizeof(*w->members));
    w->unattempted = mem_zalloc(w->n + 1, sizeof(*w->unattempted));
    size_t i = 0;

    list_each(&r->members, k)
    {
        w->deliveries[i] = request_member(k);
        w->members[i++].id = delivery_slice(request_member(k));
    }
    assert(i == w->n);
    for (; i < w->n_members; i++)
        w->members[i].id = (struct slice){r->left[i - w->n].id, r->left[i - w->n].id_len};
    if (a->body.len && memmem(a->body.data, a->body.len, "token", strlen("token")))
        add_tokens(q, r, w);
}

static void work_deinit(struct batch_work *w)
{
    free(w->deliveries);
    free(w->members);
    free(w->unattempted);
    buf_deinit(&w->tokens);
}

/* Members of a key stand together, in the order of its line. Those that were not attempted have not succeeded,
 * whether the answer names them or not. */
static void mark_unattempted(const struct queue *q, struct batch_work *w)
{
    bool has_failed = false;

    for (size_t i = 0; i < w->n && q->rules.transaction; i++) {
        w->unattempted[i] = has_failed && w->deliveries[i]->claim->is_behind;
        has_failed = w->members[i].failed || w->unattempted[i];
    }
}

/* Do some members succeed, and some not? One that is named after it has left the request does not count: its row has
 * ended the attempt. */
static bool some_succeed(const struct batch_work *w)
{
    size_t n_failed = 0;

    for (size_t i = 0; i < w->n; i++)
        n_failed += w->members[i].failed || w->unattempted[i];
    return n_failed && n_failed < w->n;
}

/* Writes "answered 503: "the application's text"", as for a message that was answered alone. */
static void give_named(struct queue *q, int64_t now_ms, struct delivery *d, const struct batch_member *m,
                       const struct answer *a)
{
    const struct outcome_rules rules = {q->rules.transaction, q->rules.permanent_status,
                                        q->rules.n_permanent_status};
    struct slice said = slice_cut(m->error, ERROR_TEXT_MAX);
    char brief[32], error[ERROR_TEXT_MAX + 64];
    struct answer own = *a;

    snprintf(brief, sizeof(brief), "answered %d", m->status);
    snprintf(error, sizeof(error), said.len && q->rules.batch.error_body ? "%s: \"%.*s\"" : "%s", brief,
             (int)said.len, said.data ? said.data : "");
    own.status = m->status;
    own.retry_after_ms = m->retry_after_ms;
    own.brief = brief;
    own.error = error;
    own.body = (struct slice){0};
    life_member_answered(q, now_ms, d, batch_member_verdict(m, &rules), &own);
}

static void note_bad(struct queue *q, int64_t now_ms, const struct batch_reading *reading)
{
    if (++q->share->n_bad_answers >= BAD_ANSWERS_MOST)
        life_everything_fails(q, now_ms, PAUSE_BAD_ANSWER, reading->why);
}

static void note_reading(struct queue *q, int64_t now_ms, struct request *r, const struct answer *a,
                         const struct batch_work *w, const struct batch_reading *reading)
{
    switch (reading->verdict) {
    case BATCH_ANSWERED:
    case BATCH_ACCEPTED:
        q->share->knows_batches = true;
        q->share->n_bad_answers = 0;
        q->application->n_succeeded++;
        r->some_succeeded = some_succeed(w);
        batches_learn_more(q, r);
        break;
    case BATCH_BAD:
        r->is_bad = true;
        note_bad(q, now_ms, reading);
        break;
    case BATCH_UNKNOWN:
        /* A single message may be at fault itself: it is released until an answer shows that the application knows
         * batches, as often as it would be tried otherwise. */
        if (r->n_sent > 1 || request_first(r)->claim->n_given_back >= q->rules.max_attempts)
            life_everything_fails(q, now_ms, PAUSE_NO_BATCHES, a->brief);
        else
            life_request_failed(q, now_ms, request_first(r), a->brief);
        break;
    case BATCH_TOO_LARGE:
        batches_learn_too_large(q, r);
        break;
    case BATCH_FAILED:
        if (r->n_sent > 1)
            life_request_failed(q, now_ms, request_first(r), a->brief);
        break;
    case BATCH_NOT_NOW:
    case BATCH_NOT_NOW_FOR_ONE:
    case BATCH_TIMEOUT:
    case BATCH_CRASHED:
    case N_BATCH_VERDICTS:
        break;
    }
}

static enum verdict verdict_of_success(const struct queue *q, enum batch_verdict v)
{
    if (!q->rules.transaction)
        return VERDICT_COMPLETE;
    return v == BATCH_ACCEPTED ? VERDICT_ACCEPTED : VERDICT_CHECK;
}

/* Could this member have caused a 429 or 503? Only if another request succeeds meanwhile. A redelivered message may
 * have been refused with others before: max_hold may end before its next attempt. */
static bool may_be_refused_for_one(const struct queue *q, struct delivery *d)
{
    struct claim *c = d->claim;

    if (!c->n_refused++)
        c->n_succeeded = d->request->application.n_succeeded;
    return (c->n_refused > REFUSALS_TOGETHER || delivery_is_redelivered(d)) &&
           q->application->n_succeeded > c->n_succeeded;
}

/* The whole request is answered, and one of its members may be at fault, or none: no status is permanent here. */
static enum verdict verdict_in_company(struct queue *q, struct delivery *d, enum batch_verdict v,
                                       const struct answer *a)
{
    switch (v) {
    case BATCH_NOT_NOW_FOR_ONE:
        batches_split_by_half(d);
        return VERDICT_NOT_NOW;
    case BATCH_NOT_NOW:
        if (a->kind == ANSWER_STATUS && may_be_refused_for_one(q, d))
            batches_split_by_half(d);
        return VERDICT_NOT_NOW;
    case BATCH_TOO_LARGE:
        batches_split_by_half(d);
        return VERDICT_SPLIT;
    case BATCH_FAILED:
        batches_split(q, d);
        return VERDICT_SPLIT;
    case BATCH_TIMEOUT:
        return VERDICT_SPLIT;
    case BATCH_CRASHED:
        return VERDICT_DIED;
    case BATCH_BAD:
    case BATCH_UNKNOWN:
    case BATCH_ANSWERED:
    case BATCH_ACCEPTED:
    case N_BATCH_VERDICTS:
        break;
    }
    return VERDICT_BAD_ANSWER;
}

/* Gives one of the members an answer for the whole request. A member that was sent alone is judged as without
 * batches. */
static void give_whole(struct queue *q, int64_t now_ms, struct delivery *d, enum batch_verdict v,
                       const struct answer *a)
{
    const struct outcome_rules rules = {q->rules.transaction, q->rules.permanent_status,
                                        q->rules.n_permanent_status};
    enum verdict own;

    if (batches_in_company(d))
        own = verdict_in_company(q, d, v, a);
    else if (v == BATCH_BAD || v == BATCH_UNKNOWN)
        own = VERDICT_BAD_ANSWER;
    else
        own = outcome_of(a->kind, a->status, &rules);
    life_member_answered(q, now_ms, d, own, a);
}

/* Releases a member behind a failed message of its key. If its row is completed, the release shows that. */
static void give_unattempted(struct queue *q, int64_t now_ms, struct delivery *d, const struct answer *a)
{
    struct answer own = *a;

    own.brief = own.error = "not attempted: the message before it in its key has failed";
    own.body = (struct slice){0};
    runs_forget_try(d);
    life_member_answered(q, now_ms, d, VERDICT_SPLIT, &own);
}

static void give(struct queue *q, int64_t now_ms, struct delivery *d, const struct batch_member *m,
                 bool is_unattempted, enum batch_verdict v, const struct answer *a)
{
    bool is_read = v == BATCH_ANSWERED || v == BATCH_ACCEPTED;

    if (is_read)
        d->claim->next_cap = 0;
    if (v != BATCH_NOT_NOW)
        d->claim->n_refused = 0;
    if (!is_read) {
        give_whole(q, now_ms, d, v, a);
    } else if (is_unattempted) {
        give_unattempted(q, now_ms, d, a);
    } else if (m->failed) {
        give_named(q, now_ms, d, m, a);
    } else {
        struct answer own = *a;

        own.body = m->result;
        life_member_answered(q, now_ms, d, verdict_of_success(q, v), &own);
    }
}

void batches_answered(struct queue *q, int64_t now_ms, struct request *r, const struct answer *a)
{
    const struct batch_rules rules = {
        .outcome = {q->rules.transaction, q->rules.permanent_status, q->rules.n_permanent_status},
        .knows_batches = q->share->knows_batches,
    };
    const struct batch_reply reply = {.kind = a->kind,
                                      .status = a->status,
                                      .n_sent = r->n_sent,
                                      .echo = a->batch,
                                      .is_cut = a->cut,
                                      .is_to_close = a->to_close,
                                      .body = a->body};
    struct batch_reading reading;
    struct batch_work w;

    work_init(q, r, a, &w);
    batch_answer_read(&reply, &rules, w.members, w.n_members, &reading);
    mark_unattempted(q, &w);
    if (reading.verdict == BATCH_TIMEOUT)
        batches_unanswered(r);
    note_reading(q, now_ms, r, a, &w, &reading);
    struct answer shown = *a;

    if (reading.why)
        shown.brief = shown.error = reading.why;
    for (size_t i = 0; i < w.n; i++) {
        held_leave_request(q, now_ms, w.deliveries[i]);
        give(q, now_ms, w.deliveries[i], &w.members[i], w.unattempted[i], reading.verdict, &shown);
    }
    assert(!r->members.len); /* each member has its answer */
    work_deinit(&w);
    buf_deinit(&r->body); /* deliveries that wait for long keep the request */
}
