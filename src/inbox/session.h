#pragma once

#include "onceward/base/fault.h"
#include "onceward/inbox/admin.h"

#include <libpq-fe.h>

/* What the files behind admin.h share: one blocking connection and its transactions. */

struct admin {
    PGconn *conn;
    bool pinned; /* the session took our settings: no pooler in between that refuses them */
    int64_t statement_timeout_ms;
    char where[300]; /* "host:port/database", for messages: never a password */
};

/* Begins a transaction: READ COMMITTED, with statement_timeout (0: none) and lock_timeout (0: the default)
 * for it alone, since settings of the session may not be ours behind a pooler. */
int session_begin(struct admin *a, int64_t statement_timeout_ms, int64_t lock_timeout_ms, struct fault *f);
int session_commit(struct admin *a, struct fault *f);

/* Rolls back; what goes wrong with that shows at the next statement. */
void session_rollback(struct admin *a);

/* One statement with text parameters, inside a transaction. 0: *ret is the caller's (PQclear). -1: f, with
 * the SQLSTATE as its code. */
int session_query(struct admin *a, const char *sql, int n, const char *const *params, PGresult **ret,
                  struct fault *f);

/* The same with rows in binary. */
int session_query_binary(struct admin *a, const char *sql, int n, const char *const *params, PGresult **ret,
                         struct fault *f);

/* Several statements without parameters or rows: a file. */
int session_script(struct admin *a, const char *sql, struct fault *f);

/* One statement in a transaction of its own. */
int session_once(struct admin *a, const char *sql, int n, const char *const *params, PGresult **ret,
                 struct fault *f);

/* A field, NULL when it is null. Valid as long as the result. */
const char *field_text(const PGresult *r, int row, int column);
int64_t field_int(const PGresult *r, int row, int column); /* 0 when it is null */

/* A time as text that sorts as the times do, and that commands take. */
#define TIME_TEXT(time) "to_char((" time ") AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
