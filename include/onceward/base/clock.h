#pragma once

#include <stdint.h>
#include <time.h>

/* The only two clocks of the program. Core never reads them: it is given the time. */

/* Milliseconds that never jump, and go on while the machine is suspended (CLOCK_BOOTTIME): a window that
 * ended meanwhile is over. For deadlines and durations. */
int64_t clock_ms(void);

/* The same in microseconds, for latencies. */
int64_t clock_us(void);

/* So many milliseconds from now, as pthread_cond_clockwait takes it with CLOCK_MONOTONIC. */
struct timespec clock_until(int64_t ms);

/* Milliseconds since 1970, UTC. For log lines, HTTP dates, and to be compared with another clock: it jumps.
 */
int64_t clock_wall_ms(void);
