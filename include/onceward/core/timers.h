#pragma once

#include <stddef.h>
#include <stdint.h>

/* Time of the next step for a delivery or a request. A value inside its owner; zeroed, it is unset. */
enum timer_owner { TIMER_OF_DELIVERY, TIMER_OF_REQUEST };

struct timer {
    size_t slot; /* in the heap; 0: unset */
    int64_t at_ms;
    enum timer_owner owner;
};

/* The earlier of two times. */
static inline int64_t time_earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Timers in the order of their times: a binary heap. A value; zeroed, it is empty. Times are milliseconds of the
 * queue's clock. */
struct timers {
    struct timer **heap; /* 1-based. Owned */
    size_t n, cap;
};

void timers_deinit(struct timers *t);

/* Replaces the timer's time. INT64_MAX: unset. */
void timers_set(struct timers *t, struct timer *one, int64_t at_ms);
void timers_clear(struct timers *t, struct timer *one); /* does nothing if unset */

/* Clears and returns the first due timer; NULL: none. */
struct timer *timers_take_due(struct timers *t, int64_t now_ms);

/* Time of the first timer; INT64_MAX: none. */
int64_t timers_next_ms(const struct timers *t);
