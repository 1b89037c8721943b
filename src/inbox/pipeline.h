#pragma once

#include "batch.h"
#include "call.h"
#include "presence.h"
#include "question.h"
#include "queues.h"

#include "onceward/base/fault.h"
#include "onceward/config/config.h"
#include "onceward/inbox/inbox.h"

#include <libpq-fe.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is out on a connection: segments, each one call and one Sync, answered in the order in which they were
 * sent. */

enum { SEGMENT_QUESTION = N_INBOX_OPS, PIPELINE_MAX = N_INBOX_OPS + N_QUESTIONS };

struct segment {
    int op;        /* enum inbox_op, or SEGMENT_QUESTION + enum question */
    bool prepares; /* it prepares its statement first */
    bool prepared; /* it uses a prepared statement */
    size_t bytes;
    int64_t timeout_ms; /* of its statement, at the server */
};

struct inbox {
    PGconn *conn;
    struct queues queues;
    struct call_scalars scalars;
    struct batch batches[N_INBOX_OPS];
    const struct inbox_item **sorted; /* scratch of inbox_submit */
    size_t sorted_cap;

    struct segment segments[PIPELINE_MAX]; /* a ring */
    size_t first_segment, n_segments;
    int64_t waiting_since_ms; /* when the first segment became the first */
    int64_t statement_timeout_ms;
    PGresult *rows, *error; /* of the first segment, so far */
    bool unsent;            /* libpq has bytes for the socket */

    enum config_prepared prepared;
    bool is_prepared[PIPELINE_MAX]; /* an operation, or SEGMENT_QUESTION and a question */
    bool gave_up_prepared;
    bool swollen;

    struct question_answer answers[N_QUESTIONS];
    struct buf outbox_snapshot; /* of the batch that the look is about */
    struct presence presence;
    int64_t *dead_letters; /* a queue: what was answered last */

    bool lost;
    struct fault fault; /* why */
    char notice[256];   /* the last thing that the server said on its own: often why */
};

/* Takes the connection (not in pipeline mode yet, non-blocking), the queues and the scalars. */
struct inbox *pipeline_new(PGconn *conn, const struct queues *queues, const struct call_scalars *scalars,
                           const struct config_database *c);

/* TO_SEND to OUT: sends the batch's present range. Loses the connection when it cannot. */
void pipeline_send(struct inbox *i, struct batch *b);

/* May it be asked now? */
bool pipeline_may_ask(const struct inbox *i, enum question q);

/* Sends a question that is not out; the parameters are text. */
void pipeline_ask(struct inbox *i, enum question q, int n, const Oid *types, const char *const *params);

/* The same for what moves so many bytes in the database: above 1 MiB it has 10 s, and a second for each MiB.
 */
void pipeline_ask_big(struct inbox *i, enum question q, int n, const Oid *types, const char *const *params,
                      size_t bytes);

/* The same with a statement timeout that is longer than that of the session. */
void pipeline_ask_within(struct inbox *i, enum question q, int n, const Oid *types, const char *const *params,
                         int64_t timeout_ms);

/* Reads what has come. true: something changed: a segment was answered, or the connection is lost. */
bool pipeline_read(struct inbox *i);

/* Everything outstanding is unknown from here on. The first reason stays. */
void pipeline_lose(struct inbox *i, const char *code, const char *why);
