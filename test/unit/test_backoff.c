/* Backoff: bounds, growth, overflow. */

#include "cmocka_all.h"
#include "fields.h"
#include "onceward/core/backoff.h"

#include <limits.h>

static void test_bounds(void **state)
{
    static const struct {
        int64_t base_ms, max_ms;
        int n;
        int64_t bound; /* the answer lies in [bound / 10, bound] */
    } cases[] = {
        {1000, 300000, 1, 1000},
        {1000, 300000, 2, 2000},
        {1000, 300000, 8, 128000},
        {1000, 300000, 9, 256000},
        {1000, 300000, 10, 300000},
        {1000, 300000, 63, 300000},
        {1000, 300000, 64, 300000},
        {1000, 300000, 65, 300000},
        {1000, 300000, INT_MAX, 300000},
        {1000, 300000, 0, 1000},
        {1000, 300000, INT_MIN, 1000},
        {5000, 1000, 1, 1000},
        {1, 1, 5, 1},
        {0, 1000, 3, 0},
        {1000, 0, 3, 0},
        {-1, 1000, 3, 0},
        {1, INT64_MAX, 63, INT64_C(1) << 62},
        {1, INT64_MAX, 64, INT64_MAX},
        {3, INT64_MAX, 63, INT64_MAX},
        {INT64_MAX, INT64_MAX, 1, INT64_MAX},
        {INT64_MAX, INT64_MAX, 2, INT64_MAX},
    };
    static const uint64_t randoms[] = {0, 1, 12345678901234567u, UINT64_MAX - 1, UINT64_MAX, 1u << 31};
    (void)state;

    for (size_t i = 0; i < COUNT(cases); i++) {
        for (size_t k = 0; k < COUNT(randoms); k++) {
            int64_t ms = backoff_ms(cases[i].base_ms, cases[i].max_ms, cases[i].n, randoms[k]);

            assert_true(ms >= cases[i].bound / 10);
            assert_true(ms <= cases[i].bound);
        }
        /* Both ends are reached. */
        assert_true(backoff_ms(cases[i].base_ms, cases[i].max_ms, cases[i].n, 0) == cases[i].bound / 10);
        uint64_t last = (uint64_t)(cases[i].bound - cases[i].bound / 10);
        assert_true(backoff_ms(cases[i].base_ms, cases[i].max_ms, cases[i].n, last) == cases[i].bound);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bounds)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
