#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The consumer of a queue: its credit, and whether anything comes. A value; no clock, no I/O.
 *
 * Parked deliveries never use up the prefetch: when they hold more than half of it, the consumer is cancelled
 * and starts again under a new number on the same channel. What the old one delivered stays owned and
 * ackable, and the new one has fresh credit. Bytes are bounded in the same way: the prefetch is lowered by
 * consuming again. */

enum consumer_state { CONSUMER_NONE, CONSUMER_STARTING, CONSUMER_ACTIVE, CONSUMER_STOPPING };

/* Why a start is cautious: it subscribes with prefetch 1 until every reason has gone. A bit each. */
enum caution {
    CAUTION_LIMIT = 1 << 0,   /* the delivery limit is unknown or small; until a delivery far from it comes */
    CAUTION_UNCLEAN = 1 << 1, /* the process ended uncleanly before */
};

struct consumer {
    enum consumer_state state;
    uint32_t number;
    int prefetch;            /* of the present one */
    bool bounded;            /* by what its load said at the start: `most` */
    unsigned cautions;       /* enum caution */
    size_t n_used, n_parked; /* of its credit */
    int64_t started_ms;
    int64_t not_before_ms; /* after a failure */
    int n_failures;        /* in a row; -1: it was active */
    struct consumer_sizes {
        size_t seen, before; /* the largest delivery of this minute and of the one before */
        int64_t since_ms;
    } largest;
    struct consumer_watch {
        const char *stuck_for; /* why something should come that does not; NULL: nothing should */
        int64_t since_ms, not_before_ms;
        int n_remedies;      /* in a row, without a delivery between */
        bool standby;        /* they were of no use: another consumer is active */
        int64_t depth;       /* of the queue; -1: not known */
        int64_t asked_ms;    /* and not answered yet; 0: answered */
        int64_t depth_of_ms; /* when the present depth was asked for */
        bool no_queue;
    } watch;
};

/* What the queue has of deliveries, and what it may have. */
struct consumer_load {
    int prefetch, max_parked;  /* configured */
    size_t max_bytes, n_bytes; /* allowed, held */
    size_t n_waiting;          /* parked, and what waits for its turn */
    int most;                  /* at most so many in all (1: only to try with); 0: no such bound */
};

/* The prefetch that fits, at least 1. */
int consumer_prefetch(const struct consumer *c, const struct consumer_load *l);

/* Is the credit used up by what only waits, or larger than what fits? Then it is to be cancelled and started
 * again. */
bool consumer_needs_renewal(const struct consumer *c, const struct consumer_load *l, int64_t now_ms);

void consumer_saw_size(struct consumer *c, int64_t now_ms, size_t n_bytes);

/* Connected, and nothing comes: what is to be done? Called once a second. stuck_ms, again_ms: the patience,
 * and until the next remedy. */
enum consumer_remedy { REMEDY_NONE, REMEDY_ASK_DEPTH, REMEDY_REOPEN, REMEDY_STANDBY };
enum consumer_remedy consumer_watch(struct consumer *c, int64_t now_ms, int64_t stuck_ms, int64_t again_ms);

void consumer_depth(struct consumer *c, int64_t depth, bool no_queue);
