/* The bed of inbox_driver.c: see inbox_bed.h. */
#include "inbox_bed.h"

#include "onceward/base/clock.h"
#include "onceward/base/job.h"
#include "onceward/base/mem.h"
#include "onceward/base/random.h"
#include "onceward/inbox/admin.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATIENCE_MS = 20000 };

static char template_name[64];

/* The URL of that server with another database. The caller frees it. */
static char *url_make(const char *server, const char *database)
{
    PQconninfoOption *options = PQconninfoParse(server, NULL);
    char url[1000];
    size_t len = 0;

    assert_non_null(options);
    for (PQconninfoOption *o = options; o->keyword; o++)
        if (o->val && strcmp(o->keyword, "dbname") != 0)
            len += (size_t)snprintf(url + len, sizeof(url) - len, "%s='%s' ", o->keyword, o->val);
    snprintf(url + len, sizeof(url) - len, "dbname=%s", database);
    PQconninfoFree(options);
    return mem_copy(url, strlen(url));
}

static void notice_ignore(void *arg, const char *text)
{
    (void)arg;
    (void)text;
}

static PGconn *sql_open(const char *database)
{
    char *url = url_make(getenv("ONCEWARD_TEST_PG"), database);
    PGconn *conn = PQconnectdb(url);

    if (PQstatus(conn) != CONNECTION_OK) {
        print_error("%s\n", PQerrorMessage(conn));
        fail();
    }
    PQsetNoticeProcessor(conn, notice_ignore, NULL);
    free(url);
    return conn;
}

static PGresult *sql_run(PGconn *conn, const char *sql)
{
    PGresult *result = PQexec(conn, sql);

    if (PQresultStatus(result) != PGRES_TUPLES_OK && PQresultStatus(result) != PGRES_COMMAND_OK) {
        print_error("%s: %s\n", sql, PQerrorMessage(conn));
        fail();
    }
    return result;
}

static void database_do(const char *before, const char *name, const char *after)
{
    PGconn *conn = sql_open("postgres");
    char sql[300];

    snprintf(sql, sizeof(sql), "%s %s %s", before, name, after);
    PQclear(sql_run(conn, sql));
    PQfinish(conn);
}

int bed_group_setup(void **state)
{
    struct config_database database = {.statement_timeout_ms = 20000, .connect_timeout_ms = 5000};
    struct fault f = {0};
    struct admin *admin;
    int from, to;

    (void)state;
    snprintf(template_name, sizeof(template_name), "onceward_driver_%d", (int)getpid());
    database_do("CREATE DATABASE", template_name, "");
    database.url.value = url_make(getenv("ONCEWARD_TEST_PG"), template_name);
    FILE *advice = fopen("/dev/null", "w");
    if (!advice || admin_open(&database, ADMIN_WRITES, &admin, &f) ||
        admin_migrate(admin, advice, &from, &to, &f)) {
        print_error("migrate: %s\n", f.text);
        return -1;
    }
    admin_close(admin);
    fclose(advice);
    free(database.url.value);
    return 0;
}

int bed_group_teardown(void **state)
{
    (void)state;
    database_do("DROP DATABASE", template_name, "WITH (FORCE)");
    return 0;
}

int bed_setup(void **state)
{
    static int n_beds;
    const char *through = getenv("ONCEWARD_TEST_THROUGH"); /* a pooler in front of that server */
    struct bed *b = mem_zalloc(1, sizeof(*b));
    char from[80];

    *state = b;
    snprintf(b->name, sizeof(b->name), "%.40s_%d", template_name, ++n_beds);
    snprintf(from, sizeof(from), "TEMPLATE %s", template_name);
    database_do("CREATE DATABASE", b->name, from);
    b->sql = sql_open(b->name);
    b->database = (struct config_database){
        .url.value = url_make(through ? through : getenv("ONCEWARD_TEST_PG"), b->name),
        .statement_timeout_ms = 3000,
        .connect_timeout_ms = 2000};
    static const char *const names[BED_MAX_QUEUES] = {"driver", "driver1", "driver2", "driver3"};

    for (size_t k = 0; k < BED_MAX_QUEUES; k++)
        b->queues[k] = (struct inbox_queue){.queue = names[k],
                                            .vhost = "/",
                                            .broker = "rabbit@bed",
                                            .consumer = names[k],
                                            .token_window_ms = 30000,
                                            .max_window_ms = 60000,
                                            .max_attempts = 8,
                                            .revive = 3};
    b->n_queues = 1;
    b->self = (struct inbox_self){.instance = "driver", .number = 1};
    return 0;
}

int bed_teardown(void **state)
{
    struct bed *b = *state;

    bed_disconnect(b);
    PQfinish(b->sql);
    database_do("DROP DATABASE IF EXISTS", b->name, "WITH (FORCE)");
    free(b->database.url.value);
    free(b);
    return 0;
}

struct job *bed_job(struct bed *b)
{
    return inbox_connect(&b->database, b->queues, b->n_queues, &b->self, &b->fault);
}

int bed_try(struct bed *b)
{
    b->fault = (struct fault){0};
    struct job *job = bed_job(b);
    void *result;

    assert_non_null(job);
    struct pollfd fd = {job_fd(job), POLLIN, 0};
    if (poll(&fd, 1, PATIENCE_MS) != 1)
        fail();
    assert_true(job_take(job, &result));
    return inbox_attempt_take(result, &b->inbox, &b->fault);
}

void bed_connect(struct bed *b)
{
    if (bed_try(b) == INBOX_CONNECTED)
        return;
    print_error("%s\n", b->fault.text);
    fail();
}

void bed_disconnect(struct bed *b)
{
    inbox_free(b->inbox);
    b->inbox = NULL;
    b->answers.n = 0;
}

void items_make(struct bed *b, size_t n)
{
    b->n = n;
    for (size_t k = 0; k < n; k++) {
        size_t at = n > 2 ? (k * 7919 + 3) % n : k; /* 7,919 is prime, so every place occurs once */
        struct inbox_item *item = &b->items[k];

        snprintf(b->ids[k], sizeof(b->ids[k]), "id-%04zu", at);
        *item = (struct inbox_item){
            .ref = k, .message_id = slice_of(b->ids[k]), .crashes = -1, .unproven_step = -1};
        random_bytes(item->token, sizeof(item->token));
        memset(item->fingerprint, 7, sizeof(item->fingerprint));
    }
    if (n == 8) /* the name in the test of late errors */
        for (size_t k = 0; k < n; k++)
            snprintf(b->ids[k], sizeof(b->ids[k]), "id-%04zu", k);
}

const char *token_hex(const struct inbox_item *item)
{
    static char hex[33];

    for (int k = 0; k < 16; k++)
        snprintf(hex + 2 * k, 3, "%02x", item->token[k]);
    return hex;
}

void bed_submit(struct bed *b, enum inbox_op op)
{
    bool idle = true;

    for (int k = 0; k < N_INBOX_OPS; k++)
        idle = idle && inbox_is_free(b->inbox, (enum inbox_op)k);
    if (idle)
        b->answers.n = 0;
    if (inbox_submit(b->inbox, op, b->items, b->n, &b->fault)) {
        print_error("%s\n", b->fault.text);
        fail();
    }
    /* The adapter must have copied the submitted items. */
    struct inbox_item kept[1] = {b->items[0]};
    memset(&b->items[0], 0xA5, sizeof(b->items[0]));
    b->items[0] = kept[0];
}

static int answers_take(struct bed *b)
{
    struct answers *a = &b->answers;
    struct inbox_row row;
    int result;

    while ((result = inbox_next(b->inbox, &row, &b->fault)) == 1) {
        assert_true(a->n < BED_MAX_ROWS);
        snprintf(a->details[a->n], sizeof(a->details[0]), "%.*s", (int)row.row.detail.len,
                 row.row.detail.data ? row.row.detail.data : "");
        snprintf(a->ids[a->n], sizeof(a->ids[0]), "%.0" PRId64, row.row.letter); /* 0: empty */
        a->rows[a->n++] = row;
    }
    return result;
}

int bed_wait(struct bed *b)
{
    size_t before = b->answers.n;
    int result = answers_take(b);

    if (result || b->answers.n > before)
        return result;
    struct pollfd fd = {inbox_fd(b->inbox), (short)(POLLIN | (inbox_wants_write(b->inbox) ? POLLOUT : 0)), 0};
    poll(&fd, 1, 1000);
    return answers_take(b);
}

const struct answers *bed_collect(struct bed *b, size_t n)
{
    int64_t end_ms = clock_ms() + PATIENCE_MS;

    while (b->answers.n < n && clock_ms() < end_ms)
        if (bed_wait(b) < 0)
            break;
    if (b->answers.n != n) {
        print_error("%zu answers instead of %zu: %s\n", b->answers.n, n, b->fault.text);
        fail();
    }
    return &b->answers;
}

static size_t row_find(struct bed *b, uint64_t ref, int op)
{
    size_t found = BED_MAX_ROWS;

    for (size_t k = 0; k < b->answers.n; k++) {
        if (b->answers.rows[k].ref != ref || (op >= 0 && (int)b->answers.rows[k].op != op))
            continue;
        if (op >= 0)
            assert_int_equal(found, BED_MAX_ROWS);
        found = k;
    }
    assert_int_not_equal(found, BED_MAX_ROWS);
    return found;
}

const struct inbox_row *bed_row(struct bed *b, uint64_t ref)
{
    return &b->answers.rows[row_find(b, ref, -1)];
}

const struct inbox_row *bed_row_of(struct bed *b, uint64_t ref, enum inbox_op op)
{
    return &b->answers.rows[row_find(b, ref, (int)op)];
}

const char *bed_detail(struct bed *b, uint64_t ref)
{
    return b->answers.details[row_find(b, ref, -1)];
}

static PGresult *__attribute__((format(printf, 2, 0)))
sql_format(struct bed *b, const char *format, va_list args)
{
    char sql[4000];

    vsnprintf(sql, sizeof(sql), format, args);
    return sql_run(b->sql, sql);
}

void bed_sql(struct bed *b, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    PQclear(sql_format(b, format, args));
    va_end(args);
}

const char *bed_text(struct bed *b, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    PGresult *result = sql_format(b, format, args);
    va_end(args);
    assert_int_equal(PQntuples(result), 1);
    snprintf(b->text, sizeof(b->text), "%s", PQgetvalue(result, 0, 0));
    PQclear(result);
    return b->text;
}

void bed_until(struct bed *b, const char *condition)
{
    int64_t end_ms = clock_ms() + PATIENCE_MS;

    while (strcmp(bed_text(b, "%s", condition), "t") != 0) {
        if (clock_ms() > end_ms) {
            print_error("never came: %s\n", condition);
            fail();
        }
        poll(NULL, 0, 10);
    }
}
