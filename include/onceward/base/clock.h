#pragma once

#include <stdint.h>
#include <time.h>

/* The only two clocks of the program. The core never reads them: its callers pass the time. */

/* Milliseconds that never jump and count on while the machine is suspended (CLOCK_BOOTTIME), so that a window that
 * ended during the suspension is over. For deadlines and durations. */
int64_t clock_ms(void);

/* The same in microseconds, for latencies. */
int64_t clock_us(void);

/* Time after that many milliseconds, in the form that pthread_cond_clockwait takes with CLOCK_MONOTONIC. */
struct timespec clock_until(int64_t ms);

/* Milliseconds since 1970, UTC. This clock jumps: use it only for log lines, HTTP dates and comparisons with
 * another clock. */
int64_t clock_wall_ms(void);
