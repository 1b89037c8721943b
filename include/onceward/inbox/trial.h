#pragma once

#include "onceward/core/row.h"

#include <stdbool.h>
#include <stdint.h>

struct config_database;
struct fault;

/* The inbox for `onceward try`: rows of messages that no broker has, under a consumer name that no queue has, and a
 * lock that stops an application in the middle of its work. Blocking, one thread. Every function that takes a fault
 * returns -1 with f. */
struct trial;

enum { TRIAL_ID_SIZE = 64, TRIAL_PREFIX_LEN = 13 };

/* Prefix of the consumer names, which identifies the remains of a killed run. */
#define TRIAL_PREFIX "onceward-try."

/* A message and its latest claim. */
struct trial_claim {
    char message_id[TRIAL_ID_SIZE];
    uint8_t token[16];
    uint8_t fingerprint[16];
};

/* Opens two connections: one for questions, one that holds locks. consumer begins with TRIAL_PREFIX. The
 * caller owns *ret (trial_close). Removes the remains of runs that were killed more than an hour ago. */
int trial_open(const struct config_database *c, const char *consumer, bool transaction, struct trial **ret,
               struct fault *f);

/* Messages published since trial_open: see sidecar_try_published. Before trial_remove. */
struct trial_published {
    int64_t n, others, unsent, discarded;
    char ids[512], relay[300]; /* relay: empty if none runs */
};
int trial_published(struct trial *t, bool discard, struct trial_published *ret, struct fault *f);

/* Releases the locks and frees t. NULL is allowed. */
void trial_close(struct trial *t);

/* The connection to use: while rows are locked, only TRIAL_HOLDER can change them. */
enum trial_by { TRIAL_ASKER, TRIAL_HOLDER };

/* Claims like the sidecar, with a new token in c. An expired row is taken over without the grace period. */
int trial_claim(struct trial *t, enum trial_by by, struct trial_claim *c, int64_t window_ms,
                enum row_answer *ret, struct fault *f);

/* trial_end ends the token as the sidecar does at the end of the window. trial_restore undoes that for a row
 * that was not claimed since: the same token is valid again. */
int trial_end(struct trial *t, enum trial_by by, const struct trial_claim *c, struct fault *f);
int trial_restore(struct trial *t, const struct trial_claim *c, struct fault *f);

/* Completes the row of `completion: response`, as the sidecar does after a 2xx. */
int trial_settle(struct trial *t, const struct trial_claim *c, int http_status, struct fault *f);

struct trial_row {
    bool completed; /* committed */
    bool is_ours;   /* the token is this claim's */
    bool locked;    /* another open transaction has changed the row */
};

/* Reads the row. `locked` costs a second query, and is false without with_lock. */
int trial_look(struct trial *t, const struct trial_claim *c, bool with_lock, struct trial_row *ret,
               struct fault *f);

/* Locks the rows of n claims until trial_let_go: complete() waits there. */
int trial_hold(struct trial *t, const struct trial_claim *const *claims, int n, struct fault *f);

/* Counts the sessions that wait for the locks. */
int trial_waiting(struct trial *t, int *ret, struct fault *f);

/* Has one of the sessions that trial_waiting saw last not yet ended the statement or transaction that touched the
 * inbox? */
int trial_at_work(struct trial *t, bool *ret, struct fault *f);

/* Commits the changes of TRIAL_HOLDER and releases the locks. Does nothing without locks. */
int trial_let_go(struct trial *t, struct fault *f);

/* Deletes the unlocked rows of this run. *ret_left: number of rows left. */
int trial_remove(struct trial *t, int64_t *ret_left, struct fault *f);

/* The application's own tables, observed through a query that counts. */
struct effects;

/* Opens the query, which returns one number (one column of one row) and may use $1, the message id. It is tried once,
 * in a read-only transaction. */
int effects_open(const struct config_database *c, const char *query, struct effects **ret, struct fault *f);
void effects_close(struct effects *e);

/* Does the query use the message id? */
bool effects_by_id(const struct effects *e);
int effects_count(struct effects *e, const char *message_id, int64_t *ret, struct fault *f);
