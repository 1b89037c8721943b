/* Calls of the inbox as lines: each line of standard input is a call, and is answered by one line on standard
 * output. So a model of the inbox can be asked the same as a real PostgreSQL, through the sidecar's own
 * adapter, with several sidecars and applications.
 *
 *     inbox_calls CONNECTION-STRING        of a database whose schema is migrated, as a superuser. Its inbox
 * is emptied first
 *
 *     queue CONSUMER TRANSACTION WINDOW_MS MAX_WINDOW_MS MAX_ATTEMPTS REVIVE
 *                                          declares queue 0, 1, …; before the first `inbox`
 *     inbox I INSTANCE NUMBER OWN          (re)connects sidecar I (0 to 7)
 *     gone I [INSTANCE …]                  the instances that it knows to be gone
 *     claim I ITEM …                       ITEM: QUEUE:ID:TOKEN:BODY:DEATHS:ALONE
 *     look I ITEM …                        QUEUE:ID:TOKEN:BODY
 *     settle I ITEM …                      QUEUE:ID:TOKEN
 *     fail I ITEM …                        QUEUE:ID:TOKEN:DELAY_MS:CRASHES:UNPROVEN_STEP:CAP:ONLY_EXPIRED:GIVE_BACK
 *     release I ITEM …                     QUEUE:ID:TOKEN:DELAY_MS:CRASHES:UNPROVEN_STEP:CAP
 *     bury I ITEM …                        QUEUE:ID:TOKEN:BODY:REASON:EXHAUSTED:ATTEMPTS:DEATHS:HOLDS
 *     letter I ITEM …                      QUEUE:TOKEN:BODY:LOOKED_FOR; without a row, TOKEN 0: none
 *     complete T ITEM                      QUEUE:ID:TOKEN or QUEUE:ID:TOKEN:BEFORE, the id of the previous message of
 *                                          its key; in the application's transaction T (0 to 7), begun where it is not
 *     complete_all T ITEM …, complete_valid T ITEM …
 *                                          the same for the tokens of a request
 *     commit T, rollback T
 *     extend ITEM MS, extend_all MS ITEM … QUEUE:ID:TOKEN, in a transaction of its own
 *     sweep I QUEUE LATE_MS
 *     redrive QUEUE:ID                     of its newest letter
 *     retry QUEUE:ID                       an operator's: ok
 *     age MS                               moves all times into the past: so much time has gone
 *     row QUEUE:ID                         for people
 *     move QUEUE:ID                        its completed row becomes an entry of the history, however young: 1 or 0
 *     reset                                forgets all rows and letters
 *
 * TOKEN and BODY are numbers below 2^63, which stand for 16 bytes each. An ID has no blank and no colon.
 * TRANSACTION, OWN, ALONE, ONLY_EXPIRED, GIVE_BACK, EXHAUSTED and LOOKED_FOR are 0 or 1; CRASHES and
 * UNPROVEN_STEP may be -1; CAP is the largest size of the next request, 0: unchanged.
 *
 * The answer to a batch has for each item, in their order, separated by "; ":
 *     ANSWER attempt=N takeovers=N crashes=N unproven_ms=N unproven_step=N batch_cap=N wait_ms=N age_ms=N
 *     taken_over=B namesake=B letter=ID
 * The calls of an application answer "ok" or the SQLSTATE (55P03: it would wait; its transaction is rolled back
 * then); complete_valid answers "ok" and for each token 1 (completed) or 0. sweep answers how many rows, redrive
 * what the function says, the others "ok". What is wrong with a line is answered "error: …". */
#include "onceward/base/buf.h"
#include "onceward/base/clock.h"
#include "onceward/base/fault.h"
#include "onceward/base/job.h"
#include "onceward/config/config.h"
#include "onceward/core/token.h"
#include "onceward/inbox/inbox.h"

#include <inttypes.h>
#include <libpq-fe.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_QUEUES = 8,
    MAX_SIDECARS = 8,
    MAX_TRANSACTIONS = 8,
    MAX_ITEMS = 64,
    MAX_FIELDS = 9,
    PATIENCE_MS = 30000
};

static const char *url;
static PGconn *sql, *applications[MAX_TRANSACTIONS];
static struct inbox_queue queues[MAX_QUEUES];
static size_t n_queues;
static struct inbox *sidecars[MAX_SIDECARS];
static char why[900]; /* the fault of a line */

struct batch {
    struct inbox_item items[MAX_ITEMS];
    struct inbox_letter letters[MAX_ITEMS];
    size_t n;
};

static _Noreturn void die(const char *what, const char *detail)
{
    fprintf(stderr, "inbox_calls: %s: %s\n", what, detail);
    exit(1);
}

static int wrong(const char *what)
{
    if (!*why)
        snprintf(why, sizeof(why), "%s", what);
    return -1;
}

static int64_t number_read(const char *text)
{
    char *end = NULL;
    int64_t v = text ? strtoll(text, &end, 10) : 0;

    if (!text || end == text || *end)
        wrong("a number is missing");
    return v;
}

static size_t index_read(const char *text, size_t n)
{
    int64_t v = number_read(text);

    if (v >= 0 && (size_t)v < n)
        return (size_t)v;
    wrong("there is none of that number");
    return 0;
}

static void bytes_make(uint8_t to[16], int64_t v)
{
    memset(to, 0, 16);
    for (int k = 0; k < 8; k++)
        to[15 - k] = (uint8_t)(v >> (8 * k));
}

/* --- this program's own statements --- */

static PGconn *connect_sql(void)
{
    PGconn *conn = PQconnectdb(url);

    if (PQstatus(conn) != CONNECTION_OK)
        die("connecting", PQerrorMessage(conn));
    return conn;
}

static PGresult *sql_run(PGconn *conn, const char *text, int n, const char *const *params)
{
    PGresult *result = PQexecParams(conn, text, n, NULL, params, NULL, NULL, 0);
    ExecStatusType status = PQresultStatus(result);

    if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
        die(text, PQerrorMessage(conn));
    return result;
}

static void sql_do(PGconn *conn, const char *text)
{
    PQclear(sql_run(conn, text, 0, NULL));
}

/* --- items --- */

/* Splits at the colons. */
static int fields_read(char *text, char *fields[MAX_FIELDS], int n)
{
    for (int k = 0; k < n; k++) {
        fields[k] = text;
        text = text ? strchr(text, ':') : NULL;
        if (text)
            *text++ = '\0';
        if (!fields[k] || (k + 1 < n) != (text != NULL))
            return wrong("an item has the wrong number of fields");
    }
    return 0;
}

/* The part of each kind's items behind QUEUE:ID:TOKEN. */
static void rest_read(struct batch *b, enum inbox_op op, char *f[MAX_FIELDS])
{
    struct inbox_item *i = &b->items[b->n];
    struct inbox_letter *l = &b->letters[b->n];

    i->crashes = i->unproven_step = -1;
    if (op == INBOX_CLAIM || op == INBOX_LOOK || op == INBOX_RENEW || op == INBOX_DEAD_LETTER) {
        bytes_make(i->fingerprint, number_read(f[3]));
        memcpy(i->fingerprint, i->fingerprint + 12, 4); /* a history entry has only these bytes */
    }
    if (op == INBOX_CLAIM) {
        i->deaths = number_read(f[4]);
        i->alone = number_read(f[5]) != 0;
    }
    if (op == INBOX_FAIL || op == INBOX_RELEASE) {
        i->delay_ms = number_read(f[3]);
        i->crashes = (int)number_read(f[4]);
        i->unproven_step = (int)number_read(f[5]);
        i->batch_cap = (int)number_read(f[6]);
        i->error = SLICE("it failed");
    }
    if (op == INBOX_FAIL) {
        i->only_expired = number_read(f[7]) != 0;
        i->give_back = number_read(f[8]) != 0;
    }
    if (op == INBOX_DEAD_LETTER) {
        *l = (struct inbox_letter){.reason = f[4],
                                   .exhausted = number_read(f[5]) != 0,
                                   .attempts = (int)number_read(f[6]),
                                   .deaths = number_read(f[7]),
                                   .holds = number_read(f[8]) != 0,
                                   .body = SLICE("body")};
        i->letter = l;
    }
}

static void letter_read(struct batch *b, char *f[MAX_FIELDS])
{
    struct inbox_item *i = &b->items[b->n];
    struct inbox_letter *l = &b->letters[b->n];

    *i = (struct inbox_item){.ref = b->n, .queue = index_read(f[0], n_queues), .letter = l};
    bytes_make(i->token, number_read(f[1]));
    *l = (struct inbox_letter){.reason = "no_message_id",
                               .rowless = true,
                               .body = slice_of(f[2]),
                               .looked_for = number_read(f[3]) != 0};
    b->n++;
}

static void item_read(struct batch *b, enum inbox_op op, bool rowless, char *text)
{
    static const int n_fields[N_INBOX_OPS] = {
        [INBOX_CLAIM] = 6, [INBOX_LOOK] = 4,    [INBOX_RENEW] = 4,      [INBOX_SETTLE] = 3,
        [INBOX_FAIL] = 9,  [INBOX_RELEASE] = 7, [INBOX_DEAD_LETTER] = 9};
    struct inbox_item *i = &b->items[b->n];
    char *f[MAX_FIELDS] = {0};

    if (b->n == MAX_ITEMS) {
        wrong("too many items");
        return;
    }
    if (fields_read(text, f, rowless ? 4 : n_fields[op]))
        return;
    if (rowless) {
        letter_read(b, f);
        return;
    }
    *i = (struct inbox_item){.ref = b->n, .queue = index_read(f[0], n_queues), .message_id = slice_of(f[1])};
    bytes_make(i->token, number_read(f[2]));
    rest_read(b, op, f);
    b->n++;
}

/* --- batches --- */

static void rows_await(struct inbox *s, size_t n, char lines[][300])
{
    int64_t end_ms = clock_ms() + PATIENCE_MS;
    struct inbox_row r;
    struct fault f = {0};

    /* Reads until the end: only then is a batch free again. */
    for (;;) {
        int got = inbox_next(s, &r, &f);

        if (got < 0 || clock_ms() > end_ms)
            die("waiting for rows", got < 0 ? f.text : "none in time");
        if (got == 0 && n == 0)
            return;
        if (got == 0) {
            poll(&(struct pollfd){inbox_fd(s), (short)(POLLIN | (inbox_wants_write(s) ? POLLOUT : 0)), 0}, 1,
                 100);
            continue;
        }
        snprintf(lines[r.ref], sizeof(lines[0]),
                 "%s attempt=%d takeovers=%d crashes=%d unproven_ms=%" PRId64
                 " unproven_step=%d batch_cap=%d "
                 "wait_ms=%" PRId64 " age_ms=%" PRId64 " taken_over=%d namesake=%d letter=%.0" PRId64,
                 row_answer_name(r.row.answer), r.row.attempt, r.row.takeovers, r.row.crashes,
                 r.row.unproven_ms, r.row.unproven_step, r.row.batch_cap, r.row.wait_ms, r.row.age_ms,
                 r.row.taken_over, r.namesake, r.row.letter);
        n--;
    }
}

/* Claims of the two kinds of queues are separate batches. */
static void batch_submit(struct inbox *s, const struct batch *b, enum inbox_op op, bool of_transaction)
{
    struct inbox_item items[MAX_ITEMS];
    struct fault f = {0};
    size_t n = 0;

    for (size_t k = 0; k < b->n; k++)
        if (op != INBOX_CLAIM || queues[b->items[k].queue].transaction == of_transaction)
            items[n++] = b->items[k];
    if (n && inbox_submit(s, op == INBOX_CLAIM && of_transaction ? INBOX_CLAIM_ASYNC : op, items, n, &f))
        die("submitting", f.text);
}

static void batch_call(enum inbox_op op, bool rowless, size_t sidecar, char *text)
{
    static char lines[MAX_ITEMS][300];
    struct batch b = {.n = 0};

    for (char *at = text, *item; (item = strsep(&at, " "));)
        if (*item)
            item_read(&b, op, rowless, item);
    if (!sidecars[sidecar])
        wrong("that sidecar is not connected");
    if (*why)
        return;
    batch_submit(sidecars[sidecar], &b, op, false);
    if (op == INBOX_CLAIM)
        batch_submit(sidecars[sidecar], &b, op, true);
    rows_await(sidecars[sidecar], b.n, lines);
    for (size_t k = 0; k < b.n; k++)
        printf("%s%s", k ? "; " : "", lines[k]);
    putchar('\n');
}

/* --- sidecars --- */

static void call_inbox(size_t sidecar, char *text)
{
    struct config_database d = {
        .url.value = (char *)url, .statement_timeout_ms = 20000, .connect_timeout_ms = 10000};
    struct inbox_self self = {.instance = strsep(&text, " ")};
    struct fault f = {0};
    void *result;

    self.number = number_read(strsep(&text, " "));
    self.own = number_read(strsep(&text, " ")) != 0;
    if (!n_queues || self.number < 1)
        wrong("no queue is declared, or the number is below 1");
    if (*why)
        return;
    inbox_free(sidecars[sidecar]);
    sidecars[sidecar] = NULL;
    struct job *job = inbox_connect(&d, queues, n_queues, &self, &f);
    while (job && !job_take(job, &result))
        poll(&(struct pollfd){job_fd(job), POLLIN, 0}, 1, -1);
    if (!job || inbox_attempt_take(result, &sidecars[sidecar], &f))
        die("connecting", f.text);
    for (size_t k = 0; k < n_queues; k++)
        if (inbox_registration(sidecars[sidecar], k, &f) != INBOX_REGISTERED)
            die("registering", f.text);
    puts("ok");
}

static void call_gone(size_t sidecar, char *text)
{
    const char *instances[32];
    size_t n = 0;

    for (char *at = text, *instance; (instance = strsep(&at, " ")) && n < 32;)
        if (*instance)
            instances[n++] = instance;
    if (!sidecars[sidecar])
        wrong("that sidecar is not connected");
    if (*why)
        return;
    inbox_set_gone(sidecars[sidecar], instances, n);
    puts("ok");
}

static void call_queue(char *text)
{
    static char names[MAX_QUEUES][100];
    struct inbox_queue *q = &queues[n_queues];

    if (n_queues == MAX_QUEUES) {
        wrong("too many queues");
        return;
    }
    snprintf(names[n_queues], sizeof(names[0]), "%s", strsep(&text, " "));
    *q = (struct inbox_queue){
        .consumer = names[n_queues], .broker = "rabbit@bed", .vhost = "/", .queue = names[n_queues]};
    q->compacts = n_queues % 2 == 0; /* else the database computes the hashes of moved ids */
    q->transaction = number_read(strsep(&text, " ")) != 0;
    q->token_window_ms = number_read(strsep(&text, " "));
    q->max_window_ms = number_read(strsep(&text, " "));
    q->max_attempts = (int)number_read(strsep(&text, " "));
    q->revive = (int)number_read(strsep(&text, " "));
    if (*why)
        return;
    n_queues++;
    puts("ok");
}

static void call_sweep(size_t sidecar, char *text)
{
    struct inbox_housekeep h = {
        .queue = index_read(strsep(&text, " "), n_queues), .from_page = 0, .budget_us = 1000000};
    struct inbox_housekept kept;
    struct fault f = {0};
    int got;

    h.retention_ms = INT64_C(36500) * 86400000;
    h.late_ms = number_read(strsep(&text, " "));
    if (!sidecars[sidecar])
        wrong("that sidecar is not connected");
    if (*why)
        return;
    sql_do(sql, "UPDATE onceward.consumer SET keeper = NULL, kept_until = NULL, keeper_page = 0");
    inbox_ask_housekeep(sidecars[sidecar], &h);
    while (!(got = inbox_housekept(sidecars[sidecar], &kept, &f))) {
        struct inbox_row row;

        poll(&(struct pollfd){inbox_fd(sidecars[sidecar]), POLLIN, 0}, 1, 100);
        if (inbox_next(sidecars[sidecar], &row, &f) < 0)
            die("sweeping", f.text);
    }
    if (got < 0 || kept.away_ms)
        die("sweeping", got < 0 ? f.text : "somebody else keeps house");
    printf("%" PRId64 "\n", kept.n_swept);
}

/* --- applications --- */

/* Appends the token of QUEUE:ID:TOKEN[:BEFORE] in an application's form. -1: the item is wrong. */
static int token_add(char *text, struct buf *ret)
{
    char *f[MAX_FIELDS] = {0};
    uint8_t secret[TOKEN_SECRET];
    int n = 1;

    for (const char *at = text; at && (at = strchr(at, ':')); at++)
        n++;
    if (!text || fields_read(text, f, n == 4 ? 4 : 3))
        return wrong("an item is missing");
    bytes_make(secret, number_read(f[2]));
    size_t queue = index_read(f[0], n_queues);
    if (*why)
        return -1;
    if (f[3])
        token_write_behind(ret, slice_of(queues[queue].consumer), slice_of(f[1]), slice_of(f[3]), secret);
    else
        token_write(ret, slice_of(queues[queue].consumer), slice_of(f[1]), secret);
    return 0;
}

/* The tokens of all items as an array. -1: an item is wrong. */
static int tokens_add(char *text, struct buf *ret)
{
    for (char *at = text, *item; (item = strsep(&at, " "));) {
        if (!*item)
            continue;
        buf_add_char(ret, ret->len ? ',' : '{');
        if (token_add(item, ret))
            return -1;
    }
    buf_add_char(ret, '}');
    return 0;
}

/* Runs a statement with a token, or an array of tokens, as $1. */
static PGresult *token_call(PGconn *conn, const char *statement, struct buf *tokens)
{
    const char *const params[] = {buf_text(tokens)};

    return PQexecParams(conn, statement, 1, NULL, params, NULL, NULL, 0);
}

/* Prints ok, or the SQLSTATE. */
static bool token_said(PGresult *result)
{
    bool good = PQresultStatus(result) == PGRES_TUPLES_OK;
    const char *code = PQresultErrorField(result, PG_DIAG_SQLSTATE);

    puts(good ? "ok" : code ? code : "lost");
    PQclear(result);
    return good;
}

/* In its transaction, with a savepoint before the call. */
static PGconn *transaction_of(size_t t)
{
    PGconn **conn = &applications[t];

    if (!*conn) {
        *conn = connect_sql();
        sql_do(*conn, "SET lock_timeout = '50ms'");
    }
    if (PQtransactionStatus(*conn) == PQTRANS_IDLE)
        sql_do(*conn, "BEGIN");
    sql_do(*conn, "SAVEPOINT before");
    return *conn;
}

static void completed_said(PGconn *conn, PGresult *result)
{
    const char *code = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    bool waits = code && strcmp(code, "55P03") == 0;

    if (!token_said(result))
        sql_do(conn, waits ? "ROLLBACK" : "ROLLBACK TO before");
}

static void call_complete(size_t t, char *text)
{
    struct buf token = {0};

    if (!token_add(text, &token)) {
        PGconn *conn = transaction_of(t);
        completed_said(conn, token_call(conn, "SELECT onceward.complete($1)", &token));
    }
    buf_deinit(&token);
}

static void call_complete_all(size_t t, char *text)
{
    struct buf tokens = {0};

    if (!tokens_add(text, &tokens)) {
        PGconn *conn = transaction_of(t);
        completed_said(conn, token_call(conn, "SELECT onceward.complete_all($1)", &tokens));
    }
    buf_deinit(&tokens);
}

static void valid_said(PGconn *conn, PGresult *result)
{
    if (PQresultStatus(result) != PGRES_TUPLES_OK) {
        completed_said(conn, result);
        return;
    }
    printf("ok%s\n", PQgetvalue(result, 0, 0));
    PQclear(result);
}

static void call_complete_valid(size_t t, char *text)
{
    static const char statement[] =
        "WITH valid AS MATERIALIZED (SELECT onceward.complete_valid($1) AS token) "
        "SELECT string_agg((u.token IN (SELECT v.token FROM valid v))::integer::text, '' ORDER BY u.ord) "
        "FROM unnest($1::text[]) WITH ORDINALITY u (token, ord)";
    struct buf tokens = {0};

    if (!tokens_add(text, &tokens)) {
        PGconn *conn = transaction_of(t);
        valid_said(conn, token_call(conn, statement, &tokens));
    }
    buf_deinit(&tokens);
}

static void transaction_end(size_t t, const char *how)
{
    if (*why)
        return;
    if (applications[t] && PQtransactionStatus(applications[t]) != PQTRANS_IDLE)
        sql_do(applications[t], how);
    puts("ok");
}

static void call_commit(size_t t, char *text)
{
    (void)text;
    transaction_end(t, "COMMIT");
}

static void call_rollback(size_t t, char *text)
{
    (void)text;
    transaction_end(t, "ROLLBACK");
}

static void extend(const char *function, const char *ms, struct buf *tokens)
{
    char statement[100];

    snprintf(statement, sizeof(statement), "SELECT onceward.%s($1, %" PRId64 " / 1000.0::float8)", function,
             number_read(ms));
    if (!*why)
        token_said(token_call(sql, statement, tokens));
    buf_deinit(tokens);
}

static void call_extend(char *text)
{
    struct buf token = {0};
    char *item = strsep(&text, " ");

    if (token_add(item, &token))
        buf_deinit(&token);
    else
        extend("extend", text, &token);
}

static void call_extend_all(char *text)
{
    struct buf tokens = {0};
    char *ms = strsep(&text, " ");

    if (tokens_add(text, &tokens))
        buf_deinit(&tokens);
    else
        extend("extend_all", ms, &tokens);
}

/* --- rows --- */

static void call_redrive(char *text)
{
    char *f[MAX_FIELDS] = {0};

    if (!text || fields_read(text, f, 2)) {
        wrong("an item is missing");
        return;
    }
    size_t queue = index_read(f[0], n_queues);
    if (*why)
        return;
    const char *const params[] = {queues[queue].consumer, f[1]};
    PGresult *result =
        sql_run(sql,
                "SELECT onceward.sidecar_redrive(max(id)) FROM onceward.dead_letter WHERE consumer = $1 AND "
                "message_id = $2 HAVING count(*) > 0",
                2, params);
    puts(PQntuples(result) ? PQgetvalue(result, 0, 0) : "no letter");
    PQclear(result);
}

static void call_retry(char *text)
{
    char *f[MAX_FIELDS] = {0};

    if (!text || fields_read(text, f, 2)) {
        wrong("an item is missing");
        return;
    }
    size_t queue = index_read(f[0], n_queues);
    if (*why)
        return;
    const char *const params[] = {queues[queue].consumer, f[1]};
    PQclear(sql_run(sql,
                    "SELECT onceward.lever_retry($1, ARRAY[$2], 'test') FROM onceward.inbox r "
                    "WHERE r.consumer = $1 AND r.message_id = $2 AND r.status = 'held'",
                    2, params));
    puts("ok");
}

static void call_move(char *text)
{
    char *f[MAX_FIELDS] = {0};

    if (!text || fields_read(text, f, 2)) {
        wrong("an item is missing");
        return;
    }
    size_t queue = index_read(f[0], n_queues);
    if (*why)
        return;
    const char *const params[] = {queues[queue].consumer, f[1]};
    PGresult *result =
        sql_run(sql,
                "SELECT onceward.history_move($1, 1::smallint, ARRAY(SELECT r.ctid FROM onceward.inbox r "
                "WHERE r.consumer = $1 AND r.message_id = $2), 'infinity')",
                2, params);
    puts(PQgetvalue(result, 0, 0));
    PQclear(result);
}

static void call_row(char *text)
{
    char *f[MAX_FIELDS] = {0};

    if (!text || fields_read(text, f, 2)) {
        wrong("an item is missing");
        return;
    }
    size_t queue = index_read(f[0], n_queues);
    if (*why)
        return;
    const char *const params[] = {queues[queue].consumer, f[1]};
    PGresult *result =
        sql_run(sql, "SELECT row_to_json(r) FROM onceward.inbox r WHERE consumer = $1 AND message_id = $2", 2,
                params);
    puts(PQntuples(result) ? PQgetvalue(result, 0, 0) : "none");
    PQclear(result);
}

static void call_age(char *text)
{
    char ms[24];
    const char *const params[] = {ms};

    snprintf(ms, sizeof(ms), "%" PRId64, number_read(text));
    if (*why)
        return;
    PQclear(sql_run(
        sql,
        "WITH t (by) AS (SELECT $1::bigint * interval '1 ms') UPDATE onceward.inbox SET received_at = "
        "received_at - by, alive_since = alive_since - by, token_expires_at = token_expires_at - by, "
        "max_expires_at = max_expires_at - by, next_attempt_at = next_attempt_at - by, completed_at = "
        "completed_at - by, unproven_at = unproven_at - by, renewals_until = renewals_until - by FROM t",
        1, params));
    puts("ok");
}

static void call_reset(char *text)
{
    (void)text;
    sql_do(sql, "DELETE FROM onceward.inbox");
    sql_do(sql, "DELETE FROM onceward.history");
    sql_do(sql, "DELETE FROM onceward.dead_letter");
    puts("ok");
}

/* --- lines --- */

static bool batch_line(const char *name, char **rest)
{
    static const struct {
        const char *name;
        enum inbox_op op;
        bool rowless;
    } kinds[] = {{"claim", INBOX_CLAIM, false},      {"look", INBOX_LOOK, false},
                 {"renew", INBOX_RENEW, false},      {"settle", INBOX_SETTLE, false},
                 {"fail", INBOX_FAIL, false},        {"release", INBOX_RELEASE, false},
                 {"bury", INBOX_DEAD_LETTER, false}, {"letter", INBOX_DEAD_LETTER, true}};

    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++)
        if (strcmp(name, kinds[k].name) == 0) {
            size_t sidecar = index_read(strsep(rest, " "), MAX_SIDECARS);

            batch_call(kinds[k].op, kinds[k].rowless, sidecar, *rest);
            return true;
        }
    return false;
}

static void line_run(char *line)
{
    char *rest = line, *name = strsep(&rest, " ");
    static const struct {
        const char *name;
        void (*call)(size_t, char *);
        size_t n; /* the range of the first number */
    } numbered[] = {{"inbox", call_inbox, MAX_SIDECARS},
                    {"gone", call_gone, MAX_SIDECARS},
                    {"sweep", call_sweep, MAX_SIDECARS},
                    {"complete", call_complete, MAX_TRANSACTIONS},
                    {"complete_all", call_complete_all, MAX_TRANSACTIONS},
                    {"complete_valid", call_complete_valid, MAX_TRANSACTIONS},
                    {"commit", call_commit, MAX_TRANSACTIONS},
                    {"rollback", call_rollback, MAX_TRANSACTIONS}};
    static const struct {
        const char *name;
        void (*call)(char *);
    } plain[] = {{"queue", call_queue},     {"extend", call_extend}, {"extend_all", call_extend_all},
                 {"redrive", call_redrive}, {"retry", call_retry},   {"move", call_move},
                 {"row", call_row},         {"age", call_age},       {"reset", call_reset}};

    if (batch_line(name, &rest))
        return;
    for (size_t k = 0; k < sizeof(plain) / sizeof(plain[0]); k++)
        if (strcmp(name, plain[k].name) == 0) {
            plain[k].call(rest);
            return;
        }
    for (size_t k = 0; k < sizeof(numbered) / sizeof(numbered[0]); k++)
        if (strcmp(name, numbered[k].name) == 0) {
            size_t first = index_read(strsep(&rest, " "), numbered[k].n);

            numbered[k].call(first, rest);
            return;
        }
    wrong("no such call");
}

int main(int argc, char **argv)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;

    if (argc != 2)
        die("usage", "inbox_calls CONNECTION-STRING < LINES");
    url = argv[1];
    sql = connect_sql();
    sql_do(sql, "DELETE FROM onceward.inbox");
    sql_do(sql, "DELETE FROM onceward.history");
    sql_do(sql, "DELETE FROM onceward.dead_letter");
    while ((len = getline(&line, &cap, stdin)) > 0) {
        line[strcspn(line, "\n")] = '\0';
        why[0] = '\0';
        line_run(line);
        if (*why)
            printf("error: %s\n", why);
        fflush(stdout);
    }
    free(line);
    for (int k = 0; k < MAX_SIDECARS; k++)
        inbox_free(sidecars[k]);
    for (int k = 0; k < MAX_TRANSACTIONS; k++)
        PQfinish(applications[k]);
    PQfinish(sql);
    return job_wait_all(20000) ? 0 : 1;
}
