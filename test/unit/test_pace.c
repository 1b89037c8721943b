/* The pace of housekeeping: its share of the time grows while it finds something, and is bounded both ways.
 */

#include "cmocka_all.h"
#include "fields.h"
#include "onceward/core/pace.h"

static void test_slow_when_nothing_is_found(void **state)
{
    struct pace p = {0};
    (void)state;

    for (int i = 0; i < 20; i++)
        assert_int_equal(pace_rest_ms(&p, 1000, false, false, 20000), 1000 / PACE_LEAST);
}

static void test_faster_with_every_find(void **state)
{
    struct pace p = {0};
    int64_t rest, last = pace_rest_ms(&p, 1000, false, false, 20000);
    (void)state;

    for (int i = 0; i < 4; i++, last = rest) {
        rest = pace_rest_ms(&p, 1000, true, false, 20000);
        assert_true(rest < last);
    }
    for (int i = 0; i < 20; i++)
        assert_int_equal(pace_rest_ms(&p, 1000, true, false, 20000), 1000 / PACE_MOST);
    /* And slow again. */
    for (int i = 0; i < 4; i++)
        pace_rest_ms(&p, 1000, false, false, 20000);
    assert_int_equal(pace_rest_ms(&p, 1000, false, false, 20000), 1000 / PACE_LEAST);
}

static void test_bounds(void **state)
{
    struct pace p = {0};
    (void)state;

    for (int found = 0; found < 2; found++) {
        assert_int_equal(pace_rest_ms(&p, 0, found, false, 0), 10);
        assert_int_equal(pace_rest_ms(&p, -5, found, false, 0), 10);
        assert_int_equal(pace_rest_ms(&p, INT64_MAX, found, false, 0), 5000);
    }
}

static void test_between_walks(void **state)
{
    struct pace p = {0};
    (void)state;

    assert_int_equal(pace_rest_ms(&p, 1000, true, true, 20000), 20000);
    assert_int_equal(pace_rest_ms(&p, 1000, false, true, 1000), 1000);
    assert_int_equal(pace_rest_ms(&p, 10000000, false, true, 1000), 5000);
    assert_int_equal(pace_between_ms(1000), 1000);
    assert_int_equal(pace_between_ms(500000), 5000);
    assert_int_equal(pace_between_ms(INT64_C(7) * 86400 * 1000), 20000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slow_when_nothing_is_found),
        cmocka_unit_test(test_faster_with_every_find),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_between_walks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
