/* What a worker asks the database beside its batches: the figures of the stats line, housekeeping, who holds
 * a row's lock, and whether it works again. One thread, the worker's. A question that is out when the
 * connection is lost is never answered: it goes with the inbox. */
#include "question.h"

#include "onceward/base/clock.h"
#include "onceward/base/mem.h"
#include "onceward/inbox/inbox.h"
#include "pipeline.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static const struct {
    const char *sql;
    int n_values, n_texts;
} questions[N_QUESTIONS] = {
    [QUESTION_FIGURES] = {"SELECT dead_letters, oldest_snapshot_ms, dead_letter_bytes "
                          "FROM onceward.sidecar_gauge($1)",
                          3},
    [QUESTION_HOUSEKEEP] =
        {"SELECT purged, swept, orphans, next_page, took_us, away_ms, unfinished, ahead_ms "
         "FROM onceward.sidecar_keep_house($1, $2, $3, $4, $5, $6, $7)",
         8},
    [QUESTION_HOLDER] =
        {"SELECT pid, age_ms, application, state, gid FROM onceward.sidecar_lock_holder($1, $2)", 2, 3},
    [QUESTION_TRY] = {"SELECT yes FROM onceward.sidecar_try($1)", 1},
};

const char *question_sql(enum question q)
{
    return questions[q].sql;
}

void question_take(struct inbox *i, enum question q, const PGresult *rows, const PGresult *error)
{
    struct question_answer *a = &i->answers[q];
    const char *code = error ? PQresultErrorField(error, PG_DIAG_SQLSTATE) : NULL;
    const char *text = error ? PQresultErrorField(error, PG_DIAG_MESSAGE_PRIMARY) : NULL;
    int n = 0;

    a->state = QUESTION_FAILED;
    if (rows && PQntuples(rows) == 1)
        while (n < questions[q].n_values && call_int8(rows, 0, n, &a->values[n]))
            n++;
    for (int k = 0; n == questions[q].n_values && k < questions[q].n_texts; k++)
        snprintf(a->texts[k], sizeof(a->texts[k]), "%.*s", PQgetlength(rows, 0, n + k),
                 PQgetvalue(rows, 0, n + k));
    if (n == questions[q].n_values) {
        a->state = QUESTION_ANSWERED;
        return;
    }
    fault_set(&a->fault, "%s", text ? text : "the database answered something else than was asked");
    snprintf(a->fault.code, sizeof(a->fault.code), "%s", code ? code : "");
}

static bool may_ask(const struct inbox *i, enum question q)
{
    return !i->lost && i->answers[q].state != QUESTION_ASKED;
}

/* One whose only parameter is the consumer. */
static void ask_of_consumer(struct inbox *i, enum question q)
{
    const char *const params[] = {i->scalars.value[SCALAR_CONSUMER]};
    static const Oid types[] = {25};

    if (may_ask(i, q))
        pipeline_ask(i, q, 1, types, params);
}

/* 1: answered, and forgotten; 0: not; -1: it failed: f. */
static int answer_take(struct inbox *i, enum question q, struct fault *f)
{
    struct question_answer *a = &i->answers[q];
    enum question_state state = a->state;

    if (state == QUESTION_IDLE || state == QUESTION_ASKED)
        return 0;
    a->state = QUESTION_IDLE;
    if (state == QUESTION_ANSWERED)
        return 1;
    *f = a->fault;
    return -1;
}

/* --- figures --- */

void inbox_ask_figures(struct inbox *i)
{
    ask_of_consumer(i, QUESTION_FIGURES);
}

bool inbox_figures(struct inbox *i, struct inbox_figures *ret)
{
    const int64_t *v = i->answers[QUESTION_FIGURES].values;
    struct fault f;

    if (answer_take(i, QUESTION_FIGURES, &f) <= 0)
        return false;
    *ret = (struct inbox_figures){.dead_letters = v, .oldest_snapshot_ms = v[1], .dead_letter_bytes = v[2]};
    return true;
}

/* --- does it work again? --- */

void inbox_ask_try(struct inbox *i)
{
    ask_of_consumer(i, QUESTION_TRY);
}

int inbox_tried(struct inbox *i, struct fault *f)
{
    return answer_take(i, QUESTION_TRY, f);
}

/* --- housekeeping --- */

void inbox_ask_housekeep(struct inbox *i, const struct inbox_housekeep *h)
{
    const int64_t numbers[] = {h->retention_ms, h->late_ms, h->from_page, h->budget_us, clock_wall_ms()};
    static const Oid types[] = {25, 25, 20, 20, 20, 20, 20};
    const char *params[7] = {i->scalars.value[SCALAR_CONSUMER], i->scalars.value[SCALAR_INSTANCE]};
    char texts[5][24];

    if (!may_ask(i, QUESTION_HOUSEKEEP))
        return;
    for (int k = 0; k < 5; k++) {
        snprintf(texts[k], sizeof(texts[k]), "%" PRId64, numbers[k]);
        params[2 + k] = texts[k];
    }
    pipeline_ask(i, QUESTION_HOUSEKEEP, 7, types, params);
}

int inbox_housekept(struct inbox *i, struct inbox_housekept *ret, struct fault *f)
{
    const int64_t *v = i->answers[QUESTION_HOUSEKEEP].values;
    int got = answer_take(i, QUESTION_HOUSEKEEP, f);

    if (got > 0)
        *ret = (struct inbox_housekept){.n_purged = v[0],
                                        .n_swept = v[1],
                                        .n_orphans = v[2],
                                        .next_page = v[3],
                                        .took_us = v[4],
                                        .away_ms = v[5],
                                        .n_unfinished = v[6],
                                        .ahead_ms = v[7]};
    return got;
}

/* --- the holder of a row's lock --- */

void inbox_ask_holder(struct inbox *i, size_t queue, struct slice message_id)
{
    static const Oid types[] = {25, 25};
    const char *params[2] = {i->scalars.value[SCALAR_CONSUMER]};

    (void)queue;
    if (!may_ask(i, QUESTION_HOLDER))
        return;
    char *id = mem_copy(message_id.data, message_id.len);
    params[1] = id;
    pipeline_ask(i, QUESTION_HOLDER, 2, types, params);
    free(id);
}

bool inbox_holder(struct inbox *i, struct inbox_holder *ret)
{
    const struct question_answer *a = &i->answers[QUESTION_HOLDER];
    struct fault f;

    if (answer_take(i, QUESTION_HOLDER, &f) <= 0)
        return false;
    ret->pid = a->values[0];
    ret->age_ms = a->values[1];
    snprintf(ret->application, sizeof(ret->application), "%.63s", a->texts[0]);
    snprintf(ret->state, sizeof(ret->state), "%.63s", a->texts[1]);
    snprintf(ret->gid, sizeof(ret->gid), "%s", a->texts[2]);
    return true;
}
