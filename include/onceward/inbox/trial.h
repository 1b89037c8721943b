#pragma once

#include "onceward/core/row.h"

#include <stdbool.h>
#include <stdint.h>

struct config_database;
struct fault;

/* The inbox as `onceward try` needs it: rows of messages that no broker has, under a consumer name that is no
 * queue's, and a lock with which an application is met in the middle of its work. Blocking, one thread. Every
 * function that takes a fault: -1, f. */
struct trial;

enum { TRIAL_ID_SIZE = 64, TRIAL_PREFIX_LEN = 13 };

/* What the names of its consumers begin with: what a killed run has left is known by it. */
#define TRIAL_PREFIX "onceward-try."

/* A message, and its newest claim. */
struct trial_claim {
    char message_id[TRIAL_ID_SIZE];
    uint8_t token[16];
    uint8_t fingerprint[16];
};

/* Connects twice: one asks, the other holds locks. consumer begins with TRIAL_PREFIX. The caller owns *ret
 * (trial_close). Removes what killed runs have left more than an hour ago. */
int trial_open(const struct config_database *c, const char *consumer, bool transaction, struct trial **ret,
               struct fault *f);

/* The messages that were published since trial_open: see sidecar_try_published. Before trial_remove. */
struct trial_published {
    int64_t n, others, unsent, discarded;
    char ids[512], relay[300]; /* relay: empty where none runs */
};
int trial_published(struct trial *t, bool discard, struct trial_published *ret, struct fault *f);

/* Lets go of what is held. NULL is fine. */
void trial_close(struct trial *t);

/* Whose connection does it: while rows are held, only the holder's can change them. */
enum trial_by { TRIAL_ASKER, TRIAL_HOLDER };

/* As the sidecar claims: c's token is made anew. A row that was expired is taken over without a grace. */
int trial_claim(struct trial *t, enum trial_by by, struct trial_claim *c, int64_t window_ms,
                enum row_answer *ret, struct fault *f);

/* Ends the token as the sidecar does when its window is over, and the reverse, for a row that nobody has
 * claimed since: the same token is good again. */
int trial_end(struct trial *t, enum trial_by by, const struct trial_claim *c, struct fault *f);
int trial_restore(struct trial *t, const struct trial_claim *c, struct fault *f);

/* Completes the row of `completion: response`, as the sidecar does after a 2xx. */
int trial_settle(struct trial *t, const struct trial_claim *c, int http_status, struct fault *f);

struct trial_row {
    bool completed; /* committed */
    bool is_ours;   /* its token is the claim's */
    bool locked;    /* somebody has changed it and not committed yet */
};

/* Looks at the row; `locked` costs a question of its own, and is false without. */
int trial_look(struct trial *t, const struct trial_claim *c, bool with_lock, struct trial_row *ret,
               struct fault *f);

/* Locks the rows of n claims until trial_let_go: complete() waits there. */
int trial_hold(struct trial *t, const struct trial_claim *const *claims, int n, struct fault *f);

/* How many sessions wait for what is held. */
int trial_waiting(struct trial *t, int *ret, struct fault *f);

/* Has one of those that trial_waiting saw last not yet ended the statement, or transaction, that touched the
 * inbox? */
int trial_at_work(struct trial *t, bool *ret, struct fault *f);

/* Commits what was done by TRIAL_HOLDER, and lets go. No-op when nothing is held. */
int trial_let_go(struct trial *t, struct fault *f);

/* Deletes the rows of this run that are not locked. *ret_left: how many there still are. */
int trial_remove(struct trial *t, int64_t *ret_left, struct fault *f);

/* The application's own tables, seen through a query that counts. */
struct effects;

/* query: one column of one row, a number; it may have $1, the message id. Tries it once, in a transaction
 * that is read-only. */
int effects_open(const struct config_database *c, const char *query, struct effects **ret, struct fault *f);
void effects_close(struct effects *e);

/* Is it about one message? */
bool effects_by_id(const struct effects *e);
int effects_count(struct effects *e, const char *message_id, int64_t *ret, struct fault *f);
