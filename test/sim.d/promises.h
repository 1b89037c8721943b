#pragma once

#include "inbox_sim.h"
#include "world.h"

#include "onceward/core/queue.h"

#include <stdbool.h>
#include <stdint.h>

/* The promises of the pages about answers, times and bounds, in both directions: an attempt is charged exactly when
 * the table of answers has it, a wait is neither shorter nor longer than promised. A part of the oracle. */

struct batch_item;
struct post;
struct sidecar;

/* Knowledge about one queue of a sidecar's start. */
struct promises {
    /* The circuit breaker: */
    int64_t on_us;     /* on since then; 0: off */
    int64_t was_on_us; /* latest time at which it was on */
    int64_t good_us;   /* the latest success, or the start */
    const struct truth
        *early;   /* completed in the turn that ended it, but sent before it was on; NULL: none */
    bool may_end; /* another message, which may have ended it, was completed in that turn */
    const struct truth **failed; /* messages that were charged since. Owned by the world */
    size_t n_failed, failed_cap;
    /* A drain: */
    int64_t busy_us; /* latest time with anything of the queue in flight */
    /* Counts, as in the stats line: */
    bool counts_due;
    uint64_t n_received, n_dead, n_failures, n_released, n_completed;
    bool paused; /* by the operator */
};

/* The sidecar starts. */
void promises_started(struct world *w, struct sidecar *s);

/* The statement about d is added to a batch: its decision is made. */
void promises_decided(struct world *w, struct sidecar *s, const struct delivery *d,
                      const struct batch_item *item);

/* A message of a request is sent. */
void promises_sent(struct world *w, const struct post *p);

/* A request is abandoned, and was not answered. */
void promises_abandoned(struct world *w, const struct sidecar *s, const struct post *p);

/* The database has executed the statement, and will answer. */
void promises_written(struct world *w, const struct batch_item *item);

/* The operator retries: no message waits for its next attempt any more. */
void promises_retried(struct world *w, int queue);

/* The core has got the answer. */
void promises_heard(struct world *w, struct sidecar *s, const struct batch_item *item);

/* A copy is rejected. */
void promises_rejected(struct world *w, const struct copy *m);

/* A line of the log. */
void promises_told(struct world *w, struct sidecar *s, int queue, const struct note *n);

/* A turn has ended. */
void promises_turn(struct world *w, struct sidecar *s);

/* For once per virtual second. */
void promises_second(struct world *w, struct sidecar *s, int queue);
