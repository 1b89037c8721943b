/* The commands' connection: blocking libpq, one thread, one transaction at a time. Each transaction sets isolation
 * and timeouts, because a pooler may stand in between, which keeps no session settings. */

#include "inbox/connect.h"
#include "inbox/session.h"

#include "onceward/base/mem.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int fault_of_connection(PGconn *conn, const char *where, struct fault *f)
{
    return fault_set(f, "%s: %s", where, PQerrorMessage(conn));
}

static void describe(const PGconn *conn, char *out, size_t size)
{
    const char *host = PQhost(conn), *port = PQport(conn);

    snprintf(out, size, "%s:%s/%s", host && *host ? host : "localhost", port && *port ? port : "5432",
             PQdb(conn));
}

int admin_open(const struct config_database *c, enum admin_use use, struct admin **ret, struct fault *f)
{
    struct connection connection;
    struct admin *a;

    if (connection_open(c, use == ADMIN_READS ? CONNECTION_READS : CONNECTION_WRITES, &connection, f))
        return -1;
    PQsetnonblocking(connection.conn, 0);
    a = mem_zalloc(1, sizeof *a);
    a->conn = connection.conn;
    a->pinned = connection.pinned;
    a->statement_timeout_ms = c->statement_timeout_ms;
    describe(a->conn, a->where, sizeof a->where);
    *ret = a;
    return 0;
}

void admin_close(struct admin *a)
{
    if (!a)
        return;
    PQfinish(a->conn);
    free(a);
}

const char *admin_where(const struct admin *a)
{
    return a->where;
}

int admin_check_schema(struct admin *a, struct fault *f)
{
    int answer = connection_check_schema(a->conn, a->statement_timeout_ms, f);

    PQsetnonblocking(a->conn, 0);
    return answer ? -1 : 0;
}

/* Reports the server's message with its hint, which is written for the reader. */
static int fault_of_result(struct admin *a, const PGresult *r, struct fault *f)
{
    const char *state = PQresultErrorField(r, PG_DIAG_SQLSTATE);
    const char *message = PQresultErrorField(r, PG_DIAG_MESSAGE_PRIMARY);
    const char *hint = PQresultErrorField(r, PG_DIAG_MESSAGE_HINT);

    if (!message)
        return fault_of_connection(a->conn, a->where, f);
    fault_set(f, "%s%s%s%s", message, hint ? " (" : "", hint ? hint : "", hint ? ")" : "");
    snprintf(f->code, sizeof f->code, "%s", state ? state : "");
    return -1;
}

static int take(struct admin *a, PGresult *r, PGresult **ret, struct fault *f)
{
    ExecStatusType status = r ? PQresultStatus(r) : PGRES_FATAL_ERROR;

    f->code[0] = '\0';
    if (status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK) {
        if (ret)
            *ret = r;
        else
            PQclear(r);
        return 0;
    }
    if (r)
        fault_of_result(a, r, f);
    else
        fault_of_connection(a->conn, a->where, f);
    PQclear(r);
    return -1;
}

int session_query(struct admin *a, const char *sql, int n, const char *const *params, PGresult **ret,
                  struct fault *f)
{
    return take(a, PQexecParams(a->conn, sql, n, NULL, params, NULL, NULL, 0), ret, f);
}

int session_query_binary(struct admin *a, const char *sql, int n, const char *const *params, PGresult **ret,
                         struct fault *f)
{
    return take(a, PQexecParams(a->conn, sql, n, NULL, params, NULL, NULL, 1), ret, f);
}

int session_script(struct admin *a, const char *sql, struct fault *f)
{
    return take(a, PQexec(a->conn, sql), NULL, f);
}

int session_begin(struct admin *a, int64_t statement_timeout_ms, int64_t lock_timeout_ms, struct fault *f)
{
    char statement[24], lock[24];
    const char *const params[] = {statement, lock};

    snprintf(statement, sizeof statement, "%" PRId64, statement_timeout_ms);
    snprintf(lock, sizeof lock, "%" PRId64, lock_timeout_ms);
    if (session_script(a, "BEGIN ISOLATION LEVEL READ COMMITTED", f))
        return -1;
    /* A command reports its result as done, so its commit must be on disk. Sequential scans are the right plans here.
     * The text format of times, intervals and bytes is set because a database or role may have changed it. */
    return session_query(
        a,
        "SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', $2, true),"
        " set_config('TimeZone', 'UTC', true), set_config('DateStyle', 'ISO, YMD', true),"
        " set_config('IntervalStyle', 'postgres', true), set_config('bytea_output', 'hex', true),"
        " set_config('search_path', 'pg_catalog', true),"
        " CASE WHEN current_setting('synchronous_commit') = 'off'"
        " THEN set_config('synchronous_commit', 'on', true) END",
        2, params, NULL, f);
}

int session_commit(struct admin *a, struct fault *f)
{
    return session_script(a, "COMMIT", f);
}

void session_rollback(struct admin *a)
{
    PQclear(PQexec(a->conn, "ROLLBACK"));
}

int session_once(struct admin *a, const char *sql, int n, const char *const *params, PGresult **ret,
                 struct fault *f)
{
    PGresult *r = NULL;

    if (session_begin(a, a->statement_timeout_ms, 0, f) || session_query(a, sql, n, params, &r, f)) {
        session_rollback(a);
        return -1;
    }
    if (session_commit(a, f)) {
        PQclear(r);
        return -1;
    }
    if (ret)
        *ret = r;
    else
        PQclear(r);
    return 0;
}

const char *field_text(const PGresult *r, int row, int column)
{
    return PQgetisnull(r, row, column) ? NULL : PQgetvalue(r, row, column);
}

int64_t field_int(const PGresult *r, int row, int column)
{
    return PQgetisnull(r, row, column) ? 0 : strtoll(PQgetvalue(r, row, column), NULL, 10);
}
