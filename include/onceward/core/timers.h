#pragma once

#include "onceward/core/delivery.h"

#include <stddef.h>
#include <stdint.h>

/* Deliveries by the time at which something is to be done about them: a binary heap, each delivery in it at
 * most once, at delivery.timer_slot. A value; zeroed it is empty. Times are milliseconds of the queue's
 * clock. */
struct timers {
    struct delivery **heap; /* 1-based. Owned */
    size_t n, cap;
};

void timers_deinit(struct timers *t);

/* In place of the one that it has. INT64_MAX: none. */
void timers_set(struct timers *t, struct delivery *d, int64_t at_ms);
void timers_clear(struct timers *t, struct delivery *d); /* no-op when it has none */

/* The first that is due, its timer cleared; NULL: none is. */
struct delivery *timers_take_due(struct timers *t, int64_t now_ms);

/* When the first is due; INT64_MAX: none. */
int64_t timers_next_ms(const struct timers *t);
