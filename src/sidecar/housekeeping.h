#pragma once

#include "onceward/core/pace.h"
#include "sidecar/side_connection.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The purge, the sweep, the history, and the partitions of stored messages. */

struct sidecar;

struct tally {
    int64_t n; /* not logged yet */
    int64_t not_before_ms;
};

/* The walk through the history that deletes expired entries. */
struct expiry {
    bool is_due;
    struct pace pace;
    int64_t at_ms; /* time of the next call */
    int64_t page;  /* next page; -1: the page noted last */
    struct pace_walk walk;
};

struct housekeeping {
    struct pace pace;
    int64_t at_ms; /* time of the next call */
    int64_t page;  /* next page */
    struct expiry expiry;
    uint32_t epoch; /* connection of the database that this state belongs to */
    int n_failures;
    int64_t put_off_since_ms;
    struct pace_walk walk;
    int64_t n_orphans, n_unfinished; /* during the present walk */
    int64_t told_unfinished, clocks_told_ms, lag_told_ms;
    struct tally purged, swept, orphans, compacted, expired;
};

/* Partitions of stored messages: see store.c and days.c. */
struct sidecar_store {
    bool asked;
    int64_t at_ms;
    struct side_connection side;
    bool due, drops; /* a partition must be dropped; the call for that is in flight */
    int64_t drop_at_ms;
    int n_stuck;        /* consecutive tries to drop a locked partition */
    char hindered[512]; /* latest report of why days cannot be made or dropped; empty: none */
};

/* --- housekeeping.c --- */

void housekeeping_step(struct sidecar *s);
void housekeeping_weigh(struct sidecar *s); /* the figures have arrived */
int64_t housekeeping_due_ms(const struct sidecar *s);

/* --- store.c --- */

void store_linked(struct sidecar *s); /* the database is connected: asks before anything is claimed */
void store_ask(struct sidecar *s);    /* asks if due, and if the database is connected */
void store_step(struct sidecar *s);
int64_t store_due_ms(const struct sidecar *s);
void store_failed(struct sidecar *s, const struct fault *f); /* logs the failure */

/* --- days.c --- */

void days_step(struct sidecar *s);
int64_t days_due_ms(const struct sidecar *s);
void days_close(struct sidecar *s);
