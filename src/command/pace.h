#pragma once

#include <stdint.h>

/* For commands that change dead letters one by one: keeps to the rate, and stops after the present letter on SIGINT
 * or SIGTERM. */
struct pace {
    int64_t interval_us, next_us;
};

/* 0; 1: stop. */
int pace_wait(struct pace *p);
void pace_catch_signals(void);

/* Interval for "10/s" or "90/m". 1: malformed. */
int rate_read(const char *text, int64_t *ret_interval_us);
