/* The outbox's questions and their answers. One thread, the connection's. */
#include "onceward/inbox/outbox.h"

#include "call.h"
#include "pipeline.h"
#include "question.h"
#include "text.h"

#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/base/mem.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OID_BOOL = 16,
    OID_INT8 = 20,
    OID_INT4 = 23,
    OID_TEXT = 25,
    OID_TEXT_ARRAY = 1009,
    OID_INT8_ARRAY = 1016,
    NUMBER_SIZE = 24,
    ERROR_MAX = 1024,
    RESTORE_ROWS = 20000,     /* per call */
    RESTORE_MS = 600000,      /* the first call searches all rows for duplicate numbers */
    TURN_MIN_BYTES = 8 << 20, /* minimum size for a turn, */
    TURN_MIN_MS = 60000,      /* minimum time between turns */
    SWOLLEN_BYTES = 4 << 20,  /* of an answer, above which libpq's buffer has grown */
};

static const char *const words[N_OUTBOX_WORDS] = {
    [OUTBOX_WORD_OK] = "ok",       [OUTBOX_WORD_REFUSED] = "refused", [OUTBOX_WORD_BUSY] = "busy",
    [OUTBOX_WORD_HELD] = "held",   [OUTBOX_WORD_OTHER] = "other",     [OUTBOX_WORD_FREE] = "free",
    [OUTBOX_WORD_NONE] = "none",   [OUTBOX_WORD_WRITTEN] = "written", [OUTBOX_WORD_STALE] = "stale",
    [OUTBOX_WORD_LOST] = "lost",   [OUTBOX_WORD_TURNED] = "turned",   [OUTBOX_WORD_EMPTIED] = "emptied",
    [OUTBOX_WORD_WAITS] = "waits", [OUTBOX_WORD_RESTS] = "rests",     [OUTBOX_WORD_DONE] = "done",
    [OUTBOX_WORD_MORE] = "more",   [OUTBOX_WORD_LOADING] = "loading", [OUTBOX_WORD_DEAD_LETTERED] = "buried",
    [OUTBOX_WORD_GONE] = "gone",
};

static enum outbox_word word_of(const PGresult *rows, int at, int column)
{
    int word = 0;

    while (word < N_OUTBOX_WORDS && strcmp(words[word], PQgetvalue(rows, at, column)) != 0)
        word++;
    return (enum outbox_word)word;
}

static const char *number(char room[NUMBER_SIZE], int64_t value)
{
    snprintf(room, NUMBER_SIZE, "%" PRId64, value);
    return room;
}

static void text_copy(char *to, size_t size, const PGresult *rows, int column)
{
    snprintf(to, size, "%s", PQgetvalue(rows, 0, column));
}

/* Reads an answer that is one word. */
static int word_read(struct inbox *i, enum question q, enum outbox_word *ret, struct fault *f)
{
    PGresult *rows;
    int got = question_read(&i->answers[q], 1, 1, &rows, f);

    if (got <= 0)
        return got;
    *ret = word_of(rows, 0, 0);
    PQclear(rows);
    return 1;
}

/* --- registration --- */

void inbox_ask_outbox_register(struct inbox *i, const char *broker, const char *vhost)
{
    static const Oid types[] = {OID_TEXT, OID_TEXT};
    const char *params[] = {broker, vhost};

    if (pipeline_may_ask(i, QUESTION_OUTBOX_REGISTER))
        pipeline_ask(i, QUESTION_OUTBOX_REGISTER, 2, types, params);
}

int inbox_outbox_registered(struct inbox *i, struct inbox_outbox_owner *ret, struct fault *f)
{
    PGresult *rows;
    int got = question_read(&i->answers[QUESTION_OUTBOX_REGISTER], 1, 3, &rows, f);

    if (got <= 0)
        return got;
    ret->word = word_of(rows, 0, 0);
    text_copy(ret->broker, sizeof(ret->broker), rows, 1);
    text_copy(ret->vhost, sizeof(ret->vhost), rows, 2);
    PQclear(rows);
    return 1;
}

/* --- the lease --- */

void inbox_ask_outbox_lease(struct inbox *i, int64_t lease, int64_t for_ms, bool want)
{
    static const Oid types[] = {OID_TEXT, OID_INT8, OID_INT8, OID_INT8, OID_BOOL};
    char rooms[2][NUMBER_SIZE];
    const char *params[] = {i->scalars.value[SCALAR_INSTANCE], i->scalars.value[SCALAR_NUMBER],
                            lease ? number(rooms[0], lease) : NULL, number(rooms[1], for_ms),
                            want ? "t" : "f"};

    if (pipeline_may_ask(i, QUESTION_OUTBOX_LEASE))
        pipeline_ask(i, QUESTION_OUTBOX_LEASE, 5, types, params);
}

int inbox_outbox_leased(struct inbox *i, struct inbox_outbox_lease *ret, struct fault *f)
{
    PGresult *rows;
    int got = question_read(&i->answers[QUESTION_OUTBOX_LEASE], 1, 6, &rows, f);

    if (got <= 0)
        return got;
    *ret = (struct inbox_outbox_lease){.word = word_of(rows, 0, 0), .restored = call_bool(rows, 0, 4)};
    call_int8(rows, 0, 1, &ret->lease);
    text_copy(ret->holder, sizeof(ret->holder), rows, 2);
    call_int8(rows, 0, 3, &ret->left_ms);
    ret->is_paused = !PQgetisnull(rows, 0, 5);
    text_copy(ret->paused, sizeof(ret->paused), rows, 5);
    PQclear(rows);
    return 1;
}

/* --- the rows --- */

/* Snapshot at which a batch ends: see sidecar_outbox_read.sql. */
static struct slice snapshot_of(const char *batch)
{
    enum { BEFORE = 3 };

    for (int n = 0; n < BEFORE && batch; n++) {
        batch = strchr(batch, '/');
        batch += batch ? 1 : 0;
    }
    return batch ? (struct slice){batch, strcspn(batch, "/")} : (struct slice){0};
}

/* Equal snapshots show the same rows. Only after a crash of the server behind a pooler could two different ones look
 * equal, until the next transaction ends, at the latest that of the lease. */
void inbox_ask_outbox_look(struct inbox *i, const char *batch)
{
    struct slice snapshot = snapshot_of(batch);

    if (!pipeline_may_ask(i, QUESTION_OUTBOX_LOOK))
        return;
    buf_reset(&i->outbox_snapshot);
    buf_add_slice(&i->outbox_snapshot, snapshot);
    pipeline_ask(i, QUESTION_OUTBOX_LOOK, 0, NULL, NULL);
}

int inbox_outbox_looked(struct inbox *i, bool *ret, struct fault *f)
{
    PGresult *rows;
    int got = question_read(&i->answers[QUESTION_OUTBOX_LOOK], 1, 1, &rows, f);

    if (got <= 0)
        return got;
    *ret = !slice_equal(buf_slice(&i->outbox_snapshot), slice_of(PQgetvalue(rows, 0, 0)));
    PQclear(rows);
    return 1;
}

void inbox_ask_outbox_read(struct inbox *i, const char *batch, int64_t after, int n, size_t n_bytes,
                           size_t max_message)
{
    static const Oid types[] = {OID_TEXT, OID_INT8, OID_INT4, OID_INT8, OID_INT8};
    char rooms[4][NUMBER_SIZE];
    const char *params[] = {batch, after >= 0 ? number(rooms[0], after) : NULL, number(rooms[1], n),
                            number(rooms[2], (int64_t)n_bytes), number(rooms[3], (int64_t)max_message)};

    if (pipeline_may_ask(i, QUESTION_OUTBOX_READ))
        pipeline_ask(i, QUESTION_OUTBOX_READ, 5, types, params);
}

/* The connection's result has the rows. */
static PGresult *result_of(const struct inbox_outbox_rows *r)
{
    return (PGresult *)(uintptr_t)r;
}

enum {
    BATCH,
    OVER,
    SEQ,
    EXCHANGE,
    ROUTING_KEY,
    MESSAGE_ID,
    TYPE,
    HEADERS,
    PROPERTIES,
    BODY,
    BODY_BYTES,
    AGE,
    N
};

static int rows_read(struct inbox *i, enum question q, int n_columns, struct inbox_outbox_rows **ret,
                     struct fault *f)
{
    PGresult *rows;
    int got = question_read(&i->answers[q], -1, n_columns, &rows, f);

    if (got <= 0)
        return got;
    if (PQresultMemorySize(rows) > SWOLLEN_BYTES)
        i->swollen = true;
    *ret = (struct inbox_outbox_rows *)rows;
    return 1;
}

int inbox_outbox_read(struct inbox *i, struct inbox_outbox_rows **ret, struct fault *f)
{
    return rows_read(i, QUESTION_OUTBOX_READ, N, ret, f);
}

int inbox_outbox_parked_read(struct inbox *i, struct inbox_outbox_rows **ret, struct fault *f)
{
    return rows_read(i, QUESTION_OUTBOX_PARKED_READ, N, ret, f);
}

int inbox_outbox_parked(struct inbox *i, struct inbox_outbox_rows **ret, size_t *ret_n, struct fault *f)
{
    int got = rows_read(i, QUESTION_OUTBOX_PARKED, 1, ret, f);

    if (got > 0)
        *ret_n = (size_t)PQntuples(result_of(*ret));
    return got;
}

static struct slice slice_at(const PGresult *rows, int at, int column)
{
    if (PQgetisnull(rows, at, column))
        return (struct slice){0};
    return (struct slice){PQgetvalue(rows, at, column), (size_t)PQgetlength(rows, at, column)};
}

struct slice inbox_outbox_parked_exchange(const struct inbox_outbox_rows *r, size_t at)
{
    return slice_at(result_of(r), (int)at, 0);
}

bool inbox_outbox_batch(const struct inbox_outbox_rows *r, struct slice *ret_batch, bool *ret_over)
{
    const PGresult *rows = result_of(r);

    int head = PQntuples(rows) - 1;

    if (head < 0 || PQgetisnull(rows, head, BATCH))
        return false;
    *ret_batch = slice_at(rows, head, BATCH);
    *ret_over = call_bool(rows, head, OVER);
    return true;
}

size_t inbox_outbox_n(const struct inbox_outbox_rows *r)
{
    int n = PQntuples(result_of(r));

    return n ? (size_t)n - 1 : 0;
}

void inbox_outbox_row(const struct inbox_outbox_rows *r, size_t at, struct inbox_outbox_row *ret)
{
    const PGresult *rows = result_of(r);
    int i = (int)at;

    *ret = (struct inbox_outbox_row){
        .exchange = slice_at(rows, i, EXCHANGE),
        .routing_key = slice_at(rows, i, ROUTING_KEY),
        .message_id = slice_at(rows, i, MESSAGE_ID),
        .type = slice_at(rows, i, TYPE),
        .headers = slice_at(rows, i, HEADERS),
        .properties = slice_at(rows, i, PROPERTIES),
        .body = slice_at(rows, i, BODY),
    };
    call_int8(rows, i, SEQ, &ret->seq);
    call_int8(rows, i, BODY_BYTES, &ret->body_len);
    call_int8(rows, i, AGE, &ret->age_ms);
}

void inbox_outbox_close(struct inbox_outbox_rows *r)
{
    PQclear(result_of(r));
}

/* --- parked rows --- */

void inbox_ask_outbox_parked(struct inbox *i)
{
    if (pipeline_may_ask(i, QUESTION_OUTBOX_PARKED))
        pipeline_ask(i, QUESTION_OUTBOX_PARKED, 0, NULL, NULL);
}

void inbox_ask_outbox_parked_read(struct inbox *i, struct slice exchange, int64_t after, int n,
                                  size_t n_bytes, size_t max_message)
{
    static const Oid types[] = {OID_TEXT, OID_INT8, OID_INT4, OID_INT8, OID_INT8};
    char rooms[4][NUMBER_SIZE];
    struct buf name = {0};

    if (!pipeline_may_ask(i, QUESTION_OUTBOX_PARKED_READ))
        return;
    buf_add_slice(&name, exchange);
    const char *params[] = {buf_text(&name), number(rooms[0], after), number(rooms[1], n),
                            number(rooms[2], (int64_t)n_bytes), number(rooms[3], (int64_t)max_message)};
    pipeline_ask(i, QUESTION_OUTBOX_PARKED_READ, 5, types, params);
    buf_deinit(&name);
}

void inbox_ask_outbox_unpark(struct inbox *i, int64_t lease, const int64_t *numbers, size_t n)
{
    static const Oid types[] = {OID_INT8, OID_INT8_ARRAY};
    char room[NUMBER_SIZE];
    struct buf list = {0};

    if (!pipeline_may_ask(i, QUESTION_OUTBOX_UNPARK))
        return;
    for (size_t k = 0; k < n; k++)
        buf_printf(&list, "%c%" PRId64, k ? ',' : '{', numbers[k]);
    buf_add_text(&list, n ? "}" : "{}");
    const char *params[] = {number(room, lease), buf_text(&list)};
    pipeline_ask(i, QUESTION_OUTBOX_UNPARK, 2, types, params);
    buf_deinit(&list);
}

int inbox_outbox_unparked(struct inbox *i, enum outbox_word *ret, struct fault *f)
{
    return word_read(i, QUESTION_OUTBOX_UNPARK, ret, f);
}

/* --- the position --- */

void inbox_ask_outbox_write(struct inbox *i, int64_t lease, const char *batch, int64_t seq)
{
    static const Oid types[] = {OID_INT8, OID_TEXT, OID_INT8};
    char rooms[2][NUMBER_SIZE];
    const char *params[] = {number(rooms[0], lease), batch, seq >= 0 ? number(rooms[1], seq) : NULL};

    if (pipeline_may_ask(i, QUESTION_OUTBOX_WRITE))
        pipeline_ask(i, QUESTION_OUTBOX_WRITE, 3, types, params);
}

int inbox_outbox_written(struct inbox *i, enum outbox_word *ret, struct fault *f)
{
    return word_read(i, QUESTION_OUTBOX_WRITE, ret, f);
}

void inbox_ask_outbox_turn(struct inbox *i, int64_t lease)
{
    static const Oid types[] = {OID_INT8, OID_INT8, OID_INT8};
    char rooms[3][NUMBER_SIZE];
    const char *params[] = {number(rooms[0], lease), number(rooms[1], TURN_MIN_BYTES),
                            number(rooms[2], TURN_MIN_MS)};

    if (pipeline_may_ask(i, QUESTION_OUTBOX_TURN))
        pipeline_ask(i, QUESTION_OUTBOX_TURN, 3, types, params);
}

int inbox_outbox_turned(struct inbox *i, enum outbox_word *ret, struct fault *f)
{
    return word_read(i, QUESTION_OUTBOX_TURN, ret, f);
}

void inbox_ask_outbox_restore(struct inbox *i, int64_t lease)
{
    static const Oid types[] = {OID_INT8, OID_INT4};
    char rooms[2][NUMBER_SIZE];
    const char *params[] = {number(rooms[0], lease), number(rooms[1], RESTORE_ROWS)};

    if (pipeline_may_ask(i, QUESTION_OUTBOX_RESTORE))
        pipeline_ask_within(i, QUESTION_OUTBOX_RESTORE, 2, types, params, RESTORE_MS);
}

int inbox_outbox_restored(struct inbox *i, enum outbox_word *ret, struct fault *f)
{
    return word_read(i, QUESTION_OUTBOX_RESTORE, ret, f);
}

/* --- letters --- */

/* Adds a column of the letters, as an array literal. */
static void column_add(struct buf *out, const struct inbox_outbox_letter *letters, size_t n, int column)
{
    const char *texts[INBOX_OUTBOX_LETTERS] = {0};
    struct buf rooms[INBOX_OUTBOX_LETTERS] = {0};

    for (size_t k = 0; k < n; k++) {
        const struct inbox_outbox_letter *l = &letters[k];

        if (column == 0)
            buf_printf(&rooms[k], "%" PRId64, l->seq);
        else
            text_add(&rooms[k],
                     column == 1   ? l->message_id
                     : column == 2 ? slice_of(l->reason)
                                   : slice_of(l->error),
                     ERROR_MAX);
        texts[k] = buf_text(&rooms[k]);
    }
    text_array_add(out, texts, n);
    for (size_t k = 0; k < n; k++)
        buf_deinit(&rooms[k]);
}

void inbox_ask_outbox_dead_letters(struct inbox *i, int64_t lease, const char *vhost,
                                   const struct inbox_outbox_letter *letters, size_t n, size_t bytes)
{
    static const Oid types[] = {OID_INT8,       OID_TEXT,       OID_INT8_ARRAY,
                                OID_TEXT_ARRAY, OID_TEXT_ARRAY, OID_TEXT_ARRAY};
    struct buf columns[4] = {0};
    char room[NUMBER_SIZE];
    const char *params[6] = {number(room, lease), vhost};

    assert(n <= INBOX_OUTBOX_LETTERS);
    if (!pipeline_may_ask(i, QUESTION_OUTBOX_DEAD_LETTER))
        return;
    for (int k = 0; k < 4; k++) {
        column_add(&columns[k], letters, n, k);
        params[2 + k] = buf_text(&columns[k]);
    }
    pipeline_ask_big(i, QUESTION_OUTBOX_DEAD_LETTER, 6, types, params, bytes);
    for (int k = 0; k < 4; k++)
        buf_deinit(&columns[k]);
}

int inbox_outbox_dead_lettered(struct inbox *i, struct inbox_outbox_dead_letter *ret, size_t *ret_n,
                               struct fault *f)
{
    PGresult *rows;
    int got = question_read(&i->answers[QUESTION_OUTBOX_DEAD_LETTER], -1, 3, &rows, f);

    if (got <= 0)
        return got;
    *ret_n = 0;
    for (int at = 0; at < PQntuples(rows); at++) {
        int ord = 0;

        call_int4(rows, at, 0, &ord);
        if (ord < 1 || ord > INBOX_OUTBOX_LETTERS)
            continue;
        ret[ord - 1] = (struct inbox_outbox_dead_letter){.word = word_of(rows, at, 1)};
        call_int8(rows, at, 2, &ret[ord - 1].letter);
        *ret_n = (size_t)ord > *ret_n ? (size_t)ord : *ret_n;
    }
    PQclear(rows);
    return 1;
}

/* --- figures --- */

void inbox_ask_outbox_gauge(struct inbox *i)
{
    if (pipeline_may_ask(i, QUESTION_OUTBOX_GAUGE))
        pipeline_ask(i, QUESTION_OUTBOX_GAUGE, 0, NULL, NULL);
}

int inbox_outbox_gauge(struct inbox *i, struct inbox_outbox_gauge *ret, struct fault *f)
{
    PGresult *rows;
    int got = question_read(&i->answers[QUESTION_OUTBOX_GAUGE], 1, 7, &rows, f);

    if (got <= 0)
        return got;
    *ret = (struct inbox_outbox_gauge){.exact = call_bool(rows, 0, 1), .turn_waits_ms = -1};
    call_int8(rows, 0, 0, &ret->waiting);
    call_int8(rows, 0, 2, &ret->lag_ms);
    call_int8(rows, 0, 3, &ret->letters);
    text_copy(ret->holder, sizeof(ret->holder), rows, 4);
    call_int8(rows, 0, 5, &ret->bytes);
    call_int8(rows, 0, 6, &ret->turn_waits_ms);
    PQclear(rows);
    return 1;
}
