/* Database questions other than batches: registration of consumer names, figures of the stats lines, whether
 * statements work again, housekeeping, and the owner of a row's lock. One thread, the connection's. */
#include "asks.h"

#include "call.h"
#include "pipeline.h"
#include "question.h"
#include "queues.h"

#include "onceward/base/buf.h"
#include "onceward/base/clock.h"
#include "onceward/base/fault.h"
#include "onceward/base/mem.h"
#include "onceward/inbox/inbox.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { OID_INT8 = 20, OID_TEXT = 25, OID_BOOL_ARRAY = 1000, OID_TEXT_ARRAY = 1009 };

static int answer_read(struct inbox *i, enum question q, int n_rows, int n_columns, PGresult **ret_rows,
                       struct fault *f)
{
    return question_read(&i->answers[q], n_rows, n_columns, ret_rows, f);
}

/* --- registration --- */

void inbox_ask_registration(struct inbox *i, bool again)
{
    static const Oid types[REGISTER_PARAMS] = {OID_TEXT_ARRAY, OID_TEXT_ARRAY, OID_TEXT_ARRAY,
                                               OID_TEXT_ARRAY, OID_TEXT_ARRAY, OID_BOOL_ARRAY};
    struct buf literals[REGISTER_PARAMS] = {0};
    const char *params[REGISTER_PARAMS];

    if (!pipeline_may_ask(i, QUESTION_REGISTER) ||
        (queues_are_registered(&i->queues) && !(again && queues_have_range(&i->queues))))
        return;
    queues_register_params(&i->queues, literals);
    for (int k = 0; k < REGISTER_PARAMS; k++)
        params[k] = buf_text(&literals[k]);
    pipeline_ask(i, QUESTION_REGISTER, REGISTER_PARAMS, types, params);
    for (int k = 0; k < REGISTER_PARAMS; k++)
        buf_deinit(&literals[k]);
}

void asks_read_registration(struct inbox *i)
{
    PGresult *rows;
    struct fault f;

    int got = answer_read(i, QUESTION_REGISTER, -1, REGISTER_COLUMNS, &rows, &f);

    if (got < 0)
        queues_not_registered(&i->queues, &f);
    if (got <= 0)
        return;
    queues_registered(&i->queues, rows, &f);
    call_scalars_order_changes(&i->scalars, i->queues.order_changes);
    PQclear(rows);
}

/* --- figures --- */

void inbox_ask_figures(struct inbox *i)
{
    static const Oid types[] = {OID_TEXT_ARRAY};
    struct buf consumers = {0};
    const char *param;

    if (!pipeline_may_ask(i, QUESTION_FIGURES))
        return;
    queues_consumers(&i->queues, &consumers);
    param = buf_text(&consumers);
    pipeline_ask(i, QUESTION_FIGURES, 1, types, &param);
    buf_deinit(&consumers);
}

/* The answer has one row per queue, in the order of the queues. */
bool inbox_figures(struct inbox *i, struct inbox_figures *ret)
{
    PGresult *rows;
    struct fault f;

    if (answer_read(i, QUESTION_FIGURES, (int)i->queues.n, 3, &rows, &f) <= 0)
        return false;
    free(i->dead_letters);
    i->dead_letters = mem_zalloc(i->queues.n, sizeof(*i->dead_letters));
    *ret = (struct inbox_figures){.dead_letters = i->dead_letters};
    for (int k = 0; k < PQntuples(rows); k++) {
        call_int8(rows, k, 0, &i->dead_letters[k]);
        call_int8(rows, k, 1, &ret->dead_letter_bytes);
        call_int8(rows, k, 2, &ret->oldest_snapshot_ms);
    }
    PQclear(rows);
    return true;
}

/* --- can rows be written again? --- */

void inbox_ask_try(struct inbox *i)
{
    static const Oid types[] = {OID_TEXT};

    const char *consumer = i->queues.n ? i->queues.list[0].consumer : "outbox";

    if (pipeline_may_ask(i, QUESTION_TRY))
        pipeline_ask(i, QUESTION_TRY, 1, types, &consumer);
}

int inbox_tried(struct inbox *i, struct fault *f)
{
    PGresult *rows;
    int got = answer_read(i, QUESTION_TRY, 1, 1, &rows, f);

    if (got > 0)
        PQclear(rows);
    return got;
}

/* --- housekeeping --- */

void inbox_ask_housekeep(struct inbox *i, const struct inbox_housekeep *h)
{
    enum { N_NUMBERS = 6, N_PARAMS = 2 + N_NUMBERS };
    const int64_t numbers[N_NUMBERS] = {h->retention_ms, h->late_ms,      h->from_page,
                                        h->budget_us,    clock_wall_ms(), h->compact_ms};
    static const Oid types[N_PARAMS] = {OID_TEXT, OID_TEXT, OID_INT8, OID_INT8,
                                        OID_INT8, OID_INT8, OID_INT8, OID_INT8};
    const char *params[N_PARAMS] = {i->queues.list[h->queue].consumer, i->scalars.value[SCALAR_INSTANCE]};
    char texts[N_NUMBERS][24];

    if (!pipeline_may_ask(i, QUESTION_HOUSEKEEP))
        return;
    for (int k = 0; k < N_NUMBERS; k++) {
        snprintf(texts[k], sizeof(texts[k]), "%" PRId64, numbers[k]);
        params[2 + k] = texts[k];
    }
    if (!h->compact_ms)
        params[N_PARAMS - 1] = NULL;
    pipeline_ask(i, QUESTION_HOUSEKEEP, N_PARAMS, types, params);
}

int inbox_housekept(struct inbox *i, struct inbox_housekept *ret, struct fault *f)
{
    enum { N = 11, HISTORY_DUE = 9 };
    int64_t v[N] = {0};
    PGresult *rows;
    int got = answer_read(i, QUESTION_HOUSEKEEP, 1, N, &rows, f);

    if (got <= 0)
        return got;
    for (int k = 0; k < N; k++)
        if (k != HISTORY_DUE)
            call_int8(rows, 0, k, &v[k]);
    bool history_is_due = call_bool(rows, 0, HISTORY_DUE);
    PQclear(rows);
    *ret = (struct inbox_housekept){.n_purged = v[0],
                                    .n_swept = v[1],
                                    .n_orphans = v[2],
                                    .next_page = v[3],
                                    .took_us = v[4],
                                    .away_ms = v[5] > 0 ? v[5] : 0,
                                    .is_forgotten = v[5] < 0,
                                    .n_unfinished = v[6],
                                    .ahead_ms = v[7],
                                    .n_moved = v[8],
                                    .history_is_due = history_is_due,
                                    .n_pages = v[10]};
    return 1;
}

void inbox_ask_expire_history(struct inbox *i, const struct inbox_expire_history *e)
{
    enum { N_NUMBERS = 4, N_PARAMS = 2 + N_NUMBERS };
    const int64_t numbers[N_NUMBERS] = {e->retention_ms, e->from_page, e->budget_us, clock_wall_ms()};
    static const Oid types[N_PARAMS] = {OID_TEXT, OID_TEXT, OID_INT8, OID_INT8, OID_INT8, OID_INT8};
    const char *params[N_PARAMS] = {i->queues.list[e->queue].consumer, i->scalars.value[SCALAR_INSTANCE]};
    char texts[N_NUMBERS][24];

    if (!pipeline_may_ask(i, QUESTION_EXPIRE_HISTORY))
        return;
    for (int k = 0; k < N_NUMBERS; k++) {
        snprintf(texts[k], sizeof(texts[k]), "%" PRId64, numbers[k]);
        params[2 + k] = texts[k];
    }
    pipeline_ask(i, QUESTION_EXPIRE_HISTORY, N_PARAMS, types, params);
}

int inbox_history_expired(struct inbox *i, struct inbox_history_expired *ret, struct fault *f)
{
    PGresult *rows;
    int got = answer_read(i, QUESTION_EXPIRE_HISTORY, 1, 4, &rows, f);

    if (got <= 0)
        return got;
    call_int8(rows, 0, 0, &ret->n_expired);
    call_int8(rows, 0, 1, &ret->next_page);
    call_int8(rows, 0, 2, &ret->n_pages);
    call_int8(rows, 0, 3, &ret->took_us);
    PQclear(rows);
    return 1;
}

/* --- the partitions of stored messages --- */

enum {
    OID_INT8_ARRAY = 1016,
    DROP_MS = 60000, /* dropping a large partition takes long on a busy disk, or while it is read */
};

/* Both functions have the same parameters. */
static void ask_messages(struct inbox *i, enum question q, int64_t timeout_ms)
{
    static const Oid types[] = {OID_TEXT_ARRAY, OID_INT8_ARRAY, OID_INT8};
    struct buf consumers = {0}, retentions = {0};
    char clock[24];

    if (!pipeline_may_ask(i, q))
        return;
    queues_stores(&i->queues, &consumers, &retentions);
    snprintf(clock, sizeof(clock), "%" PRId64, clock_wall_ms());
    const char *params[] = {buf_text(&consumers), buf_text(&retentions), clock};
    pipeline_ask_within(i, q, 3, types, params, timeout_ms);
    buf_deinit(&consumers);
    buf_deinit(&retentions);
}

void inbox_ask_make_messages(struct inbox *i)
{
    ask_messages(i, QUESTION_MAKE_MESSAGES, 0);
}

static void text_read(const PGresult *rows, int column, char *ret, size_t size)
{
    snprintf(ret, size, "%s", PQgetisnull(rows, 0, column) ? "" : PQgetvalue(rows, 0, column));
}

int inbox_made_messages(struct inbox *i, struct inbox_made_messages *ret, struct fault *f)
{
    PGresult *rows;
    int got = answer_read(i, QUESTION_MAKE_MESSAGES, 1, 2, &rows, f);

    if (got <= 0)
        return got;
    ret->due = call_bool(rows, 0, 0);
    text_read(rows, 1, ret->hindered, sizeof(ret->hindered));
    PQclear(rows);
    return 1;
}

void inbox_ask_keep_messages(struct inbox *i)
{
    ask_messages(i, QUESTION_KEEP_MESSAGES, DROP_MS);
}

int inbox_kept_messages(struct inbox *i, struct inbox_kept_messages *ret, struct fault *f)
{
    PGresult *rows;
    int got = answer_read(i, QUESTION_KEEP_MESSAGES, 1, 3, &rows, f);

    if (got <= 0)
        return got;
    *ret = (struct inbox_kept_messages){.more = call_bool(rows, 0, 1)};
    text_read(rows, 0, ret->dropped, sizeof(ret->dropped));
    text_read(rows, 2, ret->stuck, sizeof(ret->stuck));
    PQclear(rows);
    return 1;
}

/* --- the owner of a row's lock --- */

void inbox_ask_lock_holder(struct inbox *i, size_t queue, struct slice message_id)
{
    static const Oid types[] = {OID_TEXT, OID_TEXT};
    const char *params[2] = {i->queues.list[queue].consumer};

    if (!pipeline_may_ask(i, QUESTION_LOCK_HOLDER))
        return;
    char *id = mem_copy(message_id.data, message_id.len);
    params[1] = id;
    pipeline_ask(i, QUESTION_LOCK_HOLDER, 2, types, params);
    free(id);
}

bool inbox_lock_holder(struct inbox *i, struct inbox_lock_holder *ret)
{
    PGresult *rows;
    struct fault f;

    if (answer_read(i, QUESTION_LOCK_HOLDER, 1, 5, &rows, &f) <= 0)
        return false;
    *ret = (struct inbox_lock_holder){0};
    call_int8(rows, 0, 0, &ret->pid);
    call_int8(rows, 0, 1, &ret->age_ms);
    snprintf(ret->application, sizeof(ret->application), "%s", PQgetvalue(rows, 0, 2));
    snprintf(ret->state, sizeof(ret->state), "%s", PQgetvalue(rows, 0, 3));
    snprintf(ret->gid, sizeof(ret->gid), "%s", PQgetvalue(rows, 0, 4));
    PQclear(rows);
    return true;
}
