#pragma once

#include "plan.h"
#include "world.h"

/* One run of a plan. */

struct outcome {
    bool broken;
    char check[32], text[600];
    int64_t at_us;      /* of what was broken, since the start */
    int64_t settled_us; /* when everything was done */
    struct world_counts counts;
};

/* looks: called when it has ended, before the world is taken apart; NULL: nobody is interested. */
typedef void looks_fn(struct world *w, void *context);
void run_plan(const struct plan *p, bool trace, struct outcome *ret, looks_fn *looks, void *context);

/* Takes away from a plan whatever it breaks the same promise without. n_tries: runs that it may take. */
void shrink_plan(struct plan *p, struct outcome *o, int n_tries);
