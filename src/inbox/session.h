#pragma once

#include "onceward/base/fault.h"
#include "onceward/inbox/admin.h"

#include <libpq-fe.h>

/* Shared by the files behind admin.h: one blocking connection and its transactions. */

struct admin {
    PGconn *conn;
    bool pinned; /* the session accepted our settings; a pooler may refuse them */
    int64_t statement_timeout_ms;
    char where[300]; /* "host:port/database", for messages; never contains a password */
};

/* Begins a transaction: READ COMMITTED, with statement_timeout (0: none) and lock_timeout (0: the default) for this
 * transaction only, since behind a pooler the session may be shared. */
int session_begin(struct admin *a, int64_t statement_timeout_ms, int64_t lock_timeout_ms, struct fault *f);
int session_commit(struct admin *a, struct fault *f);

/* Rolls back. If that fails, the next statement reports it. */
void session_rollback(struct admin *a);

/* Runs a statement with text parameters, inside a transaction. 0: *ret is the caller's (PQclear). -1: f, with the
 * SQLSTATE as its code. */
int session_query(struct admin *a, const char *sql, int n, const char *const *params, PGresult **ret,
                  struct fault *f);

/* The same with rows in binary. */
int session_query_binary(struct admin *a, const char *sql, int n, const char *const *params, PGresult **ret,
                         struct fault *f);

/* Runs several statements without parameters or rows, such as a file. */
int session_script(struct admin *a, const char *sql, struct fault *f);

/* Runs a statement in a transaction of its own. */
int session_once(struct admin *a, const char *sql, int n, const char *const *params, PGresult **ret,
                 struct fault *f);

/* Text of a field; NULL if it is null. Valid as long as the result. */
const char *field_text(const PGresult *r, int row, int column);
int64_t field_int(const PGresult *r, int row, int column); /* 0 if it is null */

/* A time as text that sorts in the order of time, and that commands accept. */
#define TIME_TEXT(time) "to_char((" time ") AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
