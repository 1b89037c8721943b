#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Whether the database works, for all queues. A lost connection or a refused statement (disk full, read-only,
 * standby) makes it *down*: nothing new is claimed or forwarded, and one statement is tried with backoff from
 * 1 s to 15 s. A statement that may have failed because of its data makes the database *doubtful*: the try is
 * sent at once, and only if that fails too is the database down. A value. */

enum { DATABASE_TRY_FIRST_MS = 1000, DATABASE_TRY_LAST_MS = 15000 };

struct database {
    bool linked;           /* a connection exists */
    bool refuses;          /* connected, but a statement was refused for a lasting reason */
    uint32_t epoch;        /* counts connections and losses; a request remembers it */
    int64_t down_since_ms; /* 0: it is up */
    bool doubtful;         /* a statement failed, perhaps because of its data */
    bool trying;
    int64_t try_at_ms; /* time of the next try while it refuses; otherwise, no failure before then makes it
                      doubtful */
    int64_t up_since_ms;
    int n_tries;
    char reason[256]; /* why the database is down */
};

void database_init(struct database *b, int64_t now_ms);
void database_linked(struct database *b);
void database_lost(struct database *b, int64_t now_ms, const char *reason);

/* The sidecar has closed the connection itself: not a loss to be logged. */
void database_unlinked(struct database *b, const char *reason);

/* A statement was refused. If the SQLSTATE means that others will be refused too (classes 08, 25, 28, 3D,
 * 57P, and 53100), the database is down. Otherwise, and always when the statement's `own` size may be the
 * cause, it is doubtful. */
void database_refused(struct database *b, int64_t now_ms, const char *sqlstate, const char *reason, bool own);

bool database_is_up(const struct database *b);

/* Must the try be sent now? Then database_try_sent and database_tried follow. */
bool database_wants_try(const struct database *b, int64_t now_ms);
void database_try_sent(struct database *b);
void database_tried(struct database *b, int64_t now_ms, bool works, const char *reason, uint64_t random);

/* Moves the next try to at most within_ms from now while the database refuses, because something must be written in
 * time. */
void database_hurry(struct database *b, int64_t now_ms, int64_t within_ms);

int64_t database_deadline(const struct database *b);
