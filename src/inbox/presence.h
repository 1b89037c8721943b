#pragma once

#include "onceward/inbox/inbox.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The latest answer of sidecar_presence, parsed. */
struct presence {
    int64_t counter; /* this instance's counter; 0: not answered yet */
    bool namesake;
    bool asked_count;
    int *n_others; /* a number per queue */
    int64_t n_counted;
    struct inbox_owner_seen *owners;
    size_t n_owners;
    struct inbox_control *controls;
    size_t n_controls;
    struct inbox_peer *peers;
    size_t n_peers;
    struct inbox_stop *stops;
    size_t n_stops;
    char *texts; /* memory of all texts */
    struct slice *give_up;
};

void presence_deinit(struct presence *p);
