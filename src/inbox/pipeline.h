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

/* Segments in flight on a connection. Each is one call and one Sync; the server answers them in order. */

enum { SEGMENT_QUESTION = N_INBOX_OPS, PIPELINE_MAX = N_INBOX_OPS + N_QUESTIONS };

struct segment {
    int op;        /* enum inbox_op, or SEGMENT_QUESTION + enum question */
    bool prepares; /* prepares its statement first */
    bool prepared; /* uses a prepared statement */
    size_t bytes;
    int64_t timeout_ms; /* of its statement, on the server */
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
    int64_t waiting_since_ms; /* time at which the first segment became the first */
    int64_t statement_timeout_ms;
    PGresult *rows, *error; /* of the first segment, received so far */
    bool unsent;            /* libpq has unsent bytes */

    enum config_prepared prepared;
    char names[N_INBOX_OPS][CALL_NAME_SIZE]; /* of the prepared statements */
    bool is_prepared[PIPELINE_MAX];          /* indexed by operation, or SEGMENT_QUESTION + question */
    bool gave_up_prepared;
    bool swollen;

    struct question_answer answers[N_QUESTIONS];
    struct buf outbox_snapshot; /* of the batch that a lookup is about */
    struct presence presence;
    int64_t *dead_letters; /* a number per queue, from the latest answer */

    bool lost;
    struct fault fault; /* why the connection was lost */
    char notice[256];   /* the server's latest unsolicited message: often the reason */
};

/* Takes the connection (non-blocking, not yet in pipeline mode), the queues and the scalars. */
struct inbox *pipeline_new(PGconn *conn, const struct queues *queues, const struct call_scalars *scalars,
                           const struct config_database *c);

/* TO_SEND to OUT: sends the batch's present range. On failure the connection counts as lost. */
void pipeline_send(struct inbox *i, struct batch *b);

/* May the question be asked now? */
bool pipeline_may_ask(const struct inbox *i, enum question q);

/* Sends a question that is not in flight; the parameters are text. */
void pipeline_ask(struct inbox *i, enum question q, int n, const Oid *types, const char *const *params);

/* The same for a call that moves that many bytes in the database: above 1 MiB it gets 10 s, and a second per MiB. */
void pipeline_ask_big(struct inbox *i, enum question q, int n, const Oid *types, const char *const *params,
                      size_t bytes);

/* The same with a statement timeout longer than the session's. */
void pipeline_ask_within(struct inbox *i, enum question q, int n, const Oid *types, const char *const *params,
                         int64_t timeout_ms);

/* Reads available answers. True: a segment was answered, or the connection is lost. */
bool pipeline_read(struct inbox *i);

/* Makes everything in flight unknown. Keeps the first reason. */
void pipeline_lose(struct inbox *i, const char *code, const char *why);
