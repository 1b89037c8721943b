#pragma once

#include "onceward/config/config.h"
#include "onceward/inbox/admin.h"

#include <stdbool.h>

/* What `dead` was asked to do. */

struct dead_options {
    const char *config;
    struct dead_filter filter;
    int64_t *ids;
    bool all, dry_run, body_raw;
    bool new_id;          /* --new-id */
    const char *given_id; /* its value, or NULL: make one */
    int64_t interval_us;  /* --rate: between two letters; 0: as fast as it goes */
};

/* Each answers the exit status. */
int dead_list(const struct dead_options *o, const struct config *c, struct admin *a);
int dead_show(const struct dead_options *o, const struct config *c, struct admin *a);

/* Publishes the letters again. */
int dead_redrive(const struct dead_options *o, const struct config *c, struct admin *a);

/* For whatever changes letters, one at a time: keeps to the rate, and is told by SIGINT or SIGTERM to stop
 * behind the present letter. */
struct pace {
    int64_t interval_us, next_us;
};

/* 0; 1: stop. */
int pace_wait(struct pace *p);
void pace_catch_signals(void);

/* The first queue with this consumer name, or NULL: this configuration does not have it. */
const struct config_queue *consumer_find(const struct config *c, const char *consumer);

/* "letter 12 (orders, id m1)": made safe for a terminal. The caller frees it with buf_deinit. */
struct buf;
void letter_add_title(struct buf *out, const struct dead_letter *l);
