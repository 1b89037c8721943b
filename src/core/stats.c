/* The histogram. One thread. */

#include "onceward/core/stats.h"

#include <assert.h>
#include <string.h>

enum { SUB_BITS = 5, LINEAR = 2 << SUB_BITS /* values with a bucket of their own */ };

static size_t bucket_of(int64_t value)
{
    assert(value >= 0);
    if (value < LINEAR)
        return (size_t)value;
    int shift = 63 - SUB_BITS - __builtin_clzll((unsigned long long)value); /* leaves SUB_BITS + 1 bits */
    size_t at = ((size_t)shift << SUB_BITS) + (size_t)(value >> shift);

    return at < HISTOGRAM_BUCKETS ? at : HISTOGRAM_BUCKETS - 1;
}

/* The middle of a bucket: its values differ from it by at most half the bucket's width. */
static int64_t bucket_value(size_t at)
{
    if (at < LINEAR)
        return (int64_t)at;
    int shift = (int)(at >> SUB_BITS) - 1;
    int64_t low = (int64_t)(at - ((size_t)shift << SUB_BITS)) << shift;

    return low + ((int64_t)1 << shift) / 2;
}

void histogram_add(struct histogram *h, int64_t value)
{
    if (value < 0)
        value = 0;
    if (value > h->max)
        h->max = value;
    h->n++;
    h->counts[bucket_of(value)]++;
}

int64_t histogram_quantile(const struct histogram *h, int permille)
{
    if (permille < 0)
        permille = 0;
    else if (permille > 1000)
        permille = 1000;
    /* n * permille could overflow. */
    uint64_t rank = h->n / 1000 * (uint64_t)permille + (h->n % 1000 * (uint64_t)permille + 999) / 1000;
    uint64_t seen = 0;

    if (!rank)
        rank = 1;
    for (size_t at = 0; at < HISTOGRAM_BUCKETS - 1; at++) {
        seen += h->counts[at];
        if (seen >= rank) {
            int64_t value = bucket_value(at);

            return value < h->max ? value : h->max;
        }
    }
    return h->max;
}

void histogram_reset(struct histogram *h)
{
    memset(h, 0, sizeof(*h));
}
