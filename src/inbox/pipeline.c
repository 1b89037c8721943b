/* The pipeline of one connection: sends segments, reads their answers, and tells a failed statement from a lost
 * connection.
 *
 * Invariants: a segment is one call and one Sync, hence one transaction. Its rows count only after its Sync was read,
 * which proves the commit. Segments are answered in order. Nothing here blocks. One thread, that of the loop. */
#include "pipeline.h"

#include "onceward/base/clock.h"
#include "onceward/base/mem.h"

#include <assert.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ANSWER_SPARE_MS = 5000,           /* added to statement_timeout, before the connection counts as lost */
    SLOW_BYTES_PER_MS = 1024,         /* the slowest link that counts as alive */
    DEAD_LETTERS_MAX_BYTES = 8 << 20, /* per call, or one letter */
    BIG_BYTES = 1 << 20,              /* a larger dead letter gets a call of its own, and more time */
    BIG_MS = 10000,
    SWOLLEN_BYTES = 1 << 20,
};

static void notice_keep(void *arg, const PGresult *result)
{
    struct inbox *i = arg;
    const char *text = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

    if (text)
        snprintf(i->notice, sizeof(i->notice), "%s", text);
}

struct inbox *pipeline_new(PGconn *conn, const struct queues *queues, const struct call_scalars *scalars,
                           const struct config_database *c)
{
    struct inbox *i = mem_zalloc(1, sizeof(*i));

    i->conn = conn;
    i->queues = *queues;
    i->scalars = *scalars;
    i->statement_timeout_ms = c->statement_timeout_ms;
    i->prepared = c->prepared;
    for (int op = 0; op < N_INBOX_OPS; op++) {
        batch_init(&i->batches[op], (enum inbox_op)op);
        call_name((enum inbox_op)op, i->names[op]);
    }
    PQsetNoticeReceiver(conn, notice_keep, i);
    if (!PQenterPipelineMode(conn))
        pipeline_lose(i, "", PQerrorMessage(conn));
    return i;
}

void pipeline_lose(struct inbox *i, const char *code, const char *why)
{
    if (i->lost)
        return;
    i->lost = true;
    fault_set(&i->fault, "the connection to the database was lost: %s%s%s%s",
              why && *why ? why : "closed by the other side", *i->notice ? " (" : "", i->notice,
              *i->notice ? ")" : "");
    snprintf(i->fault.code, sizeof(i->fault.code), "%s", code ? code : "");
    PQclear(i->rows);
    PQclear(i->error);
    i->rows = i->error = NULL;
    i->n_segments = 0;
    for (int op = 0; op < N_INBOX_OPS; op++) {
        struct batch *b = &i->batches[op];

        /* Rows that were answered keep their answers. */
        if (b->state == BATCH_TO_SEND || b->state == BATCH_OUT)
            batch_lose(b, i->fault.text);
    }
}

/* --- sending --- */

static void flush(struct inbox *i)
{
    int left = PQflush(i->conn);

    if (left < 0)
        pipeline_lose(i, "", PQerrorMessage(i->conn));
    else
        i->unsent = left > 0;
}

static void segment_push(struct inbox *i, struct segment s)
{
    assert(i->n_segments < PIPELINE_MAX);
    if (i->n_segments == 0)
        i->waiting_since_ms = clock_ms();
    i->segments[(i->first_segment + i->n_segments++) % PIPELINE_MAX] = s;
    if (s.bytes > SWOLLEN_BYTES)
        i->swollen = true;
}

/* Time limit of a call: one second more per MiB of bodies. */
static int64_t timeout_of(const struct inbox *i, size_t bytes)
{
    int64_t big_ms = BIG_MS + (int64_t)(bytes * 1000 >> 20);

    return bytes > BIG_BYTES && big_ms > i->statement_timeout_ms ? big_ms : i->statement_timeout_ms;
}

/* Sets the timeout of the next statement for its transaction only: behind a pooler the session may be shared,
 * and a function cannot change the timeout of its own call. */
static bool timeout_send(struct inbox *i, int64_t ms)
{
    char text[24];
    const char *value = text;

    snprintf(text, sizeof(text), "%" PRId64, ms);
    return PQsendQueryParams(i->conn, "SELECT pg_catalog.set_config('statement_timeout', $1, true)", 1, NULL,
                             &value, NULL, NULL, 1);
}

/* Calls of dead letters are rare and large, so they are not prepared. */
static bool call_send(struct inbox *i, const struct batch *b, const struct call_params *p, struct segment *s)
{
    const char *name = i->names[b->op];

    s->prepared = i->prepared != PREPARED_OFF && b->op != INBOX_DEAD_LETTER;
    if (!s->prepared)
        return PQsendQueryParams(i->conn, call_sql(b->op), p->n, p->types, p->values, p->lengths, p->formats,
                                 1);
    s->prepares = !i->is_prepared[b->op];
    if (s->prepares && !PQsendPrepare(i->conn, name, call_sql(b->op), p->n, p->types))
        return false;
    return PQsendQueryPrepared(i->conn, name, p->n, p->values, p->lengths, p->formats, 1);
}

void pipeline_send(struct inbox *i, struct batch *b)
{
    struct call_params params;
    struct segment s = {.op = b->op};

    assert(b->state == BATCH_TO_SEND && !i->lost);
    if (b->op == INBOX_DEAD_LETTER)
        batch_range_limit(b, DEAD_LETTERS_MAX_BYTES, BIG_BYTES);
    s.bytes = batch_range_bytes(b);
    s.timeout_ms = timeout_of(i, s.bytes);
    call_params(b->op, &i->scalars, &b->data, batch_range(b), &params);
    if ((s.timeout_ms > i->statement_timeout_ms && !timeout_send(i, s.timeout_ms)) ||
        !call_send(i, b, &params, &s) || !PQpipelineSync(i->conn)) {
        pipeline_lose(i, "", PQerrorMessage(i->conn));
        return;
    }
    b->state = BATCH_OUT;
    segment_push(i, s);
    if (b->op == INBOX_DEAD_LETTER && batch_is_last_item(b))
        batch_forget(b);
    flush(i);
}

bool pipeline_may_ask(const struct inbox *i, enum question q)
{
    return !i->lost && i->answers[q].state != QUESTION_ASKED;
}

void pipeline_ask(struct inbox *i, enum question q, int n, const Oid *types, const char *const *params)
{
    pipeline_ask_big(i, q, n, types, params, 0);
}

static bool question_send(struct inbox *i, enum question q, int n, const Oid *types,
                          const char *const *params, struct segment *s)
{
    char room[QUESTION_NAME_SIZE];
    const char *name = i->prepared == PREPARED_OFF ? NULL : question_name(q, room);

    s->prepared = name;
    if (!name)
        return PQsendQueryParams(i->conn, question_sql(q), n, types, params, NULL, NULL, 1);
    s->prepares = !i->is_prepared[s->op];
    if (s->prepares && !PQsendPrepare(i->conn, name, question_sql(q), n, types))
        return false;
    return PQsendQueryPrepared(i->conn, name, n, params, NULL, NULL, 1);
}

void pipeline_ask_big(struct inbox *i, enum question q, int n, const Oid *types, const char *const *params,
                      size_t bytes)
{
    pipeline_ask_within(i, q, n, types, params, timeout_of(i, bytes));
}

void pipeline_ask_within(struct inbox *i, enum question q, int n, const Oid *types, const char *const *params,
                         int64_t timeout_ms)
{
    struct segment s = {.op = SEGMENT_QUESTION + (int)q, .timeout_ms = timeout_ms};

    if (s.timeout_ms < i->statement_timeout_ms)
        s.timeout_ms = i->statement_timeout_ms;
    assert(pipeline_may_ask(i, q));
    if ((s.timeout_ms > i->statement_timeout_ms && !timeout_send(i, s.timeout_ms)) ||
        !question_send(i, q, n, types, params, &s) || !PQpipelineSync(i->conn)) {
        pipeline_lose(i, "", PQerrorMessage(i->conn));
        return;
    }
    i->answers[q].state = QUESTION_ASKED;
    segment_push(i, s);
    flush(i);
}

/* --- the meaning of an error --- */

enum meaning {
    MEANS_LOST,     /* this server is not, or no longer, the right one */
    MEANS_DRIFT,    /* the prepared statement is gone, or belongs to another program */
    MEANS_BAD_DATA, /* an item cannot be stored */
    MEANS_ITEM,     /* may concern one item: the others need not wait for the operator */
    MEANS_RETRY,    /* temporary, or for an operator */
};

static enum meaning error_meaning(const char *code)
{
    /* OW010: order.key was changed. The queues must be registered again before anything else is claimed. */
    static const char *const lost[] = {"25006", "57P01", "57P02", "57P03", "57P05",
                                       "25P03", "53300", "53400", "OW010"};
    static const char *const drift[] = {"26000", "42P05", "0A000"};

    for (size_t k = 0; k < sizeof(lost) / sizeof(lost[0]); k++)
        if (strcmp(code, lost[k]) == 0)
            return MEANS_LOST;
    for (size_t k = 0; k < sizeof(drift) / sizeof(drift[0]); k++)
        if (strcmp(code, drift[k]) == 0)
            return MEANS_DRIFT;
    if (strncmp(code, "08", 2) == 0)
        return MEANS_LOST;
    /* A parameter in the wrong format is a bug of this program, so no message may become a dead letter because
     * of it. */
    if (strcmp(code, "22P03") == 0)
        return MEANS_RETRY;
    /* A violated constraint (23) is not included: none of ours depends on a message's content, and a message must not
     * die of a constraint that a user has added. */
    if (strncmp(code, "22", 2) == 0 || strcmp(code, "21000") == 0 || strcmp(code, "54000") == 0)
        return MEANS_BAD_DATA;
    if (strncmp(code, "23", 2) == 0 || strncmp(code, "P0", 2) == 0)
        return MEANS_ITEM;
    return MEANS_RETRY;
}

static const char *error_field(const PGresult *error, int field)
{
    const char *text = PQresultErrorField(error, field);

    return text ? text : "";
}

/* Handles a lost prepared statement. False: the connection ends, and a new one prepares again. */
static bool prepared_failed(struct inbox *i, const char *code, const char *text)
{
    if (i->prepared == PREPARED_ON) {
        pipeline_lose(i, code, text);
        return false;
    }
    if (i->prepared == PREPARED_AUTO) {
        i->prepared = PREPARED_OFF;
        i->gave_up_prepared = true;
    }
    return true;
}

static void statement_failed(struct inbox *i, struct batch *b, const struct segment *s, const PGresult *error)
{
    const char *code = error_field(error, PG_DIAG_SQLSTATE);
    const char *text = error_field(error, PG_DIAG_MESSAGE_PRIMARY);

    switch (error_meaning(code)) {
    case MEANS_LOST:
        pipeline_lose(i, code, text);
        return;
    case MEANS_DRIFT:
        if (!s->prepared)
            break;
        if (prepared_failed(i, code, text))
            batch_again(b);
        return;
    case MEANS_BAD_DATA:
        if (batch_range(b) > 1)
            batch_split(b);
        else
            batch_fail(b, ROW_INVALID, code, text);
        return;
    case MEANS_ITEM:
        if (batch_range(b) == 1)
            break;
        batch_split(b);
        return;
    case MEANS_RETRY:
        break;
    }
    batch_fail(b, ROW_RETRY, code, text);
}

/* --- reading --- */

/* The Sync was read: the segment has ended, and is committed unless it failed. */
static void segment_end(struct inbox *i)
{
    struct segment s = i->segments[i->first_segment];
    PGresult *rows = i->rows, *error = i->error;

    i->rows = i->error = NULL;
    i->first_segment = (i->first_segment + 1) % PIPELINE_MAX;
    i->n_segments--;
    i->waiting_since_ms = clock_ms();
    if (s.op >= SEGMENT_QUESTION) {
        question_take(&i->answers[s.op - SEGMENT_QUESTION], error ? NULL : rows, error);
        rows = error ? rows : NULL;
        if (error && s.prepared && error_meaning(error_field(error, PG_DIAG_SQLSTATE)) == MEANS_DRIFT) {
            struct fault *f = &i->answers[s.op - SEGMENT_QUESTION].fault;

            snprintf(f->code, sizeof(f->code), INBOX_CODE_UNPREPARED);
            prepared_failed(i, error_field(error, PG_DIAG_SQLSTATE),
                            error_field(error, PG_DIAG_MESSAGE_PRIMARY));
        }
    } else {
        struct batch *b = &i->batches[s.op];

        if (error) {
            statement_failed(i, b, &s, error);
        } else if (rows) {
            batch_answer(b, rows);
            rows = NULL;
        } else {
            batch_fail(b, ROW_RETRY, "", "the database answered without rows");
        }
    }
    PQclear(rows);
    PQclear(error);
}

/* Handles an error that ends the connection. The server may send no Sync after it, so none is awaited. */
static void error_take(struct inbox *i, PGresult *error)
{
    const char *code = PQresultErrorField(error, PG_DIAG_SQLSTATE);

    if (!code || PQstatus(i->conn) != CONNECTION_OK || error_meaning(code) == MEANS_LOST) {
        const char *text = PQresultErrorField(error, PG_DIAG_MESSAGE_PRIMARY);

        pipeline_lose(i, code, text ? text : PQresultErrorMessage(error));
        PQclear(error);
        return;
    }
    PQclear(i->error ? error : NULL);
    if (!i->error)
        i->error = error;
}

/* True: the segment or the connection has ended. */
static bool result_take(struct inbox *i, PGresult *result)
{
    struct segment *s = &i->segments[i->first_segment];

    switch (PQresultStatus(result)) {
    case PGRES_PIPELINE_SYNC:
        PQclear(result);
        segment_end(i);
        return true;
    case PGRES_TUPLES_OK:
        PQclear(i->rows);
        i->rows = result;
        return false;
    case PGRES_COMMAND_OK:
        if (s->prepares)
            i->is_prepared[s->op] = true;
        PQclear(result);
        return false;
    case PGRES_PIPELINE_ABORTED:
        PQclear(result);
        return false;
    case PGRES_FATAL_ERROR:
        error_take(i, result);
        return i->lost;
    default:
        PQclear(result);
        pipeline_lose(i, "", "the answers do not match the calls");
        return true;
    }
}

/* Takes the results that libpq has read. True: see pipeline_read. */
static bool results_take(struct inbox *i)
{
    int n_nulls = 0; /* a NULL ends each statement; a second one means that libpq expects nothing more */

    while (!PQisBusy(i->conn) && i->n_segments) {
        PGresult *result = PQgetResult(i->conn);

        if (result) {
            n_nulls = 0;
            if (result_take(i, result))
                return true;
        } else if (PQstatus(i->conn) != CONNECTION_OK || ++n_nulls > 1) {
            pipeline_lose(i, "",
                          n_nulls > 1 ? "the answers do not match the calls" : PQerrorMessage(i->conn));
            return true;
        }
    }
    return false;
}

static bool has_input(const struct inbox *i)
{
    struct pollfd fd = {PQsocket(i->conn), POLLIN, 0};

    return poll(&fd, 1, 0) > 0;
}

static bool is_overdue(const struct inbox *i)
{
    if (i->n_segments == 0)
        return false;
    const struct segment *s = &i->segments[i->first_segment];
    int64_t slow_ms = (int64_t)(s->bytes / SLOW_BYTES_PER_MS);

    return clock_ms() - i->waiting_since_ms > s->timeout_ms + ANSWER_SPARE_MS + slow_ms;
}

bool pipeline_read(struct inbox *i)
{
    if (results_take(i))
        return true;
    /* A server that ends an idle connection sends an error and then closes: only another read sees the close. */
    while (has_input(i)) {
        bool good = PQconsumeInput(i->conn);

        if (results_take(i))
            return true;
        if (!good || PQstatus(i->conn) != CONNECTION_OK) {
            pipeline_lose(i, "", PQerrorMessage(i->conn));
            return true;
        }
    }
    if (i->unsent)
        flush(i);
    if (PQstatus(i->conn) != CONNECTION_OK)
        pipeline_lose(i, "", PQerrorMessage(i->conn));
    else if (is_overdue(i))
        pipeline_lose(i, "", "no answer in time");
    return i->lost;
}
