#pragma once

#include "onceward/inbox/inbox.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The latest answer of sidecar_presence, taken apart. */
struct presence {
    int64_t counter; /* what it answered; 0: nothing yet */
    bool namesake;
    struct inbox_replica *replicas;
    size_t n_replicas;
    struct inbox_control *controls;
    size_t n_controls;
    char *texts;    /* what the others point into */
    bool *consumes; /* n queues for each replica */
    struct slice *give_up;
};

void presence_deinit(struct presence *p);
