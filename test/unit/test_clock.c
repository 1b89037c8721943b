/* The clocks on a machine that was suspended: the monotonic clock stood still, but the windows of tokens did not. */
#include "cmocka_all.h"

#include "onceward/base/clock.h"

#include <time.h>

/* The linker replaces the real function by this one: see meson.build. */
int __wrap_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_clock_gettime(clockid_t id, struct timespec *t)
{
    *t = (struct timespec){id == CLOCK_BOOTTIME    ? 5000
                           : id == CLOCK_MONOTONIC ? 3000
                                                   : 1700000000,
                           250000000};
    return 0;
}

static void test_deadlines_count_the_time_in_a_suspend(void **state)
{
    assert_int_equal(clock_ms(), 5000250);
    assert_int_equal(clock_us(), 5000250000);
    assert_int_equal(clock_wall_ms(), 1700000000250);
}

static void test_a_wait_is_told_in_the_clock_that_waits(void **state)
{
    struct timespec until = clock_until(1500);

    assert_int_equal(until.tv_sec, 3001);
    assert_int_equal(until.tv_nsec, 750000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deadlines_count_the_time_in_a_suspend),
        cmocka_unit_test(test_a_wait_is_told_in_the_clock_that_waits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
