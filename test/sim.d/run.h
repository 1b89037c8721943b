#pragma once

#include "plan.h"
#include "trace.h"
#include "world.h"

/* A run of a plan. */

struct outcome {
    bool broken;
    char check[32], text[600];
    int64_t at_us;      /* time of the broken promise, since the start */
    int64_t settled_us; /* time at which everything was done */
    struct world_counts counts;
    uint64_t trace_hash; /* with TRACE_HASH */
};

/* looks: called at the end of the run, before the world is freed; may be NULL. */
typedef void looks_fn(struct world *w, void *context);
void run_plan(const struct plan *p, enum trace_mode trace, struct outcome *ret, looks_fn *looks,
              void *context);

/* Reduces a plan to the parts that break the same promise. n_tries: maximum number of runs. */
void shrink_plan(struct plan *p, struct outcome *o, int n_tries);
