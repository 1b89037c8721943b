#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Whether the database works, as all queues see it: it does, or a lost connection or a refused statement
 * (disk full, read-only, standby) makes it *down*. Then nothing new is claimed or forwarded, and one
 * statement is tried with backoff from 1 s to 15 s. A statement that may have failed for what it was given
 * makes it *doubtful*: the same is tried at once, and only when that fails, too, it is down. A value. */

enum { DATABASE_TRY_FIRST_MS = 1000, DATABASE_TRY_LAST_MS = 15000 };

struct database {
    bool linked;           /* a connection is there */
    bool refuses;          /* a statement was refused for a lasting reason; with a connection */
    uint32_t life;         /* raised with each connection and each loss: a request remembers it */
    int64_t down_since_ms; /* 0: it is up */
    bool doubtful;         /* a statement failed, perhaps for what it was given */
    bool trying;
    int64_t try_at_ms; /* while it refuses: when to try; else before when it is not doubted */
    int64_t up_since_ms;
    int n_tries;
    char reason[256]; /* why it is down */
};

void database_init(struct database *b, int64_t now_ms);
void database_linked(struct database *b);
void database_lost(struct database *b, int64_t now_ms, const char *reason);

/* A statement was refused. Where the SQLSTATE says that others will be, too (classes 08, 25, 28, 3D, 57P, and
 * 53100), it is down; else, and always where the statement's `own` size may be at fault, it is doubtful. */
void database_refused(struct database *b, int64_t now_ms, const char *sqlstate, const char *reason, bool own);

bool database_is_up(const struct database *b);

/* Is the try to be sent now? Then database_try_sent and database_tried follow. */
bool database_wants_try(const struct database *b, int64_t now_ms);
void database_try_sent(struct database *b);
void database_tried(struct database *b, int64_t now_ms, bool works, const char *reason, uint64_t random);

/* While it refuses, the next try is at most so far away: something must be written before a time that nears.
 */
void database_hurry(struct database *b, int64_t now_ms, int64_t within_ms);

int64_t database_deadline(const struct database *b);
