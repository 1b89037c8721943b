#pragma once

#include "database_sim.h"
#include "truth.h"
#include "world.h"

#include "onceward/core/queue.h"

#include <stdbool.h>
#include <stdint.h>

/* The oracle knows the true state, and checks the promises after every step (README.md, "What it promises"). The
 * first broken promise ends the run. */

struct oracle {
    char check[32]; /* name of the broken check; empty: none */
    char text[600];
    int64_t at_us;
    /* A sidecar's load in the present second. */
    struct oracle_load {
        int64_t second;
        uint64_t n_actions, n_facts, n_turns;
        size_t n_held; /* maximum */
    } load[SIDECARS_MAX];
    struct oracle_silence {
        int64_t progress_us; /* time of the latest progress there */
        int64_t told_us;     /* time of the latest line that reported a pause, and its reason */
        int64_t empty_us;    /* latest time without waiting messages */
        int n_standing;      /* pauses logged and not resumed yet */
    } silence[SIDECARS_MAX][QUEUES_MAX];
    struct letter_counts no_id[QUEUES_MAX];
    const struct truth *unsettled; /* as last found: the next search begins with it */
    int64_t settled_us;            /* time since which everything is done; 0: not yet */
    uint64_t n_checks;
};

void oracle_init(struct world *w);

/* Is the copy so near its delivery limit that it is not requeued? */
bool oracle_is_near(const struct world *w, const struct copy *m);

/* Message of a delivery; NULL: it is freed, or has no id. */
const struct truth *oracle_truth(const struct world *w, int queue, const struct delivery *d);

/* Reports a broken promise; `check` is its short name. Only the first one counts. */
void oracle_broken(struct world *w, const char *check, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Has the application named a previous message of its key in the same request? Then, in `transaction`, the message
 * was not attempted. */
bool oracle_is_behind_failed(const struct world *w, const struct post *p);

/* The core forwards the request p. */
void oracle_forward(struct world *w, struct post *p);
/* The core got the end of a request as a fact. */
void oracle_answered(struct world *w, struct post *p);
/* The core publishes a copy of m to its own queue, and acks, rejects or requeues one copy. */
void oracle_renewed(struct world *w, const struct sidecar *s, struct copy *m);
void oracle_ack(struct world *w, const struct copy *m);
void oracle_reject(struct world *w, const struct copy *m, bool too_large);
/* The broker got the reject. */
void oracle_rejected(struct world *w, const struct copy *m);
void oracle_requeue(struct world *w, struct sidecar *s, struct copy *m, bool draining);
/* A statement about a message is sent. */
void oracle_asked(struct world *w, struct truth *t);
/* A statement was executed for an item; was: its row before. */
void oracle_written(struct world *w, const struct batch *b, const struct batch_item *item,
                    const struct inbox_row_sim *was);
/* An application has committed its work. */
void oracle_effect(struct world *w, const struct post *p);
/* The broker dropped a copy: delivered too often, or the queue is too long. */
void oracle_dropped(struct world *w, struct copy *m);
void oracle_overflowed(struct world *w, struct copy *m);
/* The last consumer of a queue was cancelled. */
void oracle_unsubscribed(struct world *w, const struct sidecar *s, int queue);
/* A sidecar starts. */
void oracle_started(struct world *w, const struct sidecar *s);
/* A line of the log. */
void oracle_told(struct world *w, struct sidecar *s, int queue, const struct note *n);
/* A sidecar closes its channel, for this reason. */
void oracle_reopens(struct world *w, struct sidecar *s, int queue, const char *why);
/* A turn of a sidecar's loop has ended. */
void oracle_turn(struct world *w, struct sidecar *s, size_t n_actions, size_t n_facts);
/* The delivery limit of an ordered queue, oracle_order.c: a sidecar forwards, subscribes or closes its channel; a copy
 * is returned, with a higher count; the broker has dropped one; an operator lets a stopped queue continue; a second has
 * passed. */
void oracle_forwards_in_order(struct world *w, const struct sidecar *s, int queue);
void oracle_closes(struct world *w, const struct sidecar *s, int queue);
void oracle_subscribes(struct world *w, const struct sidecar *s, int queue);
/* Subscribes with that prefetch. */
void oracle_consumes(struct world *w, const struct sidecar *s, int queue, int64_t prefetch);
void oracle_returned(struct world *w, struct copy *m);
void oracle_dropped_in_order(struct world *w, const struct copy *m);
void oracle_continues(struct world *w, int queue);
void oracle_second_of_limit(struct world *w, const struct sidecar *s, int queue);
/* For once per virtual second. */
void oracle_second(struct world *w);
/* Is everything possible done? */
bool oracle_is_settled(const struct world *w);
/* The run has ended. */
void oracle_end(struct world *w);
