/* The pace of housekeeping: its share of the time grows while it finds work, and is bounded both ways. */

#include "cmocka_all.h"
#include "fields.h"
#include "onceward/core/pace.h"

static void test_slow_when_nothing_is_found(void **state)
{
    struct pace p = {0};
    (void)state;

    for (int i = 0; i < 20; i++)
        assert_int_equal(pace_rest_ms(&p, 1000, false, false, false, 20000), 1000 / PACE_LEAST);
}

static void test_faster_with_every_find(void **state)
{
    struct pace p = {0};
    int64_t rest, last = pace_rest_ms(&p, 1000, false, false, false, 20000);
    (void)state;

    for (int i = 0; i < 4; i++, last = rest) {
        rest = pace_rest_ms(&p, 1000, true, false, false, 20000);
        assert_true(rest < last);
    }
    for (int i = 0; i < 20; i++)
        assert_int_equal(pace_rest_ms(&p, 1000, true, false, false, 20000), 1000 / PACE_MOST);
    /* And slow again. */
    for (int i = 0; i < 4; i++)
        pace_rest_ms(&p, 1000, false, false, false, 20000);
    assert_int_equal(pace_rest_ms(&p, 1000, false, false, false, 20000), 1000 / PACE_LEAST);
}

static void test_bounds(void **state)
{
    struct pace p = {0};
    (void)state;

    for (int found = 0; found < 2; found++) {
        assert_int_equal(pace_rest_ms(&p, 0, found, false, false, 0), 10);
        assert_int_equal(pace_rest_ms(&p, -5, found, false, false, 0), 10);
        assert_int_equal(pace_rest_ms(&p, INT64_MAX, found, false, false, 0), 5000);
    }
}

static void test_between_walks(void **state)
{
    struct pace p = {0};
    (void)state;

    assert_int_equal(pace_rest_ms(&p, 1000, true, true, false, 20000), 20000);
    assert_int_equal(pace_rest_ms(&p, 1000, false, true, false, 1000), 1000);
    assert_int_equal(pace_rest_ms(&p, 10000000, false, true, false, 1000), 5000);
    assert_int_equal(pace_between_ms(1000), 1000);
    assert_int_equal(pace_between_ms(500000), 5000);
    assert_int_equal(pace_between_ms(INT64_C(7) * 86400 * 1000), 20000);
}

static void test_a_walk_that_is_behind_gets_a_greater_share(void **state)
{
    struct pace p = {0};
    (void)state;

    for (int i = 0; i < 20; i++)
        assert_int_in_range(pace_rest_ms(&p, 1000, false, false, true, 20000), 1000 / PACE_BEHIND,
                            1000 / PACE_LEAST);
    assert_int_equal(pace_rest_ms(&p, 1000, false, false, true, 20000), 1000 / PACE_BEHIND);
    assert_int_equal(pace_rest_ms(&p, 0, true, false, true, 20000), 1);
    /* The walk has caught up. */
    assert_int_equal(pace_rest_ms(&p, 1000, true, false, false, 20000), 1000 / PACE_MOST);
}

static void test_walks_share_a_bound(void **state)
{
    (void)state;

    assert_int_equal(pace_pause_ms(3000, false), 3000 / PACE_MOST);
    assert_int_equal(pace_pause_ms(3000, true), 3000 / PACE_BEHIND);
    assert_int_equal(pace_pause_ms(INT64_MAX, false), 5000);
    assert_int_equal(pace_pause_ms(0, true), 1);
    assert_int_equal(pace_pause_ms(-5, false), 1);
}

static void test_a_walk_is_behind_its_goal(void **state)
{
    struct pace_walk w = {.began_ms = 1000, .page = 50, .n_pages = 100};
    const int64_t goal = pace_goal_ms(86400000), half = 1000 + goal / 2;
    (void)state;

    assert_int_equal(goal, 8640000);
    assert_false(pace_is_behind(&w, half, goal));
    assert_true(pace_is_behind(&w, half + 1, goal));
    assert_false(pace_is_behind(&w, half + 1, 2 * goal));
    assert_false(pace_is_behind(&w, half + 1, 0));
    w.page = 51;
    assert_false(pace_is_behind(&w, half + 1, goal));
    w.began_ms = 0;
    assert_false(pace_is_behind(&w, INT64_MAX, goal));
    w = (struct pace_walk){.began_ms = 1000};
    assert_false(pace_is_behind(&w, half, goal));
}

static void test_a_walk_lags_after_twice_its_goal(void **state)
{
    struct pace_walk w = {.began_ms = 1000, .page = 50, .n_pages = 100};
    (void)state;

    assert_int_equal(pace_lag_ms(&w, 1000 + 2 * 600, 600), 0);
    assert_int_equal(pace_lag_ms(&w, 1000 + 2 * 600 + 7, 600), 7);
    assert_int_equal(pace_lag_ms(&w, 100000, 0), 0);
    w.began_ms = 0;
    assert_int_equal(pace_lag_ms(&w, 100000, 600), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slow_when_nothing_is_found),
        cmocka_unit_test(test_faster_with_every_find),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_between_walks),
        cmocka_unit_test(test_a_walk_that_is_behind_gets_a_greater_share),
        cmocka_unit_test(test_walks_share_a_bound),
        cmocka_unit_test(test_a_walk_is_behind_its_goal),
        cmocka_unit_test(test_a_walk_lags_after_twice_its_goal),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
