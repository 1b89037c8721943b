#pragma once

#include "truth.h"
#include "world.h"

#include <stdbool.h>
#include <stdint.h>

/* A simulated application, beside one sidecar: it does with each request what message, plan and fault say
 * (enum deed). With completion `transaction` it completes the token in the transaction of its work, as an
 * application that keeps its side of the contract does; what it does with an old token must come to nothing.
 */

struct app_sim {
    struct world *world;
    int index;
    bool up, hangs;
    uint32_t epoch;     /* raised by each end and each start */
    int64_t back_us;    /* it is down until then, by a fault */
    struct post **busy; /* what it works on. Owned */
    size_t n_busy, busy_cap;
    enum deed forced; /* of all requests; DEED_OK: none is */
    int slower;       /* times; 1: not */
    int64_t crashed_us;
};

void app_sim_init(struct world *w, struct app_sim *a, int index);
void app_sim_deinit(struct app_sim *a);

/* A request is sent to it. sidecar_answered follows, sooner or later or never. */
void app_sim_post(struct world *w, struct app_sim *a, struct post *p);

/* Is anybody there? refused: nobody took the connection. */
bool app_sim_probe(const struct world *w, const struct app_sim *a, bool *ret_refused);

void app_sim_crash(struct world *w, struct app_sim *a, int64_t down_us);
void app_sim_start(struct world *w, struct app_sim *a);
