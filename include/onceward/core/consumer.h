#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The consumer of a queue: its credit, and the detection of missing deliveries. A value; no clock, no I/O.
 *
 * Credit is renewed by subscribing again: a new consumer under a new number on the same channel, followed by
 * the cancel of the former one. Deliveries of the former consumer can still be acked, and the new one has
 * fresh credit. So parked deliveries never use up the prefetch, a lower prefetch bounds the bytes, and a
 * pause has a prefetch of 1, whose one delivery is held.
 *
 * The broker deletes an auto-delete queue when its last consumer is cancelled, and one with x-expires after that time.
 * Only a drain cancels the consumer of such a queue, or of one whose arguments cannot be read. Another queue is
 * cancelled too when it is left to other replicas, and in a few pauses.
 *
 * Under a single active consumer a cancel hands the queue to a waiting replica. On classic queues that
 * replica gets no delivery until the former one's deliveries are acked. There the prefetch is the configured
 * one from the start, and bounds the deliveries that a pause holds. */

enum consumer_state { CONSUMER_NONE, CONSUMER_STARTING, CONSUMER_ACTIVE, CONSUMER_STOPPING };

/* Reasons for a cautious start, which subscribes with prefetch 1 until every reason has ended. One bit each. */
enum caution {
    CAUTION_LIMIT = 1 << 0,   /* the delivery limit is unknown or small; ends with a delivery far from it */
    CAUTION_UNCLEAN = 1 << 1, /* the previous process ended uncleanly */
};

struct consumer {
    enum consumer_state state;
    uint32_t number;
    uint32_t former;         /* number of the consumer being replaced, until that is cancelled; 0: none */
    bool cancels_former;     /* the cancel of the former one was sent */
    int prefetch;            /* of the present consumer */
    bool bounded;            /* a caution, or `most` of its load, bounded it at its start */
    bool yielded;            /* started in the present pause, which only this replica has */
    unsigned cautions;       /* bits of enum caution */
    size_t n_used, n_parked; /* credit in use, and the part of it that is parked */
    int64_t started_ms;
    int64_t not_before_ms; /* time of the next try after a failure */
    int n_failures;        /* consecutive failures; -1: it was active */
    struct consumer_sizes {
        size_t seen, before; /* the largest delivery of this minute and of the one before */
        int64_t since_ms;
    } largest;
    struct consumer_watch {
        const char *stuck_for; /* why deliveries are missing; NULL: none are expected */
        int64_t since_ms, not_before_ms;
        int n_remedies;      /* consecutive remedies without a delivery */
        bool standby;        /* the remedies failed: another consumer is active */
        int64_t depth;       /* of the queue; -1: unknown */
        int64_t asked_ms;    /* time of an unanswered question; 0: answered */
        int64_t depth_of_ms; /* time of the question for the present depth */
        bool no_queue;
        bool no_queue_told; /* reported once, until the queue is consumed again */
    } watch;
};

/* Deliveries that the queue holds, and its limits. */
struct consumer_load {
    int prefetch, max_parked;  /* configured */
    size_t max_bytes, n_bytes; /* allowed, held */
    size_t n_waiting;          /* parked, or waiting for their turn */
    bool fixed;                /* the prefetch is the configured one, and is not renewed for credit */
    bool yields;               /* only this replica pauses, so a waiting one may take the queue */
    bool cautious;             /* a single delivery at a time, beside parked ones */
    int most; /* limit for all deliveries together (1: a pause, or only a probe message); 0: no limit */
};

/* The suitable prefetch, at least 1. */
int consumer_prefetch(const struct consumer *c, const struct consumer_load *l);

/* Is the credit used up by parked deliveries, or too large? Then a new consumer replaces this one. */
bool consumer_needs_renewal(const struct consumer *c, const struct consumer_load *l, int64_t now_ms);

void consumer_saw_size(struct consumer *c, int64_t now_ms, size_t n_bytes);

/* Remedy when Onceward is connected but gets no deliveries. For once a second. stuck_ms: time before the first
 * remedy; again_ms: before the next. */
enum consumer_remedy { REMEDY_NONE, REMEDY_ASK_DEPTH, REMEDY_REOPEN, REMEDY_STANDBY };
enum consumer_remedy consumer_watch(struct consumer *c, int64_t now_ms, int64_t stuck_ms, int64_t again_ms);

void consumer_depth(struct consumer *c, int64_t depth, bool no_queue);
