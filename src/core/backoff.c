/* Backoff with full jitter. Pure. */

#include "onceward/core/backoff.h"

int64_t backoff_ms(int64_t base_ms, int64_t max_ms, int n, uint64_t random)
{
    if (base_ms <= 0 || max_ms <= 0)
        return 0;
    int shift = n < 1 ? 0 : n - 1;
    int64_t bound = shift < 63 && base_ms <= max_ms >> shift ? base_ms << shift : max_ms;
    int64_t floor = bound / 10;

    return floor + (int64_t)(random % (uint64_t)(bound - floor + 1));
}
