#pragma once

#include <stdint.h>

/* The only two clocks of the program. Core never reads them: it is given the time. */

/* Milliseconds that never jump (CLOCK_MONOTONIC). For deadlines and durations. */
int64_t clock_ms(void);

/* The same in microseconds, for latencies. */
int64_t clock_us(void);

/* Milliseconds since 1970, UTC. For log lines and HTTP dates only: it jumps. */
int64_t clock_wall_ms(void);
