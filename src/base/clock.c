#include "onceward/base/clock.h"

#include <time.h>

static int64_t clock_read_us(clockid_t id)
{
    struct timespec t;

    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t clock_us(void)
{
    return clock_read_us(CLOCK_BOOTTIME);
}

int64_t clock_ms(void)
{
    return clock_us() / 1000;
}

/* CLOCK_MONOTONIC is the only clock of pthread_cond_clockwait that never jumps. */
struct timespec clock_until(int64_t ms)
{
    int64_t us = clock_read_us(CLOCK_MONOTONIC) + ms * 1000;

    return (struct timespec){us / 1000000, us % 1000000 * 1000};
}

int64_t clock_wall_ms(void)
{
    return clock_read_us(CLOCK_REALTIME) / 1000;
}
