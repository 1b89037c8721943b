/* An attempt to connect to the inbox, on a helper thread. It has copies of all its input, because an abandoned
 * attempt may outlive the configuration. */
#include "call.h"
#include "connect.h"
#include "pipeline.h"
#include "question.h"
#include "queues.h"

#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/base/job.h"
#include "onceward/base/mem.h"
#include "onceward/config/config.h"
#include "onceward/inbox/inbox.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct attempt {
    struct config_database database;
    struct queues queues;
    struct call_scalars scalars;
    int code;
    struct inbox *inbox;
    struct fault fault;
};

static void config_text_copy(struct config_text *to, const struct config_text *from)
{
    to->value = mem_copy_text(from->value);
    to->file = mem_copy_text(from->file);
}

static void attempt_free(void *p)
{
    struct attempt *a = p;

    inbox_free(a->inbox);
    config_text_clear(&a->database.url);
    config_text_clear(&a->database.password);
    queues_deinit(&a->queues);
    call_scalars_deinit(&a->scalars);
    free(a);
}

static int queues_register(struct attempt *a, PGconn *conn)
{
    struct buf literals[REGISTER_PARAMS] = {0};
    const char *params[REGISTER_PARAMS];
    PGresult *result;

    queues_register_params(&a->queues, literals);
    for (int i = 0; i < REGISTER_PARAMS; i++)
        params[i] = buf_text(&literals[i]);
    int got = connection_query_binary(conn, a->database.statement_timeout_ms, question_sql(QUESTION_REGISTER),
                                      REGISTER_PARAMS, params, &result, &a->fault);
    if (got == 0) {
        got = queues_registered(&a->queues, result, &a->fault);
        PQclear(result);
    }
    for (int i = 0; i < REGISTER_PARAMS; i++)
        buf_deinit(&literals[i]);
    return got ? fault_wrap(&a->fault, "registering the consumers") : 0;
}

/* Checks that the connection is usable. Returns an enum inbox_attempt_result, or -1. */
static int connection_check(struct attempt *a, const struct connection *c)
{
    int64_t timeout_ms = a->database.statement_timeout_ms;
    /* Checked even if the server accepted our settings, since a pooler may drop them silently. */
    int result = connection_check_isolation(c->conn, timeout_ms, &a->fault);

    if (result == 0)
        result = connection_check_schema(c->conn, timeout_ms, &a->fault);
    if (result)
        return result == 1 ? INBOX_SCHEMA : -1;
    return queues_register(a, c->conn);
}

static void *attempt_run(void *arg)
{
    struct attempt *a = arg;
    struct connection c;

    a->code = connection_open(&a->database, CONNECTION_WRITES, &c, &a->fault);
    if (a->code)
        return a;
    a->code = connection_check(a, &c);
    if (a->code) {
        PQfinish(c.conn);
        return a;
    }
    call_scalars_order_changes(&a->scalars, a->queues.order_changes);
    a->inbox = pipeline_new(c.conn, &a->queues, &a->scalars, &a->database);
    a->queues = (struct queues){0};
    a->scalars = (struct call_scalars){0};
    return a;
}

struct job *inbox_connect(const struct config_database *c, const struct inbox_queue *queues, size_t n_queues,
                          const struct inbox_self *self, struct fault *f)
{
    struct attempt *a = mem_zalloc(1, sizeof(*a));

    assert(self->number > 0);
    a->database = *c;
    config_text_copy(&a->database.url, &c->url);
    config_text_copy(&a->database.password, &c->password);
    queues_init(&a->queues, queues, n_queues);
    call_scalars_init(&a->scalars, self);
    struct job *job = job_start(attempt_run, attempt_free, a);
    if (!job) {
        fault_set(f, "connecting to the database: no thread could be started: %s", strerror(errno));
        attempt_free(a);
    }
    return job;
}

int inbox_attempt_take(void *result, struct inbox **ret_inbox, struct fault *f)
{
    struct attempt *a = result;
    int code = a->code;

    if (code == INBOX_CONNECTED) {
        *ret_inbox = a->inbox;
        a->inbox = NULL;
    } else {
        *f = a->fault;
    }
    attempt_free(a);
    return code;
}
