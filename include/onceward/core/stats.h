#pragma once

#include <stdint.h>

/* Numbers for the stats line, in fixed memory. One thread. */

/* A log-linear histogram (the idea of http://hdrhistogram.org): 64 buckets of width 1, then 32 for each
 * doubling. So a quantile is exact below 64 and off by at most 1/64 (1.6 %) above. The unit is the caller's:
 * microseconds reach to 2^36, or 19 hours; what is longer lies in the last bucket and is reported as the
 * maximum. {0} is an empty one, 4 KiB. */
enum { HISTOGRAM_BUCKETS = 1024 };

struct histogram {
    uint64_t n;
    int64_t max;
    uint32_t counts[HISTOGRAM_BUCKETS];
};

/* A value below 0 counts as 0. */
void histogram_add(struct histogram *h, int64_t value);

/* The smallest value that permille/1000 of all values do not exceed (500: the median, 990: p99); 0 when there
 * is none. Never above max. */
int64_t histogram_quantile(const struct histogram *h, int permille);

void histogram_reset(struct histogram *h);

/* A count with what it grew by since it was last reported. {0} is a new one. */
struct counter {
    uint64_t total, reported;
};

static inline void counter_add(struct counter *c, uint64_t n)
{
    c->total += n;
}

/* What it grew by since the last call. */
static inline uint64_t counter_take(struct counter *c)
{
    uint64_t grown = c->total - c->reported;

    c->reported = c->total;
    return grown;
}
