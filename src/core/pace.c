/* The pace of housekeeping. Pure. */

#include "onceward/core/pace.h"

enum { REST_MIN_MS = 10, REST_MAX_MS = 5000 };

int64_t pace_rest_ms(struct pace *p, int64_t took_us, bool found, bool ended, int64_t between_ms)
{
    int share = found ? p->share * 2 : p->share / 2;

    p->share = share < PACE_LEAST ? PACE_LEAST : share > PACE_MOST ? PACE_MOST : share;
    int64_t rest = took_us > 0 ? took_us / p->share : 0; /* microseconds over thousandths are milliseconds */

    if (rest > REST_MAX_MS)
        rest = REST_MAX_MS;
    if (rest < REST_MIN_MS)
        rest = REST_MIN_MS;
    return ended && rest < between_ms ? between_ms : rest;
}

int64_t pace_between_ms(int64_t retention_ms)
{
    int64_t ms = retention_ms / 100;

    return ms < 1000 ? 1000 : ms > 20000 ? 20000 : ms;
}
