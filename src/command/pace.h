#pragma once

#include <stdint.h>

/* For whatever changes letters, one at a time: keeps to the rate, and is told by SIGINT or SIGTERM to stop
 * behind the present letter. */
struct pace {
    int64_t interval_us, next_us;
};

/* 0; 1: stop. */
int pace_wait(struct pace *p);
void pace_catch_signals(void);

/* "10/s", "90/m": the time between two. 1: it is none. */
int rate_read(const char *text, int64_t *ret_interval_us);
