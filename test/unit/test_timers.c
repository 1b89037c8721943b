/* Timers: each is returned once, when it is due, in the order of times. */
#include "cmocka_all.h"
#include "onceward/core/timers.h"

#include <string.h>

enum { N = 200, N_STEPS = 20000, MOST_MS = 1000 };

static void test_they_come_in_the_order_of_their_times(void **state)
{
    static const int64_t at[] = {50, 10, 40, 10, 30, 20};
    struct timer d[6];
    struct timers t = {0};
    int64_t last = 0;

    memset(d, 0, sizeof(d));
    for (int i = 0; i < 6; i++)
        timers_set(&t, &d[i], at[i]);
    assert_int_equal(timers_next_ms(&t), 10);
    assert_null(timers_take_due(&t, 9));
    for (int i = 0; i < 6; i++) {
        struct timer *due = timers_take_due(&t, 50);

        assert_non_null(due);
        assert_true(due->at_ms >= last);
        last = due->at_ms;
    }
    assert_null(timers_take_due(&t, INT64_MAX));
    assert_true(timers_next_ms(&t) == INT64_MAX);
    timers_deinit(&t);
}

static void test_one_has_one_timer(void **state)
{
    struct timer d;
    struct timers t = {0};

    memset(&d, 0, sizeof(d));
    timers_clear(&t, &d); /* unset already */
    timers_set(&t, &d, 10);
    timers_set(&t, &d, 20); /* replaces its time */
    assert_int_equal(t.n, 1);
    assert_null(timers_take_due(&t, 19));
    timers_set(&t, &d, INT64_MAX);
    assert_int_equal(t.n, 0);
    timers_set(&t, &d, 30);
    assert_ptr_equal(timers_take_due(&t, 30), &d);
    assert_int_equal(d.slot, 0);
    timers_deinit(&t);
}

/* The same calls on a table that is searched have the same result. */
static void test_any_order_of_calls(void **state)
{
    static struct timer d[N];
    static int64_t at[N]; /* 0: none */
    struct timers t = {0};
    uint32_t random = 1;

    for (int step = 0; step < N_STEPS; step++) {
        random = random * 1664525 + 1013904223;
        int i = (int)(random >> 8) % N, ms = 1 + (int)(random >> 16) % MOST_MS;
        int64_t first = INT64_MAX;

        if (random >> 24 < 160) {
            timers_set(&t, &d[i], ms);
            at[i] = ms;
        } else if (random >> 24 < 200) {
            timers_clear(&t, &d[i]);
            at[i] = 0;
        } else {
            struct timer *due = timers_take_due(&t, ms);

            for (int k = 0; k < N; k++)
                assert_false(!due && at[k] && at[k] <= ms);
            if (due) {
                for (int k = 0; k < N; k++)
                    assert_false(at[k] && at[k] < at[due - d]);
                assert_true(at[due - d] <= ms);
                at[due - d] = 0;
            }
        }
        for (int k = 0; k < N; k++)
            first = at[k] && at[k] < first ? at[k] : first;
        assert_int_equal(timers_next_ms(&t), first);
    }
    timers_deinit(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_they_come_in_the_order_of_their_times),
        cmocka_unit_test(test_one_has_one_timer),
        cmocka_unit_test(test_any_order_of_calls),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
