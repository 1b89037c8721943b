#pragma once

#include <stddef.h>
#include <stdint.h>

/* The time at which something is to be done about a delivery or a request. A value inside its owner; zeroed it is
 * not set. */
enum timer_owner { TIMER_OF_DELIVERY, TIMER_OF_REQUEST };

struct timer {
    size_t slot; /* of the heap; 0: not set */
    int64_t at_ms;
    enum timer_owner owner;
};

/* Timers in the order of their times: a binary heap. A value; zeroed it is empty. Times are milliseconds of the
 * queue's clock. */
struct timers {
    struct timer **heap; /* 1-based. Owned */
    size_t n, cap;
};

void timers_deinit(struct timers *t);

/* Replaces the time that the timer has. INT64_MAX: none. */
void timers_set(struct timers *t, struct timer *one, int64_t at_ms);
void timers_clear(struct timers *t, struct timer *one); /* no-op when it is not set */

/* The first timer that is due, cleared; NULL: none is. */
struct timer *timers_take_due(struct timers *t, int64_t now_ms);

/* When the first is due; INT64_MAX: none. */
int64_t timers_next_ms(const struct timers *t);
