#pragma once

#include "truth.h"
#include "world.h"

#include <stdbool.h>
#include <stdint.h>

/* A simulated application beside one sidecar. Message, plan and fault decide how it handles each request
 * (enum deed). With completion `transaction` it completes the token in the transaction of its work, as the
 * contract requires; work with an old token must have no effect. */

struct app_sim {
    struct world *world;
    int index;
    bool up, hangs;
    uint32_t epoch;     /* number of crashes and starts */
    int64_t back_us;    /* down until then because of a fault */
    struct post **busy; /* requests being handled. Owned */
    size_t n_busy, busy_cap;
    int forced; /* status of every answer; 0: not forced */
    int slower; /* factor of the work's time; 1: normal */
    int64_t crashed_us;
};

void app_sim_init(struct world *w, struct app_sim *a, int index);
void app_sim_deinit(struct app_sim *a);

/* Passes a request to the application. sidecar_answered follows sooner or later, or never. */
void app_sim_post(struct world *w, struct app_sim *a, struct post *p);

/* Is the application available? refused: it does not accept connections. */
bool app_sim_probe(const struct world *w, const struct app_sim *a, bool *ret_refused);

void app_sim_crash(struct world *w, struct app_sim *a, int64_t down_us);
void app_sim_start(struct world *w, struct app_sim *a);
