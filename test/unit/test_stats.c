/* The histogram against exact quantiles, and counters. */

#include "cmocka_all.h"
#include "fields.h"
#include "onceward/core/stats.h"

#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static uint64_t next_random(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static void test_is_small(void **state)
{
    (void)state;
    assert_true(sizeof(struct histogram) <= 4096 + 32);
}

static void test_empty(void **state)
{
    static struct histogram h;
    (void)state;

    assert_int_equal(histogram_quantile(&h, 500), 0);
    assert_int_equal(histogram_quantile(&h, 1000), 0);
    assert_int_equal(h.max, 0);
}

static void test_one_value(void **state)
{
    static struct histogram h;
    static const int64_t values[] = {0,
                                     1,
                                     2,
                                     31,
                                     32,
                                     63,
                                     64,
                                     65,
                                     127,
                                     128,
                                     129,
                                     1000,
                                     12345,
                                     999999,
                                     1000000,
                                     60000000,
                                     3600000000,
                                     36000000000,
                                     (INT64_C(1) << 36) - 1,
                                     INT64_C(1) << 36,
                                     INT64_C(1) << 50,
                                     INT64_MAX};
    (void)state;

    for (size_t i = 0; i < COUNT(values); i++) {
        histogram_reset(&h);
        histogram_add(&h, values[i]);
        int64_t p50 = histogram_quantile(&h, 500);

        assert_true(p50 <= values[i]);
        if (values[i] < 64)
            assert_true(p50 == values[i]);
        assert_true((double)(values[i] - p50) <= (double)values[i] / 64);
        assert_true(h.max == values[i]);
        assert_true(histogram_quantile(&h, 1000) <= h.max);
    }
    histogram_reset(&h);
    histogram_add(&h, -5);
    histogram_add(&h, INT64_MIN);
    assert_int_equal(h.n, 2);
    assert_int_equal(histogram_quantile(&h, 990), 0);
}

/* The neighbours of every bucket: each power of two, one less, one more, with a larger value beside it, so that the
 * bound by the maximum does not help. */
static void test_error_of_each_octave(void **state)
{
    static struct histogram h;
    (void)state;

    for (int shift = 0; shift < 36; shift++) {
        for (int64_t off = -1; off <= 1; off++) {
            int64_t value = (INT64_C(1) << shift) + off;

            histogram_reset(&h);
            histogram_add(&h, value);
            histogram_add(&h, INT64_C(1) << 40);
            int64_t p50 = histogram_quantile(&h, 500);
            assert_true(llabs(p50 - value) * 64 <= value);
        }
    }
}

static void test_against_exact_quantiles(void **state)
{
    enum { N = 20000 };
    static const int permilles[] = {1, 10, 500, 900, 990, 999, 1000};
    static struct histogram h;
    static int64_t values[N];
    uint64_t seed = 88172645463325252u;
    (void)state;

    for (int round = 0; round < 12; round++) {
        histogram_reset(&h);
        for (size_t i = 0; i < N; i++) {
            uint64_t r = next_random(&seed);

            values[i] = (int64_t)(r >> 24 >> (round * 3)); /* uniform, over ever smaller ranges */
            if (round % 2)
                values[i] >>= r % 16; /* long-tailed */
            values[i] &= (INT64_C(1) << 36) - 1;
            histogram_add(&h, values[i]);
        }
        qsort(values, N, sizeof(values[0]), compare);
        assert_true(h.max == values[N - 1]);
        for (size_t k = 0; k < COUNT(permilles); k++) {
            int64_t exact = values[(N * (size_t)permilles[k] + 999) / 1000 - 1];

            assert_true(llabs(histogram_quantile(&h, permilles[k]) - exact) * 64 <= exact);
        }
    }
}

static void test_ranks_of_few(void **state)
{
    static struct histogram h;
    (void)state;

    for (int64_t v = 1; v <= 10; v++)
        histogram_add(&h, v);
    assert_int_equal(histogram_quantile(&h, 0), 1);
    assert_int_equal(histogram_quantile(&h, 100), 1);
    assert_int_equal(histogram_quantile(&h, 101), 2);
    assert_int_equal(histogram_quantile(&h, 500), 5);
    assert_int_equal(histogram_quantile(&h, 990), 10);
    assert_int_equal(histogram_quantile(&h, 2000), 10);
    assert_int_equal(histogram_quantile(&h, -7), 1);
}

static void test_counter(void **state)
{
    struct counter c = {0};
    (void)state;

    assert_int_equal(counter_take(&c), 0);
    c.total += 3;
    c.total += 2;
    assert_int_equal(counter_take(&c), 5);
    assert_int_equal(counter_take(&c), 0);
    c.total += 1;
    assert_int_equal(counter_take(&c), 1);
    assert_int_equal(c.total, 6);
}

/* A quantile beyond a bound equals that at the bound, even if the largest value is not the middle of its bucket. */
static void test_quantiles_beyond_the_bounds(void **state)
{
    static struct histogram h;
    (void)state;

    histogram_reset(&h);
    histogram_add(&h, 992);
    histogram_add(&h, 1007);
    assert_int_equal(histogram_quantile(&h, 1000), 1000);
    assert_int_equal(histogram_quantile(&h, 1001), 1000);
    assert_int_equal(histogram_quantile(&h, -1), 1000);
}

/* --- the table of fields --- */

static void test_each_key_of_a_line_is_found(void **state)
{
    char key[STATS_KEY_MAX];
    int n_keys = 0;
    (void)state;

    for (int f = 0; f < N_FIGURES; f++) {
        const struct stats_field_info *info = stats_field_info((enum stats_field)f);
        size_t n = 0;

        assert_int_equal(stats_field_find(info->name, f), f);
        for (; stats_key((enum stats_field)f, n, key); n++) {
            assert_int_equal(stats_field_find(key, f), f);
            assert_memory_equal(key, info->name, strlen(info->name));
            assert_int_in_range(stats_field_find(key, 0), 0, f);
        }
        n_keys += (int)n;
        assert_int_equal(n, info->kind == STATS_KIND_VALUE ? 1 : info->kind == STATS_KIND_LATENCY ? 3 : 2);
        assert_int_equal(stats_kind_sentence(info->kind) == NULL, info->kind == STATS_KIND_VALUE);
    }
    assert_true(n_keys > N_FIGURES);
    assert_int_equal(stats_field_find("no_such_field", 0), -1);
    assert_int_equal(stats_field_find(stats_field_info(0)->name, N_FIGURES), -1);
}

static void test_the_keys_of_each_kind(void **state)
{
    static const struct {
        enum stats_field field;
        const char *keys[3];
    } cases[] = {
        {STATS_STATE, {"state"}},
        {STATS_RECEIVED, {"received", "received_total"}},
        {STATS_FORWARD_MS, {"forward_ms_p50", "forward_ms_p99", "forward_ms_max"}},
        {STATS_CLAIM_BATCH, {"claim_batch_p50", "claim_batch_max"}},
        {(enum stats_field)OUTBOX_FIELD_RELAY_MS, {"relay_ms_p50", "relay_ms_p99"}},
    };
    char key[STATS_KEY_MAX];
    (void)state;

    for (size_t i = 0; i < COUNT(cases); i++) {
        for (size_t k = 0; k < 3; k++) {
            assert_int_equal(stats_key(cases[i].field, k, key), cases[i].keys[k] != NULL);
            if (cases[i].keys[k])
                assert_string_equal(key, cases[i].keys[k]);
        }
        assert_false(stats_key(cases[i].field, 3, key));
    }
}

static void test_quantiles_of_many_values(void **state)
{
    static struct histogram h;
    (void)state;

    for (int64_t v = 1; v <= 2000; v++)
        histogram_add(&h, v < 60 ? v : 60);
    assert_int_equal(histogram_quantile(&h, -1), 1);
    assert_int_equal(histogram_quantile(&h, 0), 1);
    assert_int_equal(histogram_quantile(&h, 1), 2);
    assert_int_equal(histogram_quantile(&h, 29), 58);
    assert_int_equal(histogram_quantile(&h, 30), 60);
}

static void test_the_last_bucket_but_one(void **state)
{
    static struct histogram h;
    const int64_t value = INT64_C(62) << 30;
    (void)state;

    histogram_add(&h, value);
    histogram_add(&h, INT64_C(1) << 40);
    assert_true(llabs(histogram_quantile(&h, 500) - value) * 64 <= value);
    assert_true(histogram_quantile(&h, 1000) == INT64_C(1) << 40);
}

/* The rank is rounded up to the next integer. */
static void test_the_rank_of_a_quantile(void **state)
{
    static const struct {
        int n, permille, rank;
    } cases[] = {{999, 999, 999}, {1000, 999, 999}, {1000, 998, 998}, {2000, 999, 1998}, {1001, 999, 1000},
                 {3, 333, 1},     {3, 334, 2},      {1999, 1, 2},     {999, 1, 1}};
    (void)state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int above = 0; above < 2; above++) { /* the value at the rank, and the one before it */
            static struct histogram h;

            histogram_reset(&h);
            for (int k = 1; k <= cases[i].n; k++)
                histogram_add(&h, k < cases[i].rank + above ? 0 : 1);
            assert_int_equal(histogram_quantile(&h, cases[i].permille), !above);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_is_small),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_one_value),
        cmocka_unit_test(test_error_of_each_octave),
        cmocka_unit_test(test_against_exact_quantiles),
        cmocka_unit_test(test_ranks_of_few),
        cmocka_unit_test(test_counter),
        cmocka_unit_test(test_quantiles_beyond_the_bounds),
        cmocka_unit_test(test_each_key_of_a_line_is_found),
        cmocka_unit_test(test_the_keys_of_each_kind),
        cmocka_unit_test(test_quantiles_of_many_values),
        cmocka_unit_test(test_the_last_bucket_but_one),
        cmocka_unit_test(test_the_rank_of_a_quantile),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
