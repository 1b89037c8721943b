#pragma once

#include "onceward/config/config.h"

#include <libpq-fe.h>
#include <stdbool.h>
#include <stdint.h>

struct fault;

/* Connections to the database. All functions block, up to a deadline: for helper threads and commands. */

struct connection {
    PGconn *conn;
    bool pinned; /* the session has our settings, READ COMMITTED and statement_timeout. False: a pooler
                    refused them */
};

/* The kind of host to accept. */
enum connection_use {
    CONNECTION_WRITES, /* a writable one, unless the URL's target_session_attrs says otherwise */
    CONNECTION_READS,  /* any that answers, preferably a writable one */
};

/* Reads URL and password again, and tries the hosts in turn, each address for at most connect_timeout (whole
 * seconds, at least 2). */
int connection_open(const struct config_database *c, enum connection_use use, struct connection *ret,
                    struct fault *f);

/* Runs one statement with text parameters and text results. 0 and *ret_result (the caller's, PQclear); -1: f,
 * with f->code for an error of the database. After timeout_ms: -1, and the connection is unusable. */
int connection_query(PGconn *conn, int64_t timeout_ms, const char *sql, int n_params,
                     const char *const *params, PGresult **ret_result, struct fault *f);

/* The same with rows in binary. */
int connection_query_binary(PGconn *conn, int64_t timeout_ms, const char *sql, int n_params,
                            const char *const *params, PGresult **ret_result, struct fault *f);

/* Are the connection's transactions read-only: on a standby, or by default_transaction_read_only? 0, 1; -1: f. */
int connection_is_read_only(PGconn *conn, int64_t timeout_ms, struct fault *f);

/* 0; 1: sessions are not READ COMMITTED and cannot be set to it: f; -1: f. */
int connection_check_isolation(PGconn *conn, int64_t timeout_ms, struct fault *f);

enum { CONNECTION_UNMIGRATED = 2 };

/* Does the schema suit this program? 0; 1: f gives the remedy; CONNECTION_UNMIGRATED: the same, and a
 * migration is the remedy; -1: f. */
int connection_check_schema(PGconn *conn, int64_t timeout_ms, struct fault *f);
