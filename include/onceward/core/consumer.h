#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The consumer of a queue: its credit, and whether anything comes. A value; no clock, no I/O.
 *
 * Credit is renewed by subscribing again: a new consumer under a new number on the same channel, and then the
 * cancel of the former one. Deliveries of the former one stay owned and ackable, and the new one has fresh
 * credit. So parked deliveries never use up the prefetch, bytes are bounded by a lower one, and a pause has
 * a prefetch of 1, whose one delivery is held.
 *
 * A queue that was subscribed stays subscribed: the broker deletes an auto-delete queue, and one with
 * x-expires after its time, when the last consumer is cancelled. Only a drain, and a queue that is left to
 * other replicas, which consume it, have none.
 *
 * Under a single active consumer a cancel hands the queue to a waiting replica. On classic queues that replica
 * is then delivered nothing until the former one's deliveries are acked. There the prefetch is the configured one
 * from the start and bounds what a pause holds. */

enum consumer_state { CONSUMER_NONE, CONSUMER_STARTING, CONSUMER_ACTIVE, CONSUMER_STOPPING };

/* Why a start is cautious: it subscribes with prefetch 1 until every reason has gone. A bit each. */
enum caution {
    CAUTION_LIMIT = 1 << 0,   /* the delivery limit is unknown or small; until a delivery far from it comes */
    CAUTION_UNCLEAN = 1 << 1, /* the process ended uncleanly before */
};

struct consumer {
    enum consumer_state state;
    uint32_t number;
    uint32_t former;         /* number of the consumer that it replaces, until that is cancelled; 0: none */
    bool cancels_former;     /* its cancel was sent */
    int prefetch;            /* of the present one */
    bool bounded;            /* by what its load said at the start: `most` */
    bool yielded;            /* started in the present pause of this replica alone */
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
        bool no_queue_told; /* once until it is consumed again */
    } watch;
};

/* What the queue has of deliveries, and what it may have. */
struct consumer_load {
    int prefetch, max_parked;  /* configured */
    size_t max_bytes, n_bytes; /* allowed, held */
    size_t n_waiting;          /* parked, and what waits for its turn */
    bool fixed;                /* the prefetch is the configured one, and is not renewed for credit */
    bool yields;               /* a pause of this replica alone: a waiting one may take the queue */
    int most; /* at most so many in all (1: a pause, or only to try with); 0: no such bound */
};

/* The prefetch that fits, at least 1. */
int consumer_prefetch(const struct consumer *c, const struct consumer_load *l);

/* Is the credit used up by parked deliveries, or larger than what fits? Then a new consumer replaces it. */
bool consumer_needs_renewal(const struct consumer *c, const struct consumer_load *l, int64_t now_ms);

void consumer_saw_size(struct consumer *c, int64_t now_ms, size_t n_bytes);

/* Connected, and nothing comes: what is to be done? Called once a second. stuck_ms, again_ms: the patience,
 * and until the next remedy. */
enum consumer_remedy { REMEDY_NONE, REMEDY_ASK_DEPTH, REMEDY_REOPEN, REMEDY_STANDBY };
enum consumer_remedy consumer_watch(struct consumer *c, int64_t now_ms, int64_t stuck_ms, int64_t again_ms);

void consumer_depth(struct consumer *c, int64_t depth, bool no_queue);
