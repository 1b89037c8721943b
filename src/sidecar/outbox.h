#pragma once

#include "sidecar/sidecar.h"

#include "onceward/core/outbox.h"
#include "onceward/inbox/outbox.h"

/* Shared by the files of the outbox's relay: see outbox.c. */

struct sidecar_outbox {
    struct outbox core;
    char *vhost;
    struct sender *sender; /* NULL: not connected */
    struct dial dial;
    struct watch watch;
    bool readable;
    int64_t tick_ms, told_failed_ms;
    int64_t busy_since_ms; /* another transaction has locked the lease; 0: it has not */
    char blocked[256];     /* why the broker takes no messages at present; or empty */
    struct buf header;
    struct {
        bool asked, known;
        struct inbox_outbox_gauge latest;
        int64_t stats_at_ms, said_ms;
        struct interval relay;
        uint64_t sum; /* of the counts in the latest line */
    } figures;
};

/* --- outbox_answers.c --- */

void outbox_answers_take(struct sidecar *s); /* for each turn with a connected database */

/* --- outbox_figures.c --- */

void outbox_figures_read(const struct sidecar *s, struct figures *ret);
void outbox_figures_step(struct sidecar *s);
